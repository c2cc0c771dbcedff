//! `ironcage report` and `ironcage audit report` on real runs.

use ironcage_tests::{Ran, Running, Stage, either};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(Duration::from_secs(60))
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

fn report(stage: &Stage) -> Value {
    let printed = ironcage(stage, &["report", "--json"]).ok().stdout();
    serde_json::from_str(&printed).expect("JSON")
}

/// The entry of a path or host.
fn entry<'a>(report: &'a Value, end: &str) -> &'a Value {
    let entries = report["entries"].as_array().expect("entries");
    let found = entries.iter().find(|entry| {
        let what = entry["what"].as_str().unwrap_or_default();
        what.ends_with(end)
    });
    found.unwrap_or_else(|| panic!("{end}: {entries:#?}"))
}

either! {
    fn an_observed_run_counts_what_was_open_and_not_used(stage) {
        stage.write(stage.aside().join("used"), "used\n");
        stage.write(stage.aside().join("unused"), "unused\n");
        let (used, unused) = (text(stage.aside().join("used")), text(stage.aside().join("unused")));
        let run = ["run", "-q", "--observe", "-r", &used, "-r", &unused, "--", "cat", &used];
        ironcage(stage, &run).ok();
        let first = report(stage);
        assert_eq!(entry(&first, "/used")["use"], "exact", "{first:#}");
        assert_eq!(entry(&first, "/unused")["use"], "unused", "{first:#}");
        let excess = first["authority"]["excess_seconds"].as_f64().expect("a number");
        assert!(excess > 0.0);
        // Without the entry that nobody used there is less to count, and without observing nothing
        // is known of files.
        let run = ["run", "-q", "-r", &used, "--", "cat", &used];
        ironcage(stage, &run).ok();
        let second = report(stage);
        assert_eq!(entry(&second, "/used")["use"], "unknown", "{second:#}");
        assert_eq!(second["authority"]["excess_seconds"].as_f64(), Some(0.0));
        assert!(second["authority"]["all"]["unknown_seconds"].as_f64() > Some(0.0));
    }

    fn a_lease_that_a_command_used_is_shown_as_used(stage) {
        stage.write(stage.aside().join("data/rows"), "rows\n");
        stage.write(stage.aside().join("out/.keep"), "");
        let (rows, out) = (text(stage.aside().join("data/rows")), text(stage.aside().join("out")));
        let policy = text(stage.aside().join("p.toml"));
        let ceiling = format!("[ceiling]\nshell = \"scoped\"\n[ceiling.auto.files]\nread = [{rows:?}]\nwrite = [{out:?}]\n");
        stage.write(&policy, ceiling);
        let script = format!("bash -c 'cat {rows} > {out}/copy'");
        ironcage(stage, &["run", "-q", "--observe", "--policy", &policy, "--", "sh", "-c", &script]).ok();
        let report = report(stage);
        assert_eq!(entry(&report, "/data/rows")["use"], "exact", "{report:#}");
        assert_eq!(entry(&report, "/out/copy")["use"], "exact", "{report:#}");
        let leases = report["leases"].as_array().expect("leases");
        assert_eq!(leases.len(), 2, "{report:#}");
        assert!(leases.iter().all(|lease| lease["end"] == "revoked"), "{leases:#?}");
        // The page has them, and refuses to replace a file.
        let page = text(stage.aside().join("page.html"));
        ironcage(stage, &["report", "--html", &page]).ok();
        let html = std::fs::read_to_string(&page).expect("the page");
        assert!(html.contains("/data/rows") && html.contains("default-src 'none'"));
        ironcage(stage, &["report", "--html", &page]).ended(125);
        ironcage(stage, &["report", "--html", &page, "--force"]).ok();
    }

    fn signed_heads_find_a_log_that_was_rewritten_cut_or_removed(stage) {
        ironcage(stage, &["run", "-q", "--", "true"]).ok();
        let file = text(stage.aside().join("evidence.json"));
        ironcage(stage, &["audit", "report", "--framework", "aisvs", "-o", &file]).ok();
        let key = ironcage(stage, &["audit", "key"]).ok().stdout().trim().to_owned();
        let logs = text(stage.state().join("ironcage/audit"));
        let verify = |key: &str, file: &str| {
            ironcage(stage, &["audit", "verify", "--key", key, "--report", file, "--logs", &logs])
        };
        verify(&key, &file).ended(0);
        // Another key, and a report with another count.
        let other = "5c8273e8c0d5ba6f1074459b16b115480b316ae7aabd1ffe2dcb1256a5349bba";
        verify(other, &file).ended(1);
        let written = std::fs::read_to_string(&file).expect("the report");
        let changed = text(stage.aside().join("changed.json"));
        stage.write(&changed, written.replacen("\"intact\": 1", "\"intact\": 9", 1));
        verify(&key, &changed).ended(1);
        // A cut log, and no log at all.
        let id = written.split("\\n").nth(3).and_then(|line| line.split(' ').next()).expect("a head");
        let log = PathBuf::from(&logs).join(format!("{id}.jsonl"));
        let lines = std::fs::read_to_string(&log).expect("the log");
        let first = lines.lines().next().expect("a line");
        stage.write(&log, format!("{first}\n"));
        verify(&key, &file).ended(1);
        stage.write(&log, &lines);
        verify(&key, &file).ended(0);
        std::fs::remove_file(&log).expect("removed");
        verify(&key, &file).ended(1);
        // A log that is broken in itself is not signed, and the report says so.
        stage.write(&log, lines.replace("true", "TRUE"));
        ironcage(stage, &["audit", "report", "--framework", "casf", "--json"]).ended(1);
    }
}
