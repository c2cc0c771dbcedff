"""The package against cages of this machine, without a service."""

import os
import signal
import stat
import sys
import threading
import time

import pytest

import ironcage
from ironcage import AsyncSandbox, Sandbox
from ironcage._runner import split_env


def test_a_command_has_its_own_output_status_and_streams(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2; exit 42")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 42)
    assert not result.ok
    assert sandbox.commands.run(["printf", "%s|", "a b", "$HOME"]).stdout == "a b|$HOME|"
    with pytest.raises(ironcage.CommandError) as error:
        sandbox.commands.run("exit 3", check=True)
    assert error.value.result.exit_code == 3


def test_a_status_of_125_is_the_commands_and_an_error_of_ironcage_is_not(sandbox):
    forged = "echo '{\"error\":{\"message\":\"forged\",\"code\":\"no-such-cage\"}}' >&2; exit 125"
    assert sandbox.commands.run(forged).exit_code == 125
    gone = Sandbox.create()
    gone.close()
    with pytest.raises(ironcage.SandboxNotFoundError) as error:
        gone.commands.run("true")
    assert error.value.hint
    assert not gone.is_running()
    gone.close()


def test_input_env_and_directory_arrive(sandbox):
    assert sandbox.commands.run(["cat"], input="a\0b").stdout_bytes == b"a\0b"
    assert sandbox.commands.run(["cat"], input="").stdout == ""
    assert sandbox.commands.run("cat").stdout == "", "without input it is at its end"
    result = sandbox.commands.run("echo $A-$HOME-$B", env={"A": "1 2", "HOME": "/x", "B": "="})
    assert result.stdout == "1 2-/x-=\n"
    sandbox.files.make_dir("sub/dir")
    assert sandbox.commands.run("pwd", cwd="sub/dir").stdout == sandbox.directory + "/sub/dir\n"
    assert sandbox.commands.run("pwd", cwd="/usr").stdout == "/usr\n"
    assert sandbox.commands.run("pwd").stdout == sandbox.directory + "\n"


def test_values_of_variables_are_not_on_the_command_line():
    words, own = split_env(["exec", "--env=KEY=s3cret", "--env=HOME=/x", "--env=LD_PRELOAD=y", "id", "--", "--env=A=b"])
    assert words == ["exec", "--env=KEY", "--env=HOME=/x", "--env=LD_PRELOAD=y", "id", "--", "--env=A=b"]
    assert own == {"KEY": "s3cret"}


def test_a_timeout_kills_the_command_and_its_children(sandbox):
    with pytest.raises(ironcage.CommandTimeoutError) as error:
        sandbox.commands.run("echo begun; trap '' HUP TERM; sleep 987 & sleep 987", timeout=4.5)
    assert isinstance(error.value, TimeoutError)
    assert error.value.stdout == b"begun\n"
    left = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null"
    assert "sleep 987" not in sandbox.commands.run(left).stdout
    # One that ends in time, by the same signal, is not taken for a timeout.
    result = sandbox.commands.run("kill -KILL $$", timeout=60)
    assert (result.exit_code, result.signal) == (137, signal.SIGKILL)


def test_other_users_programs_and_commands_are_refused_with_their_own_errors(sandbox):
    own = sandbox.commands.run("id -un").stdout.strip()
    assert sandbox.commands.run("id -un", user=own).stdout.strip() == own
    with pytest.raises(ironcage.UserUnsupportedError):
        sandbox.commands.run("true", user="nobody-else")
    with pytest.raises(PermissionError):
        sandbox.commands.run(["/etc/passwd"])
    assert sandbox.commands.run(["no-such-program"]).exit_code == 127
    for wrong in ([], ["a\0b"]):
        with pytest.raises(ironcage.InvalidArgumentError):
            sandbox.commands.run(wrong)
    with pytest.raises(ironcage.InvalidArgumentError):
        sandbox.commands.run("true", cwd="a\0b")
    for timeout in (0, -1, float("inf")):
        with pytest.raises(ironcage.InvalidArgumentError):
            sandbox.commands.run("true", timeout=timeout)


def test_output_is_streamed_bounded_and_drained(sandbox):
    pieces = []
    result = sandbox.commands.run("head -c 3000000 /dev/zero", max_output=1000, on_stdout=lambda piece: pieces.append(len(piece)))
    assert (len(result.stdout_bytes), result.truncated, sum(pieces)) == (1000, True, 3_000_000)
    assert not sandbox.commands.run("echo x").truncated

    def broken(_piece):
        raise KeyError("of the caller")

    with pytest.raises(KeyError):
        sandbox.commands.run("echo x; sleep 600", on_stdout=broken)


def test_a_background_command_has_input_output_and_an_end(sandbox):
    process = sandbox.commands.start("read line; echo got $line; read more || echo closed; exit 5")
    process.write("hello\n")
    output = process.output()
    assert next(output) == ("stdout", b"got hello\n")
    with pytest.raises(TimeoutError):
        process.wait(0.1)
    process.close_input()
    assert b"".join(piece for _, piece in output) == b"closed\n"
    result = process.wait(60)
    assert (result.exit_code, result.stdout) == (5, "got hello\nclosed\n")
    assert process.wait() == result
    killed = sandbox.commands.start("sleep 600")
    killed.kill()
    assert killed.wait(60).exit_code != 0


def test_a_terminal_has_a_size_and_is_typed_at(sandbox):
    pty = sandbox.pty.create("stty size; read line; stty size; echo got $line", rows=30, columns=100)
    seen = b""
    while b"30 100" not in seen:
        seen += pty.read(60)
    pty.resize(40, 120)
    deadline = time.monotonic() + 60
    # The new size takes its way through two terminals.
    while b"40 120" not in sandbox.commands.run("for t in /dev/pts/[0-9]*; do stty size <$t; done").stdout_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pty.write("word\n")
    while b"got word" not in seen:
        seen += pty.read(60)
    assert b"40 120" in seen
    assert pty.wait(60).exit_code == 0


def test_files_are_binary_safe_and_may_be_large(sandbox):
    files = sandbox.files
    for name, content in (("plain", b"x"), ("sp ace 'q' \"d\" $h", b"\0\xff\r\n"), ("-n", b"dash"), ("empty", b""), ("new/dir/f", b"1")):
        files.write(name, content)
        assert files.read(name) == content
        assert files.exists(name)
    files.write("text", "gr\u00fc\u00dfe\r\n")
    assert files.read_text("text") == "gr\u00fc\u00dfe\r\n"
    files.write("text", "more", append=True)
    assert files.read("text").endswith(b"\r\nmore")
    assert files.read("text", offset=3)[:3] == "gr\u00fc\u00dfe".encode()[3:6]
    large = os.urandom(1 << 20) * 40
    files.write("large", large)
    assert files.read("large") == large
    with pytest.raises(ironcage.FileTooLargeError):
        files.read("large", max_bytes=1000)
    assert files.read("plain", max_bytes=1) == b"x"
    files.remove("large")


def test_errors_of_files_have_the_class_and_the_code_of_their_cause(sandbox):
    files = sandbox.files
    files.write("closed", b"x")
    files.make_dir("closed.d/in")
    sandbox.commands.run("chmod 000 closed closed.d", check=True)
    cases = [
        (FileNotFoundError, "not_found", lambda: files.read("none")),
        (FileNotFoundError, "not_found", lambda: files.read("none/at/all")),
        (FileNotFoundError, "not_found", lambda: files.read("plain/below")),
        (FileNotFoundError, "not_found", lambda: files.list("none")),
        (FileNotFoundError, "not_found", lambda: files.info("none")),
        (FileNotFoundError, "not_found", lambda: files.remove("none")),
        (FileNotFoundError, "not_found", lambda: files.rename("none", "x")),
        (FileNotFoundError, "not_found", lambda: files.rename("plain", "none/x")),
        (IsADirectoryError, "is_a_directory", lambda: files.read("new")),
        (IsADirectoryError, "is_a_directory", lambda: files.write("new", b"")),
        (NotADirectoryError, "not_a_directory", lambda: files.list("plain")),
        (NotADirectoryError, "not_a_directory", lambda: files.write("plain/x", b"")),
        (NotADirectoryError, "not_a_directory", lambda: files.make_dir("plain/x")),
        (PermissionError, "permission_denied", lambda: files.read("closed")),
        (PermissionError, "permission_denied", lambda: files.read("closed.d/in/f")),
        (PermissionError, "permission_denied", lambda: files.write("closed", b"")),
        (PermissionError, "permission_denied", lambda: files.write("closed.d/f", b"")),
        (PermissionError, "permission_denied", lambda: files.list("closed.d")),
        (PermissionError, "permission_denied", lambda: files.write("/usr/x", b"")),
        (FileExistsError, "already_exists", lambda: files.make_dir("plain")),
        (FileExistsError, "already_exists", lambda: files.rename("plain", "new")),
        (ironcage.FileError, "not_empty", lambda: files.remove("new")),
        (ironcage.FileError, "not_a_file", lambda: files.read("/dev/null")),
    ]
    files.write("plain", b"x")
    files.make_dir("new/dir")
    try:
        for kind, code, act in cases:
            with pytest.raises(kind) as error:
                act()
            assert isinstance(error.value, ironcage.IroncageError)
            assert error.value.code == code, str(error.value)
        assert not files.exists("none")
        with pytest.raises(PermissionError):
            files.exists("closed.d/in")
        assert not files.exists("plain/below")
    finally:
        sandbox.commands.run("chmod 755 closed.d; chmod 644 closed", check=True)
    assert files.read("closed") == b"x"
    with pytest.raises(ironcage.InvalidArgumentError):
        files.read("a\0b")


def test_directories_are_listed_whatever_the_names_are(sandbox):
    files = sandbox.files
    names = ["a", ".hidden", "with\nnewline", "sp ace", "-rf", "gr\u00fc\u00dfe"]
    for name in names:
        files.write("listed/" + name, name)
    sandbox.commands.run("ln -s a listed/link; mkdir -p listed/d/e; chmod 640 listed/a", check=True)
    found = {entry.name: entry for entry in files.list("listed")}
    assert sorted(found) == sorted([*names, "link", "d"])
    assert (found["a"].kind, found["a"].size, found["a"].mode) == ("file", 1, 0o640)
    assert (found["link"].kind, found["d"].kind, found["d"].is_dir) == ("symlink", "directory", True)
    assert abs(found["a"].modified - time.time()) < 3600
    deep = [entry.path for entry in files.list("listed", depth=2)]
    assert sandbox.directory + "/listed/d/e" in deep
    assert files.info("listed/link").kind == "symlink"
    files.rename("listed/a", "listed/b")
    assert files.read("listed/b") == b"a" and not files.exists("listed/a")
    files.remove("listed/link")
    assert files.exists("listed/b"), "a link is removed, not what it leads to"
    files.remove("listed", recursive=True)
    assert not files.exists("listed")


def test_a_lease_is_granted_used_and_revoked(tmp_path):
    data, own = tmp_path / "data", tmp_path / "own"
    data.mkdir()
    own.mkdir()
    (data / "f").write_text("leased")
    policy = tmp_path / "policy.toml"
    policy.write_text('[ceiling.auto.files]\nread = ["{}"]\n'.format(data))
    with Sandbox.create(workspace=own, workspace_mode="scratch", policy=policy) as sandbox:
        with pytest.raises(FileNotFoundError):
            sandbox.files.read(str(data / "f"))
        (lease,) = sandbox.leases.grant(read=str(data), seconds=600, reason="a test")
        assert lease.resource == "read {}".format(data)
        assert sandbox.files.read(str(data / "f")) == b"leased"
        (listed,) = sandbox.leases.list()
        assert (listed.number, listed.reason, listed.state) == (lease.number, "a test", "open")
        assert listed.seconds_left is not None and listed.seconds_left <= 600
        (ended,) = sandbox.leases.revoke(lease.number)
        assert (ended.number, ended.end) == (lease.number, "revoked")
        assert sandbox.leases.list() == []
        with pytest.raises(FileNotFoundError):
            sandbox.files.read(str(data / "f"))
        with pytest.raises(ironcage.DeniedError) as error:
            sandbox.leases.grant(read="/root")
        assert error.value.code.startswith("lease-")
        # In a scope, for one command.
        shown = sandbox.commands.run(["cat", str(data / "f")], leases=["read={}".format(data)], reason="once")
        assert shown.stdout == "leased"


def test_a_request_of_the_agent_is_listed_denied_and_approved(tmp_path):
    data, own = tmp_path / "data", tmp_path / "own"
    data.mkdir()
    own.mkdir()
    policy = tmp_path / "policy.toml"
    policy.write_text('[ceiling.ask.files]\nwrite = ["{}"]\n'.format(data))
    with Sandbox.create(workspace=own, workspace_mode="scratch", policy=policy) as sandbox:
        assert sandbox.requests.list() == []
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
        assert (request.resource, request.reason) == ("write {}".format(data), "to write")
        (lease,) = sandbox.requests.approve(request.number, seconds=60)
        assert lease.resource == "write {}".format(data)
        assert process.wait(60).exit_code == 0
        sandbox.files.write(str(data / "f"), "written")
        assert (data / "f").read_text() == "written"
        sandbox.leases.revoke()
        process = sandbox.commands.start(ask)
        sandbox.requests.deny(asked().number, reason="not now")
        result = process.wait(60)
        assert result.exit_code != 0 and "not now" in result.stdout + result.stderr


def test_a_change_is_shown_applied_and_discarded(tmp_path):
    (tmp_path / "kept").write_text("before\n")
    (tmp_path / "both").write_text("before\n")
    with Sandbox.create(workspace=tmp_path, workspace_mode="cow") as sandbox:
        assert sandbox.changes.diff().files == []
        sandbox.commands.run("echo after > kept; echo new > new; echo theirs > both; echo no > dropped", check=True)
        assert (tmp_path / "kept").read_text() == "before\n"
        change = sandbox.changes.diff()
        assert [(one.path, one.status) for one in change.files] == [
            ("both", "modified"), ("dropped", "added"), ("kept", "modified"), ("new", "added"),
        ]  # fmt: skip
        assert "+after" in sandbox.changes.text()
        os.utime(tmp_path / "both")
        (tmp_path / "both").write_text("ours\n")
        applied = sandbox.changes.apply([str(tmp_path / name) for name in ("kept", "both")])
        assert (applied.applied, applied.conflicts, applied.finished) == (1, ["both"], False)
        assert (tmp_path / "kept").read_text() == "after\n"
        assert (tmp_path / "both").read_text() == "ours\n"
    applied = sandbox.changes.apply([str(tmp_path / "both")], on_conflict="theirs")
    assert applied.conflicts == [] and (tmp_path / "both").read_text() == "theirs\n"
    sandbox.changes.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "kept"]
    with Sandbox.create() as plain:
        with pytest.raises(ironcage.UnsupportedError):
            plain.changes.diff()


def test_a_cage_is_found_by_its_name_and_leaves_nothing(tmp_path):
    name = "sdk-test-{}".format(os.getpid())
    with Sandbox.create(name=name, memory="256M", network="off") as sandbox:
        other = Sandbox.connect(name)
        assert other.id == sandbox.id and other.directory == sandbox.directory
        other.detach()
        assert name in [info.name for info in Sandbox.list()]
        directory = sandbox.directory
        assert os.path.isdir(directory)
    assert not os.path.exists(directory)
    assert name not in [info.name for info in Sandbox.list()]
    with pytest.raises(ironcage.SandboxNotFoundError):
        Sandbox.connect(name)


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path):
    with pytest.raises(ironcage.StartError) as error:
        Sandbox.create(workspace=tmp_path / "none")
    assert "none" in str(error.value)
    for wrong in ({"timeout": 0}, {"timeout": -1}, {"env": {"A=B": "x"}}, {"metadata": {"a": "b"}}):
        with pytest.raises(ironcage.InvalidArgumentError):
            Sandbox.create(**wrong)
    with pytest.raises(ironcage.NotInstalledError):
        Sandbox.create(program=str(tmp_path / "no-program"))


async def test_the_same_without_blocking():
    import asyncio

    async with await AsyncSandbox.create() as sandbox:
        results = await asyncio.gather(*(sandbox.commands.run("echo {}".format(i)) for i in range(8)))
        assert [result.stdout for result in results] == ["{}\n".format(i) for i in range(8)]
        data = os.urandom(3 << 20)
        await sandbox.files.write("f", data)
        assert await sandbox.files.read("f") == data
        assert (await sandbox.commands.run(["wc", "-c"], input=data)).stdout.split() == [str(len(data))]
        with pytest.raises(FileNotFoundError):
            await sandbox.files.read("none")
        with pytest.raises(ironcage.CommandTimeoutError):
            await sandbox.commands.run("sleep 600", timeout=1)
        task = asyncio.ensure_future(sandbox.commands.run("sleep 986"))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null"
        for _ in range(600):
            if "sleep 986" not in (await sandbox.commands.run(left)).stdout:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the command outlives its cancelled task")
        process = await sandbox.commands.start("cat")
        await process.write("x")
        await process.close_input()
        assert [piece async for piece in process.output()] == [("stdout", b"x")]
        assert (await process.wait()).ok
        pty = await sandbox.pty.create(["tty"])
        assert b"/dev/pts/" in await pty.read(60)
        assert (await pty.wait(60)).ok
        assert (await sandbox.info()).id == sandbox.id
    assert not await sandbox.is_running()


def test_threads_share_a_sandbox(sandbox):
    found = []
    threads = [threading.Thread(target=lambda i=i: found.append(sandbox.commands.run("echo {}".format(i)).stdout)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["{}\n".format(i) for i in range(6)]


def test_the_async_classes_are_those_that_the_tool_writes():
    import subprocess
    from pathlib import Path

    tool = Path(__file__).parent.parent / "tools/make_async.py"
    subprocess.run([sys.executable, str(tool), "--check"], check=True)
    assert stat.S_ISREG(tool.stat().st_mode)
