//! What comes over as a whole or not at all, what a Python would import at start, and modes.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{Applied, ApplyOptions, Change, Selection};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn apply(bed: &Bed, change: &Change, paths: &[&str]) -> Applied {
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let selection = Selection::of(change, &bed.workspace, &paths).expect("a selection");
    bed.store
        .apply(change, &selection, &ApplyOptions::default())
        .expect("it is applied")
}

fn is_there(bed: &Bed, name: &str) -> bool {
    bed.workspace.join(name).symlink_metadata().is_ok()
}

fn held(applied: &Applied) -> Vec<String> {
    let paths = applied.held.iter();
    paths.map(|told| told.path.display().to_string()).collect()
}

fn mode(bed: &Bed, name: &str) -> u32 {
    let metadata = bed.workspace.join(name).symlink_metadata().expect(name);
    metadata.permissions().mode() & 0o7777
}

/// An environment as `python3 -m venv` makes one, without running Python.
const VENV: &str = "mkdir -p env/bin env/lib/python3.12/site-packages/pkg/dist; echo home = /usr/bin >env/pyvenv.cfg; ln -s /usr/bin/python3 env/bin/python; \
     echo x >env/bin/pip; echo x >env/lib/python3.12/site-packages/pkg/__init__.py; echo x >env/lib/python3.12/site-packages/pkg/dist/x.py";
const MODULES: &str = "mkdir -p web/node_modules/pkg/dist web/node_modules/.bin; echo '{}' >web/node_modules/pkg/package.json; echo x >web/node_modules/pkg/dist/x.js; \
     echo x >web/node_modules/.bin/run; echo x >web/node_modules/pkg/.npmrc";

#[test]
fn a_tree_of_packages_is_one_line_and_comes_over_as_a_whole_or_not_at_all() {
    let bed = Bed::new();
    // Rules of git that would leave parts of both out.
    bed.host("git init -q; printf 'dist/\\nlib/\\n' >.gitignore");
    let change = bed.changed_by(&format!("{VENV}; {MODULES}; echo fine >web/fine"));
    let summary = change.summary().expect("a summary");
    let withheld: Vec<String> = summary
        .withheld
        .iter()
        .map(|told| told.path.display().to_string())
        .collect();
    assert_eq!(withheld, ["env", "web/node_modules"], "{summary}");
    assert!(summary.flagged.is_empty(), "{summary}");

    let applied = apply(&bed, &change, &[]);
    assert_eq!(held(&applied), ["env", "web/node_modules"], "{applied}");
    assert!(is_there(&bed, "web/fine") && !is_there(&bed, "env"));
    assert!(!is_there(&bed, "web/node_modules"));

    // A part is not enough, nor is what lies around it.
    for part in ["env/bin", "env/bin/pip", "web/node_modules/pkg", "web"] {
        let applied = apply(&bed, &change, &[part]);
        assert_eq!(applied.done, 0, "{part}: {applied}");
        assert_eq!(applied.held.len(), 1, "{part}: {applied}");
    }
    let applied = apply(&bed, &change, &["env"]);
    assert_eq!(held(&applied), [""; 0], "{applied}");
    for name in [
        "env/bin/python",
        "env/bin/pip",
        "env/pyvenv.cfg",
        "env/lib/python3.12/site-packages/pkg/dist/x.py",
    ] {
        assert!(is_there(&bed, name), "{name}");
    }
    apply(&bed, &change, &["web/node_modules"]);
    for name in ["pkg/dist/x.js", "pkg/.npmrc", ".bin/run"] {
        assert!(
            is_there(&bed, &format!("web/node_modules/{name}")),
            "{name}"
        );
    }
}

#[test]
fn a_tree_that_git_ignores_comes_over_with_what_other_rules_ignore_in_it() {
    let bed = Bed::new();
    bed.host("git init -q; printf 'node_modules\\ndist/\\n' >.gitignore");
    let change = bed.changed_by(MODULES);
    apply(&bed, &change, &[]);
    assert!(!is_there(&bed, "web/node_modules"));
    apply(&bed, &change, &["web/node_modules"]);
    assert!(is_there(&bed, "web/node_modules/pkg/dist/x.js"));
    assert!(is_there(&bed, "web/node_modules/pkg/package.json"));
}

#[test]
fn a_tree_with_a_part_that_cannot_come_over_stays_as_it_was() {
    let bed = Bed::new();
    bed.host(&format!("{VENV}; touch -d 2020-01-01 env/bin/pip"));
    let change = bed.begin();
    bed.agent(
        &change,
        "echo agent >env/bin/pip; echo agent >env/bin/new; echo agent >env/lib/python3.12/site-packages/pkg/__init__.py",
    );
    bed.host("echo host >env/bin/pip");
    let applied = apply(&bed, &change, &["env"]);
    assert_eq!(held(&applied), ["env"], "{applied}");
    assert!(applied.held[0].why.contains("env/bin/pip"), "{applied}");
    assert!(!is_there(&bed, "env/bin/new"));
    let package = "env/lib/python3.12/site-packages/pkg/__init__.py";
    assert_eq!(bed.read(package).as_deref(), Some("x\n"));
    // A set-id program has to be named besides the tree.
    bed.host("touch -d 2020-01-01 env/bin/pip");
    let change =
        bed.changed_by("echo x >env/bin/su; chmod 4755 env/bin/su; echo x >env/bin/beside");
    let applied = apply(&bed, &change, &["env"]);
    assert!(applied.held[0].why.contains("env/bin/su"), "{applied}");
    assert!(!is_there(&bed, "env/bin/beside"));
    let applied = apply(&bed, &change, &["env", "env/bin/su"]);
    assert_eq!(held(&applied), [""; 0], "{applied}");
    assert_eq!(mode(&bed, "env/bin/su"), 0o4755);
}

#[test]
fn a_package_that_is_called_like_an_environment_is_none() {
    let bed = Bed::new();
    let change = bed.changed_by(
        "mkdir -p Lib/venv/scripts src/env src/node_modules_x; echo x >Lib/venv/__init__.py; echo x >src/env/mod.rs; echo x >src/node_modules_x/x",
    );
    let applied = apply(&bed, &change, &[]);
    assert_eq!(held(&applied), [""; 0], "{applied}");
    assert!(is_there(&bed, "Lib/venv/__init__.py") && is_there(&bed, "src/env/mod.rs"));
}

/// Starts a Python that has a directory of packages, and tells which of some marks it made.
fn python_starts(bed: &Bed, site: &str) -> bool {
    let mark = bed.base.path().join("mark");
    // What stays aside must not be found by way of a mark of an earlier start.
    let _ = std::fs::remove_file(&mark);
    let code = format!("import site; site.addsitedir({site:?})");
    let status = Command::new("python3")
        .args(["-c", &code])
        .env("MARK", &mark)
        .current_dir(&bed.workspace)
        .status()
        .expect("python3");
    assert!(status.success());
    mark.exists()
}

#[test]
fn what_a_path_file_of_the_users_imports_stays_aside() {
    let bed = Bed::new();
    bed.host(
        "mkdir -p lib/packages src/late; printf '../../src\\nimport hook\\nimport os; __import__(\"late\")\\n' >lib/packages/mine.pth; \
         echo 'x = 1' >src/hook.py; echo 'x = 1' >src/late/__init__.py; echo 'x = 1' >src/other.py",
    );
    assert!(!python_starts(&bed, "lib/packages"));
    let plant = "import os; open(os.environ[\"MARK\"], \"w\")";
    let change = bed.changed_by(&format!(
        "for f in src/hook.py src/late/__init__.py src/late/more.py src/other.py lib/packages/hook.py; do echo '{plant}' >$f; done"
    ));
    let applied = apply(&bed, &change, &[]);
    assert_eq!(
        held(&applied),
        [
            "lib/packages/hook.py",
            "src/hook.py",
            "src/late/__init__.py",
            "src/late/more.py"
        ],
        "{applied}"
    );
    assert!(bed.read("src/other.py").expect("a file").contains("MARK"));
    assert!(!python_starts(&bed, "lib/packages"), "nothing was started");
    // By its name it comes over, and Python itself shows that it would have run.
    apply(&bed, &change, &["src/late"]);
    assert!(python_starts(&bed, "lib/packages"));
}

#[test]
fn modes_do_not_widen_in_silence() {
    let bed = Bed::new();
    bed.host(
        "umask 022; echo a >wide; echo b >private; chmod 600 private; mkdir closed shared; chmod 700 closed; echo c >run.sh; echo d >free; chmod 666 free",
    );
    let change = bed.changed_by(
        "umask 0; chmod 777 wide; chmod 644 private; chmod 755 closed; chmod 777 shared; chmod 755 run.sh; echo more >>free; \
         echo n >new; mkdir made; echo m >made/in; ln -s wide link; : >set; chmod 2755 set; mkdir grouped; chmod 2755 grouped",
    );
    let summary = change.summary().expect("a summary");
    let flagged: Vec<String> = summary
        .flagged
        .iter()
        .map(|told| told.path.display().to_string())
        .collect();
    assert_eq!(
        flagged,
        ["closed", "grouped", "private", "shared", "wide"],
        "{summary}"
    );
    let applied = apply(&bed, &change, &[]);
    assert_eq!(held(&applied), ["set"], "{applied}");
    // The umask of the one who applies, which is that of this process.
    let umask = bed.say("umask");
    let umask = u32::from_str_radix(umask.trim(), 8).expect("a umask");
    assert_eq!(umask & 0o022, 0o022, "run with a usual umask");
    for (name, wanted) in [
        ("wide", 0o755),
        ("private", 0o644),
        ("closed", 0o755),
        ("shared", 0o755),
        ("run.sh", 0o755),
        // What was so already stays so.
        ("free", 0o666),
        ("new", 0o644),
        ("made", 0o755),
        ("made/in", 0o644),
        ("grouped", 0o2755),
    ] {
        assert_eq!(mode(&bed, name), wanted, "{name}");
    }
    assert_eq!(bed.read("free").as_deref(), Some("d\nmore\n"));
}

#[test]
fn what_somebody_put_where_a_temporary_file_goes_is_not_written() {
    let bed = Bed::new();
    bed.host("echo 1 >file; git init -q; seq 1 9 >lines; git add lines; echo mine >victim");
    let change = bed.begin();
    // Beside the record of an apply, which this very process writes, and beside a merge.
    let victim = bed.workspace.join("victim");
    let record = change.directory().join("apply.json");
    let beside = format!("{}.new-{}", record.display(), std::process::id());
    std::os::unix::fs::symlink(&victim, &beside).expect("a link");
    bed.agent(
        &change,
        "echo 2 >file; sed -i 's/^1$/agent/' lines; ln lines keep; ln keep .ironcage-merged",
    );
    bed.host("sed -i 's/^9$/host/' lines");
    let applied = apply(&bed, &change, &[]);
    assert_eq!(bed.read("victim").as_deref(), Some("mine\n"), "{applied}");
    assert_eq!(bed.read("file").as_deref(), Some("2\n"));
    let lines = bed.read("lines").expect("a file");
    assert!(
        lines.starts_with("agent") && lines.ends_with("host\n"),
        "{lines}"
    );
    // The other name of the agent's version keeps what the agent wrote.
    let kept = bed.read("keep").expect("a file");
    assert!(kept.starts_with("agent") && kept.ends_with("9\n"), "{kept}");
    assert!(Path::new(&beside).symlink_metadata().is_err());
}
