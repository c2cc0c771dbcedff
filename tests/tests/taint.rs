//! Private data and untrusted content: who has come into contact with both gets no way out without
//! a person's word, however it came to them. Every arm that asks has one that is given the same.

use ironcage_tests::{Ran, Running, Stage, both, wait_until};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const TOOL: &str = "/.ironcage/bin/ironcage";

/// A cage in the background, ended when this is dropped.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    /// On the stage's own project.
    #[track_caller]
    fn start(stage: &'a Stage, policy: &str) -> Self {
        Cage::start_on(stage, policy, &stage.project())
    }

    #[track_caller]
    fn start_on(stage: &'a Stage, policy: &str, workspace: &Path) -> Self {
        let path = stage.base().join("taint.toml");
        stage.write(&path, policy);
        let mut run = stage.ironcage(["run", "-q", "-d", "--policy"]);
        let run = run.arg(path).arg("--workspace").arg(workspace);
        let ran = Running::start(run).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    #[track_caller]
    fn sh(&self, script: &str) -> Ran {
        let args = ["exec", &self.id, "--", "/bin/sh", "-c", script];
        Running::start(&mut self.stage.ironcage(args)).finish(PATIENCE)
    }

    /// What somebody in the cage asks for is given at once.
    #[track_caller]
    fn gets(&self, what: &str) {
        self.sh(&format!("{TOOL} ask {what}")).ended(0);
    }

    /// A person is asked for it first.
    #[track_caller]
    fn is_asked(&self, what: &str) {
        self.sh(&format!("{TOOL} ask {what}")).ended(2);
    }

    /// A way out is given at once, and taken back.
    #[track_caller]
    fn has_a_way_out(&self) {
        self.gets("--host b.test");
        self.outside(&["revoke", &self.id, "--all"]);
    }

    #[track_caller]
    fn has_none(&self) {
        self.is_asked("--host b.test");
    }

    #[track_caller]
    fn outside(&self, args: &[&str]) -> String {
        let mut command = self.stage.ironcage(args);
        Running::start(&mut command).finish(PATIENCE).ok().stdout()
    }

    fn record(&self) -> String {
        self.outside(&["audit", "show", &self.id])
    }

    fn end(self) {}
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["stop", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

/// A directory with private data.
fn private(stage: &Stage) -> PathBuf {
    let private = stage.aside().join("private");
    stage.write(private.join("file"), "private\n");
    private
}

/// Both are named, and can be had by leases that are given at once.
fn policy(private: &Path, ask: bool, more: &str) -> String {
    let at = private.display();
    format!(
        "{more}[taint]\nprivate = [\"{at}\"]\nuntrusted = [\"a.test\"]\nask = {ask}\n[ceiling]\nchannels = 2\nchildren = 1\n\
         [ceiling.auto.files]\nread = [\"{at}\"]\n[ceiling.auto.network]\nallow = [\"a.test\", \"b.test\"]\n"
    )
}

both! {
    fn where_both_meet_a_way_out_is_asked_for_and_with_one_of_them_or_unasked_it_is_given(stage) {
        let private = private(stage);
        let read = format!("--read {}", private.display());
        let text = policy(&private, true, "");
        let planned = {
            stage.write(stage.base().join("taint.toml"), &text);
            let mut plan = stage.ironcage(["plan", "--all", "--policy"]);
            let plan = plan.arg(stage.base().join("taint.toml")).args(["--", "true"]);
            Running::start(plan).finish(PATIENCE).ok().stdout()
        };
        assert!(planned.contains("taint: private data in") && planned.contains("needs approval"), "{planned}");
        let cage = Cage::start(stage, &text);
        cage.has_a_way_out();
        cage.gets(&read);
        assert!(cage.outside(&["inspect", &cage.id]).contains("\"private\": true"));
        cage.has_a_way_out();
        // The untrusted host would bring both together; what is no way out is given.
        cage.is_asked("--host a.test");
        cage.gets(&read);
        cage.outside(&["approve", &format!("{}/1", cage.id)]);
        cage.has_none();
        // What the person allowed is left; what they give themselves is given.
        assert!(cage.outside(&["lease", "list", &cage.id]).contains("a.test"));
        cage.outside(&["grant", &cage.id, "--host", "b.test", "--reason", "mine"]);
        let why = cage.outside(&["why", &cage.id]);
        assert!(why.contains("tainted: private: it was leased read"), "{why}");
        assert!(why.contains("tainted: private and untrusted: it was leased host a.test"), "{why}");
        let pending = cage.outside(&["request", "list"]);
        assert!(pending.contains("private data and untrusted content are both in this cage"), "{pending}");
        // Elsewhere, with a policy that marks and does not ask.
        let calm = stage.base().join("calm");
        stage.mkdir(&calm);
        let cage = Cage::start_on(stage, &policy(&private, false, ""), &calm);
        cage.gets(&read);
        cage.gets("--host a.test");
        cage.gets("--host b.test");
        assert!(cage.record().contains("taint   private and untrusted"));
        // And with what the base shows from the start.
        let shown = stage.base().join("shown");
        stage.mkdir(&shown);
        let reads = format!("[files]\nread = [\"{}\"]\n", private.display());
        let cage = Cage::start_on(stage, &policy(&private, true, &reads), &shown);
        assert!(cage.record().contains("taint   private: its policy lets it read or reach that from its start"));
        cage.has_a_way_out();
        cage.is_asked("--host a.test");
    }

    fn ways_out_are_closed_before_what_brings_the_second_is_opened(stage) {
        let private = private(stage);
        let read = format!("{TOOL} ask --read {}", private.display());
        let cage = Cage::start(stage, &policy(&private, true, ""));
        // A tool's call is given it in its scope, and finds nobody there.
        let call = stage.base().join("call.json");
        stage.write(&call, r#"{"type": "tool_use", "id": "1", "name": "WebFetch", "input": {"url": "http://b.test/", "prompt": "?"}}"#);
        let call = call.display().to_string();
        let fetched = |cage: &Cage<'_>| {
            let mut exec = stage.ironcage(["exec", &cage.id, "--intent", &call]);
            Running::start(&mut exec).finish(PATIENCE).stdout()
        };
        assert!(!fetched(&cage).contains("refused"));
        cage.gets("--host a.test");
        cage.gets("--host b.test");
        // It is not given before they are gone, and then it is.
        let refused = cage.sh(&read).ended(1).stdout();
        assert!(refused.contains("is being closed first"), "{refused}");
        assert!(wait_until(PATIENCE, || cage.sh(&read).code() == 0));
        let record = cage.record();
        let ended: Vec<usize> = record.match_indices("private data and untrusted content met in this cage").map(|(at, _)| at).collect();
        let opened = record.rfind(&format!("read {}", private.display())).expect("on record");
        assert_eq!(ended.len(), 2, "{record}");
        assert!(ended.iter().all(|at| *at < opened), "{record}");
        cage.has_none();
        assert!(fetched(&cage).contains("private data and untrusted content are both"));
    }

    fn it_follows_a_workspace_to_who_works_on_it_later_beside_it_or_only_reads_it(stage) {
        let private = private(stage);
        let text = policy(&private, true, "");
        let elsewhere = stage.base().join("elsewhere");
        stage.mkdir(&elsewhere);
        let reading = format!("[files]\nread = [\"{}\"]\n", stage.project().display());
        let beside = Cage::start(stage, &text);
        beside.gets("--host b.test");
        let apart = Cage::start_on(stage, &text, &elsewhere);
        let reader = Cage::start_on(stage, &policy(&private, true, &reading), &elsewhere);
        reader.has_a_way_out();
        let first = Cage::start(stage, &text);
        first.gets(&format!("--read {}", private.display()));
        first.is_asked("--host a.test");
        first.outside(&["approve", &format!("{}/1", first.id)]);
        // Who had a way out open loses it, without asking for anything.
        assert!(wait_until(PATIENCE, || !beside.outside(&["lease", "list", &beside.id]).contains("b.test")));
        beside.has_none();
        let id = first.id.clone();
        first.end();
        beside.end();
        let later = Cage::start(stage, &text);
        later.has_none();
        assert!(later.record().contains(&format!("where cage {id} could write")), "{}", later.record());
        reader.has_none();
        // The reader could write to where this one is.
        apart.has_none();
        apart.end();
        reader.end();
        later.end();
        // Until the user has looked at it, and forgets it.
        let mut forget = stage.ironcage(["state", "taint", "--yes", "--forget", "/"]);
        Running::start(&mut forget).finish(PATIENCE).ok();
        Cage::start(stage, &text).has_a_way_out();
    }

    fn it_comes_to_who_only_runs_through_a_cage_that_asks_for_nothing_and_through_what_was_leased_before(stage) {
        let private = private(stage);
        let [between, shared] = ["between", "shared"].map(|name| stage.base().join(name));
        stage.mkdir(&between);
        stage.mkdir(&shared);
        let at = shared.display();
        let text = policy(&private, true, "");
        let loses_it = |cage: &Cage<'_>| {
            assert!(wait_until(PATIENCE, || !cage.outside(&["lease", "list", &cage.id]).contains("b.test")));
            cage.record()
        };
        // One reads the project and writes elsewhere; its policy knows nothing of all this.
        let relay = Cage::start_on(stage, &format!("[files]\nread = [\"{}\"]\n", stage.project().display()), &between);
        let behind = Cage::start_on(stage, &text, &between);
        behind.gets("--host a.test");
        behind.gets("--host b.test");
        // Another reads by a lease what is written only later.
        let apart = stage.base().join("apart");
        stage.mkdir(&apart);
        let reads = Cage::start_on(stage, &text.replace(&format!("read = [\"{}\"]", private.display()), &format!("read = [\"{at}\"]")), &apart);
        reads.gets("--host a.test");
        reads.gets("--host b.test");
        reads.gets(&format!("--read {at}"));
        let writes = text.replace("[ceiling.auto.files]\n", &format!("[ceiling.auto.files]\nwrite = [\"{at}\"]\n"));
        let first = Cage::start(stage, &writes);
        first.gets(&format!("--read {}", private.display()));
        let record = loses_it(&behind);
        assert!(record.contains(&format!("where cage {} could write", relay.id)), "{record}");
        assert!(reads.outside(&["lease", "list", &reads.id]).contains("b.test"));
        first.gets(&format!("--write {at}"));
        let record = loses_it(&reads);
        assert!(record.contains(&format!("where cage {} could write", first.id)), "{record}");
    }

    fn it_follows_messages_also_through_a_cage_whose_policy_knows_nothing_of_it(stage) {
        let private = private(stage);
        let text = policy(&private, true, "");
        let [between, last] = ["between", "last"].map(|name| stage.base().join(name));
        stage.mkdir(&between);
        stage.mkdir(&last);
        let first = Cage::start(stage, &text);
        let between = Cage::start_on(stage, "[ceiling]\nchannels = 2\n", &between);
        let last = Cage::start_on(stage, &text, &last);
        let schema = stage.base().join("any.json");
        stage.write(&schema, "{}");
        let schema = schema.display().to_string();
        for (name, from, to) in [("one", &first, &between), ("two", &between, &last)] {
            from.outside(&["channel", "open", name, &from.id, &to.id, "--schema", &schema]);
        }
        let carry = || {
            first.sh(&format!("{TOOL} send one 1")).ok();
            between.sh(&format!("{TOOL} receive one --wait 600")).ok();
            between.sh(&format!("{TOOL} send two 2")).ok();
        };
        carry();
        last.sh(&format!("{TOOL} receive two --wait 600")).ok();
        last.has_a_way_out();
        first.gets(&format!("--read {}", private.display()));
        first.is_asked("--host a.test");
        first.outside(&["approve", &format!("{}/1", first.id)]);
        // A message that is not received brings nothing; one that is, after ways out are closed.
        last.gets("--host b.test");
        carry();
        assert!(last.outside(&["lease", "list", &last.id]).contains("b.test"));
        last.sh(&format!("{TOOL} receive two --wait 600")).ok();
        assert!(!last.outside(&["lease", "list", &last.id]).contains("b.test"));
        last.has_none();
        let record = last.record();
        let because = format!("it got a message by two from {}", between.id);
        assert!(record.contains(&because), "{record}");
    }

    fn it_follows_a_shared_cache(stage) {
        let private = private(stage);
        // Nothing but the cache is written to.
        let bare = "[workspace]\nmode = \"read-only\"\n";
        let with = policy(&private, true, &format!("{bare}[state]\ncaches = [\"pip\"]\n"));
        let without = policy(&private, true, bare);
        let first = Cage::start(stage, &with);
        first.has_a_way_out();
        first.gets(&format!("--read {}", private.display()));
        first.is_asked("--host a.test");
        first.outside(&["approve", &format!("{}/1", first.id)]);
        first.end();
        Cage::start(stage, &without).has_a_way_out();
        Cage::start(stage, &with).has_none();
    }

    fn it_goes_from_parent_to_child_and_back_where_they_share_no_file(stage) {
        let private = private(stage);
        let bare = "[workspace]\nmode = \"read-only\"\n";
        let cage = Cage::start(stage, &policy(&private, true, bare));
        let childs = "[workspace]\nmode = \"scratch\"\n[ceiling.auto.network]\nallow = [\"a.test\", \"b.test\"]";
        let child = |what: &str| {
            let script = format!("cat > /tmp/c <<'END'\n{childs}\nEND\n{TOOL} child --policy /tmp/c -- {TOOL} ask {what}");
            cage.sh(&script)
        };
        child("--host b.test").ended(0);
        // The child's goes to the parent: with private data it has both.
        child("--host a.test").ended(0);
        assert!(cage.outside(&["inspect", &cage.id]).contains("\"untrusted\": true"));
        let record = cage.record();
        assert!(record.contains("taint   untrusted: its child"), "{record}");
        cage.has_a_way_out();
        cage.gets(&format!("--read {}", private.display()));
        cage.has_none();
        // And the parent's to the child.
        child("--host b.test").ended(2);
    }
}
