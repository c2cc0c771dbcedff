"""AsyncSandbox of the unmodified e2b package: its methods, many at once, and what ends in the middle. Prints `ok`.

e2b_methods.py has the same for the class that waits.
"""

import asyncio
import json
import os
import sys
import urllib.request
import uuid

from e2b import (
    AsyncSandbox,
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


async def refused(kind, call):
    try:
        await call
    except kind as error:
        return str(error)
    raise AssertionError(f"not refused: {kind.__name__}")


async def until(condition):
    for _ in range(400):
        if found := await condition():
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("did not come true")


async def commands_of(sandbox):
    commands, files = sandbox.commands, sandbox.files
    async def ended(file):
        alive = await commands.run(f"kill -0 $(cat {file}) 2>/dev/null && echo alive || echo ended")
        return alive.stdout == "ended\n"

    # Output: bytes that are no text, characters that are cut between two messages, much of it, none.
    odd = await commands.run(r"printf 'a\377b'; printf '\342\202'; sleep 0.2; printf '\254' ; printf '\r\n\t\0'")
    assert odd.stdout == "a\ufffdb€\r\n\t\0", odd
    long = await commands.run("head -c 4000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2")
    assert (len(long.stdout), len(long.stderr)) == (4000000, 3000000)
    nothing = await commands.run("true")
    assert (nothing.stdout, nothing.stderr, nothing.exit_code, nothing.error) == ("", "", 0, None), nothing
    line = "x" * 100_000
    assert (await commands.run(f"echo {line} | wc -c")).stdout == "100001\n"
    # Callbacks of both kinds, in their order.
    seen = []

    async def note(text):
        await asyncio.sleep(0)
        seen.append(text)

    await commands.run("for n in 1 2 3; do echo $n; sleep 0.05; done", on_stdout=note, on_stderr=seen.append)
    assert "".join(seen) == "1\n2\n3\n", seen
    # Exit statuses, signals, and what a shell says of them.
    for command, code in (("exit 7", 7), ("exit 255", 255), ("no-such-command", 127), ("/etc/passwd", 126), ("kill -9 $$", -1), ("sh -c 'kill -9 $$'; exit $?", 137)):
        try:
            await commands.run(command)
            raise AssertionError(command)
        except CommandExitException as failed:
            assert failed.exit_code == code, (command, failed)
    # Environments, directories, names with spaces and quotes.
    await files.make_dir("a dir/with 'quotes' and ü")
    there = await commands.run("pwd; printf %s \"$V\"", cwd="a dir/with 'quotes' and ü", envs={"V": "x=$HOME 'ü'\n\"\\"})
    assert there.stdout.endswith("/a dir/with 'quotes' and ü\nx=$HOME 'ü'\n\"\\"), there
    assert (await commands.run("echo ${A}${B}", envs={"A": "over"})).stdout == "over2\n"
    home = (await commands.run("echo $HOME")).stdout.strip()
    assert (await commands.run("pwd")).stdout.strip() == home and (await commands.run("id -un", user="user")).exit_code == 0
    await refused(InvalidArgumentException, commands.run("true", cwd="no/such"))
    await refused(InvalidArgumentException, commands.run("true", cwd="/etc/passwd"))
    # Timeouts; without one a command goes on.
    await refused(TimeoutException, commands.run("echo $$ > late; exec sleep 1000", timeout=1))
    await until(lambda: ended("late"))
    brief = await commands.run("echo $$ > left-late; exec sleep 1000", background=True, timeout=2)
    await brief.disconnect()
    await until(lambda: ended("left-late"))
    assert (await commands.run("sleep 0.2; echo done", timeout=0)).stdout == "done\n"
    # Many at once, each with its own output.
    many = await asyncio.gather(*(commands.run(f"sleep 0.1; echo {n}") for n in range(30)))
    assert [one.stdout for one in many] == [f"{n}\n" for n in range(30)]
    # Input: bytes and text, to its end and by a stream, to what reads nothing, and where none was wanted.
    assert (await commands.run("cat")).stdout == ""
    handle = await commands.run("cat", background=True, stdin=True)
    for text in ("one\n", "ü€\n", "x" * 100_000 + "\n"):
        await commands.send_stdin(handle.pid, text)
    await handle.send_stdin("last\n")
    await handle.close_stdin()
    assert (await handle.wait()).stdout == "one\nü€\n" + "x" * 100_000 + "\nlast\n"
    await refused(NotFoundException, commands.send_stdin(handle.pid, "x"))
    counter = await commands.run("wc -c", background=True, stdin=True)
    async with commands.stream_input(counter.pid) as stream:
        await stream.send(b"\0\1\2")
        await stream.send("€")
    await commands.close_stdin(counter.pid)
    assert (await counter.wait()).stdout.strip() == "6"
    # Lists, kills, and joining what somebody else started.
    sleeper = await commands.run("echo begun; sleep 1000", background=True, envs={"TAGGED": "1"}, cwd="/tmp")
    (shown,) = [one for one in await commands.list() if one.pid == sleeper.pid]
    assert shown.cmd == "/bin/bash" and shown.args == ["-l", "-c", "echo begun; sleep 1000"], shown
    assert shown.envs.get("TAGGED") == "1" and shown.cwd == "/tmp" and shown.tag is None, shown
    joined = await commands.connect(sleeper.pid)
    assert joined.pid == sleeper.pid and await sleeper.kill() is True
    for one in (sleeper, joined):
        await refused(CommandExitException, one.wait())
        assert (one.exit_code, one.error) == (-1, "signal: killed"), one
    assert await sleeper.kill() is False
    await refused(NotFoundException, commands.connect(sleeper.pid))
    assert await commands.kill(sleeper.pid) is False
    left = await commands.run("sleep 0.3; echo x > left", background=True)
    await left.disconnect()
    await until(lambda: files.exists("left"))
    # What a command leaves running holds its streams, as at E2B, and ends with its group.
    quick = await commands.run("sleep 1000 >/dev/null 2>&1 & echo started")
    assert quick.stdout == "started\n"


async def files_of(sandbox):
    files, commands = sandbox.files, sandbox.commands
    for name in ("empty", "ü€ 😀", "a b", "per%20cent", "q?u&e=r+y#f", "-dash", "dots..", "back\\slash", "new\nline", "\"quote'", ".hidden"):
        text = "" if name == "empty" else name
        written = await files.write(f"names/{name}", text)
        assert written.name == name and written.path.endswith(f"/names/{name}"), written
        assert await files.read(f"names/{name}") == text
        assert (await files.get_info(f"names/{name}")).name == name
    assert len(await files.list("names")) == 11
    big = os.urandom(20 << 20)
    await files.write("big", big)
    assert bytes(await files.read("big", format="bytes")) == big
    parts = [part async for part in await files.read("big", format="stream")]
    assert b"".join(parts) == big and len(parts) > 1
    await asyncio.gather(*(files.write(f"many/{n}", str(n)) for n in range(40)))
    read = await asyncio.gather(*(files.read(f"many/{n}") for n in range(40)))
    assert read == [str(n) for n in range(40)]
    info = await files.write_files([{"path": f"deep/{n}/{n}/f", "data": bytes([n])} for n in range(20)])
    assert len(info) == 20 and all(one.type == FileType.FILE for one in info)
    tree = {one.path.split("/deep/")[-1] for one in await files.list("deep", depth=3)}
    assert {"0", "0/0", "0/0/f"} <= tree and len(tree) == 60, tree
    assert len(await files.list("deep", depth=1)) == 20
    # Types of entries, and a link that leads nowhere.
    await commands.run("mkdir t; cd t; ln -s nowhere broken; ln -s ../many link; mkfifo pipe; touch file; chmod 711 file; mkdir dir")
    kinds = {one.name: one.type for one in await files.list("t")}
    assert kinds["file"] == FileType.FILE and kinds["dir"] == FileType.DIR and set(kinds) >= {"broken", "link", "file", "dir"}, kinds
    assert (await files.get_info("t/file")).permissions == "-rwx--x--x"
    assert await files.exists("t/broken") in (True, False)
    assert await files.read("t/../many/3") == "3" and await files.read("t/link/3") == "3"
    assert len(await files.list("t/link")) == 40
    # Overwriting keeps nothing of what was there; a directory is not a file.
    await files.write("over", "long text")
    await files.write("over", "s")
    assert await files.read("over") == "s"
    await refused(InvalidArgumentException, files.write("t", "x"))
    await refused(SandboxException, files.write("over/below", "x"))
    await refused(InvalidArgumentException, files.make_dir("over"))
    await refused(FileNotFoundException, files.read("none"))
    await refused(FileNotFoundException, files.list("none"))
    await refused(FileNotFoundException, files.rename("none", "other"))
    await refused(InvalidArgumentException, files.list("over"))
    await refused(SandboxException, files.write("/etc/passwd", "x"))
    await refused(SandboxException, files.read("/etc/shadow"))
    # Moves replace a file, and make the directories above.
    await files.write("from", "new")
    assert (await files.rename("from", "over")).path.endswith("/over") and await files.read("over") == "new"
    assert not await files.exists("from")
    await files.remove("none")
    await files.remove("deep")
    assert not await files.exists("deep") and await files.make_dir("deep/x/y") is True and await files.make_dir("deep") is False


async def full_disks():
    """A cage of the native API with little storage, which the SDK joins."""
    body = json.dumps({"limits": {"disk": "16M"}, "timeout": 60}).encode()
    headers = {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["E2B_API_URL"] + "/v1/cages", body, headers)
    small = await AsyncSandbox.connect(json.load(urllib.request.urlopen(request))["id"])
    await small.files.write("kept", "before")
    for how in ({}, {"use_octet_stream": True}, {"gzip": True}):
        await refused(NotEnoughSpaceException, small.files.write("kept", os.urandom(32 << 20), **how))
        # What was there stays, and nothing of the rest is left behind.
        assert await small.files.read("kept") == "before"
        await small.files.write("fits", b"x" * (8 << 20))
        await small.files.remove("fits")
    assert await small.kill()


async def watches_of(sandbox):
    files = sandbox.files
    await files.make_dir("watched/sub")
    events, ends = [], []
    handle = await files.watch_dir("watched", on_event=events.append, on_exit=ends.append, recursive=True)

    async def saw(kind, name):
        return any((event.type, event.name) == (kind, name) for event in events)

    await files.write("watched/file", "x")
    await until(lambda: saw(FilesystemEventType.CREATE, "file"))
    await until(lambda: saw(FilesystemEventType.WRITE, "file"))
    await sandbox.commands.run("chmod 600 watched/file")
    await until(lambda: saw(FilesystemEventType.CHMOD, "file"))
    await files.write("watched/sub/deep", "x")
    await until(lambda: saw(FilesystemEventType.CREATE, "sub/deep"))
    await files.make_dir("watched/later/below")
    await until(lambda: saw(FilesystemEventType.CREATE, "later"))
    await files.write("watched/later/below/f", "x")
    await until(lambda: saw(FilesystemEventType.WRITE, "later/below/f"))
    await files.rename("watched/file", "watched/renamed")
    await until(lambda: saw(FilesystemEventType.RENAME, "file"))
    await files.remove("watched/renamed")
    await until(lambda: saw(FilesystemEventType.REMOVE, "renamed"))
    await handle.stop()
    before = len(events)
    await files.write("watched/unseen", "x")
    await asyncio.sleep(0.3)
    assert len(events) == before and not [end for end in ends if end is not None], ends
    flat = []
    handle = await files.watch_dir("watched", on_event=flat.append)
    await files.write("watched/sub/deeper", "x")
    await files.write("watched/shallow", "x")

    async def shallow():
        return any(event.name == "shallow" for event in flat)

    await until(shallow)
    assert not any("deeper" in event.name for event in flat), flat
    await handle.stop()
    await refused(NotFoundException, files.watch_dir("none", on_event=print))
    await refused(InvalidArgumentException, files.watch_dir("watched/shallow", on_event=print))


async def terminals_of(sandbox):
    screen = []
    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=screen.append, cwd="/tmp", envs={"P": "1"})

    def shows(text):
        async def look():
            return text in b"".join(screen)

        return look

    await sandbox.pty.send_stdin(terminal.pid, b"echo $((40+2))-$P-$TERM; pwd\n")
    await until(shows(b"42-1-xterm"))
    await sandbox.pty.resize(terminal.pid, PtySize(rows=33, cols=101))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    await until(shows(b"33 101"))
    # An interrupt ends what runs, and the shell goes on.
    await sandbox.pty.send_stdin(terminal.pid, b"echo ready-$((3+3)); cat\n")
    await until(shows(b"ready-6"))
    await sandbox.pty.send_stdin(terminal.pid, b"\x03")
    await until(shows(b"^C"))
    await sandbox.pty.send_stdin(terminal.pid, b"echo after-$((1+1))\n")
    await until(shows(b"after-2"))
    await terminal.disconnect()
    again = []
    joined = await sandbox.pty.connect(terminal.pid, on_data=again.append)
    await sandbox.pty.send_stdin(terminal.pid, b"echo re-$((2+2)); exit 5\n")
    failed = await refused(CommandExitException, joined.wait())
    assert b"re-4" in b"".join(again) and "5" in failed, (again, failed)
    await refused(NotFoundException, sandbox.pty.send_stdin(terminal.pid, b"x"))
    await refused(NotFoundException, sandbox.pty.resize(terminal.pid, PtySize(rows=1, cols=1)))
    third = await sandbox.pty.create(PtySize(rows=5, cols=5), on_data=screen.append)
    assert await sandbox.pty.kill(third.pid) is True and await sandbox.pty.kill(third.pid) is False


async def lives():
    job = uuid.uuid4().hex
    made = await asyncio.gather(*(AsyncSandbox.create(timeout=120, metadata={"job": job, "n": str(n)}) for n in range(6)))
    assert len({one.sandbox_id for one in made}) == 6
    query = SandboxQuery(metadata={"job": job})
    paginator, listed = AsyncSandbox.list(query=query, limit=4), []
    while paginator.has_next:
        listed += await paginator.next_items()
    assert {one.sandbox_id for one in listed} == {one.sandbox_id for one in made}
    (one,) = await AsyncSandbox.list(query=SandboxQuery(metadata={"job": job, "n": "3"})).next_items()
    assert one.sandbox_id == made[3].sandbox_id and one.metadata == {"job": job, "n": "3"}
    # A command that runs sees nothing of a pause.
    counting = await made[0].commands.run("for n in $(seq 20); do echo $n; sleep 0.05; done", background=True)
    assert await made[0].pause() is True and await made[0].pause() is False
    assert (await made[0].get_info()).state == SandboxState.PAUSED and not await made[0].is_running()
    (resting,) = await AsyncSandbox.list(query=SandboxQuery(metadata={"job": job}, state=[SandboxState.PAUSED])).next_items()
    assert resting.sandbox_id == made[0].sandbox_id
    await refused(TimeoutException, made[0].files.read("x"))
    again = await AsyncSandbox.connect(made[0].sandbox_id, timeout=60)
    assert await again.is_running()
    assert (await counting.wait()).stdout.split()[-1] == "20"
    # Methods of the class, without an instance.
    name = made[1].sandbox_id
    await AsyncSandbox.set_timeout(name, 500)
    info = await AsyncSandbox.get_info(name)
    assert 400 < (info.end_at - info.started_at).total_seconds() < 600
    assert (await AsyncSandbox.get_metrics(name))[0].cpu_count >= 1
    assert await AsyncSandbox.kill(name) is True and await AsyncSandbox.kill(name) is False
    await refused(SandboxNotFoundException, AsyncSandbox.connect(name))
    await refused(SandboxNotFoundException, AsyncSandbox.pause(name))
    # An end in the middle of a command, of a watch and of a download.
    running = await made[2].commands.run("sleep 1000", background=True)
    ends = asyncio.get_running_loop().create_future()
    await made[2].files.watch_dir("/tmp", on_event=print, on_exit=lambda error=None: ends.done() or ends.set_result(error))
    assert await made[2].kill() is True
    await refused(TimeoutException, running.wait())
    await asyncio.wait_for(ends, 30)
    assert not await made[2].is_running()
    await refused(TimeoutException, made[2].commands.run("true"))
    async with made[3] as inside:
        assert await inside.is_running()
    assert not await made[3].is_running()
    for one in (made[0], made[4], made[5]):
        assert await one.kill()
    assert await AsyncSandbox.list(query=query).next_items() == []


async def main():
    sandbox = await AsyncSandbox.create(timeout=300, envs={"A": "1", "B": "2"})
    for part in (commands_of, files_of, watches_of, terminals_of):
        await part(sandbox)
        print(part.__name__, file=sys.stderr)
    assert await sandbox.kill()
    for part in (full_disks, lives):
        await part()
        print(part.__name__, file=sys.stderr)


asyncio.run(main())
print("ok", flush=True)
# Threads of the package's HTTP client abort an interpreter that takes itself down while they still run.
os._exit(0)
