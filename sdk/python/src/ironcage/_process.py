"""Commands that run while the caller does something else, and terminals."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Protocol, Tuple, Union

from ._calls import MAX_OUTPUT, CliCall, CliResult, OutputCallback
from ._local import Command, LocalBackend, argv_of, command_ended
from ._runner import _CHUNK, Output, _cannot_start, _Invocation, end
from .errors import CommandTimeoutError, UnsupportedError
from .models import CommandResult

if TYPE_CHECKING:
    from ._connect import Backend


class Process(Protocol):
    """A command that runs."""

    def write(self, data: Union[str, bytes]) -> None:
        """Writes to its standard input."""

    def close_input(self) -> None:
        """Ends its standard input."""

    def kill(self) -> None:
        """Kills it, with its process group."""

    def wait(self, timeout: Optional[float] = None) -> CommandResult:
        """Waits for its end. TimeoutError if it still runs after `timeout` seconds; it goes on."""

    def output(self) -> Iterator[Tuple[str, bytes]]:
        """Its output as it arrives, in pairs of `stdout` or `stderr` and bytes, until it ends."""


class Pty(Protocol):
    """A terminal in a cage, with a command on it."""

    def write(self, data: Union[str, bytes]) -> None:
        """Types."""

    def read(self, timeout: Optional[float] = None) -> bytes:
        """What it printed; b"" when it is over. TimeoutError after `timeout` seconds."""

    def resize(self, rows: int, columns: int) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: Optional[float] = None) -> CommandResult:
        """Waits for its end; output that was not read is dropped."""


class LocalProcess:
    def __init__(self, backend: LocalBackend, call: "CliCall[CommandResult]") -> None:
        invocation = _Invocation(backend.program, call)
        try:
            self._process = subprocess.Popen(
                invocation.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=invocation.env,
                pass_fds=invocation.fds,
                bufsize=0,
            )
        except OSError as error:
            invocation.close()
            raise _cannot_start(backend.program, error) from error
        invocation.started()
        self._call = call
        self._invocation = invocation
        self._killed = False
        self._pieces: "queue.Queue[Optional[Tuple[str, bytes]]]" = queue.Queue(maxsize=256)
        self._wanted = threading.Event()
        self._outputs = {
            "stdout": Output(call.max_output, call.on_stdout),
            "stderr": Output(call.max_output, call.on_stderr),
        }
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for thread in self._threads:
            thread.start()
        self._result: Optional[CliResult] = None
        self._lock = threading.Lock()

    def _read(self, name: str, stream: Any) -> None:
        while True:
            piece = os.read(stream.fileno(), _CHUNK)
            if not piece:
                return
            self._outputs[name].add(piece)
            try:
                self._pieces.put_nowait((name, piece))
            except queue.Full:
                # Nobody iterates, or too slowly; `wait` has what is kept.
                if self._wanted.is_set():
                    self._pieces.put((name, piece))

    def write(self, data: Union[str, bytes]) -> None:
        assert self._process.stdin is not None
        rest = memoryview(data.encode() if isinstance(data, str) else data)
        while rest:
            rest = rest[self._process.stdin.write(rest) or 0 :]

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self._killed = True
        end(self._process)

    def wait(self, timeout: Optional[float] = None) -> CommandResult:
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise CommandTimeoutError("{} still runs after {:g} s".format(self._call.what, timeout or 0)) from None
        for thread in self._threads:
            thread.join()
        with self._lock:
            if self._result is None:
                for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                    if stream is not None:
                        stream.close()
                out, err = self._outputs["stdout"], self._outputs["stderr"]
                self._result = CliResult(
                    exit_code=code,
                    stdout=bytes(out.kept),
                    stderr=bytes(err.kept),
                    status=self._invocation.status(),
                    truncated=out.truncated or err.truncated,
                )
        if self._killed and self._result.status is None:
            # Killed before the client could say how it ended.
            return CommandResult(128 - code, self._result.stdout, self._result.stderr, signal=-code)
        return self._call.parse(self._result)

    def output(self) -> Iterator[Tuple[str, bytes]]:
        self._wanted.set()
        while True:
            try:
                yield self._pieces.get(timeout=0.05)  # type: ignore[misc]
            except queue.Empty:
                if not any(thread.is_alive() for thread in self._threads) and self._pieces.empty():
                    return


def start_process(
    backend: Backend,
    cage: str,
    command: Command,
    *,
    env: Optional[Mapping[str, str]],
    cwd: Optional[str],
    timeout: Optional[float],
    on_stdout: Optional[OutputCallback],
    on_stderr: Optional[OutputCallback],
    max_output: int,
) -> Process:
    if not isinstance(backend, LocalBackend):
        from ._service_process import ServiceProcess

        return ServiceProcess(
            backend, cage, command, env=env, cwd=cwd, timeout=timeout,
            on_stdout=on_stdout, on_stderr=on_stderr, max_output=max_output,
        )  # fmt: skip
    call = backend.command(
        cage, command, env=env, cwd=cwd, timeout=timeout, input=b"",
        on_stdout=on_stdout, on_stderr=on_stderr, max_output=max_output,
    )  # fmt: skip
    assert isinstance(call, CliCall)
    return LocalProcess(backend, call)


class LocalPty:
    def __init__(
        self,
        backend: LocalBackend,
        cage: str,
        command: Command,
        rows: int,
        columns: int,
        env: Optional[Mapping[str, str]],
        cwd: Optional[str],
        raw: bool,
    ) -> None:
        argv = argv_of(command)
        args = backend.exec_args(cage, argv, env={"TERM": "xterm-256color", **(env or {})}, cwd=cwd, tty=True)
        if raw:
            args.insert(1, "--raw-terminal")
        what = "`{}`".format(argv[0])
        self._call: "CliCall[CommandResult]" = CliCall(args, command_ended(what, None), status=True, what=what)
        self._invocation = _Invocation(backend.program, self._call)
        self._controller, terminal = os.openpty()
        try:
            set_size(self._controller, rows, columns)
            self._process = subprocess.Popen(
                self._invocation.argv,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                env=self._invocation.env,
                pass_fds=self._invocation.fds,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._controller)
            self._invocation.close()
            raise _cannot_start(backend.program, error) from error
        finally:
            os.close(terminal)
        self._invocation.started()
        self._closed = False

    def write(self, data: Union[str, bytes]) -> None:
        rest = data.encode() if isinstance(data, str) else data
        while rest:
            rest = rest[os.write(self._controller, rest) :]

    def read(self, timeout: Optional[float] = None) -> bytes:
        import select

        ready, _, _ = select.select([self._controller], [], [], timeout)
        if not ready:
            raise CommandTimeoutError("nothing was printed within {:g} s".format(timeout or 0))
        try:
            return os.read(self._controller, _CHUNK)
        except OSError:
            return b""  # the client closed the terminal

    def resize(self, rows: int, columns: int) -> None:
        set_size(self._controller, rows, columns)
        # The terminal is not the client's controlling one, so the kernel tells nobody.
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGWINCH)

    def kill(self) -> None:
        end(self._process)

    def wait(self, timeout: Optional[float] = None) -> CommandResult:
        import time

        # What it prints has to go somewhere, or it waits for us.
        until = None if timeout is None else time.monotonic() + timeout
        while self._process.poll() is None:
            if until is not None and time.monotonic() > until:
                raise CommandTimeoutError("{} still runs after {:g} s".format(self._call.what, timeout or 0))
            try:
                self.read(0.05)
            except CommandTimeoutError:
                continue
        if not self._closed:
            self._closed = True
            os.close(self._controller)
            self._status = self._invocation.status()
        return self._call.parse(CliResult(self._process.returncode, b"", b"", self._status))


def set_size(terminal: int, rows: int, columns: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def start_pty(
    backend: Backend,
    cage: str,
    command: Command,
    rows: int,
    columns: int,
    env: Optional[Mapping[str, str]],
    cwd: Optional[str],
    raw: bool,
) -> Pty:
    if not isinstance(backend, LocalBackend):
        from ._service_process import ServiceProcess

        if not raw:
            raise UnsupportedError(
                "cannot filter the output of a terminal of the service",
                hints=["pass raw=True, and show nothing of it on a terminal unless you trust the agent"],
            )
        return ServiceProcess(backend, cage, command, env={"TERM": "xterm-256color", **(env or {})}, cwd=cwd, size=(rows, columns))
    return LocalPty(backend, cage, command, rows, columns, env, cwd, raw)


__all__ = ["MAX_OUTPUT", "LocalProcess", "LocalPty", "Process", "Pty", "start_process", "start_pty"]
