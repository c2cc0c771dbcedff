"""inspect's sandbox provider `ironcage`: each sample of a task in a cage of its own.

The package has the entry point, so `--sandbox ironcage` is all that a task needs. A configuration
(`--sandbox ironcage:policy.toml`, or `sandbox=("ironcage", "policy.toml")`) is a policy file.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Literal, Optional, Union, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from . import errors
from .async_sandbox import AsyncSandbox

try:
    from inspect_ai.util import SandboxUnavailableError
except ImportError:  # older versions have it under its module alone
    from inspect_ai.util._sandbox.environment import SandboxUnavailableError

#: A cage ends by itself after a day, should inspect be killed.
LIFETIME = 24 * 3600.0


@sandboxenv(name="ironcage")
class IroncageSandboxEnvironment(SandboxEnvironment):
    """A cage, as inspect's tools and solvers use it."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    def config_files(cls) -> List[str]:
        return ["ironcage.toml"]

    @classmethod
    def default_concurrency(cls) -> Optional[int]:
        return 4 * (os.cpu_count() or 1)

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: Optional[SandboxEnvironmentConfigType],
        metadata: Dict[str, str],
    ) -> Dict[str, SandboxEnvironment]:
        if config is not None and not isinstance(config, str):
            raise TypeError("cannot use this sandbox configuration: expected the path of a policy file")
        sandbox = await AsyncSandbox.create(policy=config, timeout=LIFETIME)
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Optional[SandboxEnvironmentConfigType],
        environments: Dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).sandbox.close()

    @classmethod
    async def cli_cleanup(cls, id: Optional[str]) -> None:
        """`inspect sandbox cleanup ironcage ID` stops one cage. Without an ID nothing is stopped:
        cages are not all inspect's."""
        if id is None:
            print("name the cage to stop; `ironcage ps` lists cages")
            return
        sandbox = await AsyncSandbox.connect(id)
        await sandbox.close()

    async def exec(
        self,
        cmd: List[str],
        input: Union[str, bytes, None] = None,
        cwd: Optional[str] = None,
        env: Optional[Dict[str, str]] = None,
        user: Optional[str] = None,
        timeout: Optional[int] = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self.sandbox.commands.run(
                cmd, input=input, cwd=cwd, env=env, user=user, timeout=timeout, max_output=limit
            )
        except errors.UserUnsupportedError as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        except errors.SandboxNotFoundError as error:
            raise SandboxUnavailableError(str(error)) from error
        if result.truncated:
            raise OutputLimitExceededError(
                limit_str=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, truncated_output=result.stdout
            )
        return ExecResult(success=result.ok, returncode=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    async def write_file(self, file: str, contents: Union[str, bytes]) -> None:
        await self.sandbox.files.write(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:
        try:
            content = await self.sandbox.files.read(file, max_bytes=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except errors.FileTooLargeError as error:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit_str=limit, truncated_output=None) from error
        return content.decode("utf-8") if text else content

    async def connection(self, *, user: Optional[str] = None) -> SandboxConnection:
        if user is not None:
            raise SandboxUserUnsupportedError("a cage has one user")
        return SandboxConnection(type="ironcage", command="ironcage exec -t {} -- sh".format(self.sandbox.id), container=self.sandbox.id)

    def default_polling_interval(self) -> float:
        return 0.2


def sandbox_of(environment: Any) -> AsyncSandbox:
    """The cage behind inspect's `sandbox()`, for leases, requests and changes."""
    found: AsyncSandbox = environment.as_type(IroncageSandboxEnvironment).sandbox
    return found
