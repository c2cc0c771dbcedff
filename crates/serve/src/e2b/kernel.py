"""One code context: a Jupyter kernel, and the lines by which the service drives it.

Runs in the cage, as `python -c`. Standard input has one JSON object a line: `{"op": "execute", "id",
"code", "env"}` or `{"op": "interrupt", "id"}`. Standard output has lines of an id and a JSON event as
E2B's code interpreter streams them, or of an id and `end`. A long event takes several lines: `+` stands
before a piece that is followed by another, `.` before the last. The first line is `ready` or `failed TEXT`.
"""

import sys

# Modules in the working directory are for the kernel, not for this program.
sys.path[:] = [path for path in sys.path if path]

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time

PIECE = 64 << 10
MIME = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
# The variables of one request, which do not stay.
SET = """
import os
import IPython
shell, wanted = IPython.get_ipython(), {env!r}
shell._ironcage_env = {{name: os.environ.get(name) for name in wanted}}
os.environ.update(wanted)
"""
UNSET = """
import os
import IPython
for name, value in IPython.get_ipython().__dict__.pop("_ironcage_env", {}).items():
    os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
"""

# Only this program writes there: what others print must not be taken for an event.
out = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def say(text):
    left = memoryview(text.encode("utf-8", "backslashreplace") + b"\n")
    while left:
        left = left[out.write(left) :]


def fail(text):
    say("failed " + " ".join(str(text).split())[:2000])
    sys.exit(1)


def event_of(message):
    """The events that a message of the kernel is for a client."""
    kind, content = message["header"]["msg_type"], message["content"]
    if kind == "stream":
        yield {"type": content["name"], "text": content["text"], "timestamp": time.time_ns()}
    elif kind in ("execute_result", "display_data"):
        event = {"type": "result", "is_main_result": kind == "execute_result"}
        extra = {}
        for mime, value in content["data"].items():
            (event if mime in MIME else extra)[MIME.get(mime, mime)] = value
        text = event.get("text")
        # The text of a string is the string, as E2B has it.
        if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == "'":
            event["text"] = text[1:-1]
        if extra:
            event["extra"] = extra
        yield event
    elif kind == "error":
        yield error(content["ename"], content["evalue"], "\n".join(content["traceback"]))
    elif kind == "execute_input":
        yield {"type": "number_of_executions", "execution_count": content["execution_count"]}


def error(name, value, traceback=""):
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


class Context:
    def __init__(self, language):
        self.language = language
        self.turn = asyncio.Lock()
        self.waiting = set()
        self.running = None
        self.place = tempfile.mkdtemp(prefix="ironcage-kernel-")

    def kernel_name(self):
        """The installed kernel of a language. Python's is the one of this interpreter."""
        if self.language == "python":
            return "python3"
        from jupyter_client.kernelspec import KernelSpecManager

        specs = KernelSpecManager().get_all_specs()
        for name, found in sorted(specs.items()):
            if found["spec"]["language"].lower() == self.language:
                return name
        has = sorted({found["spec"]["language"].lower() for found in specs.values()} | {"python"})
        fail(f"no Jupyter kernel for the language {self.language} is installed; there are: {', '.join(has)}")

    async def start(self):
        from jupyter_client.manager import AsyncKernelManager

        # Sockets in a directory of this kernel: no ports, which a cage may not have.
        place = tempfile.mkdtemp(dir=self.place)
        self.manager = AsyncKernelManager(
            kernel_name=self.kernel_name(),
            transport="ipc",
            ip=os.path.join(place, "k"),
            connection_file=os.path.join(place, "connection.json"),
        )
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await self.manager.start_kernel(**quiet)
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=90)

    async def revive(self):
        """Another kernel in the place of one that ended."""
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)
        await self.start()

    async def silently(self, code):
        request = self.client.execute(code, silent=True, store_history=False, allow_stdin=False)
        async for _ in self.messages(request):
            pass

    async def messages(self, request):
        """What the kernel says of a request, up to its end."""
        while True:
            try:
                message = await self.client.get_iopub_msg(timeout=1)
            except Exception as late:
                if type(late).__name__ != "Empty":
                    raise
                if not await self.manager.is_alive():
                    raise EOFError from late
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["header"]["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return
            yield message

    async def execute(self, wanted):
        number = wanted["id"]

        def tell(event):
            text = json.dumps(event, default=str)
            for at in range(0, len(text), PIECE):
                mark = "+" if at + PIECE < len(text) else "."
                say(f"{number} {mark}{text[at : at + PIECE]}")

        self.waiting.add(number)
        try:
            async with self.turn:
                # Its client may be gone meanwhile.
                if number not in self.waiting:
                    return
                self.running = number
                env = wanted.get("env") or {}
                if env and self.language != "python":
                    tell(error("NotOffered", "variables for one execution are offered for Python only"))
                    return
                try:
                    if env:
                        await self.silently(SET.format(env=env))
                    request = self.client.execute(wanted["code"], allow_stdin=False, stop_on_error=False)
                    async for message in self.messages(request):
                        for event in event_of(message):
                            tell(event)
                    if env:
                        await self.silently(UNSET)
                except EOFError:
                    tell(error("KernelDied", "the kernel ended; its variables are lost, and a new one runs"))
                    await self.revive()
        except Exception as failed:
            tell(error(type(failed).__name__, str(failed)))
        finally:
            self.running = None
            self.waiting.discard(number)
            say(f"{number} end")

    async def interrupt(self, number):
        if self.running == number:
            await self.manager.interrupt_kernel()
        else:
            self.waiting.discard(number)

    async def serve(self):
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=64 << 20)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks = set()
        while line := await reader.readline():
            wanted = json.loads(line)
            work = self.interrupt(wanted["id"]) if wanted["op"] == "interrupt" else self.execute(wanted)
            task = loop.create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def main():
    try:
        import ipykernel  # noqa: F401
        import jupyter_client  # noqa: F401
    except ImportError as missing:
        fail(f"{sys.executable} has no module {missing.name}")
    context = Context(sys.argv[1])
    try:
        try:
            await context.start()
        except Exception as failed:
            fail(f"the kernel did not start: {failed}")
        say("ready")
        await context.serve()
    finally:
        if manager := getattr(context, "manager", None):
            await manager.shutdown_kernel(now=True)
        shutil.rmtree(context.place, ignore_errors=True)


asyncio.run(main())
