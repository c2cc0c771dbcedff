use super::*;
use ironcage_host::{CgroupV1, HostCaps, Privilege};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Generous: only a test that fails waits this long.
const PATIENCE: Duration = Duration::from_secs(20);

fn cage_id() -> CageId {
    let mut random = [0u8; 12];
    let path = "/dev/urandom";
    std::io::Read::read_exact(&mut fs::File::open(path).unwrap(), &mut random).unwrap();
    CageId::from_entropy(random)
}

/// The version 1 hierarchies of this host, or `None` with the reason printed.
fn version_one() -> Option<(CgroupHost, CgroupV1)> {
    let caps = HostCaps::quick(std::path::Path::new("/")).unwrap();
    match &caps.cgroup {
        CgroupHost::V1(v1) if caps.privilege == Privilege::Root => {
            Some((caps.cgroup.clone(), v1.clone()))
        }
        other => {
            eprintln!("skipped: needs root and cgroup version 1, found {other:?}");
            None
        }
    }
}

/// A version 2 tree in which root can make groups, with or without controllers.
fn version_two() -> Option<CgroupHost> {
    let parent = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.join("cgroup.subtree_control").exists());
    let privilege = HostCaps::quick(std::path::Path::new("/"))
        .unwrap()
        .privilege;
    match parent {
        Some(parent) if privilege == Privilege::Root => Some(CgroupHost::V2 {
            parent,
            controllers: Vec::new(),
        }),
        _ => {
            eprintln!("skipped: needs root and a cgroup version 2 tree");
            None
        }
    }
}

/// Starts a shell that enters the group through `entries` as a cage's first process does, and
/// then becomes the script.
fn start_inside(cgroup: &Cgroup, script: &str) -> Child {
    let mut entries = cgroup.entries().unwrap().into_iter();
    let mut command = Command::new("/bin/sh");
    // Two hierarchies can be entered this way: one descriptor each for output and errors.
    let first = entries.next().map_or(Stdio::null(), Stdio::from);
    let second = entries.next().map_or(Stdio::null(), Stdio::from);
    assert!(
        entries.next().is_none(),
        "at most two hierarchies in these tests"
    );
    command
        .args(["-c", &format!("echo 0; echo 0 >&2; {script}")])
        .stdin(Stdio::null())
        .stdout(first)
        .stderr(second)
        .spawn()
        .unwrap()
}

fn wait_until(mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "not reached in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn contains(cgroup: &Cgroup, pid: u32) -> bool {
    cgroup.paths().iter().all(|path| {
        let members = fs::read_to_string(path.join("cgroup.procs")).unwrap();
        members.lines().any(|line| line == pid.to_string())
    })
}

#[test]
fn version_one_limits_are_written_and_the_groups_removed() {
    let Some((host, v1)) = version_one() else {
        return;
    };
    let limits = CgroupLimits {
        memory: Some(64 << 20),
        cpu_milli: Some(1500),
        pids: Some(20),
    };
    let cgroup = Cgroup::create(&host, &cage_id(), &limits).unwrap();
    let paths: Vec<PathBuf> = cgroup.paths().into_iter().map(Path::to_owned).collect();
    assert_eq!(paths.len(), 3);
    for path in &paths {
        let parent = path.parent().unwrap();
        assert!(v1.controllers.values().any(|own| own == parent), "{path:?}");
    }
    let read = |file: &str| {
        let path = paths
            .iter()
            .map(|path| path.join(file))
            .find(|path| path.exists());
        fs::read_to_string(path.unwrap()).unwrap().trim().to_owned()
    };
    assert_eq!(read("memory.limit_in_bytes"), (64 << 20).to_string());
    assert_eq!(read("pids.max"), "20");
    assert_eq!(read("cpu.cfs_quota_us"), "150000");
    cgroup.remove().unwrap();
    assert!(paths.iter().all(|path| !path.exists()));
}

#[test]
fn a_memory_hog_is_killed_at_the_limit_and_counted_and_a_modest_program_is_not() {
    let Some((host, _)) = version_one() else {
        return;
    };
    let limits = CgroupLimits {
        memory: Some(32 << 20),
        ..CgroupLimits::default()
    };
    let cgroup = Cgroup::create(&host, &cage_id(), &limits).unwrap();
    assert!(start_inside(&cgroup, "exec true").wait().unwrap().success());
    assert_eq!(cgroup.hits().unwrap(), []);
    // tail keeps the last line, and this one does not end.
    let status = start_inside(&cgroup, "exec tail /dev/zero").wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    let hits = cgroup.hits().unwrap();
    assert_eq!(
        (hits[0].limit, hits[0].value.as_str()),
        (LimitKind::Memory, "32M")
    );
    assert!(hits[0].count >= 1);
    assert!(cgroup.stats().memory_peak.unwrap() > 16 << 20);
    cgroup.remove().unwrap();
}

#[test]
fn forks_beyond_the_limit_are_refused_and_counted() {
    let Some((host, _)) = version_one() else {
        return;
    };
    let limits = CgroupLimits {
        pids: Some(3),
        ..CgroupLimits::default()
    };
    let cgroup = Cgroup::create(&host, &cage_id(), &limits).unwrap();
    let few = "sleep 0 & wait; exit 0";
    assert!(start_inside(&cgroup, few).wait().unwrap().success());
    assert_eq!(cgroup.hits().unwrap(), []);
    let many = "for i in 1 2 3 4 5 6; do sleep 1 & done; exit 0";
    start_inside(&cgroup, many).wait().unwrap();
    assert_eq!(cgroup.hits().unwrap()[0].limit, LimitKind::Pids);
    cgroup.kill().unwrap();
    cgroup.remove().unwrap();
}

#[test]
fn a_process_is_moved_by_its_id_frozen_thawed_and_killed() {
    let Some((host, _)) = version_one() else {
        return;
    };
    let limits = CgroupLimits {
        memory: Some(64 << 20),
        pids: Some(10),
        ..CgroupLimits::default()
    };
    freeze_and_kill(&Cgroup::create(&host, &cage_id(), &limits).unwrap());
}

#[test]
fn version_two_groups_freeze_and_kill_without_any_controller() {
    let Some(host) = version_two() else {
        return;
    };
    let cgroup = Cgroup::create(&host, &cage_id(), &CgroupLimits::default()).unwrap();
    assert!(cgroup.clone_fd().is_some());
    let path = cgroup.paths()[0].to_owned();
    freeze_and_kill(&cgroup);
    cgroup.remove().unwrap();
    assert!(!path.exists());
}

fn freeze_and_kill(cgroup: &Cgroup) {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    assert!(!contains(cgroup, child.id()));
    cgroup.enter(child.id()).unwrap();
    assert!(contains(cgroup, child.id()));

    let ticks = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1.to_owned();
        after_name
            .split_whitespace()
            .nth(11)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let frozen = cgroup.freeze().unwrap();
    let stopped_at = ticks(child.id());
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(ticks(child.id()), stopped_at, "a frozen process ran");
    frozen.thaw().unwrap();
    wait_until(|| ticks(child.id()) > stopped_at);

    cgroup.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    assert!(!contains(cgroup, child.id()));
}

#[test]
fn a_sweep_leaves_groups_with_a_living_maker_and_takes_orphans() {
    let Some(host) = version_two() else {
        return;
    };
    let CgroupHost::V2 { parent, .. } = &host else {
        panic!("version_two returns version 2");
    };
    let held = Cgroup::create(&host, &cage_id(), &CgroupLimits::default()).unwrap();
    let orphan = parent.join(format!("{PREFIX}{}", cage_id()));
    let foreign = parent.join(format!("ironcage-test-{}", std::process::id()));
    let scopes = parent.join(format!("{PREFIX}{}{SCOPE}", cage_id()));
    fs::create_dir(&orphan).unwrap();
    fs::create_dir(&scopes).unwrap();
    fs::create_dir(&foreign).unwrap();
    sweep(&host);
    let (held_stays, foreign_stays) = (held.paths()[0].exists(), foreign.exists());
    fs::remove_dir(&foreign).unwrap();
    assert!(held_stays && foreign_stays);
    assert!(!orphan.exists() && !scopes.exists());
}

#[test]
fn one_scope_of_a_cage_at_a_time_has_limits_of_its_own() {
    let Some(host) = version_two() else {
        return;
    };
    let (id, limits) = (cage_id(), CgroupLimits::default());
    let cage = Cgroup::create(&host, &id, &limits).unwrap();
    let scope = Cgroup::create_for_scope(&host, &id, &limits).unwrap();
    assert_eq!(cage.paths()[0].parent(), scope.paths()[0].parent());
    let second = Cgroup::create_for_scope(&host, &id, &limits).unwrap_err();
    assert!(matches!(second, CgroupError::Taken { .. }), "{second}");
    scope.remove().unwrap();
    Cgroup::create_for_scope(&host, &id, &limits).unwrap();
}

#[test]
fn a_limit_without_its_controller_is_an_error_and_not_forgotten() {
    let host = CgroupHost::V2 {
        parent: PathBuf::from("/nonexistent"),
        controllers: vec!["memory".into()],
    };
    let limits = CgroupLimits {
        memory: Some(1 << 20),
        pids: Some(5),
        cpu_milli: None,
    };
    let error = Cgroup::create(&host, &cage_id(), &limits).unwrap_err();
    assert!(matches!(
        error,
        CgroupError::MissingController { controller: "pids" }
    ));
    let supported = limits.supported_by(&host);
    assert_eq!((supported.memory, supported.pids), (Some(1 << 20), None));
    // With only what is supported the next step is reached: the directory that is not there.
    let error = Cgroup::create(&host, &cage_id(), &supported).unwrap_err();
    assert!(matches!(error, CgroupError::Make { .. }), "{error}");
}

/// A directory with empty files in place of a version 2 group.
fn fake_group(name: &str, files: &[&str]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ironcage-cgroup-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    for file in files {
        fs::write(path.join(file), "").unwrap();
    }
    path
}

#[test]
fn version_two_values_have_the_form_the_kernel_wants() {
    let files = ["memory.max", "memory.oom.group", "pids.max", "cpu.max"];
    let path = fake_group("values", &files);
    let limits = CgroupLimits {
        memory: Some(512 << 20),
        cpu_milli: Some(2500),
        pids: Some(100),
    };
    let group = Group::adopt(&path);
    let without_swap_file = write_v2(&group, &path, &limits).unwrap();
    fs::write(path.join("memory.swap.max"), "").unwrap();
    let with_swap_file = write_v2(&group, &path, &limits).unwrap();
    let read = |file: &str| fs::read_to_string(path.join(file)).unwrap();
    let values = [
        read("memory.max"),
        read("memory.swap.max"),
        read("memory.oom.group"),
        read("pids.max"),
        read("cpu.max"),
    ];
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(values, ["536870912", "0", "1", "100", "250000 100000"]);
    assert!(!without_swap_file && with_swap_file);
}

#[test]
fn controllers_are_enabled_in_the_parent_only_when_their_files_are_missing() {
    let path = fake_group("enable", &["cgroup.subtree_control"]);
    let limits = CgroupLimits {
        memory: Some(1 << 20),
        pids: Some(10),
        cpu_milli: None,
    };
    let group = Group::adopt(&path);
    // No file appears by enabling here, so the write after it fails; what was asked is in the file.
    write_v2(&group, &path, &limits).unwrap_err();
    let asked = fs::read_to_string(path.join("cgroup.subtree_control")).unwrap();
    fs::write(path.join("cgroup.subtree_control"), "").unwrap();
    for file in ["memory.max", "memory.oom.group", "pids.max"] {
        fs::write(path.join(file), "").unwrap();
    }
    write_v2(&group, &path, &limits).unwrap();
    let untouched = fs::read_to_string(path.join("cgroup.subtree_control")).unwrap();
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(asked, "+memory +pids");
    assert_eq!(untouched, "");
}

#[test]
fn events_and_values_are_read_by_name() {
    let events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n";
    assert_eq!(field(events, "oom_kill"), Some(2));
    assert_eq!(field(events, "oom"), Some(3));
    assert_eq!(field(events, "absent"), None);
    assert_eq!(quota(1), 1000);
}
