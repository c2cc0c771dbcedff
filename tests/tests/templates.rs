//! Templates: steps that run once in cages, what a later build reuses, and cages from a template.

use ironcage_tests::{Exit, Ran, Running, Stage, both, either};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(180);

#[track_caller]
pub(crate) fn template(stage: &Stage, args: &[&str]) -> Ran {
    let args = ["template"].iter().chain(args);
    Running::start(&mut stage.ironcage(args)).finish(DEADLINE)
}

#[track_caller]
fn image(stage: &Stage, args: &[&str]) -> Ran {
    let args = ["image"].iter().chain(args);
    Running::start(&mut stage.ironcage(args)).finish(DEADLINE)
}

/// A directory with a system of one static program, as debootstrap would leave it, and a template file beside it.
pub(crate) struct Tree {
    pub(crate) directory: PathBuf,
}

impl Tree {
    pub(crate) fn new(stage: &Stage) -> Tree {
        let directory = stage.base().join("template");
        for name in [
            "",
            "root",
            "root/bin",
            "root/etc",
            "root/opt",
            "root/dev",
            "root/proc",
        ] {
            stage.mkdir(directory.join(name));
        }
        let busybox = fs::read("/bin/busybox").expect("busybox-static");
        stage.write(directory.join("root/bin/busybox"), busybox);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(directory.join("root/bin/busybox"), mode).expect("executable");
        for name in ["sh", "cat", "cp", "ls", "id", "echo", "touch"] {
            symlink("busybox", directory.join("root/bin").join(name)).expect("linked");
        }
        stage.write(
            directory.join("root/etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\n",
        );
        stage.write(
            directory.join("root/proc/stale"),
            "of the host that made the tree",
        );
        stage.write(directory.join("words.txt"), "first\n");
        Tree { directory }
    }

    pub(crate) fn write(&self, stage: &Stage, text: &str) {
        stage.write(self.directory.join("template.toml"), text);
    }

    pub(crate) fn file(&self) -> String {
        self.directory.join("template.toml").display().to_string()
    }
}

fn left(stage: &Stage, part: &str) -> usize {
    let path: &Path = &stage.state().join("ironcage/images").join(part);
    fs::read_dir(path).map_or(0, |entries| entries.count())
}

const GOOD: &str = r#"
root = "root"
policy = "policy.toml"
files = ["words.txt"]
steps = ["cp words.txt /opt/words", "cat /opt/words; echo second >> /opt/words"]
"#;

both! {
    fn steps_run_once_and_a_cage_from_the_template_has_what_they_wrote(stage) {
        let tree = Tree::new(stage);
        tree.write(stage, GOOD);
        stage.write(tree.directory.join("policy.toml"), "[env]\nset = { FROM_TEMPLATE = \"yes\" }\n");
        let built = template(stage, &["build", "words", &tree.file()]).ok();
        assert!(built.stdout().contains("first\n") && built.stderr.contains("step 2 of 2: cat"), "{built:?}");
        let again = template(stage, &["build", "words", &tree.file()]).ok();
        assert!(again.stderr.contains("step 2 of 2: cached") && !again.stdout().contains("first"), "{again:?}");
        let look = ["/bin/sh", "-c", "cat /opt/words; echo $FROM_TEMPLATE; ls /proc/stale; echo x > /opt/words"];
        let ran = stage.run(&["-q", "--template", "words"], &look);
        assert_eq!(ran.stdout(), "first\nsecond\nyes\n", "{ran:?}");
        for refused in ["/proc/stale: No such file", "/opt/words: Read-only file system"] {
            assert!(ran.stderr.contains(refused), "{refused}: {ran:?}");
        }
        // A policy that the caller names is taken instead.
        let other = stage.run(&["-q", "--template", "words", "--profile", "shell"], &look);
        assert_eq!(other.stdout(), "first\nsecond\n\n", "{other:?}");
        // A file that changed runs every step that could read it.
        stage.write(tree.directory.join("words.txt"), "changed\n");
        let changed = template(stage, &["build", "words", &tree.file()]).ok();
        assert!(!changed.stderr.contains("cached"), "{changed:?}");
        assert_eq!(stage.run(&["-q", "--template", "words"], &["/bin/cat", "/opt/words"]).ok().stdout(), "changed\nsecond\n");
        assert_eq!(left(stage, "systems"), 0, "what steps wrote is in images");
        let list = template(stage, &["list"]).ok().stdout();
        assert!(list.contains("words"), "{list}");
        let shown = template(stage, &["show", "words", "--json"]).ok().stdout();
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(shown["steps"].as_array().map(Vec::len), Some(2), "{shown}");
    }

    fn a_template_keeps_its_image_until_it_is_removed(stage) {
        let tree = Tree::new(stage);
        tree.write(stage, "root = \"root\"\nsteps = [\"touch /opt/made\"]\n");
        template(stage, &["build", "kept", &tree.file()]).ok();
        image(stage, &["prune", "--all"]).ok();
        stage.run(&["-q", "--template", "kept"], &["/bin/ls", "/opt/made"]).ok();
        // What no template is built on goes, and what one is built on stays: the next build has it.
        tree.write(stage, "root = \"root\"\nsteps = [\"touch /opt/made\", \"touch /opt/more\"]\n");
        template(stage, &["build", "other", &tree.file()]).ok();
        template(stage, &["prune"]).ok();
        let again = template(stage, &["build", "other", &tree.file()]).ok();
        assert!(again.stderr.contains("step 1 of 2: cached") && again.stderr.contains("step 2 of 2: cached"), "{again:?}");
        let before = left(stage, "images");
        template(stage, &["rm", "other"]).ok();
        assert_eq!(left(stage, "images"), before);
        template(stage, &["prune"]).ok();
        assert_eq!(left(stage, "images"), before - 1, "the image of its last step");
        stage.run(&["-q", "--template", "kept"], &["/bin/ls", "/opt/made"]).ok();
        template(stage, &["rm", "kept"]).ok();
        stage.run(&["-q", "--template", "kept"], &["/bin/ls"]).failed("no-such-template");
        image(stage, &["prune", "--all"]).ok();
        for part in ["images", "layers", "roots", "blobs", "systems"] {
            assert_eq!(left(stage, part), 0, "{part}");
        }
    }

    fn a_step_that_fails_leaves_the_template_as_it_was(stage) {
        let tree = Tree::new(stage);
        tree.write(stage, "root = \"root\"\nsteps = [\"echo good > /opt/state\"]\n");
        template(stage, &["build", "web", &tree.file()]).ok();
        tree.write(stage, "root = \"root\"\nsteps = [\"echo bad > /opt/state\", \"exit 3\"]\n");
        template(stage, &["build", "web", &tree.file()]).ended(125).says("step 2 of 2 failed");
        assert_eq!(stage.run(&["-q", "--template", "web"], &["/bin/cat", "/opt/state"]).ok().stdout(), "good\n");
        // What a file says of paths outside its directory is refused before anything runs.
        tree.write(stage, "root = \"root\"\nfiles = [\"../secret\"]\n");
        template(stage, &["build", "web", &tree.file()]).ended(125).says("expected paths below");
        template(stage, &["build", "../web", &tree.file()]).ended(125).says("invalid template name");
        // A step has no network, no home of the user's and none of the other files.
        tree.write(stage, "root = \"root\"\nsteps = [\"! cat words.txt; ls -A $HOME; ls -A\"]\n");
        let ran = template(stage, &["build", "web", &tree.file()]).ok();
        assert!(!ran.stdout().contains("words"), "{ran:?}");
    }

    fn a_plain_directory_is_loaded_as_an_image_under_a_name(stage) {
        let tree = Tree::new(stage);
        let root = tree.directory.join("root").display().to_string();
        image(stage, &["load", &root]).ended(125).says("--name NAME");
        image(stage, &["load", &root, "--name", "tree:1"]).ok();
        let ran = stage.run(&["-q", "--image", "tree:1"], &["/bin/cat", "/etc/passwd"]).ok();
        assert!(ran.stdout().contains("root:x:0:0"), "{ran:?}");
        let entry = stage.run(&["-q", "--image", "tree:1", "--entrypoint", "/bin/echo"], &["hello"]);
        assert_eq!(entry.ok().stdout(), "hello\n");
    }
}

/// Every third step of a start and of the store: each is tried in `faults.rs` and below.
const STRIDE: usize = 3;

either! {
    fn a_build_that_is_killed_leaves_the_template_as_it_was(stage) {
        let tree = Tree::new(stage);
        tree.write(stage, "root = \"root\"\nsteps = [\"echo old > /opt/state\"]\n");
        template(stage, &["build", "web", &tree.file()]).ok();
        let state = || stage.run(&["-q", "--template", "web"], &["/bin/cat", "/opt/state"]).ok().stdout();
        tree.write(stage, "root = \"root\"\nsteps = [\"echo new > /opt/state\"]\n");
        let mut killed = 0;
        // The cages of the steps inherit the fault: they are killed, too.
        for fault in (0..).step_by(STRIDE) {
            let mut build = stage.ironcage(["template", "build", "--no-cache", "web", &tree.file()]);
            let ran = Running::start(build.env("IRONCAGE_FAULT", fault.to_string())).finish(DEADLINE);
            if ran.exit == Exit::Code(0) {
                break;
            }
            killed += 1;
            // Killed after the last step, it is the new one.
            let now = state();
            assert!(now == "old\n" || now == "new\n" && ran.exit == Exit::Signal(9), "fault {fault}: {now} {ran:?}");
        }
        assert!(killed > 1, "killed {killed} times: is this a debug build?");
        assert_eq!(state(), "new\n");
        template(stage, &["rm", "web"]).ok();
        image(stage, &["prune", "--all"]).ok();
        for part in ["images", "names", "layers", "roots", "blobs", "partial", "temporary", "systems"] {
            assert_eq!(left(stage, part), 0, "{part}");
        }
    }

    fn a_kill_at_any_step_loses_nothing_and_leaves_nothing_half_visible(stage) {
        let tree = Tree::new(stage);
        let root = tree.directory.join("root").display().to_string();
        image(stage, &["load", &root, "--name", "kept:1"]).ok();
        stage.write(tree.directory.join("root/opt/other"), "another image");
        let write = ["/bin/sh", "-c", "echo written > /opt/state"];
        let commands: [(&[&str], &[&str]); 4] = [
            (&["image", "load", &root, "--name", "other:1"], &["other:1", "/bin/ls", "/bin/busybox"]),
            (&["image", "commit", "mine:1"], &["mine:1", "/bin/cat", "/opt/state"]),
            (&["image", "rm", "other:1"], &[]),
            (&["image", "prune"], &[]),
        ];
        for (command, check) in commands {
            if command[1] == "commit" {
                stage.run(&["-q", "--image", "kept:1", "--writable-image"], &write).ok();
            }
            let mut killed = 0;
            loop {
                let ran = Running::start(stage.ironcage(command).env("IRONCAGE_FAULT", killed.to_string())).finish(DEADLINE);
                if ran.exit != Exit::Signal(9) {
                    // A name that is gone cannot be removed again.
                    assert!(ran.exit == Exit::Code(0) || command[1] == "rm" && killed > 0, "{command:?}: {ran:?}");
                    break;
                }
                killed += 1;
                // What is listed is whole, and what was there before is still there.
                let list = image(stage, &["list"]).ok().stdout();
                assert!(list.contains("kept:1"), "{command:?}, step {killed}: {list}");
                if let [name, program @ ..] = check && list.contains(name) {
                    stage.run(&["-q", "--image", name], program).ok();
                }
            }
            assert!(killed > 1, "{command:?} was killed {killed} times: is this a debug build?");
            if let [name, program @ ..] = check {
                stage.run(&["-q", "--image", name], program).ok();
            }
        }
        stage.run(&["-q", "--image", "kept:1"], &["/bin/ls", "/bin/busybox"]).ok();
        image(stage, &["prune", "--all"]).ok();
        for part in ["images", "names", "layers", "roots", "blobs", "partial", "temporary", "systems"] {
            assert_eq!(left(stage, part), 0, "{part}");
        }
    }
}
