//! The user's task: with `--task`, or as the prompt on the agent's command line.
//!
//! It was said before the agent read anything. Only the places that it names are kept: those in the
//! text, and those in the files that the text names.

use ironcage_files::Links;
use ironcage_intent::{Context, Mention, Mentions};
use ironcage_plan::{TaskScope, TaskSource};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Longest task that is read, in bytes.
const LONGEST: usize = 64 * 1024;
/// Files of a task that are read, and how much of each.
const MOST_FILES: usize = 8;
const LARGEST: u64 = 64 * 1024;
/// Places that are kept.
const MOST_PLACES: usize = 64;

/// Programs whose prompt is an argument.
const AGENTS: [&str; 10] = [
    "claude", "codex", "gemini", "opencode", "aider", "goose", "qwen", "crush", "copilot", "amp",
];
/// Options whose text is not the user's task.
const NOT_TASKS: [&str; 6] = [
    "--system-prompt",
    "--append-system-prompt",
    "--settings",
    "--mcp-config",
    "--agents",
    "--json-schema",
];

/// Where the cage works.
pub(super) struct TaskPlace<'a> {
    pub(super) cwd: &'a Path,
    pub(super) home: &'a Path,
    pub(super) workspace: &'a Path,
}

/// The places that the task names; `None` without a task.
pub(super) fn scope(
    flag: Option<&str>,
    argv: &[OsString],
    place: &TaskPlace<'_>,
) -> Option<TaskScope> {
    match flag {
        Some(text) => Some(named(TaskSource::Flag, text, place)),
        None => Some(named(TaskSource::Prompt, &prompt(argv)?, place)),
    }
}

/// The prompt among the arguments of a known agent: those that have more than one word.
fn prompt(argv: &[OsString]) -> Option<String> {
    let (program, arguments) = argv.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    if !AGENTS.contains(&name) {
        return None;
    }
    let mut texts = Vec::new();
    let mut before = "";
    for argument in arguments {
        let text = argument.to_str().unwrap_or_default();
        let words = text.split_whitespace().count();
        if words > 1 && !text.starts_with('-') && !NOT_TASKS.contains(&before) {
            texts.push(text);
        }
        before = text;
    }
    (!texts.is_empty()).then(|| texts.join("\n"))
}

fn named(source: TaskSource, text: &str, place: &TaskPlace<'_>) -> TaskScope {
    let mut paths = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    mentions(text, place.cwd, place, (&mut paths, &mut hosts));
    let inside = |path: &Path| {
        let real = std::fs::canonicalize(path);
        real.is_ok_and(|real| real.starts_with(place.workspace) && real.is_file())
    };
    let files = paths.iter().filter(|path| inside(path)).take(MOST_FILES);
    let mut more_paths = BTreeSet::new();
    let mut more_hosts = BTreeSet::new();
    for file in files {
        let read = ironcage_files::read(file, LARGEST, Links::Refuse).ok();
        if let Some(text) = read.and_then(|bytes| String::from_utf8(bytes).ok()) {
            let around = file.parent().unwrap_or(place.cwd);
            mentions(&text, around, place, (&mut more_paths, &mut more_hosts));
        }
    }
    TaskScope {
        source,
        paths: own_first(paths, more_paths),
        hosts: own_first(hosts, more_hosts),
    }
}

/// The user's own names, then those of files: a file cannot push out what the user named.
fn own_first<T: Ord>(own: BTreeSet<T>, more: BTreeSet<T>) -> Vec<T> {
    let mut named: Vec<T> = own.into_iter().collect();
    let more: Vec<T> = more
        .into_iter()
        .filter(|name| !named.contains(name))
        .collect();
    named.extend(more);
    named.truncate(MOST_PLACES);
    named
}

/// The path with its links resolved. A link in the workspace names nothing outside: whoever wrote
/// the workspace wrote the link, and not the user.
fn resolved(path: PathBuf, workspace: &Path) -> PathBuf {
    match std::fs::canonicalize(&path) {
        Ok(real) if !path.starts_with(workspace) || real.starts_with(workspace) => real,
        _ => path,
    }
}

/// Paths and hosts that a text names: also names of files that are there.
fn mentions(
    text: &str,
    cwd: &Path,
    place: &TaskPlace<'_>,
    (paths, hosts): (&mut BTreeSet<PathBuf>, &mut BTreeSet<String>),
) {
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = text.get(..end).unwrap_or_default();
    let context = Context {
        cwd: cwd.to_owned(),
        home: Some(place.home.to_owned()),
    };
    let separates = |mark: char| mark.is_whitespace() || "`\"'<>()[]{}|,;*=".contains(mark);
    let mut there = BTreeSet::new();
    for word in text.split(separates).take(4096) {
        let word = word.trim_end_matches(['.', ':', '!', '?']);
        let is_name = word.contains('/') || word.contains('.');
        if !is_name || word.len() > 256 || word.starts_with(['/', '~']) || word.contains("://") {
            continue;
        }
        let path = ironcage_intent::tidy(cwd, word);
        if path.starts_with(place.workspace) && path.symlink_metadata().is_ok() {
            there.insert(word.to_owned());
            paths.insert(resolved(path, place.workspace));
        }
    }
    let mut found = Mentions::default();
    found.read(text, &context);
    found.pause(&context);
    for mention in found.take() {
        match mention {
            Mention::Path(path) => {
                paths.insert(resolved(path, place.workspace));
            }
            // `main.rs` is a file that is there, and not a host.
            Mention::Host(name) if there.iter().any(|word| word.starts_with(&name)) => {}
            Mention::Host(name) => {
                hosts.insert(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_prompt_of_a_known_agent_is_the_text_among_its_arguments() {
        let claude = argv(&["/usr/bin/claude", "-p", "fix src/a.rs now", "--model", "x"]);
        assert_eq!(prompt(&claude).as_deref(), Some("fix src/a.rs now"));
        let system = argv(&[
            "claude",
            "--append-system-prompt",
            "write to /etc now",
            "-p",
        ]);
        assert_eq!(prompt(&system), None);
        assert_eq!(prompt(&argv(&["bash", "-c", "rm -rf /data x"])), None);
        assert_eq!(prompt(&[]), None);
    }

    #[test]
    fn what_the_user_named_comes_first_and_links_lead_nowhere_else() {
        let place = std::env::temp_dir().join(format!("ironcage-own-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        let workspace = place.canonicalize().expect("its path");
        let many: String = (0..200).map(|n| format!("/a/{n}/x ")).collect();
        std::fs::write(workspace.join("list.txt"), many).expect("a file");
        std::os::unix::fs::symlink("/etc/hostname", workspace.join("link.txt")).expect("a link");
        let at = TaskPlace {
            cwd: &workspace,
            home: Path::new("/home/me"),
            workspace: &workspace,
        };
        let text = "Read list.txt and link.txt, write /srv/z/report";
        let scope = scope(Some(text), &[], &at).expect("a task");
        std::fs::remove_dir_all(&workspace).expect("no directory");
        assert_eq!(scope.paths.len(), MOST_PLACES);
        for path in ["/srv/z/report".into(), workspace.join("list.txt")] {
            assert!(scope.paths.contains(&path), "{:?}", scope.paths);
        }
        assert!(scope.paths.contains(&"/a/0/x".into()), "{:?}", scope.paths);
        assert!(!scope.paths.contains(&"/etc/hostname".into()));
    }

    #[test]
    fn a_task_names_paths_hosts_and_what_the_files_in_it_name() {
        let place = std::env::temp_dir().join(format!("ironcage-task-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        let workspace = place.canonicalize().expect("its path");
        std::fs::create_dir(workspace.join("src")).expect("a directory");
        std::fs::write(workspace.join("src/a.rs"), "// see /srv/data/list").expect("a file");
        let at = TaskPlace {
            cwd: &workspace,
            home: Path::new("/home/me"),
            workspace: &workspace,
        };
        let text = "Fix src/a.rs (and `missing.rs`), then ask api.example.com about ~/notes.";
        let scope = scope(Some(text), &[], &at).expect("a task");
        let expected = [
            "/home/me/notes".into(),
            "/srv/data/list".into(),
            workspace.join("src/a.rs"),
        ];
        for path in expected {
            assert!(
                scope.paths.contains(&path),
                "{} in {:?}",
                path.display(),
                scope.paths
            );
        }
        assert!(
            scope.hosts.contains(&"api.example.com".to_owned()),
            "{:?}",
            scope.hosts
        );
        assert!(
            !scope.hosts.contains(&"src".to_owned()),
            "{:?}",
            scope.hosts
        );
        std::fs::remove_dir_all(&workspace).expect("no directory");
        let none = TaskPlace {
            cwd: &workspace,
            home: at.home,
            workspace: &workspace,
        };
        assert!(super::scope(None, &argv(&["true"]), &none).is_none());
    }
}
