//! The facts that give a number its meaning: the host, and when.

use ironcage_sys::rustix;
use serde::Serialize;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The host that numbers were seen on.
#[derive(Debug, Clone, Serialize)]
pub struct HostFacts {
    /// `uname -sr` and the machine.
    pub kernel: String,
    /// The processor's own name, where the kernel tells.
    pub processor: String,
    /// How many processors this process may use.
    pub cpus: usize,
    /// The load of the last minute when the bench began; other work on the machine makes
    /// every number larger.
    pub load: f64,
    /// When the bench began, UTC.
    pub date: String,
    pub privilege: String,
    /// The version of the program that is measured.
    pub ironcage: &'static str,
    /// Whether the program was built with optimisation; numbers of a debug build mean little.
    pub build: &'static str,
}

impl HostFacts {
    /// Looks at this host, now.
    pub fn now() -> HostFacts {
        let name = rustix::system::uname();
        let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        HostFacts {
            kernel: format!(
                "{} {} {}",
                part(name.sysname()),
                part(name.release()),
                part(name.machine())
            ),
            processor: processor().unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            load: load().unwrap_or(f64::NAN),
            date: utc(SystemTime::now()),
            privilege: privilege(),
            ironcage: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
        }
    }
}

impl fmt::Display for HostFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "host:    {}, {} x {}",
            self.kernel, self.cpus, self.processor
        )?;
        writeln!(
            f,
            "date:    {}, load {:.2} at the start",
            self.date, self.load
        )?;
        writeln!(f, "run as:  {}", self.privilege)?;
        write!(
            f,
            "program: ironcage {}, {} build",
            self.ironcage, self.build
        )?;
        if self.build == "debug" {
            write!(f, " (slow; its numbers are no measure)")?;
        }
        writeln!(f)
    }
}

fn privilege() -> String {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        "root".to_owned()
    } else {
        format!("an unprivileged user (uid {})", uid.as_raw())
    }
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (year, month, day) = civil_date(seconds / 86_400);
    let of_day = seconds % 86_400;
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Gregorian date of a day since 1970-01-01. Years are counted from March, so that the day
/// that comes and goes is the last of its year.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_hold_over_leap_years_and_centuries() {
        assert_eq!(civil_date(0), (1970, 1, 1));
        assert_eq!(civil_date(11_016), (2000, 2, 29));
        assert_eq!(civil_date(11_017), (2000, 3, 1));
        assert_eq!(civil_date(19_782), (2024, 2, 29));
        assert_eq!(civil_date(47_540), (2100, 2, 28));
        assert_eq!(civil_date(47_541), (2100, 3, 1));
    }

    #[test]
    fn time_of_day_is_utc() {
        let time = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(utc(time), "2023-11-14 22:13 UTC");
    }
}
