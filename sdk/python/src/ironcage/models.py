"""The values that calls return. Text in them comes from the agent: treat it as untrusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it wrote."""

    exit_code: int
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    #: The signal that killed it, if one did.
    signal: Optional[int] = None
    #: Whether output beyond `max_output` was dropped.
    truncated: bool = False

    @property
    def stdout(self) -> str:
        """Standard output as UTF-8; invalid bytes are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as UTF-8; invalid bytes are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class FileInfo:
    """An entry of a directory."""

    name: str
    path: str
    #: file, directory, symlink or other.
    kind: str
    size: int
    #: Permission bits, for example 0o644.
    mode: int
    #: Seconds since the epoch.
    modified: float

    @property
    def is_dir(self) -> bool:
        return self.kind == "directory"


@dataclass(frozen=True)
class SandboxInfo:
    """A running cage."""

    id: str
    name: Optional[str]
    state: str
    workspace: Optional[str]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Lease:
    """A permission beyond the cage's plan, for a limited time."""

    number: int
    #: What it permits, for example `read /srv/data`.
    resource: str
    state: str
    reason: str
    seconds_left: Optional[float]
    uses_left: Optional[int]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class EndedLease:
    """A lease that was revoked. `end` is `revoked` only once the kernel proved that it is gone."""

    number: int
    end: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class PermissionRequest:
    """What an agent asks for, and a person has to decide. Reason and command are the agent's."""

    number: int
    resource: str
    reason: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ChangedFile:
    """A file of a pending change."""

    path: str
    #: added, modified, deleted, moved and so on.
    status: str
    lines_added: Optional[int]
    lines_removed: Optional[int]


@dataclass(frozen=True)
class WithheldFile:
    """A file that is applied only if you name it, because your own tools would execute it."""

    path: str
    why: str


@dataclass(frozen=True)
class Change:
    """A pending change: what a cage did to a copy-on-write workspace."""

    id: str
    workspace: str
    files: List[ChangedFile]
    withheld: List[WithheldFile]
    flagged: List[WithheldFile]
    conflicts: List[str]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class AppliedChange:
    """What `apply` did."""

    #: Files that are in the real tree now.
    applied: int
    #: Paths that changed on both sides, and were left as they are.
    conflicts: List[str]
    #: Whether nothing is pending any more.
    finished: bool
    summary: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def sandbox_info(value: Mapping[str, Any]) -> SandboxInfo:
    return SandboxInfo(
        id=str(value["id"]),
        name=value.get("name"),
        state=str(value.get("state") or value.get("status") or "unknown"),
        workspace=value.get("workspace"),
        raw=value,
    )


def changed_files(value: Mapping[str, Any]) -> Change:
    def reported(key: str) -> List[WithheldFile]:
        return [WithheldFile(str(one["path"]), str(one["why"])) for one in value.get(key, [])]

    files = [
        ChangedFile(
            path=str(one["path"]),
            status=str(one["status"]),
            lines_added=one.get("lines_added"),
            lines_removed=one.get("lines_removed"),
        )
        for one in value.get("files", [])
    ]
    return Change(
        id=str(value.get("id", "")),
        workspace=str(value.get("workspace", "")),
        files=files,
        withheld=reported("withheld"),
        flagged=reported("flagged"),
        conflicts=[str(path) for path in value.get("conflicts", [])],
        raw=value,
    )


def raw_copy(value: Mapping[str, Any]) -> Dict[str, Any]:
    return dict(value)
