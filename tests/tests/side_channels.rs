//! Means against side channels: cores of its own, kept; and no start where one is missing.

use ironcage_tests::{Running, Stage, either, wait_until};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn doctor_says_hardened_works(stage: &Stage) -> bool {
    let mut doctor = stage.ironcage(["doctor", "--json"]);
    let text = Running::start(&mut doctor).finish(MINUTE).stdout();
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut extras = found["extras"].as_array().expect("extras").iter();
    let hardened = extras.find(|extra| extra["name"] == "--side-channels hardened");
    hardened.expect("a line for it")["works"] == true
}

fn processors(text: &str) -> Vec<u32> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = line.expect("a list of processors").trim();
    let numbers = list.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    });
    numbers.collect()
}

either! {
    fn a_cage_with_cores_of_its_own_cannot_leave_them(stage) {
        let all = processors(&stage.sh_outside("cat /proc/self/status").ok().stdout());
        if all.len() < 2 {
            ironcage_tests::skip("one processor cannot be divided");
            return;
        }
        let flags = ["--side-channels", "cores", "--cpus", "1"];
        let mut plan = stage.ironcage(["plan", "--all"]);
        plan.args(flags).args(["--", "/bin/true"]);
        let planned = Running::start(&mut plan).finish(MINUTE).ok().stdout();
        assert!(planned.contains("cores of its own"), "{planned}");
        let own = processors(&stage.sh_with(&flags, "cat /proc/self/status").ok().stdout());
        assert!(own.len() < all.len(), "{own:?} of {all:?}");
        let leave = format!("taskset -c {} true", all.iter().find(|one| !own.contains(one)).unwrap());
        assert_ne!(stage.sh_with(&flags, &leave).code(), 0);
        stage.sh_outside(&leave).ok();
    }

    fn two_such_cages_have_no_core_in_common(stage) {
        let flags = ["--side-channels", "cores", "--cpus", "1"];
        let all = processors(&stage.sh_outside("cat /proc/self/status").ok().stdout());
        if all.len() < 2 {
            ironcage_tests::skip("one processor cannot be divided");
            return;
        }
        let script = "cat /proc/self/status > shown; mv shown ready; while [ ! -e go ]; do sleep 0.1; done";
        let direct = [&flags[..], &["--workspace-mode", "direct"]].concat();
        let first = Running::start(&mut stage.cage(&direct, &["/bin/sh", "-c", script]));
        assert!(wait_until(MINUTE, || stage.read("ready").is_some()));
        let shown = stage.read("ready").expect("it is there");
        let second = stage.sh_with(&flags, "cat /proc/self/status");
        // Both processors may be threads of one core: then the second is refused, which is the point.
        if second.code() == 0 {
            let (first, second) = (processors(&shown), processors(&second.stdout()));
            assert!(first.iter().all(|one| !second.contains(one)), "{first:?} {second:?}");
        } else {
            assert!(second.stderr.contains("of its own"), "{second:?}");
        }
        stage.write(stage.project().join("go"), "");
        first.finish(MINUTE).ok();
    }

    fn hardened_starts_where_the_doctor_says_so_and_nowhere_else(stage) {
        let ran = stage.run(&["--side-channels", "hardened", "--cpus", "1"], &["/bin/echo", "ran"]);
        if doctor_says_hardened_works(stage) {
            assert_eq!(ran.ok().stdout(), "ran\n");
            return;
        }
        assert_eq!(ran.code(), 125);
        assert!(!ran.stdout().contains("ran"), "{ran:?}");
        assert!(ran.stderr.contains("this host lacks"), "{ran:?}");
        stage.run(&["--side-channels", "off"], &["/bin/true"]).ok();
    }
}
