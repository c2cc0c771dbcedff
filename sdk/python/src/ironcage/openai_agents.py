"""The OpenAI Agents SDK in a cage: a sandbox client, and an executor for its `ShellTool`.

    from agents.run_config import RunConfig, SandboxRunConfig
    from ironcage.openai_agents import IroncageSandboxClient

    RunConfig(sandbox=SandboxRunConfig(client=IroncageSandboxClient()))
"""

from __future__ import annotations

import io
import shlex
import uuid
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Tuple, Union

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
from agents.sandbox.workspace_paths import coerce_posix_path, posix_path_as_path, sandbox_path_str
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult

from . import errors
from .async_sandbox import AsyncSandbox

#: The manifest's own default, which a cage cannot have: its root directory is read-only. The
#: workspace of the cage takes its place.
_DEFAULT_ROOT = Manifest.model_fields["root"].default
#: A cage ends by itself after a day, should its client be killed.
LIFETIME = 24 * 3600.0


class IroncageSandboxClientOptions(BaseSandboxClientOptions):
    """Options of a session. `create` are those of `AsyncSandbox.create`, as JSON has them."""

    type: Literal["ironcage"] = "ironcage"
    create: Dict[str, Any] = {}


class IroncageSandboxSessionState(SandboxSessionState):
    """What finds the cage again after a restart of the client."""

    type: Literal["ironcage"] = "ironcage"
    sandbox_id: str
    create: Dict[str, Any] = {}


class IroncageSandboxSession(BaseSandboxSession):
    """A session in one cage."""

    state: IroncageSandboxSessionState

    def __init__(self, *, state: IroncageSandboxSessionState, sandbox: AsyncSandbox) -> None:
        self.state = state
        self.sandbox = sandbox

    async def _shutdown_backend(self) -> None:
        await self.sandbox.close()

    async def _validate_path_access(self, path: Union[Path, str], *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> Tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _prepare_backend_workspace(self) -> None:
        root = sandbox_path_str(self.state.manifest.root)
        try:
            await self.sandbox.files.make_dir(root)
        except errors.IroncageError as error:
            raise WorkspaceStartError(
                path=Path(root),
                context={"backend": "ironcage"},
                cause=error,
                message="cannot make the workspace {}: {}; leave Manifest.root at its default, or name a directory that the cage may write".format(
                    root, error.message
                ),
            ) from error

    async def _exec_internal(self, *command: Union[str, Path], timeout: Optional[float] = None) -> ExecResult:
        env = await self.state.manifest.environment.resolve()
        try:
            result = await self.sandbox.commands.run(
                [str(word) for word in command], env=env, cwd=sandbox_path_str(self.state.manifest.root), timeout=timeout
            )
        except errors.CommandTimeoutError as error:
            raise ExecTimeoutError(command=command, timeout_s=timeout, cause=error) from error
        except errors.CommandPermissionError as error:
            # What a shell answers.
            return ExecResult(stdout=b"", stderr=error.message.encode(), exit_code=126)
        except errors.IroncageError as error:
            raise ExecTransportError(command=command, cause=error) from error
        return ExecResult(stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=result.exit_code)

    async def read(self, path: Union[Path, str], *, user: Union[str, User, None] = None) -> io.IOBase:
        if user is not None:
            place = await self._check_read_with_exec(path, user=user)
        else:
            place = await self._validate_path_access(path)
        shown = posix_path_as_path(coerce_posix_path(path))
        try:
            return io.BytesIO(await self.sandbox.files.read(sandbox_path_str(place)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=shown, cause=error) from error
        except errors.IroncageError as error:
            raise WorkspaceArchiveReadError(path=shown, cause=error) from error

    async def write(self, path: Union[Path, str], data: io.IOBase, *, user: Union[str, User, None] = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        content = data.read()
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, (bytes, bytearray)):
            raise WorkspaceWriteTypeError(path=Path(path), actual_type=type(content).__name__)
        place = await self._validate_path_access(path, for_write=True)
        try:
            await self.sandbox.files.write(sandbox_path_str(place), bytes(content))
        except errors.IroncageError as error:
            raise WorkspaceArchiveWriteError(path=place, cause=error) from error

    async def running(self) -> bool:
        return await self.sandbox.is_running()

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        excludes = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        line = "tar {} -C {} -cf - .".format(excludes, shlex.quote(root.as_posix()))
        try:
            result = await self.sandbox.commands.run(line, max_output=1 << 30)
        except errors.IroncageError as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        if not result.ok or result.truncated:
            reason = "too_large" if result.truncated else "tar_failed"
            raise WorkspaceArchiveReadError(path=root, context={"reason": reason, "output": result.stderr}, retryable=False)
        return io.BytesIO(result.stdout_bytes)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        content = data.read()
        if not isinstance(content, (bytes, bytearray)):
            raise WorkspaceWriteTypeError(path=root, actual_type=type(content).__name__)
        try:
            validate_tar_bytes(bytes(content), allow_external_symlink_targets=False)
            await self.sandbox.files.make_dir(root.as_posix())
            line = "tar -C {} -xf -".format(shlex.quote(root.as_posix()))
            result = await self.sandbox.commands.run(line, input=bytes(content))
        except UnsafeTarMemberError as error:
            context = {"reason": "unsafe_or_invalid_tar", "member": error.member, "detail": str(error)}
            raise WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
        except errors.IroncageError as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        if not result.ok:
            raise WorkspaceArchiveWriteError(path=root, context={"reason": "tar_extract_failed", "output": result.stderr})


class IroncageSandboxClient(BaseSandboxClient[IroncageSandboxClientOptions]):
    """Makes a cage for each session. The keyword arguments are those of `AsyncSandbox.create`."""

    backend_id = "ironcage"
    supports_default_options = True

    def __init__(self, *, instrumentation: Optional[Instrumentation] = None, **create: Any) -> None:
        self._instrumentation = instrumentation if instrumentation is not None else Instrumentation()
        self._create = create

    async def create(
        self,
        *,
        snapshot: Union[SnapshotSpec, SnapshotBase, None] = None,
        manifest: Optional[Manifest] = None,
        options: Optional[IroncageSandboxClientOptions] = None,
    ) -> SandboxSession:
        manifest = manifest if manifest is not None else Manifest()
        self._validate_manifest_for_create(manifest)
        create = {"timeout": LIFETIME, **self._create, **(options.create if options is not None else {})}
        sandbox = await AsyncSandbox.create(**create)
        if manifest.root == _DEFAULT_ROOT:
            manifest = manifest.model_copy(update={"root": sandbox.directory}, deep=True)
        session_id = uuid.uuid4()
        state = IroncageSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            sandbox_id=sandbox.id,
            # What the client itself was given stays with it: it may name secrets.
            create=dict(options.create) if options is not None else {},
        )
        return self._wrap_session(IroncageSandboxSession(state=state, sandbox=sandbox), instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        inner = session._inner
        if not isinstance(inner, IroncageSandboxSession):
            raise TypeError("IroncageSandboxClient.delete expects a session of its own")
        await inner.sandbox.close()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, IroncageSandboxSessionState):
            raise TypeError("IroncageSandboxClient.resume expects a state of its own")
        state.assert_path_grants_rebound()
        connection = {name: self._create[name] for name in ("program", "api_url", "api_key") if name in self._create}
        try:
            sandbox = await AsyncSandbox.connect(state.sandbox_id, **connection)
            found = True
        except errors.SandboxNotFoundError:
            sandbox = await AsyncSandbox.create(**{"timeout": LIFETIME, **self._create, **state.create})
            found = False
            state.sandbox_id = sandbox.id
            state.manifest = state.manifest.model_copy(update={"root": sandbox.directory}, deep=True)
            state.workspace_root_ready = False
        inner = IroncageSandboxSession(state=state, sandbox=sandbox)
        inner._set_start_state_preserved(found, system=found)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: Dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, IroncageSandboxSessionState)


class IroncageShellExecutor:
    """`ShellTool(executor=IroncageShellExecutor(sandbox))`: the model's shell calls in a cage."""

    def __init__(self, sandbox: AsyncSandbox, *, timeout: float = 600, max_output: int = 1024 * 1024) -> None:
        self.sandbox = sandbox
        self._timeout = timeout
        self._max_output = max_output

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        seconds = action.timeout_ms / 1000 if action.timeout_ms else self._timeout
        outputs: List[ShellCommandOutput] = []
        for command in action.commands:
            try:
                result = await self.sandbox.commands.run(command, timeout=seconds, max_output=self._max_output)
            except errors.CommandTimeoutError as error:
                outputs.append(
                    ShellCommandOutput(
                        command=command,
                        stdout=error.stdout.decode("utf-8", "replace"),
                        stderr=error.stderr.decode("utf-8", "replace"),
                        outcome=ShellCallOutcome(type="timeout"),
                    )
                )
                break
            outputs.append(
                ShellCommandOutput(
                    command=command,
                    stdout=result.stdout,
                    stderr=result.stderr,
                    outcome=ShellCallOutcome(type="exit", exit_code=result.exit_code),
                )
            )
        return ShellResult(output=outputs, max_output_length=action.max_output_length)
