//! What a hostile review found: each test here is an attack, or a hang, that once worked.
#![forbid(unsafe_code)]

use ironcage_tests::{Running, Stage, both};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Files of a folder of the shipped policies, without their ending.
fn shipped(folder: &str) -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../policies")
        .join(folder);
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("the shipped policies")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .filter(|name| name != "constants")
        .collect();
    names.sort();
    names
}

/// Runs a command in a cage with these flags; what hangs fails after a minute.
#[track_caller]
fn run(stage: &Stage, flags: &[&str], command: &[&str]) -> ironcage_tests::Ran {
    Running::start(&mut stage.cage(flags, command)).finish(MINUTE)
}

both! {
    fn every_list_and_every_profile_starts_a_program(stage) {
        let lists = shipped("syscalls");
        assert!(lists.iter().any(|name| name == "minimal") && lists.len() >= 2, "{lists:?}");
        for list in &lists {
            run(stage, &["--syscalls", list], &["/bin/true"]).ok();
            run(stage, &["--syscalls", list], &["/bin/false"]).ended(1);
        }
        let profiles = shipped("profiles");
        assert!(profiles.len() >= 7, "{profiles:?}");
        for profile in &profiles {
            run(stage, &["--profile", profile], &["/bin/true"]).ok();
        }
    }
}
