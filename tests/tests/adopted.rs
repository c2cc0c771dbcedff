//! A cage that was prepared and adopted is the cage that a one-shot start would have made: the
//! kernel shows the same of both. Debug builds adopt where `IRONCAGE_PREPARED` is set.

use ironcage_tests::{DIRECT, Exit, Host, Running, Stage, Who, both, exclusive, tree, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

/// Prints what the kernel says about the cage, and what it answers to a dozen attempts.
const INSPECT: &str = r#"
import ctypes, errno, json, os, resource, socket, stat
def read(path):
    try: return open(path, 'rb').read().decode('utf-8', 'replace')
    except OSError as error: return errno.errorcode[error.errno]
def attempt(action):
    try: action(); return 'done'
    except OSError as error: return errno.errorcode[error.errno]
def node(path):
    info = os.lstat(path)
    link = os.readlink(path) if stat.S_ISLNK(info.st_mode) else None
    return [oct(info.st_mode), info.st_uid, info.st_gid, link]
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), '')
nodes = {}
for top in ['/', '/etc', '/dev', '/run', '/var', '/tmp', os.path.expanduser('~')]:
    for name in sorted(os.listdir(top)):
        nodes[os.path.join(top, name)] = node(os.path.join(top, name))
files = {path: read(path) for path in ['/etc/passwd', '/etc/group', '/etc/hosts', '/etc/resolv.conf',
    '/etc/gitconfig', '/proc/sys/kernel/random/boot_id', '/proc/cmdline', '/proc/sys/user/max_user_namespaces',
    '/proc/self/uid_map', '/proc/self/gid_map', '/proc/self/oom_score_adj', '/proc/net/dev', '/proc/1/comm',
    '/proc/1/environ', '/proc/1/maps']}
attempts = {
    'write /usr': lambda: open('/usr/x', 'w'), 'write /': lambda: open('/x', 'w'),
    'write /etc': lambda: open('/etc/passwd', 'a'), 'write /tmp': lambda: open('/tmp/x', 'w'),
    'write workspace': lambda: open('x', 'w'), 'sysctl': lambda: open('/proc/sys/kernel/hostname', 'w').write('x'),
    'unshare': lambda: call(272, 0x10000000), 'mount': lambda: call(165, 0, 0, 0, 0, 0),
    'umount /usr': lambda: call(166, b'/usr', 0), 'bpf': lambda: call(321, 0, 0, 0),
    'connect': lambda: socket.create_connection(('192.0.2.1', 80), 1),
    'setuid': lambda: os.setuid(0), 'ptrace 1': lambda: call(101, 16, 1, 0, 0), 'kill 1': lambda: os.kill(1, 9)}
limits = {name: list(resource.getrlimit(getattr(resource, name))) for name in dir(resource) if name.startswith('RLIMIT_')}
status = dict(line.split(':\t', 1) for line in read('/proc/self/status').splitlines() if ':\t' in line)
kept = ['Uid', 'Gid', 'Groups', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd',
    'CapAmb', 'SigBlk', 'SigIgn', 'SigCgt', 'NSpid', 'Umask', 'Cpus_allowed']
print(json.dumps({
    'nodes': nodes, 'files': files, 'limits': limits,
    'mounts': [' '.join(line.split()[3:6]) + ' ' + line.split(' - ')[1] for line in read('/proc/self/mountinfo').splitlines()],
    'attempts': {name: attempt(action) for name, action in attempts.items()},
    'status': {name: status.get(name) for name in kept}, 'cgroup': read('/proc/self/cgroup'),
    'descriptors': sorted(os.listdir('/proc/self/fd'))[:3], 'processes': sorted(p for p in os.listdir('/proc') if p.isdigit())[:1],
    'env': read('/proc/self/environ'), 'argv': read('/proc/self/cmdline'), 'cwd': os.getcwd(),
    'session': [os.getsid(0) != 0, os.getpgid(0) == os.getpid()], 'host': socket.gethostname(),
    'personal': {kind: os.readlink('/proc/self/ns/' + kind) for kind in os.listdir('/proc/self/ns')}}))
"#;

#[track_caller]
fn seen(stage: &Stage, flags: &[&str], adopted: bool) -> Value {
    let mut command = stage.cage(flags, &["/usr/bin/python3", "-c", INSPECT]);
    if adopted {
        command.env("IRONCAGE_PREPARED", "1");
    }
    let ran = Running::start(&mut command).finish(DEADLINE).ok();
    let mut value: Value = serde_json::from_str(&ran.stdout()).expect("JSON");
    // In the order of places: both ways mount the same, not in the same order.
    let mounts = value["mounts"].as_array_mut().expect("mounts");
    for mount in mounts.iter_mut() {
        // The options of an overlay name descriptors, and whether its change is a new one.
        let line = mount.as_str().unwrap_or_default();
        *mount = line
            .split(" ironcage rw,")
            .next()
            .unwrap_or_default()
            .into();
    }
    mounts.sort_by_key(ToString::to_string);
    for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        // Each cage of root's has a range of its own.
        let text = value["files"][map].as_str().unwrap_or_default();
        let numbers: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(numbers.len(), 3, "{text}");
        value["files"][map] = format!("{} {}", numbers[0], numbers[2]).into();
    }
    value
}

/// Namespaces are the cage's own in both: never the host's. Numbers are used again, so that both
/// may have the same.
#[track_caller]
fn own_namespaces(one: &mut Value, other: &mut Value) {
    let take = |value: &mut Value| -> BTreeMap<String, String> {
        serde_json::from_value(value["personal"].take()).expect("namespaces")
    };
    let (one, other) = (take(one), take(other));
    assert_eq!(
        one.keys().collect::<Vec<_>>(),
        other.keys().collect::<Vec<_>>()
    );
    for (kind, namespace) in &other {
        let host = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace");
        if one[kind] != host.to_string_lossy() {
            assert_ne!(*namespace, host.to_string_lossy(), "{kind}");
        }
    }
}

both! {
    fn the_kernel_shows_the_same_of_an_adopted_cage(stage) {
        stage.sh_outside("mkdir -p sub granted && touch granted/file .env && chmod 600 .env").ok();
        let granted = stage.project().join("granted");
        let granted = granted.to_string_lossy();
        let network = ["-q", "--allow-host", "example.com"];
        let direct = [&["-q", "-r", &*granted][..], &DIRECT].concat();
        for flags in [&["-q"][..], &direct, &network] {
            let mut one_shot = seen(stage, flags, false);
            let mut adopted = seen(stage, flags, true);
            own_namespaces(&mut one_shot, &mut adopted);
            for (part, expected) in one_shot.as_object().expect("an object") {
                assert_eq!(&adopted[part], expected, "{part} with {flags:?}");
            }
            // The comparison is about something.
            assert!(one_shot["mounts"].as_array().expect("mounts").len() > 20);
            assert_eq!(one_shot["attempts"]["write /tmp"], "done");
            assert_ne!(one_shot["attempts"]["write /usr"], "done");
        }
    }

    fn an_adopted_cage_counts_against_its_limits(stage) {
        let run = |adopted: bool| {
            let mut command = stage.cage(&["-q", "--pids", "20"], &["/bin/sh", "-c",
                "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do sleep 5 & done; echo all"]);
            if adopted {
                command.env("IRONCAGE_PREPARED", "1");
            }
            Running::start(&mut command).finish(DEADLINE)
        };
        for adopted in [false, true] {
            let ran = run(adopted);
            assert!(!ran.stdout().contains("all"), "adopted {adopted}: {ran:?}");
        }
    }

}

#[test]
fn a_level_that_prepares_no_cage_says_so() {
    let Some(stage) = Stage::new(Who::User) else {
        return;
    };
    let lacks = "user-ns,mount-ns,pid-ns,uts-ns";
    let isolation = ["--isolation", "landlock", "--allow-degraded", lacks];
    let flags = [&["-q"][..], &isolation, &DIRECT].concat();
    let mut command = stage.cage(&flags, &["/bin/true"]);
    command.env("IRONCAGE_PREPARED", "1");
    let ran = Running::start(&mut command).finish(DEADLINE);
    ran.ended(125).says("cannot be prepared");
    stage.run(&flags, &["/bin/true"]).ok();
}

/// Kills an owner at every fifth step of preparing and adopting, and at the others in turn by who
/// runs the test: nothing is left, and no command runs outside a cage.
fn killed_at_steps(who: Who, first: u32) {
    let _turn = exclusive();
    let Some(stage) = Stage::new(who) else {
        return;
    };
    let command = ["/bin/sh", "-c", "readlink /proc/self/ns/mnt"];
    // The allowing arm; and what the first run of a user makes is there then.
    stage.run(&["-q"], &command).ok();
    let before = Host::now();
    let runtime = tree(&stage.run_dir());
    let host = std::fs::read_link("/proc/self/ns/mnt").expect("a namespace");
    let mut steps = 0;
    for step in (first..2000).step_by(5) {
        let mut command = stage.cage(&["-q"], &command);
        command.env("IRONCAGE_FAULT", step.to_string());
        command.env("IRONCAGE_PREPARED", "1");
        let ran = Running::start(&mut command).finish(DEADLINE);
        assert!(!ran.stdout().contains(&*host.to_string_lossy()), "{ran:?}");
        steps = step;
        match ran.exit {
            Exit::Code(0) => break,
            Exit::Signal(9) | Exit::Code(125 | 137) => {}
            other => panic!("killed at step {step}, the start ended with {other:?}: {ran:?}"),
        }
    }
    assert!(steps > 20, "only {steps} steps: is this a debug build?");
    Running::start(&mut stage.ironcage(["ps"]))
        .finish(DEADLINE)
        .ok();
    let mut left = Vec::new();
    wait_until(Duration::from_secs(30), || {
        left = Host::left_since(&before, steps as usize);
        left.is_empty()
    });
    assert!(left.is_empty(), "left behind: {left:#?}");
    assert_eq!(tree(&stage.run_dir()), runtime);
}

#[test]
fn an_owner_killed_while_it_prepares_or_adopts_leaves_nothing_as_root() {
    killed_at_steps(Who::Root, 0);
}

#[test]
fn an_owner_killed_while_it_prepares_or_adopts_leaves_nothing_as_user() {
    killed_at_steps(Who::User, 2);
}
