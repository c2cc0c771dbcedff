//! `ironcage-oci-runtime` by itself and below real engines, each with roots, state and sockets of its own.

use ironcage_tests::{binary, only_in_full};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const APPLETS: &[&str] = &[
    "cat", "echo", "false", "grep", "id", "ip", "ls", "mkdir", "mknod", "mount", "sh", "sleep",
    "touch", "true", "tty",
];
/// An engine that hangs is ended after this many seconds.
const PATIENCE: &str = "120";

fn runtime() -> PathBuf {
    binary().with_file_name("ironcage-oci-runtime")
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A bundle of busybox, and a place for everything that a test makes.
struct Place {
    top: tempfile::TempDir,
    name: String,
}

impl Place {
    fn new(name: &str) -> Place {
        let top = tempfile::Builder::new()
            .prefix("oci.")
            .tempdir()
            .expect("a directory");
        let root = top.path().join("bundle/rootfs");
        for name in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
            fs::create_dir_all(root.join(name)).expect("made");
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static");
        for applet in APPLETS {
            symlink("busybox", root.join("bin").join(applet)).expect("linked");
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").expect("written");
        let name = format!("ironcage-test-{}-{name}", std::process::id());
        Place { top, name }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.top.path().join(below)
    }

    fn text(&self, below: &str) -> String {
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

/// A daemon of a test, ended by its own process ID.
struct Daemon(Child);

impl Daemon {
    fn start(program: &str, args: &[&str]) -> Daemon {
        let spawned = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Daemon(spawned.unwrap_or_else(|error| {
            panic!("{program}: {error}; ./scripts/test --full installs it")
        }))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let until = Instant::now() + Duration::from_secs(20);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
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

/// An engine's command line, ended when it hangs.
struct Engine {
    words: Vec<String>,
}

impl Engine {
    fn new(words: &[&str]) -> Engine {
        let words = ["timeout", "-k", "5", PATIENCE].iter().chain(words);
        Engine {
            words: words.map(|word| (*word).to_owned()).collect(),
        }
    }

    fn output(&self, args: &[&str], input: &str) -> Output {
        use std::io::Write as _;
        let (program, before) = self.words.split_first().expect("words");
        let mut child = Command::new(program)
            .args(before)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("timeout runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().expect("it ends")
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = self.output(args, "");
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    fn ended(&self, args: &[&str], code: i32) {
        let output = self.output(args, "");
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            said(&output)
        );
    }
}

/// What docker and podman have in common; `run` are the options of each `run`.
fn containers(engine: &Engine, place: &Place, run: &[&str]) {
    let archive = place.text("image.tar");
    let packed = Command::new("tar")
        .args(["-C", &place.text("bundle/rootfs"), "-cf", &archive, "."])
        .status();
    assert!(packed.expect("tar").success());
    engine.ok(&["import", "--change", "ENV PATH=/bin", &archive, "small"]);
    let with = |options: &[&'static str], rest: &[&'static str]| -> Vec<String> {
        let words = ["run", "--network", "none"]
            .iter()
            .chain(run)
            .chain(options)
            .chain(&["small"])
            .chain(rest);
        words.map(|word| (*word).to_owned()).collect()
    };
    let words = |list: &[String]| -> Vec<String> { list.to_vec() };
    let call =
        |list: Vec<String>| engine.ok(&words(&list).iter().map(String::as_str).collect::<Vec<_>>());
    let ends = |list: Vec<String>, code: i32| {
        engine.ended(&list.iter().map(String::as_str).collect::<Vec<_>>(), code);
    };
    assert_eq!(call(with(&["--rm"], &["echo", "hello"])), "hello\n");
    let cat = with(&["--rm", "-i"], &["cat"]);
    let cat: Vec<&str> = cat.iter().map(String::as_str).collect();
    assert_eq!(engine.output(&cat, "typed\n").stdout, b"typed\n");
    assert!(call(with(&["--rm", "-t"], &["tty"])).contains("/dev/pts/0"));
    ends(with(&["--rm"], &["false"]), 1);
    ends(with(&["--rm"], &["no-such-program"]), 127);
    assert_eq!(
        call(with(
            &["--rm", "--read-only"],
            &["sh", "-c", "touch /new 2>/dev/null || echo sealed"]
        )),
        "sealed\n"
    );
    // Privileged containers are refused by name.
    let privileged = with(&["--rm", "--privileged"], &["true"]);
    let privileged: Vec<&str> = privileged.iter().map(String::as_str).collect();
    let output = engine.output(&privileged, "");
    assert!(!output.status.success());
    call(with(
        &["-d", "--name", "one", "-m", "64m", "--pids-limit", "50"],
        &["sleep", "1000"],
    ));
    let limits = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; grep NoNewPrivs /proc/self/status";
    let shown = engine.ok(&["exec", "one", "sh", "-c", limits]);
    assert!(
        shown.contains("67108864") && shown.contains("NoNewPrivs:\t1"),
        "{shown}"
    );
    engine.ok(&["pause", "one"]);
    engine.ok(&["unpause", "one"]);
    engine.ok(&["kill", "one"]);
    engine.ok(&["rm", "-f", "one"]);
    assert_eq!(engine.ok(&["ps", "-aq"]), "");
}

#[test]
fn podman_runs_containers() {
    let place = Place::new("podman");
    let runtime = runtime();
    let engine = Engine::new(&[
        "podman",
        "--root",
        &place.text("root"),
        "--runroot",
        &place.text("run"),
        "--tmpdir",
        &place.text("tmp"),
        "--storage-driver",
        "vfs",
        "--cgroup-manager",
        "cgroupfs",
        "--events-backend",
        "none",
        "--runtime",
        runtime.to_str().expect("UTF-8"),
    ]);
    // This machine's hard limits are below podman's defaults.
    containers(
        &engine,
        &place,
        &[
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1024:1024",
        ],
    );
}

fn containerd(place: &Place) -> Daemon {
    let config = format!(
        "version = 2\nroot = \"{}\"\nstate = \"{}\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = \"{}\"\n",
        place.text("containerd"),
        place.text("containerd-state"),
        place.text("containerd.sock"),
    );
    fs::write(place.path("containerd.toml"), config).expect("written");
    let daemon = Daemon::start("containerd", &["-c", &place.text("containerd.toml")]);
    wait_for(&place.path("containerd.sock"));
    daemon
}

fn wait_for(path: &Path) {
    let until = Instant::now() + Duration::from_secs(120);
    while !path.exists() {
        assert!(Instant::now() < until, "{} appears", path.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn containerd_and_docker_run_containers() {
    if !only_in_full() {
        return;
    }
    let place = Place::new("docker");
    let _containerd = containerd(&place);
    let runtime = runtime();
    let runtime = runtime.to_str().expect("UTF-8");
    let address = place.text("containerd.sock");
    let ctr = Engine::new(&["ctr", "-a", &address]);
    let rootfs = place.text("bundle/rootfs");
    let begin = [
        "run",
        "--env",
        "PATH=/bin",
        "--runc-binary",
        runtime,
        "--rootfs",
    ];
    let run = |options: &[&str], rest: &[&str]| -> String {
        let words: Vec<&str> = begin.iter().chain([&rootfs.as_str()]).copied().collect();
        let (verb, after) = words.split_first().expect("words");
        let all: Vec<&str> = [*verb]
            .iter()
            .chain(options)
            .chain(after)
            .chain(rest)
            .copied()
            .collect();
        ctr.ok(&all)
    };
    assert_eq!(run(&["--rm"], &["one", "echo", "hello"]), "hello\n");
    run(&["-d"], &["two", "sleep", "1000"]);
    ctr.ok(&["task", "pause", "two"]);
    ctr.ok(&["task", "resume", "two"]);
    assert_eq!(
        ctr.ok(&["task", "exec", "--exec-id", "x", "two", "echo", "inside"]),
        "inside\n"
    );
    ctr.ok(&["task", "kill", "-s", "KILL", "two"]);
    // Some versions answer with the status of what was killed.
    let _ = ctr.output(&["task", "rm", "two"], "");
    ctr.ok(&["container", "rm", "two"]);

    let host = format!("unix://{}", place.text("docker.sock"));
    let added = format!("ironcage={runtime}");
    let _docker = Daemon::start(
        "dockerd",
        &[
            "-H",
            &host,
            "--data-root",
            &place.text("data"),
            "--exec-root",
            &place.text("exec"),
            "--pidfile",
            &place.text("docker.pid"),
            "--containerd",
            &address,
            "--add-runtime",
            &added,
            "--bridge=none",
            "--iptables=false",
            "--storage-driver=vfs",
        ],
    );
    wait_for(&place.path("docker.sock"));
    let docker = Engine::new(&["docker", "-H", &host]);
    containers(&docker, &place, &["--runtime", "ironcage"]);
}
