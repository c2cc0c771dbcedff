"""Commands that run while the caller does something else, and terminals, for asyncio: the blocking
ones of `_process.py`, waited for in threads.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, AsyncIterator, Tuple, TypeVar, Union

from ._process import Process, Pty, start_process, start_pty
from .models import CommandResult

if TYPE_CHECKING:
    from typing import Callable, Optional

T = TypeVar("T")


async def in_thread(function: "Callable[..., T]", *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


class AsyncProcess:
    """A command that runs; its methods are those of `Process`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def write(self, data: Union[str, bytes]) -> None:
        await in_thread(self._process.write, data)

    async def close_input(self) -> None:
        await in_thread(self._process.close_input)

    async def kill(self) -> None:
        await in_thread(self._process.kill)

    async def wait(self, timeout: "Optional[float]" = None) -> CommandResult:
        return await in_thread(self._process.wait, timeout)

    async def output(self) -> AsyncIterator[Tuple[str, bytes]]:
        pieces = self._process.output()
        while True:
            piece = await in_thread(next, pieces, None)
            if piece is None:
                return
            yield piece


class AsyncPty:
    """A terminal in a cage; its methods are those of `Pty`."""

    def __init__(self, pty: Pty) -> None:
        self._pty = pty

    async def write(self, data: Union[str, bytes]) -> None:
        await in_thread(self._pty.write, data)

    async def read(self, timeout: "Optional[float]" = None) -> bytes:
        return await in_thread(self._pty.read, timeout)

    async def resize(self, rows: int, columns: int) -> None:
        await in_thread(self._pty.resize, rows, columns)

    async def kill(self) -> None:
        await in_thread(self._pty.kill)

    async def wait(self, timeout: "Optional[float]" = None) -> CommandResult:
        return await in_thread(self._pty.wait, timeout)


async def start_process_async(*args: Any, **options: Any) -> AsyncProcess:
    return AsyncProcess(await in_thread(functools.partial(start_process, *args, **options)))


async def start_pty_async(*args: Any) -> AsyncPty:
    return AsyncPty(await in_thread(start_pty, *args))
