"""One operation, as data: what to run or to send, and how to read the answer.

The backends make calls; the runners of `_runner.py` carry them out, blocking or not. So sync and
async share everything but the waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generic, List, Optional, TypeVar, Union

T = TypeVar("T")

#: Called with each piece of output as it arrives.
OutputCallback = Callable[[bytes], Any]

#: How much of each output stream is kept, unless the caller says otherwise.
MAX_OUTPUT = 16 * 1024 * 1024

#: File operations and questions to the supervisor take longer than this only if the agent makes
#: them hang.
CALL_TIMEOUT = 120.0


@dataclass
class CliResult:
    """How a program of the command line ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    #: What it wrote to its status file, if it has one.
    status: Optional[Dict[str, Any]]
    truncated: bool = False


@dataclass
class CliCall(Generic[T]):
    """A command line of `ironcage`."""

    args: List[str]
    parse: Callable[[CliResult], T]
    input: Optional[bytes] = None
    #: Whether it writes a status file (`exec`), so that its own errors are told from the command's.
    status: bool = False
    timeout: Optional[float] = CALL_TIMEOUT
    max_output: int = MAX_OUTPUT
    on_stdout: Optional[OutputCallback] = None
    on_stderr: Optional[OutputCallback] = None
    #: What is done, for the error when it takes too long.
    what: str = "run ironcage"


@dataclass
class HttpResult:
    """An answer of the service."""

    status: int
    headers: Dict[str, str]
    body: bytes


@dataclass
class HttpCall(Generic[T]):
    """A request to the service."""

    method: str
    path: str
    parse: Callable[[HttpResult], T]
    params: Dict[str, Any] = field(default_factory=dict)
    json: Any = None
    content: Optional[bytes] = None
    headers: Dict[str, str] = field(default_factory=dict)
    timeout: Optional[float] = CALL_TIMEOUT
    #: The most that the body of the answer may have.
    max_body: int = 512 * 1024 * 1024
    #: Called with each event of a stream (text/event-stream); the body is then empty.
    on_event: Optional[Callable[[str, str], None]] = None


@dataclass
class Value(Generic[T]):
    """What is known without asking anybody."""

    value: T


Call = Union[CliCall[T], HttpCall[T], Value[T]]
