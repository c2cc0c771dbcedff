//! Places that a cage gets only by an explicit word, and what stays protected in any tree that it may write.

use ironcage_tests::{DIRECT, Running, Stage, both};
use std::path::Path;
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in text")
}

/// Refused with the remedy, and given with the explicit word.
fn needs_a_word(stage: &Stage, flag: &str, path: &str) {
    let ran = stage.sh_with(&[flag, path], "true").ended(125);
    assert!(ran.stderr.contains("--i-know"), "{path}: {ran:?}");
    stage.sh_with(&[flag, path, "--i-know"], "true").ok();
}

both! {
    fn system_directories_are_not_writable_by_a_slip(stage) {
        for path in ["/etc", "/usr", "/opt", "/usr/local"] {
            needs_a_word(stage, "-w", &format!("{path}:direct"));
        }
        stage.sh_with(&["-r", "/usr"], "true").ok();
        stage.sh_with(&["-w", text(&stage.aside())], "true").ok();
    }

    fn credentials_are_not_readable_by_a_slip(stage) {
        let keys = stage.home().join(".ssh");
        stage.write(keys.join("id_ed25519"), "canary");
        stage.write(stage.home().join("notes"), "open");
        needs_a_word(stage, "-r", text(&keys));
        needs_a_word(stage, "-r", text(&keys.join("id_ed25519")));
        needs_a_word(stage, "-r", "/etc");
        let ran = stage.sh_with(&["-r", text(&stage.home().join("notes"))], "cat ~/notes ~/.ssh/*");
        assert_eq!(ran.stdout(), "open");
    }

    fn credentials_behind_a_link_are_not_readable_by_a_slip(stage) {
        stage.write(stage.aside().join("keys/id_ed25519"), "canary");
        let keys = stage.aside().join("keys");
        stage.sh_with(&["-r", text(&keys)], "true").ok();
        std::os::unix::fs::symlink(&keys, stage.home().join(".ssh")).expect("a link");
        needs_a_word(stage, "-r", text(&keys));
    }

    fn a_variable_that_the_caller_has_not_is_told(stage) {
        assert!(!stage.sh_with(&["--env", "LANG"], "true").ok().stderr.contains("not set in your environment"));
        stage.sh_with(&["--env", "NO_SUCH_VARIABLE"], "true").ok().says("not set in your environment");
    }

    fn start_up_files_of_the_user_are_not_writable_by_a_slip(stage) {
        let startup = stage.home().join(".bashrc");
        stage.write(&startup, "original");
        needs_a_word(stage, "-w", &format!("{}:direct", text(&startup)));
        stage.sh_with(&["-r", text(&startup)], "echo x > ~/.bashrc");
        assert_eq!(std::fs::read_to_string(&startup).expect("the file"), "original");
    }

    fn password_hashes_are_hidden_in_an_etc_that_is_given(stage) {
        let ran = stage.sh_with(&["-r", "/etc", "--i-know"], "cat /etc/shadow; cat /etc/debian_version");
        let version = std::fs::read_to_string("/etc/debian_version").expect("Debian");
        assert_eq!(ran.stdout(), version);
    }

    fn what_the_host_trusts_is_protected_in_every_writable_tree(stage) {
        let other = stage.aside();
        stage.sh_outside(&format!("git init -q {}", other.display())).ok();
        let hook = other.join(".git/hooks/pre-commit");
        let plant = format!("echo x > {}; echo y > {}/made", hook.display(), other.display());
        stage.sh_with(&[DIRECT[0], DIRECT[1], "-w", text(&other)], &plant);
        assert!(!hook.exists() && other.join("made").exists());
        // Named itself, it is given.
        stage.sh_with(&[DIRECT[0], DIRECT[1], "-w", text(&other), "-w", text(&other.join(".git/hooks"))], &plant).ok();
        assert!(hook.exists());
        // Where the change is kept aside, everything can be written and nothing of it is there.
        std::fs::remove_file(&hook).expect("the hook goes");
        stage.sh_with(&["-w", text(&other)], &plant).ok();
        assert!(!hook.exists());
    }
}

/// What `ironcage plan --path` says, and what a cage does.
fn told(stage: &Stage, path: &str) -> String {
    let mut plan = stage.ironcage(["plan", "--workspace-mode", "direct", "--path", path]);
    let ran = Running::start(&mut plan).finish(Duration::from_secs(60));
    ran.ok().stdout()
}

both! {
    fn what_is_said_about_a_path_is_what_a_cage_does(stage) {
        stage.write(stage.project().join("plain"), "x");
        stage.write(stage.project().join(".envrc"), "x");
        stage.write(stage.aside().join("secret"), "x");
        let aside = stage.aside().join("secret");
        for (path, said, readable, writable) in [
            ("plain", "writable: the host's", true, true),
            (".envrc", "read-only, because your own tools", true, false),
            (text(&aside), "absent", false, false),
            ("/usr/bin/env", "read-only: the host's", true, false),
        ] {
            let words = told(stage, path);
            assert!(words.contains(said), "{path}: {words}");
            assert_eq!(stage.sh_with(&DIRECT, &format!("cat {path} >/dev/null")).code() == 0, readable, "{path}");
            assert_eq!(stage.sh_with(&DIRECT, &format!(": >> {path}")).code() == 0, writable, "{path}");
        }
        assert!(told(stage, ".envrc").contains("--unprotect .envrc"));
    }
}
