//! `ironcage-oci-runtime` below real engines, each with roots, state and sockets of its own.

use crate::oci_runtime::{PATIENCE, Place, runtime, said};
use ironcage_tests::only_in_full;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A daemon of a test, ended by its own process ID.
struct Daemon(Child);

impl Daemon {
    fn start(place: &Place, program: &str, args: &[&str]) -> Daemon {
        let spawned = Command::new(program)
            .args(args)
            .env("HOME", place.path("home"))
            .env_remove("XDG_STATE_HOME")
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

/// An engine's command line, ended when it hangs.
struct Engine {
    words: Vec<String>,
}

impl Engine {
    fn new(place: &Place, words: &[&str]) -> Engine {
        let home = format!("HOME={}", place.text("home"));
        let before = [
            "env",
            "-u",
            "XDG_STATE_HOME",
            &home,
            "timeout",
            "-k",
            "5",
            PATIENCE,
        ];
        let words = before.iter().chain(words);
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
    let id = engine.ok(&["inspect", "--format", "{{.Id}}", "one"]);
    let id = id.trim();
    let line = place.listed(&[], id).expect("ironcage ps has it");
    assert_eq!(line["status"], "running");
    // By what an engine shows of an ID.
    let log = place.ironcage(&["audit", "show", &id[..12]]);
    assert!(said(&log).contains("sleep 1000"), "{}", said(&log));
    let stopped = place.ironcage(&["stop", "--time", "0", &id[..12]]);
    assert!(stopped.status.success(), "{}", said(&stopped));
    engine.ok(&["wait", "one"]);
    engine.ok(&["start", "one"]);
    engine.ok(&["kill", "one"]);
    engine.ok(&["rm", "-f", "one"]);
    assert_eq!(engine.ok(&["ps", "-aq"]), "");
    assert!(place.listed(&["-a"], id).is_none());
}

#[test]
fn podman_runs_containers() {
    let place = Place::new("podman");
    let runtime = runtime();
    let words = [
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
    ];
    let engine = Engine::new(&place, &words);
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
    let daemon = Daemon::start(place, "containerd", &["-c", &place.text("containerd.toml")]);
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
    let ctr = Engine::new(&place, &["ctr", "-a", &address]);
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
        &place,
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
    let docker = Engine::new(&place, &["docker", "-H", &host]);
    containers(&docker, &place, &["--runtime", "ironcage"]);
}
