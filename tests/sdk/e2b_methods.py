"""Every public method of the unmodified e2b package that e2b_smoke.py does not have. Prints `ok`.

docs/reference/e2b.md says for each what it does here; what is refused is refused with what stands there.
"""

import datetime
import io
import os
import time
import urllib.error
import urllib.request
import uuid

from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"not refused: {kind.__name__}")


def until(condition):
    for _ in range(200):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("did not come true")


job = uuid.uuid4().hex
sandbox = Sandbox.create(timeout=300, metadata={"job": job, "odd": "a&b=c d/ü"}, envs={"A": "1"})
files, commands = sandbox.files, sandbox.commands

# Creation: what is asked for twice is made once, and what is wrong is refused by its kind.
key = uuid.uuid4().hex
first = Sandbox.create(timeout=60, idempotency_key=key)
assert Sandbox.create(timeout=60, idempotency_key=key).sandbox_id == first.sandbox_id
assert first.kill()
refused(AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
refused(InvalidArgumentException, lambda: Sandbox.create(idempotency_key="NOT VALID"))
assert "404" in refused(SandboxException, lambda: Sandbox.create("no-such-template"))
refused(SandboxNotFoundException, lambda: Sandbox.get_info("cnosuchsandbox"))
refused(SandboxNotFoundException, lambda: Sandbox.connect("cnosuchsandbox"))
refused(SandboxNotFoundException, lambda: Sandbox.set_timeout("cnosuchsandbox", 10))
assert Sandbox.kill("cnosuchsandbox") is False
with Sandbox.create(timeout=60) as short:
    assert short.is_running()
assert not short.is_running()
refused(TimeoutException, lambda: short.commands.run("true"))
refused(TimeoutException, lambda: short.files.read("x"))
for option in ({"mcp": {"x": {}}}, {"iam": {"tokens": {"a": {"audience": "b", "token_type": "JWT-SVID"}}}}):
    assert "not offered" in refused(SandboxException, lambda: Sandbox.create(**option))
assert "not offered" in refused(SandboxException, lambda: Sandbox.create(volume_mounts={"/v": "volume"}))

# Information, lists and pages.
info = sandbox.get_info()
assert info.template_id == "base" and info.metadata["odd"] == "a&b=c d/ü" and info.state == SandboxState.RUNNING
assert info.started_at <= datetime.datetime.now(datetime.timezone.utc) < info.end_at
assert info.lifecycle == {"on_timeout": "kill", "auto_resume": False}, info.lifecycle
assert info.cpu_count >= 1 and info.memory_mb >= 0 and info.envd_version
others = [Sandbox.create(timeout=120, metadata={"job": job, "n": str(n)}) for n in range(3)]
query = SandboxQuery(metadata={"job": job})
pages, paginator = [], Sandbox.list(query=query, limit=2)
while paginator.has_next:
    pages.append([item.sandbox_id for item in paginator.next_items()])
assert [len(page) for page in pages] == [2, 2], pages
everything = [one for page in pages for one in page]
assert everything == [one.sandbox_id for one in reversed([sandbox, *others])], everything
ascending = Sandbox.list(query=query, limit=10, order="asc").next_items()
assert [item.sandbox_id for item in ascending] == everything[::-1]
odd = SandboxQuery(metadata={"job": job, "odd": "a&b=c d/ü"})
assert [item.sandbox_id for item in Sandbox.list(query=odd).next_items()] == [sandbox.sandbox_id]
assert others[0].pause() is True and others[0].pause() is False
paused = SandboxQuery(metadata={"job": job}, state=[SandboxState.PAUSED])
assert [item.sandbox_id for item in Sandbox.list(query=paused).next_items()] == [others[0].sandbox_id]
running = SandboxQuery(metadata={"job": job}, state=[SandboxState.RUNNING])
assert len(Sandbox.list(query=running).next_items()) == 3
later = SandboxQuery(metadata={"job": job}, started_after=others[2].get_info().started_at)
assert [item.sandbox_id for item in Sandbox.list(query=later).next_items()] == [others[2].sandbox_id]
assert Sandbox.list(query=SandboxQuery(template="base", metadata={"job": job})).next_items()
assert not Sandbox.list(query=SandboxQuery(template="other", metadata={"job": job})).next_items()
for one in others:
    assert one.kill()

# The end: a timeout that is set, moved and prolonged.
Sandbox.set_timeout(sandbox.sandbox_id, 600)
end = sandbox.get_info().end_at
assert sandbox.connect(timeout=30).get_info().end_at == end, "a running sandbox is only prolonged"
assert Sandbox.connect(sandbox.sandbox_id, timeout=900).get_info().end_at > end
brief = Sandbox.create(timeout=1)
until(lambda: not brief.is_running())
refused(SandboxNotFoundException, brief.get_info)

# Measurements.
(metric,) = sandbox.get_metrics()
assert metric.cpu_count >= 1 and metric.mem_total > 0 and metric.mem_used >= 0 and metric.cpu_used_pct >= 0, metric
now = datetime.datetime.now(datetime.timezone.utc)
hour = datetime.timedelta(hours=1)
assert len(Sandbox.get_metrics(sandbox.sandbox_id, start=now - hour, end=now + hour)) == 1
assert sandbox.get_metrics(start=now + hour, end=now + 2 * hour) == []

# Commands.
files.make_dir("work/dir")
assert commands.run("pwd; echo $A$B", cwd="work/dir", envs={"B": "2"}).stdout.endswith("/work/dir\n12\n")
assert commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
assert commands.run("id -un", user="user").exit_code == 0
assert "root" in refused(SandboxException, lambda: commands.run("id", user="root"))
refused(InvalidArgumentException, lambda: commands.run("true", cwd="/no/such/directory"))
out, err = [], []
commands.run("printf a; printf b >&2", on_stdout=out.append, on_stderr=err.append)
assert ("".join(out), "".join(err)) == ("a", "b")
assert commands.run("echo x", retain_output=False).stdout is None
refused(TimeoutException, lambda: commands.run("sleep 60", timeout=0.5))
assert commands.run("printf 'ü€'").stdout == "ü€"
try:
    commands.run("echo out; echo err >&2; exit 7")
except CommandExitException as failed:
    assert (failed.exit_code, failed.stdout, failed.stderr) == (7, "out\n", "err\n"), failed
reader = commands.run("head -c 9", background=True, stdin=True)
commands.stream_input(reader.pid, ["one", b"two", iter(["x"]).__next__() + "yz"])
assert reader.wait().stdout == "onetwoxyz"
refused(NotFoundException, lambda: commands.stream_input(999999, ["x"]))
refused(NotFoundException, lambda: commands.send_stdin(999999, "x"))
refused(NotFoundException, lambda: commands.connect(999999))
assert commands.kill(999999) is False
handle = commands.run("echo begin; cat", background=True, stdin=True)
assert next(iter(handle))[0] == "begin\n"
handle.disconnect()
shown = next(process for process in commands.list() if process.pid == handle.pid)
assert shown.cmd == "/bin/bash" and shown.args[-1] == "echo begin; cat", shown
again = commands.connect(handle.pid)
again.send_stdin("more\n")
again.close_stdin()
assert again.wait().stdout == "more\n"

# Files: every form in which they are read and written.
files.write("f/text", "text")
assert files.read("f/text") == "text" and files.read("f/text", format="bytes") == bytearray(b"text")
with files.read("f/text", format="stream") as stream:
    assert b"".join(stream) == b"text"
assert files.read("f/text", gzip=True) == "text"
big = os.urandom(3 << 20)
for written in (
    files.write("f/big", big, gzip=True),
    files.write("f/big", big, use_octet_stream=True),
    files.write("f/big", io.BytesIO(big)),
):
    assert written.name == "big" and written.type == FileType.FILE and written.path.endswith("/f/big")
    assert bytes(files.read("f/big", format="bytes")) == big
assert bytes(files.read("f/big", format="bytes", gzip=True)) == big
many = files.write_files([{"path": f"f/many/{n}", "data": str(n)} for n in range(5)])
assert [one.name for one in many] == list("01234") and files.write_files([]) == []
kept = files.write("f/kept", "x", metadata={"origin": "test", "n": "1"})
assert kept.metadata == {"origin": "test", "n": "1"}, kept
assert files.get_info("f/kept").metadata == {"origin": "test", "n": "1"}
assert not files.get_info("f/text").metadata
entry = files.get_info("f/text")
assert (entry.type, entry.size, entry.mode, entry.permissions) == (FileType.FILE, 4, 0o644, "-rw-r--r--"), entry
assert entry.owner and entry.group and entry.modified_time and entry.path.endswith("/f/text")
commands.run("ln -s text f/link")
assert files.get_info("f/link").symlink_target, files.get_info("f/link")
listed = files.list("f")
assert {one.name for one in listed} == {"text", "big", "many", "kept", "link"}
assert {one.name for one in files.list("f", depth=2)} == {"text", "big", "many", "kept", "link", *"01234"}
refused(InvalidArgumentException, lambda: files.list("f", depth=0))
refused(InvalidArgumentException, lambda: files.list("f/text"))
refused(InvalidArgumentException, lambda: files.read("f"))
refused(InvalidArgumentException, lambda: files.write("f/many", "x"))
refused(FileNotFoundException, lambda: files.read("f/none"))
refused(FileNotFoundException, lambda: files.list("f/none"))
refused(FileNotFoundException, lambda: files.get_info("f/none"))
refused(FileNotFoundException, lambda: files.rename("f/none", "f/other"))
assert files.exists("f") and not files.exists("f/none")
moved = files.rename("f/many", "g/moved")
assert moved.type == FileType.DIR and files.exists("g/moved/0") and not files.exists("f/many")
files.remove("g/moved/0")
files.remove("g")
assert not files.exists("g")
assert files.make_dir("f/new") is True and files.make_dir("f/new") is False

# Watches.
refused(NotFoundException, lambda: files.watch_dir("f/none"))
refused(InvalidArgumentException, lambda: files.watch_dir("f/text"))
watch = files.watch_dir("f", recursive=True, include_entry=True)
files.write("f/new/deep", "x")
seen = []
until(lambda: seen.extend(watch.get_new_events()) or any(event.name == "new/deep" for event in seen))
assert any(event.entry and event.entry.name == "deep" for event in seen), seen
files.remove("f/new/deep")
until(lambda: seen.extend(watch.get_new_events()) or any(event.type == FilesystemEventType.REMOVE for event in seen))
watch.stop()
refused(SandboxException, watch.get_new_events)

# Signed URLs.
own = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}


def fetch(url, data=None, **headers):
    request = urllib.request.Request(url, data=data, headers={**own, **headers})
    try:
        return urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        return error.code


assert fetch(sandbox.download_url("f/text", use_signature_expiration=60)) == b"text"
assert fetch(sandbox.download_url("f/text", use_signature_expiration=-10)) == 401
assert fetch(sandbox.download_url("f/text", user="user")) == b"text"
assert fetch(sandbox.download_url("f/text").split("&signature")[0].split("?signature")[0]) == 401
form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="up"\r\n\r\nuploaded\r\n--b--\r\n'
kind = {"Content-Type": "multipart/form-data; boundary=b"}
assert isinstance(fetch(sandbox.upload_url("f/up"), form, **kind), bytes)
assert files.read("f/up") == "uploaded"
assert fetch(sandbox.download_url("f/text"), form, **kind) == 401

# Terminals.
refused(NotFoundException, lambda: sandbox.pty.resize(999999, PtySize(rows=1, cols=1)))
terminal = sandbox.pty.create(PtySize(rows=20, cols=70), cwd="/tmp", envs={"P": "pty"})
screen = []
sandbox.pty.stream_input(terminal.pid, [b"stty size; pwd; ", b"echo $P; exit 3\n"])
failed = None
try:
    terminal.wait(on_pty=screen.append)
except CommandExitException as error:
    failed = error
screen = b"".join(screen)
assert failed.exit_code == 3 and b"20 70" in screen and b"/tmp" in screen and b"pty" in screen, screen
second = sandbox.pty.create(PtySize(rows=20, cols=70))
assert sandbox.pty.connect(second.pid).pid == second.pid
assert sandbox.pty.kill(second.pid) is True and sandbox.pty.kill(second.pid) is False

# Ports of programs.
commands.run("echo hello > index.html; exec python3 -m http.server 8123", background=True, timeout=0)
assert sandbox.get_host(8123) == f"8123-{sandbox.sandbox_id}.{sandbox.sandbox_domain}"


def port(number, path="/", one=sandbox, **headers):
    request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + path, headers=headers)
    try:
        return urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        return (error.code, error.read())


by_header = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8123"}
until(lambda: port(8123, "/index.html", **by_header) == b"hello\n")
assert port(8123, "/index.html", Host=f"8123-{sandbox.sandbox_id}.example.test") == b"hello\n"
code, body = port(8124, Host=f"8124-{sandbox.sandbox_id}.example.test")
assert code == 502 and b"port is not open" in body, (code, body)
private = Sandbox.create(timeout=60, network={"allow_public_traffic": False, "mask_request_host": "${PORT}-app.test"})
echo = "import http.server as h\nclass E(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  b=s.headers['Host'].encode(); s.send_response(200); s.send_header('Content-Length', str(len(b))); s.end_headers(); s.wfile.write(b)\nh.HTTPServer(('127.0.0.1', 80 * 100), E).serve_forever()"
private.files.write("echo.py", echo)
private.commands.run("exec python3 echo.py", background=True, timeout=0)
own_port = {"Host": f"8000-{private.sandbox_id}.example.test"}
token = {"E2B-Traffic-Access-Token": private.traffic_access_token}
until(lambda: port(8000, **own_port, **token) == b"8000-app.test")
assert port(8000, **own_port)[0] == 403
assert private.get_info().network["allow_public_traffic"] is False
private.kill()

# The network.
named = Sandbox.create(timeout=60, network={"allow_out": ["api.example.test"], "deny_out": ["0.0.0.0/0"]})
assert named.get_info().network["allow_out"] == ["api.example.test"]
named.update_network({"allow_out": ["other.example.test"], "deny_out": ["bad.example.test"]})
network = named.get_info().network
assert (network["allow_out"], network["deny_out"]) == (["other.example.test"], ["bad.example.test"]), network
named.update_network({"allow_internet_access": False})
assert named.get_info().network["allow_out"] == [] and named.get_info().allow_internet_access is False
assert "400" in refused(SandboxException, lambda: named.update_network({"allow_out": ["not a host"]}))
assert "--allow-internet" in refused(SandboxException, lambda: named.update_network({"allow_internet_access": True}))
rule = {"rules": {"a.test": [{"transform": {"headers": {"X": "y"}}}]}}
assert "not offered" in refused(SandboxException, lambda: named.update_network(rule))
refused(SandboxNotFoundException, lambda: Sandbox.update_network("cnosuchsandbox", {}))
named.kill()
assert "--allow-internet" in refused(SandboxException, lambda: Sandbox.create(allow_internet_access=True))

# Pauses: by hand, at the end of the time, and ended by a request.
resting = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
resting.files.write("kept", "1")
until(lambda: resting.get_info().state == SandboxState.PAUSED)
assert resting.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}
assert resting.files.read("kept") == "1", "a request resumes it"
assert resting.get_info().state == SandboxState.RUNNING
resting.kill()
asleep = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause"})
assert asleep.beta_pause() is True and not asleep.is_running()
refused(TimeoutException, lambda: asleep.commands.run("true"))
assert asleep.connect(timeout=30).is_running()
for option in ({"mode": "filesystem"}, {"keep_memory": False}):
    assert "not offered" in refused(SandboxException, lambda: asleep.pause(**option))
assert "not offered" in refused(SandboxException, lambda: asleep.connect(on_resume="reboot"))
asleep.kill()

# git, which runs commands.
sandbox.git.init("repository")
sandbox.git.configure_user("Some One", "one@example.test")
files.write("repository/a", "1")
sandbox.git.add("repository")
sandbox.git.commit("repository", "first")
status = sandbox.git.status("repository")
assert status.is_clean, status
assert len(sandbox.git.branches("repository").branches) == 1

assert sandbox.kill()
print("ok")
