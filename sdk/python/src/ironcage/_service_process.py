"""Processes and terminals of a service: started by one request, followed by a stream of events."""

from __future__ import annotations

import base64
import json
import queue
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from ._calls import HttpCall, OutputCallback
from ._local import Command, argv_of
from ._runner import Output
from ._service import ServiceBackend, SyncHttp, _httpx, checked, document, ended, error_of, failed
from .errors import CommandTimeoutError, IroncageError, ServiceError
from .models import CommandResult

#: How often a stream that broke is taken up again, where it was, before the process is given up.
_ATTEMPTS = 5


class ServiceProcess:
    def __init__(
        self,
        backend: ServiceBackend,
        cage: str,
        command: Command,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[float] = None,
        size: Optional[Tuple[int, int]] = None,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        max_output: int = 0,
    ) -> None:
        self._http = SyncHttp(backend)
        self._cage = cage
        self._backend = backend
        body: Dict[str, Any] = {"argv": argv_of(command), "env": dict(env or {})}
        if cwd is not None:
            body["cwd"] = cwd
        if size is None:
            body["stdin"] = True
        else:
            body["pty"] = {"rows": size[0], "columns": size[1]}
        try:
            self.pid = int(self._send("POST", [], lambda result: document(result)["pid"], json=body))
        except BaseException:
            self._http.close()
            raise
        self._outputs = {"stdout": Output(max_output, on_stdout), "stderr": Output(max_output, on_stderr)}
        self._pieces: "queue.Queue[Tuple[str, bytes]]" = queue.Queue(maxsize=256)
        # A terminal is read piece by piece; the output of a process is kept anyway.
        self._wanted = size is not None
        self._exit: Optional[Mapping[str, Any]] = None
        self._error: Optional[BaseException] = None
        self._lost = False
        self._timed_out = False
        self._timeout = timeout
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        self._timer: Optional[threading.Timer] = None
        if timeout is not None:
            self._timer = threading.Timer(timeout, self._time_up)
            self._timer.daemon = True
            self._timer.start()

    def _path(self, parts: List[str]) -> str:
        pid = [str(self.pid)] if parts else []
        return self._backend._cage(self._cage, "processes", *pid, *parts)

    def _send(self, method: str, parts: List[str], parse: Any = checked, **more: Any) -> Any:
        call: "HttpCall[Any]" = HttpCall(method, self._path(parts), parse, **more)
        return call.parse(self._http.send(call))

    def _time_up(self) -> None:
        self._timed_out = True
        self.kill()

    def _follow(self) -> None:
        offset, attempts = 0, 0
        try:
            while self._exit is None:
                try:
                    for event, data in self._events(offset):
                        attempts = 0
                        if event == "start":
                            self._lost = self._lost or data["from"] > offset
                            offset = data["from"]
                        elif event == "output":
                            piece = base64.b64decode(data["data"])
                            offset = data["offset"] + len(piece)
                            name = "stderr" if data["stream"] == "stderr" else "stdout"
                            self._outputs[name].add(piece)
                            self._put((name, piece))
                        elif event == "exit":
                            self._exit = data
                        elif event == "error":
                            raise ServiceError(str(data["error"]["message"]), code=str(data["error"]["code"]))
                except _httpx().TransportError as error:
                    attempts += 1
                    if attempts >= _ATTEMPTS:
                        raise failed(self._backend, error) from error
                    time.sleep(0.2 * attempts)
                else:
                    if self._exit is None:
                        attempts += 1
                        if attempts >= _ATTEMPTS:
                            raise ServiceError("the output of process {} ended before the process did".format(self.pid))
                        time.sleep(0.2 * attempts)
        except BaseException as error:  # goes to whoever waits
            self._error = error

    def _put(self, piece: Tuple[str, bytes]) -> None:
        while True:
            try:
                return self._pieces.put(piece, timeout=0.1 if self._wanted else 0.0001)
            except queue.Full:
                if not self._wanted:
                    return None  # nobody iterates; `wait` has what is kept

    def _events(self, offset: int) -> Iterator[Tuple[str, Any]]:
        path = self._path(["output"])
        # The service shows every 20 seconds that it lives.
        with self._http.client.stream("GET", path, params={"from": offset}, timeout=90) as response:
            if response.status_code != 200:
                from ._calls import HttpResult

                raise error_of(HttpResult(response.status_code, dict(response.headers), response.read()))
            event, data = "", ""
            for line in response.iter_lines():
                if not line:
                    if event:
                        yield event, json.loads(data)
                    event, data = "", ""
                elif line.startswith("event:"):
                    event = line[6:].strip()
                elif line.startswith("data:"):
                    data += line[5:].strip()

    def write(self, data: Union[str, bytes]) -> None:
        self._send("POST", ["stdin"], content=data.encode() if isinstance(data, str) else data)

    def close_input(self) -> None:
        self._send("POST", ["stdin"], params={"close": "true"}, content=b"")

    def resize(self, rows: int, columns: int) -> None:
        self._send("POST", ["resize"], json={"rows": rows, "columns": columns})

    def kill(self) -> None:
        try:
            self._send("POST", ["signal"], json={"signal": "SIGKILL"})
        except IroncageError as error:
            if error.code != "not_found":  # it has just ended
                raise

    def wait(self, timeout: Optional[float] = None) -> CommandResult:
        self._wanted = False
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise CommandTimeoutError("process {} still runs after {:g} s".format(self.pid, timeout or 0))
        if self._timer is not None:
            self._timer.cancel()
        if self._error is not None:
            raise self._error
        out, err = self._outputs["stdout"], self._outputs["stderr"]
        if self._timed_out:
            message = "process {} ran into its timeout of {:g} s and was killed".format(self.pid, self._timeout or 0)
            raise CommandTimeoutError(message, stdout=bytes(out.kept), stderr=bytes(err.kept))
        assert self._exit is not None
        self._http.close()
        return ended(self._exit, bytes(out.kept), bytes(err.kept), self._lost or out.truncated or err.truncated)

    def output(self) -> Iterator[Tuple[str, bytes]]:
        self._wanted = True
        while True:
            # In this order: what came before the end is still there.
            over = not self._thread.is_alive()
            try:
                yield self._pieces.get(timeout=0.05)
            except queue.Empty:
                if over:
                    return

    def read(self, timeout: Optional[float] = None) -> bytes:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            over = not self._thread.is_alive()
            try:
                return self._pieces.get(timeout=0.05)[1]
            except queue.Empty:
                if over:
                    return b""
                if until is not None and time.monotonic() > until:
                    raise CommandTimeoutError("nothing was printed within {:g} s".format(timeout or 0)) from None
