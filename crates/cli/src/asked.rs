//! Asks the user's package tools where they fetch from, for the bundles that follow them.
//!
//! The tools run outside of any cage, as the user, from the root directory: what lies in the
//! workspace (an `.npmrc`, a `pip` in its `bin`) is not asked.

use ironcage_model::{HostRule, Ports};
use ironcage_plan::AskedHost;
use ironcage_policy::{Sourced, allowed, bundles};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a tool may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest answer.
const LONGEST: u64 = 1 << 20;

/// Where the user's things are.
pub(crate) struct Places<'a> {
    pub(crate) home: &'a Path,
    pub(crate) workspace: &'a Path,
}

/// The hosts of every bundle that follows a tool.
pub(crate) fn hosts(wanted: &[Sourced<String>], places: &Places<'_>) -> Vec<AskedHost> {
    let mut hosts: Vec<AskedHost> = Vec::new();
    for bundle in wanted {
        if !bundles::find(&bundle.value).is_some_and(|bundle| bundle.asked) {
            continue;
        }
        let urls = match bundle.value.as_str() {
            "pip" => pip(places),
            "npm" => npm(places),
            "cargo" => cargo(places),
            "apt" => apt(places),
            _ => Vec::new(),
        };
        for (said_by, url) in urls {
            let Some(rule) = host_of(&url) else { continue };
            let known = hosts
                .iter()
                .any(|host| host.rule == rule && host.bundle == bundle.value);
            if !known {
                hosts.push(AskedHost {
                    bundle: bundle.value.clone(),
                    rule,
                    said_by,
                });
            }
        }
    }
    hosts
}

/// Which setting, and the address that it holds.
type Said = Vec<(String, String)>;

fn pip(places: &Places<'_>) -> Said {
    let settings = ["pip3", "pip"]
        .iter()
        .find_map(|pip| ask(places, pip, &["config", "list"]))
        .unwrap_or_default();
    let mut said: Said = Vec::new();
    let mut replaced = false;
    for line in settings.lines() {
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let kind = key.rsplit('.').next().unwrap_or_default();
        if matches!(kind, "index-url" | "extra-index-url" | "find-links") {
            replaced |= kind == "index-url";
            let value = value.trim_matches(['\'', '"']).replace("\\n", " ");
            said.extend(
                value
                    .split_whitespace()
                    .map(|url| (format!("pip's {key}"), url.to_owned())),
            );
        }
    }
    if !replaced {
        // What it uses where nothing is set is in it, and nowhere else.
        let program = "from pip._internal.models.index import PyPI as p\n\
                       print(p.simple_url)\nprint('https://' + p.file_storage_domain)";
        let own = ask(places, "python3", &["-I", "-c", program]).unwrap_or_default();
        said.extend(lines(&own, "pip itself"));
    }
    said
}

fn npm(places: &Places<'_>) -> Said {
    let text = ask(places, "npm", &["config", "list", "--json"]).unwrap_or_default();
    let Ok(serde_json::Value::Object(settings)) = serde_json::from_str(&text) else {
        return Said::new();
    };
    settings
        .into_iter()
        .filter(|(key, _)| key == "registry" || key.ends_with(":registry"))
        .filter_map(|(key, value)| Some((format!("npm's {key}"), value.as_str()?.to_owned())))
        .collect()
}

fn cargo(places: &Places<'_>) -> Said {
    let own = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && !path.starts_with(places.workspace))
        .unwrap_or_else(|| places.home.join(".cargo"));
    let mut said: Said = Vec::new();
    for name in ["config.toml", "config"] {
        let text = read(&own.join(name)).unwrap_or_default();
        if let Ok(table) = text.parse::<toml::Table>() {
            for (section, key) in [("source", "registry"), ("registries", "index")] {
                let entries = table.get(section).and_then(toml::Value::as_table);
                for (name, entry) in entries.into_iter().flatten() {
                    if let Some(url) = entry.get(key).and_then(toml::Value::as_str) {
                        said.push((format!("cargo's {section}.{name}.{key}"), url.to_owned()));
                    }
                }
            }
        }
    }
    // Registries that it has used, and where they say that crates lie.
    let used = std::fs::read_dir(own.join("registry/index"));
    for entry in used.into_iter().flatten().flatten().take(64) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((host, _)) = name.rsplit_once('-') {
            let said_by = "a registry that cargo has used".to_owned();
            said.push((said_by, format!("https://{host}")));
        }
        let text = read(&entry.path().join("config.json")).unwrap_or_default();
        let settings: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        for key in ["dl", "api"] {
            if let Some(url) = settings.get(key).and_then(|value| value.as_str()) {
                said.push((format!("a registry's {key}"), url.to_owned()));
            }
        }
    }
    said
}

fn apt(places: &Places<'_>) -> Said {
    let text = ask(places, "apt-get", &["indextargets", "--format", "$(SITE)"]);
    lines(&text.unwrap_or_default(), "apt's sources")
}

fn lines(text: &str, said_by: &str) -> Said {
    text.lines()
        .map(|line| (said_by.to_owned(), line.trim().to_owned()))
        .collect()
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// What a tool prints, where it is there and ends well in time.
fn ask(places: &Places<'_>, tool: &str, arguments: &[&str]) -> Option<String> {
    let search = std::env::var_os("PATH")?;
    let program = std::env::split_paths(&search)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(tool))
        .find(|path| {
            let real = std::fs::canonicalize(path);
            real.is_ok_and(|real| real.is_file() && !real.starts_with(places.workspace))
        })?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut output = child.stdout.take()?;
    // Read to the end here: a tool that prints much would wait for us for ever.
    let mut bytes = Vec::new();
    let begun = Instant::now();
    let pipe = std::os::fd::AsFd::as_fd(&output)
        .try_clone_to_owned()
        .ok()?;
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() || bytes.len() as u64 > LONGEST || !readable(&pipe, left) {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        let mut part = [0; 8192];
        match output.read(&mut part) {
            Ok(0) => break,
            Ok(length) => bytes.extend(part.get(..length).unwrap_or_default()),
            Err(_) => break,
        }
    }
    let ended = child.wait().ok()?;
    ended.success().then(|| String::from_utf8(bytes).ok())?
}

fn readable(pipe: &std::os::fd::OwnedFd, within: Duration) -> bool {
    use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Ok(timeout) = Timespec::try_from(within) else {
        return false;
    };
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(1))
}

/// The host and port of an address, and nothing else of it.
fn host_of(url: &str) -> Option<HostRule> {
    let url = url.strip_prefix("sparse+").unwrap_or(url);
    let (scheme, rest) = url.split_once("://")?;
    let port = match scheme.to_ascii_lowercase().as_str() {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    // A user and a password may stand before it.
    let host = authority.rsplit('@').next()?;
    let mut rule = allowed(host).ok()?;
    if rule.ports == Ports::Web {
        rule.ports = Ports::One(port);
    }
    Some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_found_and_nothing_else() {
        let shown = |url: &str| host_of(url).map(|rule| rule.to_string());
        assert_eq!(
            shown("https://me:secret@Index.Example.com/simple/").as_deref(),
            Some("index.example.com:443")
        );
        assert_eq!(
            shown("sparse+http://mirror.example:8080/x").as_deref(),
            Some("mirror.example:8080")
        );
        assert_eq!(
            shown("http://[2001:db8::1]:81/").as_deref(),
            Some("[2001:db8::1]:81")
        );
        assert_eq!(shown("file:///srv/index"), None);
        assert_eq!(shown("*://x"), None);
        assert_eq!(shown("https://*/"), None);
    }
}
