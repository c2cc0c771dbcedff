"""Cages of this machine, by the program `ironcage`."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from . import _scripts as scripts
from ._calls import CALL_TIMEOUT, MAX_OUTPUT, Call, CliCall, CliResult, OutputCallback
from .errors import (
    CommandPermissionError,
    CommandTimeoutError,
    DeniedError,
    FileTooLargeError,
    InvalidArgumentError,
    IroncageError,
    NotInstalledError,
    SandboxNotFoundError,
    StartError,
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
    sandbox_info,
)

T = TypeVar("T")
Command = Union[str, Sequence[str]]

#: Exit status of Ironcage's own errors.
EXIT_OURS = 125
#: Exit status after `exec --time`.
EXIT_TIMEOUT = 124
EACCES = 13
EPERM = 1


def find_program() -> str:
    """The program `ironcage`: IRONCAGE_BINARY, or what PATH has."""
    named = os.environ.get("IRONCAGE_BINARY") or shutil.which("ironcage")
    if not named:
        raise NotInstalledError(
            "cannot find the program `ironcage` in PATH",
            hints=[
                "install it (docs/guides/install.md) or set IRONCAGE_BINARY",
                "or set IRONCAGE_API_URL and IRONCAGE_API_KEY to use a service",
            ],
        )
    return named


def argv_of(command: Command) -> List[str]:
    """A string is a line for the shell of the cage; a list is executed as it is."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    if not argv:
        raise InvalidArgumentError("cannot run an empty command")
    if any("\0" in word for word in argv):
        raise InvalidArgumentError("cannot run a command that contains a NUL byte")
    return argv


def error_of(result: CliResult) -> IroncageError:
    """The error that `ironcage` reported, as JSON where it could."""
    document: Mapping[str, Any] = {}
    if result.status and "error" in result.status:
        document = result.status["error"]
    else:
        for line in result.stderr.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and isinstance(found.get("error"), dict):
                document = found["error"]
    text = result.stderr.decode("utf-8", "replace").strip()
    message = str(document.get("message") or text or "ironcage failed with status {}".format(result.exit_code))
    code = document.get("code")
    hints = [str(hint) for hint in document.get("hints", [])]
    if code in ("no-such-cage", "cage-not-running"):
        return SandboxNotFoundError(message, hints=hints)
    if document.get("denied"):
        return DeniedError(message, code=code, hints=hints)
    return IroncageError(message, code=code, hints=hints)


def checked(result: CliResult) -> CliResult:
    if result.exit_code != 0:
        raise error_of(result)
    return result


def document(result: CliResult) -> Any:
    """The JSON that a command printed."""
    checked(result)
    try:
        return json.loads(result.stdout)
    except ValueError as error:
        raise IroncageError("cannot read the answer of ironcage: {}".format(error)) from error


def command_ended(what: str, timeout: Optional[float]) -> Callable[[CliResult], CommandResult]:
    """Reads how a command of `exec` ended. Its status file says who failed: the command or we."""

    def parse(result: CliResult) -> CommandResult:
        status = result.status
        if status is None:
            # A status file is missing only if the client was killed.
            raise IroncageError(
                "cannot tell how {} ended: `ironcage exec` died with status {}".format(what, result.exit_code)
            )
        if "error" in status:
            raise error_of(result)
        if status.get("timed_out"):
            raise CommandTimeoutError(
                "{} ran into its timeout of {:g} s and was killed".format(what, timeout or 0),
                stdout=result.stdout,
                stderr=result.stderr,
            )
        if status.get("errno") in (EACCES, EPERM):
            raise CommandPermissionError("cannot execute {} in the cage: permission denied".format(what))
        signal = status.get("signal")
        return CommandResult(
            exit_code=int(status["exit_code"]),
            stdout_bytes=result.stdout,
            stderr_bytes=result.stderr,
            signal=signal if isinstance(signal, int) else None,
            truncated=result.truncated,
        )

    return parse


def milliseconds(seconds: float) -> str:
    """A duration as the command line reads it."""
    if not seconds > 0 or math.isinf(seconds):
        raise InvalidArgumentError("invalid timeout {!r}: expected a positive number of seconds".format(seconds))
    return "{}ms".format(max(1, math.ceil(seconds * 1000)))


def whole_seconds(seconds: float) -> str:
    """A time of a lease; never longer than what was asked for."""
    if seconds < 1 or math.isinf(seconds):
        raise InvalidArgumentError("invalid time {!r}: expected at least 1 second".format(seconds))
    return "{}s".format(int(seconds))


def entries(listing: bytes, root: str) -> List[FileInfo]:
    """What the listing scripts print."""
    fields = listing.split(b"\0")
    found = []
    for i in range(0, len(fields) - 3, 4):
        try:
            raw, size, modified = int(fields[i], 16), int(fields[i + 1]), int(fields[i + 2])
        except ValueError:
            raise IroncageError("cannot read the listing of {}".format(root)) from None
        path = os.fsdecode(fields[i + 3]).replace("//", "/")
        kind = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
        found.append(
            FileInfo(
                name=path.rstrip("/").rsplit("/", 1)[-1],
                path=path,
                kind=kind.get(stat.S_IFMT(raw), "other"),
                size=size,
                mode=stat.S_IMODE(raw),
                modified=float(modified),
            )
        )
    return sorted(found, key=lambda entry: entry.path)


class LocalBackend:
    """Makes the calls for cages of this machine."""

    name = "local"

    def __init__(self, program: Optional[str] = None) -> None:
        self.program = program or find_program()

    def create(self, args: Sequence[str], directory: str) -> Call[Tuple[str, str]]:
        """Starts a cage that waits for commands; the answer is its ID, and where they start."""

        def parse(result: CliResult) -> Tuple[str, str]:
            if result.exit_code != 0:
                error = error_of(result)
                raise StartError(error.message, code=error.code, hints=error.hints)
            return result.stdout.decode("ascii", "replace").strip(), directory

        return CliCall(["run", "-d", "-q", "--rm", *args], parse, timeout=600, what="start a cage")

    def describe(self, cage: str) -> Call[SandboxInfo]:
        return CliCall(["inspect", cage], lambda result: sandbox_info(document(result)))

    def list(self) -> Call[List[SandboxInfo]]:
        return CliCall(["ps", "--json"], lambda result: [sandbox_info(one) for one in document(result)])

    def stop(self, cage: str, grace: float) -> Call[bool]:
        """True if it ran. A cage that is over already is fine."""

        def parse(result: CliResult) -> bool:
            try:
                checked(result)
            except SandboxNotFoundError:
                return False
            return True

        seconds = "{}".format(max(0, math.ceil(grace)))
        return CliCall(["stop", "-q", "--time", seconds, cage], parse, timeout=grace + CALL_TIMEOUT)

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
        argv = argv_of(command)
        what = "`{}`".format(command if isinstance(command, str) else argv[0])
        args = self.exec_args(cage, argv, env=env, cwd=cwd, timeout=timeout, leases=leases, reason=reason, input=input is not None)
        return CliCall(
            args,
            command_ended(what, timeout),
            input=input,
            status=True,
            # The client ends the command; we end the client only if it does not.
            timeout=None if timeout is None else timeout + 30,
            max_output=max_output,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            what=what,
        )

    def exec_args(
        self,
        cage: str,
        argv: Sequence[str],
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[float] = None,
        leases: Sequence[str] = (),
        reason: str = "",
        input: bool = False,
        tty: bool = False,
    ) -> List[str]:
        args = ["exec", "-t" if tty else "-T"]
        if input and not tty:
            args.append("-i")
        for name, value in (env or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise InvalidArgumentError("invalid environment variable {!r}".format(name))
            args.append("--env={}={}".format(name, value))
        if cwd is not None:
            args.append("--cwd=" + cwd)
        if timeout is not None:
            args.append("--time=" + milliseconds(timeout))
        for lease in leases:
            args.append("--lease=" + lease)
        if leases and reason:
            args.append("--reason=" + reason)
        return [*args, cage, "--", *argv]

    # Files

    def _script(
        self,
        cage: str,
        verb: str,
        script: str,
        path: str,
        parse: Callable[[CommandResult], T],
        *more: str,
        input: Optional[bytes] = None,
        max_output: int = MAX_OUTPUT,
        timeout: float = CALL_TIMEOUT,
    ) -> Call[T]:
        if not path or "\0" in path:
            raise InvalidArgumentError("invalid path {!r}".format(path))
        # A name that begins with `-` would be an option of the programs.
        safe = [("./" + word) if word.startswith("-") else word for word in (path, *more)]

        def read(result: CliResult) -> T:
            ended = command_ended(verb, timeout)(result)
            if ended.exit_code in scripts.CODES:
                code = scripts.CODES[ended.exit_code]
                texts = {"not_a_file": "not a regular file", "not_empty": "directory not empty"}
                raise file_error(verb, path, code, texts.get(code))
            if ended.exit_code != 0:
                raise file_error(verb, path, "file_error", ended.stderr.strip() or "status {}".format(ended.exit_code))
            return parse(ended)

        argv = ["/bin/sh", "-c", script, "sh", *safe]
        args = self.exec_args(cage, argv, timeout=timeout, input=input is not None)
        return CliCall(args, read, input=input, status=True, timeout=timeout + 30, max_output=max_output, what="{} {}".format(verb, path))

    def file_read(self, cage: str, path: str, max_bytes: int, offset: int = 0) -> Call[bytes]:
        def parse(result: CommandResult) -> bytes:
            if len(result.stdout_bytes) > max_bytes:
                raise FileTooLargeError(
                    "cannot read {}: it has more than {} bytes".format(path, max_bytes), path, hints=["pass a larger max_bytes"]
                )
            return result.stdout_bytes

        # One byte more than allowed tells a file that is too large.
        return self._script(cage, "read", scripts.READ, path, parse, str(max_bytes + 1), str(offset), max_output=max_bytes + 1)

    def file_write(self, cage: str, path: str, content: bytes, append: bool) -> Call[None]:
        mode = "append" if append else "replace"
        return self._script(cage, "write", scripts.WRITE, path, lambda _: None, mode, input=content)

    def file_list(self, cage: str, path: str, depth: int) -> Call[List[FileInfo]]:
        root = path.rstrip("/") or "/"
        return self._script(cage, "list", scripts.LIST, root, lambda result: entries(result.stdout_bytes, path), str(depth))

    def file_info(self, cage: str, path: str) -> Call[FileInfo]:
        def parse(result: CommandResult) -> FileInfo:
            found = entries(result.stdout_bytes, path)
            if len(found) != 1:
                raise file_error("look at", path, "not_found")
            return found[0]

        return self._script(cage, "look at", scripts.STAT, path, parse)

    def file_exists(self, cage: str, path: str) -> Call[bool]:
        call = self._script(cage, "look at", scripts.EXISTS, path, lambda _: True)
        assert isinstance(call, CliCall)
        inner = call.parse

        def parse(result: CliResult) -> bool:
            try:
                return inner(result)
            except FileNotFoundError:
                return False

        call.parse = parse
        return call

    def file_remove(self, cage: str, path: str, recursive: bool) -> Call[None]:
        return self._script(cage, "remove", scripts.REMOVE, path, lambda _: None, "recursive" if recursive else "one")

    def file_rename(self, cage: str, old: str, new: str) -> Call[None]:
        if not new or "\0" in new:
            raise InvalidArgumentError("invalid path {!r}".format(new))
        return self._script(cage, "rename", scripts.RENAME, old, lambda _: None, new)

    def make_dir(self, cage: str, path: str) -> Call[None]:
        return self._script(cage, "make directory", scripts.MAKE_DIR, path, lambda _: None)

    # Leases

    def leases(self, cage: str) -> Call[List[Lease]]:
        return CliCall(["lease", "list", "--json", cage], lambda result: [lease(one) for one in document(result)])

    def grant(self, cage: str, options: Mapping[str, Any], seconds: Optional[float]) -> Call[List[Lease]]:
        args = ["lease", "grant", "--json"]
        if seconds is not None:
            args.append("--for=" + whole_seconds(seconds))
        for name, value in options.items():
            if value is None:
                continue
            for one in value if isinstance(value, (list, tuple)) else [value]:
                args.append("--{}={}".format(name, one))
        return CliCall([*args, cage], lambda result: [lease(one) for one in document(result)], what="grant a lease")

    def revoke(self, cage: str, number: Optional[int]) -> Call[List[EndedLease]]:
        def parse(result: CliResult) -> List[EndedLease]:
            return [EndedLease(int(one["number"]), str(one["end"]), one) for one in document(result)]

        which = "--all" if number is None else str(number)
        return CliCall(["lease", "revoke", "--json", cage, which], parse, timeout=600, what="revoke a lease")

    # Permission requests

    def requests(self, cage: str) -> Call[List[PermissionRequest]]:
        def parse(result: CliResult) -> List[PermissionRequest]:
            lines = checked(result).stdout.splitlines()
            return [request(json.loads(line)) for line in lines if line.strip()]

        return CliCall(["request", "list", "--json", cage], parse)

    def approve(self, cage: str, number: int, seconds: Optional[float], once: bool) -> Call[List[Lease]]:
        args = ["request", "approve", "--json"]
        if seconds is not None:
            args.append("--for=" + whole_seconds(seconds))
        if once:
            args.append("--once")
        name = "{}/{}".format(cage, number)
        return CliCall([*args, name], lambda result: [lease(one) for one in document(result)], what="approve " + name)

    def deny(self, cage: str, number: int, reason: str) -> Call[None]:
        args = ["request", "deny", "--reason=" + reason, "{}/{}".format(cage, number)]
        return CliCall(args, lambda result: (checked(result), None)[1])

    # Changes

    def change_diff(self, change: str, paths: Sequence[str]) -> Call[Change]:
        return CliCall(["change", "diff", "--json", change, *paths], lambda result: changed_files(document(result)), max_output=1 << 28)

    def change_text(self, change: str, paths: Sequence[str]) -> Call[str]:
        return CliCall(["change", "diff", change, *paths], lambda result: checked(result).stdout.decode("utf-8", "replace"), max_output=1 << 28)

    def change_apply(self, change: str, paths: Sequence[str], on_conflict: Optional[str]) -> Call[AppliedChange]:
        def parse(result: CliResult) -> AppliedChange:
            # 1 is for conflicts, which the answer names.
            if result.exit_code not in (0, 1) or not result.stdout.strip():
                raise error_of(result)
            value = json.loads(result.stdout)
            return AppliedChange(
                applied=int(value["applied"]),
                conflicts=[str(path) for path in value["conflicts"]],
                finished=bool(value["finished"]),
                summary=str(value["summary"]),
                raw=value,
            )

        args = ["change", "apply", "--json"]
        if on_conflict is not None:
            if on_conflict not in ("theirs", "ours"):
                raise InvalidArgumentError("invalid on_conflict {!r}: expected theirs or ours".format(on_conflict))
            args.append("--" + on_conflict)
        return CliCall([*args, change, *paths], parse, timeout=600, what="apply the change")

    def change_discard(self, change: str, paths: Sequence[str]) -> Call[None]:
        return CliCall(["change", "discard", "--yes", change, *paths], lambda result: (checked(result), None)[1])


def lease(value: Mapping[str, Any]) -> Lease:
    """From `lease list --json`, and what `lease grant --json` prints."""
    inner: Dict[str, Any] = value.get("lease", value)
    left = value.get("milliseconds_left")
    return Lease(
        number=int(inner["number"]),
        resource=resource(inner.get("resource")),
        state=str(value.get("state", "open")),
        reason=str(inner.get("reason", "")),
        seconds_left=None if left is None else left / 1000,
        uses_left=value.get("uses_left"),
        raw=value,
    )


def request(value: Mapping[str, Any]) -> PermissionRequest:
    """From `request list --json`."""
    inner: Dict[str, Any] = value.get("question", value)
    return PermissionRequest(
        number=int(inner["number"]),
        resource=resource(inner.get("resource")),
        reason=str(inner.get("reason", "")),
        raw=value,
    )


def resource(value: Any) -> str:
    """A resource as one line: `read /srv/data`, `host example.com`."""
    if not isinstance(value, dict):
        return str(value)
    if value.get("kind") == "path":
        return "{} {}".format(value.get("right"), value.get("path"))
    rest = [str(one) for name, one in value.items() if name != "kind" and not isinstance(one, (dict, list))]
    if not rest:
        rest = [json.dumps({name: one for name, one in value.items() if name != "kind"}, sort_keys=True)]
    return " ".join([str(value.get("kind")), *rest])
