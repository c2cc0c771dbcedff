//! Asks the user's package managers for their registries, for the bundles that follow them: the hosts
//! are allowed, and the settings go into the cage, without user and password.
//!
//! The tools run on the host, as the user, from the root directory. Files of the workspace (an
//! `.npmrc`, a `pip` in its `bin`) have no influence.

mod cargo;
mod go;
mod maven;
mod node;
mod python;

use ironcage_model::{HostRule, Ports};
use ironcage_plan::{AskedHost, ToolSettings};
use ironcage_policy::{Sourced, allowed, bundles};
use ironcage_sys::process::signal_group;
use ironcage_sys::rustix::process::Signal;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const LONGEST_OUTPUT: u64 = 1 << 20;

pub(crate) struct UserDirectories<'a> {
    pub(crate) home: &'a Path,
    pub(crate) workspace: &'a Path,
}

/// Answers of the user's package managers.
#[derive(Debug, Clone, Default)]
pub(crate) struct PackageTools {
    pub(crate) hosts: Vec<AskedHost>,
    pub(crate) settings: Vec<ToolSettings>,
}

/// Asks the package manager of every bundle that follows one.
pub(crate) fn ask_all(wanted: &[Sourced<String>], dirs: &UserDirectories<'_>) -> PackageTools {
    let mut found = PackageTools::default();
    for bundle in wanted {
        if !bundles::find(&bundle.value).is_some_and(|bundle| bundle.asked) {
            continue;
        }
        let name = &bundle.value;
        let mut said = match name.as_str() {
            "pip" => python::pip(dirs),
            "uv" => python::uv(dirs),
            "npm" => node::npm(dirs),
            "cargo" => cargo::cargo(dirs),
            "go" => go::go(dirs),
            "maven" => maven::maven(dirs),
            "apt" => apt(dirs),
            _ => ToolAnswer::default(),
        };
        for (said_by, url) in std::mem::take(&mut said.urls) {
            let Some(rule) = host_of(&url) else { continue };
            let mut known = found.hosts.iter();
            if !known.any(|host| host.rule == rule && host.bundle == *name) {
                found.hosts.push(AskedHost {
                    bundle: name.clone(),
                    rule,
                    said_by,
                });
            }
        }
        found.settings.push(ToolSettings {
            bundle: name.clone(),
            variables: said.variables,
            files: said.files,
            notes: said.notes,
        });
    }
    found
}

/// The answer of one tool.
#[derive(Debug, Default)]
struct ToolAnswer {
    /// Name of a setting, and the URL that it holds.
    urls: Vec<(String, String)>,
    /// Variables by which the tool in the cage has the same settings.
    variables: Vec<(String, String)>,
    /// Files for the same.
    files: Vec<(PathBuf, String)>,
    notes: Vec<String>,
}

impl ToolAnswer {
    /// Takes a URL of a setting: its host is allowed. Returns it without user and password.
    fn take(&mut self, setting: &str, url: &str) -> String {
        let (bare, had_credentials) = without_credentials(url);
        if had_credentials {
            let host = host_of(&bare)
                .map(|rule| rule.to_string())
                .unwrap_or_default();
            self.notes.push(format!(
                "{setting}: the user and password in it are not passed; `--secret NAME@{host}` lets the egress proxy add a secret for that host"
            ));
        }
        self.urls.push((setting.to_owned(), bare.clone()));
        bare
    }

    fn set(&mut self, variable: &str, value: impl Into<String>) {
        self.variables.push((variable.to_owned(), value.into()));
    }
}

/// A URL without user and password, and whether it had any.
fn without_credentials(url: &str) -> (String, bool) {
    let Some((scheme, rest)) = url.split_once("://") else {
        return (url.to_owned(), false);
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => (format!("{scheme}://{host}{path}"), true),
        None => (url.to_owned(), false),
    }
}

fn apt(dirs: &UserDirectories<'_>) -> ToolAnswer {
    let text = ask(dirs, "apt-get", &["indextargets", "--format", "$(SITE)"]);
    let mut answer = ToolAnswer::default();
    for line in text.unwrap_or_default().lines() {
        answer.take("apt's sources", line.trim());
    }
    answer
}

/// Where a tool is that the user would run: on PATH, and not in the workspace.
fn tool_path(workspace: &Path, tool: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(tool))
        .find(|path| {
            let real = std::fs::canonicalize(path);
            real.is_ok_and(|real| real.is_file() && !real.starts_with(workspace))
        })
}

/// The caller's variable, where it says something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .filter(|value| !value.trim().is_empty())
}

/// The output of a tool, if it exists, succeeds and is fast enough.
fn ask(dirs: &UserDirectories<'_>, tool: &str, arguments: &[&str]) -> Option<String> {
    String::from_utf8(output_of(dirs.workspace, tool, arguments)?).ok()
}

/// The same as bytes. No tool in the workspace is run: an agent may have written it.
pub(crate) fn output_of(workspace: &Path, tool: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let program = tool_path(workspace, tool)?;
    match said(&program, arguments, PATIENCE) {
        ToolOutput::Said(bytes) => Some(bytes),
        ToolOutput::Failed => None,
        ToolOutput::Silent => {
            let (seconds, arguments) = (PATIENCE.as_secs(), arguments.join(" "));
            anstream::eprintln!(
                "ironcage: `{tool} {arguments}` did not answer within {seconds} s: its settings are not used"
            );
            None
        }
    }
}

/// The outcome of asking a tool.
#[derive(Debug, PartialEq, Eq)]
enum ToolOutput {
    Said(Vec<u8>),
    Failed,
    Silent,
}

fn said(program: &Path, arguments: &[&str], patience: Duration) -> ToolOutput {
    let started = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // It may be a script that starts the tool: both end together.
        .process_group(0)
        .spawn();
    let Ok(mut child) = started else {
        return ToolOutput::Failed;
    };
    let output = child.stdout.take();
    let said = output.map_or(ToolOutput::Failed, |output| read_all(output, patience));
    if !matches!(said, ToolOutput::Said(_)) {
        end(&mut child);
        return said;
    }
    match child.wait() {
        Ok(status) if status.success() => said,
        _ => ToolOutput::Failed,
    }
}

fn read_all(mut output: ChildStdout, patience: Duration) -> ToolOutput {
    // Read to the end: a full pipe would block the tool forever.
    let mut bytes = Vec::new();
    let begun = Instant::now();
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        if bytes.len() as u64 > LONGEST_OUTPUT {
            return ToolOutput::Failed;
        }
        if left.is_zero() || !readable(&output, left) {
            return ToolOutput::Silent;
        }
        let mut part = [0; 8192];
        match output.read(&mut part) {
            Ok(0) => return ToolOutput::Said(bytes),
            Ok(length) => bytes.extend(part.get(..length).unwrap_or_default()),
            Err(_) => return ToolOutput::Failed,
        }
    }
}

/// Ends a tool, and whatever it has started.
fn end(child: &mut Child) {
    // They may have ended by themselves.
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = signal_group(group, Signal::KILL.as_raw());
    }
    let _ = child.wait();
}

fn readable(pipe: &ChildStdout, within: Duration) -> bool {
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
    fn a_tool_that_says_nothing_is_ended_with_whatever_it_started() {
        let note = std::env::temp_dir().join(format!("started-{}", std::process::id()));
        let script = format!("sleep 600 & echo $! > {}; wait", note.display());
        let ask = |script: &str, patience| said(Path::new("/bin/sh"), &["-c", script], patience);
        assert_eq!(ask(&script, Duration::from_secs(2)), ToolOutput::Silent);
        let started = std::fs::read_to_string(&note).unwrap();
        std::fs::remove_file(&note).unwrap();
        let status = format!("/proc/{}/stat", started.trim());
        let lives = || std::fs::read_to_string(&status).is_ok_and(|text| !text.contains(") Z "));
        let begun = Instant::now();
        while lives() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!lives(), "it lives on");
        assert_eq!(ask("echo x", PATIENCE), ToolOutput::Said(b"x\n".into()));
        assert_eq!(ask("echo x; exit 1", PATIENCE), ToolOutput::Failed);
    }

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

    #[test]
    fn user_and_password_stay_outside_and_that_is_said() {
        let mut answer = ToolAnswer::default();
        let bare = answer.take(
            "pip's index-url",
            "https://ann:p@ss@index.example/simple/?x=@",
        );
        assert_eq!(bare, "https://index.example/simple/?x=@");
        assert!(answer.notes[0].contains("--secret NAME@index.example:443"));
        assert!(!answer.notes[0].contains("ann") && answer.urls[0].1 == bare);
        let plain = "sparse+https://index.example/a@b/";
        assert_eq!(answer.take("cargo's", plain), plain);
        assert_eq!(answer.notes.len(), 1);
    }
}
