"""Chooses between the cages of this machine and a service, and what both transports share."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple, TypeVar, Union

from ._calls import Call
from ._local import LocalBackend
from ._options import run_args
from .errors import InvalidArgumentError, UnsupportedError, UserUnsupportedError
from .models import CommandResult, SandboxInfo

if TYPE_CHECKING:
    from ._service import ServiceBackend

Backend = Union[LocalBackend, "ServiceBackend"]
R = TypeVar("R")


def connect(
    runner: Callable[..., R], program: Optional[str], api_url: Optional[str], api_key: Optional[str]
) -> Tuple[R, Backend]:
    """The service if an address of one is known and no program is named, otherwise this machine."""
    # `ironcage serve env` prints IRONCAGE_URL.
    url = api_url or (None if program else os.environ.get("IRONCAGE_API_URL") or os.environ.get("IRONCAGE_URL"))
    if not url:
        backend = LocalBackend(program)
        return runner(program=backend.program), backend
    from . import _service

    return _service.connect(runner, url, api_key or os.environ.get("IRONCAGE_API_KEY"))


def create_call(backend: Backend, options: Dict[str, Any], scratch: Optional[str]) -> Call[Tuple[str, str]]:
    """Starts a cage; the answer is its ID, and where its commands start."""
    if not isinstance(backend, LocalBackend):
        return backend.create_from(options)
    metadata = options.pop("metadata")
    if metadata:
        raise InvalidArgumentError("cannot use metadata without a service", hints=["use name for a local cage"])
    if scratch is not None:
        options["workspace"] = scratch
        options["workspace_mode"] = options["workspace_mode"] or "direct"
    return backend.create(run_args(**options), start_directory(options, scratch))


#: Prints the name and the number of the user of a cage.
WHO = ["/bin/sh", "-c", "id -un; id -u"]


def start_directory(options: Dict[str, Any], scratch: Optional[str]) -> str:
    """Where commands of a new cage start."""
    directory = options.get("cwd") or scratch or options.get("workspace")
    return os.path.realpath(os.fspath(directory)) if directory else "/"


def resolve(path: Optional[str], directory: str) -> str:
    """Relative paths are relative to where commands start. Paths with `..` stay as they are: what
    they lead to depends on symbolic links in the cage."""
    return posixpath.join(directory, path) if path else directory


def change_of(info: SandboxInfo) -> str:
    change = info.raw.get("change")
    if not change:
        raise UnsupportedError("this cage has no pending change", hints=["its workspace is not copy-on-write"])
    return str(change)


def check_user(user: str, identity: CommandResult) -> None:
    """A cage has one user. Its own name and number are accepted, others are not."""
    names = identity.stdout.split()
    if user not in names:
        raise UserUnsupportedError(
            "cannot run as {!r}: commands in this cage run as {!r}".format(user, (names or ["its one user"])[0]),
            hints=["a cage has one user; with cli_args=['--root-inside'] that is user 0"],
        )
