//! Limits of the specification as the files and texts of both versions of cgroups.

use crate::spec::{DeviceRule, Resources, Throttle};

/// What is written to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    /// Of version 1.
    pub(super) controller: &'static str,
    pub(super) file: String,
    pub(super) text: String,
    /// Not every kernel has the file.
    pub(super) optional: bool,
    /// Files that are written where this one is refused.
    pub(super) instead: Option<Vec<(&'static str, String)>>,
}

/// Devices that every container has; reading and writing these reaches nothing of the host.
const USUAL: [&str; 8] = [
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

fn value(controller: &'static str, file: &str, text: impl ToString) -> Value {
    Value {
        controller,
        file: file.to_owned(),
        text: text.to_string(),
        optional: false,
        instead: None,
    }
}

/// No limit, in the words of version 2, is zero or less in the specification.
fn or_max(number: i64) -> String {
    match number {
        ..=0 => "max".into(),
        number => number.to_string(),
    }
}

fn device(rule: &DeviceRule) -> Value {
    let file = match rule.allow {
        true => "devices.allow",
        false => "devices.deny",
    };
    let number = |number: Option<i64>| match number {
        Some(number) if number >= 0 => number.to_string(),
        _ => "*".into(),
    };
    let kind = match rule.kind.as_str() {
        "" => "a",
        "u" => "c",
        kind => kind,
    };
    let text = match kind {
        "a" => "a".into(),
        kind => {
            let (major, minor) = (number(rule.major), number(rule.minor));
            let access = match rule.access.as_str() {
                "" => "rwm",
                access => access,
            };
            format!("{kind} {major}:{minor} {access}")
        }
    };
    value("devices", file, text)
}

/// The order counts: what bounds a later value comes first.
pub(super) fn of(resources: &Resources, unified: bool, new: bool) -> Vec<Value> {
    let mut values = match unified {
        true => second(resources),
        false => first(resources),
    };
    if new && !unified {
        values.push(value("devices", "devices.deny", "a"));
        let usual = USUAL.iter();
        values.extend(usual.map(|rule| value("devices", "devices.allow", rule)));
        values.extend(resources.devices.iter().map(device));
        // The engine's list begins with "deny all", which takes these away again.
        let usual = USUAL.iter();
        values.extend(usual.map(|rule| value("devices", "devices.allow", rule)));
    }
    values
}

fn first(resources: &Resources) -> Vec<Value> {
    let mut values = Vec::new();
    let memory = &resources.memory;
    let unlimited = |bytes: i64| if bytes <= 0 { -1 } else { bytes };
    let limit = memory.limit.filter(|bytes| *bytes != 0).map(unlimited);
    let swap = memory.swap.filter(|bytes| *bytes != 0).map(unlimited);
    let both = "memory.memsw.limit_in_bytes";
    if let Some(limit) = limit {
        let mut written = value("memory", "memory.limit_in_bytes", limit);
        // Above what memory and swap have together it is refused: that is raised first.
        written.instead = swap.map(|swap| {
            vec![
                (both, swap.to_string()),
                ("memory.limit_in_bytes", limit.to_string()),
            ]
        });
        values.push(written);
    }
    // A kernel without swap accounting has no such file, and a host without swap needs none.
    if let Some(swap) = swap {
        let mut written = value("memory", both, swap);
        written.optional = true;
        values.push(written);
    }
    if let Some(bytes) = memory.reservation.filter(|bytes| *bytes != 0) {
        values.push(value(
            "memory",
            "memory.soft_limit_in_bytes",
            unlimited(bytes),
        ));
    }
    if let Some(swappiness) = memory.swappiness {
        values.push(value("memory", "memory.swappiness", swappiness));
    }
    if memory.disable_oom_killer == Some(true) {
        values.push(value("memory", "memory.oom_control", 1));
    }
    let cpu = &resources.cpu;
    if let Some(shares) = cpu.shares.filter(|shares| *shares != 0) {
        values.push(value("cpu", "cpu.shares", shares));
    }
    if let Some(period) = cpu.period.filter(|period| *period != 0) {
        values.push(value("cpu", "cpu.cfs_period_us", period));
    }
    if let Some(quota) = cpu.quota.filter(|quota| *quota != 0) {
        values.push(value("cpu", "cpu.cfs_quota_us", quota));
    }
    if let Some(burst) = cpu.burst {
        values.push(value("cpu", "cpu.cfs_burst_us", burst));
    }
    if let Some(idle) = cpu.idle {
        values.push(value("cpu", "cpu.idle", idle));
    }
    if let Some(period) = cpu.realtime_period.filter(|period| *period != 0) {
        values.push(value("cpu", "cpu.rt_period_us", period));
    }
    if let Some(runtime) = cpu.realtime_runtime.filter(|runtime| *runtime != 0) {
        values.push(value("cpu", "cpu.rt_runtime_us", runtime));
    }
    for (file, text) in [("cpuset.cpus", &cpu.cpus), ("cpuset.mems", &cpu.mems)] {
        if !text.is_empty() {
            values.push(value("cpuset", file, text));
        }
    }
    if let Some(limit) = resources.pids.limit.filter(|limit| *limit != 0) {
        values.push(value("pids", "pids.max", or_max(limit)));
    }
    let block = &resources.block_io;
    if let Some(weight) = block.weight.filter(|weight| *weight != 0) {
        // Which of the two there is depends on the scheduler of the kernel.
        let mut written = value("blkio", "blkio.bfq.weight", weight);
        written.instead = Some(vec![("blkio.weight", weight.to_string())]);
        values.push(written);
    }
    for (file, list) in [
        (
            "blkio.throttle.read_bps_device",
            &block.throttle_read_bps_device,
        ),
        (
            "blkio.throttle.write_bps_device",
            &block.throttle_write_bps_device,
        ),
        (
            "blkio.throttle.read_iops_device",
            &block.throttle_read_iops_device,
        ),
        (
            "blkio.throttle.write_iops_device",
            &block.throttle_write_iops_device,
        ),
    ] {
        for Throttle { major, minor, rate } in list {
            values.push(value("blkio", file, format!("{major}:{minor} {rate}")));
        }
    }
    for huge in &resources.hugepage_limits {
        let file = format!("hugetlb.{}.limit_in_bytes", page_size(&huge.page_size));
        values.push(value("hugetlb", &file, huge.limit));
    }
    if let Some(class) = resources.network.class {
        values.push(value("net_cls", "net_cls.classid", class));
    }
    values
}

/// A part of a file's name: nothing else may come of it.
fn page_size(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).collect()
}

fn second(resources: &Resources) -> Vec<Value> {
    let mut values = Vec::new();
    let memory = &resources.memory;
    if let Some(bytes) = memory.limit.filter(|bytes| *bytes != 0) {
        values.push(value("memory", "memory.max", or_max(bytes)));
    }
    // The specification counts memory and swap together, version 2 swap alone.
    match (memory.limit, memory.swap) {
        (_, Some(-1)) => values.push(value("memory", "memory.swap.max", "max")),
        (Some(limit), Some(swap)) if swap != 0 && limit > 0 => {
            let mut written = value("memory", "memory.swap.max", (swap - limit).max(0));
            written.optional = true;
            values.push(written);
        }
        _ => {}
    }
    if let Some(bytes) = memory.reservation.filter(|bytes| *bytes != 0) {
        values.push(value("memory", "memory.low", or_max(bytes)));
    }
    let cpu = &resources.cpu;
    if let Some(shares) = cpu.shares.filter(|shares| *shares != 0) {
        // From 2..=262144 to 1..=10000, as every runtime maps them.
        let weight = 1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
        values.push(value("cpu", "cpu.weight", weight));
    }
    if cpu.quota.is_some() || cpu.period.is_some() {
        let quota = or_max(cpu.quota.unwrap_or(0));
        let text = match cpu.period.filter(|period| *period != 0) {
            Some(period) => format!("{quota} {period}"),
            None => quota,
        };
        values.push(value("cpu", "cpu.max", text));
    }
    if let Some(burst) = cpu.burst {
        values.push(value("cpu", "cpu.max.burst", burst));
    }
    if let Some(idle) = cpu.idle {
        values.push(value("cpu", "cpu.idle", idle));
    }
    for (file, text) in [("cpuset.cpus", &cpu.cpus), ("cpuset.mems", &cpu.mems)] {
        if !text.is_empty() {
            values.push(value("cpuset", file, text));
        }
    }
    if let Some(limit) = resources.pids.limit.filter(|limit| *limit != 0) {
        values.push(value("pids", "pids.max", or_max(limit)));
    }
    let block = &resources.block_io;
    if let Some(weight) = block.weight.filter(|weight| *weight != 0) {
        let mut written = value("io", "io.bfq.weight", weight);
        let all = 1 + (u64::from(weight).clamp(10, 1000) - 10) * 9999 / 990;
        written.instead = Some(vec![("io.weight", all.to_string())]);
        values.push(written);
    }
    for (word, list) in [
        ("rbps", &block.throttle_read_bps_device),
        ("wbps", &block.throttle_write_bps_device),
        ("riops", &block.throttle_read_iops_device),
        ("wiops", &block.throttle_write_iops_device),
    ] {
        for Throttle { major, minor, rate } in list {
            values.push(value(
                "io",
                "io.max",
                format!("{major}:{minor} {word}={rate}"),
            ));
        }
    }
    for huge in &resources.hugepage_limits {
        let file = format!("hugetlb.{}.max", page_size(&huge.page_size));
        values.push(value("hugetlb", &file, huge.limit));
    }
    for (file, text) in &resources.unified {
        // A file of the group, and no other.
        let file: String = file.chars().filter(|letter| *letter != '/').collect();
        values.push(value("", &file, text));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Resources {
        crate::spec::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn shares_are_mapped_and_no_limit_is_max() {
        let made = second(&parsed(
            r#"{"cpu":{"shares":1024},"pids":{"limit":-1},"memory":{"limit":-1}}"#,
        ));
        let texts: Vec<(&str, &str)> = made
            .iter()
            .map(|value| (value.file.as_str(), value.text.as_str()))
            .collect();
        assert_eq!(
            texts,
            [
                ("memory.max", "max"),
                ("cpu.weight", "39"),
                ("pids.max", "max")
            ]
        );
    }

    #[test]
    fn devices_are_denied_first_and_what_the_engine_allows_follows() {
        let made = of(
            &parsed(
                r#"{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":229,"access":"rw"}]}"#,
            ),
            false,
            true,
        );
        let first = made.first().unwrap();
        assert_eq!(
            (first.file.as_str(), first.text.as_str()),
            ("devices.deny", "a")
        );
        assert!(made.iter().any(|value| value.text == "c 10:229 rw"));
        // An update has no device rules: these would take away what runs.
        assert!(of(&parsed("{}"), false, false).is_empty());
    }
}
