"""What `Sandbox.create` takes, as arguments of `ironcage run`."""

from __future__ import annotations

import math
import os
from typing import List, Mapping, Optional, Sequence, Union

from .errors import InvalidArgumentError

PathLike = Union[str, "os.PathLike[str]"]


def run_args(
    *,
    workspace: PathLike,
    workspace_mode: Optional[str],
    name: Optional[str],
    profile: Optional[str],
    policy: Optional[PathLike],
    image: Optional[str],
    template: Optional[str],
    root: Optional[PathLike],
    env: Optional[Mapping[str, str]],
    read: Sequence[PathLike],
    write: Sequence[PathLike],
    hide: Sequence[str],
    network: Optional[str],
    allow_hosts: Sequence[str],
    secrets: Sequence[str],
    publish: Sequence[str],
    memory: Optional[str],
    cpus: Optional[Union[str, float]],
    pids: Optional[int],
    disk: Optional[str],
    timeout: Optional[float],
    idle: Optional[float],
    cwd: Optional[PathLike],
    cli_args: Sequence[str],
) -> List[str]:
    args: List[str] = []

    def add(flag: str, value: object) -> None:
        if value is not None:
            args.append("--{}={}".format(flag, value))

    def seconds(what: str, value: Optional[float]) -> str:
        if value is None:
            return "none"
        if not value > 0 or math.isinf(value):
            raise InvalidArgumentError("invalid {} {!r}: expected a positive number of seconds, or None".format(what, value))
        return "{}s".format(math.ceil(value))

    add("workspace", os.fspath(workspace))
    add("workspace-mode", workspace_mode)
    add("name", name)
    add("profile", profile)
    add("policy", None if policy is None else os.fspath(policy))
    add("image", image)
    add("template", template)
    add("root", None if root is None else os.fspath(root))
    for variable, value in (env or {}).items():
        if not variable or "=" in variable or "\0" in variable + value:
            raise InvalidArgumentError("invalid environment variable {!r}".format(variable))
        args.append("--env={}={}".format(variable, value))
    for flag, values in (("read", read), ("write", write), ("hide", hide)):
        for one in values:
            add(flag, os.fspath(one))
    add("network", network)
    for flag, values in (("allow-host", allow_hosts), ("secret", secrets), ("publish", publish)):
        for one in values:
            add(flag, one)
    add("memory", memory)
    add("cpus", cpus)
    add("pids", pids)
    add("disk", disk)
    add("time", seconds("timeout", timeout))
    if idle is not None:
        add("idle", seconds("idle", idle))
    add("cwd", None if cwd is None else os.fspath(cwd))
    return [*args, *cli_args]
