"""Templates of the unmodified e2b package: built of the host's system and, with an argument, of an image.

Prints `ok` at the end.
"""

import pathlib
import sys
import tempfile
import time

from e2b import BuildException, Sandbox, SandboxException, Template, wait_for_file
from e2b.template.types import TemplateBuildStatus


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"not refused: {kind.__name__}")


context = pathlib.Path(tempfile.mkdtemp())
(context / "app").mkdir()
(context / "app" / "main.sh").write_text("echo app $GREETING\n")
(context / "app" / "sub").mkdir()
(context / "app" / "sub" / "x").write_text("x")
(context / "one.txt").write_text("one")
(context / "two.txt").write_text("two")


def steps(builder, place):
    return (
        builder.set_envs({"GREETING": "hello", "EMPTY": ""})
        .set_workdir(place)
        .copy("app", "app")
        .copy("one.txt", "renamed.txt", mode=0o750)
        .copy("*.txt", "texts/")
        .run_cmd("echo built $GREETING > made; echo to the log")
        .run_cmd(["echo second >> made", "true"])
        .make_dir("empty")
        .rename("texts/two.txt", "texts/three.txt")
    )


def check(sandbox, place):
    shown = sandbox.commands.run("pwd; cat made; sh app/main.sh; cat app/sub/x; ls texts; stat -c %a renamed.txt; test -d empty; test -z \"$EMPTY\"")
    assert shown.stdout == f"{place}\nbuilt hello\nsecond\napp hello\nxone.txt\nthree.txt\n750\n", shown.stdout


# Of the system of the host.
assert Template.exists("web") is False
logs = []
builder = steps(Template(file_context_path=context).from_template("base"), "work")
info = Template.build(builder, "web", on_build_logs=lambda entry: logs.append(entry.message))
assert info.template_id and info.build_id, info
assert any("to the log" in line for line in logs), logs
assert Template.exists("web") is True and Template.alias_exists("web") is True
first = Sandbox.create("web", timeout=60)
check(first, first.commands.run("echo ~/work").stdout.strip())
assert first.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
again = Sandbox.create(info.template_id, timeout=60)
assert again.files.read("work/made").startswith("built hello")
assert Sandbox.list_snapshots().next_items() == [], "the files of a template are not listed"

# On another template, with a command that runs from the start; tags.
second = Template().from_template("web").run_cmd("echo more >> made").set_start_cmd("sleep 0.3; touch /tmp/up; sleep 1000", wait_for_file("/tmp/up"))
tagged = Template.build(second, "web", tags=["v2"])
assert tagged.template_id == info.template_id
assert Sandbox.create("web", timeout=60).files.read("work/made").splitlines() == ["built hello", "second"]
newer = Sandbox.create("web:v2", timeout=60)
assert newer.files.read("work/made").splitlines()[-1] == "more"
assert newer.files.exists("/tmp/up") and newer.commands.list(), "the command runs"
assert Template.assign_tags("web:v2", "stable").tags == ["stable"]
assert {tag.tag for tag in Template.get_tags("web")} == {"default", "v2", "stable"}
assert Sandbox.create("web:stable", timeout=60).is_running()
Template.remove_tags("web", "stable")
assert "404" in refused(SandboxException, lambda: Sandbox.create("web:stable"))

# In the background; errors of steps, files and names.
background = Template.build_in_background(Template().from_template("base").run_cmd("echo x"), "slow")
for _ in range(600):
    status = Template.get_build_status(background)
    time.sleep(0.05)
    if status.status != TemplateBuildStatus.BUILDING:
        break
assert status.status == TemplateBuildStatus.READY, status
failed = refused(BuildException, lambda: Template.build(Template().from_template("base").run_cmd("echo why >&2; exit 4"), "bad"))
assert "status 4" in failed, failed
assert Template.exists("bad") is False
refused(BuildException, lambda: Template.build(Template().from_template("none-such"), "bad"))
refused(BuildException, lambda: Template.build(Template().from_template("base"), "Not/../valid"))
refused(Exception, lambda: Template.build(Template(file_context_path=context).from_template("base").copy("missing", "x"), "bad"))

# Of an image, whose system the steps can change.
if sys.argv[1:]:
    builder = steps(Template(file_context_path=context).from_image(sys.argv[1]), "/opt/work").run_cmd("id -u > /opt/uid; echo home > ~/in-home")
    Template.build(builder, "of-image")
    system = Sandbox.create("of-image", timeout=60)
    check(system, "/opt/work")
    assert system.files.read("/opt/uid") == "0\n" and system.files.read("in-home") == "home\n"
    assert "200" not in refused(Exception, lambda: system.commands.run("echo x > /opt/uid")), "the system is read-only"
    system.kill()

for item in Sandbox.list().next_items():
    Sandbox.kill(item.sandbox_id)
assert Sandbox.delete_snapshot(info.template_id) is True and Template.exists("web") is False
print("ok")
