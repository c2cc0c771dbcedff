"""Snapshots and forks of the unmodified e2b package. Prints `ok` at the end."""

from e2b import CommandExitException, InvalidArgumentException, NotFoundException, RateLimitException, Sandbox, SandboxException


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"not refused: {kind.__name__}")


network = {"allow_out": ["api.example.test"]}
sandbox = Sandbox.create(timeout=300, envs={"FROM": "source"}, metadata={"job": "snap"}, network=network)
sandbox.files.write("kept/file", "first", metadata={"origin": "test"})
sandbox.commands.run("chmod 751 kept; ln kept/file kept/hard; ln -s file kept/link; echo x > /tmp/there; truncate -s 1M kept/sparse")
sandbox.commands.run("chmod +x kept/file; mkfifo kept/pipe; mkdir kept/empty")
job = sandbox.commands.run("sleep 1000", background=True)

# A snapshot has the files; memory is refused.
assert "not offered" in refused(SandboxException, lambda: sandbox.create_snapshot(mode="full"))
first = sandbox.create_snapshot()
named = sandbox.create_snapshot(name="my-snapshot", mode="filesystem")
assert named.snapshot_id != first.snapshot_id and "my-snapshot" in named.names[0], named
refused(SandboxException, lambda: sandbox.create_snapshot(name="../up"))
refused(NotFoundException, lambda: Sandbox.create_snapshot("cnosuchsandbox"))
assert sandbox.commands.run("echo goes on").stdout == "goes on\n"
sandbox.files.write("kept/file", "changed")
sandbox.files.write("later", "x")

# Sandboxes of it have what was there, and no process.
for name in (first.snapshot_id, "my-snapshot", named.names[0]):
    copy = Sandbox.create(name, timeout=60)
    assert copy.files.read("kept/file") == "first" and not copy.files.exists("later")
    assert copy.files.get_info("kept/file").metadata == {"origin": "test"}
    shown = copy.commands.run("stat -c '%a %h' kept kept/file; readlink kept/link; cat /tmp/there; stat -c %s kept/sparse; echo $FROM; ls kept")
    assert shown.stdout == "751 3\n755 2\nfile\nx\n1048576\nsource\nempty\nfile\nhard\nlink\nsparse\n", shown.stdout
    assert copy.commands.list() == []
    copy.kill()
assert sandbox.files.read("kept/file") == "changed"

# Lists, pages, names, and the end of a snapshot.
listed, pages = [], sandbox.list_snapshots(limit=1)
while pages.has_next:
    listed += [one.snapshot_id for one in pages.next_items()]
assert listed == [named.snapshot_id, first.snapshot_id], listed
assert [one.snapshot_id for one in Sandbox.list_snapshots(name="my-snapshot").next_items()] == [named.snapshot_id]
assert Sandbox.list_snapshots(name="other").next_items() == []
again = sandbox.create_snapshot(name="my-snapshot")
assert [one.snapshot_id for one in Sandbox.list_snapshots(name="my-snapshot").next_items()] == [again.snapshot_id]
assert Sandbox.delete_snapshot(first.snapshot_id) is True
assert Sandbox.delete_snapshot(first.snapshot_id) is False
assert "404" in refused(SandboxException, lambda: Sandbox.create(first.snapshot_id))

# Forks go on by themselves.
one, two = sandbox.fork(timeout=60, count=2)
for fork in (one, two):
    assert fork.files.read("kept/file") == "changed" and fork.files.read("later") == "x"
    assert fork.commands.run("echo $FROM").stdout == "source\n"
    info = fork.get_info()
    assert info.metadata == {"job": "snap"} and info.network["allow_out"] == ["api.example.test"], info
one.files.write("kept/file", "one")
assert two.files.read("kept/file") == "changed" and sandbox.files.read("kept/file") == "changed"
assert len(Sandbox.fork(sandbox.sandbox_id)) == 1
refused(InvalidArgumentException, lambda: sandbox.fork(count=21))
refused(NotFoundException, lambda: Sandbox.fork("cnosuchsandbox"))
assert [item.snapshot_id for item in sandbox.list_snapshots().next_items()] == [again.snapshot_id, named.snapshot_id]
assert sandbox.commands.kill(job.pid)

# A paused sandbox is not read.
sandbox.pause()
assert "paused" in refused(SandboxException, sandbox.create_snapshot)

# A snapshot outlives its sandbox.
sandbox.kill()
late = Sandbox.create("my-snapshot", timeout=60)
assert late.files.read("later") == "x"
for item in Sandbox.list_snapshots().next_items():
    assert Sandbox.delete_snapshot(item.snapshot_id)
assert late.files.read("later") == "x"
for item in Sandbox.list().next_items():
    Sandbox.kill(item.sandbox_id)
print("ok")
