"""Writes src/ironcage/async_sandbox.py from sandbox.py: the same classes for asyncio.

    python3 tools/make_async.py           # writes it
    python3 tools/make_async.py --check   # fails if it is not what this would write
"""

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/ironcage"
NAMES = ["Sandbox", "Commands", "Files", "Leases", "Requests", "Changes", "Ptys", "Process", "Pty"]
#: Methods that wait for nothing.
PLAIN = {"__init__", "detach", "__repr__"}


def translate(text: str) -> str:
    text = text.replace(
        '"""Cages from Python, blocking. `async_sandbox.py` has the same for asyncio."""',
        '"""Cages from Python, for asyncio. Written by tools/make_async.py from sandbox.py: edit that."""',
    )
    for name in NAMES:
        text = re.sub(r"(?<![\w.])%s(?![\w])" % name, "Async" + name, text)
    text = re.sub(
        r"^( +)def (\w+)",
        lambda found: found[0] if found[2] in PLAIN else "{}async def {}".format(found[1], found[2]),
        text,
        flags=re.M,
    )
    text = text.replace("SyncRunner", "AsyncRunner")
    text = re.sub(r"(?<![\w.])((?:sandbox\._|self\._)?runner\.(?:run|close)\()", r"await \1", text)
    text = text.replace("change_of(sandbox.info())", "change_of(await sandbox.info())")
    for call in ("self.info()", "self.stop()", "self.close()", "self._id()", "self.read("):
        text = re.sub(r"(?<![\w.])" + re.escape(call), "await " + call, text)
    text = text.replace('await self.read(path, max_bytes=max_bytes).decode("utf-8")', '(await self.read(path, max_bytes=max_bytes)).decode("utf-8")')
    text = text.replace("return start_process(", "return await start_process_async(").replace("return start_pty(", "return await start_pty_async(")
    text = text.replace("start_process, start_pty", "start_process_async, start_pty_async")
    text = text.replace("from ._process import", "from ._async_process import")
    text = text.replace("__enter__", "__aenter__").replace("__exit__", "__aexit__")
    text = text.replace("``with Async", "``async with await Async")
    return text


def main() -> int:
    made = translate((SOURCE / "sandbox.py").read_text())
    target = SOURCE / "async_sandbox.py"
    if "--check" in sys.argv[1:]:
        if target.read_text() != made:
            print("{} is not what tools/make_async.py writes: run it".format(target), file=sys.stderr)
            return 1
        return 0
    target.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
