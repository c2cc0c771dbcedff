"""Ironcage: run AI agents, and every tool call they make, in a cage.

    from ironcage import Sandbox

    with Sandbox.create() as sandbox:
        print(sandbox.commands.run("echo hello").stdout)

`Sandbox` blocks, `AsyncSandbox` is for asyncio. Both drive the program `ironcage` on this machine.
"""

from .async_sandbox import AsyncSandbox
from .errors import (
    AuthenticationError,
    CommandError,
    CommandPermissionError,
    CommandTimeoutError,
    DeniedError,
    FileAlreadyExistsError,
    FileError,
    FileIsADirectoryError,
    FileNotADirectoryError,
    FileNotFoundInSandbox,
    FilePermissionError,
    FileTooLargeError,
    InvalidArgumentError,
    IroncageError,
    NotInstalledError,
    RateLimitError,
    SandboxNotFoundError,
    ServiceError,
    StartError,
    UnsupportedError,
    UserUnsupportedError,
)
from .models import (
    AppliedChange,
    Change,
    ChangedFile,
    CommandResult,
    EndedLease,
    FileInfo,
    Lease,
    PermissionRequest,
    SandboxInfo,
    WithheldFile,
)
from .sandbox import Process, Pty, Sandbox

__version__ = "0.2.0"

__all__ = [
    "AppliedChange",
    "AsyncSandbox",
    "AuthenticationError",
    "Change",
    "ChangedFile",
    "CommandError",
    "CommandPermissionError",
    "CommandResult",
    "CommandTimeoutError",
    "DeniedError",
    "EndedLease",
    "FileAlreadyExistsError",
    "FileError",
    "FileInfo",
    "FileIsADirectoryError",
    "FileNotADirectoryError",
    "FileNotFoundInSandbox",
    "FilePermissionError",
    "FileTooLargeError",
    "InvalidArgumentError",
    "IroncageError",
    "Lease",
    "NotInstalledError",
    "PermissionRequest",
    "Process",
    "Pty",
    "RateLimitError",
    "Sandbox",
    "SandboxInfo",
    "SandboxNotFoundError",
    "ServiceError",
    "StartError",
    "UnsupportedError",
    "UserUnsupportedError",
    "WithheldFile",
]
