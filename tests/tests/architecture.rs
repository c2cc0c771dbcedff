//! Holds what the layout promises: the direction of dependencies, where unsafe code lives, how long files are.
//!
//! It reads `cargo metadata` and the tracked files; it starts no cage.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A room may depend on rooms above it in this list only; rooms on one line do not know each other.
///
/// `cli`, `inside`, `lab`, `oci-runtime`, `registry`, `serve`, `mcp`, `vmm` and `vm-init` are programs: each finds the
/// others as files, and links none of them.
const ORDER: &[&[&str]] = &[
    &["model", "sys", "files", "programs", "guest"],
    &["catalog", "tools"],
    &["policy", "host", "audit", "state", "control"],
    &["images"],
    &["plan"],
    &["lease"],
    &["intent", "signing"],
    &["reader"],
    &["layers", "workspace", "egress"],
    &["learn", "report"],
    &["backend"],
    &["backends"],
    &["microvm"],
    &["terminal", "watchdog"],
    &["client", "cage-daemon"],
    &["supervisor"],
    &["probe", "bench", "server", "oci", "command"],
    &[
        "cli",
        "inside",
        "lab",
        "oci-runtime",
        "registry",
        "serve",
        "mcp",
        "vmm",
        "vm-init",
    ],
];

/// Rooms that compute and must stay free of system calls.
const PURE: &[&str] = &[
    "model", "catalog", "tools", "guest", "policy", "plan", "lease", "report", "signing",
];

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
    /// The same without what only its tests use.
    ships: Vec<String>,
}

impl Room {
    fn rank(&self) -> usize {
        // The microvm backend stands on the namespace backend.
        let line = if self.backend && self.name != "microvm" {
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

pub(crate) fn top() -> PathBuf {
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

/// Every member of the workspace but the tests and the fuzz targets, which may use all of them.
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
        if within == Path::new("tests") || within == Path::new("fuzz") {
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
            ships: list(&package["dependencies"])
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
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

pub(crate) fn tracked(patterns: &[&str]) -> Vec<PathBuf> {
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
fn no_attack_is_in_the_program_that_starts_cages() {
    let tree = |package: &str| {
        let mut tree = Command::new(env!("CARGO"));
        tree.args([
            "tree",
            "--locked",
            "--prefix=none",
            "--edges=normal,features",
        ]);
        output(tree.args(["-p", package]).current_dir(top()))
    };
    let parts = [
        "ironcage-probe ",
        "ironcage-bench ",
        "ironcage-sys feature \"attack\"",
    ];
    let (cli, lab) = (tree("ironcage"), tree("ironcage-lab"));
    for part in parts {
        let has = |tree: &str| tree.lines().any(|line| line.starts_with(part));
        assert!(!has(&cli), "ironcage has {part}");
        assert!(has(&lab), "ironcage-lab lacks {part}");
    }
}

#[test]
fn what_carries_a_plan_out_does_not_read_policies() {
    let rooms = rooms();
    let carries_out = ["layers", "backend", "workspace", "supervisor"];
    let bound = |room: &&Room| room.backend || carries_out.contains(&room.name.as_str());
    let (bound, others): (Vec<&Room>, Vec<&Room>) = rooms.iter().partition(bound);
    // Unit tests may make a plan from a policy; the program may not.
    let reads = |room: &&Room| room.ships.iter().any(|need| need == "ironcage-policy");
    let wrong: Vec<&str> = bound
        .iter()
        .filter(|room| reads(room))
        .map(|room| room.name.as_str())
        .collect();
    assert!(wrong.is_empty(), "they depend on policy: {wrong:?}");
    assert!(others.iter().any(reads), "somebody reads policies");
}

#[test]
fn only_sys_depends_on_libc() {
    // The supervisor takes the names of signals and errno from it. It forbids unsafe code, so it
    // cannot call a function of it. The FUSE protocol of the file server has its structures.
    let may = ["sys", "supervisor", "vmm"];
    for room in rooms() {
        if !may.contains(&room.name.as_str()) {
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

/// Files that open other files by themselves, each with its reason. Whatever may be read before a
/// cage exists from a place where an agent could write goes through `crates/files`.
const READERS: &[(&str, &str)] = &[
    ("crates/bench", "starts its own stages"),
    ("crates/probe", "starts its own stages"),
    (
        "crates/host",
        "the kernel's files, and /etc of a root that is set up",
    ),
    ("crates/backend/src/stop_guard.rs", "the kernel's files"),
    ("crates/watchdog", "the kernel's files"),
    ("crates/supervisor/src/cores.rs", "the kernel's files"),
    ("crates/supervisor/src/connects.rs", "the kernel's files"),
    ("crates/supervisor/src/denials.rs", "the kernel's files"),
    (
        "crates/cli/src/commands/net/follow.rs",
        "the kernel's files",
    ),
    ("crates/cli/src/commands/pool.rs", "the kernel's files"),
    ("crates/inside/src/tool.rs", "runs in a cage"),
    ("crates/images/src", "files of its own store"),
    ("crates/cli/src/commands/setup.rs", "/etc/passwd"),
    ("crates/cli/src/paths.rs", "/etc/passwd"),
    (
        "crates/cli/src/approved_rule.rs",
        "opens a directory to lock it",
    ),
    (
        "crates/workspace/src/git/bring.rs",
        "files that it has just made",
    ),
    (
        "crates/egress/src/secret/token_refresher.rs",
        "opens by `TokenFile`, which refuses what is no regular file",
    ),
    ("backends/oci", "files that it has just made"),
    (
        "backends/microvm/src/setup",
        "files of the system's packages, and those that it has made",
    ),
    (
        "backends/microvm/src/kvm.rs",
        "the kernel's files, and its own, whose owner it checks by the descriptor",
    ),
    ("crates/vmm", "runs in the cage, as the agent"),
    ("crates/vm-init", "runs in the guest"),
    (
        "crates/sys/src/attack/device.rs",
        "runs in a guest, as its attacker",
    ),
    ("crates/catalog/build", "runs when the program is built"),
    ("crates/workspace/src/mode.rs", "the kernel's files"),
    ("crates/oci-runtime/src/kernel.rs", "the kernel's files"),
    (
        "crates/oci-runtime/src/protect.rs",
        "its own file, by the kernel's link",
    ),
    (
        "crates/cage-daemon",
        "runs as the agent, for which it reads and writes what it names",
    ),
    (
        "crates/inside/src/container_exec.rs",
        "the kernel's files, and the runtime's, on a tmpfs that no agent sees",
    ),
    ("crates/inside/src/container_init.rs", "the kernel's files"),
    (
        "crates/serve/src/keys.rs",
        "its own files, in a directory of its own",
    ),
    (
        "crates/serve/src/projects.rs",
        "its own files, in a directory of its own",
    ),
    (
        "crates/serve/src/engine/snapshots.rs",
        "its own files, in a directory of its own",
    ),
    (
        "crates/serve/src/webhooks/mod.rs",
        "its own files, in a directory of its own",
    ),
];

#[test]
fn files_are_read_by_the_bounded_reader_alone() {
    let words = [
        ["fs::", "read("],
        ["fs::read_to", "_string("],
        ["File::", "open("],
    ]
    .map(|halves| halves.concat());
    let all = tracked(&["crates/*.rs", "backends/*.rs"]);
    let mut used = Vec::new();
    let mut found = Vec::new();
    for file in all {
        let relative = file
            .strip_prefix(top())
            .expect("in the workspace")
            .to_owned();
        let in_test = relative
            .components()
            .any(|part| part.as_os_str() == "tests")
            || relative.to_string_lossy().ends_with("tests.rs");
        let text = std::fs::read_to_string(&file).expect("text");
        // What comes after is a file's own tests.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let opens = code
            .lines()
            .any(|line| words.iter().any(|word| line.contains(word)));
        if in_test || !opens {
            continue;
        }
        match READERS
            .iter()
            .find(|(place, _)| relative.starts_with(place))
        {
            Some((place, _)) => used.push(*place),
            None => found.push(relative),
        }
    }
    assert!(
        found.is_empty(),
        "read with crates/files, or say why not: {found:#?}"
    );
    let unused = READERS.iter().filter(|(place, _)| !used.contains(place));
    let unused: Vec<_> = unused.collect();
    assert!(unused.is_empty(), "take off the list: {unused:#?}");
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
fn every_file_of_end_to_end_tests_is_run() {
    // The program of these tests names its files; one that it does not name would never run.
    let all = std::fs::read_to_string(top().join("tests/tests/all.rs")).expect("tests/all.rs");
    let named = |name: &str| all.lines().any(|line| line == format!("mod {name};"));
    for entry in std::fs::read_dir(top().join("tests/tests")).expect("tests/tests") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        assert!(
            path.extension().is_none() || name == "all" || named(&name),
            "tests/tests/all.rs does not say `mod {name};`"
        );
    }
    assert!(named("architecture") && !named("no_such_file"));
}

/// The first lines of blocks in comments that rustdoc would run as tests.
fn runnable_examples(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim_start) {
        let comment = line
            .strip_prefix("//!")
            .or_else(|| line.strip_prefix("///"));
        let Some(fence) = comment
            .map(str::trim)
            .and_then(|rest| rest.strip_prefix("```"))
        else {
            continue;
        };
        inside = !inside;
        if inside && ["", "rust", "no_run", "should_panic"].contains(&fence) {
            found.push(line);
        }
    }
    found
}

#[test]
fn no_comment_has_an_example_that_nothing_runs() {
    // scripts/test does not run doctests, so nobody may write one.
    let fence = "`".repeat(3);
    let block = |kind: &str| format!("/// {fence}{kind}\n/// x\n/// {fence}\n");
    assert_eq!(runnable_examples(&block("text")), [""; 0]);
    assert_eq!(runnable_examples(&block("")).len(), 1);
    for file in tracked(&["crates/*.rs", "backends/*.rs"]) {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let found = runnable_examples(&text);
        assert!(
            found.is_empty(),
            "{}: mark the block as text: {found:?}",
            file.display()
        );
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

/// Nothing rots unseen: scripts that only a full run executes are read here, and the list of fuzz
/// targets that `scripts/fuzz` finds is the program's own.
#[test]
fn every_script_parses_and_every_fuzz_target_is_run() {
    for script in tracked(&["scripts/*", ".ci/run"]) {
        let text = std::fs::read_to_string(&script).expect("a script");
        let first = text.lines().next().unwrap_or_default();
        let mut check = match first {
            "#!/usr/bin/env bash" => Command::new("bash"),
            "#!/usr/bin/env python3" => Command::new("python3"),
            other => panic!("{}: {other}", script.display()),
        };
        match first.ends_with("bash") {
            true => check.arg("-n").arg(&script),
            false => check
                .args(["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"])
                .arg(&script),
        };
        output(&mut check);
    }
    let listed = output(
        Command::new("scripts/fuzz")
            .arg("--list")
            .current_dir(top()),
    );
    let source = std::fs::read_to_string(top().join("fuzz/src/main.rs")).expect("the targets");
    let (_, table) = source.split_once("const TARGETS").expect("the table");
    let (table, _) = table.split_once("];").expect("its end");
    let targets: Vec<&str> = table.split('"').skip(1).step_by(2).collect();
    assert!(targets.len() > 10, "{targets:?}");
    assert_eq!(listed.lines().collect::<Vec<_>>(), targets);
}
