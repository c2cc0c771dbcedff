//! Where the remotes of the workspace's repository lie, by its settings as the host has them.
//!
//! They are read as text and never by git: nothing is followed or started. Their content may have
//! been written by an attacker, so it names what is asked for, and grants nothing.

use ironcage_files::Links;
use ironcage_model::HostRule;
use std::path::{Component, Path, PathBuf};

/// Longest file of settings that is read.
const LONGEST: u64 = 64 * 1024;

/// Where a remote lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remote {
    /// On another host.
    Host(HostRule),
    Path(PathBuf),
}

/// Where a remote lies; `@upstream` is taken for `origin`.
pub(super) fn of(workspace: &Path, name: &str) -> Vec<Remote> {
    let name = match name {
        "@upstream" => "origin",
        name => name,
    };
    let config = workspace.join(".git/config");
    match ironcage_files::read(&config, LONGEST, Links::Refuse) {
        Ok(text) => find(&String::from_utf8_lossy(&text), workspace, name),
        Err(_) => Vec::new(),
    }
}

/// The hosts of a remote; `@upstream` is taken for `origin`.
pub fn hosts(workspace: &Path, name: &str) -> Vec<HostRule> {
    let remotes = of(workspace, name).into_iter();
    remotes
        .filter_map(|remote| match remote {
            Remote::Host(rule) => Some(rule),
            Remote::Path(_) => None,
        })
        .collect()
}

fn find(text: &str, workspace: &Path, name: &str) -> Vec<Remote> {
    let section = format!("[remote \"{name}\"]");
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == section;
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else {
            continue;
        };
        if !matches!(key.trim().to_ascii_lowercase().as_str(), "url" | "pushurl") {
            continue;
        }
        let value = value.trim().trim_matches('"');
        if let Some(remote) = place(value, workspace).filter(|remote| !found.contains(remote)) {
            found.push(remote);
        }
    }
    found
}

/// Where the address of a repository leads.
fn place(text: &str, workspace: &Path) -> Option<Remote> {
    let path = |text: &str| Some(Remote::Path(plain(&workspace.join(text))));
    let Some((scheme, rest)) = text.split_once("://") else {
        // `host:path` unless there is a slash before the colon.
        return match text.split_once(':') {
            // A helper of git's, such as `ext::`, which runs a command.
            Some((_, rest)) if rest.starts_with(':') => None,
            Some((host, _)) if !host.contains('/') && !host.is_empty() => rule(host, 22),
            _ => path(text),
        };
    };
    let port = match scheme {
        "https" => 443,
        "http" => 80,
        "ssh" | "git+ssh" | "ssh+git" => 22,
        "git" => 9418,
        "file" => return path(rest),
        _ => return None,
    };
    rule(rest.split('/').next().unwrap_or_default(), port)
}

/// A path without steps back, from its text alone.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The rule for a host, with a user before it and a port after it perhaps.
fn rule(text: &str, port: u16) -> Option<Remote> {
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let host = host.to_ascii_lowercase();
    let ported = match host.rsplit_once(':') {
        Some((name, digits)) if !name.is_empty() && digits.parse::<u16>().is_ok() => host.clone(),
        _ => format!("{host}:{port}"),
    };
    ported.parse().ok().map(Remote::Host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(url: &str) -> Vec<Remote> {
        let text = format!(
            "[core]\n\turl = x\n[remote \"origin\"]\n\turl = {url}\n\tfetch = +refs\n[remote \"other\"]\n\turl = https://evil.test/\n"
        );
        find(&text, Path::new("/work"), "origin")
    }

    fn host(text: &str) -> Vec<Remote> {
        vec![Remote::Host(text.parse().unwrap())]
    }

    #[test]
    fn addresses_of_every_shape_lead_to_their_host_or_path() {
        assert_eq!(found("https://git.test/a/b.git"), host("git.test:443"));
        assert_eq!(found("https://user@git.test:8443/a"), host("git.test:8443"));
        assert_eq!(found("git@git.test:a/b.git"), host("git.test:22"));
        assert_eq!(found("ssh://git@git.test:2222/a"), host("git.test:2222"));
        let path = |path: &str| vec![Remote::Path(path.into())];
        assert_eq!(found("/srv/a.git"), path("/srv/a.git"));
        assert_eq!(found("file:///srv/a.git"), path("/srv/a.git"));
        assert_eq!(found("../a.git"), path("/a.git"));
        assert_eq!(found("ext::sh -c x"), Vec::new());
        assert!(find("url = x", Path::new("/"), "origin").is_empty());
    }
}
