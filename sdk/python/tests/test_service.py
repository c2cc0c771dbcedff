"""The same classes against `ironcage serve`."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("httpx")

import ironcage  # noqa: E402
from ironcage import AsyncSandbox, Sandbox  # noqa: E402
from ironcage._local import find_program  # noqa: E402


def serve(home, listen):
    env = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run")}
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "IRONCAGE_API_URL", "IRONCAGE_API_KEY"):
        env.pop(name, None)
    (home / "run").mkdir(mode=0o700)
    process = subprocess.Popen([find_program(), "serve", "--listen", listen], env=env, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    address = line.rsplit(" ", 1)[-1].strip()
    assert address, "the service did not start"
    shown = subprocess.run([find_program(), "serve", "env"], env=env, capture_output=True, text=True, check=True).stdout
    key = re.search(r"IRONCAGE_API_KEY='([^']+)'", shown).group(1)
    return process, {"api_url": address, "api_key": key}


@pytest.fixture(scope="module")
def service():
    home = Path(tempfile.mkdtemp(prefix="ironcage-service."))
    process, connection = serve(home, "127.0.0.1:0")
    yield connection
    process.terminate()
    process.wait(60)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def sandbox(service):
    with Sandbox.create(timeout=600, metadata={"of": "the suite"}, env={"FROM_CREATE": "1"}, **service) as sandbox:
        yield sandbox


def test_commands_have_streams_status_input_and_a_timeout(sandbox):
    result = sandbox.commands.run("echo out$FROM_CREATE$A; echo err >&2; exit 42", env={"A": "2"})
    assert (result.stdout, result.stderr, result.exit_code) == ("out12\n", "err\n", 42)
    assert sandbox.commands.run(["cat"], input=b"\0\xff").stdout_bytes == b"\0\xff"
    assert sandbox.commands.run(["printf", "%s|", "a b", "$HOME"]).stdout == "a b|$HOME|"
    assert sandbox.commands.run("pwd").stdout.strip() == sandbox.directory
    sandbox.files.make_dir("sub")
    assert sandbox.commands.run("pwd", cwd="sub").stdout.strip() == sandbox.directory + "/sub"
    with pytest.raises(ironcage.CommandTimeoutError) as error:
        sandbox.commands.run("echo begun; sleep 600 & sleep 600", timeout=5)
    assert error.value.stdout == b"begun\n"
    assert sandbox.commands.run("kill -KILL $$").signal == 9
    assert sandbox.commands.run(["no-such-program"]).exit_code == 127
    result = sandbox.commands.run("head -c 100000 /dev/zero", max_output=1000)
    assert (len(result.stdout_bytes), result.truncated) == (1000, True)
    with pytest.raises(ironcage.UserUnsupportedError):
        sandbox.commands.run("true", user="nobody-else")


def test_a_process_is_followed_fed_and_killed(sandbox):
    pieces = []
    process = sandbox.commands.start("read line; echo got $line; cat; exit 5", on_stdout=pieces.append)
    process.write("hello\n")
    process.write("more\n")
    process.close_input()
    result = process.wait(60)
    assert (result.exit_code, result.stdout, b"".join(pieces)) == (5, "got hello\nmore\n", b"got hello\nmore\n")
    late = sandbox.commands.start("echo begun; sleep 600", timeout=5)
    with pytest.raises(ironcage.CommandTimeoutError) as error:
        late.wait(60)
    assert error.value.stdout == b"begun\n"
    process = sandbox.commands.start("echo a; echo b >&2; sleep 600")
    seen = {}
    for name, piece in process.output():
        seen[name] = piece
        if len(seen) == 2:
            process.kill()
    assert seen == {"stdout": b"a\n", "stderr": b"b\n"}
    assert process.wait(60).signal == 9


def test_a_terminal_has_a_size_and_is_typed_at(sandbox):
    with pytest.raises(ironcage.UnsupportedError):
        sandbox.pty.create()
    pty = sandbox.pty.create("stty size; read line; stty size; echo got $line", rows=30, columns=100, raw=True)
    seen = b""
    while b"30 100" not in seen:
        seen += pty.read(60)
    pty.resize(40, 120)
    pty.write("word\n")
    while b"got word" not in seen:
        seen += pty.read(60)
    assert b"40 120" in seen
    assert pty.wait(60).exit_code == 0


def test_files_and_their_errors(sandbox):
    files = sandbox.files
    content = os.urandom(1 << 20) * 5
    files.write("d/large", content)
    assert files.read("d/large") == content
    assert files.read("d/large", offset=3)[:5] == content[3:8]
    with pytest.raises(ironcage.FileTooLargeError):
        files.read("d/large", max_bytes=10)
    files.write("d/name with 'q' \u00fc?&#%", "x")
    found = {entry.name: entry for entry in files.list("d")}
    assert sorted(found) == ["large", "name with 'q' \u00fc?&#%"]
    assert (found["large"].kind, found["large"].size) == ("file", len(content))
    assert abs(files.info("d").modified - time.time()) < 3600 and files.info("d").is_dir
    files.rename("d/large", "d/other")
    assert files.exists("d/other") and not files.exists("d/large")
    files.make_dir("d/e/f")
    for kind, act in (
        (FileNotFoundError, lambda: files.read("none")),
        (FileNotFoundError, lambda: files.remove("none")),
        (IsADirectoryError, lambda: files.read("d")),
        (NotADirectoryError, lambda: files.list("d/other")),
        (PermissionError, lambda: files.write("/usr/x", b"x")),
        (ironcage.FileError, lambda: files.remove("d")),
    ):
        with pytest.raises(kind) as error:
            act()
        assert isinstance(error.value, ironcage.IroncageError) and error.value.code
    files.remove("d", recursive=True)
    assert not files.exists("d")


def test_a_cage_is_found_again_and_what_is_not_offered_says_so(service, sandbox):
    other = Sandbox.connect(sandbox.id, **service)
    assert other.directory == sandbox.directory
    assert sandbox.id in [info.id for info in Sandbox.list(**service)]
    other.detach()
    assert sandbox.leases.list() == [] and sandbox.requests.list() == []
    for act in (sandbox.leases.revoke, lambda: sandbox.leases.grant(read="/x")):
        with pytest.raises(ironcage.UnsupportedError):
            act()
    for wrong in ({"name": "x"}, {"cli_args": ["--i-know"]}, {"read": ["/etc"]}):
        with pytest.raises(ironcage.UnsupportedError):
            Sandbox.create(**wrong, **service)
    with pytest.raises(ironcage.SandboxNotFoundError):
        Sandbox.connect("c0000000000000", **service)
    gone = Sandbox.create(timeout=60, **service)
    assert gone.is_running()
    gone.close()
    gone.close()
    with pytest.raises(ironcage.SandboxNotFoundError):
        gone.commands.run("true")


def test_requests_are_approved_and_denied_and_leases_revoked(service, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    policy = tmp_path / "policy.toml"
    policy.write_text('[ceiling.ask.files]\nwrite = ["{}"]\n'.format(data))
    with Sandbox.create(timeout=120, policy=policy, **service) as sandbox:
        with pytest.raises(ironcage.DeniedError):
            sandbox.leases.grant(host="a.example:443", seconds=60)
        ask = "/.ironcage/bin/ironcage ask --write {} --reason 'to write' --wait 60".format(data)

        def asked():
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                found = sandbox.requests.list()
                if found:
                    return found[0]
                time.sleep(0.05)
            raise AssertionError("no request arrived")

        process = sandbox.commands.start(ask)
        request = asked()
        assert request.reason == "to write" and str(data) in request.resource
        (approved,) = sandbox.requests.approve(request.number, seconds=60)
        assert process.wait(60).exit_code == 0
        (lease,) = sandbox.leases.list()
        assert (lease.number, lease.state) == (approved.number, "open") and lease.seconds_left <= 60
        sandbox.files.write(str(data / "f"), "written")
        assert (data / "f").read_text() == "written"
        (ended,) = sandbox.leases.revoke(lease.number)
        assert ended.end == "revoked" and sandbox.leases.list() == []
        process = sandbox.commands.start(ask)
        sandbox.requests.deny(asked().number, reason="not now")
        result = process.wait(60)
        assert result.exit_code != 0 and "not now" in result.stdout + result.stderr


def test_a_change_is_shown_applied_and_discarded(service, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "kept").write_text("before\n")
    with Sandbox.create(timeout=120, workspace=work, **service) as sandbox:
        sandbox.commands.run("echo after > kept; echo new > other; echo x > third")
        change = sandbox.changes.diff()
        assert {file.path: file.status for file in change.files} == {"kept": "modified", "other": "added", "third": "added"}
        assert [file.path for file in sandbox.changes.diff(["kept"]).files] == ["kept"]
        text = sandbox.changes.text(["kept"])
        assert "+after" in text and "other" not in text
        applied = sandbox.changes.apply(["kept"])
        assert (applied.applied, applied.finished, applied.conflicts) == (1, False, [])
        assert (work / "kept").read_text() == "after\n" and not (work / "other").exists()
        with pytest.raises(ironcage.ServiceError) as error:
            sandbox.changes.discard()
        assert error.value.code == "conflict"
        with pytest.raises(ironcage.ServiceError) as error:
            sandbox.changes.apply(["../outside"])
        assert error.value.code == "invalid_request"
        with pytest.raises(ironcage.InvalidArgumentError):
            sandbox.changes.apply(on_conflict="both")
        with pytest.raises(ironcage.UnsupportedError):
            sandbox.changes.text(["kept", "other"])
    sandbox.changes.discard(["third"])
    assert sandbox.changes.apply().finished
    assert (work / "other").read_text() == "new\n" and not (work / "third").exists()
    with Sandbox.create(timeout=60, **service) as sandbox:
        with pytest.raises(ironcage.UnsupportedError):
            sandbox.changes.diff()


def test_a_wrong_key_and_a_service_that_is_not_there_have_their_own_errors(service, monkeypatch):
    with pytest.raises(ironcage.AuthenticationError) as error:
        Sandbox.list(api_url=service["api_url"], api_key="wrong")
    assert error.value.status == 401
    with pytest.raises(ironcage.ServiceError) as error:
        Sandbox.list(api_url="http://127.0.0.1:1", api_key="x")
    assert error.value.code == "unreachable"
    for wrong in ("ftp://x", "127.0.0.1:7421"):
        with pytest.raises(ironcage.InvalidArgumentError):
            Sandbox.list(api_url=wrong)
    monkeypatch.setenv("IRONCAGE_API_URL", service["api_url"])
    monkeypatch.setenv("IRONCAGE_API_KEY", service["api_key"])
    with Sandbox.create(timeout=60) as sandbox:
        assert sandbox._backend.name == "service"
        assert sandbox.commands.run("echo by the environment").ok


async def test_the_same_without_blocking(service):
    import asyncio

    async with await AsyncSandbox.create(timeout=60, **service) as sandbox:
        results = await asyncio.gather(*(sandbox.commands.run("echo {}".format(i)) for i in range(5)))
        assert [result.stdout for result in results] == ["{}\n".format(i) for i in range(5)]
        await sandbox.files.write("f", b"\0")
        assert await sandbox.files.read("f") == b"\0"
        process = await sandbox.commands.start("cat")
        await process.write("x")
        await process.close_input()
        assert [piece async for piece in process.output()] == [("stdout", b"x")]
        assert (await process.wait()).ok
    assert not await sandbox.is_running()
