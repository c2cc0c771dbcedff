//! Booted systems: the init as PID 1, what it gets and what it does not, exec, shutdown, leftovers. The init is a shell
//! script on busybox; a full run also boots Debian's systemd.

use ironcage_tests::{Ran, Running, Screen, Stage, Who, both, only_in_full, wait_until};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(180);
/// The version 2 hierarchy of a host that has both, and of one that has it alone.
const UNIFIED: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// A system whose init says that it is up, makes a group, and ends on SIGRTMIN+3.
const INIT: &str = r#"#!/bin/sh
trap 'echo down >/var/state; exit 0' 37
mkdir /sys/fs/cgroup/service && echo 1 >/sys/fs/cgroup/service/cgroup.procs && echo grouped >/var/state
echo "up as $$ with $*" >/var/up
while :; do sleep 1; done
"#;

fn system(stage: &Stage) -> PathBuf {
    let root = stage.base().join("system");
    for name in [
        "", "bin", "sbin", "etc", "var", "mnt", "proc", "dev", "sys", "run", "tmp",
    ] {
        stage.mkdir(root.join(name));
    }
    stage.write(
        root.join("bin/busybox"),
        fs::read("/bin/busybox").expect("busybox-static"),
    );
    stage.write(root.join("sbin/init"), INIT);
    stage.write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
    for program in ["bin/busybox", "sbin/init"] {
        fs::set_permissions(root.join(program), fs::Permissions::from_mode(0o755))
            .expect("executable");
    }
    for name in [
        "sh", "cat", "chown", "grep", "id", "ls", "mkdir", "mount", "ps", "sleep", "stat", "su",
        "umount", "unshare",
    ] {
        symlink("busybox", root.join("bin").join(name)).expect("linked");
    }
    root
}

/// A group of the version 2 hierarchy that belongs to whoever runs here, as systemd delegates it.
struct Delegated {
    path: PathBuf,
}

impl Delegated {
    fn to(stage: &Stage) -> Option<Delegated> {
        let root = UNIFIED
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.procs").exists())?;
        let path = Path::new(root).join(format!("ironcage-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
            chown(path.join(file), Some(stage.uid()), None).expect("given");
        }
        Some(Delegated { path })
    }

    /// Runs `ironcage ARGS` in the group.
    fn ironcage(&self, stage: &Stage, args: &[&str]) -> Ran {
        let ironcage = stage.ironcage(args);
        // The first argument sets signals back for the shell, too.
        let program = ironcage.get_args().skip(1);
        let mut shell = stage.outside("/bin/sh");
        shell
            .args(["-c", "read go; exec \"$@\"", "sh"])
            .args(program);
        let mut running = Running::start(shell.stdin(Stdio::piped()));
        fs::write(self.path.join("cgroup.procs"), running.pid().to_string()).expect("moved");
        std::io::Write::write_all(&mut running.stdin(), b"go\n").expect("told");
        running.finish(DEADLINE)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        wait_until(DEADLINE, || fs::remove_dir(&self.path).is_ok());
    }
}

/// A system that was booted in the background.
struct Booted<'a> {
    stage: &'a Stage,
    id: String,
    _group: Option<Delegated>,
}

impl<'a> Booted<'a> {
    /// As root, or as a user with a delegated group. `None` where this host has no version 2.
    fn start(stage: &'a Stage, root: &Path, more: &[&str]) -> Option<Booted<'a>> {
        let root = root.to_str().expect("UTF-8");
        Booted::of(stage, &[&["--root", root][..], more].concat())
    }

    /// Of whatever system these flags name.
    fn of(stage: &'a Stage, flags: &[&str]) -> Option<Booted<'a>> {
        let args = [&["run", "-q", "-d", "--boot"][..], flags].concat();
        let group = match stage.who() {
            Who::Root => None,
            Who::User => Some(Delegated::to(stage)?),
        };
        let ran = match &group {
            Some(group) => group.ironcage(stage, &args),
            None => Running::start(&mut stage.ironcage(&args)).finish(DEADLINE),
        };
        let id = ran.ok().stdout().trim().to_owned();
        Some(Booted {
            stage,
            id,
            _group: group,
        })
    }

    fn exec(&self, script: &str) -> Ran {
        let args = ["exec", &self.id, "--", "/bin/sh", "-c", script];
        Running::start(&mut self.stage.ironcage(args)).finish(DEADLINE)
    }

    #[track_caller]
    fn wait_for(&self, script: &str) -> String {
        let mut last = None;
        let found = wait_until(DEADLINE, || {
            let ran = self.exec(script);
            let good = ran.code() == 0;
            last = Some(ran);
            good
        });
        assert!(found, "{script}: {last:?}");
        last.map(|ran| ran.stdout()).unwrap_or_default()
    }

    #[track_caller]
    fn stop(self) {
        Running::start(
            &mut self
                .stage
                .ironcage(["stop", "-q", "--time", "60", &self.id]),
        )
        .finish(DEADLINE)
        .ok();
    }
}

impl Drop for Booted<'_> {
    fn drop(&mut self) {
        // Of a test that failed; else it is gone.
        let args = ["stop", "-q", "--time", "0", &self.id];
        Running::start(&mut self.stage.ironcage(args)).finish(DEADLINE);
    }
}

/// Groups of booted cages in the version 2 hierarchy.
fn groups(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in UNIFIED {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        found.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.ends_with(format!("ironcage-{id}"))),
        );
    }
    found
}

both! {
    fn a_system_boots_and_shuts_down_in_order(stage) {
        let root = system(stage);
        let Some(booted) = Booted::start(stage, &root, &["--", "one", "two"]) else { return };
        // Its init is PID 1, has its arguments and its own cgroup, and nobody stands above it.
        assert_eq!(booted.wait_for("cat /var/up"), "up as 1 with one two\n");
        assert_eq!(booted.wait_for("cat /var/state"), "grouped\n");
        assert_eq!(booted.wait_for("grep -x 1 /sys/fs/cgroup/service/cgroup.procs"), "1\n");
        let processes = booted.wait_for("ps -o pid,args");
        assert!(processes.contains("init one two") && !processes.contains("ironcage-init"), "{processes}");
        // What exec starts is in its PID namespace, as root of the system.
        let seen = booted.exec("id -u; cat /proc/$$/stat >/dev/null && echo seen; echo x >/etc/made && cat /etc/made").ok();
        assert_eq!(seen.stdout(), "0\nseen\nx\n");
        let id = booted.id.clone();
        booted.stop();
        // It wrote its last word, and nothing of it is left.
        let state = stage.state().join("ironcage/images/systems");
        let system = fs::read_dir(state).expect("systems").flatten().next().expect("one").path();
        assert_eq!(fs::read_to_string(system.join("layers/var/upper/state")).expect("written"), "down\n");
        assert!(!root.join("etc/made").exists(), "the directory itself stays");
        assert!(wait_until(DEADLINE, || groups(&id).is_empty()), "{:?}", groups(&id));
    }

    /// As a directory of the same content: the image's own user, directory and words are not the init's.
    fn an_image_boots_and_stays_as_it_is(stage) {
        let root = system(stage);
        let load = ["image", "load", root.to_str().expect("UTF-8"), "--name", "machine:1"];
        Running::start(&mut stage.ironcage(load)).finish(DEADLINE).ok();
        let Some(booted) = Booted::of(stage, &["--image", "machine:1", "--", "word"]) else { return };
        assert_eq!(booted.wait_for("cat /var/up"), "up as 1 with word\n");
        booted.exec("echo changed >/etc/passwd").ok();
        let rm = Running::start(&mut stage.ironcage(["image", "rm", "machine:1"])).finish(DEADLINE);
        rm.failed("image-in-use");
        booted.stop();
        let look = stage.run(&["-q", "--image", "machine:1"], &["/bin/cat", "/etc/passwd"]);
        assert!(look.ok().stdout().starts_with("root:x:0:0"));
    }

    fn an_init_mounts_but_opens_nothing_of_the_cage(stage) {
        let root = system(stage);
        let Some(booted) = Booted::start(stage, &root, &[]) else { return };
        booted.wait_for("cat /var/up");
        // The arm that is allowed: mounts of its own.
        let own = "mount -t tmpfs none /mnt && echo y >/mnt/x && cat /mnt/x && umount /mnt && unshare -m true && echo own";
        assert_eq!(booted.exec(own).ok().stdout(), "y\nown\n");
        for refused in [
            "umount /proc",
            "umount /proc/sys",
            "umount /etc/resolv.conf",
            "mount -o remount,rw /",
            "mount -o remount,rw /proc/sys",
            "mount -t proc proc /mnt",
            "mount -t sysfs sysfs /mnt",
            "mount --bind / /mnt",
            "unshare -U true",
            "unshare -n true",
            "unshare -p true",
            "echo 1 >/proc/sys/kernel/core_uses_pid",
        ] {
            let ran = booted.exec(refused);
            assert_ne!(ran.code(), 0, "{refused}: {ran:?}");
        }
        // Only what the plan lists is given back.
        let caps = booted.exec("cat /proc/1/status").ok().stdout();
        let line = |name: &str| caps.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        assert_eq!(line("CapBnd"), "CapBnd:\t00000000002405eb", "{caps}");
        assert_eq!((line("NoNewPrivs"), line("Seccomp:")), ("NoNewPrivs:\t1".into(), "Seccomp:\t2".into()), "{caps}");
        booted.stop();
    }

    fn a_boot_is_refused_with_what_to_do(stage) {
        let root = system(stage);
        let root = root.to_str().expect("UTF-8");
        let boot = |more: &[&str]| {
            let args = [&["run", "-q"][..], more, &["--boot"]].concat();
            Running::start(&mut stage.ironcage(args)).finish(DEADLINE).ended(125)
        };
        boot(&[]).says("name one with --image or --root");
        boot(&["--root", root, "--isolation", "chroot"]).says("use --isolation namespace");
        boot(&["--root", root, "--syscalls", "minimal"]).says("needs the system call list `standard`");
        if stage.who() == Who::User {
            boot(&["--root", root]).says("is not delegated").says("Delegate=yes");
        }
        let plan = |flags: &[&str]| {
            let args = [&["plan", "--all", "--root", root][..], flags].concat();
            Running::start(&mut stage.ironcage(args)).finish(DEADLINE)
        };
        assert!(!plan(&[]).ok().stdout().contains("CAP_SYS_ADMIN"));
        if stage.who() == Who::Root {
            boot(&["--root", root, "--require", "landlock"]).says("which Landlock forbids");
            let shown = plan(&["--boot"]).ok().stdout();
            for part in ["CAP_SYS_ADMIN", "signal 37", "/sys/fs/cgroup", "max_mnt_namespaces = 128", "max_user_namespaces = 0"] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
        }
    }
}

#[test]
fn the_console_of_a_booted_system_is_the_users_terminal() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let root = system(&stage);
    let Some(screen) = Screen::open(&stage) else {
        return;
    };
    let init =
        "echo on-the-console >/dev/console; read word </dev/console; echo read-$word >/dev/console";
    screen.line(&format!(
        "{} run -q --root {} --boot --entrypoint /bin/sh -- -c '{init}'; echo ended=$?",
        ironcage_tests::binary().display(),
        root.display()
    ));
    screen.shows("on-the-console");
    screen.line("typed");
    screen.shows("read-typed");
    screen.shows("ended=0");
}

#[test]
fn a_killed_supervisor_takes_the_system_with_it() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let root = system(&stage);
    let root = root.to_str().expect("UTF-8");
    let mut command = stage.ironcage(["run", "-q", "--name", "killed", "--root", root, "--boot"]);
    let running = Running::start(command.stdin(Stdio::piped()));
    let listed = || {
        let ran = Running::start(&mut stage.ironcage(["ps", "--json"]))
            .finish(DEADLINE)
            .ok();
        let all: serde_json::Value = serde_json::from_str(&ran.stdout()).expect("JSON");
        let cage = all
            .as_array()?
            .iter()
            .find(|cage| cage["name"] == "killed")?
            .clone();
        cage["id"].as_str().map(str::to_owned)
    };
    let mut id = None;
    assert!(wait_until(DEADLINE, || {
        id = listed();
        id.is_some()
    }));
    let id = id.expect("listed");
    let procs = || {
        groups(&id).iter().any(|group| {
            let inner = fs::read_to_string(group.join("service/cgroup.procs")).unwrap_or_default();
            !inner.trim().is_empty()
        })
    };
    assert!(wait_until(DEADLINE, || groups(&id).is_empty() || procs()));
    running.signal(Signal::KILL);
    running.finish(DEADLINE);
    assert!(wait_until(DEADLINE, || !procs()), "its processes are gone");
    // The next boot removes the group that is left.
    let booted = Booted::start(&stage, Path::new(root), &[]).expect("started");
    assert!(groups(&id).is_empty(), "{:?}", groups(&id));
    booted.stop();
}

/// Files, descriptors, processes, sockets and addresses of the host, secrets, system calls, kernel interfaces, limits.
const HELD: [&str; 60] = [
    "FS-01", "FS-02", "FS-03", "FS-07", "FS-10", "FS-11", "FS-12", "FS-14", "FS-15", "FS-16",
    "FS-21", "FS-22", "FS-24", "FD-01", "FD-03", "FD-05", "FD-06", "PR-01", "PR-02", "PR-03",
    "PR-04", "PR-05", "PR-06", "PR-07", "PR-08", "IP-01", "IP-02", "IP-03", "IP-04", "IP-06",
    "NE-01", "NE-02", "NE-03", "NE-04", "NE-06", "SY-01", "SY-02", "SY-03", "SY-04", "SY-05",
    "SY-06", "SY-07", "SY-08", "SY-11", "SY-14", "SY-25", "KI-01", "KI-03", "KI-05", "KI-06",
    "SE-01", "SE-03", "SE-06", "SU-01", "SU-03", "SU-04", "SU-06", "RS-01", "RS-03m", "RS-05",
];
/// What an init is given back: capabilities in its own namespace, and its own cgroup.
const GIVEN_BACK: [&str; 2] = ["SY-20", "KI-04"];

/// The containment suite, as the init of a booted cage: the process that has most.
#[test]
fn an_init_that_attacks_reaches_nothing() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let mut command = stage.ironcage(["probe", "run", "--json", "--against", "ironcage-boot"]);
    command.args(HELD).args(GIVEN_BACK);
    // The suite puts its own over it, in a mount namespace of its own.
    command.env("HOME", "/root");
    let ran = Running::start(&mut command).finish(2 * DEADLINE);
    let found: serde_json::Value =
        serde_json::from_slice(&ran.bytes).unwrap_or_else(|_| panic!("{ran:?}"));
    let rows = found["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), HELD.len() + GIVEN_BACK.len());
    for row in rows {
        let id = row["id"].as_str().expect("an id");
        let wanted = if GIVEN_BACK.contains(&id) {
            "open"
        } else {
            "blocked"
        };
        assert_eq!(row["verdict"], wanted, "{row}");
    }
}

#[test]
fn systemd_of_debian_boots_runs_services_and_powers_off() {
    if !only_in_full() {
        return;
    }
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let root = Path::new("/var/cache/ironcage-test/debian-systemd");
    if !root.join("sbin/init").exists() {
        let _ = fs::remove_dir_all(root);
        let output = Command::new("mmdebstrap")
            .args([
                "--quiet",
                "--variant=minbase",
                "--include=systemd-sysv,dbus",
                "bookworm",
            ])
            .arg(root)
            .output()
            .expect("mmdebstrap");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let booted = Booted::start(&stage, root, &[]).expect("started");
    let state = booted.wait_for("systemctl is-system-running");
    assert_eq!(
        state,
        "running\n",
        "{:?}",
        booted.exec("systemctl --failed; journalctl -b --no-pager")
    );
    // A service with a user, a mount namespace and a private /tmp of its own.
    let service = "systemd-run --wait --pipe -q -p User=messagebus -p PrivateTmp=yes -p ProtectSystem=full \
                   sh -c 'id -un; ls -A /tmp; touch /usr/x 2>/dev/null || echo protected'";
    assert_eq!(
        booted.exec(service).ok().stdout(),
        "messagebus\nprotected\n"
    );
    assert!(
        booted
            .exec("journalctl --no-pager -u dbus")
            .ok()
            .stdout()
            .contains("Started dbus.service")
    );
    assert_eq!(booted.exec("systemctl poweroff").code(), 0);
    let gone = || Running::start(&mut stage.ironcage(["wait", &booted.id])).finish(DEADLINE);
    gone().ok();
    // The journal is read from outside, and says that the shutdown was orderly.
    let systems = stage.state().join("ironcage/images/systems");
    let system = fs::read_dir(systems)
        .expect("systems")
        .flatten()
        .next()
        .expect("one")
        .path();
    let journal = system.join("layers/var/upper/log/journal");
    let read = Command::new("journalctl")
        .args(["--no-pager", "-D"])
        .arg(journal)
        .output()
        .expect("journalctl");
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(
        text.contains("Reached target shutdown.target") && text.contains("Journal stopped"),
        "{text}"
    );
}
