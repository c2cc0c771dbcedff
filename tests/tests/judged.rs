//! A judge by command: what the ceiling gives at once can be asked for or denied by it, and nothing
//! more is given than without it.

use ironcage_tests::{Ran, Running, Stage, either};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    /// With `given` at once and `asked` for a person, judged by a script.
    #[track_caller]
    fn start(stage: &'a Stage, judge: &str) -> Self {
        let aside = stage.aside();
        for name in ["given/file", "asked/file", "outside/file"] {
            stage.write(aside.join(name), format!("{name}\n"));
        }
        let program = stage.base().join("judge");
        stage.write(
            &program,
            format!("#!/bin/sh\ncat > {}.told\n{judge}\n", program.display()),
        );
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("a mode");
        let policy = stage.base().join("policy.toml");
        let at = |name: &str| aside.join(name).display().to_string();
        stage.write(&policy, format!(
            "[intent]\njudge = [\"{}\"]\n[ceiling.auto.files]\nread = [\"{}\"]\n[ceiling.ask.files]\nread = [\"{}\"]\n",
            program.display(), at("given"), at("asked"),
        ));
        let mut run = stage.ironcage(["run", "-q", "-d", "--policy"]);
        run.arg(&policy);
        let ran = Running::start(&mut run).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    #[track_caller]
    fn read(&self, name: &str) -> String {
        let path = self.stage.aside().join(name).display().to_string();
        let call = format!(
            r#"{{"type":"tool_use","id":"t","name":"Bash","input":{{"command":"cat {path}"}}}}"#
        );
        let mut exec = self.stage.ironcage(["exec", &self.id, "--intent", "-"]);
        Running::start(&mut exec)
            .feed(call.into_bytes(), PATIENCE)
            .stdout()
    }

    fn ironcage(&self, args: &[&str]) -> Ran {
        Running::start(&mut self.stage.ironcage(args)).finish(PATIENCE)
    }

    /// The last question that the judge was told.
    fn told(&self) -> Option<String> {
        std::fs::read_to_string(self.stage.base().join("judge.told")).ok()
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        self.ironcage(&["rm", "--force", &self.id]);
    }
}

either! {
    fn a_judge_that_allows_leaves_the_ceiling_as_it_is(stage) {
        let cage = Cage::start(stage, "echo '{\"verdict\":\"allow\"}'");
        assert!(cage.read("given/file").contains("given/file\\n"));
        let told = cage.told().expect("a question");
        assert!(told.contains("given/file") && told.contains("\"command\"") && told.contains("cat "), "{told}");
        std::fs::remove_file(stage.base().join("judge.told")).expect("removed");
        // It is not asked about what the ceiling asks for or denies, and gives none of it.
        assert!(cage.read("asked/file").contains("lease-still-pending"));
        assert!(!cage.read("outside/file").contains("outside/file\\n"));
        assert_eq!(cage.told(), None);
        // The operator's own leases are not judged.
        let path = stage.aside().join("given").display().to_string();
        cage.ironcage(&["grant", &cage.id, "--read", &path]).ok();
        assert_eq!(cage.told(), None);
    }

    fn a_judge_that_denies_or_asks_is_heard(stage) {
        let cage = Cage::start(stage, "echo '{\"verdict\":\"deny\",\"why\":\"not today\"}'");
        let said = cage.read("given/file");
        assert!(said.contains("lease-denied-by-judge") && said.contains("not today"), "{said}");
        drop(cage);
        let cage = Cage::start(stage, "echo '{\"verdict\":\"ask\",\"why\":\"unsure\"}'");
        let said = cage.read("given/file");
        assert!(said.contains("lease-still-pending") && said.contains("the judge has you asked: unsure"), "{said}");
        cage.ironcage(&["approve", &format!("{}/1", cage.id)]).ok();
        assert!(cage.read("given/file").contains("given/file\\n"));
    }

    fn a_judge_that_fails_has_a_person_asked(stage) {
        for judge in ["head -c 10000 /dev/zero | tr '\\0' x",
            "exit 1", "echo yes", "sleep 600", "echo '{\"verdict\":\"allow\"}'; kill -9 $$"] {
            let cage = Cage::start(stage, judge);
            let said = cage.read("given/file");
            assert!(said.contains("lease-still-pending") && said.contains("the judge "), "{judge}: {said}");
        }
    }

    fn leases_of_a_whole_cage_ask_where_a_judge_is_named(stage) {
        let cage = Cage::start(stage, "echo '{\"verdict\":\"allow\"}'");
        let path = stage.aside().join("given").display().to_string();
        let ask = ["exec", &cage.id, "--", "/.ironcage/bin/ironcage", "ask", "--read", &path, "--wait", "0"];
        let asked = cage.ironcage(&ask);
        assert_ne!(asked.code(), 0);
        let list = cage.ironcage(&["request", "list", &cage.id]).ok();
        assert!(list.stdout().contains("given"), "{list:?} {asked:?}");
        assert_eq!(cage.told(), None);
    }
}
