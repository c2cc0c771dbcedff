//! What the user's own git runs in the tree: programs that settings and hooks lead to, by links,
//! includes and words.
#![allow(clippy::expect_used)]

mod bed;

use bed::Bed;
use ironcage_workspace::{Applied, ApplyOptions, Change, Selection};
use std::path::PathBuf;

const INIT: &str = "git config --global user.email a@example.org; git config --global user.name A; git config --global init.defaultBranch main; \
     git config --global --add safe.directory '*'; git init -q; echo 1 >file; mkdir -p tools/hooks; printf '#!/bin/sh\\n:\\n' >tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit; \
     touch -d '1 hour ago' file tools/hooks/pre-commit; git add .; git commit -qm first";
/// What git runs on a commit becomes one that leaves a trace.
const EVIL: &str = "evil() { mkdir -p \"$(dirname \"$1\")\"; printf '#!/bin/sh\\ntouch \"$HOME/canary\"\\n' >\"$1\"; chmod +x \"$1\"; }; echo fine >fine; ";

fn apply(bed: &Bed, change: &Change, paths: &[&str]) -> Applied {
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let selection = Selection::of(change, &bed.workspace, &paths).expect("paths");
    bed.store
        .apply(change, &selection, &ApplyOptions::default())
        .expect("applied")
}

#[test]
fn no_commit_runs_what_an_agent_wrote_wherever_the_users_git_leads() {
    let to_hook = "evil tools/hooks/pre-commit";
    let ways = [
        (
            "a link of the agent's on the way",
            "git config core.hooksPath tools/hooks",
            "rm -r tools; ln -s other tools; evil other/hooks/pre-commit",
            "tools other/hooks",
        ),
        (
            "a link of the user's on the way",
            "ln -s tools/hooks run; git config core.hooksPath run",
            to_hook,
            "tools/hooks",
        ),
        (
            "a path by another name of the tree",
            "ln -s project ../again; git config core.hooksPath \"$PWD/../again/tools/hooks\"",
            to_hook,
            "tools/hooks",
        ),
        (
            "a hook that is a link",
            "ln -s ../../tools/hooks/pre-commit .git/hooks/pre-commit",
            to_hook,
            "tools/hooks/pre-commit",
        ),
        (
            "a directory of hooks that is a link",
            "rm -r .git/hooks; ln -s ../tools/hooks .git/hooks",
            to_hook,
            "tools/hooks",
        ),
        (
            "a hook that runs a program of the tree",
            "printf '#!/bin/sh\\nroot=$(git rev-parse --show-toplevel)\\nexec \"$root/tools/hooks/pre-commit\"\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
            to_hook,
            "tools/hooks/pre-commit",
        ),
        (
            "settings that are included",
            "printf '[core]\\n\\thooksPath = tools/hooks\\n' >../more; git config includeIf.onbranch:main.path ../../more",
            to_hook,
            "tools/hooks",
        ),
        (
            "settings with a line that is no text",
            "git config user.name \"$(printf 'Ren\\351')\"; git config core.hooksPath tools/hooks",
            to_hook,
            "tools/hooks",
        ),
        (
            "a repository below",
            "git init -q sub; cd sub; mkdir -p tools/hooks; touch tools/hooks/pre-commit; git config core.hooksPath tools/hooks",
            "evil sub/tools/hooks/pre-commit",
            "sub/tools/hooks",
        ),
    ];
    let commit = "for d in . sub; do (cd $d 2>/dev/null && git commit -q --allow-empty -m next); done || true";
    for (way, host, agent, names) in ways {
        let bed = Bed::new();
        bed.host(INIT);
        bed.host(host);
        let canary = bed.base.path().join("canary");
        let change = bed.begin();
        bed.agent_over(&change, &format!("{EVIL} {agent}"));
        let applied = apply(&bed, &change, &[]);
        assert!(bed.read("fine").is_some(), "{way}: {applied:?}");
        bed.host(commit);
        assert!(!canary.exists(), "{way}: {applied:?}");
        assert!(!applied.held.is_empty(), "{way}: {applied:?}");
        // Named, it is the user's choice: so the attack itself works.
        let names: Vec<&str> = names.split(' ').collect();
        let applied = apply(&bed, &change, &names);
        assert!(applied.done > 0, "{way}: {applied:?}");
        bed.host(commit);
        assert!(canary.exists(), "{way}: {applied:?}");
    }
}

#[test]
fn what_settings_and_hooks_do_not_name_comes_over() {
    let bed = Bed::new();
    bed.host(INIT);
    bed.host("printf '#!/bin/sh\\n# see ./docs/hooks.md\\nmake check src\\n' >.git/hooks/pre-commit; git config core.pager 'less -R'; git config alias.l 'log --oneline'");
    let change = bed.begin();
    bed.agent_over(
        &change,
        "mkdir -p docs src; echo x >docs/hooks.md; echo x >src/main.c; echo x >tools/hooks/pre-commit; echo x >less; echo x >log",
    );
    let applied = apply(&bed, &change, &[]);
    assert!(applied.held.is_empty(), "{applied:?}");
    assert!(bed.read("src/main.c").is_some() && bed.read("docs/hooks.md").is_some());
}
