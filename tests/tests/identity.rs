//! Who the agent is inside, what it may, and who owns what it leaves.

use ironcage_tests::{DIRECT, Ran, Running, Stage, Who, both, wait_until};
use std::os::unix::fs::{MetadataExt, chown};
use std::time::Duration;

/// A field of /proc/self/status of a process in the cage.
fn status(stage: &Stage, flags: &[&str], field: &str) -> String {
    let ran = stage.run(flags, &["/bin/cat", "/proc/self/status"]).ok();
    let text = ran.stdout();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {text}"))
        .trim()
        .to_owned()
}

fn bits(stage: &Stage, flags: &[&str], field: &str) -> u64 {
    u64::from_str_radix(&status(stage, flags, field), 16).expect("a number")
}

/// Reads a file that its own permission bits forbid.
fn read_against_the_bits(stage: &Stage, flags: &[&str]) -> Ran {
    stage.sh_with(
        flags,
        "echo read > /tmp/file && chmod 000 /tmp/file && cat /tmp/file",
    )
}

const DAC_OVERRIDE: u64 = 1 << 1;

both! {
    fn temporary_directories_belong_to_the_agent(stage) {
        // Programs that put sockets there refuse a directory of somebody else's.
        let ran = stage.sh("stat -c '%u %a' /tmp /dev/shm && id -u").ok();
        assert_eq!(ran.stdout(), "1000 1777\n1000 1777\n1000\n");
    }

    fn the_agent_is_an_ordinary_user(stage) {
        let ran = stage.sh("id -u; id -g; id -un; id -gn").ok();
        assert_eq!(ran.stdout(), "1000\n1000\nagent\nagent\n");
    }

    fn root_inside_is_root_of_nothing_outside(stage) {
        let flags = ["--root-inside"];
        assert_eq!(stage.sh_with(&flags, "id -u; id -un").ok().stdout(), "0\nroot\n");
        for attempt in [
            "echo x > /usr/planted",
            "mount -t tmpfs none /mnt",
            "mount -o remount,rw /usr",
            "hostname other",
            "mknod /tmp/node c 1 3 && head -c1 /tmp/node",
            "unshare -U true",
            "echo 1 > /proc/sys/kernel/hostname",
            "chroot /usr /bin/true",
        ] {
            assert_ne!(stage.sh_with(&flags, attempt).code(), 0, "{attempt}");
        }
        stage.sh_with(&[&flags[..], &DIRECT].concat(), "echo x > made").ok();
        let owner = std::fs::metadata(stage.project().join("made")).expect("the file").uid();
        assert_eq!(owner, stage.uid());
    }

    fn there_are_no_capabilities_and_no_new_privileges(stage) {
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(bits(stage, &[], set), 0, "{set}");
        }
        assert_eq!(status(stage, &[], "NoNewPrivs"), "1");
        assert_eq!(status(stage, &[], "Seccomp"), "2");
    }

    fn a_single_capability_can_be_given_back(stage) {
        assert_ne!(read_against_the_bits(stage, &[]).code(), 0);
        let flags = ["--cap", "DAC_OVERRIDE"];
        assert_eq!(read_against_the_bits(stage, &flags).ok().stdout(), "read\n");
        assert_eq!(bits(stage, &flags, "CapEff"), DAC_OVERRIDE);
        assert_eq!(bits(stage, &flags, "CapBnd"), DAC_OVERRIDE);
    }

    fn a_low_port_needs_no_capability(stage) {
        let script = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 80)); print('bound')";
        assert_eq!(stage.run(&[], &["/usr/bin/python3", "-c", script]).ok().stdout(), "bound\n");
    }

    fn capabilities_that_reach_the_host_are_refused(stage) {
        for name in ["SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "SYS_TIME", "BPF", "PERFMON", "SYSLOG", "MAC_ADMIN"] {
            stage.sh_with(&["--cap", name], "true").ended(125).says(name);
        }
        stage.sh_with(&["--cap", "NO_SUCH_CAPABILITY"], "true").ended(125).says("NO_SUCH_CAPABILITY");
        stage.sh_with(&["--cap", "NET_BIND_SERVICE"], "true").ok();
    }

    fn files_made_inside_belong_to_the_user_outside(stage) {
        stage.write(stage.project().join("given"), "x");
        let ran = stage.sh_direct("stat -c %u given; echo y > made; mkdir dir; chmod 600 given; echo z >> given").ok();
        assert_eq!(ran.stdout(), "1000\n", "the workspace belongs to the agent inside");
        for made in ["made", "dir", "given"] {
            let metadata = std::fs::metadata(stage.project().join(made)).expect("the file");
            assert_eq!(metadata.uid(), stage.uid(), "{made}");
        }
    }

    fn the_host_sees_an_unprivileged_process(stage) {
        let mut cage = Running::start(&mut stage.cage(&[], &["/bin/cat"]));
        let hold = cage.stdin();
        let mut owners = Vec::new();
        wait_until(Duration::from_secs(30), || {
            owners = descendants(cage.pid())
                .into_iter()
                .filter(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"/bin/cat\0"))
                .filter_map(uid_of)
                .collect();
            !owners.is_empty()
        });
        drop(hold);
        cage.finish(Duration::from_secs(60)).ok();
        assert!(!owners.is_empty(), "the command was not found from outside");
        for owner in owners {
            assert_ne!(owner, 0);
            if stage.who() == Who::User {
                assert_eq!(owner, stage.uid());
            }
        }
    }
}

/// The real user id of a process as the host sees it.
fn uid_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn descendants(of: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![of];
    while let Some(parent) = open.pop() {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            if let Ok(child) = child.parse() {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

#[test]
fn as_root_files_belong_to_the_owner_of_the_workspace() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let owner = 4711;
    chown(stage.project(), Some(owner), Some(owner)).expect("an owner");
    stage.write(stage.project().join("given"), "x");
    chown(stage.project().join("given"), Some(owner), Some(owner)).expect("an owner");
    let ran = stage
        .sh_direct("stat -c %u . given; echo y > made; echo z >> given")
        .ok();
    assert_eq!(ran.stdout(), "1000\n1000\n");
    let metadata = std::fs::metadata(stage.project().join("made")).expect("the file");
    assert_eq!((metadata.uid(), metadata.gid()), (owner, owner));
}

#[test]
fn two_cages_of_root_have_ids_of_their_own() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let map = |stage: &Stage| {
        let mut cage = Running::start(&mut stage.cage(
            &["--fresh"],
            &["/bin/sh", "-c", "cat /proc/self/uid_map; read wait"],
        ));
        let hold = cage.stdin();
        let mut stdout = cage.stdout();
        let mut line = [0; 64];
        let length = std::io::Read::read(&mut stdout, &mut line).expect("the map");
        (
            String::from_utf8_lossy(&line[..length]).into_owned(),
            (cage, hold, stdout),
        )
    };
    let (first, _first) = map(&stage);
    let (second, _second) = map(&stage);
    let outer = |map: &str| map.split_whitespace().nth(1).map(str::to_owned);
    assert!(
        outer(&first).is_some() && outer(&second).is_some() && outer(&first) != outer(&second),
        "{first:?} {second:?}"
    );
    assert_ne!(outer(&first).as_deref(), Some("0"));
}
