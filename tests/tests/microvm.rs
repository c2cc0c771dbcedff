//! MicroVM cages: one boot for each user, in which everything is asked.
//!
//! Machines are emulated, so a boot takes seconds. The kernel is unpacked by `scripts/test`.

use ironcage_tests::{Ran, Running, Stage, both, either, skip, wait_until};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Where `scripts/test` unpacks a kernel.
const KERNELS: &str = "/var/cache/ironcage-test/kernel/boot";
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

fn kernel() -> Option<PathBuf> {
    let entries = fs::read_dir(KERNELS).ok()?.flatten();
    let mut kernels = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("vmlinuz-")
    });
    kernels.next()
}

/// Makes the guest of a stage. `false` where this machine has nothing to make it of.
pub(crate) fn set_up(stage: &Stage) -> bool {
    set_up_with(stage, &[])
}

/// The same with more flags of `ironcage setup microvm`.
pub(crate) fn set_up_with(stage: &Stage, flags: &[&str]) -> bool {
    let Some(kernel) = kernel() else {
        skip("no kernel for guests; ./scripts/test downloads one");
        return false;
    };
    let kernel = kernel.to_string_lossy().into_owned();
    let setup = ["setup", "microvm", "--kernel", &kernel];
    finish(&mut stage.ironcage([&setup[..], flags].concat())).ok();
    true
}

#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Ran {
    Running::start(command).finish(DEADLINE)
}

/// A cage in the background, stopped when this is dropped.
pub(crate) struct Guest<'a> {
    stage: &'a Stage,
}

impl<'a> Guest<'a> {
    pub(crate) fn start(stage: &'a Stage, flags: &[&str]) -> Self {
        let mut all = vec!["--isolation", "microvm", "-d", "--name", "guest"];
        all.extend(flags);
        finish(&mut stage.cage(&all, &["sleep", "1000"])).ok();
        Guest { stage }
    }

    #[track_caller]
    pub(crate) fn exec(&self, script: &str) -> Ran {
        finish(
            &mut self
                .stage
                .ironcage(["exec", "guest", "--", "/bin/sh", "-c", script]),
        )
    }

    #[track_caller]
    pub(crate) fn ironcage(&self, args: &[&str]) -> Ran {
        finish(&mut self.stage.ironcage(args))
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let _ = self.stage.ironcage(["stop", "guest"]).output();
    }
}

both! {
    fn a_guest_runs_commands_on_the_view_of_its_cage_and_a_lease_ends_with_files_open(stage) {
        if !set_up(stage) {
            return;
        }
        let data = stage.aside().join("data");
        stage.mkdir(&data);
        stage.write(data.join("kept"), "from outside");
        stage.write(stage.project().join("here"), "of the workspace");
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, format!("[ceiling.ask.files]\nwrite = [\"{}\"]\n", data.display()));
        let guest = Guest::start(stage, &["--policy", &policy.to_string_lossy(), "--env", "WORD=in the guest"]);

        // Its own kernel, the agent's identity, and what the agent has given up.
        let host = fs::read_to_string("/proc/sys/kernel/osrelease").expect("this kernel's version");
        let own = guest.exec("uname -r").ok().stdout();
        assert!(own.contains("cloud") && own.trim() != host.trim(), "{own}");
        let status = guest.exec("id -u; grep -E 'NoNewPrivs|Seccomp:|CapEff|CapBnd' /proc/self/status").ok().stdout();
        let words: Vec<&str> = status.split_whitespace().collect();
        assert_eq!(words, ["1000", "CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]);
        // A call that the list denies, and one that it allows.
        guest.exec("unshare -U true").ended(1);
        guest.exec("true").ok();

        // Streams, arguments, environment, status, signals.
        let run = stage.ironcage(["exec", "-i", "guest", "--", "/bin/sh", "-c", "cat; echo \"$WORD\" >&2; exit 5"]);
        let fed = feed(run, b"\x00\xffbytes\n".repeat(40_000));
        assert_eq!((fed.code(), fed.bytes.len()), (5, 320_000));
        fed.says("in the guest");
        guest.exec("kill -TERM $$").ended(143);
        guest.exec("/nowhere/program").ended(127);

        // The workspace is copy-on-write, and what a person wrote is there.
        let seen = guest.exec("cat here; echo new > made; mkdir d; mv made d; ln -s d l; cat l/made; rm here; ls").ok().stdout();
        assert_eq!(seen, "of the workspacenew\nd\nl\n");
        assert_eq!(stage.read("here").as_deref(), Some("of the workspace"));
        assert_eq!(stage.read("d/made"), None);

        // What is not in the view is not there; a lease shows it, and its end is proved with a file open for writing.
        let path = data.display();
        guest.exec(&format!("ls {path}")).ended(2);
        guest.ironcage(&["lease", "grant", "guest", "--write", &data.to_string_lossy()]).ok();
        assert_eq!(guest.exec(&format!("cat {path}/kept")).ok().stdout(), "from outside");
        let script = format!("exec 3>{path}/open; echo one >&3; while sleep 0.1; do echo more >&3 || exit 9; done");
        let holder = Running::start(&mut stage.ironcage(["exec", "guest", "--", "/bin/sh", "-c", &script]));
        let is_open = || fs::read_to_string(data.join("open")).is_ok_and(|text| text.contains("more"));
        assert!(wait_until(DEADLINE, is_open), "the guest writes to the leased file");
        let revoked = guest.ironcage(&["lease", "revoke", "guest", "--all"]).ok();
        assert_eq!(revoked.stdout(), "lease 1: revoked\n");
        // The writer gets an error and the guest goes on: nobody was killed for it.
        holder.finish(DEADLINE).ended(9);
        let length = fs::metadata(data.join("open")).expect("the file").len();
        guest.exec(&format!("ls {path}")).ended(2);
        assert_eq!(fs::metadata(data.join("open")).expect("the file").len(), length);
        // The same path again is another mount, and works.
        guest.ironcage(&["lease", "grant", "guest", "--write", &data.to_string_lossy()]).ok();
        guest.exec(&format!("echo again > {path}/again")).ok();
        assert_eq!(fs::read_to_string(data.join("again")).expect("the file"), "again\n");

        guest.ironcage(&["stop", "guest"]).ok();
        let logged = guest.ironcage(&["audit", "show"]);
        assert!(logged.stdout().contains("lease"), "{logged:?}");
    }
}

fn feed(mut command: Command, input: Vec<u8>) -> Ran {
    Running::start(&mut command).feed(input, DEADLINE)
}

either! {
    fn what_a_guest_cannot_have_is_refused_by_name(stage) {
        finish(&mut stage.cage(&["--isolation", "microvm"], &["true"]))
            .ended(125)
            .denied("start-unsupported")
            .says("ironcage setup microvm");
        if !set_up(stage) {
            return;
        }
        for (flags, named) in [
            (&["--root-inside"][..], "user 0"),
            (&["--side-channels", "cores"][..], "side-channel"),
            (&["--memory", "256M"][..], "memory limit"),
        ] {
            let mut all = vec!["--isolation", "microvm"];
            all.extend(flags);
            finish(&mut stage.ironcage([&["plan"][..], &all, &["--", "true"]].concat()))
                .denied("start-unsupported")
                .says(named);
        }
        // What is dropped without a refusal is told.
        let policy = stage.base().join("others.toml");
        stage.write(&policy, "[ceiling]\nchildren = 1\nchannels = 1\n[ceiling.ask.limits]\npids = 64\n");
        let plan = finish(&mut stage.ironcage(["plan", "--isolation", "microvm", "--policy", &policy.to_string_lossy(), "--", "true"])).ok();
        for told in ["ceiling.children has no effect", "leases on limits"] {
            assert!(plan.stdout().contains(told) || plan.stderr.contains(told), "{told}: {plan:?}");
        }
        // Without those, there is a plan that names the machine.
        let plan = finish(&mut stage.ironcage(["plan", "--all", "--isolation", "microvm", "--", "true"])).ok();
        assert!(plan.stdout().contains("machine    /usr/bin/qemu-system-x86_64 (tcg, emulated: "), "{plan:?}");
    }
}
