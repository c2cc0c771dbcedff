"""The OpenAI Agents SDK's sandbox session and ShellTool over a cage."""

import io
from pathlib import Path

import pytest

pytest.importorskip("agents")

from agents import Agent, Runner, ShellTool  # noqa: E402
from agents.items import ModelResponse  # noqa: E402
from agents.models.interface import Model  # noqa: E402
from agents.run_config import RunConfig, SandboxRunConfig  # noqa: E402
from agents.sandbox import Manifest, SandboxAgent  # noqa: E402
from agents.sandbox.entries import File  # noqa: E402
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError  # noqa: E402
from agents.tool import ShellActionRequest, ShellCallData, ShellCommandRequest  # noqa: E402
from agents.usage import Usage  # noqa: E402
from openai.types.responses import (  # noqa: E402
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from ironcage import AsyncSandbox, Sandbox  # noqa: E402
from ironcage.openai_agents import IroncageSandboxClient, IroncageSandboxClientOptions, IroncageShellExecutor  # noqa: E402


async def test_a_session_executes_reads_writes_and_is_deleted():
    client = IroncageSandboxClient()
    manifest = Manifest(entries={"notes/todo.md": File(content=b"first\n")})
    session = await client.create(manifest=manifest, options=IroncageSandboxClientOptions())
    cage = session.state.sandbox_id
    async with session:
        result = await session.exec("cat notes/todo.md; pwd; exit 3")
        assert (result.exit_code, result.stdout) == (3, b"first\n" + session.state.manifest.root.encode() + b"\n")
        await session.write(Path("data.bin"), io.BytesIO(b"\0\xff"))
        assert (await session.read(Path("data.bin"))).read() == b"\0\xff"
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("none"))
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 600", timeout=1)
        names = [entry.path.rsplit("/", 1)[-1] for entry in await session.ls(Path("."))]
        assert "data.bin" in names
        await session.rm(Path("data.bin"))
        assert await session.running()
        for outside in ("/etc/passwd", "../outside"):
            with pytest.raises(Exception, match="(?i)path|workspace"):
                await session.read(Path(outside))
    await client.delete(session)
    assert cage not in [info.id for info in Sandbox.list()]


async def test_a_workspace_moves_to_another_session_and_a_session_is_resumed():
    client = IroncageSandboxClient(network="off")
    session = await client.create(manifest=Manifest(), options=IroncageSandboxClientOptions())
    other = await client.create(manifest=Manifest(), options=IroncageSandboxClientOptions())
    try:
        await session.start()
        await other.start()
        await session.exec("mkdir d; echo moved > d/f; ln -s f d/l")
        await other.hydrate_workspace(await session.persist_workspace())
        assert (await other.exec("cat d/l")).stdout == b"moved\n"
        payload = client.serialize_session_state(session.state)
        found = await IroncageSandboxClient(network="off").resume(client.deserialize_session_state(payload))
        await found.start()
        assert found.state.sandbox_id == session.state.sandbox_id
        assert (await found.exec("cat d/f")).stdout == b"moved\n"
        # One whose cage is gone gets another.
        await client.delete(session)
        again = await client.resume(client.deserialize_session_state(client.serialize_session_state(session.state)))
        assert again.state.sandbox_id != other.state.sandbox_id and await again.running()
        await client.delete(again)
    finally:
        await client.delete(session)
        await client.delete(other)


class ScriptedModel(Model):
    """Calls `exec_command` once, and then answers with what it printed."""

    def __init__(self):
        self.seen = []

    async def get_response(self, system_instructions, input, model_settings, tools, *args, **kwargs):
        self.seen.append(input)
        items = input if isinstance(input, list) else []
        outputs = [item["output"] for item in items if isinstance(item, dict) and item.get("type") == "function_call_output"]
        if outputs:
            text = ResponseOutputText(type="output_text", text=str(outputs[-1]), annotations=[])
            item = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        else:
            assert "exec_command" in [tool.name for tool in tools]
            item = ResponseFunctionToolCall(
                id="f", call_id="c", type="function_call", name="exec_command",
                arguments='{"cmd": "echo in-a-cage $IRONCAGE; cat task.md"}',
            )  # fmt: skip
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def test_an_agent_runs_its_commands_in_a_cage():
    agent = SandboxAgent(
        name="worker",
        model=ScriptedModel(),
        default_manifest=Manifest(entries={"task.md": File(content=b"the task\n")}),
    )
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(client=IroncageSandboxClient()), tracing_disabled=True))
    assert "in-a-cage 1" in result.final_output and "the task" in result.final_output


async def test_the_shell_tools_executor_runs_each_command_and_stops_at_a_timeout():
    async with await AsyncSandbox.create() as sandbox:
        executor = IroncageShellExecutor(sandbox)
        action = ShellActionRequest(commands=["echo a; exit 2", "echo b >&2; sleep 600", "echo never"], timeout_ms=5000)
        request = ShellCommandRequest(ctx_wrapper=None, data=ShellCallData(call_id="c", action=action))
        outputs = (await executor(request)).output
        assert [(one.stdout, one.stderr, one.outcome.type, one.exit_code) for one in outputs] == [
            ("a\n", "", "exit", 2),
            ("", "b\n", "timeout", None),
        ]
        assert Agent(name="a", tools=[ShellTool(executor=executor)]).tools
