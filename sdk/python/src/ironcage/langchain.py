"""A deepagents backend: its files and its shell are those of a cage.

    from deepagents import create_deep_agent
    from ironcage.langchain import IroncageBackend

    with IroncageBackend.create() as backend:
        agent = create_deep_agent(model=..., backend=backend)
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, List, Optional, Sequence, Tuple, Type

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from . import errors
from .sandbox import Sandbox

#: How long a command may take, unless the caller says otherwise.
TIMEOUT = 30 * 60
#: How much of a command's output a model gets.
MAX_OUTPUT = 1024 * 1024
#: The largest file that is uploaded or downloaded.
MAX_FILE = 256 * 1024 * 1024

_CODES = {
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "is_a_directory": "is_directory",
    "not_a_directory": "invalid_path",
    "invalid_argument": "invalid_path",
}


class IroncageBackend(BaseSandbox):
    """deepagents' sandbox protocol over a cage. It needs `python3` in the cage, as deepagents does."""

    def __init__(self, sandbox: Sandbox, *, timeout: float = TIMEOUT, max_output: int = MAX_OUTPUT) -> None:
        self.sandbox = sandbox
        self._timeout = timeout
        self._max_output = max_output

    @classmethod
    def create(cls, **options: Any) -> "IroncageBackend":
        """Starts a cage for it; the options are those of `Sandbox.create`."""
        return cls(Sandbox.create(**options))

    @property
    def id(self) -> str:
        return self.sandbox.id

    def close(self) -> None:
        self.sandbox.close()

    def __enter__(self) -> "IroncageBackend":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        seconds = timeout or self._timeout
        try:
            result = self.sandbox.commands.run(
                # Both streams in the order in which they are written.
                ["/bin/sh", "-c", "exec 2>&1\n" + command], timeout=seconds, max_output=self._max_output
            )
        except errors.CommandTimeoutError as error:
            text = error.stdout.decode("utf-8", "replace")
            return ExecuteResponse(output="{}\n{}".format(text, error.message).lstrip("\n"), exit_code=124, truncated=False)
        return ExecuteResponse(output=result.stdout, exit_code=result.exit_code, truncated=result.truncated)

    def upload_files(self, files: Sequence[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> Any:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self.sandbox.files.write(path, content)
        except errors.IroncageError as error:
            return _CODES.get(error.code, error.message)
        return None

    def download_files(self, paths: Sequence[str]) -> List[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self.sandbox.files.read(path, max_bytes=MAX_FILE))
        except errors.IroncageError as error:
            code: Any = _CODES.get(error.code, error.message)
            return FileDownloadResponse(path=path, error=code)
