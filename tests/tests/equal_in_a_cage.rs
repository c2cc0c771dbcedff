//! Random operations in a cage, applied, leave what the same operations leave when they are done directly.
//!
//! Each case is a directory of one workspace with a random tree: one cage works on all of them, and one apply brings all
//! of it over. Where an overlay cannot rename a directory, both do what mv does: copy and remove. `IRONCAGE_CASES` says
//! how many cases, `IRONCAGE_SEED` where they begin. `crates/workspace/tests/equal` does the same with overlays of its
//! own, one for each case.

#[path = "../../crates/workspace/tests/equal/script.rs"]
mod script;

mod rustix {
    pub(crate) use ::rustix::fs;
}

use ironcage_tests::{Running, Stage, either, full};
use script::{Dice, carry_out, operations, picture, plant};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A thousand in a full run.
fn cases() -> u64 {
    if full() { 1000 } else { 200 }
}
const PATIENCE: Duration = Duration::from_secs(600);

/// Which part of the test a process of it is.
const PART: &str = "IRONCAGE_EQUAL_PART";

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seeds() -> std::ops::Range<u64> {
    let first = number("IRONCAGE_SEED").unwrap_or(100_000);
    first..first + number("IRONCAGE_CASES").unwrap_or_else(cases)
}

/// The variables that have another process take the same cases.
fn which_cases() -> [(&'static str, String); 2] {
    let seeds = seeds();
    [
        ("IRONCAGE_SEED", seeds.start.to_string()),
        ("IRONCAGE_CASES", (seeds.end - seeds.start).to_string()),
    ]
}

/// The dice as they are after the tree was planted.
fn thrown(seed: u64, aside: &Path) -> Dice {
    let mut dice = Dice::new(seed);
    let aside = aside.join(format!("aside-{seed}"));
    fs::create_dir(&aside).expect("a directory");
    plant(&aside, &mut dice);
    fs::remove_dir_all(&aside).expect("removed");
    dice
}

fn said(seed: u64) -> PathBuf {
    PathBuf::from(format!("said-{seed}"))
}

/// What the stage's user does outside before and after, and the agent inside. Only as a part of the test below.
#[test]
fn a_part() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let aside = PathBuf::from(std::env::var("IRONCAGE_EQUAL_ASIDE").expect("a directory"));
    for seed in seeds() {
        let tree = PathBuf::from(seed.to_string());
        let direct = Path::new("../direct").join(&tree);
        match part.as_str() {
            "plant" => {
                for root in [&tree, &direct] {
                    fs::create_dir_all(root).expect("a directory");
                    plant(root, &mut Dice::new(seed));
                }
            }
            "inside" => {
                let script = operations(&mut thrown(seed, &aside));
                let lines = script
                    .iter()
                    .map(|operation| carry_out(&tree, operation, None));
                fs::write(said(seed), lines.collect::<Vec<_>>().join("\n")).expect("written down");
            }
            "compare" => {
                let script = operations(&mut thrown(seed, &aside));
                let inside = fs::read_to_string(said(seed)).expect("what was said inside");
                for (operation, inside) in script.iter().zip(inside.split('\n')) {
                    if inside != "not moved" {
                        let outside = carry_out(&direct, operation, Some(inside));
                        assert_eq!(outside, inside, "seed {seed}: {operation:?} of {script:#?}");
                    }
                }
                assert_eq!(picture(&tree), picture(&direct), "seed {seed}: {script:#?}");
            }
            other => panic!("no part {other}"),
        }
    }
}

fn part(stage: &Stage, program: &Path, name: &str) {
    let mut command = stage.outside(program);
    command
        .args(["--exact", "equal_in_a_cage::a_part", "--nocapture"])
        .env(PART, name)
        .env("IRONCAGE_EQUAL_ASIDE", stage.aside());
    command.envs(which_cases());
    let ran = Running::start(&mut command).finish(PATIENCE).ok();
    assert!(ran.stdout().contains("1 passed"), "{ran:?}");
}

either! {
    fn applied_is_as_if_it_had_been_done_directly(stage) {
        let program = stage.base().join("program");
        fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
        part(stage, &program, "plant");
        let program_inside = program.display().to_string();
        let mut flags = vec!["-q".to_owned(), "-r".to_owned(), program_inside.clone()];
        let mut variables = vec![format!("{PART}=inside"), "IRONCAGE_EQUAL_ASIDE=/tmp".to_owned()];
        variables.extend(which_cases().iter().map(|(name, value)| format!("{name}={value}")));
        for variable in variables {
            flags.extend(["--env".to_owned(), variable]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut caged = stage.cage(&flags, &[&program_inside, "--exact", "equal_in_a_cage::a_part", "--nocapture"]);
        let ran = Running::start(&mut caged).finish(PATIENCE).ok();
        assert!(ran.stdout().contains("1 passed"), "{ran:?}");
        let first = seeds().start;
        assert!(!stage.project().join(said(first)).exists(), "nothing is there before it is applied");
        let applied = Running::start(&mut stage.ironcage(["apply"])).finish(PATIENCE).ok();
        assert!(!applied.stdout().contains("pending"), "{applied:?}");
        part(stage, &program, "compare");
    }
}
