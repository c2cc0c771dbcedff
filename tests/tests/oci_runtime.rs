//! `ironcage-oci-runtime` by itself, each test with roots and state of its own.

use ironcage_tests::binary;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const APPLETS: &[&str] = &[
    "cat", "echo", "false", "grep", "id", "ip", "ls", "mkdir", "mknod", "mount", "sh", "sleep",
    "touch", "true", "tty",
];
/// An engine that hangs is ended after this many seconds.
pub(crate) const PATIENCE: &str = "120";

pub(crate) fn runtime() -> PathBuf {
    binary().with_file_name("ironcage-oci-runtime")
}

pub(crate) fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A bundle of busybox, and a place for everything that a test makes.
pub(crate) struct Place {
    top: tempfile::TempDir,
    name: String,
}

impl Place {
    pub(crate) fn new(name: &str) -> Place {
        let top = tempfile::Builder::new()
            .prefix("oci.")
            .tempdir()
            .expect("a directory");
        let root = top.path().join("bundle/rootfs");
        for name in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
            fs::create_dir_all(root.join(name)).expect("made");
        }
        fs::create_dir(top.path().join("home")).expect("made");
        fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static");
        for applet in APPLETS {
            symlink("busybox", root.join("bin").join(applet)).expect("linked");
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").expect("written");
        let name = format!("ironcage-test-{}-{name}", std::process::id());
        Place { top, name }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.top.path().join(below)
    }

    pub(crate) fn text(&self, below: &str) -> String {
        self.path(below).to_str().expect("UTF-8").to_owned()
    }

    /// Writes config.json; `rest` are further members of it.
    fn configure(&self, args: &[&str], rest: serde_json::Value) {
        let caps = ["CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_KILL"];
        let mut config = serde_json::json!({
            "ociVersion": "1.0.2",
            "root": { "path": "rootfs" },
            "process": {
                "args": args, "cwd": "/", "env": ["PATH=/bin"],
                "capabilities": { "bounding": caps, "effective": caps, "permitted": caps },
            },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
                { "destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance", "ptmxmode=0666"] },
            ],
            "linux": {
                "cgroupsPath": format!("/{}", self.name),
                "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" }],
                "maskedPaths": ["/proc/keys", "/proc/acpi"],
            },
        });
        for (key, value) in rest.as_object().expect("an object") {
            config[key] = value.clone();
        }
        fs::write(self.path("bundle/config.json"), config.to_string()).expect("written");
    }

    /// Its output goes to files: a container that `create` makes has them open as long as it lives.
    fn runtime(&self, args: &[&str]) -> Output {
        let file = |name| fs::File::create(self.path(name)).expect("a file");
        let status = Command::new("timeout")
            .args(["-k", "5", PATIENCE])
            .arg(runtime())
            .args(["--root", &self.text("state"), "--log", &self.text("log")])
            .args(["--log-format", "json"])
            .args(args)
            .env("HOME", self.path("home"))
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .status()
            .expect("timeout runs");
        Output {
            status,
            stdout: fs::read(self.path("stdout")).expect("read"),
            stderr: fs::read(self.path("stderr")).expect("read"),
        }
    }

    /// What `ironcage` says of the containers of this place.
    pub(crate) fn ironcage(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(args).env("HOME", self.path("home"));
        command.env_remove("XDG_STATE_HOME");
        command.output().expect("ironcage runs")
    }

    /// The line of a container in `ps`, by its ID.
    pub(crate) fn listed(&self, args: &[&str], id: &str) -> Option<serde_json::Value> {
        let output = self.ironcage(&[&["ps", "--json"], args].concat());
        assert!(output.status.success(), "{}", said(&output));
        let lines: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("a list");
        lines.into_iter().find(|line| {
            line["container"]["id"]
                .as_str()
                .is_some_and(|found| found == id)
        })
    }

    fn run(&self) -> Output {
        self.runtime(&["run", "--bundle", &self.text("bundle"), &self.name])
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = self.runtime(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        said(&output)
    }

    #[track_caller]
    fn refused(&self, args: &[&str], why: &str) {
        let output = self.runtime(args);
        assert!(!output.status.success(), "{args:?} worked");
        assert!(said(&output).contains(why), "{args:?}: {}", said(&output));
    }

    /// Groups with a name of this test that are left on the host.
    fn groups(&self) -> Vec<PathBuf> {
        let tops = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/pids",
            "/sys/fs/cgroup/freezer",
        ];
        let left = tops.map(|top| Path::new(top).join(&self.name));
        left.into_iter().filter(|path| path.exists()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.runtime(&["delete", "--force", &self.name]);
    }
}

#[test]
fn a_container_is_created_started_paused_killed_and_deleted() {
    let place = Place::new("life");
    place.configure(&["sleep", "1000"], serde_json::json!({}));
    let name = place.name.as_str();
    place.refused(&["state", name], "does not exist");
    place.ok(&[
        "create",
        "--bundle",
        &place.text("bundle"),
        "--pid-file",
        &place.text("pid"),
        name,
    ]);
    place.refused(
        &["create", "--bundle", &place.text("bundle"), name],
        "already exists",
    );
    let state: serde_json::Value = serde_json::from_str(&place.ok(&["state", name])).expect("JSON");
    assert_eq!(state["status"], "created");
    let pid = fs::read_to_string(place.path("pid")).expect("the pid file");
    assert_eq!(state["pid"].to_string(), pid);
    place.ok(&["start", name]);
    place.refused(&["start", name], "container not created");
    place.refused(&["delete", name], "container not stopped");
    let status = |wanted: &str| {
        let state: serde_json::Value =
            serde_json::from_str(&place.ok(&["state", name])).expect("JSON");
        assert_eq!(state["status"], wanted);
    };
    status("running");
    assert_eq!(
        place.ok(&["exec", name, "echo", "from exec"]),
        "from exec\n"
    );
    place.refused(
        &["exec", name, "no-such-program"],
        "executable file not found in $PATH",
    );
    assert_eq!(
        place.ok(&["ps", "--format", "json", name]).trim(),
        format!("[{pid}]")
    );
    place.ok(&["pause", name]);
    status("paused");
    place.refused(&["exec", name, "true"], "container not running");
    place.ok(&["resume", name]);
    status("running");
    assert!(place.ok(&["list", "--quiet"]).contains(name));
    place.ok(&["kill", name, "KILL"]);
    let until = Instant::now() + Duration::from_secs(60);
    while !place.ok(&["state", name]).contains("stopped") {
        assert!(Instant::now() < until, "it was killed");
    }
    place.refused(&["kill", name, "KILL"], "container not running");
    place.ok(&["delete", name]);
    place.refused(&["state", name], "does not exist");
    place.ok(&["delete", "--force", name]);
    assert_eq!(place.groups(), Vec::<PathBuf>::new());
    let log = fs::read_to_string(place.path("log")).expect("the log");
    let last: serde_json::Value =
        serde_json::from_str(log.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["level"], "error");
    place.refused(&["checkpoint", name], "cannot be put on a process again");
    place.refused(&["--systemd-cgroup", "list"], "writes cgroups itself");
}

#[test]
fn a_container_is_listed_logged_and_stopped_by_ironcage() {
    let place = Place::new("seen");
    place.configure(&["sleep", "1000"], serde_json::json!({}));
    let name = place.name.as_str();
    let bundle = place.text("bundle");
    let status = |args: &[&str]| place.listed(args, name).map(|line| line["status"].clone());
    assert_eq!(status(&["-a"]), None);
    place.ok(&["create", "--bundle", &bundle, name]);
    assert_eq!(status(&[]), Some("created".into()));
    place.ok(&["start", name]);
    assert_eq!(place.ok(&["exec", name, "echo", "seen"]), "seen\n");
    place.ok(&["pause", name]);
    assert_eq!(status(&[]), Some("paused".into()));
    place.ok(&["resume", name]);
    let line = place.listed(&[], name).expect("it runs");
    assert_eq!(
        (&line["status"], &line["execs"]),
        (&"running".into(), &1.into())
    );
    assert_eq!(line["command"], serde_json::json!(["sleep", "1000"]));
    let cage = line["id"].as_str().expect("an ID").to_owned();
    let ironcage = |args: &[&str], works: bool| {
        let output = place.ironcage(args);
        assert_eq!(
            output.status.success(),
            works,
            "{args:?}: {}",
            said(&output)
        );
        said(&output)
    };
    assert!(ironcage(&["audit", "verify", name], true).contains("intact so far, 5 lines"));
    // No supervisor: what needs one says so, for each name of the container.
    for text in [name, &cage] {
        for args in [
            &["lease", "list", text][..],
            &["inspect", text],
            &["exec", text, "--", "true"],
        ] {
            let refused = ironcage(args, false);
            assert!(
                refused.contains("of an engine: it has no supervisor"),
                "{refused}"
            );
        }
    }
    let gone = ironcage(&["stop", "no-such-container"], false);
    assert!(gone.contains("no cage has the id or name"), "{gone}");
    assert_eq!(ironcage(&["stop", "--time", "0", name], true).trim(), cage);
    assert_eq!(
        (status(&[]), status(&["-a"])),
        (None, Some("stopped".into()))
    );
    assert!(ironcage(&["stop", name], false).contains("it has ended"));
    place.ok(&["delete", name]);
    assert_eq!(status(&["-a"]), None);
    let log = ironcage(&["audit", "show", "--json", &cage], true);
    let events: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert_eq!(
        kinds,
        ["start", "exec", "exec-exit", "paused", "unpaused", "exit"]
    );
    assert_eq!(events[0]["runtime"], "ironcage-oci-runtime");
    assert_eq!(events[5]["ending"], "unobserved");
    assert!(ironcage(&["audit", "verify", &cage], true).contains("intact, 6 lines"));
    // What cannot be logged does not start, and leaves nothing.
    let state = place.path("home/.local");
    fs::remove_dir_all(&state).expect("removed");
    fs::write(&state, "a file").expect("written");
    place.refused(
        &["create", "--bundle", &bundle, name],
        "cannot log container",
    );
    place.refused(&["state", name], "does not exist");
    assert_eq!(place.groups(), Vec::<PathBuf>::new());
    fs::remove_file(&state).expect("removed");
    // A run in the foreground knows how its container ended.
    place.configure(&["sh", "-c", "exit 7"], serde_json::json!({}));
    assert_eq!(place.run().status.code(), Some(7));
    let log = ironcage(&["audit", "show", "--json", name], true);
    assert!(log.contains(r#""ending":"exited","code":7"#), "{log}");
}

#[test]
fn what_ironcage_adds_is_in_force_and_the_operator_alone_takes_it_off() {
    let place = Place::new("layers");
    let script = "grep -E 'CapBnd|NoNewPrivs' /proc/self/status; mknod /tmp/disk b 8 0; mount -t tmpfs x /tmp; cat /proc/keys; echo end";
    place.configure(&["sh", "-c", script], serde_json::json!({}));
    let output = said(&place.run());
    // CHOWN and KILL of the four that config.json gives.
    assert!(output.contains("CapBnd:\t0000000000000021"), "{output}");
    assert!(output.contains("NoNewPrivs:\t1"), "{output}");
    assert!(
        output.contains("mknod: /tmp/disk: Operation not permitted"),
        "{output}"
    );
    assert!(output.contains("mount: permission denied"), "{output}");
    assert!(output.contains("end\n"), "{output}");
    let open =
        "[profiles.default]\nno-new-privs = false\nlandlock = false\nsyscalls = \"config\"\n";
    fs::write(place.path("node.toml"), open).expect("written");
    let relaxed = place.runtime(&[
        "--policy-file",
        &place.text("node.toml"),
        "run",
        "--bundle",
        &place.text("bundle"),
        &place.name,
    ]);
    let relaxed = said(&relaxed);
    assert!(relaxed.contains("NoNewPrivs:\t0"), "{relaxed}");
    assert!(!relaxed.contains("mount: permission denied"), "{relaxed}");
    // Without no_new_privs its own filter comes first, and may deny what a search for programs uses.
    let filter = serde_json::json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{ "names": ["faccessat2"], "action": "SCMP_ACT_ERRNO" }] });
    place.configure(&["echo", "found"], serde_json::json!({}));
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("bundle/config.json")).expect("read"))
            .expect("JSON");
    config["linux"]["seccomp"] = filter;
    fs::write(place.path("bundle/config.json"), config.to_string()).expect("written");
    let found = place.runtime(&[
        "--policy-file",
        &place.text("node.toml"),
        "run",
        "--bundle",
        &place.text("bundle"),
        &place.name,
    ]);
    assert_eq!(said(&found), "found\n");
    for (annotations, why) in [
        (
            serde_json::json!({ "dev.ironcage.policy": "no-new-privs = false" }),
            "would widen",
        ),
        (
            serde_json::json!({ "dev.ironcage.profile": "none" }),
            "expected default",
        ),
    ] {
        place.configure(&["true"], serde_json::json!({ "annotations": annotations }));
        let output = said(&place.run());
        assert!(output.contains(why), "{output}");
    }
    let strict = serde_json::json!({ "annotations": { "dev.ironcage.profile": "strict" } });
    place.configure(
        &[
            "sh",
            "-c",
            "grep CapBnd /proc/self/status; touch /new || echo sealed",
        ],
        strict,
    );
    let output = said(&place.run());
    assert!(
        output.contains("CapBnd:\t0000000000000000") && output.contains("sealed"),
        "{output}"
    );
    assert_eq!(place.groups(), Vec::<PathBuf>::new());
}

#[test]
fn devices_in_volumes_and_what_a_sealed_root_masks_are_out_of_reach() {
    let place = Place::new("volumes");
    let volume = place.path("volume");
    fs::create_dir(&volume).expect("made");
    // Device rules open `zero` to every container, so the mount alone decides.
    let node = volume.join("zero");
    let mut mknod = Command::new("mknod");
    let made = mknod.arg(&node).args(["c", "1", "5"]).status();
    assert!(made.expect("mknod runs").success());
    let bind = |source: &Path, destination: &str| serde_json::json!({ "destination": destination, "type": "bind", "source": source, "options": ["rbind", "dev", "rdev"] });
    let mounts = |more: &[serde_json::Value]| {
        let usual = [
            serde_json::json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            serde_json::json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs" }),
        ];
        let all = [&usual[..], more].concat();
        serde_json::json!({ "mounts": all })
    };
    let script = "(: < /data/zero) && echo volume; (: < /tmp/one) && echo single; echo end";
    let both = mounts(&[bind(&volume, "/data"), bind(&node, "/tmp/one")]);
    place.configure(&["sh", "-c", script], both);
    let output = said(&place.run());
    assert!(
        output.contains("/data/zero: Permission denied") && output.contains("single\nend"),
        "{output}"
    );
    fs::write(
        place.path("node.toml"),
        "[profiles.default]\nhost-devices = true\n",
    )
    .expect("written");
    let file = place.text("node.toml");
    let words = ["run", "--bundle", &place.text("bundle"), &place.name];
    let words = [&["--policy-file", file.as_str()], &words[..]].concat();
    let output = said(&place.runtime(&words));
    assert!(output.contains("volume\nsingle\nend"), "{output}");
    let script = "cat /proc/keys /../proc/keys; touch /new || echo sealed; touch /../new || echo above; echo end";
    place.configure(&["sh", "-c", script], serde_json::json!({}));
    let output = said(&place.run());
    assert!(!output.contains("sealed"), "{output}");
    let policy =
        serde_json::json!({ "annotations": { "dev.ironcage.policy": "read-only-paths = ['/']" } });
    fs::remove_file(place.path("bundle/rootfs/new")).expect("removed");
    place.configure(&["sh", "-c", script], policy);
    let output = said(&place.run());
    assert!(output.contains("sealed"), "{output}");
    assert!(output.contains("above\nend"), "{output}");
    assert!(!output.contains("keyring"), "{output}");
    assert_eq!(place.groups(), Vec::<PathBuf>::new());
}

#[test]
fn links_of_an_image_lead_nowhere_and_a_failed_start_leaves_nothing() {
    let place = Place::new("links");
    let outside = place.path("outside");
    fs::create_dir(&outside).expect("made");
    let root = place.path("bundle/rootfs");
    symlink(&outside, root.join("data")).expect("linked");
    symlink("../../../../../../../../etc", root.join("up")).expect("linked");
    let mounts = |destination: &str| {
        serde_json::json!({ "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": destination, "type": "tmpfs", "source": "tmpfs" },
        ]})
    };
    for destination in ["/data/below", "/up/below"] {
        place.configure(&["sh", "-c", "echo it runs"], mounts(destination));
        // The link is resolved in the image: there, or not at all.
        let _ = place.run();
        assert!(fs::read_dir(&outside).expect("listed").next().is_none());
        assert!(!Path::new("/etc/below").exists());
    }
    assert!(
        root.join("etc/below").is_dir(),
        "links within the image are followed"
    );
    fs::remove_dir(root.join("proc")).expect("removed");
    symlink("/tmp", root.join("proc")).expect("linked");
    place.configure(&["true"], serde_json::json!({}));
    let output = said(&place.run());
    assert!(output.contains("it is a link in the image"), "{output}");
    fs::remove_file(root.join("proc")).expect("removed");
    fs::create_dir(root.join("proc")).expect("made");
    let hooks = serde_json::json!({ "hooks": { "createRuntime": [{ "path": "/bin/false", "args": ["false"] }] } });
    place.configure(&["true"], hooks);
    let output = said(&place.run());
    assert!(output.contains("createRuntime hook"), "{output}");
    // A group with processes of others is refused, and they live on.
    let group = Path::new("/sys/fs/cgroup/pids").join(&place.name);
    if fs::create_dir(&group).is_ok() {
        let mut other = Command::new("sleep").arg("1000").spawn().expect("sleep");
        fs::write(group.join("cgroup.procs"), other.id().to_string()).expect("moved");
        place.configure(&["true"], serde_json::json!({}));
        let output = said(&place.run());
        assert!(output.contains("1 processes are in it"), "{output}");
        assert!(other.try_wait().expect("asked").is_none(), "it lives");
        other.kill().expect("killed");
        other.wait().expect("ended");
        fs::remove_dir(&group).expect("removed");
    }
    place.configure(&["no-such-program"], serde_json::json!({}));
    let output = said(&place.run());
    assert!(
        output.contains("executable file not found in $PATH"),
        "{output}"
    );
    assert_eq!(place.groups(), Vec::<PathBuf>::new());
    assert_eq!(place.ok(&["list", "--quiet"]), "");
    place.configure(&["echo", "fine"], serde_json::json!({}));
    assert_eq!(said(&place.run()), "fine\n");
}
