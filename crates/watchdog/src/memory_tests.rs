use super::super::processes::OpenFiles;
use super::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

const MEGABYTE: u64 = 1 << 20;

#[derive(Debug, Default)]
struct FakeProcesses {
    files: HashMap<(u32, &'static str), String>,
    memfds: HashMap<u32, Vec<(u64, u64)>>,
    denied: bool,
}

impl FakeProcesses {
    /// A process with anonymous and shared megabytes; its share of the anonymous ones may be less.
    fn process(mut self, pid: u32, anonymous: u64, share: u64, shared: u64) -> Self {
        let status = format!(
            "RssAnon:\t{} kB\nRssFile:\t900000 kB\nRssShmem:\t{} kB\nVmSwap:\t0 kB\n",
            anonymous << 10,
            shared << 10
        );
        self.files.insert((pid, "status"), status);
        self.files.insert(
            (pid, "smaps_rollup"),
            format!(
                "Pss_Anon: {} kB\nPss_Shmem: {} kB\nSwapPss: 0 kB\n",
                share << 10,
                shared << 10
            ),
        );
        self.files.insert((pid, "smaps"), String::new());
        self
    }

    fn mapping(mut self, pid: u32, inode: u64, path: &str, megabytes: u64) -> Self {
        let text = self.files.entry((pid, "smaps")).or_default();
        text.push_str(&format!("7f00-7f10 rw-s 00000000 00:01 {inode}                       {path}\nSize: 99999 kB\nPss: {} kB\nSwapPss: 0 kB\n", megabytes << 10));
        self
    }

    fn memfd(mut self, pid: u32, inode: u64, megabytes: u64) -> Self {
        self.memfds
            .entry(pid)
            .or_default()
            .push((inode, megabytes * MEGABYTE));
        self
    }
}

impl ProcessFiles for FakeProcesses {
    fn pids(&self) -> io::Result<Vec<u32>> {
        Ok(self
            .files
            .keys()
            .filter(|(_, file)| *file == "status")
            .map(|(pid, _)| *pid)
            .collect())
    }
    fn read(&self, pid: u32, file: &str) -> io::Result<String> {
        if self.denied && file != "status" {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let found = self
            .files
            .iter()
            .find(|((one, name), _)| *one == pid && *name == file);
        found
            .map(|(_, text)| text.clone())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn open_files(&self, pid: u32) -> io::Result<OpenFiles> {
        if self.denied {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let memfds = self.memfds.get(&pid).cloned().unwrap_or_default();
        let nameless = memfds.into_iter().map(|(inode, bytes)| Nameless {
            memory: true,
            device: (0, 1),
            inode,
            bytes,
        });
        Ok(OpenFiles {
            nameless: nameless.collect(),
            seen: 1,
        })
    }
}

#[derive(Debug)]
struct FakeSources {
    host: Rc<Cell<u64>>,
    tmpfs: u64,
    segments: Option<u64>,
}

impl MemorySources for FakeSources {
    fn host_shared(&self) -> io::Result<u64> {
        Ok(self.host.get() * MEGABYTE)
    }
    fn tmpfs(&self) -> u64 {
        self.tmpfs * MEGABYTE
    }
    fn segments(&self) -> Option<u64> {
        self.segments.map(|megabytes| megabytes * MEGABYTE)
    }
    fn sockets(&self) -> io::Result<u64> {
        Ok(0)
    }
}

#[test]
fn segments_count_also_when_nobody_is_attached_and_once_when_somebody_is() {
    let with = |segments| {
        let sources = FakeSources {
            host: Rc::new(Cell::new(5000)),
            tmpfs: 0,
            segments: Some(segments),
        };
        let mut watch = MemoryWatch::with_sources(100 * MEGABYTE, Box::new(sources));
        watch
            .look(
                &FakeProcesses::default().process(1, 10, 10, 0),
                &Guests::default(),
            )
            .exceeded
    };
    assert!(with(95) && !with(85));
    let smaps = "7f00-7f01 rw-s 00000000 00:01 5  /SYSV00000000 (deleted)\nPss:  4 kB\n";
    assert_eq!(SharedMappings::parse(smaps, false).without_file, 4096);
    assert_eq!(SharedMappings::parse(smaps, true).without_file, 0);
}

#[test]
fn the_list_of_segments_is_read_by_its_last_two_columns() {
    let list = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap
         0          0   600             104857600   123   123      0  1000  1000  1000  1000 1700000000 1700000000 1700000000               8192                  4096
         0          1   600                  4096   123   123      1  1000  1000  1000  1000 1700000000          0 1700000000               4096                     0
";
    assert_eq!(segment_bytes(list), 8192 + 4096 + 4096);
    assert_eq!(segment_bytes("garbage\n"), 0);
}

/// A limit of 100 MB on a host with much shared memory of others.
fn watch(tmpfs: u64) -> MemoryWatch {
    watch_with(tmpfs, &Rc::new(Cell::new(5000)))
}

fn watch_with(tmpfs: u64, host: &Rc<Cell<u64>>) -> MemoryWatch {
    let sources = FakeSources {
        host: Rc::clone(host),
        tmpfs,
        segments: None,
    };
    MemoryWatch::with_sources(100 * MEGABYTE, Box::new(sources))
}

#[test]
fn anonymous_memory_over_the_limit_is_a_hit_and_below_it_is_not() {
    assert!(
        watch(0)
            .look(
                &FakeProcesses::default()
                    .process(1, 60, 60, 0)
                    .process(2, 41, 41, 0),
                &Guests::default()
            )
            .exceeded
    );
    assert!(
        !watch(0)
            .look(
                &FakeProcesses::default()
                    .process(1, 60, 60, 0)
                    .process(2, 39, 39, 0),
                &Guests::default()
            )
            .exceeded
    );
}

#[test]
fn pages_shared_after_a_fork_are_not_counted_for_each_child() {
    let mut forked = FakeProcesses::default();
    for pid in 1..=10 {
        forked = forked.process(pid, 50, 5, 0);
    }
    assert!(!watch(0).look(&forked, &Guests::default()).exceeded);
}

#[test]
fn tmpfs_and_memfds_count_and_a_memfd_in_two_processes_counts_once() {
    let once = FakeProcesses::default()
        .process(1, 10, 10, 0)
        .process(2, 10, 10, 0)
        .memfd(1, 7, 45)
        .memfd(2, 7, 45);
    assert_eq!(watch(20).measure(&once, &Guests::default()), 85 * MEGABYTE);
    assert!(!watch(20).look(&once, &Guests::default()).exceeded);
    assert!(watch(36).look(&once, &Guests::default()).exceeded);
    assert!(
        watch(20)
            .look(&once.memfd(2, 8, 45), &Guests::default())
            .exceeded
    );
}

#[test]
fn a_memfd_that_is_mapped_and_closed_is_found_in_the_mappings() {
    let mapped = |megabytes| {
        FakeProcesses::default()
            .process(1, 10, 10, megabytes)
            .mapping(1, 9, "/memfd:x (deleted)", megabytes)
    };
    assert!(watch(0).look(&mapped(95), &Guests::default()).exceeded);
    assert!(!watch(0).look(&mapped(80), &Guests::default()).exceeded);
    // Mapped and open is the same memory, not twice.
    assert!(
        !watch(0)
            .look(&mapped(80).memfd(1, 9, 80), &Guests::default())
            .exceeded
    );
}

#[test]
fn shared_anonymous_mappings_and_segments_count_and_mapped_tmpfs_files_are_not_counted_twice() {
    let shared = |path| {
        FakeProcesses::default()
            .process(1, 30, 30, 75)
            .mapping(1, 3, path, 75)
    };
    assert!(
        watch(0)
            .look(&shared("/dev/zero (deleted)"), &Guests::default())
            .exceeded
    );
    assert!(
        watch(0)
            .look(&shared("/SYSV00000000 (deleted)"), &Guests::default())
            .exceeded
    );
    assert!(
        !watch(75 - 10)
            .look(&shared("/tmp/file"), &Guests::default())
            .exceeded
    );
}

#[test]
fn a_host_with_little_shared_memory_is_not_asked_for_more() {
    let mut watch = watch_with(5, &Rc::new(Cell::new(5)));
    // Descriptors and mappings cannot be read, and need not be.
    let mut processes = FakeProcesses::default().process(1, 50, 50, 0);
    processes.denied = true;
    assert!(!watch.look(&processes, &Guests::default()).exceeded);
}

#[test]
fn an_unreadable_process_is_counted_by_what_everybody_sees() {
    let mut processes = FakeProcesses::default().process(4, 80, 1, 30);
    processes.denied = true;
    let mut watch = watch(0);
    assert!(watch.look(&processes, &Guests::default()).exceeded);
    processes.denied = false;
    assert!(!watch.look(&processes, &Guests::default()).exceeded);
}

#[test]
fn no_process_means_no_memory() {
    assert!(
        !watch(0)
            .look(&FakeProcesses::default(), &Guests::default())
            .exceeded
    );
}

#[test]
fn the_line_of_a_mapping_is_told_from_its_values() {
    let line = "7f11e2a00000-7f11e2b00000 rw-s 00000000 00:01 1034                       /memfd:a b (deleted)";
    assert_eq!(mapping(line), Some((1034, "/memfd:a b (deleted)")));
    assert_eq!(mapping("7ffd-7fff rw-p 00000000 00:00 0 "), Some((0, "")));
    assert_eq!(mapping("Pss:                 100 kB"), None);
    assert_eq!(mapping("VmFlags: rd wr sh-mr mw"), None);
}

#[test]
fn the_shared_memory_of_the_host_is_read_with_its_used_swap() {
    let meminfo = "MemTotal: 1000 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\nShmem: 30 kB\nShmemHugePages: 7 kB\n";
    assert_eq!(host_shared(meminfo), Some(90 << 10));
    assert_eq!(host_shared("MemTotal: 1 kB\n"), None);
}

#[test]
fn growth_of_the_hosts_shared_memory_counts_only_while_a_process_hides_its_descriptors() {
    let host = Rc::new(Cell::new(5000));
    let mut watch = watch_with(10, &host);
    let open = FakeProcesses::default().process(3, 5, 5, 0);
    let mut hiding = FakeProcesses::default().process(3, 5, 5, 0);
    hiding.denied = true;
    assert!(!watch.look(&hiding, &Guests::default()).exceeded);
    host.set(5000 + 90);
    // Ninety more, ten of which are the tmpfs: eighty, five and ten.
    assert_eq!(watch.measure(&hiding, &Guests::default()), 95 * MEGABYTE);
    host.set(5000 + 96);
    assert!(watch.look(&hiding, &Guests::default()).exceeded);
    assert!(!watch.look(&open, &Guests::default()).exceeded);
}

#[test]
fn the_cages_own_first_process_is_not_taken_for_one_that_hides() {
    let host = Rc::new(Cell::new(5000));
    let mut watch = watch_with(10, &host);
    let mut first = FakeProcesses::default().process(1, 5, 5, 0);
    first.denied = true;
    host.set(9000);
    assert!(!watch.look(&first, &Guests::default()).exceeded);
    let mut second = FakeProcesses::default().process(2, 5, 5, 0);
    second.denied = true;
    assert!(watch.look(&second, &Guests::default()).exceeded);
}
