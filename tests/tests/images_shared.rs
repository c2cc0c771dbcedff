//! The store that all users share: root fills it, everybody runs what is in it by digest, nobody else changes it, and no
//! user holds up another one.

use crate::image_fixtures::{DEADLINE, Layout, image, text};
use ironcage_tests::{Exit, Ran, Running, Stage, Who, wait_until};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VARIABLE: &str = "IRONCAGE_SHARED_IMAGES";

/// Root and a user with one store, and an image in it.
struct Two {
    root: Stage,
    user: Stage,
    place: tempfile::TempDir,
    digest: String,
}

impl Two {
    fn new() -> Option<Two> {
        let (root, user) = (Stage::new(Who::Root)?, Stage::new(Who::User)?);
        let place = tempfile::tempdir().expect("a directory");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("opened");
        let layout = Layout::new();
        image(&root, &["load", text(&layout.saved())]).ok();
        let mut two = Two {
            root,
            user,
            place,
            digest: String::new(),
        };
        let shared = two.image(&two.root, &["share", "small:1"]).ok().stdout();
        two.digest = shared.trim().to_owned();
        Some(two)
    }

    fn store(&self) -> PathBuf {
        self.place.path().join("store")
    }

    fn with(&self, mut command: Command) -> Command {
        command.env(VARIABLE, self.store());
        command
    }

    fn image(&self, stage: &Stage, args: &[&str]) -> Ran {
        let args = ["image"].iter().chain(args);
        Running::start(&mut self.with(stage.ironcage(args))).finish(DEADLINE)
    }

    fn run(&self, stage: &Stage, flags: &[&str], script: &str) -> Ran {
        Running::start(&mut self.with(stage.cage(&[&["-q"], flags].concat(), &["-c", script])))
            .finish(DEADLINE)
    }

    /// A cage that runs until its input ends. It ends earlier if nobody is left to read its output.
    fn held(&self, stage: &Stage) -> (Running, impl std::io::Read + use<>) {
        let mut command =
            self.with(stage.cage(&["-q", "--image", &self.digest], &["-c", "echo ready; cat"]));
        let mut running = Running::start(command.stdin(Stdio::piped()));
        let (mut first, mut output) = ([0_u8; 6], running.stdout());
        output.read_exact(&mut first).expect("ready");
        (running, output)
    }

    /// Files of the shared store, but for locks of users.
    fn content(&self) -> Vec<(PathBuf, u32, u64)> {
        let mut found = Vec::new();
        walk(&self.store(), &mut found);
        found.sort();
        found
    }
}

fn walk(place: &Path, found: &mut Vec<(PathBuf, u32, u64)>) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let about = entry.metadata().expect("looked at");
        if entry.path().ends_with("uses") {
            continue;
        }
        found.push((entry.path(), about.mode(), about.ino()));
        if about.is_dir() {
            walk(&entry.path(), found);
        }
    }
}

#[test]
fn everybody_runs_a_shared_image_by_its_digest_and_only_root_changes_it() {
    let Some(two) = Two::new() else { return };
    let before = two.content();
    for stage in [&two.root, &two.user] {
        let ran = two.run(
            stage,
            &["--image", &two.digest],
            "cat /etc/release; echo x >/opt/app/x",
        );
        assert!(
            ran.stdout() == "upper\n" && ran.stderr.contains("Read-only"),
            "{ran:?}"
        );
    }
    // With a name before it, as in a registry, and nothing is asked of that.
    let named = format!("registry.invalid/team/small@{}", two.digest);
    assert_eq!(
        two.run(&two.user, &["--image", &named], "cat /etc/release")
            .ok()
            .stdout(),
        "upper\n"
    );
    // A name alone, and a part of the digest, mean the user's own store.
    two.run(&two.user, &["--image", "127.0.0.1:1/small:1"], "true")
        .ended(125)
        .says("cannot pull");
    two.run(&two.user, &["--image", &two.digest[7..19]], "true")
        .ended(125);
    for flags in [&["--writable-image"][..], &["--boot"]] {
        two.run(
            &two.user,
            &[&["--image", &two.digest], flags].concat(),
            "true",
        )
        .ended(125)
        .says("the shared store is read-only");
    }
    for args in [["share", "small:1"], ["unshare", &two.digest]] {
        two.image(&two.user, &args).failed("shared-store-is-roots");
    }
    let listed = two.image(&two.user, &["list", "--shared"]).ok().stdout();
    assert!(listed.contains(&two.digest[7..19]), "{listed}");
    assert_eq!(two.content(), before);
    // What could be changed by somebody else is not run.
    for part in ["", "images", "roots"] {
        let path = two.store().join(part);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("opened");
        two.run(&two.user, &["--image", &two.digest], "true")
            .ended(125)
            .says("not a directory of root alone");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("closed");
    }
    two.run(&two.user, &["--image", &two.digest], "true").ok();
}

#[test]
fn a_shared_image_stays_while_anybody_uses_it_and_locks_of_others_hold_up_nobody() {
    let Some(two) = Two::new() else { return };
    let uses = two.store().join("uses");
    let hex = two.digest["sha256:".len()..].to_owned();
    // A hostile user takes the names of another one's locks, with whatever can be there, and locks all that can be
    // opened.
    let (uid, own) = (two.root.uid(), two.user.uid());
    let hostile = r#"
import fcntl, os, sys
store, hex, uid = sys.argv[1:]
os.chdir(store + "/uses")
os.mkdir(f"{hex}.{uid}"); os.mkfifo(f"{hex}.7"); os.symlink("/etc/shadow", f"{hex}.8"); open(f"{hex}.9", "w").close()
held = []
for path in ["../images", "../roots", f"../images/{hex}", f"../roots/{hex}", f"../roots/{hex}/etc/release"]:
    held.append(os.open(path, os.O_RDONLY))
    fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
open(f"{hex}.ready", "w").close()
sys.stdin.read()
"#;
    let store = two.store();
    let mut python = two.user.outside("python3");
    python.args(["-c", hostile, text(&store), &hex, &uid.to_string()]);
    let mut running = Running::start(python.stdin(Stdio::piped()));
    assert!(wait_until(DEADLINE, || uses
        .join(format!("{hex}.ready"))
        .exists()));
    let shadow = fs::metadata("/etc/shadow").expect("there").ino();
    two.image(&two.root, &["share", "small:1"]).ok();
    // From here on root has it from the shared store, too.
    image(&two.root, &["rm", "small:1"]).ok();
    let ran = two.run(&two.root, &["--image", &two.digest], "cat /etc/release");
    assert_eq!(ran.ok().stdout(), "upper\n");
    // In use by each of them, one after the other.
    for (stage, who) in [(&two.user, own), (&two.root, uid)] {
        let (mut cage, _output) = two.held(stage);
        two.image(&two.root, &["unshare", &two.digest])
            .ended(125)
            .says(&format!("a running cage of user {who} uses it"));
        let other = two.run(stage, &["--image", &two.digest], "cat /etc/release");
        assert_eq!(other.ok().stdout(), "upper\n");
        drop(cage.stdin());
        cage.finish(DEADLINE).ok();
    }
    two.image(&two.root, &["unshare", &two.digest]).ok();
    drop(running.stdin());
    running.finish(DEADLINE).ok();
    let left: Vec<_> = two
        .content()
        .into_iter()
        .filter(|(path, ..)| path.parent() != Some(&*two.store()))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fs::read_dir(&uses).expect("uses").count(), 0);
    assert_eq!(
        fs::metadata("/etc/shadow").expect("still there").ino(),
        shadow
    );
    two.run(&two.user, &["--image", &two.digest], "true")
        .ended(125);
}

#[test]
fn a_kill_while_an_image_is_shared_or_removed_leaves_it_whole_or_gone() {
    let Some(two) = Two::new() else { return };
    for args in [["unshare", &two.digest], ["share", "small:1"]] {
        let mut killed = 0;
        loop {
            let mut command = two.with(two.root.ironcage(["image", args[0], args[1]]));
            let ran =
                Running::start(command.env("IRONCAGE_FAULT", killed.to_string())).finish(DEADLINE);
            if ran.exit != Exit::Signal(9) {
                // What is gone cannot be removed again.
                assert!(
                    ran.exit == Exit::Code(0) || args[0] == "unshare" && killed > 0,
                    "{ran:?}"
                );
                break;
            }
            killed += 1;
            let listed = two.image(&two.user, &["list", "--shared"]).ok().stdout();
            let run = two.run(&two.user, &["--image", &two.digest], "cat /etc/release");
            match listed.contains(&two.digest[7..19]) {
                true => assert_eq!(run.ok().stdout(), "upper\n", "{args:?}, step {killed}"),
                false => assert_eq!(run.code(), 125, "{args:?}, step {killed}"),
            }
        }
        assert!(
            killed > 1,
            "{args:?} was killed {killed} times: is this a debug build?"
        );
    }
    two.run(&two.user, &["--image", &two.digest], "cat /etc/release")
        .ok();
}
