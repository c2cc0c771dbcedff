//! Attacks on asking: what a request that looks harmless would lay open, or tell.
#![forbid(unsafe_code)]

use ironcage_tests::{Ran, Running, Stage, both};
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A copy-on-write workspace whose surroundings can be leased for writing at once.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
    code: PathBuf,
}

impl<'a> Cage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage) -> Self {
        let code = stage.aside().join("code");
        stage.write(code.join("project/file"), "real\n");
        stage.write(code.join("beside/file"), "beside\n");
        let policy = stage.base().join("around.toml");
        let text = format!("[ceiling.auto.files]\nwrite = [\"{}\"]\n", code.display());
        stage.write(&policy, text);
        let mut run = stage.ironcage(["run", "-q", "-d", "--policy"]);
        run.arg(&policy)
            .arg("--workspace")
            .arg(code.join("project"));
        run.current_dir(code.join("project"));
        let id = Running::start(&mut run).finish(PATIENCE).ok().stdout();
        let id = id.trim().to_owned();
        Cage { stage, id, code }
    }

    #[track_caller]
    fn exec(&self, command: &[&str]) -> Ran {
        let mut exec = self.stage.ironcage(["exec", &self.id, "--"]);
        Running::start(exec.args(command)).finish(PATIENCE)
    }

    #[track_caller]
    fn ask(&self, path: &str) -> Ran {
        let path = self.code.join(path).display().to_string();
        self.exec(&["/.ironcage/bin/ironcage", "ask", "--write", &path])
    }

    /// Says a line at the socket, as no program of ours would; the answer.
    #[track_caller]
    fn say(&self, path: &str) -> String {
        let path = self.code.join(path).display().to_string();
        let script = "import json, socket, sys\n\
                      s = socket.socket(socket.AF_UNIX); s.connect('/.ironcage/ask')\n\
                      s.sendall(json.dumps({'write': sys.argv[1]}).encode() + b'\\n')\n\
                      print(s.makefile().readline(), end='')";
        self.exec(&["/usr/bin/python3", "-c", script, &path])
            .ok()
            .stdout()
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

both! {
    fn no_lease_lays_the_real_files_over_the_workspace(stage) {
        let cage = Cage::start(stage);
        let file = cage.code.join("project/file");
        let shown = file.display().to_string();
        cage.exec(&["/bin/sh", "-c", &format!("echo changed > {shown}")]).ok();
        // What is around it, by its name, and as the directory of something that is to be made there.
        for path in ["", "notes"] {
            let ran = cage.ask(path);
            assert_eq!(ran.code(), 1, "{ran:?}");
            assert!(ran.stdout().contains("project lies in it"), "{ran:?}");
        }
        // Beside it there is nothing to cover.
        let ran = cage.ask("beside");
        assert_eq!(ran.code(), 0, "{ran:?}");
        let beside = cage.code.join("beside/made").display().to_string();
        cage.exec(&["/bin/sh", "-c", &format!("echo made > {beside}; echo again > {shown}")]).ok();
        assert_eq!(std::fs::read_to_string(&beside).expect("a file"), "made\n");
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "real\n");
        let seen = cage.exec(&["/bin/cat", &shown]).ok().stdout();
        assert_eq!(seen, "again\n");
    }

    fn a_link_does_not_tell_what_there_is_on_the_host(stage) {
        let cage = Cage::start(stage);
        cage.ask("beside").ok();
        let beside = cage.code.join("beside").display().to_string();
        let script = format!(
            "cd {beside} && ln -s /etc/passwd there && ln -s /etc/nothing-of-this-name absent && ln -s /proc/self/root/etc magic"
        );
        cage.exec(&["/bin/sh", "-c", &script]).ok();
        let there = cage.say("beside/there");
        assert!(there.contains("denied"), "{there}");
        assert_eq!(cage.say("beside/absent"), there);
        assert_eq!(cage.say("beside/magic"), there);
        // What is really not there can be made.
        let made = cage.say("beside/new");
        assert!(made.contains("granted"), "{made}");
    }
}
