//! Whether KVM carries out a guest's instructions: only where it was measured to be fast.
//!
//! On some hosts `/dev/kvm` works, and the code of a guest's kernel is interpreted by what is below
//! the host: QEMU's own translation is faster there, and its guests boot. So a loop in ring 0 of a
//! small machine is timed, once for each boot of the host. The result lies beside the guest, where no
//! cage reaches it.

use ironcage_plan::{Acceleration, NoKvm};
use ironcage_sys::kvm::{LOOPS, measure};
use ironcage_sys::rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// The device.
const DEVICE: &str = ironcage_plan::KVM;
/// The result of this host's last measurement, in the guest's directory.
const MEASURED: &str = "kvm.json";
/// The longest such file.
const LONGEST: u64 = 4096;
/// What the kernel calls the time since it booted.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The longest time that the loop may take. A CPU takes some 10 us, an interpreter some 40 ms.
const MOST: Duration = Duration::from_millis(1);
/// How long the small machine may take for all of it before it is killed.
const LIMIT: Duration = Duration::from_secs(3);

/// How fast KVM is on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum KvmSpeed {
    /// There is no device.
    Absent,
    /// This user may not open it.
    Denied,
    /// It does not run a machine.
    Failed {
        /// What the kernel said.
        why: String,
    },
    /// The machine did not end in time.
    Unanswered,
    /// The time of the loop.
    Measured {
        /// In nanoseconds.
        nanoseconds: u64,
    },
}

impl fmt::Display for KvmSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvmSpeed::Absent => f.write_str("this host has no /dev/kvm"),
            KvmSpeed::Denied => f.write_str("this user may not open /dev/kvm"),
            KvmSpeed::Failed { why } => write!(f, "it does not run a guest: {why}"),
            KvmSpeed::Unanswered => {
                let limit = LIMIT.as_secs();
                write!(
                    f,
                    "{LOOPS} rounds of a loop in a guest's kernel did not end in {limit} s"
                )
            }
            KvmSpeed::Measured { nanoseconds } => {
                let took = Duration::from_nanos(*nanoseconds);
                write!(
                    f,
                    "{LOOPS} rounds of a loop in a guest's kernel took {took:.1?}; at most {MOST:?} is a CPU's speed"
                )
            }
        }
    }
}

/// The measurement of one boot of the host.
#[derive(Debug, Serialize, Deserialize)]
struct BootSpeed {
    boot: String,
    speed: KvmSpeed,
}

/// Measures it, and keeps the result for the starts that follow.
pub fn examine(directory: &Path) -> KvmSpeed {
    let speed = try_out();
    // One that cannot be kept is measured again by the next start.
    let _ = keep(directory, &speed);
    speed
}

/// What carries out the instructions of a guest of this directory, by what was measured since this
/// host booted: now, if nothing was.
pub fn acceleration(directory: &Path) -> Acceleration {
    // What a device's permissions say may have changed since.
    let speed = match opened() {
        Err(speed) => speed,
        Ok(()) => known(directory).unwrap_or_else(|| examine(directory)),
    };
    let mode = fs::metadata(DEVICE).map_or(0, |device| device.mode());
    decide(&speed, is_open_to_agents(geteuid().is_root(), mode))
}

/// The rule.
pub fn decide(speed: &KvmSpeed, open_to_agents: bool) -> Acceleration {
    let most = u64::try_from(MOST.as_nanos()).unwrap_or(u64::MAX);
    match speed {
        KvmSpeed::Absent => Acceleration::Tcg(NoKvm::Absent),
        KvmSpeed::Denied => Acceleration::Tcg(NoKvm::Denied),
        KvmSpeed::Failed { .. } => Acceleration::Tcg(NoKvm::Failed),
        KvmSpeed::Unanswered => Acceleration::Tcg(NoKvm::Slow),
        KvmSpeed::Measured { nanoseconds } if *nanoseconds > most => Acceleration::Tcg(NoKvm::Slow),
        KvmSpeed::Measured { .. } if !open_to_agents => Acceleration::Tcg(NoKvm::Denied),
        KvmSpeed::Measured { .. } => Acceleration::Kvm,
    }
}

/// Whether an agent can open what this user can. An agent that root starts has an ID and groups of
/// its own; any other has those of its user.
fn is_open_to_agents(root: bool, mode: u32) -> bool {
    !root || mode & 0o006 == 0o006
}

/// Whether this user may use the device at all.
fn opened() -> Result<(), KvmSpeed> {
    let device = File::options().read(true).write(true).open(DEVICE);
    device.map(drop).map_err(|error| of_error(&error))
}

fn of_error(error: &io::Error) -> KvmSpeed {
    match error.kind() {
        ErrorKind::NotFound => KvmSpeed::Absent,
        ErrorKind::PermissionDenied => KvmSpeed::Denied,
        _ => KvmSpeed::Failed {
            why: error.to_string(),
        },
    }
}

fn try_out() -> KvmSpeed {
    match measure(LIMIT) {
        Ok(Some(time)) => KvmSpeed::Measured {
            nanoseconds: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        },
        Ok(None) => KvmSpeed::Unanswered,
        Err(error) => of_error(&error),
    }
}

fn boot() -> io::Result<String> {
    let text = fs::read(BOOT)?;
    Ok(String::from_utf8_lossy(text.trim_ascii_end()).into_owned())
}

/// What was measured since this host booted, by this user.
fn known(directory: &Path) -> Option<KvmSpeed> {
    let file = File::open(directory.join(MEASURED)).ok()?;
    let status = file.metadata().ok()?;
    if status.uid() != geteuid().as_raw() || status.mode() & 0o022 != 0 {
        return None;
    }
    let found: BootSpeed = serde_json::from_reader(file.take(LONGEST)).ok()?;
    (found.boot == boot().ok()?).then_some(found.speed)
}

fn keep(directory: &Path, speed: &KvmSpeed) -> io::Result<()> {
    let found = BootSpeed {
        boot: boot()?,
        speed: speed.clone(),
    };
    let text = serde_json::to_vec(&found).map_err(io::Error::other)?;
    // Readable and writable by this user alone.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&text)?;
    file.persist(directory.join(MEASURED))
        .map(drop)
        .map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn measured(nanoseconds: u64) -> KvmSpeed {
        KvmSpeed::Measured { nanoseconds }
    }

    #[test]
    fn kvm_is_used_where_it_is_as_fast_as_a_cpu_and_the_agent_may_open_it() {
        let tcg = Acceleration::Tcg;
        for (speed, open, wanted) in [
            // 20,000 rounds: of a CPU at 2 GHz, on a busy host, and interpreted on the host on which
            // this was found.
            (measured(10_000), true, Acceleration::Kvm),
            (measured(900_000), true, Acceleration::Kvm),
            (measured(36_000_000), true, tcg(NoKvm::Slow)),
            (measured(10_000), false, tcg(NoKvm::Denied)),
            (measured(36_000_000), false, tcg(NoKvm::Slow)),
            (KvmSpeed::Unanswered, true, tcg(NoKvm::Slow)),
            (KvmSpeed::Absent, true, tcg(NoKvm::Absent)),
            (KvmSpeed::Denied, true, tcg(NoKvm::Denied)),
            (
                KvmSpeed::Failed { why: "x".into() },
                true,
                tcg(NoKvm::Failed),
            ),
        ] {
            assert_eq!(decide(&speed, open), wanted, "{speed}");
        }
    }

    #[test]
    fn an_agent_of_root_needs_a_device_that_is_open_to_everybody() {
        assert!(is_open_to_agents(false, 0o660));
        assert!(is_open_to_agents(true, 0o20_666));
        assert!(!is_open_to_agents(true, 0o20_660));
        assert!(!is_open_to_agents(true, 0o20_662));
    }

    #[test]
    fn a_measurement_counts_until_the_next_boot_and_from_this_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        assert_eq!(known(place), None, "nothing was measured");
        keep(place, &measured(7)).unwrap();
        assert_eq!(known(place), Some(measured(7)));
        let path = place.join(MEASURED);
        // Others can write it.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(known(place), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(known(place), Some(measured(7)));
        let before = BootSpeed {
            boot: "of another boot".into(),
            speed: measured(7),
        };
        fs::write(&path, serde_json::to_vec(&before).unwrap()).unwrap();
        assert_eq!(known(place), None);
        fs::write(&path, b"{").unwrap();
        assert_eq!(known(place), None);
    }
}
