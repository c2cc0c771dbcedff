"""What can go wrong. Every error names its object; `code` is for programs, `hint` for people."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Type


class IroncageError(Exception):
    """Base class of everything that this package raises."""

    #: A stable code, for example `not_found`; programs branch on it.
    code: str = "error"

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        hints: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hints: List[str] = list(hints)
        if code is not None:
            self.code = code

    @property
    def hint(self) -> Optional[str]:
        """What to do about it, if Ironcage knows."""
        return self.hints[0] if self.hints else None

    def __str__(self) -> str:
        return "\n".join([self.message] + ["  hint: " + hint for hint in self.hints])


class NotInstalledError(IroncageError):
    """The program `ironcage`, or a Python package that a feature needs, is missing."""

    code = "not_installed"


class SandboxNotFoundError(IroncageError):
    """The cage does not exist, or has ended."""

    code = "sandbox_not_found"


class StartError(IroncageError):
    """The cage did not start. `code` is one of docs/reference/reasons.md, if there is one."""

    code = "start_failed"


class InvalidArgumentError(IroncageError, ValueError):
    """An argument that no cage can carry out."""

    code = "invalid_argument"


class UserUnsupportedError(IroncageError):
    """A cage has one user; commands cannot run as another."""

    code = "user_unsupported"


class DeniedError(IroncageError):
    """The policy or its ceiling denied the request."""

    code = "denied"


class UnsupportedError(IroncageError):
    """What this transport does not offer."""

    code = "unsupported"


class CommandError(IroncageError):
    """A command ended with a status other than 0, and `check=True` was set."""

    code = "command_failed"

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class CommandTimeoutError(IroncageError, TimeoutError):
    """A command ran into its timeout, and was killed with its process group.

    `stdout` and `stderr` hold what it had written.
    """

    code = "timeout"

    def __init__(self, message: str, *, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr


class CommandPermissionError(IroncageError, PermissionError):
    """The cage may not execute the program: it is not executable, or the policy forbids it."""

    code = "permission_denied"


class FileError(IroncageError, OSError):
    """A file operation in a cage failed."""

    code = "file_error"

    def __init__(self, message: str, path: str = "", **more: Any) -> None:
        IroncageError.__init__(self, message, **more)
        self.path = path


class FileNotFoundInSandbox(FileError, FileNotFoundError):
    code = "not_found"


class FilePermissionError(FileError, PermissionError):
    code = "permission_denied"


class FileIsADirectoryError(FileError, IsADirectoryError):
    code = "is_a_directory"


class FileNotADirectoryError(FileError, NotADirectoryError):
    code = "not_a_directory"


class FileAlreadyExistsError(FileError, FileExistsError):
    code = "already_exists"


class FileTooLargeError(FileError):
    code = "too_large"


class ServiceError(IroncageError):
    """The service answered with an error that has no class of its own."""

    code = "service_error"

    def __init__(self, message: str, *, status: Optional[int] = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.status = status


class AuthenticationError(ServiceError):
    """The API key is missing, wrong, or lacks the scope."""

    code = "unauthorized"


class RateLimitError(ServiceError):
    """Too many requests; `retry_after` has the seconds to wait, if the service named them."""

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after: Optional[float] = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.retry_after = retry_after


FILE_ERRORS: Dict[str, Type[FileError]] = {
    kind.code: kind
    for kind in (
        FileNotFoundInSandbox,
        FilePermissionError,
        FileIsADirectoryError,
        FileNotADirectoryError,
        FileAlreadyExistsError,
        FileTooLargeError,
    )
}

FILE_ERROR_TEXTS = {
    "not_found": "no such file or directory",
    "permission_denied": "permission denied",
    "is_a_directory": "is a directory",
    "not_a_directory": "not a directory",
    "already_exists": "already exists",
    "too_large": "too large",
}


def file_error(verb: str, path: str, code: str, detail: Optional[str] = None) -> FileError:
    """The error of a file operation, with the class that its code has."""
    kind = FILE_ERRORS.get(code, FileError)
    cause = detail or FILE_ERROR_TEXTS.get(code, code)
    return kind("cannot {} {}: {}".format(verb, path, cause), path, code=code)
