//! Random operations in an overlay, applied, leave what the same operations leave when they are
//! done directly.
//!
//! Where the overlay cannot rename a directory, both do what mv does: copy and remove.
//! `IRONCAGE_CASES` says how many cases, `IRONCAGE_SEED` where they begin.
#![allow(clippy::expect_used)]

#[path = "../bed/mod.rs"]
mod bed;
mod script;

use ironcage_sys::rustix;
use ironcage_workspace::{ApplyOptions, Change, LayerRequest, LayerRole, Selection, Store};
use script::{Dice, carry_out, operations, picture, plant};
use std::path::{Path, PathBuf};
use std::process::Command;

const CASES: u64 = 400;
/// So many overlays are mounted at once.
const BATCH: u64 = 100;

/// Mounts an overlay for each line `REAL UPPER WORK MERGED` on standard input, then becomes the
/// program that carries the operations out in all of them.
const MOUNT: &str = r#"
while read -r real upper work merged; do
    mount -t overlay -o "userxattr,lowerdir=$real,upperdir=$upper,workdir=$work" overlay "$merged" || exit 1
done
exec "$0" --exact in_the_overlays --nocapture --test-threads=1
"#;

const INSIDE: &str = "IRONCAGE_EQUAL_INSIDE";

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Carries out the operations of a range of seeds, each in its overlay, and writes down how each
/// went. Only as a part of the test below.
#[test]
fn in_the_overlays() {
    let Some(base) = std::env::var_os(INSIDE).map(PathBuf::from) else {
        return;
    };
    let first = number("IRONCAGE_EQUAL_FIRST").expect("a seed");
    for seed in first..first + BATCH {
        let case = base.join(seed.to_string());
        let mut dice = Dice::new(seed);
        skip_planting(&case, &mut dice);
        let said: Vec<String> = operations(&mut dice)
            .iter()
            .map(|operation| carry_out(&case.join("merged"), operation, None))
            .collect();
        std::fs::write(case.join("said"), said.join("\n")).expect("written down");
    }
}

/// Brings the dice to where they are after the tree was planted.
fn skip_planting(case: &Path, dice: &mut Dice) {
    let aside = case.join("aside");
    std::fs::create_dir(&aside).expect("a directory");
    plant(&aside, dice);
    std::fs::remove_dir_all(&aside).expect("removed");
}

struct Case {
    seed: u64,
    directory: PathBuf,
    change: Change,
}

fn prepare(base: &Path, store: &Store, seeds: std::ops::Range<u64>) -> Vec<Case> {
    for seed in seeds.clone() {
        let directory = base.join(seed.to_string());
        for name in ["real", "direct", "merged"] {
            std::fs::create_dir_all(directory.join(name)).expect("a directory");
        }
        plant(&directory.join("real"), &mut Dice::new(seed));
        plant(&directory.join("direct"), &mut Dice::new(seed));
    }
    // What was planted lies before the changes in time.
    std::thread::sleep(std::time::Duration::from_millis(20));
    seeds
        .map(|seed| {
            let directory = base.join(seed.to_string());
            let real = directory.join("real");
            let layers = [LayerRequest {
                role: LayerRole::Workspace,
                real: real.clone(),
                place: PathBuf::new(),
            }];
            let draft = store.draft(&real).expect("a draft");
            let change = store
                .create(&real, draft, "cow", &layers)
                .expect("a change")
                .0;
            Case {
                seed,
                directory,
                change,
            }
        })
        .collect()
}

fn run_in_overlays(base: &Path, cases: &[Case]) {
    let lines: Vec<String> = cases
        .iter()
        .map(|case| {
            let layer = &case.change.layers()[0];
            let merged = case.directory.join("merged");
            format!(
                "{} {} {} {}\n",
                layer.real.display(),
                layer.upper.display(),
                layer.work.display(),
                merged.display()
            )
        })
        .collect();
    let input = base.join("mounts");
    std::fs::write(&input, lines.concat()).expect("a list");
    let output = Command::new("unshare")
        .args(["-Urm", "/bin/sh", "-c", MOUNT])
        .arg(std::env::current_exe().expect("this program"))
        .env(INSIDE, base)
        .env("IRONCAGE_EQUAL_FIRST", cases[0].seed.to_string())
        .stdin(std::fs::File::open(&input).expect("the list"))
        .output()
        .expect("unshare");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn compare(store: &Store, case: &Case) {
    let direct = case.directory.join("direct");
    let mut dice = Dice::new(case.seed);
    skip_planting(&case.directory, &mut dice);
    let script = operations(&mut dice);
    let said = std::fs::read_to_string(case.directory.join("said")).expect("what was said inside");
    for (operation, inside) in script.iter().zip(said.split('\n')) {
        if inside == "not moved" {
            continue;
        }
        let outside = carry_out(&direct, operation, Some(inside));
        assert_eq!(
            outside, inside,
            "seed {}: {operation:?} of {script:#?}",
            case.seed
        );
    }
    let applied = store
        .apply(
            &case.change,
            &Selection::everything(),
            &ApplyOptions::default(),
        )
        .unwrap_or_else(|error| panic!("seed {}: {error}: {script:#?}", case.seed));
    let (real, direct) = (picture(&case.directory.join("real")), picture(&direct));
    assert_eq!(real, direct, "seed {}: {script:#?}\n{applied:?}", case.seed);
    assert!(applied.finished, "seed {}: {applied:?}", case.seed);
}

#[test]
fn applied_is_as_if_it_had_been_done_directly() {
    let base = tempfile::tempdir_in(bed::place()).expect("a directory");
    let store = Store::open(&base.path().join("state"));
    let first = number("IRONCAGE_SEED").unwrap_or(1);
    let count = number("IRONCAGE_CASES").unwrap_or(CASES);
    let mut seed = first;
    while seed < first + count {
        let cases = prepare(base.path(), &store, seed..seed + BATCH);
        run_in_overlays(base.path(), &cases);
        for case in &cases {
            compare(&store, case);
            std::fs::remove_dir_all(&case.directory).expect("removed");
        }
        seed += BATCH;
    }
}
