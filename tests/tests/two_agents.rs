//! Two agents of one user: what one uses up is not the other's, and what they share is on record.
//!
//! That they cannot see, signal, trace or reach each other is the suite's (SU-08, SU-10).

use ironcage_tests::{Running, Stage, both};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn number(text: &str) -> u64 {
    text.trim().parse().expect("a number")
}

fn record(stage: &Stage) -> String {
    let mut show = stage.ironcage(["audit", "show"]);
    Running::start(&mut show).finish(MINUTE).ok().stdout()
}

both! {
    fn one_cage_gets_a_share_of_what_its_user_may_have(stage) {
        for name in ["max_inotify_instances", "max_inotify_watches"] {
            let read = format!("cat /proc/sys/user/{name}");
            let all = number(&stage.sh_outside(&read).ok().stdout());
            let inside = number(&stage.sh(&read).ok().stdout());
            assert!(inside <= all.div_ceil(4), "{name}: {inside} of {all}");
            assert!(inside > 0);
        }
    }

    fn one_cage_cannot_take_every_terminal(stage) {
        let take = "python3 -c 'import os\nn=0\ntry:\n while n < 150:\n  os.openpty(); n+=1\nexcept OSError: pass\nprint(n)'";
        // Two descriptors each.
        let outside = number(&stage.sh_outside(&format!("ulimit -n 400; {take}")).ok().stdout());
        assert_eq!(outside, 150, "the host has terminals");
        let inside = number(&stage.sh_with(&["--files", "400"], take).ok().stdout());
        assert_eq!(inside, 128);
    }

    fn what_a_cage_shares_is_on_record_with_who_said_so(stage) {
        stage.sh("true").ok();
        let alone = record(stage);
        assert!(!alone.contains("shared:"), "{alone}");
        let cache = stage.aside().join("cache");
        stage.mkdir(&cache);
        let grant = format!("{}:direct", cache.display());
        let flags = ["-w", &grant, "--workspace-mode", "direct"];
        stage.sh_with(&flags, "true").ok();
        let shown = record(stage);
        let cache = format!("shared: {}, written, by ", cache.display());
        let workspace = format!("shared: {}, written, by ", stage.project().display());
        assert!(shown.contains(&cache), "{cache}\n{shown}");
        assert!(shown.contains(&workspace), "{workspace}\n{shown}");
    }
}
