//! The user's task, given with the run: what the ceiling gives at once, and the task does not name,
//! asks. Nothing said later widens that, and it gives nothing.

use ironcage_tests::{Ran, Running, Stage, either};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    /// With `in` and `out` at once and `asked` for a person, and this task.
    #[track_caller]
    fn start(stage: &'a Stage, task: Option<&str>) -> Self {
        let aside = stage.aside();
        for name in ["in/rows", "out/old", "asked/file", "outside/file"] {
            stage.write(aside.join(name), format!("{name}\n"));
        }
        let at = |name: &str| aside.join(name).display().to_string();
        // What the task leads to, by a file of the workspace.
        stage.write(
            stage.project().join("plan.md"),
            format!("- put the sums into {}\n", at("out/sums")),
        );
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, format!(
            "[ceiling.auto.files]\nread = [\"{}\"]\nwrite = [\"{}\"]\n[ceiling.ask.files]\nread = [\"{}\"]\n",
            at("in"), at("out"), at("asked"),
        ));
        let mut run = stage.ironcage(["run", "-q", "-d", "--fresh", "--policy"]);
        run.arg(&policy);
        if let Some(task) = task {
            run.args([
                "--task",
                &task.replace("D/", &format!("{}/", aside.display())),
            ]);
        }
        let ran = Running::start(&mut run).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    #[track_caller]
    fn bash(&self, script: &str) -> String {
        let script = script.replace("D/", &format!("{}/", self.stage.aside().display()));
        let call = format!(
            r#"{{"type":"tool_use","id":"t","name":"Bash","input":{{"command":"{script}"}}}}"#
        );
        let mut exec = self.stage.ironcage(["exec", &self.id, "--intent", "-"]);
        Running::start(&mut exec)
            .feed(call.into_bytes(), PATIENCE)
            .stdout()
    }

    fn ironcage(&self, args: &[&str]) -> Ran {
        Running::start(&mut self.stage.ironcage(args)).finish(PATIENCE)
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        self.ironcage(&["rm", "--force", &self.id]);
    }
}

/// Why it asks; the code is that of a request that waits.
const OUTSIDE: &str = "needs approval: the task names";

either! {
    fn what_the_task_does_not_name_asks_and_a_yes_counts(stage) {
        let cage = Cage::start(stage, Some("Sum the rows of D/in/rows, as plan.md says"));
        assert!(cage.bash("cat D/in/rows").contains("in/rows\\n"));
        // Named by the file that the task names.
        let said = cage.bash("echo 1 > D/out/sums");
        assert!(said.contains("\"is_error\":false"), "{said}");
        assert_eq!(std::fs::read_to_string(stage.aside().join("out/sums")).ok().as_deref(), Some("1\n"));
        // An injected call, which the ceiling alone would give.
        let said = cage.bash("echo evil > D/out/old");
        assert!(said.contains(OUTSIDE) && said.contains("lease-still-pending"), "{said}");
        assert_eq!(std::fs::read_to_string(stage.aside().join("out/old")).ok().as_deref(), Some("out/old\n"));
        // Words in the command do not widen it.
        let said = cage.bash("echo 'the task is D/out/old' > D/out/old");
        assert!(said.contains(OUTSIDE), "{said}");
        // The audit log has the chain.
        let record = cage.ironcage(&["audit", "show", &cage.id]).stdout();
        assert!(record.contains("the task names"), "{record}");
        cage.ironcage(&["approve", &format!("{}/1", cage.id)]).ok();
        let said = cage.bash("echo evil > D/out/old");
        assert!(said.contains("\"is_error\":false"), "{said}");
        // The operator's own leases are not held to it.
        let other = stage.aside().join("in").display().to_string();
        cage.ironcage(&["grant", &cage.id, "--read", &other]).ok();
    }

    fn a_task_gives_nothing_and_without_one_the_ceiling_alone_counts(stage) {
        let cage = Cage::start(stage, Some("Read D/asked/file and D/outside/file"));
        let said = cage.bash("cat D/asked/file");
        assert!(said.contains("lease-still-pending") && !said.contains("asked/file\\n"), "{said}");
        assert!(!cage.bash("cat D/outside/file").contains("outside/file\\n"));
        drop(cage);
        let cage = Cage::start(stage, None);
        assert!(cage.bash("echo 2 > D/out/old").contains("\"is_error\":false"));
        drop(cage);
        // One that names nothing that is leasable narrows nothing.
        let cage = Cage::start(stage, Some("Tidy up"));
        assert!(cage.bash("echo 3 > D/out/old").contains("\"is_error\":false"));
        // What it names is in the plan.
        let plan = cage.ironcage(&["plan", "--json", "--policy", &stage.base().join("policy.toml").display().to_string(), "--task", &format!("see {}", stage.aside().join("in").display()), "--", "true"]).ok();
        assert!(plan.stdout().contains("\"task\""), "{plan:?}");
    }
}
