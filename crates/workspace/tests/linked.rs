//! What the host would execute or trust, behind symbolic links: the agent's and the host's own.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{Applied, ApplyOptions, Change, Selection};
use std::path::{Path, PathBuf};

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

#[test]
fn a_link_of_the_agents_with_the_beginning_of_a_listed_name_stays_aside() {
    let bed = Bed::new();
    let change = bed.changed_by(
        "mkdir -p g/wrapper; echo x >g/wrapper/p; ln -s g gradle; ln -s y .yarn; ln -s h .hg; ln -s cfg .config; ln -s gh .gitea; ln -s cs .changeset; ln -s g plain",
    );
    let applied = apply(&bed, &change, &[]);
    for name in ["gradle", ".yarn", ".hg", ".config", ".gitea"] {
        assert!(!is_there(&bed, name), "{name}");
        let held = applied.held.iter().any(|told| told.path == Path::new(name));
        assert!(held, "{name} in {applied}");
    }
    // Another name may lead there, and what is only told is told.
    for name in ["plain", "g/wrapper/p", ".changeset"] {
        assert!(is_there(&bed, name), "{name}");
    }
    let told = |told: &ironcage_workspace::ReportedPath| told.path == Path::new(".changeset");
    assert!(applied.flagged.iter().any(told), "{applied}");
    apply(&bed, &change, &["gradle"]);
    assert!(is_there(&bed, "gradle"));
}

#[test]
fn what_a_listed_link_of_the_hosts_leads_to_stays_aside() {
    let bed = Bed::new();
    bed.host(
        "mkdir conf tools hop sub; echo ours >conf/env; echo ours >tools/tasks.json; ln -s conf/env .envrc; ln -s tools .vscode; \
         ln -s ../other/e sub/.envrc; ln -s hop gradle; ln -s \"$PWD/by-path\" .kiro",
    );
    let change = bed.changed_by(
        "echo evil >conf/env; echo evil >tools/tasks.json; mkdir other; echo evil >other/e; mkdir hop/wrapper by-path; echo evil >hop/wrapper/p; \
         echo evil >by-path/x; echo fine >hop/fine; echo fine >fine; echo fine >conf/beside",
    );
    let applied = apply(&bed, &change, &[]);
    for name in ["hop/fine", "fine", "conf/beside"] {
        assert_eq!(bed.read(name).as_deref(), Some("fine\n"), "{name}");
    }
    for name in ["conf/env", "tools/tasks.json"] {
        assert_eq!(bed.read(name).as_deref(), Some("ours\n"), "{name}");
    }
    for name in ["other/e", "hop/wrapper/p", "by-path/x"] {
        assert!(!is_there(&bed, name), "{name}");
    }
    let why = applied.to_string();
    assert!(why.contains("the link .envrc points to it"), "{why}");
    // Named, it comes; named from above, it does not.
    apply(&bed, &change, &["conf"]);
    assert_eq!(bed.read("conf/env").as_deref(), Some("ours\n"));
    apply(&bed, &change, &["conf/env"]);
    assert_eq!(bed.read("conf/env").as_deref(), Some("evil\n"));
}

#[test]
fn a_link_of_the_hosts_is_not_led_elsewhere_by_one_of_the_agents() {
    let bed = Bed::new();
    bed.host("mkdir conf; echo ours >conf/env; ln -s conf/env .envrc");
    let change = bed.changed_by(
        "rm -r conf; mkdir conf2; echo evil >conf2/env; echo fine >conf2/fine; ln -s conf2 conf; ln -s conf2 other",
    );
    apply(&bed, &change, &[]);
    assert_eq!(bed.say("cat .envrc"), "ours\n");
    assert!(!is_there(&bed, "conf2/env"));
    assert!(is_there(&bed, "other") && is_there(&bed, "conf2/fine"));
}

#[test]
fn a_maze_of_links_is_not_walked_and_lets_no_link_through() {
    let bed = Bed::new();
    bed.host("ln -s a/b .envrc");
    let change = bed.changed_by(
        "ln -s l0/l0 a; for i in $(seq 0 40); do ln -s l$((i+1))/l$((i+1)) l$i; done; echo fine >fine",
    );
    apply(&bed, &change, &[]);
    assert!(!is_there(&bed, "a") && !is_there(&bed, "l3"));
    assert!(is_there(&bed, "fine"));
}

#[test]
fn a_link_that_leads_outside_by_way_of_another_is_told() {
    let bed = Bed::new();
    bed.host("ln -s /etc ext; echo x >file");
    let change = bed.changed_by(
        "ln -s . d; ln -s d/d/d/../../../etc/passwd esc; ln -s ext/passwd via; ln -s d/file okay; ln -s ../../x up; ln -s /etc/passwd whole",
    );
    let applied = apply(&bed, &change, &[]);
    for (name, outside) in [
        ("esc", true),
        ("via", true),
        ("up", true),
        ("whole", true),
        ("d", false),
        ("okay", false),
    ] {
        assert!(is_there(&bed, name), "{name}");
        let told = applied
            .flagged
            .iter()
            .any(|told| told.path == Path::new(name));
        assert_eq!(told, outside, "{name} in {applied}");
    }
}
