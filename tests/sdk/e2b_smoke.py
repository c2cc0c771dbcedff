"""The unmodified e2b package against the service that E2B_API_URL names. Prints `ok` at the end."""

import time
import urllib.request

from e2b import (
    CommandExitException,
    FilesystemEventType,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"not refused: {kind.__name__}")


sandbox = Sandbox.create(timeout=120, metadata={"job": "smoke"}, envs={"FROM_CREATE": "1"})
assert sandbox.is_running()

# Commands.
done = sandbox.commands.run("echo out; echo err >&2; echo $FROM_CREATE$FROM_RUN", envs={"FROM_RUN": "2"})
assert (done.stdout, done.stderr, done.exit_code) == ("out\n12\n", "err\n", 0), done
failed = refused(CommandExitException, lambda: sandbox.commands.run("exit 3"))
assert "3" in failed, failed
assert "root" in refused(SandboxException, lambda: sandbox.commands.run("id", user="root"))
big = sandbox.commands.run("seq 1 300000")
assert big.stdout.splitlines()[-1] == "300000" and len(big.stdout.splitlines()) == 300000

# In the background, with an input.
handle = sandbox.commands.run("cat", background=True, stdin=True)
assert any(process.pid == handle.pid for process in sandbox.commands.list())
sandbox.commands.send_stdin(handle.pid, "hello\n")
again = sandbox.commands.connect(handle.pid)
sandbox.commands.send_stdin(handle.pid, "again\n")
sandbox.commands.close_stdin(handle.pid)
assert "again\n" in again.wait().stdout
assert handle.wait().stdout == "hello\nagain\n"
sleeper = sandbox.commands.run("sleep 1000", background=True)
assert sandbox.commands.kill(sleeper.pid) is True
refused(CommandExitException, sleeper.wait)
assert sandbox.commands.kill(sleeper.pid) is False
refused(NotFoundException, lambda: sandbox.commands.connect(sleeper.pid))

# Files.
info = sandbox.files.write("notes/a.txt", "text")
assert info.path.endswith("/notes/a.txt"), info
assert sandbox.files.read("notes/a.txt") == "text"
assert bytes(sandbox.files.read("notes/a.txt", format="bytes")) == b"text"
assert sandbox.files.exists("notes/a.txt") and not sandbox.files.exists("notes/b.txt")
refused(NotFoundException, lambda: sandbox.files.read("notes/b.txt"))
data = bytes(range(256)) * 8192
sandbox.files.write("big.bin", data)
assert bytes(sandbox.files.read("big.bin", format="bytes")) == data
sandbox.files.write_files([{"path": "m/1", "data": "1"}, {"path": "m/2", "data": "2"}])
assert [entry.name for entry in sandbox.files.list("m")] == ["1", "2"]
assert sandbox.files.make_dir("d/e") is True
assert sandbox.files.make_dir("d/e") is False
sandbox.files.rename("m/1", "d/e/one")
assert sandbox.files.get_info("d/e/one").size == 1
sandbox.files.remove("d")
assert not sandbox.files.exists("d")

# A watch.
watch = sandbox.files.watch_dir("m")
sandbox.files.write("m/new", "x")
events = []
for _ in range(100):
    events += watch.get_new_events()
    if any(event.name == "new" for event in events):
        break
    time.sleep(0.1)
assert any(event.name == "new" and event.type == FilesystemEventType.CREATE for event in events) or events, events
watch.stop()

# A signed URL needs no other token.
url = sandbox.download_url("notes/a.txt")
request = urllib.request.Request(url, headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"})
assert urllib.request.urlopen(request).read() == b"text"
try:
    urllib.request.urlopen(urllib.request.Request(url.replace("v1_", "v1_x"), headers=dict(request.header_items())))
except urllib.error.HTTPError as error:
    assert error.code == 401, error
else:
    raise AssertionError("a wrong signature was taken")

# A terminal.
seen = []
terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
try:
    terminal.wait(on_pty=seen.append)
except CommandExitException:
    pass
assert b"30 100" in b"".join(seen), seen

# State.
sandbox.set_timeout(200)
info = sandbox.get_info()
assert info.metadata == {"job": "smoke"} and info.state == SandboxState.RUNNING
assert len(sandbox.get_metrics()) == 1
listed = Sandbox.list(query=SandboxQuery(metadata={"job": "smoke"}), limit=1).next_items()
assert [item.sandbox_id for item in listed] == [sandbox.sandbox_id]
assert Sandbox.list(query=SandboxQuery(metadata={"job": "other"})).next_items() == []

# Pause: memory and processes stay.
counter = sandbox.commands.run("i=0; while sleep 0.1; do i=$((i+1)); echo $i > ~/count; done", background=True)
time.sleep(0.5)
assert sandbox.pause()
assert not sandbox.is_running()
assert Sandbox.connect(sandbox.sandbox_id).is_running()
before = int(sandbox.files.read("count") or 0)
for _ in range(100):
    if int(sandbox.files.read("count") or 0) > before:
        break
    time.sleep(0.1)
else:
    raise AssertionError("the process did not go on")

assert sandbox.kill() is True
assert Sandbox.kill(sandbox.sandbox_id) is False
assert not sandbox.is_running()
print("ok")
