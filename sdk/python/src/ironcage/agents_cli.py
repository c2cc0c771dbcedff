"""Whole agents in cages: a `cli_path` for the Claude Agent SDK, and Codex's environments.toml."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import List, Optional, Sequence

from ._local import find_program
from .errors import NotInstalledError


def claude_path(*, claude: Optional[str] = None, flags: Sequence[str] = (), program: Optional[str] = None) -> str:
    """A program that is Claude Code in a cage: `ClaudeAgentOptions(cli_path=claude_path())`.

    It runs the Claude Code that the SDK brings, or `claude`, by `ironcage run` with `flags`. The
    workspace is the directory that `ClaudeAgentOptions(cwd=...)` names.
    """
    agent = claude or _bundled_claude() or shutil.which("claude")
    if not agent:
        raise NotInstalledError("cannot find Claude Code", hints=["pip install claude-agent-sdk, or pass claude='/path/to/claude'"])
    agent = os.path.abspath(agent)
    # What is not in a directory that cages see is shown to them, read-only.
    words = [program or find_program(), "run", "-q", "--read=" + agent, *flags, "--", agent]
    script = '#!/bin/sh\nexec {} "$@"\n'.format(" ".join(shlex.quote(word) for word in words))
    name = "claude-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ironcage-python"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / name
    if not path.exists() or path.read_text() != script:
        # Renamed into place: another process may execute it at this moment.
        fresh = directory / "{}.{}".format(name, os.getpid())
        fresh.write_text(script)
        fresh.chmod(0o700)
        fresh.replace(path)
    return str(path)


def _bundled_claude() -> Optional[str]:
    try:
        import claude_agent_sdk
    except ImportError:
        return None
    assert claude_agent_sdk.__file__ is not None
    path = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    return str(path) if path.is_file() else None


def codex_environment(*, name: str = "ironcage", flags: Sequence[str] = (), program: Optional[str] = None) -> str:
    """The text of `$CODEX_HOME/environments.toml`: Codex's loop outside, all that it does in a cage.

    Codex starts its exec-server by it, in a cage with the workspace that Codex is started in.
    """

    def text(value: str) -> str:
        # JSON strings are TOML strings, but for DEL and for characters beyond U+FFFF as two escapes.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    args: List[str] = ["run", "-q", *flags, "--", "codex", "exec-server", "--listen", "stdio"]
    lines = [
        "default = {}".format(text(name)),
        "include_local = false",
        "",
        "[[environments]]",
        "id = {}".format(text(name)),
        "program = {}".format(text(program or find_program())),
        "args = [{}]".format(", ".join(text(word) for word in args)),
    ]
    return "\n".join(lines) + "\n"


__all__ = ["claude_path", "codex_environment"]
