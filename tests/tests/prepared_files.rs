//! What an earlier agent left in a workspace under names that Ironcage reads before a cage exists:
//! FIFOs, sockets, links and endless files are refused or left out at once, and named.
//!
//! A hang is ended by the deadline of each command; nothing asserts how long something took.

use ironcage_tests::{Ran, Running, Stage, both};
use rustix::fs::{CWD, Mode, mkfifoat};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// What is put at a path.
#[derive(Debug, Clone, Copy)]
enum Trap {
    Fifo,
    Socket,
    Directory,
    Endless,
    Sparse,
}

const TRAPS: [Trap; 5] = [
    Trap::Fifo,
    Trap::Socket,
    Trap::Directory,
    Trap::Endless,
    Trap::Sparse,
];

fn clear(path: &Path) {
    if path.is_dir() && !path.is_symlink() {
        std::fs::remove_dir_all(path).expect("removed");
    } else if path.symlink_metadata().is_ok() {
        std::fs::remove_file(path).expect("removed");
    }
}

/// Puts a trap at a path, which belongs to whoever tests.
fn set(stage: &Stage, path: &Path, trap: Trap) {
    clear(path);
    match trap {
        Trap::Fifo => mkfifoat(CWD, path, Mode::from_raw_mode(0o666)).expect("a FIFO"),
        Trap::Socket => drop(std::os::unix::net::UnixListener::bind(path).expect("a socket")),
        Trap::Directory => stage.mkdir(path),
        Trap::Endless => std::os::unix::fs::symlink("/dev/zero", path).expect("a link"),
        Trap::Sparse => {
            stage.write(path, "");
            let file = std::fs::File::options().write(true).open(path);
            file.and_then(|file| file.set_len(10 << 30))
                .expect("a sparse file");
        }
    }
    if !matches!(trap, Trap::Endless) {
        rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(stage.uid())), None).expect("owned");
    }
}

fn ironcage(stage: &Stage, arguments: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(arguments)).finish(PATIENCE)
}

both! {
    fn a_policy_in_the_workspace_that_is_no_file_is_refused_at_once(stage) {
        let policy = stage.project().join("ironcage.toml");
        let commands: [&[&str]; 4] = [
            &["run", "-q", "--", "true"],
            &["plan", "--", "true"],
            &["trust"],
            &["policy", "check", "ironcage.toml"],
        ];
        for trap in TRAPS {
            set(stage, &policy, trap);
            for command in commands {
                let ran = ironcage(stage, command);
                assert!(ran.code() != 0, "{trap:?} {command:?}: {}", ran.stderr);
                // `trust` names what a link leads to.
                let named = ["ironcage.toml", "/dev/zero"].iter().any(|name| ran.stderr.contains(name));
                assert!(named, "{trap:?} {command:?}: {}", ran.stderr);
            }
        }
        clear(&policy);
        stage.write(&policy, "[files]\nhide = [\"**/.env\"]\n");
        ironcage(stage, &["run", "-q", "--", "true"]).ok();
        ironcage(stage, &["plan", "--", "true"]).ok();
    }

    fn git_files_that_are_no_files_are_left_out_at_once(stage) {
        stage.sh_outside("git init -q . && git config user.name x && git config user.email x@x && git commit -q --allow-empty -m x").ok();
        let at = |name: &str| stage.project().join(name);
        ironcage(stage, &["run", "-q", "--", "true"]).ok();
        for name in [".git/HEAD", ".git/config", ".git/index", ".git/info/exclude", ".gitignore", ".git/packed-refs"] {
            let kept = std::fs::read(at(name)).ok();
            for trap in TRAPS {
                set(stage, &at(name), trap);
                // Whatever they say of it, they end.
                ironcage(stage, &["plan", "--", "true"]).ok();
                ironcage(stage, &["run", "-q", "--", "sh", "-c", "echo x > new"]);
                ironcage(stage, &["diff"]);
                ironcage(stage, &["apply"]);
                ironcage(stage, &["discard", "--yes"]);
            }
            clear(&at(name));
            if let Some(kept) = kept {
                stage.write(at(name), kept);
            }
        }
        ironcage(stage, &["run", "-q", "--", "sh", "-c", "echo y > later"]).ok();
        ironcage(stage, &["apply"]).ok();
        assert_eq!(stage.read("later").as_deref(), Some("y\n"));
    }

    fn a_git_pointer_that_is_no_file_is_left_out_at_once(stage) {
        let pointer = stage.project().join(".git");
        for trap in TRAPS {
            set(stage, &pointer, trap);
            ironcage(stage, &["plan", "--", "true"]).ok();
            ironcage(stage, &["run", "-q", "--", "true"]);
        }
        clear(&pointer);
        stage.sh_outside("git init -q .").ok();
        ironcage(stage, &["run", "-q", "--", "true"]).ok();
    }

    fn user_files_that_cannot_be_read_are_named_and_left_out(stage) {
        let config = stage.home().join(".gitconfig");
        for trap in TRAPS {
            set(stage, &config, trap);
            let ran = ironcage(stage, &["run", "--", "true"]).ok();
            assert!(ran.stderr.contains(".gitconfig"), "{trap:?}: {}", ran.stderr);
        }
        clear(&config);
        stage.write(&config, "[user]\nname = Ann\n");
        let ran = ironcage(stage, &["run", "--", "git", "config", "user.name"]).ok();
        assert!(!ran.stderr.contains(".gitconfig"), "{}", ran.stderr);
        assert_eq!(ran.stdout(), "Ann\n");
    }

    fn files_named_on_the_command_line_are_refused_at_once(stage) {
        let file = stage.project().join("named");
        let shown = file.display().to_string();
        let commands: [&[&str]; 3] = [
            &["run", "-q", "--policy", &shown, "--", "true"],
            &["policy", "import", "srt", &shown],
            &["intent", "answer", &shown],
        ];
        for trap in TRAPS {
            set(stage, &file, trap);
            for command in commands {
                let ran = ironcage(stage, command);
                assert!(ran.code() != 0, "{trap:?} {command:?}");
                assert!(!ran.stderr.is_empty(), "{trap:?} {command:?}");
            }
        }
        clear(&file);
        stage.write(&file, "[files]\nhide = [\"**/.env\"]\n");
        ironcage(stage, &["run", "-q", "--policy", &shown, "--", "true"]).ok();
    }

    fn secrets_and_keys_that_are_no_files_are_refused_at_once(stage) {
        let file = stage.project().join("token");
        let secret = format!("TOKEN=file:{}@api.test", file.display());
        let keys = format!(
            "[network]\nallow = [\"api.test\"]\n[network.aws]\nhosts = [\"api.test\"]\nfrom = \"file:{}\"\n",
            file.display()
        );
        let policy = stage.home().join("keys.toml");
        stage.write(&policy, keys);
        let policy = policy.display().to_string();
        let commands: [&[&str]; 2] = [
            &["run", "-q", "--allow-host", "api.test", "--secret", &secret, "--", "true"],
            &["run", "-q", "--policy", &policy, "--", "true"],
        ];
        for trap in TRAPS {
            set(stage, &file, trap);
            for command in commands {
                let ran = ironcage(stage, command);
                assert!(ran.code() != 0, "{trap:?} {command:?}");
                assert!(ran.stderr.contains("token"), "{trap:?} {command:?}: {}", ran.stderr);
            }
        }
        clear(&file);
        stage.write(&file, "a-value-of-some-length\n");
        ironcage(stage, commands[0]).ok();
        stage.write(&file, r#"{"Version":1,"AccessKeyId":"AKIDEXAMPLE","SecretAccessKey":"a-key-of-some-length"}"#);
        ironcage(stage, commands[1]).ok();
    }

    fn other_files_that_are_read_before_a_cage_are_never_waited_for(stage) {
        // Each is read by some command; whatever is said of it, the command ends.
        let home = stage.home();
        let config = stage.base().join("config/ironcage");
        stage.mkdir(home.join(".ssh"));
        stage.mkdir(&config);
        stage.mkdir(config.join("profiles"));
        let archive = stage.project().join("image.tar").display().to_string();
        let base = stage.project().join("base.toml");
        let policy = stage.project().join("own.toml");
        stage.write(&policy, "extends = \"./base.toml\"\n");
        let policy = policy.display().to_string();
        let run: &[&str] = &["run", "-q", "--", "true"];
        let cases: [(PathBuf, &[&str]); 6] = [
            (home.join(".ssh/known_hosts"), run),
            (home.join(".ssh/config"), run),
            (config.join("config.toml"), run),
            (config.join("profiles/mine.toml"), &["run", "-q", "--profile", "mine", "--", "true"]),
            (stage.project().join("image.tar"), &["image", "load", &archive]),
            (base, &["run", "-q", "--policy", &policy, "--", "true"]),
        ];
        for (path, command) in &cases {
            for trap in TRAPS {
                set(stage, path, trap);
                ironcage(stage, command);
            }
            clear(path);
        }
        ironcage(stage, run).ok();
    }
}

/// Devices are for root to make.
#[test]
fn a_device_in_the_place_of_a_policy_is_refused_by_root() {
    let Some(stage) = Stage::new(ironcage_tests::Who::Root) else {
        return;
    };
    let policy: PathBuf = stage.project().join("ironcage.toml");
    let device = rustix::fs::makedev(1, 5);
    let kind = rustix::fs::FileType::CharacterDevice;
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(CWD, &policy, kind, mode, device).expect("a device");
    let ran = ironcage(&stage, &["run", "-q", "--", "true"]);
    assert!(
        ran.code() != 0 && ran.stderr.contains("a device"),
        "{}",
        ran.stderr
    );
}
