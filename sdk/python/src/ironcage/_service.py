"""Cages of a service, by its HTTP API (`sdk/openapi.json`)."""

from __future__ import annotations

import base64
import datetime
import json
import math
import os
import ssl
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar
from urllib.parse import quote

from ._calls import CALL_TIMEOUT, MAX_OUTPUT, Call, HttpCall, HttpResult, OutputCallback
from ._local import Command, argv_of
from .errors import (
    FILE_ERRORS,
    AuthenticationError,
    CommandTimeoutError,
    DeniedError,
    FileTooLargeError,
    InvalidArgumentError,
    IroncageError,
    NotInstalledError,
    RateLimitError,
    SandboxNotFoundError,
    ServiceError,
    StartError,
    UnsupportedError,
    file_error,
)
from .models import (
    AppliedChange,
    Change,
    CommandResult,
    EndedLease,
    FileInfo,
    Lease,
    PermissionRequest,
    SandboxInfo,
    changed_files,
)

T = TypeVar("T")

#: The longest lifetime and command time that the service takes, in seconds.
LONGEST_LIFE = 31_536_000
LONGEST_RUN = 86_400
#: The most output of a stream that the service returns.
MOST_OUTPUT = 16 * 1024 * 1024


def error_of(result: HttpResult) -> IroncageError:
    """The error in an answer. Its code chooses the class; whatever is no error of the service (a
    proxy's page, say) keeps its status."""
    try:
        detail = json.loads(result.body)["error"]
        code, message, hint = str(detail["code"]), str(detail["message"]), detail.get("hint")
    except (ValueError, KeyError, TypeError):
        return ServiceError("the service answered with status {}".format(result.status), status=result.status)
    hints = [str(hint)] if hint else []
    if code == "cage_ended":
        return SandboxNotFoundError(message, hints=hints)
    if code == "start_failed":
        return StartError(message, hints=hints)
    if code == "denied":
        return DeniedError(message, hints=hints)
    if code == "not_offered":
        return UnsupportedError(message, hints=hints)
    if code in ("unauthorized", "forbidden"):
        return AuthenticationError(message, status=result.status, code=code, hints=hints)
    if code == "limit_reached":
        after = result.headers.get("retry-after", "")
        seconds = float(after) if after.isdigit() else None
        return RateLimitError(message, retry_after=seconds, status=result.status, code=code, hints=hints)
    return ServiceError(message, status=result.status, code=code, hints=hints)


def checked(result: HttpResult) -> HttpResult:
    if not 200 <= result.status < 300:
        raise error_of(result)
    return result


def document(result: HttpResult) -> Any:
    checked(result)
    try:
        return json.loads(result.body)
    except ValueError as error:
        raise ServiceError("cannot read the answer of the service: {}".format(error), status=result.status) from error


def of_cage(result: HttpResult) -> Any:
    """As `document`, where nothing but the cage can be missing."""
    if result.status == 404:
        found = error_of(result)
        raise SandboxNotFoundError(found.message, hints=found.hints)
    return document(result) if result.body else checked(result)


def seconds(timeout: Optional[float], longest: int) -> int:
    if timeout is None:
        return longest
    if not 0 < timeout <= longest:
        raise InvalidArgumentError("invalid timeout {!r}: expected more than 0 and at most {} seconds".format(timeout, longest))
    return math.ceil(timeout)


def sandbox_info(value: Mapping[str, Any]) -> SandboxInfo:
    metadata = value.get("metadata") or {}
    return SandboxInfo(
        id=str(value["id"]), name=metadata.get("name"), state=str(value["state"]), workspace=value.get("workspace"), raw=value
    )


def file_info(value: Mapping[str, Any]) -> FileInfo:
    stamp = datetime.datetime.fromisoformat(str(value["modified_at"]).replace("Z", "+00:00"))
    return FileInfo(
        name=str(value["name"]),
        path=str(value["path"]),
        kind=str(value["kind"]),
        size=int(value["size"]),
        mode=int(value["mode"]),
        modified=stamp.timestamp(),
    )


class ServiceBackend:
    """Makes the requests for cages of a service."""

    name = "service"

    def __init__(self, url: str, key: Optional[str]) -> None:
        self.url = url.rstrip("/")
        self.key = key

    def create_from(self, options: Mapping[str, Any]) -> Call[Tuple[str, str]]:
        """Creates a cage; the options are those of `Sandbox.create`."""
        for name in ("name", "root", "idle", "cwd", "read", "write", "hide", "secrets", "publish", "cli_args"):
            if options[name]:
                raise UnsupportedError("cannot use {} with a service".format(name), hints=["put it into a policy or a template"])
        body: Dict[str, Any] = {"timeout": seconds(options["timeout"], LONGEST_LIFE)}
        for name in ("profile", "image", "template", "workspace_mode"):
            if options[name] is not None:
                body[name] = options[name]
        if options["workspace"] is not None:
            body["directory"] = os.fspath(options["workspace"])
        if options["policy"] is not None:
            # The service takes its text: the file is here, not there.
            with open(options["policy"], encoding="utf-8") as file:
                body["policy"] = file.read()
        for name in ("env", "metadata"):
            if options[name]:
                body[name] = {str(key): str(value) for key, value in options[name].items()}
        limits = {name: options[name] for name in ("memory", "disk", "pids") if options[name] is not None}
        if options["cpus"] is not None:
            limits["cpus"] = str(options["cpus"])
        if limits:
            body["limits"] = limits
        network: Dict[str, Any] = {}
        if options["network"] is not None:
            network["mode"] = options["network"]
        if options["allow_hosts"]:
            network["allow"] = list(options["allow_hosts"])
        if network:
            body["network"] = network

        def parse(result: HttpResult) -> Tuple[str, str]:
            value = document(result)
            return str(value["id"]), str(value["workspace"])

        return HttpCall("POST", "/v1/cages", parse, json=body, timeout=600)

    def describe(self, cage: str) -> Call[SandboxInfo]:
        def parse(result: HttpResult) -> SandboxInfo:
            info = sandbox_info(of_cage(result))
            if info.state == "ended":
                raise SandboxNotFoundError("the cage {} has ended".format(cage))
            return info

        return HttpCall("GET", self._cage(cage), parse)

    def list(self) -> Call[List[SandboxInfo]]:
        def parse(result: HttpResult) -> List[SandboxInfo]:
            return [sandbox_info(one) for one in document(result)["cages"]]

        return HttpCall("GET", "/v1/cages", parse, params={"limit": 1000})

    def stop(self, cage: str, grace: float) -> Call[bool]:
        def parse(result: HttpResult) -> bool:
            try:
                of_cage(result)
            except SandboxNotFoundError:
                return False
            return True

        return HttpCall("DELETE", self._cage(cage), parse)

    def _cage(self, cage: str, *rest: str) -> str:
        return "/v1/cages/" + "/".join(quote(part, safe="") for part in (cage, *rest))

    # Commands

    def command(
        self,
        cage: str,
        command: Command,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[float] = None,
        input: Optional[bytes] = None,
        max_output: int = MAX_OUTPUT,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        leases: Sequence[str] = (),
        reason: str = "",
    ) -> Call[CommandResult]:
        if on_stdout is not None or on_stderr is not None:
            raise UnsupportedError("cannot stream the output of `run` from a service", hints=["use commands.start(...).wait()"])
        if leases:
            raise UnsupportedError("cannot run a command with leases through the service")
        argv = argv_of(command)
        what = "`{}`".format(command if isinstance(command, str) else argv[0])
        limit = seconds(timeout, LONGEST_RUN)
        body: Dict[str, Any] = {"argv": argv, "encoding": "base64", "timeout": limit, "max_output": min(max_output, MOST_OUTPUT)}
        if env:
            body["env"] = dict(env)
        if cwd is not None:
            body["cwd"] = cwd
        if input is not None:
            body["stdin"] = base64.b64encode(input).decode()

        def parse(result: HttpResult) -> CommandResult:
            try:
                value = of_cage(result)
            except ServiceError as error:
                if error.code == "not_executed":
                    return CommandResult(127, stderr_bytes=error.message.encode() + b"\n")
                raise
            stdout, stderr = base64.b64decode(value["stdout"]), base64.b64decode(value["stderr"])
            if value["timed_out"]:
                message = "{} ran into its timeout of {} s and was killed".format(what, limit)
                raise CommandTimeoutError(message, stdout=stdout, stderr=stderr)
            return ended(value["exit"], stdout, stderr, bool(value["truncated"]))

        return HttpCall("POST", self._cage(cage, "run"), parse, json=body, timeout=limit + 60)

    # Files

    def _file(
        self,
        method: str,
        cage: str,
        route: Sequence[str],
        verb: str,
        path: str,
        parse: Callable[[HttpResult], T],
        **more: Any,
    ) -> Call[T]:
        if not path or "\0" in path:
            raise InvalidArgumentError("invalid path {!r}".format(path))

        def read(result: HttpResult) -> T:
            if not 200 <= result.status < 300:
                error = error_of(result)
                if error.code in FILE_ERRORS or error.code == "not_empty":
                    raise file_error(verb, path, error.code, error.message)
                raise error
            return parse(result)

        params = {**({} if method == "POST" else {"path": path}), **more.pop("params", {})}
        return HttpCall(method, self._cage(cage, "files", *route), read, params=params, **more)

    def file_read(self, cage: str, path: str, max_bytes: int, offset: int = 0) -> Call[bytes]:
        def parse(result: HttpResult) -> bytes:
            if len(result.body) > max_bytes:
                message = "cannot read {}: it has more than {} bytes".format(path, max_bytes)
                raise FileTooLargeError(message, path, hints=["pass a larger max_bytes"])
            return result.body

        headers = {"range": "bytes={}-".format(offset)} if offset else {}
        return self._file("GET", cage, ["content"], "read", path, parse, headers=headers, max_body=max_bytes + 1)

    def file_write(self, cage: str, path: str, content: bytes, append: bool) -> Call[None]:
        if append:
            raise UnsupportedError("cannot append to a file through the service", hints=["use commands.run with input"])
        return self._file("PUT", cage, ["content"], "write", path, lambda _: None, content=content, timeout=600)

    def file_list(self, cage: str, path: str, depth: int) -> Call[List[FileInfo]]:
        def parse(result: HttpResult) -> List[FileInfo]:
            return sorted((file_info(one) for one in document(result)["entries"]), key=lambda entry: entry.path)

        return self._file("GET", cage, [], "list", path, parse, params={"depth": depth})

    def file_info(self, cage: str, path: str) -> Call[FileInfo]:
        return self._file("GET", cage, ["entry"], "look at", path, lambda result: file_info(document(result)))

    def file_exists(self, cage: str, path: str) -> Call[bool]:
        call = self._file("GET", cage, ["entry"], "look at", path, lambda _: True)
        assert isinstance(call, HttpCall)
        inner = call.parse

        def parse(result: HttpResult) -> bool:
            try:
                return inner(result)
            except (FileNotFoundError, NotADirectoryError):
                return False

        call.parse = parse
        return call

    def file_remove(self, cage: str, path: str, recursive: bool) -> Call[None]:
        params = {"recursive": "true"} if recursive else {}
        return self._file("DELETE", cage, [], "remove", path, lambda _: None, params=params)

    def file_rename(self, cage: str, old: str, new: str) -> Call[None]:
        return self._file("POST", cage, ["move"], "rename", old, lambda _: None, json={"from": old, "to": new})

    def make_dir(self, cage: str, path: str) -> Call[None]:
        return self._file("POST", cage, ["directories"], "make directory", path, lambda _: None, json={"path": path})

    # Leases and permission requests

    def leases(self, cage: str) -> Call[List[Lease]]:
        return HttpCall("GET", self._cage(cage, "leases"), lambda result: [lease(one) for one in of_cage(result)["leases"]])

    def grant(self, cage: str, options: Mapping[str, Any], seconds: Optional[float]) -> Call[List[Lease]]:
        host = options["host"]
        others = [name for name, value in options.items() if value and name not in ("host", "reason")]
        if others or not isinstance(host, str):
            message = "cannot grant {} through the service: it grants one host at a time".format(", ".join(others) or "this")
            raise UnsupportedError(message, hints=["use `ironcage grant` on its host"])
        body: Dict[str, Any] = {"host": host, "reason": options["reason"]}
        if seconds is not None:
            body["seconds"] = int(seconds)
        return HttpCall("POST", self._cage(cage, "leases"), granted("host " + host), json=body)

    def revoke(self, cage: str, number: Optional[int]) -> Call[List[EndedLease]]:
        if number is None:
            raise UnsupportedError("cannot revoke all leases at once through the service", hints=["revoke each of leases.list()"])

        def parse(result: HttpResult) -> List[EndedLease]:
            checked(result)
            return [EndedLease(number, "revoked")]

        return HttpCall("DELETE", self._cage(cage, "leases", str(number)), parse, timeout=600)

    def requests(self, cage: str) -> Call[List[PermissionRequest]]:
        def parse(result: HttpResult) -> List[PermissionRequest]:
            found = of_cage(result)["requests"]
            return [PermissionRequest(int(one["number"]), str(one["resource"]), str(one["reason"]), one) for one in found]

        return HttpCall("GET", self._cage(cage, "requests"), parse)

    def approve(self, cage: str, number: int, seconds: Optional[float], once: bool) -> Call[List[Lease]]:
        body: Dict[str, Any] = {}
        if seconds is not None:
            body["seconds"] = int(seconds)
        if once:
            body["uses"] = 1
        path = self._cage(cage, "requests", str(number), "approve")
        return HttpCall("POST", path, granted("request {}".format(number)), json=body)

    def deny(self, cage: str, number: int, reason: str) -> Call[None]:
        path = self._cage(cage, "requests", str(number), "deny")
        return HttpCall("POST", path, lambda result: (checked(result), None)[1], json={"reason": reason})

    # Changes

    def change_diff(self, change: str, paths: Sequence[str]) -> Call[Change]:
        params = {"path": path for path in one_path(paths)}
        return HttpCall("GET", change_path(change), lambda result: changed_files(document(result)), params=params, timeout=330)

    def change_text(self, change: str, paths: Sequence[str]) -> Call[str]:
        params = {"path": path for path in one_path(paths)}
        path = change_path(change, "diff")
        return HttpCall("GET", path, lambda result: checked(result).body.decode("utf-8", "replace"), params=params, timeout=330)

    def change_apply(self, change: str, paths: Sequence[str], on_conflict: Optional[str]) -> Call[AppliedChange]:
        if on_conflict not in (None, "theirs", "ours"):
            raise InvalidArgumentError("invalid on_conflict {!r}: expected theirs or ours".format(on_conflict))
        body = {"paths": list(paths), "on_conflict": on_conflict or "keep"}

        def parse(result: HttpResult) -> AppliedChange:
            value = document(result)
            return AppliedChange(
                applied=int(value["applied"]),
                conflicts=[str(path) for path in value["conflicts"]],
                finished=bool(value["finished"]),
                summary=str(value["summary"]),
                raw=value,
            )

        return HttpCall("POST", change_path(change, "apply"), parse, json=body, timeout=330)

    def change_discard(self, change: str, paths: Sequence[str]) -> Call[None]:
        body = {"paths": list(paths)}
        return HttpCall("POST", change_path(change, "discard"), lambda result: (checked(result), None)[1], json=body, timeout=330)


def change_path(change: str, *rest: str) -> str:
    return "/v1/changes/" + "/".join(quote(part, safe="") for part in (change, *rest))


def one_path(paths: Sequence[str]) -> Sequence[str]:
    """The service shows a change whole, or one path of it."""
    if len(paths) > 1:
        raise UnsupportedError("cannot show several paths of a change through the service", hints=["name one, or none"])
    return paths


def lease(value: Mapping[str, Any]) -> Lease:
    left = value.get("milliseconds_left")
    return Lease(
        number=int(value["number"]),
        resource=str(value["resource"]),
        state=str(value["state"]),
        reason=str(value["reason"]),
        seconds_left=None if left is None else left / 1000,
        uses_left=value.get("uses_left"),
        raw=value,
    )


def granted(what: str) -> Callable[[HttpResult], List[Lease]]:
    """Reads what became of a grant or an approval."""

    def parse(result: HttpResult) -> List[Lease]:
        value = document(result)
        outcome = value["outcome"]
        if outcome in ("denied", "pending"):
            raise DeniedError("cannot grant {}: {}".format(what, value["reason"]), code=value.get("code"))
        if outcome == "unneeded" or value.get("lease") is None:
            return []
        return [Lease(int(value["lease"]), what, "open", "", None, None, value)]

    return parse


def ended(exit: Mapping[str, Any], stdout: bytes, stderr: bytes, truncated: bool) -> CommandResult:
    signal = exit.get("signal")
    code = 128 + int(signal) if signal is not None else int(exit.get("code") or 0)
    return CommandResult(code, stdout, stderr, signal=signal, truncated=truncated)


# The transport


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise NotInstalledError("a service needs httpx", hints=["pip install 'ironcage[service]'"]) from error
    return httpx


def client(backend: ServiceBackend, asynchronous: bool) -> Any:
    """An httpx client. It follows no redirects, which would carry the key elsewhere, and takes no
    proxy from the environment for a Unix socket."""
    httpx = _httpx()
    headers = {"authorization": "Bearer " + backend.key} if backend.key else {}
    url = backend.url
    options: Dict[str, Any] = {"headers": headers, "timeout": CALL_TIMEOUT, "follow_redirects": False}
    transport = httpx.AsyncHTTPTransport if asynchronous else httpx.HTTPTransport
    if url.startswith("unix:"):
        options["transport"] = transport(uds=url[len("unix:") :])
        url = "http://localhost"
    elif not url.startswith(("http://", "https://")):
        raise InvalidArgumentError("invalid address {!r} of a service: expected http://, https:// or unix:PATH".format(url))
    made = httpx.AsyncClient if asynchronous else httpx.Client
    return made(base_url=url, **options)


def _request(client: Any, call: "HttpCall[Any]") -> Any:
    return client.build_request(
        call.method, call.path, params=call.params, json=call.json, content=call.content, headers=call.headers, timeout=call.timeout
    )


def failed(backend: ServiceBackend, error: Exception) -> IroncageError:
    httpx = _httpx()
    if isinstance(error, httpx.TimeoutException):
        return CommandTimeoutError("the service {} did not answer in time".format(backend.url))
    cause = error.__cause__
    detail = cause if isinstance(cause, ssl.SSLError) else error
    return ServiceError("cannot reach the service {}: {}".format(backend.url, detail), code="unreachable")


class SyncHttp:
    def __init__(self, backend: ServiceBackend) -> None:
        self.backend = backend
        self.client = client(backend, False)

    def send(self, call: "HttpCall[Any]") -> HttpResult:
        if self.client.is_closed:  # `close` was called, and the caller asks again
            self.client = client(self.backend, False)
        try:
            response = self.client.send(_request(self.client, call), stream=True)
            try:
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece[: call.max_body - len(body)]
                    if len(body) >= call.max_body:
                        break
            finally:
                response.close()
        except _httpx().HTTPError as error:
            raise failed(self.backend, error) from error
        return HttpResult(response.status_code, dict(response.headers), bytes(body))

    def close(self) -> None:
        self.client.close()


class AsyncHttp:
    def __init__(self, backend: ServiceBackend) -> None:
        self.backend = backend
        self.client = client(backend, True)

    async def send(self, call: "HttpCall[Any]") -> HttpResult:
        if self.client.is_closed:  # `close` was called, and the caller asks again
            self.client = client(self.backend, True)
        try:
            response = await self.client.send(_request(self.client, call), stream=True)
            try:
                body = bytearray()
                async for piece in response.aiter_bytes():
                    body += piece[: call.max_body - len(body)]
                    if len(body) >= call.max_body:
                        break
            finally:
                await response.aclose()
        except _httpx().HTTPError as error:
            raise failed(self.backend, error) from error
        return HttpResult(response.status_code, dict(response.headers), bytes(body))

    async def close(self) -> None:
        await self.client.aclose()


def connect(runner: Callable[..., T], url: str, key: Optional[str]) -> Tuple[T, ServiceBackend]:
    from ._runner import AsyncRunner

    backend = ServiceBackend(url, key)
    http = AsyncHttp(backend) if runner is AsyncRunner else SyncHttp(backend)
    return runner(http=http), backend
