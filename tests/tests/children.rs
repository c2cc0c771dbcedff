//! Cages that work together: a child has no more than its parent, works beside it and ends with it;
//! a channel carries what it was opened for.

use ironcage_tests::{Ran, Running, Stage, both, processes_with, wait_until};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ASK: &str = "/.ironcage/bin/ironcage";
const CHILD: &str = "/.ironcage/bin/ironcage child";

/// A cage that may open children, ended when this is dropped.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage, policy: &str) -> Self {
        let path = stage.base().join("family.toml");
        stage.write(&path, policy);
        let mut run = stage.ironcage(["run", "-q", "-d", "--policy"]);
        let ran = Running::start(run.arg(path)).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    fn exec(&self, script: &str) -> Running {
        let args = ["exec", &self.id, "--", "/bin/sh", "-c", script];
        Running::start(&mut self.stage.ironcage(args))
    }

    #[track_caller]
    fn sh(&self, script: &str) -> Ran {
        self.exec(script).finish(PATIENCE)
    }

    /// Puts a policy for a child into the cage's workspace.
    #[track_caller]
    fn policy(&self, text: &str) {
        self.sh(&format!("cat > child.toml <<'END'\n{text}\nEND"))
            .ok();
    }

    #[track_caller]
    fn outside(&self, args: &[&str]) -> String {
        let mut command = self.stage.ironcage(args);
        Running::start(&mut command).finish(PATIENCE).ok().stdout()
    }

    /// The children that live, by its own word.
    fn children(&self) -> Vec<String> {
        let told = self.outside(&["inspect", &self.id]);
        let Some((_, rest)) = told.split_once("\"children\": [") else {
            return Vec::new();
        };
        let list = rest.split(']').next().unwrap_or_default();
        let ids = list.split(',').map(|id| id.trim().trim_matches('"'));
        ids.map(str::to_owned).collect()
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

/// Whether somebody sleeps for so long.
fn is_asleep(time: &str) -> bool {
    !processes_with(&format!("sleep\0{time}")).is_empty()
}

both! {
    fn children_of_a_sticky_cage_end_with_their_command(stage) {
        let path = stage.base().join("family.toml");
        stage.write(&path, "[ceiling]\nchildren = 2\n");
        let mut run = stage.ironcage(["run", "-q", "-d", "--sticky", "--policy"]);
        run.arg(path).args(["--", "true"]);
        let id = Running::start(&mut run).finish(PATIENCE).ok().stdout().trim().to_owned();
        let cage = Cage { stage, id };
        // Its command ends, and so does it; what it left behind too.
        let word = format!("86300.{}{}", std::process::id(), stage.uid());
        cage.sh(&format!("{CHILD} -- sh -c 'sleep {word} & exit 5'")).ended(5);
        assert!(wait_until(PATIENCE, || cage.children().is_empty() && !is_asleep(&word)), "it lives on");
        // Whoever asked for it is killed, and it goes with them; the cage lives on.
        let asker = cage.exec(&format!("{CHILD} -- sleep {word} & sleep 2; kill -9 $!; sleep 86399"));
        assert!(wait_until(PATIENCE, || is_asleep(&word)), "no child");
        assert!(wait_until(PATIENCE, || !is_asleep(&word)), "it outlives who asked for it");
        drop(asker);
        cage.sh("true").ok();
    }

    fn a_child_works_beside_its_parent_with_no_more_than_that_has(stage) {
        let shown = stage.aside().join("shown");
        let other = stage.aside().join("other");
        stage.write(shown.join("file"), "shown\n");
        stage.write(other.join("file"), "other\n");
        let link = shown.join("link");
        std::os::unix::fs::symlink(&other, &link).expect("linked");
        let at = |path: &std::path::Path| path.display().to_string();
        let cage = Cage::start(stage, &format!(
            "[files]\nread = [\"{}\"]\n[ceiling]\nchildren = 2\n", at(&shown)
        ));
        // The same workspace, both ways, its own processes, its streams and its status.
        cage.sh("echo parents > p").ok();
        let script = format!("echo typed | {CHILD} -- sh -c 'cat p; cat; echo childs > c; echo err >&2; exit 7'");
        let ran = cage.sh(&script).ended(7).says("err");
        assert_eq!(ran.stdout(), "parents\ntyped\n");
        assert_eq!(cage.sh("cat c").ok().stdout(), "childs\n");
        assert_eq!(stage.read("c"), None, "it went past the change");
        assert_eq!(cage.sh(&format!("{CHILD} -- cat {}/file", at(&shown))).ok().stdout(), "shown\n");
        // Narrower: by a profile it may only look, and sees nothing that it does not name.
        cage.sh(&format!("{CHILD} --profile strict -- sh -c 'cat c && ! touch d'")).ok();
        cage.sh(&format!("{CHILD} --profile strict -- cat {}/file", at(&shown))).ended(1);
        cage.policy(&format!("[files]\nread = [\"{}\"]", at(&shown)));
        cage.sh(&format!("{CHILD} --policy child.toml -- cat {}/file", at(&shown))).ok();
        // More is refused with what was too much; a link that leads out is no way.
        for (text, why) in [
            (format!("[files]\nread = [\"{}\"]", at(&other)), "files.read"),
            (format!("[files]\nread = [\"{}\"]", at(&link)), "leads outside the parent's paths"),
            ("[network]\nallow = [\"a.test\"]".to_owned(), "network.allow: a.test"),
            ("[limits]\npids = 100000".to_owned(), "limits.pids: 100000"),
            ("[ceiling]\nchildren = 2".to_owned(), "ceiling.children: 2"),
        ] {
            cage.policy(&text);
            cage.sh(&format!("{CHILD} --policy child.toml -- true")).ended(125).says(why);
        }
        let record = cage.outside(&["audit", "show", &cage.id]);
        for said in ["on the same workspace (cow)", "ended with status 7", "denied: the child's policy asks for more than its parent has: network.allow: a.test"] {
            assert!(record.contains(said), "{said}: {record}");
        }
        assert!(cage.outside(&["why", &cage.id]).contains("child cage denied"));
    }

    fn children_are_counted_told_and_end_with_their_parent(stage) {
        let cage = Cage::start(stage, "[ceiling]\nchildren = 2\n");
        let word = format!("86400.{}{}", std::process::id(), stage.uid());
        // One that may have a child itself takes both places.
        cage.policy("[ceiling]\nchildren = 1\n[workspace]\nmode = \"cow\"");
        let waits = cage.exec(&format!("{CHILD} --policy child.toml -- sh -c '{CHILD} -- sleep {word}'"));
        assert!(wait_until(PATIENCE, || cage.children().len() == 1), "no child");
        cage.sh(&format!("{CHILD} -- true")).ended(125).denied("child-too-many");
        let child = cage.children().remove(0);
        let is_there = || {
            let told = cage.outside(&["ps"]);
            told.contains(&format!("(child of {})", cage.id)) && told.contains(&format!("(child of {child})"))
        };
        assert!(wait_until(PATIENCE, is_there), "{}", cage.outside(&["ps"]));
        assert!(wait_until(PATIENCE, || is_asleep(&word)), "it does not run");
        assert!(cage.outside(&["audit", "show", &child]).contains(&format!("child of {}", cage.id)));
        // The parent's end is everybody's.
        cage.outside(&["stop", "--time", "0", &cage.id]);
        let _ = waits.finish(PATIENCE);
        assert!(!is_asleep(&word), "something outlived the parent");
        let record = cage.outside(&["audit", "show", &child]);
        assert!(record.contains("exit"), "{record}");
    }

    fn a_child_ends_with_the_one_who_opened_it_and_with_a_killed_supervisor(stage) {
        let cage = Cage::start(stage, "[ceiling]\nchildren = 1\n");
        let word = format!("86400.{}{}1", std::process::id(), stage.uid());
        let script = format!("{CHILD} -- sleep {word} & echo $! > waits; wait");
        let waits = cage.exec(&script);
        assert!(wait_until(PATIENCE, || is_asleep(&word)), "it does not run");
        cage.sh("until [ -s waits ]; do sleep 0.01; done; kill -9 $(cat waits)").ok();
        assert!(wait_until(PATIENCE, || !is_asleep(&word)), "it was left");
        assert!(wait_until(PATIENCE, || cage.children().is_empty()), "it is still told");
        let _ = waits.finish(PATIENCE);
        let waits = cage.exec(&script);
        assert!(wait_until(PATIENCE, || is_asleep(&word)), "it does not run");
        let told = cage.outside(&["inspect", &cage.id]);
        let (_, pid) = told.split_once("\"supervisor\": ").expect("a supervisor");
        let pid = pid.split(',').next().expect("a number").to_owned();
        stage.sh_outside(&format!("kill -9 {pid}")).ok();
        assert!(wait_until(PATIENCE, || !is_asleep(&word)), "it outlived its parent");
        let _ = waits.finish(PATIENCE);
    }

    fn a_channel_carries_messages_of_its_type_within_its_limits_and_puts_them_on_record(stage) {
        let policy = "[ceiling]\nchannels = 2\n";
        let (one, other) = (Cage::start(stage, policy), Cage::start(stage, policy));
        let schema = stage.base().join("task.json");
        stage.write(&schema, r#"{"type": "object", "required": ["do"], "additionalProperties": false, "properties": {"do": {"type": "string"}}}"#);
        let at = schema.display().to_string();
        let open = ["channel", "open", "tasks", &one.id, &other.id, "--schema", &at, "--size", "40", "--queue", "2"];
        one.outside(&open);
        stage.ironcage(open).output().map(|ran| assert!(!ran.status.success(), "twice")).expect("asked");
        let send = |message: &str| one.sh(&format!("{ASK} send tasks '{message}'"));
        let take = |wait: u32| other.sh(&format!("{ASK} receive tasks --wait {wait}"));
        take(0).ended(2);
        send(r#"{"do": "this"}"#).ok();
        send(r#"{"do": 1}"#).ended(1).says("not of the channel's type: at the top/do");
        send(r#"{"do": "x", "else": 2}"#).ended(1).says("is not allowed");
        send(&format!(r#"{{"do": "{}"}}"#, "x".repeat(64))).ended(1).denied("channel-message-too-large");
        send(r#"{"do": "that"}"#).ok();
        send(r#"{"do": "more"}"#).ended(1).denied("channel-queue-full");
        assert_eq!(take(60).ok().stdout(), "{\"do\":\"this\"}\n");
        assert_eq!(take(60).ok().stdout(), "{\"do\":\"that\"}\n");
        take(1).ended(2);
        // Who waits gets what comes.
        let waits = other.exec(&format!("{ASK} receive tasks --wait 600"));
        send(r#"{"do": "late"}"#).ok();
        assert_eq!(waits.finish(PATIENCE).ok().stdout(), "{\"do\":\"late\"}\n");
        send(r#"{"do": "last"}"#).ok();
        assert!(wait_until(PATIENCE, || other.outside(&["inspect", &other.id]).contains("\"queued\": 1")), "it did not come");
        // Only this way, by this name, and not by everybody.
        other.sh(&format!("{ASK} send tasks '{{}}'")).ended(1).denied("channel-unknown");
        one.sh(&format!("{ASK} receive tasks")).ended(1).denied("channel-unknown");
        one.sh(&format!("{ASK} send other 1")).ended(1);
        // What has come stays when the one who sent it is gone.
        one.outside(&["stop", "--time", "0", &one.id]);
        assert_eq!(take(60).ok().stdout(), "{\"do\":\"last\"}\n");
        take(0).ended(1);
        for (cage, all) in [
            (&one, ["message sent, 13 bytes on tasks from", "message denied", "channel tasks to"]),
            (&other, ["message received, 13 bytes on tasks from", "channel tasks from", "closed: the other end is gone"]),
        ] {
            let record = cage.outside(&["audit", "show", &cage.id]);
            for said in all {
                assert!(record.contains(said), "{said}: {record}");
            }
        }
        let record = other.outside(&["audit", "show", &other.id]);
        assert!(!record.contains("late"), "contents are on record: {record}");
        let without = Cage::start(stage, "[ceiling]\nchildren = 1\n");
        let open = ["channel", "open", "tasks", &other.id, &without.id, "--schema", &at];
        Running::start(&mut stage.ironcage(open)).finish(PATIENCE).ended(125).says("`channels = N` under [ceiling]");
    }

    fn nobody_is_asked_more_often_for_a_family_than_for_one_cage(stage) {
        let cage = Cage::start(stage, "[ceiling]\nchildren = 1\n[ceiling.ask.network]\nallow = [\"*.q.test\"]\n");
        // Each child's questions end with it, and count.
        let mut asked = 0;
        for child in 0..13 {
            let asks = format!("for n in 1 2 3 4 5; do {ASK} ask --host h{child}x$n.q.test; done");
            let said = cage.sh(&format!("{CHILD} -- sh -c '{asks}'")).stdout();
            asked += said.matches("pending:").count();
            assert_eq!(child == 12, said.contains("[lease-too-many-questions]"), "{said}");
        }
        assert_eq!(asked, 60);
        let said = cage.sh(&format!("{ASK} ask --host last.q.test")).ended(1).stdout();
        assert!(said.contains("asked 60 times") && said.contains("[lease-too-many-questions]"), "{said}");
    }

    fn a_childs_words_are_on_record_in_short_and_its_refusal_tells_nothing_of_the_hosts_places(stage) {
        let cage = Cage::start(stage, "[ceiling]\nchildren = 1\n");
        // All of them are executed.
        let script = format!("{CHILD} -- sh -c 'echo $2' x $(head -c 20000 /dev/zero | tr '\\0' a) last");
        assert_eq!(cage.sh(&script).ok().stdout(), "last\n");
        let record = cage.outside(&["audit", "show", &cage.id, "--json"]);
        assert!(record.contains("child-opened") && record.contains("aaa..."), "{record}");
        let longest = record.lines().filter(|line| line.contains("child-opened")).map(str::len).max();
        assert!(longest.is_some_and(|length| length < 3000), "{longest:?}");
        // Its own record cannot be made.
        let (audit, away) = (stage.state().join("ironcage/audit"), stage.base().join("audit-away"));
        std::fs::rename(&audit, &away).expect("moved away");
        stage.write(&audit, "no directory");
        let refused = cage.sh(&format!("{CHILD} -- true")).ended(125).denied("child-failed-on-host");
        let state = stage.state().display().to_string();
        assert!(!format!("{refused:?}").contains(&state), "{refused:?}");
        std::fs::remove_file(&audit).expect("removed");
        std::fs::rename(&away, &audit).expect("moved back");
        cage.sh(&format!("{CHILD} -- true")).ok();
        let record = cage.outside(&["audit", "show", &cage.id]);
        assert!(record.contains(&state), "{record}");
    }

    fn a_cage_whose_policy_says_nothing_of_children_has_none(stage) {
        let cage = Cage::start(stage, "[ceiling.auto.network]\nallow = [\"a.test\"]\n");
        cage.sh(&format!("{CHILD} -- true")).ended(125).denied("child-not-allowed");
    }
}
