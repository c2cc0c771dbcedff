//! What a hostile review found: each test here is an attack, or a hang, that once worked.

use ironcage_tests::{DIRECT, ExclusiveTurn, Running, Stage, Who, both, exclusive};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Files of a folder of the shipped policies, without their ending.
fn shipped(folder: &str) -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../policies")
        .join(folder);
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("the shipped policies")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        // Names of numbers, and lists of processes of Ironcage's own, which no cage can have.
        .filter(|name| {
            let own = [
                "constants",
                "keys",
                "proxy",
                "reader",
                "vm-files",
                "vmm",
                "vmm-kvm",
            ];
            !own.contains(&name.as_str())
        })
        .collect();
    names.sort();
    names
}

/// What one test frees would hide what another one writes: such tests run one by one, and each
/// deletes what it wrote before the next one begins.
struct QuietDisk<'a> {
    stage: &'a Stage,
    _alone: ExclusiveTurn,
}

fn quiet_disk(stage: &Stage) -> QuietDisk<'_> {
    let alone = exclusive();
    stage.sh_outside("sync -f .").ok();
    QuietDisk {
        stage,
        _alone: alone,
    }
}

impl Drop for QuietDisk<'_> {
    fn drop(&mut self) {
        let state = self.stage.state();
        let script = format!(
            "chmod -R u+rwx . {0}; rm -rf ./* {0}/*; sync -f .",
            state.display()
        );
        // Whatever is left goes with the stage.
        let _ = self.stage.sh_outside(&script);
    }
}

/// Runs a command in a cage with these flags; what hangs fails after a minute.
#[track_caller]
fn run(stage: &Stage, flags: &[&str], command: &[&str]) -> ironcage_tests::Ran {
    Running::start(&mut stage.cage(flags, command)).finish(MINUTE)
}

both! {
    fn every_list_and_every_profile_starts_a_program(stage) {
        let lists = shipped("syscalls");
        assert!(lists.iter().any(|name| name == "minimal") && lists.len() >= 2, "{lists:?}");
        for list in &lists {
            run(stage, &["--syscalls", list], &["/bin/true"]).ok();
            run(stage, &["--syscalls", list], &["/bin/false"]).ended(1);
        }
        let profiles = shipped("profiles");
        assert!(profiles.len() >= 7, "{profiles:?}");
        for profile in &profiles {
            run(stage, &["--profile", profile], &["/bin/true"]).ok();
        }
    }

    fn no_set_id_bit_reaches_the_host(stage) {
        let script = r#"
import ctypes, os, stat
libc = ctypes.CDLL(None, use_errno=True)
open('f', 'w').write('content'); os.mkdir('d')
here = os.open('.', os.O_RDONLY)
def refused(call, *arguments):
    ctypes.set_errno(0)
    assert libc.syscall(call, *arguments) == -1 and ctypes.get_errno() == 1, (call, arguments)
for mode in 0o4755, 0o2755, 0o6755:
    refused(90, b'f', mode)
    refused(91, os.open('f', os.O_RDONLY), mode)
    refused(268, here, b'f', mode)
    refused(452, here, b'f', mode, 0)
    refused(133, b'n', stat.S_IFREG | mode, 0)
    refused(259, here, b'n', stat.S_IFREG | mode, 0)
# The ways that no rule covers leave an empty file; what is written into it takes the bits away.
def opened(name):
    return os.open(name, os.O_RDWR | os.O_CREAT, 0o6755)
os.umask(0)
os.write(opened('written'), b'x')
os.ftruncate(opened('truncated'), 4096)
os.posix_fallocate(opened('allocated'), 0, 4096)
source = os.open('f', os.O_RDONLY)
os.copy_file_range(source, opened('copied'), 7)
os.sendfile(opened('sent'), source, 0, 7)
os.mkdir('made', 0o6755)
for mode in 0o600, 0o755, 0o1777, 0o644:
    os.chmod('f', mode); os.fchmod(here, 0o755)
"#;
        run(stage, &DIRECT, &["/usr/bin/python3", "-c", script]).ok();
        for path in ironcage_tests::tree(&stage.project()) {
            let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
            assert_eq!(mode & 0o6000, 0, "{}: {mode:o}", path.display());
        }
        let ran = run(stage, &["--cap", "CAP_FSETID"], &["/bin/true"]);
        ran.ended(125).says("CAP_FSETID");
        run(stage, &["--cap", "CAP_FOWNER"], &["/bin/true"]).ok();
    }

    fn a_tree_of_absurd_depth_does_not_hide_what_is_written(stage) {
        let script = "
import os, time
top = os.getcwd()
for i in range(1500): os.mkdir('b'); os.mkdir('a'); os.chdir('a')
for q in range(20):
    with open(top + '/z%d' % q, 'wb') as f: [f.write(b'x' * (1 << 20)) for i in range(20)]
    time.sleep(.1)
time.sleep(5)
print('alive')
";
        let _alone = quiet_disk(stage);
        let python = |disk| {
            run(stage, &["--fresh", "--disk", disk], &["/usr/bin/python3", "-c", script])
        };
        let ran = python("120M").says("--disk").says("120M");
        assert_ne!(ran.code(), 0, "{ran:?}");
        assert_eq!(python("16G").ok().stdout(), "alive\n");
    }

    fn an_unreadable_directory_does_not_hide_what_is_written(stage) {
        let script = "
import os, time
os.mkdir('d')
files = [open('d/f%d' % i, 'wb') for i in range(20)]
os.chmod('d', 0)
for f in files:
    for i in range(20): f.write(b'x' * (1 << 20))
    time.sleep(.05)
time.sleep(5)
print('alive')
";
        let _alone = quiet_disk(stage);
        let python = |disk| {
            run(stage, &["--fresh", "--disk", disk], &["/usr/bin/python3", "-c", script])
        };
        let ran = python("120M").says("--disk").says("120M");
        assert_ne!(ran.code(), 0, "{ran:?}");
        assert_eq!(python("16G").ok().stdout(), "alive\n");
    }

    fn a_stranger_who_holds_the_output_does_not_hold_the_launcher(stage) {
        let holder = "
import socket, sys
server = socket.socket(socket.AF_UNIX); server.bind('s'); server.listen()
print('ready', flush=True)
fds = socket.recv_fds(server.accept()[0], 9, 9)[1]
print('held', len(fds), flush=True)
sys.stdin.read()
";
        let gives = "
import os, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect('s')
socket.send_fds(s, [b'x'], [1, 2])
os.write(1, b'y' * 60000)
";
        let mut stranger = Running::start(stage.outside("/usr/bin/python3").args(["-c", holder]));
        let hold = stranger.stdin();
        let mut said = [0; 6];
        let mut stdout = stranger.stdout();
        std::io::Read::read_exact(&mut stdout, &mut said).expect("the stranger listens");
        // In a copy-on-write view a socket of the host's is another one, to which nobody listens.
        assert_ne!(run(stage, &[], &["/usr/bin/python3", "-c", gives]).code(), 0);
        let ran = run(stage, &DIRECT, &["/usr/bin/python3", "-c", gives]).ok();
        assert_eq!(ran.bytes.len(), 60000, "everything that the cage wrote");
        // He had both all the time.
        let mut said = [0; 7];
        std::io::Read::read_exact(&mut stdout, &mut said).expect("the stranger got something");
        assert_eq!(&said, b"held 2\n");
        drop(hold);
        stranger.finish(MINUTE).ok();
    }

    fn what_the_host_shares_by_one_count_is_not_taken(stage) {
        let script = "
import ctypes, fcntl, sys
libc = ctypes.CDLL(None, use_errno=True)
context = ctypes.c_ulong(0)
if libc.syscall(206, 1, ctypes.byref(context)) == -1: print('io_setup', ctypes.get_errno())
f = open('f', 'w')
fcntl.flock(f, fcntl.LOCK_EX)
fcntl.lockf(f, fcntl.LOCK_EX)
r = open('f')
try: fcntl.fcntl(r, fcntl.F_SETLEASE, fcntl.F_RDLCK)
except OSError as error: print('lease', error.errno)
";
        let python = |flags: &[&str]| run(stage, flags, &["/usr/bin/python3", "-c", script]).ok().stdout();
        assert_eq!(python(&[]), "io_setup 38\nlease 22\n");
        stage.write(stage.project().join("aio.toml"), "[syscalls]\ngroups = [\"aio\"]\n");
        assert_eq!(python(&["--policy", "aio.toml"]), "lease 22\n");
    }

    fn a_set_of_processors_that_holds_the_limit_cannot_be_left(stage) {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        if all < 2 {
            ironcage_tests::skip("needs two processors");
            return;
        }
        let script = "
import os
try: os.sched_setaffinity(0, range(2))
except PermissionError: print('refused')
print(len(os.sched_getaffinity(0)))
";
        let python = |cpus: &str| run(stage, &["--cpus", cpus], &["/usr/bin/python3", "-c", script]).ok().stdout();
        // With the cpu controller every processor may be used, and all of them together as much as one.
        let doctor = Running::start(&mut stage.ironcage(["doctor"])).finish(MINUTE).stdout();
        let by_controller = doctor.lines().any(|line| line.starts_with("cpu ") && line.contains(" cgroup version "));
        assert_eq!(python("1"), if by_controller { "2\n" } else { "refused\n1\n" }, "{doctor}");
        assert_eq!(python(&all.to_string()), "2\n");
    }

    fn the_standard_streams_can_be_opened_by_name(stage) {
        let script = "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr; echo fd > /proc/self/fd/1";
        let cage = Running::start(&mut stage.cage(&["-q"], &["/bin/sh", "-ec", script]));
        let ran = cage.feed(b"in\n".to_vec(), MINUTE).ok();
        assert_eq!((ran.stdout().as_str(), ran.stderr.as_str()), ("in\nfd\n", "err\n"));
    }

    fn shared_memory_that_nobody_is_attached_to_counts(stage) {
        let script = "
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for _ in range(12):
    segment = libc.shmget(0, 64 << 20, 0o1600)
    assert segment >= 0, ctypes.get_errno()
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 64 << 20)
    libc.shmdt(ctypes.c_void_p(address))
    time.sleep(.05)
time.sleep(3)
print('alive')
";
        let python = |memory| run(stage, &["--memory", memory], &["/usr/bin/python3", "-c", script]);
        assert_eq!(python("4G").ok().stdout(), "alive\n");
        python("256M").ended(137).says("--memory");
    }
}

/// As after a `sudo` that keeps the user's HOME: settings there name programs that are run, and
/// pending changes there name directories that are written.
#[test]
fn root_uses_no_settings_state_or_caches_of_another_user() {
    let (Some(root), Some(user)) = (Stage::new(Who::Root), Stage::new(Who::User)) else {
        return;
    };
    let with = |variable: &str, directory: &std::path::Path| {
        let mut command = root.ironcage(["run", "-q", "--", "true"]);
        command.env(variable, directory);
        Running::start(&mut command).finish(MINUTE)
    };
    for (variable, name) in [
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_STATE_HOME", "state"),
        ("XDG_CACHE_HOME", "home"),
    ] {
        let theirs = with(variable, &user.base().join(name));
        theirs.ended(125).says("it belongs to user");
        with(variable, &root.base().join(name)).ok();
    }
    let open = root.base().join("open");
    root.mkdir(&open);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    with("XDG_STATE_HOME", &open)
        .ended(125)
        .says("every user can write to it");
}
