//! Asks the user's package managers for their registries, for the bundles that follow them.
//!
//! The tools run on the host, as the user, from the root directory. Files of the workspace (an
//! `.npmrc`, a `pip` in its `bin`) have no influence.

use crate::paths;
use ironcage_model::{HostRule, Ports};
use ironcage_plan::AskedHost;
use ironcage_policy::{Sourced, allowed, bundles};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const LONGEST_OUTPUT: u64 = 1 << 20;

pub(crate) struct UserDirectories<'a> {
    pub(crate) home: &'a Path,
    pub(crate) workspace: &'a Path,
}

/// The hosts of every bundle that follows a package manager.
pub(crate) fn hosts(wanted: &[Sourced<String>], dirs: &UserDirectories<'_>) -> Vec<AskedHost> {
    let mut hosts: Vec<AskedHost> = Vec::new();
    for bundle in wanted {
        if !bundles::find(&bundle.value).is_some_and(|bundle| bundle.asked) {
            continue;
        }
        let urls = match bundle.value.as_str() {
            "pip" => pip(dirs),
            "npm" => npm(dirs),
            "cargo" => cargo(dirs),
            "apt" => apt(dirs),
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

/// Name of a setting, and the URL that it holds.
type RegistryUrls = Vec<(String, String)>;

fn pip(dirs: &UserDirectories<'_>) -> RegistryUrls {
    let settings = ["pip3", "pip"]
        .iter()
        .find_map(|pip| ask(dirs, pip, &["config", "list"]))
        .unwrap_or_default();
    let mut urls: RegistryUrls = Vec::new();
    let mut replaced = false;
    for line in settings.lines() {
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let kind = key.rsplit('.').next().unwrap_or_default();
        if matches!(kind, "index-url" | "extra-index-url" | "find-links") {
            replaced |= kind == "index-url";
            let value = value.trim_matches(['\'', '"']).replace("\\n", " ");
            urls.extend(
                value
                    .split_whitespace()
                    .map(|url| (format!("pip's {key}"), url.to_owned())),
            );
        }
    }
    if !replaced {
        // The default index is only in its source.
        let program = "from pip._internal.models.index import PyPI as p\n\
                       print(p.simple_url)\nprint('https://' + p.file_storage_domain)";
        let own = ask(dirs, "python3", &["-I", "-c", program]).unwrap_or_default();
        urls.extend(lines(&own, "pip itself"));
    }
    urls
}

fn npm(dirs: &UserDirectories<'_>) -> RegistryUrls {
    let text = ask(dirs, "npm", &["config", "list", "--json"]).unwrap_or_default();
    let Ok(serde_json::Value::Object(settings)) = serde_json::from_str(&text) else {
        return RegistryUrls::new();
    };
    settings
        .into_iter()
        .filter(|(key, _)| key == "registry" || key.ends_with(":registry"))
        .filter_map(|(key, value)| Some((format!("npm's {key}"), value.as_str()?.to_owned())))
        .collect()
}

fn cargo(dirs: &UserDirectories<'_>) -> RegistryUrls {
    let own = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && !path.starts_with(dirs.workspace))
        .unwrap_or_else(|| dirs.home.join(".cargo"));
    let mut urls: RegistryUrls = Vec::new();
    for name in ["config.toml", "config"] {
        let text = paths::text(&own.join(name)).unwrap_or_default();
        if let Ok(table) = text.parse::<toml::Table>() {
            for (section, key) in [("source", "registry"), ("registries", "index")] {
                let entries = table.get(section).and_then(toml::Value::as_table);
                for (name, entry) in entries.into_iter().flatten() {
                    if let Some(url) = entry.get(key).and_then(toml::Value::as_str) {
                        urls.push((format!("cargo's {section}.{name}.{key}"), url.to_owned()));
                    }
                }
            }
        }
    }
    // Registries that it has used, and their download hosts.
    let used = std::fs::read_dir(own.join("registry/index"));
    for entry in used.into_iter().flatten().flatten().take(64) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((host, _)) = name.rsplit_once('-') {
            let said_by = "a registry that cargo has used".to_owned();
            urls.push((said_by, format!("https://{host}")));
        }
        let text = paths::text(&entry.path().join("config.json")).unwrap_or_default();
        let settings: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        for key in ["dl", "api"] {
            if let Some(url) = settings.get(key).and_then(|value| value.as_str()) {
                urls.push((format!("a registry's {key}"), url.to_owned()));
            }
        }
    }
    urls
}

fn apt(dirs: &UserDirectories<'_>) -> RegistryUrls {
    let text = ask(dirs, "apt-get", &["indextargets", "--format", "$(SITE)"]);
    lines(&text.unwrap_or_default(), "apt's sources")
}

fn lines(text: &str, said_by: &str) -> RegistryUrls {
    text.lines()
        .map(|line| (said_by.to_owned(), line.trim().to_owned()))
        .collect()
}

/// The output of a tool, if it exists, succeeds and is fast enough.
fn ask(dirs: &UserDirectories<'_>, tool: &str, arguments: &[&str]) -> Option<String> {
    let search = std::env::var_os("PATH")?;
    let program = std::env::split_paths(&search)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(tool))
        .find(|path| {
            let real = std::fs::canonicalize(path);
            real.is_ok_and(|real| real.is_file() && !real.starts_with(dirs.workspace))
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
    // Read to the end: a full pipe would block the tool forever.
    let mut bytes = Vec::new();
    let begun = Instant::now();
    let pipe = std::os::fd::AsFd::as_fd(&output)
        .try_clone_to_owned()
        .ok()?;
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() || bytes.len() as u64 > LONGEST_OUTPUT || !readable(&pipe, left) {
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

/// The host and port of a URL.
fn host_of(url: &str) -> Option<HostRule> {
    let url = url.strip_prefix("sparse+").unwrap_or(url);
    let (scheme, rest) = url.split_once("://")?;
    let port = match scheme.to_ascii_lowercase().as_str() {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    // Without user and password.
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
