use super::*;

/// A tree of files in memory. A path is writable when it was said to be.
#[derive(Default)]
struct FakeFiles {
    files: BTreeMap<PathBuf, String>,
    versions: BTreeMap<PathBuf, Version>,
    writable: Vec<PathBuf>,
    read_only: Vec<PathBuf>,
}

impl FakeFiles {
    fn new(membership: &str) -> Self {
        let mut fake = FakeFiles::default();
        fake.put("/proc/self/cgroup", membership);
        fake
    }

    fn put(&mut self, path: &str, text: &str) {
        self.files.insert(path.into(), text.into());
    }

    fn group(&mut self, path: &str, version: Version, enabled: &str, processes: &str) {
        self.versions.insert(path.into(), version);
        self.put(&format!("{path}/cgroup.subtree_control"), enabled);
        self.put(&format!("{path}/cgroup.procs"), processes);
        self.put(
            &format!("{path}/cgroup.controllers"),
            "cpuset cpu io memory pids",
        );
        self.put(&format!("{path}/cgroup.type"), "domain");
    }

    fn own(&mut self, path: &str) {
        for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
            self.writable
                .push(Path::new(path).join(file).components().collect());
        }
    }
}

impl GroupFiles for FakeFiles {
    fn look(&self, directory: &Path) -> Option<GroupDirectory> {
        let version = self.versions.get(directory).copied()?;
        Some(GroupDirectory {
            version,
            read_only: self.read_only.iter().any(|path| path == directory),
        })
    }
    fn read(&self, file: &Path) -> Option<String> {
        self.files.get(file).cloned()
    }
    fn writable(&self, file: &Path) -> bool {
        let file: PathBuf = file.components().collect();
        self.writable.contains(&file)
    }
    fn has_children(&self, directory: &Path) -> bool {
        self.versions
            .keys()
            .any(|path| path.parent() == Some(directory))
    }
}

const ROOT: &str = "/sys/fs/cgroup";

fn systemd_user(own: &str) -> FakeFiles {
    let mut fake = FakeFiles::new(&format!("0::{own}\n"));
    let mut path = PathBuf::from(ROOT);
    fake.group(ROOT, Version::V2, "cpu memory pids", "");
    fake.files.remove(Path::new("/sys/fs/cgroup/cgroup.type"));
    let parts: Vec<_> = own.split('/').filter(|part| !part.is_empty()).collect();
    for (i, part) in parts.iter().enumerate() {
        path.push(part);
        let last = i + 1 == parts.len();
        let (enabled, processes) = if last {
            ("", "12\n")
        } else {
            ("cpu memory pids", "")
        };
        fake.group(&path.to_string_lossy(), Version::V2, enabled, processes);
    }
    fake
}

#[test]
fn a_process_of_a_user_service_uses_the_nearest_delegated_ancestor() {
    let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope";
    let mut fake = systemd_user(own);
    let base = format!("{ROOT}/user.slice/user-1000.slice/user@1000.service");
    for delegated in ["", "/app.slice", "/app.slice/term.scope"] {
        fake.own(&format!("{base}{delegated}"));
    }
    assert_eq!(
        detect_in(&fake, Privilege::User),
        CgroupHost::V2 {
            parent: format!("{base}/app.slice").into(),
            controllers: vec!["cpu".into(), "memory".into(), "pids".into()],
        }
    );
}

#[test]
fn a_login_session_outside_the_user_service_is_not_delegated() {
    let fake = systemd_user("/user.slice/user-1000.slice/session-3.scope");
    let CgroupHost::None { why } = detect_in(&fake, Privilege::User) else {
        panic!("a group of root's was offered");
    };
    assert!(
        matches!(&why, NoCgroup::NotDelegated { group } if group.ends_with("session-3.scope")),
        "{why}"
    );
}

#[test]
fn root_makes_groups_beside_its_own_session() {
    let mut fake = systemd_user("/user.slice/user-0.slice/session-1.scope");
    for path in [
        "",
        "/user.slice",
        "/user.slice/user-0.slice",
        "/user.slice/user-0.slice/session-1.scope",
    ] {
        fake.own(&format!("{ROOT}{path}"));
    }
    let CgroupHost::V2 { parent, .. } = detect_in(&fake, Privilege::Root) else {
        panic!("nothing found");
    };
    assert_eq!(parent, Path::new("/sys/fs/cgroup/user.slice/user-0.slice"));
}

#[test]
fn an_empty_delegated_group_may_have_its_controllers_enabled_by_its_user_only() {
    let own = "/work.service/main";
    let mut fake = systemd_user(own);
    fake.put("/sys/fs/cgroup/work.service/cgroup.subtree_control", "");
    fake.own("/sys/fs/cgroup/work.service");
    fake.own("/sys/fs/cgroup/work.service/main");
    let CgroupHost::V2 {
        parent,
        controllers,
    } = detect_in(&fake, Privilege::User)
    else {
        panic!("nothing found");
    };
    assert_eq!(parent, Path::new("/sys/fs/cgroup/work.service"));
    assert_eq!(controllers, ["cpu", "memory", "pids"]);
    fake.put("/sys/fs/cgroup/work.service/cgroup.procs", "7\n");
    assert!(matches!(
        detect_in(&fake, Privilege::User),
        CgroupHost::None { .. }
    ));
}

#[test]
fn the_root_of_a_container_with_processes_in_it_is_refused_with_the_reason() {
    let mut fake = FakeFiles::new("0::/\n");
    fake.group(ROOT, Version::V2, "", "1\n");
    fake.own(ROOT);
    let CgroupHost::None { why } = detect_in(&fake, Privilege::Root) else {
        panic!("a group with processes cannot have controllers for children");
    };
    assert!(matches!(why, NoCgroup::Container { .. }), "{why}");
}

#[test]
fn the_real_root_is_used_while_it_has_no_children_to_disturb() {
    let mut fake = FakeFiles::new("0::/\n");
    fake.group(ROOT, Version::V2, "", "1\n");
    fake.own(ROOT);
    fake.files.remove(Path::new("/sys/fs/cgroup/cgroup.type"));
    assert!(matches!(
        detect_in(&fake, Privilege::Root),
        CgroupHost::V2 { .. }
    ));
    fake.group("/sys/fs/cgroup/system.slice", Version::V2, "", "");
    assert!(matches!(
        detect_in(&fake, Privilege::Root),
        CgroupHost::None { .. }
    ));
}

#[test]
fn version_one_controllers_are_the_own_groups_and_only_writable_ones() {
    let mut fake = FakeFiles::new("8:pids:/\n4:memory:/jobs/a\n1:cpu,cpuacct:/\n0::/\n");
    for path in ["memory", "memory/jobs/a", "pids", "cpu", "cpuacct"] {
        fake.group(&format!("{ROOT}/{path}"), Version::V1, "", "1\n");
    }
    fake.own("/sys/fs/cgroup/memory/jobs/a");
    fake.own("/sys/fs/cgroup/pids");
    let names = |fake: &FakeFiles, privilege| {
        let CgroupHost::V1(v1) = detect_in(fake, privilege) else {
            panic!("version 1 not found");
        };
        let memory = v1.controllers.get("memory").map(PathBuf::as_path);
        assert_eq!(memory, Some(Path::new("/sys/fs/cgroup/memory/jobs/a")));
        v1.controllers.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names(&fake, Privilege::User), ["memory", "pids"]);
    // Root may write everywhere, but on a mount that nobody may write to.
    assert_eq!(names(&fake, Privilege::Root), ["cpu", "memory", "pids"]);
    fake.read_only.push("/sys/fs/cgroup/cpu".into());
    assert_eq!(names(&fake, Privilege::Root), ["memory", "pids"]);
}

#[test]
fn a_version_one_subtree_mounted_into_a_container_is_found_by_the_mount_table() {
    let mut fake = FakeFiles::new("4:memory:/docker/abc/inner\n");
    fake.put(
        "/proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n",
    );
    fake.versions
        .insert("/sys/fs/cgroup/memory".into(), Version::V1);
    fake.versions
        .insert("/sys/fs/cgroup/memory/inner".into(), Version::V1);
    fake.own("/sys/fs/cgroup/memory/inner");
    let CgroupHost::V1(v1) = detect_in(&fake, Privilege::Root) else {
        panic!("version 1 not found");
    };
    assert_eq!(
        v1.controllers["memory"],
        Path::new("/sys/fs/cgroup/memory/inner")
    );
}

#[test]
fn a_host_whose_second_version_has_no_controllers_says_so() {
    let mut fake = FakeFiles::new("0::/\n");
    fake.group("/sys/fs/cgroup/unified", Version::V2, "", "1\n");
    fake.put("/sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n");
    let CgroupHost::None { why } = detect_in(&fake, Privilege::User) else {
        panic!("no controllers, yet a group was offered");
    };
    assert_eq!(why, NoCgroup::NoControllers);
}

#[test]
fn swap_is_counted_where_the_group_has_a_file_for_it() {
    let parent = Path::new(ROOT).join("jobs");
    let hosts = [
        (
            CgroupHost::V2 {
                parent: parent.clone(),
                controllers: vec!["memory".into()],
            },
            "memory.swap.max",
        ),
        (
            CgroupHost::V1(CgroupV1 {
                controllers: [("memory".to_owned(), parent.clone())].into(),
            }),
            "memory.memsw.limit_in_bytes",
        ),
    ];
    for (host, file) in hosts {
        let mut fake = FakeFiles::new("0::/jobs\n");
        assert!(!counts_swap_in(&fake, &host), "{file}");
        fake.put(&format!("{ROOT}/jobs/{file}"), "max");
        assert!(counts_swap_in(&fake, &host), "{file}");
    }
    let fake = FakeFiles::new("");
    assert!(!counts_swap_in(
        &fake,
        &CgroupHost::None {
            why: NoCgroup::NoCgroups
        }
    ));
}

#[test]
fn an_init_gets_a_group_below_the_own_one_where_that_is_writable() {
    let mut host = FakeFiles::new("8:pids:/\n0::/mine\n");
    let own = "/sys/fs/cgroup/unified/mine";
    for path in ["/sys/fs/cgroup/unified", own] {
        host.group(path, Version::V2, "", "");
    }
    let refused = own_group_in(&host, Privilege::User);
    let group = "mine".into();
    assert_eq!(refused, Err(NoCgroup::NotDelegated { group }));
    host.own(own);
    assert_eq!(own_group_in(&host, Privilege::User), Ok(own.into()));
    // Without the second version there is no place, whoever asks.
    let old = FakeFiles::new("8:pids:/\n");
    assert_eq!(
        own_group_in(&old, Privilege::Root),
        Err(NoCgroup::NoVersion2)
    );
}
