//! A file that a command writes outside the workspace is leased by its name: it can be made,
//! replaced and removed, and nothing beside it is seen.

use ironcage_tests::{Ran, Running, Stage, both};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    /// With `given` at once, `asked` for a person, and one file of `single` that is not there.
    #[track_caller]
    fn start(stage: &'a Stage) -> Self {
        let aside = stage.aside();
        for name in [
            "given/secret",
            "given/old",
            "given/deep/file",
            "asked/secret",
            "single/secret",
        ] {
            stage.write(aside.join(name), format!("{name}\n"));
        }
        let at = |name: &str| aside.join(name).display().to_string();
        let policy = stage.base().join("policy.toml");
        let text = format!(
            "[ceiling.auto.files]\nwrite = [\"{}\", \"{}\"]\n[ceiling.ask.files]\nwrite = [\"{}\"]\n",
            at("given"),
            at("single/only"),
            at("asked"),
        );
        stage.write(&policy, text);
        let mut run = stage.ironcage(["run", "-q", "-d", "--workspace-mode", "cow", "--policy"]);
        run.arg(&policy);
        let ran = Running::start(&mut run).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.stage.aside().join(name)
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.at(name)).ok()
    }

    /// Whether a command as a tool call failed, and what came of it. `D` in it is the directory
    /// around everything that is leased.
    #[track_caller]
    fn bash(&self, script: &str) -> (bool, String) {
        let script = script.replace("D/", &format!("{}/", self.stage.aside().display()));
        let call =
            json!({"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": script}});
        let mut exec = self.stage.ironcage(["exec", &self.id, "--intent", "-"]);
        let said = Running::start(&mut exec).feed(call.to_string().into_bytes(), PATIENCE);
        let result: Value = serde_json::from_str(&said.stdout()).expect("JSON");
        let text = result["content"].as_str().expect("text").to_owned();
        (result["is_error"].as_bool().expect("a boolean"), text)
    }

    #[track_caller]
    fn does(&self, script: &str, wanted: &str) {
        let (error, said) = self.bash(script);
        assert!(!error && said == wanted, "{script}: {said}");
    }

    #[track_caller]
    fn ironcage(&self, args: &[&str]) -> Ran {
        Running::start(&mut self.stage.ironcage(args)).finish(PATIENCE)
    }

    fn record(&self) -> String {
        self.ironcage(&["audit", "show", &self.id]).stdout()
    }

    /// The names in a directory of the host.
    fn names(&self, directory: &str) -> Vec<String> {
        let list = std::fs::read_dir(self.at(directory)).expect("a directory");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        };
        let mut names: Vec<String> = list.map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

both! {
    fn a_new_file_is_made_and_nothing_beside_it_is_seen(stage) {
        let cage = Cage::start(stage);
        stage.write(stage.project().join("more.sh"), format!("cd {}\nls -A\ncat secret 2>&1 | sed 's/.*: //'\necho x > other\n", stage.aside().join("given").display()));
        let (error, said) = cage.bash("echo new > D/given/made && . ./more.sh");
        assert!(!error, "{said}");
        assert_eq!(said, "made\nNo such file or directory\n");
        assert_eq!(cage.read("given/made").as_deref(), Some("new\n"));
        // Of what it made beside, nothing is kept.
        assert_eq!(cage.names("given"), ["deep", "made", "old", "secret"]);
        let record = cage.record();
        let lease = format!("write {}", cage.at("given/made").display());
        assert!(record.contains(&lease) && record.contains(": revoked"), "{record}");
        // With a read lease of its own the other one is seen too, and not written.
        cage.does("cat D/given/secret > D/given/copy; ls -A D/given/copy D/given/secret | wc -l", "2\n");
        assert_eq!(cage.read("given/copy").as_deref(), Some("given/secret\n"));
        stage.write(stage.project().join("more.sh"), format!("echo bad >> {}\n", cage.at("given/secret").display()));
        cage.bash("cat D/given/secret > D/given/copy; . ./more.sh");
        assert_eq!(cage.read("given/secret").as_deref(), Some("given/secret\n"));
    }

    fn a_leased_file_is_replaced_and_removed_like_any_other(stage) {
        let cage = Cage::start(stage);
        let inode = |name: &str| {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(cage.at(name)).expect("a file").ino()
        };
        let before = inode("given/old");
        cage.does("echo more >> D/given/old && cat D/given/old", "given/old\nmore\n");
        assert_eq!(inode("given/old"), before, "written where it is");
        cage.does("sed -i s/more/less/ D/given/old", "");
        assert_eq!(cage.read("given/old").as_deref(), Some("given/old\nless\n"));
        stage.write(stage.project().join("new"), "moved\n");
        cage.does("cp new new2; mv new2 D/given/old", "");
        assert_eq!(cage.read("given/old").as_deref(), Some("moved\n"));
        cage.does("rm D/given/old", "");
        assert_eq!(cage.read("given/old"), None);
        cage.does("mkdir D/given/tree && echo 1 > D/given/tree/f && echo 2 > D/given/beside", "");
        assert_eq!(cage.read("given/tree/f").as_deref(), Some("1\n"));
        assert_eq!(cage.read("given/beside").as_deref(), Some("2\n"));
        assert_eq!(cage.names("given"), ["beside", "deep", "secret", "tree"]);
        // A link that leads to what was leased with it is put there; one that leads elsewhere is not.
        cage.does("echo 1 > D/given/one && ln -s one D/given/two", "");
        assert_eq!(cage.read("given/two").as_deref(), Some("1\n"));
        cage.does("ln -s secret D/given/three", "");
        assert_eq!(cage.names("given"), ["beside", "deep", "one", "secret", "tree", "two"]);
        assert!(cage.record().contains("it is a link to secret, which was not leased with it"), "{}", cage.record());
        // Gone with its command.
        let script = format!("ls {}", cage.at("given").display());
        cage.ironcage(&["exec", &cage.id, "--", "/bin/sh", "-c", &script]).ended(2);
    }

    fn where_the_directory_is_read_too_it_is_seen(stage) {
        let cage = Cage::start(stage);
        cage.does("ls D/given && echo new > D/given/made", "deep\nold\nsecret\n");
        assert_eq!(cage.read("given/made").as_deref(), Some("new\n"));
        cage.does("ls D/given/deep && echo x > D/given/deep/file", "file\n");
        let record = cage.record();
        assert!(record.contains(&format!("write {} ", cage.at("given").display())), "{record}");
        assert!(record.contains(&format!("write {}", cage.at("given/deep/file").display())), "{record}");
    }

    fn one_file_that_is_not_there_can_be_in_the_ceiling(stage) {
        let cage = Cage::start(stage);
        cage.does("echo one > D/single/only", "");
        assert_eq!(cage.read("single/only").as_deref(), Some("one\n"));
        let (error, said) = cage.bash("echo two > D/single/other");
        assert!(error, "{said}");
        assert_eq!(cage.names("single"), ["only", "secret"]);
    }

    fn a_person_is_asked_about_the_file_and_a_yes_is_for_that_one(stage) {
        let cage = Cage::start(stage);
        let script = "echo new > D/asked/made";
        let (error, said) = cage.bash(script);
        assert!(error && said.contains("asked/made") && said.contains("\"ask\":true"), "{said}");
        cage.ironcage(&["approve", &format!("{}/1", cage.id)]).ok();
        let (error, said) = cage.bash("echo new > D/asked/another");
        assert!(error, "{said}");
        cage.does(script, "");
        assert_eq!(cage.names("asked"), ["made", "secret"]);
    }

    fn what_took_a_name_meanwhile_is_not_removed(stage) {
        let cage = Cage::start(stage);
        let wait = "rm D/given/old; touch there; while [ ! -e go ]; do sleep 0.05; done";
        std::thread::scope(|scope| {
            let call = scope.spawn(|| cage.bash(wait));
            let there = || cage.ironcage(&["exec", &cage.id, "--", "test", "-e", "there"]).code() == 0;
            assert!(ironcage_tests::wait_until(PATIENCE, there), "it never began");
            std::fs::remove_file(cage.at("given/old")).expect("removed");
            stage.write(cage.at("given/old"), "another\n");
            cage.ironcage(&["exec", &cage.id, "--", "touch", "go"]).ok();
            let (error, said) = call.join().expect("a call");
            assert!(!error, "{said}");
        });
        assert_eq!(cage.read("given/old").as_deref(), Some("another\n"));
        // A directory that has the name now is not replaced, and that is on record.
        let wait = "echo x > D/given/late; touch there2; while [ ! -e go2 ]; do sleep 0.05; done";
        std::thread::scope(|scope| {
            let call = scope.spawn(|| cage.bash(wait));
            let there = || cage.ironcage(&["exec", &cage.id, "--", "test", "-e", "there2"]).code() == 0;
            assert!(ironcage_tests::wait_until(PATIENCE, there), "it never began");
            std::fs::create_dir(cage.at("given/late")).expect("made");
            cage.ironcage(&["exec", &cage.id, "--", "touch", "go2"]).ok();
            call.join().expect("a call");
        });
        assert!(cage.at("given/late").is_dir());
        assert!(cage.record().contains("cannot put what was written in its place"), "{}", cage.record());
    }
}
