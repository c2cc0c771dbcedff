//! Watches the processes of a probe from outside while it runs.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most that was seen at once.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples {
    /// Processes and threads of the probe.
    pub(crate) tasks: u64,
    /// Resident memory of them, in MiB.
    pub(crate) resident_mib: u64,
    /// Descriptors of one of them.
    pub(crate) descriptors: u64,
    /// Processor time of them, in clock ticks of a hundredth of a second.
    pub(crate) ticks: u64,
    /// Processors that they may use, in hundredths: those in their set, or less by a quota. The
    /// least of all looks, as the last one may see a process whose group is gone.
    pub(crate) processor_percent: Option<u64>,
    /// Whether one of them ran in a real-time class or below the ordinary nice value.
    pub(crate) boosted: bool,
    /// Processes not of the probe that were traced by one of it.
    pub(crate) traced: BTreeSet<i32>,
    /// Memory files of other processes that one of them held open.
    pub(crate) memories: BTreeSet<PathBuf>,
}

/// A watch in progress.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    /// How often it has looked.
    looks: Arc<AtomicU64>,
    thread: JoinHandle<Samples>,
}

fn arguments(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .ok()
        .filter(|line| !line.is_empty())
}

/// Every process on the stage.
pub(crate) fn all_processes() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The fields of /proc/PID/stat behind the program's name.
fn stat_fields(pid: i32) -> Vec<i64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or("");
    let number = |text: &str| text.parse().unwrap_or(0);
    rest.split_whitespace().map(number).collect()
}

/// What a process may use of the processors, in hundredths of one.
fn processor_percent(pid: i32, status: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed:"));
    let digits = line
        .unwrap_or("")
        .chars()
        .filter_map(|digit| digit.to_digit(16));
    let processors: u32 = digits.map(u32::count_ones).sum();
    let whole = u64::from(processors) * 100;
    quota_percent(pid).map_or(whole, |quota| quota.min(whole))
}

/// The least quota on processor time among the control groups that a process is in.
fn quota_percent(pid: i32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let trees: &[&str] = if controllers.is_empty() {
            &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        } else if controllers.split(',').any(|name| name == "cpu") {
            &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
        } else {
            continue;
        };
        for tree in trees {
            // Every group above counts too.
            let mut place = Some(Path::new(path));
            while let Some(path) = place {
                let directory = Path::new(tree).join(path.strip_prefix("/").unwrap_or(path));
                least = [least, quota_of(&directory)].into_iter().flatten().min();
                place = path.parent();
            }
        }
    }
    least
}

fn quota_of(group: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
        None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    // `max`, or minus one, is no quota and no number here.
    let (quota, period): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota * 100).checked_div(period)
}

/// The nice value of a process.
pub(crate) fn nice_value(pid: i32) -> Option<i64> {
    stat_fields(pid).get(NICE).copied()
}

// Positions in the fields of /proc/PID/stat behind the program's name.
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const NICE: usize = 16;
const POLICY: usize = 38;

/// The processes whose first argument is `program`.
pub(crate) fn processes_of(program: &Path) -> Vec<i32> {
    let program = program.as_os_str().as_encoded_bytes();
    let runs = |pid: &i32| {
        arguments(*pid).is_some_and(|line| line.split(|byte| *byte == 0).next() == Some(program))
    };
    all_processes().into_iter().filter(runs).collect()
}

fn status_number(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// How many processes are looked at so closely.
const FEW: usize = 4;

/// What a process has taken of memory, in KiB: private pages, and those of files in memory that
/// it has mapped. Not the pages of the suite's own program: it may lie in a tmpfs, and nobody in
/// the sandbox took them. All from one look, so that nothing is counted before and after a change.
fn taken_kib(pid: i32, program: &Path) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let program = std::fs::metadata(program).map_or(0, |program| program.ino());
    taken_in(&smaps, program)
}

fn taken_in(smaps: &str, program: u64) -> u64 {
    let (mut counts, mut file_pages, mut total) = (false, 0_u64, 0_u64);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            continue;
        };
        let kib = || second.parse::<u64>().unwrap_or(0);
        match first {
            "Rss:" => file_pages = kib(),
            "Anonymous:" => {
                total += kib();
                if counts {
                    total += file_pages.saturating_sub(kib());
                }
            }
            range if range.contains('-') && !range.ends_with(':') => {
                let inode = words.nth(2).and_then(|inode| inode.parse::<u64>().ok());
                counts = inode.is_some_and(|inode| inode != 0 && inode != program);
            }
            _ => {}
        }
    }
    total
}

impl Samples {
    fn look(&mut self, program: &Path, known: &[i32]) {
        let own: Vec<i32> = processes_of(program)
            .into_iter()
            .filter(|pid| !known.contains(pid))
            .collect();
        let (mut tasks, mut resident, mut ticks) = (0, 0, 0);
        for pid in &own {
            let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
                continue;
            };
            tasks += status_number(&status, "Threads");
            // Private pages of each, shared ones (memfd, tmpfs, mappings) where they are touched.
            resident += match own.len() <= FEW {
                true => taken_kib(*pid, program),
                false => status_number(&status, "RssAnon") + status_number(&status, "RssShmem"),
            };
            let fields = stat_fields(*pid);
            let field = |index: usize| fields.get(index).copied().unwrap_or(0);
            ticks += u64::try_from(field(USER_TICKS) + field(SYSTEM_TICKS)).unwrap_or(0);
            let free = processor_percent(*pid, &status);
            self.processor_percent =
                Some(self.processor_percent.map_or(free, |least| least.min(free)));
            self.boosted |= field(NICE) < 0 || field(POLICY) == 1;
            let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
            if let Ok(descriptors) = descriptors {
                let links: Vec<_> = descriptors.flatten().map(|entry| entry.path()).collect();
                self.descriptors = self.descriptors.max(links.len() as u64);
                let targets = links
                    .iter()
                    .take(64)
                    .filter_map(|link| std::fs::read_link(link).ok());
                let foreign = |target: &PathBuf| {
                    target.starts_with("/proc")
                        && target.ends_with("mem")
                        && !own
                            .iter()
                            .any(|pid| target.starts_with(format!("/proc/{pid}")))
                };
                self.memories.extend(targets.filter(foreign));
            }
        }
        self.tasks = self.tasks.max(tasks);
        self.resident_mib = self.resident_mib.max(resident / 1024);
        self.ticks = self.ticks.max(ticks);
        for pid in all_processes().into_iter().filter(|pid| !own.contains(pid)) {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let tracer = status_number(&status, "TracerPid") as i32;
            if own.contains(&tracer) {
                self.traced.insert(pid);
            }
        }
    }
}

impl Sampler {
    /// Begins to watch the processes that run `program`, except those that are there already.
    pub(crate) fn start(program: &Path) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let looks = Arc::new(AtomicU64::new(0));
        let (ended, program) = (Arc::clone(&stop), program.to_owned());
        let looked = Arc::clone(&looks);
        let known = processes_of(&program);
        let thread = std::thread::spawn(move || {
            let mut samples = Samples::default();
            while !ended.load(Ordering::Relaxed) {
                samples.look(&program, &known);
                looked.fetch_add(1, Ordering::Release);
                std::thread::sleep(Duration::from_millis(8));
            }
            samples
        });
        Sampler {
            stop,
            looks,
            thread,
        }
    }

    /// Waits until a look has begun after this and come to its end, however busy the machine is.
    pub(crate) fn look_again(&self) {
        let enough = self.looks.load(Ordering::Acquire) + 2;
        while self.looks.load(Ordering::Acquire) < enough && !self.thread.is_finished() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the watch.
    pub(crate) fn finish(self) -> Samples {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_program_are_nobodys_and_copies_of_them_are() {
        let smaps = "\
7f00-7f10 r-xp 00000000 00:2a 77   /suite/program
Rss:                4000 kB
Pss:                2000 kB
Anonymous:           100 kB
7f20-7f30 rw-s 00000000 00:01 12   /memfd:probe (deleted)
Rss:                 300 kB
Anonymous:             0 kB
7f40-7f50 rw-p 00000000 00:00 0    [heap]
Rss:                  20 kB
Anonymous:            20 kB
THPeligible:           0
";
        assert_eq!(taken_in(smaps, 77), 420);
        assert_eq!(taken_in(smaps, 78), 4320);
        assert_eq!(taken_in("", 77), 0);
    }
}
