"""The unmodified e2b-code-interpreter package against a service with a code interpreter. Prints `ok`."""

import base64
import sys
import threading
import time

from e2b_code_interpreter import NotFoundException, Sandbox, SandboxException, TimeoutException


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"not refused: {kind.__name__}")


sandbox = Sandbox.create(timeout=300, envs={"FROM_CREATE": "1"})
if sys.argv[1:] == ["missing"]:
    # This Python has no ipykernel: the error says so, and how to get it.
    text = refused(SandboxException, lambda: sandbox.run_code("1"))
    assert "ipykernel" in text and "--code-interpreter" in text, text
    assert sandbox.commands.run("echo still there").stdout == "still there\n"
    sandbox.kill()
    print("ok")
    sys.exit()

# Results, output, errors.
first = sandbox.run_code("x = 1\nprint('out')\nimport sys; print('err', file=sys.stderr)\nx + 1")
assert first.text == "2" and first.error is None, first
assert (first.logs.stdout, first.logs.stderr) == (["out\n"], ["err\n"]), first.logs
assert first.execution_count == 1, first.execution_count
assert sandbox.run_code("x += 1; x").text == "2"
assert sandbox.run_code("'a text'").text == "a text"
assert sandbox.run_code("import os; os.system('echo child')").logs.stdout == ["child\n"]
failed = sandbox.run_code("print('before')\n1 / 0")
assert failed.error.name == "ZeroDivisionError" and "line 2" in failed.error.traceback, failed
assert failed.logs.stdout == ["before\n"]

# Everything runs in the sandbox: its files are those of the other calls.
sandbox.files.write("data.csv", "a,b\n1,2\n")
assert sandbox.run_code("open('data.csv').read()").text.startswith("a,b")
assert sandbox.run_code("import os; os.getcwd()").text == sandbox.commands.run("echo ~").stdout.strip()
assert sandbox.run_code("import os; os.environ['FROM_CREATE']").text == "1"
assert not any("ironcage" in (process.tag or "") for process in sandbox.commands.list())

# Variables of one execution.
assert sandbox.run_code("import os; os.environ['ONCE']", envs={"ONCE": "now"}).text == "now"
assert sandbox.run_code("os.environ.get('ONCE', 'gone')").text == "gone"

# Other results.
page = sandbox.run_code("from IPython.display import HTML, JSON, display; display(JSON({'a': 1})); HTML('<b>x</b>')")
assert page.results[0].json == {"a": 1} and not page.results[0].is_main_result, page.results
assert page.results[1].html == "<b>x</b>" and page.results[1].is_main_result
chart = sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()")
assert chart.error is None, chart.error
assert base64.b64decode(chart.results[0].png).startswith(b"\x89PNG"), chart.results
long = sandbox.run_code("print('x' * 3_000_000)\n'y' * 3_000_000")
assert sum(map(len, long.logs.stdout)) == 3_000_001 and len(long.text) > 2_900_000, long.error

# Streams: the first output is there before the end.
seen = []
streamed = sandbox.run_code(
    "import os\nprint('one', flush=True)\nimport time\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('two')",
    on_stdout=lambda message: (seen.append(message.line), sandbox.files.write("go", "")),
)
assert "".join(seen) == "one\ntwo\n" and "".join(streamed.logs.stdout) == "one\ntwo\n", seen

# A client that stops waiting interrupts, and the variables stay.
refused(TimeoutException, lambda: sandbox.run_code("import time\ntime.sleep(3600)", timeout=2))
assert sandbox.run_code("x").text == "2"

# Two at once in one context follow one another.
answers = []
threads = [threading.Thread(target=lambda n=n: answers.append(sandbox.run_code(f"y = {n}\nimport time; time.sleep(0.2)\ny").text)) for n in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert sorted(answers) == ["0", "1", "2"], answers

# Contexts.
sandbox.files.make_dir("work")
home = sandbox.commands.run("echo ~").stdout.strip()
other = sandbox.create_code_context(cwd=f"{home}/work")
assert sandbox.run_code("import os; os.getcwd()", context=other).text == f"{home}/work"
assert sandbox.run_code("x", context=other).error.name == "NameError"
sandbox.run_code("z = 5", context=other)
assert {context.id for context in sandbox.list_code_contexts()} == {"python", other.id}
sandbox.restart_code_context(other)
assert sandbox.run_code("z", context=other).error.name == "NameError"
sandbox.remove_code_context(other)
refused(NotFoundException, lambda: sandbox.run_code("1", context=other))
assert "bash" in refused(SandboxException, lambda: sandbox.run_code("echo", language="no-such-bash"))
assert [context.id for context in sandbox.list_code_contexts()] == ["python"]

# A kernel that ends is reported and replaced.
assert sandbox.run_code("import os; os._exit(1)").error.name == "KernelDied"
assert sandbox.run_code("x").error.name == "NameError"
assert sandbox.run_code("1 + 1").text == "2"

# Another connection, and a pause with its memory.
sandbox.run_code("kept = 'still here'")
sandbox.pause()
again = Sandbox.connect(sandbox.sandbox_id)
assert again.run_code("kept").text == "still here"
assert [context.id for context in again.list_code_contexts()] == ["python"]
sandbox.kill()
refused(TimeoutException, lambda: sandbox.run_code("1"))
print("ok")
