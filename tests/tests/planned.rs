//! The plan is what is enforced: what PID 1 carried out, as the kernel shows it from inside the
//! cage, is compared with what `ironcage plan` printed.

use ironcage_tests::{DIRECT, Running, Stage, Who, both};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

/// Prints what the kernel says about the process that runs it.
const INSPECT: &str = r#"
import json, os, resource, socket
def read(path): return open(path, 'rb').read().decode()
limits = {'core': 'CORE', 'data': 'DATA', 'file-size': 'FSIZE', 'locked-memory': 'MEMLOCK',
    'message-queues': 'MSGQUEUE', 'nice': 'NICE', 'open-files': 'NOFILE', 'processes': 'NPROC',
    'real-time-priority': 'RTPRIO', 'pending-signals': 'SIGPENDING'}
print(json.dumps({
    'mounts': [line.split() for line in read('/proc/self/mountinfo').splitlines()],
    'env': read('/proc/self/environ').split('\0')[:-1],
    'argv': read('/proc/self/cmdline').split('\0')[:-1],
    'status': dict(line.split(':\t', 1) for line in read('/proc/self/status').splitlines() if ':\t' in line),
    'limits': {name: list(resource.getrlimit(getattr(resource, 'RLIMIT_' + what))) for name, what in limits.items()},
    'cwd': os.getcwd(), 'uid': os.getuid(), 'gid': os.getgid(), 'host': socket.gethostname()}))
"#;

const COMMAND: [&str; 3] = ["/usr/bin/python3", "-c", INSPECT];

#[track_caller]
fn planned(stage: &Stage, flags: &[&str]) -> Value {
    let mut plan = stage.ironcage(["plan", "--json"]);
    plan.args(flags).arg("--").args(COMMAND);
    let ran = Running::start(&mut plan).finish(DEADLINE).ok();
    serde_json::from_str(&ran.stdout()).expect("the plan as JSON")
}

#[track_caller]
fn executed(stage: &Stage, flags: &[&str]) -> Value {
    let ran = stage.run(flags, &COMMAND).ok();
    serde_json::from_str(&ran.stdout()).expect("what the cage is, as JSON")
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is not text"))
}

/// What the plan has mounted at each place, in the end.
struct PlannedMounts<'a> {
    /// The last operation on each place; of two at one place, that is the one that is seen.
    seen: BTreeMap<&'a str, &'a Value>,
    /// Places that the kernel or the host may not have.
    optional: BTreeSet<&'a str>,
}

fn planned_mounts(plan: &Value) -> PlannedMounts<'_> {
    let mut mounts = PlannedMounts {
        seen: BTreeMap::new(),
        // Covers of hidden places are mounted here; the plan has the places, not the covers.
        optional: BTreeSet::from(["/", "/.hidden", "/.hidden/directory", "/.hidden/file"]),
    };
    for op in plan["view"].as_array().expect("a view") {
        let target = match text(&op["op"]) {
            "proc" => "/proc",
            "terminals" => "/dev/pts",
            "bind" | "supervisor" | "overlay" | "ephemeral" | "pin" | "hide" => text(&op["target"]),
            "cover" | "mask-proc" | "read-only-proc" => {
                mounts.optional.insert(text(&op["target"]));
                continue;
            }
            "directory" | "symlink" | "file" | "authorities" | "seal" => continue,
            other => panic!("an operation that this test does not know: {other}"),
        };
        mounts.seen.insert(target, op);
    }
    mounts
}

/// Whether what is seen there must be writable; `None` where that is not the operation's to say.
fn writable(op: &Value) -> Option<bool> {
    match (text(&op["op"]), op["access"].as_str()) {
        ("supervisor", _) | ("bind" | "pin", Some("read")) => Some(false),
        ("ephemeral", _) | ("bind" | "pin", Some("write")) => Some(true),
        ("overlay", _) => Some(op["locked"] != true),
        _ => None,
    }
}

#[track_caller]
fn same_mounts(plan: &Value, cage: &Value) {
    let PlannedMounts { seen, optional } = planned_mounts(plan);
    // Of two mounts at one place, the last covers the other.
    let mounted: BTreeMap<&str, &Value> = (cage["mounts"].as_array().expect("mounts").iter())
        .map(|line| (text(&line[4]), line))
        .collect();
    for target in mounted.keys() {
        let known = seen.contains_key(target) || optional.contains(target);
        assert!(known, "{target} is mounted, and the plan does not say so");
    }
    for (target, op) in seen {
        let Some(line) = mounted.get(target) else {
            panic!("{op} is planned, and nothing is mounted there");
        };
        let options: Vec<&str> = text(&line[5]).split(',').collect();
        if let Some(writable) = writable(op) {
            assert_eq!(options.contains(&"rw"), writable, "{op} is {line}");
        }
        // What the file system has there, without the place at which that is mounted outside.
        let root = text(&line[3]);
        if op["op"] == "bind" {
            assert!(text(&op["source"]).ends_with(root), "{op} is {line}");
        }
        if matches!(op["file"].as_str(), Some("socket-proxy" | "request-socket")) {
            assert!(root.contains("/sockets/"), "{op} is {line}");
        }
    }
}

#[track_caller]
fn same_process(plan: &Value, cage: &Value, host: &Value) {
    let env: Vec<String> = (plan["command"]["env"]
        .as_array()
        .expect("an environment")
        .iter())
    .map(|item| format!("{}={}", text(&item["name"]), text(&item["value"])))
    .collect();
    let found: BTreeSet<&str> = (cage["env"].as_array().expect("an environment").iter())
        .map(text)
        .collect();
    assert_eq!(found, env.iter().map(String::as_str).collect());
    assert_eq!(cage["argv"], plan["command"]["argv"]);
    assert_eq!(cage["cwd"], plan["command"]["cwd"]);
    assert_eq!(cage["uid"], plan["identity"]["uid"]);
    assert_eq!(cage["gid"], plan["identity"]["gid"]);
    assert_eq!(cage["host"], plan["hostname"]["name"]);
    for limit in plan["rlimits"].as_array().expect("rlimits") {
        let name = text(&limit["resource"]);
        // A limit that the caller has already can only be tightened; -1 is none.
        let hard = host["limits"][name][1].as_u64().unwrap_or(u64::MAX);
        let value = limit["value"].as_u64().expect("a number").min(hard);
        assert_eq!(
            cage["limits"][name],
            serde_json::json!([value, value]),
            "{limit}"
        );
    }
    let held: u64 = (plan["capabilities"]
        .as_array()
        .expect("capabilities")
        .iter())
    .map(|item| 1 << item["number"].as_u64().expect("a number"))
    .sum();
    assert_eq!(text(&cage["status"]["CapEff"]), format!("{held:016x}"));
    assert_eq!(cage["status"]["Seccomp"], "2");
    assert_eq!(cage["status"]["NoNewPrivs"], "1");
}

/// The digest that the audit log has of the last start.
#[track_caller]
fn recorded_digest(stage: &Stage) -> String {
    let mut show = stage.ironcage(["audit", "show", "--json"]);
    let shown = Running::start(&mut show).finish(DEADLINE).ok().stdout();
    let mut events = shown
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    let start = events.find(|event| event["event"] == "start");
    text(&start.expect("a start")["plan"]).to_owned()
}

/// The processors of a list as the kernel prints it: `0-1,4`.
fn processors(list: &str) -> usize {
    let parts = list.trim().split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<usize>().expect("a number");
        number(last) - number(first) + 1
    });
    parts.sum()
}

/// The limits of the cgroups that a process is in, by file: `memory.max` of version 2,
/// `memory.limit_in_bytes` of version 1.
fn cgroup_limits(pid: &Value) -> BTreeMap<&'static str, Option<u64>> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroups");
    let place = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, path) = (parts.next()?, parts.next()?);
            match names {
                "" => Some(format!("/sys/fs/cgroup{path}")),
                names if names.split(',').any(|name| name == controller) => {
                    Some(format!("/sys/fs/cgroup/{controller}{path}"))
                }
                _ => None,
            }
        })
    };
    let limit = |controller, files: &[&str]| {
        let directory = place(controller)?;
        let mut texts = files
            .iter()
            .map(|file| std::fs::read_to_string(format!("{directory}/{file}")));
        texts.find_map(Result::ok)?.trim().parse().ok()
    };
    BTreeMap::from([
        (
            "memory",
            limit("memory", &["memory.max", "memory.limit_in_bytes"]),
        ),
        ("pids", limit("pids", &["pids.max"])),
    ])
}

/// Prints the SHA-256 of the outermost filter of a process, as the kernel has it. Only root may ask, by ptrace.
const FILTER: &str = r#"
import ctypes, hashlib, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
SEIZE, INTERRUPT, GET_FILTER = 0x4206, 0x4207, 0x420c
pid = int(sys.argv[1])
def call(request, address, data):
    answer = libc.ptrace(request, pid, address, data)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
call(SEIZE, None, None)
call(INTERRUPT, None, None)
os.waitpid(pid, 0x40000000)
count = call(GET_FILTER, None, None)
program = ctypes.create_string_buffer(8 * count)
call(GET_FILTER, None, program)
print(hashlib.sha256(program.raw).hexdigest())
"#;

/// A cage in the background that waits, and what is known of it. It is stopped when this is dropped.
struct WaitingCage<'a> {
    stage: &'a Stage,
    description: Value,
}

impl<'a> WaitingCage<'a> {
    #[track_caller]
    fn start(stage: &'a Stage, flags: &[&str]) -> Self {
        let mut run = stage.ironcage(["run", "-q", "-d"]);
        run.args(flags).arg("--").args(WAIT);
        let id = Running::start(&mut run).finish(DEADLINE).ok().stdout();
        let mut inspect = stage.ironcage(["inspect", id.trim()]);
        let shown = Running::start(&mut inspect).finish(DEADLINE).ok().stdout();
        let description = serde_json::from_str(&shown).expect("a description");
        WaitingCage { stage, description }
    }
}

impl Drop for WaitingCage<'_> {
    fn drop(&mut self) {
        let mut stop = self
            .stage
            .ironcage(["stop", "--time", "0", text(&self.description["id"])]);
        let _ = Running::start(&mut stop).finish(DEADLINE);
    }
}

const WAIT: [&str; 2] = ["/bin/sleep", "600"];

both! {
    fn what_pid_1_carries_out_is_what_was_printed(stage) {
        let socket = stage.aside().join("host.sock");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        stage.sh_outside("mkdir -p sub granted && touch granted/file").ok();
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, format!(
            "[ceiling.ask.network]\nsockets = [\"{}\"]\n[ceiling]\nchildren = 1\n",
            socket.display()
        ));
        let policy = policy.to_string_lossy().into_owned();
        let granted = stage.project().join("granted");
        let granted = granted.to_string_lossy();
        let mut outside = stage.outside(COMMAND[0]);
        let outside = Running::start(outside.args(&COMMAND[1..])).finish(DEADLINE).ok();
        let host: Value = serde_json::from_str(&outside.stdout()).expect("JSON");
        for mode in [&DIRECT[..], &["--workspace-mode", "cow"]] {
            let flags = [&["-q", "--policy", &policy, "-r", &granted][..], mode].concat();
            let plan = planned(stage, &flags[1..]);
            let cage = executed(stage, &flags);
            same_mounts(&plan, &cage);
            same_process(&plan, &cage, &host);
            // The digest in the audit log is of the plan that was printed.
            assert_eq!(recorded_digest(stage), text(&plan["digest"]));
            // What exists only at the start is in the plan, as a symbol.
            let files: BTreeSet<&str> = (plan["view"].as_array().expect("a view").iter())
                .filter_map(|op| op["file"].as_str())
                .collect();
            assert_eq!(files, BTreeSet::from(["socket-proxy", "request-socket", "inside-program"]));
        }
    }

    fn what_a_test_build_leaves_out_is_left_out_of_the_plan_too(stage) {
        let with = |off: &str, args: &[&str]| {
            let mut command = stage.ironcage(args);
            command.env("IRONCAGE_LAYERS_OFF", off).args(["--", "/bin/true"]);
            Running::start(&mut command).finish(DEADLINE).ok()
        };
        let digest = |off: &str| {
            let plan: Value = serde_json::from_str(&with(off, &["plan", "--json"]).stdout()).expect("a plan");
            text(&plan["digest"]).to_owned()
        };
        let weak = digest("counters");
        with("counters", &["run", "-q"]);
        assert_eq!(recorded_digest(stage), weak);
        let whole = digest("");
        with("", &["run", "-q"]);
        assert_eq!(recorded_digest(stage), whole);
        assert_ne!(weak, whole);
    }

    fn reserved_cores_are_as_many_as_were_printed(stage) {
        let flags = ["-q", "--side-channels", "cores", "--cpus", "1"];
        let plan = planned(stage, &flags[1..]);
        let cage = executed(stage, &flags);
        let wanted = plan["hardening"]["wanted"].as_u64().expect("a number");
        let allowed = text(&cage["status"]["Cpus_allowed_list"]);
        // A core has all of its threads, and no more than the host has.
        assert!(processors(allowed) as u64 >= wanted, "{allowed}: {}", plan["hardening"]);
        let mut outside = stage.outside("/bin/cat");
        let outside = Running::start(outside.arg("/proc/self/status")).finish(DEADLINE).ok().stdout();
        let all = outside.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert!(processors(allowed) <= processors(all.expect("a list")));
        assert_eq!(recorded_digest(stage), text(&plan["digest"]));
        // Without it, the cage has every processor.
        let free = executed(stage, &["-q"]);
        assert_eq!(processors(text(&free["status"]["Cpus_allowed_list"])), processors(all.expect("a list")));
    }

    fn the_cgroup_and_the_filter_are_those_that_were_printed(stage) {
        let flags = ["--memory", "300M", "--pids", "77"];
        let mut plan = stage.ironcage(["plan", "--json"]);
        plan.args(flags).arg("--").args(WAIT);
        let plan = Running::start(&mut plan).finish(DEADLINE).ok().stdout();
        let plan: Value = serde_json::from_str(&plan).expect("the plan as JSON");
        let cage = WaitingCage::start(stage, &flags);
        let init = &cage.description["init"];
        assert_eq!(cage.description["plan"], plan["digest"]);
        if plan["cgroup"]["v1"].is_null() && plan["cgroup"]["v2"].is_null() {
            ironcage_tests::skip("this user has no cgroup to compare");
        } else {
            let limits = cgroup_limits(init);
            for (name, limit) in limits {
                assert_eq!(limit, plan["bounds"][name]["value"].as_u64(), "{name}");
            }
        }
        if stage.who() != Who::Root {
            // The kernel shows filters to root alone.
            return;
        }
        let mut dump = stage.outside(COMMAND[0]);
        dump.args(["-c", FILTER, &init.to_string()]);
        let found = Running::start(&mut dump).finish(DEADLINE).ok().stdout();
        assert_eq!(found.trim(), text(&plan["seccomp"]["digest"]));
    }
}
