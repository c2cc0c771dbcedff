//! Holds what the layout promises: the direction of dependencies, where unsafe code lives, how long files are.
//!
//! It reads `cargo metadata` and the tracked files; it starts no cage.
#![forbid(unsafe_code)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A room may depend on rooms above it in this list only; rooms on one line do not know each other.
///
/// `cli` stands below `probe` and `bench` because it offers both as commands.
const ORDER: &[&[&str]] = &[
    &["model", "sys"],
    &["policy", "host", "audit", "state", "control"],
    &["plan"],
    &["lease"],
    &["cedar"],
    &["intent"],
    &["layers", "workspace", "egress"],
    &["learn"],
    &["backend"],
    &["backends"],
    &["runtime"],
    &["probe", "bench", "server", "mcp", "oci"],
    &["cli"],
];

/// Rooms that compute and must stay free of system calls.
const PURE: &[&str] = &["model", "policy", "plan", "lease", "cedar"];

/// Rooms that may hold unsafe code.
const UNSAFE: &[&str] = &["sys", "microvm"];

/// Past this a file is about two things.
const LONGEST_FILE: usize = 700;

struct Room {
    package: String,
    /// The directory below `crates/` or `backends/`.
    name: String,
    backend: bool,
    /// First files of its libraries and programs.
    roots: Vec<PathBuf>,
    needs: Vec<String>,
}

impl Room {
    fn rank(&self) -> usize {
        let line = if self.backend {
            "backends"
        } else {
            self.name.as_str()
        };
        ORDER
            .iter()
            .position(|rooms| rooms.contains(&line))
            .unwrap_or_else(|| {
                panic!(
                    "room {} has no place in the order of dependencies",
                    self.name
                )
            })
    }
}

fn top() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    top.canonicalize().expect("the top of the workspace")
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Every member of the workspace but this one, which may use all of them.
fn rooms() -> Vec<Room> {
    let text = output(
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .current_dir(top()),
    );
    let metadata: Value = serde_json::from_str(&text).expect("cargo metadata is JSON");
    let string = |value: &Value| value.as_str().expect("a string").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let mut rooms = Vec::new();
    for package in list(&metadata["packages"]) {
        let manifest = PathBuf::from(string(&package["manifest_path"]));
        let directory = manifest.parent().expect("a directory");
        let within = directory.strip_prefix(top()).expect("in the workspace");
        if within == Path::new("tests") {
            continue;
        }
        rooms.push(Room {
            package: string(&package["name"]),
            name: within.file_name().expect("a name").to_string_lossy().into(),
            backend: within.starts_with("backends"),
            roots: list(&package["targets"])
                .iter()
                .filter(|target| {
                    let kinds = target["kind"].to_string();
                    kinds.contains("lib") || kinds.contains("bin")
                })
                .map(|target| PathBuf::from(string(&target["src_path"])))
                .collect(),
            needs: list(&package["dependencies"])
                .iter()
                .map(|dependency| string(&dependency["name"]))
                .collect(),
        });
    }
    assert!(
        rooms.len() > 5,
        "cargo metadata names the rooms of the workspace"
    );
    rooms
}

fn tracked(patterns: &[&str]) -> Vec<PathBuf> {
    let text = output(
        Command::new("git")
            // The owner of a checkout in a container is often not the one who tests it.
            .args([
                "-c",
                "safe.directory=*",
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
                "--",
            ])
            .args(patterns)
            .current_dir(top()),
    );
    let files: Vec<PathBuf> = text
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(|name| top().join(name))
        .filter(|path| path.is_file())
        .collect();
    assert!(!files.is_empty(), "no tracked file matches {patterns:?}");
    files
}

/// Lines that contain one of the words, as `file:line: text`; the words are matched as they stand.
fn lines_with(files: &[PathBuf], words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(file) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word.as_str())) {
                found.push(format!("{}:{}: {line}", file.display(), number + 1));
            }
        }
    }
    found
}

#[test]
fn dependencies_point_one_way() {
    let rooms = rooms();
    let ranks: BTreeMap<&str, (usize, &str)> = rooms
        .iter()
        .map(|room| (room.package.as_str(), (room.rank(), room.name.as_str())))
        .collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for room in &rooms {
        for need in &room.needs {
            let Some((rank, name)) = ranks.get(need.as_str()) else {
                continue;
            };
            seen += 1;
            if *rank >= room.rank() {
                wrong.push(format!("{} depends on {name}", room.name));
            }
        }
    }
    assert!(seen > 10, "the rooms depend on each other");
    assert!(wrong.is_empty(), "against the direction: {wrong:#?}");
}

#[test]
fn pure_rooms_make_no_system_calls() {
    for room in rooms() {
        for need in &room.needs {
            let reaches_the_kernel = ["ironcage-sys", "rustix", "libc", "landlock"];
            assert!(
                !(PURE.contains(&room.name.as_str())
                    && reaches_the_kernel.contains(&need.as_str())),
                "{} is pure and depends on {need}",
                room.name
            );
        }
    }
}

#[test]
fn nothing_of_cedar_is_in_the_program_that_did_not_ask_for_it() {
    let tree = |features: &[&str]| {
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--locked", "--prefix=none", "--edges=normal,build"]);
        output(
            tree.args(["-p", "ironcage"])
                .args(features)
                .current_dir(top()),
        )
    };
    let names = |tree: &str| tree.lines().any(|line| line.starts_with("cedar-policy"));
    assert!(!names(&tree(&[])));
    assert!(names(&tree(&["--features", "cedar"])));
}

#[test]
fn only_sys_depends_on_libc() {
    for room in rooms() {
        if room.name != "sys" {
            assert!(
                !room.needs.contains(&"libc".to_owned()),
                "{} depends on libc",
                room.name
            );
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_outside_its_rooms() {
    for room in rooms() {
        for root in &room.roots {
            let text = std::fs::read_to_string(root).expect("the root of a target");
            assert!(
                text.contains("#![forbid(unsafe_code)]") || UNSAFE.contains(&room.name.as_str()),
                "{} does not say #![forbid(unsafe_code)]",
                root.display()
            );
        }
    }
}

#[test]
fn there_is_no_unsafe_code_outside_its_rooms() {
    // Tests and build scripts too, which forbid nothing by themselves.
    let words = ["{", "fn", "impl", "extern"].map(|word| ["unsafe", word].join(" "));
    let (inside, outside): (Vec<PathBuf>, Vec<PathBuf>) =
        tracked(&["*.rs"]).into_iter().partition(|file| {
            UNSAFE
                .iter()
                .any(|room| file.components().any(|part| part.as_os_str() == *room))
        });
    let found = lines_with(&outside, &words);
    assert!(found.is_empty(), "{found:#?}");
    assert!(
        !lines_with(&inside, &words).is_empty(),
        "the words are found where they may stand"
    );
}

#[test]
fn no_file_is_about_two_things() {
    let long: Vec<String> = tracked(&["crates/*.rs", "backends/*.rs", "tests/*.rs"])
        .iter()
        .filter_map(|file| {
            let lines = std::fs::read_to_string(file).expect("text").lines().count();
            (lines > LONGEST_FILE).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    assert!(long.is_empty(), "past {LONGEST_FILE} lines: {long:#?}");
}

#[test]
fn every_crate_has_a_line_in_the_readme_of_crates() {
    let readme = std::fs::read_to_string(top().join("crates/README.md")).expect("crates/README.md");
    for room in rooms() {
        let link = if room.backend {
            format!("[{0}](../backends/{0})", room.name)
        } else {
            format!("[{0}]({0})", room.name)
        };
        assert!(readme.contains(&link), "crates/README.md has no {link}");
    }
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file does not contain the words.
    let words = [["TO", "DO"], ["FIX", "ME"], ["XX", "X:"]].map(|halves| halves.concat());
    let found = lines_with(&tracked(&["*.rs", "*.toml", "*.sh", "scripts/*"]), &words);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_file_names_a_package_registry() {
    // Which mirror a build uses is for the machine to say. Cargo writes the lock file, with cargo's own name for it.
    let hosts = [
        ["pypi", ".org"],
        ["files.python", "hosted.org"],
        ["registry.npm", "js.org"],
        ["deb.deb", "ian.org"],
        ["index.cra", "tes.io"],
        ["static.cra", "tes.io"],
        ["arti", "factory"],
    ]
    .map(|halves| halves.concat());
    let files: Vec<PathBuf> = tracked(&["*"])
        .into_iter()
        .filter(|file| !file.ends_with("Cargo.lock"))
        .collect();
    let found = lines_with(&files, &hosts);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_file_names_a_directory_of_the_machine_it_was_written_on() {
    let places = [["/work", "/main"], ["/work", "/shared"]].map(|halves| halves.concat());
    let found = lines_with(&tracked(&["*"]), &places);
    assert!(found.is_empty(), "{found:#?}");
}
