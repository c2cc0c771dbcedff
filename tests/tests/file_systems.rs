//! Copy-on-write workspaces on the file systems that people have: ext4, xfs, btrfs and tmpfs, with the change beside
//! the workspace and on another file system. Made by loop devices in a mount namespace of the test's own, so that
//! nothing is left of them.

use ironcage_tests::{Stage, Who, binary, skip};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Makes a file system (`$1`) on an image in `$2`, mounts it at `$2/disk`, and gives that to `$3:$4`.
/// Ends with status 77 and the reason where that cannot be done here.
const MOUNT: &str = r#"
cannot() { echo "$*"; exit 77; }
kind=$1 base=$2 uid=$3 gid=$4
mkdir "$base/disk"
case $kind in
tmpfs) mount -t tmpfs -o size=256m tmpfs "$base/disk" || cannot "tmpfs cannot be mounted" ;;
*)
    grep -qw "$kind" /proc/filesystems || modprobe "$kind" 2>/dev/null || cannot "this kernel has no $kind"
    command -v "mkfs.$kind" >/dev/null || cannot "there is no mkfs.$kind"
    truncate -s 512M "$base/image"
    "mkfs.$kind" "$base/image" >/dev/null 2>&1 || cannot "mkfs.$kind fails"
    mount -t "$kind" -o loop "$base/image" "$base/disk" || cannot "no loop device can be mounted here"
    ;;
esac
chown "$uid:$gid" "$base/disk"
"#;

/// What is done on it, with `$5` the program. The change is on the same file system, then on another.
const SCENE: &str = r#"
as() { setpriv --reuid "$uid" --regid "$gid" --clear-groups "$@"; }
export XDG_RUNTIME_DIR="$base/run" XDG_CONFIG_HOME="$base/config" LANG=C.UTF-8
ironcage=$5
cat >"$base/work.sh" <<'AGENT'
set -e
test "$(cat kept)" = kept
echo changed > src/file; rm gone; mkdir -p new/empty; echo x > new/exec; chmod 755 new/exec
ln -s src/file link; ln new/exec new/twin; mv renamed moved; rm -r tree; mkdir tree; echo again > tree/file
truncate -s 8M sparse; printf end | dd of=sparse bs=1 seek=1000000 conv=notrunc status=none
setfattr -n user.note -v here kept
git add -A; git commit -q -m inside
AGENT
for state in "$base/disk/state" "$base/state"; do
    export HOME="$base/disk/home" XDG_STATE_HOME="$state"
    rm -rf "$HOME"; as mkdir -p "$HOME/project" "$state"; cd "$HOME/project"
    as sh -ec 'mkdir -p src tree/deep; for f in kept gone renamed src/file tree/deep/file; do echo "${f##*/}" > $f; done
        git init -q -b main .; git config user.name n; git config user.email e; git add .; git commit -q -m outside'
    picture() { find . -path ./.git -prune -o -type d -printf '%p %y %m\n' -o -printf '%p %y %m %s %l\n' | sort; as git log --format=%s; }
    picture >"$base/before"
    as "$ironcage" run -q -r "$base/work.sh" -- /bin/sh "$base/work.sh"
    picture | cmp - "$base/before"
    as "$ironcage" run -q -- /bin/sh -c 'test -x new/twin && test ! -e gone && rm -rf ./* .git'
    as "$ironcage" discard --yes >/dev/null
    picture | cmp - "$base/before"
    as "$ironcage" run -q -r "$base/work.sh" -- /bin/sh "$base/work.sh"
    as "$ironcage" apply >/dev/null
    test -z "$(as git status --porcelain)"; as git fsck --strict >/dev/null 2>&1
    test "$(as git log --format=%s | tr '\n' ' ')" = "inside outside "
    picture >"$base/applied"
    # The same done directly is the same.
    as git reset -q --hard HEAD^; as git clean -qfdx; as sh "$base/work.sh"; picture | cmp - "$base/applied"
    test "$(getfattr --only-values -n user.note kept)" = here; # Reading by a mapping, as git does, fills the holes of a file on tmpfs.
    test "$kind" = tmpfs || test "$(stat -c %b sparse)" -lt 1000
    cd /; rm -rf "$HOME"
    test -z "$(find "$state" -path '*/changes/*/w*' -name upper)"
done
"#;

fn works_on(kind: &str, who: Who) {
    let Some(stage) = Stage::new(who) else {
        return;
    };
    if !rustix::process::getuid().is_root() {
        return skip("file systems are mounted by root");
    }
    let script = format!("set -e\n{MOUNT}\n{SCENE}");
    let base = stage.base().display().to_string();
    let owner = stage.uid().to_string();
    let group = std::fs::metadata(stage.base())
        .expect("the stage")
        .gid()
        .to_string();
    let ran = Command::new("timeout")
        .args([
            "-s",
            "KILL",
            "600",
            "unshare",
            "-m",
            "--propagation",
            "private",
        ])
        .args(["/bin/sh", "-xc", &script, "sh", kind, &base, &owner, &group])
        .arg(binary())
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&ran.stdout);
    match ran.status.code() {
        Some(0) => {}
        Some(77) => skip(said.trim()),
        _ => panic!("{kind}: {ran:?}"),
    }
}

macro_rules! file_systems {
    ($($name:ident $kind:literal)*) => {$(
        #[test]
        fn $name() {
            works_on($kind, Who::Root);
            works_on($kind, Who::User);
        }
    )*};
}

file_systems! {
    ext4 "ext4"
    xfs "xfs"
    btrfs "btrfs"
    tmpfs "tmpfs"
}
