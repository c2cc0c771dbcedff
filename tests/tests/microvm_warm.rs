//! Guests that are restored from a template: in a full run, as it downloads QEMU 10 and boots two
//! guests to save them.

use crate::microvm::{Guest, finish, set_up, set_up_with};
use ironcage_tests::{either, only_in_full};
use std::fs::OpenOptions;

either! {
    fn a_restored_guest_has_its_own_randomness_files_and_leases_and_a_broken_template_starts_nothing(stage) {
        if !only_in_full() || !set_up(stage) {
            return;
        }
        let plan = |flags: &[&str]| {
            let all = [&["plan", "--all", "--isolation", "microvm"], flags, &["--", "true"]].concat();
            finish(&mut stage.ironcage(all)).ok().stdout()
        };
        // Made without templates: it boots, and the plan says why.
        assert!(plan(&[]).contains("start      boots: no template is set up"));
        set_up_with(stage, &["--qemu", "--warm", "--memory", "256M"]);
        assert!(plan(&[]).contains("start      restored from sha256:"));
        assert!(plan(&["--network", "open"]).contains("start      restored from sha256:"));
        assert!(plan(&["--memory", "700M"]).contains("start      boots: no template has this size"));

        // Two guests of one template.
        let script = "cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1; id -u; uname -n; ls -d /.ironcage/vm/template";
        let ran = || finish(&mut stage.cage(&["--isolation", "microvm"], &["/bin/sh", "-c", script])).stdout();
        let (one, other) = (ran(), ran());
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (one, other) = (words(&one), words(&other));
        assert_eq!((one.len(), &one[17..]), (19, &other[17..]), "{one:?} {other:?}");
        assert!(one[0] != other[0] && one[1..17] != other[1..17], "{one:?} {other:?}");
        assert_eq!(one[17], "1000");

        // Leases, and what they end with.
        let data = stage.aside().join("data");
        stage.mkdir(&data);
        stage.write(data.join("kept"), "from outside");
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, format!("[ceiling.ask.files]\nwrite = [\"{}\"]\n", data.display()));
        let guest = Guest::start(stage, &["--policy", &policy.to_string_lossy()]);
        let read = format!("cat {}/kept", data.display());
        guest.exec(&read).ended(1);
        let place = data.to_string_lossy().into_owned();
        let granted = guest.ironcage(&["grant", "guest", "--read", &place]).ok();
        assert_eq!(guest.exec(&read).ok().stdout(), "from outside", "{granted:?}");
        drop(guest);

        // A state that is cut off: nothing boots in its place.
        let state = stage.state().join("ironcage/microvm/templates/256-alone/state");
        let file = OpenOptions::new().write(true).open(&state).expect("the state");
        file.set_len(1000).expect("it is cut");
        let failed = finish(&mut stage.cage(&["--isolation", "microvm"], &["true"]));
        assert_ne!(failed.code(), 0, "{failed:?}");
        let failed = failed.says("could not be restored");
        assert!(!failed.stderr.contains("boots"), "{failed:?}");
    }
}
