"""Whole agents in cages, by what their SDKs execute."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ironcage._local import find_program
from ironcage.agents_cli import claude_path, codex_environment

sdk = pytest.importorskip("claude_agent_sdk")


class ScriptedModel(BaseHTTPRequestHandler):
    """Anthropic's messages API: one call of the tool Bash, then the words that it printed."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = [
            part
            for message in body.get("messages", [])
            if isinstance(message["content"], list)
            for part in message["content"]
            if part.get("type") == "tool_result"
        ]
        tools = [tool.get("name") for tool in body.get("tools", [])]
        if results or "Bash" not in tools:
            text = json.dumps(results[-1]["content"]) if results else "fine"
            block, delta, stop = {"type": "text", "text": ""}, {"type": "text_delta", "text": text}, "end_turn"
        else:
            command = json.dumps({"command": "echo caged=$IRONCAGE; cat note", "description": "look"})
            block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
            delta, stop = {"type": "input_json_delta", "partial_json": command}, "tool_use"
        message = {
            "id": "m", "type": "message", "role": "assistant", "model": body.get("model"), "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip
        events = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in events:
            self.wfile.write("event: {}\ndata: {}\n\n".format(event["type"], json.dumps(event)).encode())


@pytest.fixture
def model():
    server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


async def test_claude_code_of_the_agent_sdk_works_in_a_cage(tmp_path, model, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    project.mkdir()
    (project / "note").write_text("of the project")
    address = "http://host.ironcage:{}".format(model)
    path = claude_path(
        flags=["--allow-host-port={}".format(model), "--env=ANTHROPIC_BASE_URL=" + address, "--env=ANTHROPIC_API_KEY=none"]
    )
    options = sdk.ClaudeAgentOptions(cli_path=path, cwd=project, permission_mode="bypassPermissions", setting_sources=[])
    texts = []
    async for message in sdk.query(prompt="go", options=options):
        if isinstance(message, sdk.AssistantMessage):
            texts += [block.text for block in message.content if isinstance(block, sdk.TextBlock)]
    assert "caged=1" in texts[-1] and "of the project" in texts[-1], texts


def test_the_wrapper_of_claude_passes_every_word_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    agent = tmp_path / "claude"
    agent.write_text("#!/bin/sh\nprintf '%s|' \"$@\" \"$IRONCAGE\"\n")
    agent.chmod(0o755)
    path = claude_path(claude=str(agent), flags=["--workspace-mode=scratch"])
    assert path == claude_path(claude=str(agent), flags=["--workspace-mode=scratch"])
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run([path, "-a", "two words", "$x"], cwd=work, capture_output=True, text=True)
    assert done.stdout == "-a|two words|$x|1|", done.stderr


def test_codexs_environment_is_toml_that_runs_in_a_cage(tmp_path):
    text = codex_environment(name='a "b" \U0001f600', flags=["--env=X=\\1"])
    tomllib = pytest.importorskip("tomllib")
    value = tomllib.loads(text)
    (environment,) = value["environments"]
    assert (value["default"], value["include_local"], environment["id"]) == ('a "b" \U0001f600', False, 'a "b" \U0001f600')
    assert environment["program"] == find_program()
    args = environment["args"]
    assert args[-4:] == ["codex", "exec-server", "--listen", "stdio"] and "--env=X=\\1" in args
    work = tmp_path / "work"
    work.mkdir()
    # What Codex would start, with another program in Codex's place.
    line = [environment["program"], *args[: args.index("--") + 1], "sh", "-c", "printf '%s %s' \"$X\" $IRONCAGE"]
    done = subprocess.run(line, cwd=work, capture_output=True, text=True)
    assert done.stdout == "\\1 1", done.stderr
