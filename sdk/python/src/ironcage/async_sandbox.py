"""Cages from Python, for asyncio. Written by tools/make_async.py from sandbox.py: edit that."""

from __future__ import annotations

import shutil
import tempfile
from types import TracebackType
from typing import List, Mapping, Optional, Sequence, Type, Union

from ._calls import MAX_OUTPUT, OutputCallback
from ._connect import WHO, Backend, change_of, check_user, connect, create_call, resolve
from ._local import Command
from ._options import PathLike
from ._async_process import AsyncProcess, AsyncPty, start_process_async, start_pty_async
from ._runner import AsyncRunner
from .errors import CommandError, SandboxNotFoundError
from .models import AppliedChange, Change, CommandResult, EndedLease, FileInfo, Lease, PermissionRequest, SandboxInfo

#: A file that `read` returns may have this many bytes, unless the caller says otherwise.
MAX_READ = 256 * 1024 * 1024
#: A cage that nobody closes ends after this many seconds, unless the caller says otherwise.
LIFETIME = 3600.0


class AsyncSandbox:
    """A running cage.

    ``async with await AsyncSandbox.create() as sandbox:`` starts one and stops it at the end. Without a service
    (`api_url`, or IRONCAGE_API_URL), it is a cage of this machine, by the program `ironcage`.
    """

    def __init__(self, id: str, runner: AsyncRunner, backend: Backend, directory: str, scratch: Optional[str] = None) -> None:
        self.id = id
        #: Where commands start, and what relative paths are relative to.
        self.directory = directory
        self._runner = runner
        self._backend = backend
        self._scratch = scratch
        self._closed = False
        self._change: Optional[str] = None
        self.commands = AsyncCommands(self)
        self.files = AsyncFiles(self)
        self.leases = AsyncLeases(self)
        self.requests = AsyncRequests(self)
        self.changes = AsyncChanges(self)
        self.pty = AsyncPtys(self)

    @classmethod
    async def create(
        cls,
        *,
        workspace: Optional[PathLike] = None,
        workspace_mode: Optional[str] = None,
        name: Optional[str] = None,
        profile: Optional[str] = None,
        policy: Optional[PathLike] = None,
        image: Optional[str] = None,
        template: Optional[str] = None,
        root: Optional[PathLike] = None,
        env: Optional[Mapping[str, str]] = None,
        read: Sequence[PathLike] = (),
        write: Sequence[PathLike] = (),
        hide: Sequence[str] = (),
        network: Optional[str] = None,
        allow_hosts: Sequence[str] = (),
        secrets: Sequence[str] = (),
        publish: Sequence[str] = (),
        memory: Optional[str] = None,
        cpus: Optional[Union[str, float]] = None,
        pids: Optional[int] = None,
        disk: Optional[str] = None,
        timeout: Optional[float] = LIFETIME,
        idle: Optional[float] = None,
        cwd: Optional[PathLike] = None,
        metadata: Optional[Mapping[str, str]] = None,
        cli_args: Sequence[str] = (),
        program: Optional[str] = None,
        api_url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> "AsyncSandbox":
        """Starts a cage that runs until it is closed, or `timeout` seconds at most.

        Without `workspace` it works in an empty directory that is removed with it. With one, what
        it changes there is kept aside as a pending change (`changes`), unless `workspace_mode`
        says otherwise. `cli_args` are further flags of `ironcage run`, for a local cage.
        """
        options = dict(locals())
        del options["cls"], options["program"], options["api_url"], options["api_key"]
        runner, backend = connect(AsyncRunner, program, api_url, api_key)
        scratch = None
        if workspace is None and backend.name == "local":
            scratch = tempfile.mkdtemp(prefix="ironcage-sandbox.")
        try:
            id, directory = await runner.run(create_call(backend, options, scratch))
        except BaseException:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            await runner.close()
            raise
        return cls(id, runner, backend, directory, scratch)

    @classmethod
    async def connect(
        cls,
        id: str,
        *,
        program: Optional[str] = None,
        api_url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> "AsyncSandbox":
        """A cage that runs already, by its ID or name. Raises SandboxNotFoundError otherwise."""
        runner, backend = connect(AsyncRunner, program, api_url, api_key)
        try:
            info = await runner.run(backend.describe(id))
        except BaseException:
            await runner.close()
            raise
        return cls(info.id, runner, backend, info.workspace or "/")

    @classmethod
    async def list(
        cls,
        *,
        program: Optional[str] = None,
        api_url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> List[SandboxInfo]:
        """The running cages."""
        runner, backend = connect(AsyncRunner, program, api_url, api_key)
        try:
            return await runner.run(backend.list())
        finally:
            await runner.close()

    async def info(self) -> SandboxInfo:
        """The cage as it is now."""
        return await self._runner.run(self._backend.describe(self.id))

    async def is_running(self) -> bool:
        try:
            await self.info()
        except SandboxNotFoundError:
            return False
        return True

    async def stop(self, grace: float = 0) -> bool:
        """Stops the cage: SIGTERM, and everything is killed after `grace` seconds. False if it had
        ended before."""
        return await self._runner.run(self._backend.stop(self.id, grace))

    async def close(self) -> None:
        """Stops the cage, and removes the directory that `create` made. Can be repeated."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.stop()
        finally:
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
            await self._runner.close()

    def detach(self) -> None:
        """Leaves the cage running: `close`, and the end of a `with` block, do nothing any more."""
        self._closed = True

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self.close()

    def __repr__(self) -> str:
        return "AsyncSandbox({!r})".format(self.id)


class AsyncCommands:
    """AsyncCommands in a cage."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def run(
        self,
        command: Command,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        input: Union[str, bytes, None] = None,
        check: bool = False,
        max_output: int = MAX_OUTPUT,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        leases: Sequence[str] = (),
        reason: str = "",
    ) -> CommandResult:
        """Runs a command to its end. A string is a shell line, a list is executed as it is.

        After `timeout` seconds the command and its process group are killed, and
        CommandTimeoutError is raised. Of each stream, `max_output` bytes are kept. `leases` (such
        as `read=/srv/data`) run it in a scope of its own that holds them, within the ceiling.
        """
        sandbox = self._sandbox
        if user is not None:
            check_user(user, await sandbox._runner.run(sandbox._backend.command(sandbox.id, WHO)))
        call = sandbox._backend.command(
            sandbox.id,
            command,
            env=env,
            cwd=resolve(cwd, sandbox.directory),
            timeout=timeout,
            input=input.encode() if isinstance(input, str) else input,
            max_output=max_output,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            leases=leases,
            reason=reason,
        )
        result = await sandbox._runner.run(call)
        if check and not result.ok:
            raise CommandError("the command failed with status {}".format(result.exit_code), result)
        return result

    async def start(
        self,
        command: Command,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[float] = None,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        max_output: int = MAX_OUTPUT,
    ) -> AsyncProcess:
        """Starts a command and returns at once; the handle has its input, output and end."""
        sandbox = self._sandbox
        return await start_process_async(
            sandbox._backend, sandbox.id, command, env=env, cwd=resolve(cwd, sandbox.directory), timeout=timeout,
            on_stdout=on_stdout, on_stderr=on_stderr, max_output=max_output,
        )  # fmt: skip


class AsyncFiles:
    """AsyncFiles in a cage. Relative paths are relative to the workspace."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def read(self, path: str, *, max_bytes: int = MAX_READ, offset: int = 0) -> bytes:
        """The content from `offset` on; FileTooLargeError if that is more than `max_bytes`."""
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.file_read(sandbox.id, resolve(path, sandbox.directory), max_bytes, offset))

    async def read_text(self, path: str, *, max_bytes: int = MAX_READ) -> str:
        """The content as UTF-8, with its line ends as they are."""
        return (await self.read(path, max_bytes=max_bytes)).decode("utf-8")

    async def write(self, path: str, content: Union[str, bytes], *, append: bool = False) -> None:
        """Writes a file, and makes the directories above it."""
        sandbox = self._sandbox
        data = content.encode() if isinstance(content, str) else content
        await sandbox._runner.run(sandbox._backend.file_write(sandbox.id, resolve(path, sandbox.directory), data, append))

    async def list(self, path: str = ".", *, depth: int = 1) -> List[FileInfo]:
        """What is in a directory, `depth` levels deep, sorted by path."""
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.file_list(sandbox.id, resolve(path, sandbox.directory), depth))

    async def info(self, path: str) -> FileInfo:
        """An entry; a symbolic link is not followed."""
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.file_info(sandbox.id, resolve(path, sandbox.directory)))

    async def exists(self, path: str) -> bool:
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.file_exists(sandbox.id, resolve(path, sandbox.directory)))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; with `recursive`, a directory and all in it."""
        sandbox = self._sandbox
        await sandbox._runner.run(sandbox._backend.file_remove(sandbox.id, resolve(path, sandbox.directory), recursive))

    async def rename(self, old: str, new: str) -> None:
        """Moves an entry. An existing file at `new` is replaced, an existing directory is not."""
        sandbox = self._sandbox
        await sandbox._runner.run(sandbox._backend.file_rename(sandbox.id, resolve(old, sandbox.directory), resolve(new, sandbox.directory)))

    async def make_dir(self, path: str) -> None:
        """Makes a directory and those above it; an existing one is fine."""
        sandbox = self._sandbox
        await sandbox._runner.run(sandbox._backend.make_dir(sandbox.id, resolve(path, sandbox.directory)))


class AsyncLeases:
    """Permissions beyond the cage's plan, for a limited time."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> List[Lease]:
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.leases(sandbox.id))

    async def grant(
        self,
        *,
        read: Union[str, Sequence[str], None] = None,
        write: Union[str, Sequence[str], None] = None,
        host: Union[str, Sequence[str], None] = None,
        http: Union[str, Sequence[str], None] = None,
        secret: Union[str, Sequence[str], None] = None,
        socket: Union[str, Sequence[str], None] = None,
        publish: Union[str, Sequence[str], None] = None,
        memory: Optional[str] = None,
        cpus: Optional[str] = None,
        pids: Optional[int] = None,
        seconds: Optional[float] = None,
        count: Optional[int] = None,
        reason: str = "",
    ) -> List[Lease]:
        """Grants permissions within the ceiling of the cage's policy; DeniedError beyond it.

        The list has the leases that were opened: what the cage may do anyway needs none.
        """
        sandbox = self._sandbox
        options = {
            "read": read, "write": write, "host": host, "http": http, "secret": secret, "socket": socket,
            "publish": publish, "memory": memory, "cpus": cpus, "pids": pids, "count": count,
            "reason": reason,
        }  # fmt: skip
        return await sandbox._runner.run(sandbox._backend.grant(sandbox.id, options, seconds))

    async def revoke(self, number: Optional[int] = None) -> List[EndedLease]:
        """Revokes a lease, or all. `end` says what is proved: `revoked` is the kernel's word."""
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.revoke(sandbox.id, number))


class AsyncRequests:
    """Permission requests that wait for a person. Their texts come from the agent."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> List[PermissionRequest]:
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.requests(sandbox.id))

    async def approve(self, number: int, *, seconds: Optional[float] = None, once: bool = False) -> List[Lease]:
        """Approves a request, for as long as it asked for, or `seconds`, or one use."""
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.approve(sandbox.id, number, seconds, once))

    async def deny(self, number: int, *, reason: str = "") -> None:
        sandbox = self._sandbox
        await sandbox._runner.run(sandbox._backend.deny(sandbox.id, number, reason))


class AsyncChanges:
    """The pending change: what the cage did to a copy-on-write workspace."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def _id(self) -> str:
        """The ID of the change, which stays when the cage has ended."""
        sandbox = self._sandbox
        if sandbox._change is None:
            sandbox._change = change_of(await sandbox.info())
        return sandbox._change

    async def diff(self, paths: Sequence[str] = ()) -> Change:
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.change_diff(await self._id(), paths))

    async def text(self, paths: Sequence[str] = ()) -> str:
        """The change as a unified diff, with what is withheld at its end."""
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.change_text(await self._id(), paths))

    async def apply(self, paths: Sequence[str] = (), *, on_conflict: Optional[str] = None) -> AppliedChange:
        """Applies the change, or the named paths, to the real files. What your own tools would
        execute is withheld until it is named. `on_conflict` is `theirs` (the cage's) or `ours`."""
        sandbox = self._sandbox
        return await sandbox._runner.run(sandbox._backend.change_apply(await self._id(), paths, on_conflict))

    async def discard(self, paths: Sequence[str] = ()) -> None:
        """Drops the change, or the named paths. Stop the cage first."""
        sandbox = self._sandbox
        await sandbox._runner.run(sandbox._backend.change_discard(await self._id(), paths))


class AsyncPtys:
    """Terminals in a cage."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def create(
        self,
        command: Command = ("/bin/sh",),
        *,
        rows: int = 24,
        columns: int = 80,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        raw: bool = False,
    ) -> AsyncPty:
        """Starts a command on a terminal. Without `raw`, escape sequences that would act on the
        terminal of whoever shows its output are filtered out."""
        sandbox = self._sandbox
        cwd = resolve(cwd, sandbox.directory)
        return await start_pty_async(sandbox._backend, sandbox.id, command, rows, columns, env, cwd, raw)


__all__ = ["AsyncSandbox", "AsyncCommands", "AsyncFiles", "AsyncLeases", "AsyncRequests", "AsyncChanges", "AsyncPtys", "AsyncProcess", "AsyncPty"]
