"""Carries calls out: `SyncRunner` blocks, `AsyncRunner` awaits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from typing import IO, Any, Dict, List, Optional, Tuple, TypeVar

from ._calls import Call, CliCall, CliResult, HttpCall, OutputCallback, Value
from .errors import CommandTimeoutError, InvalidArgumentError, IroncageError, NotInstalledError

T = TypeVar("T")

_CHUNK = 1 << 16
#: How long the client may take to end after a signal, before it is killed.
_PATIENCE = 10.0


def split_env(args: List[str]) -> Tuple[List[str], Dict[str, str]]:
    """Moves values of `--env=NAME=VALUE` into the environment of the client, where other users of
    the machine cannot read them. Variables that the client itself would obey stay arguments.
    """
    own: Dict[str, str] = {}
    words: List[str] = []
    for i, word in enumerate(args):
        if word == "--":
            words.extend(args[i:])
            break
        if word.startswith("--env=") and word.count("=") > 1:
            name, value = word[len("--env=") :].split("=", 1)
            if name.isidentifier() and not _is_the_clients(name):
                own[name] = value
                word = "--env=" + name
        words.append(word)
    return words, own


def _is_the_clients(name: str) -> bool:
    plain = ("HOME", "PATH", "SHELL", "TERM", "USER", "LOGNAME", "PWD", "TMPDIR", "PAGER", "LESS", "NO_COLOR", "LANG")
    prefixes = ("XDG_", "LD_", "LC_", "IRONCAGE", "RUST_", "CLICOLOR", "DBUS_", "SSH_", "GPG_")
    return name in plain or name.startswith(prefixes)


class Output:
    """What is kept of an output stream."""

    def __init__(self, limit: int, callback: Optional[OutputCallback]) -> None:
        self.kept = bytearray()
        self.truncated = False
        self._limit = limit
        self._callback = callback

    def add(self, piece: bytes) -> None:
        room = self._limit - len(self.kept)
        if len(piece) > room:
            self.truncated = True
        self.kept += piece[: max(0, room)]
        if self._callback is not None:
            self._callback(piece)


class _Invocation:
    """A command line, and the pipe for its status."""

    def __init__(self, program: str, call: "CliCall[Any]") -> None:
        if any("\0" in word for word in call.args):
            raise InvalidArgumentError("cannot {}: an argument contains a NUL byte".format(call.what))
        args, own = split_env(call.args)
        self.env = dict(os.environ, IRONCAGE_ERROR_CODES="json", **own)
        self.fds: Tuple[int, ...] = ()
        self._reader: Optional[int] = None
        if call.status:
            self._reader, writer = os.pipe()
            self.fds = (writer,)
            args = [args[0], "--status-file=/dev/fd/{}".format(writer), *args[1:]]
        self.argv = [program, *args]

    def started(self) -> None:
        """Closes our copy of the writing end, so that the status ends with the client."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()

    def status(self) -> Optional[Dict[str, Any]]:
        """Reads the status. Only the client writes it, one line of less than a pipe's size."""
        import json

        if self._reader is None:
            return None
        with os.fdopen(self._reader, "rb") as pipe:
            self._reader = None
            text = pipe.read()
        try:
            value = json.loads(text)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def close(self) -> None:
        self.started()
        if self._reader is not None:
            os.close(self._reader)
            self._reader = None


def _too_long(call: "CliCall[Any]") -> CommandTimeoutError:
    return CommandTimeoutError("cannot {}: no answer within {:g} s".format(call.what, call.timeout or 0))


def _cannot_start(program: str, error: OSError) -> IroncageError:
    if isinstance(error, FileNotFoundError):
        return NotInstalledError("cannot execute {}: no such program".format(program), hints=["install Ironcage, or set IRONCAGE_BINARY"])
    if error.errno == 7:  # E2BIG
        return InvalidArgumentError("cannot run the command: its arguments are too long")
    return IroncageError("cannot execute {}: {}".format(program, error))


class SyncRunner:
    """Blocks until a call is done."""

    def __init__(self, program: Optional[str] = None, http: Any = None) -> None:
        self.program = program
        self.http = http

    def run(self, call: "Call[T]") -> T:
        if isinstance(call, Value):
            return call.value
        if isinstance(call, HttpCall):
            return call.parse(self.http.send(call))
        return call.parse(self._run_cli(call))

    def _run_cli(self, call: "CliCall[Any]") -> CliResult:
        assert self.program is not None
        invocation = _Invocation(self.program, call)
        try:
            try:
                process = subprocess.Popen(
                    invocation.argv,
                    stdin=subprocess.PIPE if call.input is not None else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=invocation.env,
                    pass_fds=invocation.fds,
                )
            except OSError as error:
                raise _cannot_start(self.program, error) from error
            invocation.started()
            return self._finish(process, call, invocation)
        finally:
            invocation.close()

    def _finish(self, process: "subprocess.Popen[bytes]", call: "CliCall[Any]", invocation: _Invocation) -> CliResult:
        stdout = Output(call.max_output, call.on_stdout)
        stderr = Output(call.max_output, call.on_stderr)
        failed: List[BaseException] = []

        def read(stream: IO[bytes], output: Output) -> None:
            try:
                while True:
                    piece = os.read(stream.fileno(), _CHUNK)
                    if not piece:
                        return
                    output.add(piece)
            except BaseException as error:  # a callback's own error goes to the caller
                failed.append(error)
                process.kill()

        def write(stream: IO[bytes], data: bytes) -> None:
            try:
                with stream:
                    stream.write(data)
            except OSError:
                pass  # the command did not read its input to the end

        assert process.stdout is not None and process.stderr is not None
        threads = [
            threading.Thread(target=read, args=(process.stdout, stdout), daemon=True),
            threading.Thread(target=read, args=(process.stderr, stderr), daemon=True),
        ]
        if process.stdin is not None:
            threads.append(threading.Thread(target=write, args=(process.stdin, call.input), daemon=True))
        for thread in threads:
            thread.start()
        late = False
        try:
            process.wait(call.timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                end(process)
            for thread in threads:
                thread.join(_PATIENCE)
            process.stdout.close()
            process.stderr.close()
        if failed:
            raise failed[0]
        if late:
            raise _too_long(call)
        return CliResult(
            exit_code=process.returncode,
            stdout=bytes(stdout.kept),
            stderr=bytes(stderr.kept),
            status=invocation.status(),
            truncated=stdout.truncated or stderr.truncated,
        )

    def close(self) -> None:
        if self.http is not None:
            self.http.close()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a client: it passes SIGTERM on to its command, and with SIGKILL the supervisor ends it."""
    process.terminate()
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class AsyncRunner:
    """Awaits each call, on asyncio."""

    def __init__(self, program: Optional[str] = None, http: Any = None) -> None:
        self.program = program
        self.http = http

    async def run(self, call: "Call[T]") -> T:
        if isinstance(call, Value):
            return call.value
        if isinstance(call, HttpCall):
            return call.parse(await self.http.send(call))
        return call.parse(await self._run_cli(call))

    async def _run_cli(self, call: "CliCall[Any]") -> CliResult:
        assert self.program is not None
        invocation = _Invocation(self.program, call)
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *invocation.argv,
                    stdin=subprocess.PIPE if call.input is not None else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=invocation.env,
                    pass_fds=invocation.fds,
                )
            except OSError as error:
                raise _cannot_start(self.program, error) from error
            invocation.started()
            return await self._finish(process, call, invocation)
        finally:
            invocation.close()

    async def _finish(self, process: asyncio.subprocess.Process, call: "CliCall[Any]", invocation: _Invocation) -> CliResult:
        stdout = Output(call.max_output, call.on_stdout)
        stderr = Output(call.max_output, call.on_stderr)

        async def read(stream: asyncio.StreamReader, output: Output) -> None:
            while True:
                piece = await stream.read(_CHUNK)
                if not piece:
                    return
                output.add(piece)

        async def write(stream: asyncio.StreamWriter, data: bytes) -> None:
            try:
                # In pieces: the transport copies what it cannot write at once.
                for i in range(0, len(data), 1 << 20):
                    stream.write(data[i : i + (1 << 20)])
                    await stream.drain()
                stream.close()
            except OSError:
                pass  # the command did not read its input to the end

        assert process.stdout is not None and process.stderr is not None
        tasks = [read(process.stdout, stdout), read(process.stderr, stderr)]
        if process.stdin is not None:
            tasks.append(write(process.stdin, call.input or b""))
        streams = asyncio.gather(*tasks, process.wait())
        try:
            await asyncio.wait_for(streams, call.timeout)
        except asyncio.TimeoutError:
            raise _too_long(call) from None
        finally:
            if process.returncode is None:
                await asyncio.shield(end_async(process))
        assert process.returncode is not None
        return CliResult(
            exit_code=process.returncode,
            stdout=bytes(stdout.kept),
            stderr=bytes(stderr.kept),
            status=invocation.status(),
            truncated=stdout.truncated or stderr.truncated,
        )

    async def close(self) -> None:
        if self.http is not None:
            await self.http.close()


async def end_async(process: asyncio.subprocess.Process) -> None:
    """As `end`."""
    try:
        process.terminate()
        await asyncio.wait_for(process.wait(), 1)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
    except ProcessLookupError:
        pass
