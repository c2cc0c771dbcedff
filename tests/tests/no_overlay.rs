//! Where overlayfs cannot serve: the start and `doctor` say why and what else there is, and nothing is done in another
//! way instead. Made by overlays over overlays, of which the kernel stacks no more than two, in a mount namespace of the
//! test's own.

use ironcage_tests::{Stage, Who, binary, skip};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Makes `$1/disk/project` an overlay over an overlay, and gives it to `$2:$3`; `$4` is the program.
const SCENE: &str = r#"
set -e
base=$1 uid=$2 gid=$3 ironcage=$4
mkdir "$base/disk"; mount -t tmpfs tmpfs "$base/disk"; cd "$base/disk"
mkdir lower upper1 work1 once upper2 work2 project home run state config
echo real > lower/file
mount -t overlay -o lowerdir=lower,upperdir=upper1,workdir=work1 overlay once || exit 77
mount -t overlay -o lowerdir=once,upperdir=upper2,workdir=work2 overlay project || exit 77
chown -R "$uid:$gid" "$base/disk"
as() { timeout -s KILL 120 setpriv --reuid "$uid" --regid "$gid" --clear-groups "$@"; }
export HOME="$base/disk/home" XDG_RUNTIME_DIR="$base/disk/run" XDG_STATE_HOME="$base/disk/state" XDG_CONFIG_HOME="$base/disk/config"
cd project
for try in 1 2 3 4 5; do
    status=0; as "$ironcage" run -q -- /bin/sh -c 'echo agent > file' > "$base/said" 2>&1 || status=$?
    test "$status" = 125; test "$(cat file)" = real
    # Whatever process of the start is the first to end: the reason comes out.
    grep -q 'copy-on-write view' "$base/said" && grep -q 'Invalid argument' "$base/said"
    grep -q 'cp -a' "$base/said" && grep -q XDG_STATE_HOME "$base/said"
done
test -z "$(find "$XDG_STATE_HOME" -name change.json)"
as "$ironcage" doctor > "$base/doctor" 2>&1 || true
line=$(grep 'copy-on-write view of this directory: no' "$base/doctor")
echo "$line" | grep -q 'Invalid argument'; echo "$line" | grep -q 'workspace-mode direct'; echo "$line" | grep -q 'a copy of the directory'
# What is offered works: a copy, and the real files where no owner has to be mapped.
as cp -a "$base/disk/project" "$base/disk/copy"; cd "$base/disk/copy"
as "$ironcage" run -q -- /bin/sh -c 'echo agent > file'; test "$(cat file)" = real
as "$ironcage" apply > /dev/null; test "$(cat file)" = agent
cd "$base/disk/project"
if [ "$uid" = 0 ]; then
    ! as "$ironcage" run -q --workspace-mode direct -- /bin/true 2> "$base/said"
    grep -q 'cannot map the owner of' "$base/said" && grep -q 'start it as the owner' "$base/said"
else
    grep -q 'workspace-mode direct' "$base/said"
    as "$ironcage" run -q --workspace-mode direct -- /bin/sh -c 'echo agent > file'; test "$(cat file)" = agent
fi
"#;

fn says_why(who: Who) {
    let Some(stage) = Stage::new(who) else {
        return;
    };
    if !rustix::process::getuid().is_root() {
        return skip("file systems are mounted by root");
    }
    let group = std::fs::metadata(stage.base()).expect("the stage").gid();
    let ran = Command::new("timeout")
        .args([
            "-s",
            "KILL",
            "600",
            "unshare",
            "-m",
            "--propagation",
            "private",
            "/bin/sh",
            "-xc",
            SCENE,
            "sh",
        ])
        .arg(stage.base())
        .args([stage.uid().to_string(), group.to_string()])
        .arg(binary())
        .output()
        .expect("a shell");
    match ran.status.code() {
        Some(0) => {}
        Some(77) => skip("no overlay can be mounted over an overlay here"),
        _ => {
            let said =
                |name: &str| std::fs::read_to_string(stage.base().join(name)).unwrap_or_default();
            panic!("{ran:?}\n{}\n{}", said("said"), said("doctor"));
        }
    }
}

#[test]
fn the_start_and_doctor_say_why_and_what_else_there_is_as_root() {
    says_why(Who::Root);
}

#[test]
fn the_start_and_doctor_say_why_and_what_else_there_is_as_user() {
    says_why(Who::User);
}
