//! The copy-on-write workspace in real cages: what the agent does there stays aside, and the
//! limits of that are the ones that are written down.

use ironcage_tests::{Running, Stage, both, tree};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const COW: [&str; 3] = ["-q", "--workspace-mode", "cow"];
const DEADLINE: Duration = Duration::from_secs(60);

fn fill(stage: &Stage) {
    stage.write(stage.project().join("kept"), "as it was");
    stage.write(stage.project().join("src/deep/file"), "deep");
    stage.write(stage.project().join(".git/hooks/pre-commit.sample"), "");
    stage.write(stage.project().join(".git/config"), "[core]\n");
}

/// Every file with its mode and what is in it.
fn bytes(below: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    tree(below)
        .into_iter()
        .map(|path| {
            let mode = fs::symlink_metadata(&path).expect("its mode").mode();
            let content = fs::read(&path).unwrap_or_default();
            (path, mode, content)
        })
        .collect()
}

/// The upper directory of the only pending change's workspace.
fn upper(stage: &Stage) -> PathBuf {
    let changes = stage.state().join("ironcage/changes");
    let mut found = Vec::new();
    for workspace in fs::read_dir(changes).expect("the store") {
        for entry in fs::read_dir(workspace.expect("a workspace").path()).expect("changes") {
            let upper = entry.expect("a change").path().join("upper");
            found.extend(upper.is_dir().then_some(upper));
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn pending(stage: &Stage) -> usize {
    let changes = stage.state().join("ironcage/changes");
    let Ok(workspaces) = fs::read_dir(changes) else {
        return 0;
    };
    workspaces
        .filter_map(|workspace| fs::read_dir(workspace.ok()?.path()).ok())
        .flatten()
        .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()))
        .count()
}

both! {
    fn whatever_is_destroyed_inside_is_there_outside(stage) {
        fill(stage);
        let before = bytes(&stage.project());
        let ran = stage.sh_with(&COW, "chmod -R u+w .; rm -rf ./* ./.[a-z]*; ls -A | wc -l; echo evil > kept").ok();
        assert_eq!(ran.stdout().trim(), "0");
        assert_eq!(bytes(&stage.project()), before);
        // The allowing arm: the real files are what the other mode destroys.
        stage.sh_with(&["-q", "--workspace-mode", "direct"], "echo direct > kept").ok();
        assert_eq!(stage.read("kept").as_deref(), Some("direct\n"));
    }

    fn nothing_planted_is_there_for_the_host_to_run(stage) {
        fill(stage);
        let before = bytes(&stage.project());
        let plant = "for f in .git/hooks/pre-commit .git/commondir .vscode/tasks.json .envrc .mcp.json AGENTS.md a/b/c/.envrc; do
            mkdir -p $(dirname $f) && echo evil > $f || exit 1; done; echo '[core] fsmonitor = evil' >> .git/config";
        stage.sh_with(&COW, plant).ok();
        assert_eq!(bytes(&stage.project()), before);
    }

    fn what_is_written_belongs_to_the_owner_of_the_workspace(stage) {
        fill(stage);
        stage.sh_with(&COW, "echo new > made; echo more >> src/deep/file; mkdir d; ln -s x link").ok();
        let owner = fs::metadata(stage.project()).expect("the project").uid();
        for name in ["made", "src", "src/deep", "src/deep/file", "d", "link"] {
            let made = fs::symlink_metadata(upper(stage).join(name)).expect(name);
            assert_eq!(made.uid(), owner, "{name}");
        }
        assert_eq!(fs::read_to_string(upper(stage).join("src/deep/file")).expect("the copy"), "deepmore\n");
    }

    fn a_run_goes_on_where_the_last_one_ended_unless_it_is_to_be_fresh(stage) {
        fill(stage);
        let cow = ["--workspace-mode", "cow"];
        stage.sh_with(&cow, "echo first > made; rm kept").ok().says("pending change w");
        stage.sh_with(&cow, "cat made; test ! -e kept").ok().says("continuing pending change");
        let fresh = [cow[0], cow[1], "--fresh"];
        let ran = stage.sh_with(&fresh, "test ! -e made && cat kept").ok();
        assert_eq!(ran.stdout(), "as it was");
        // A change in which nothing is does not stay.
        assert_eq!(pending(stage), 1);
    }

    fn two_cages_do_not_share_a_change(stage) {
        fill(stage);
        stage.sh_with(&COW, "echo first > made").ok();
        let mut running = Running::start(&mut stage.cage(&COW, &["/bin/sh", "-c", "echo up; read line"]));
        let mut line = String::new();
        BufReader::new(running.stdout()).read_line(&mut line).expect("it is up");
        let second = stage.sh_with(&["--workspace-mode", "cow"], "test ! -e made && echo x > second").ok();
        second.says("another cage works on pending change");
        running.finish(DEADLINE);
        // The first is the one to go on with.
        stage.sh_with(&COW, "test -e made && test ! -e second").ok();
        assert_eq!(pending(stage), 2);
    }

    fn directories_beside_the_workspace_are_kept_aside_too_unless_they_are_direct(stage) {
        fill(stage);
        stage.write(stage.aside().join("data"), "as it was");
        let aside = stage.aside().display().to_string();
        let write = format!("echo changed > {aside}/data; cat {aside}/data");
        let ran = stage.sh_with(&[COW[0], COW[1], COW[2], "-w", &aside], &write).ok();
        assert_eq!(ran.stdout(), "changed\n");
        assert_eq!(fs::read_to_string(stage.aside().join("data")).expect("it"), "as it was");
        let direct = format!("{aside}:direct");
        stage.sh_with(&[COW[0], COW[1], COW[2], "-w", &direct], &write).ok();
        assert_eq!(fs::read_to_string(stage.aside().join("data")).expect("it"), "changed\n");
        // A single file has no copy-on-write view, and is not given in another way instead.
        let file = format!("{aside}/data");
        stage.sh_with(&[COW[0], COW[1], COW[2], "-w", &file], "true").ended(125).denied("start-copy-on-write");
    }

    fn an_agent_commits_in_a_worktree_and_the_repository_does_not_move(stage) {
        stage.sh_outside("git init -q -b main ../main && cd ../main && git config user.name n && git config user.email e &&
            git commit -q --allow-empty -m one && git worktree add -q ../tree").ok();
        let before = bytes(&stage.home().join("main"));
        let worktree = stage.home().join("tree").display().to_string();
        let flags = [COW[0], COW[1], COW[2], "--workspace", &worktree];
        let ran = stage.sh_with(&flags, "echo x > f && git add f && git commit -q -m two && git log --oneline | wc -l").ok();
        assert_eq!(ran.stdout().trim(), "2");
        assert_eq!(bytes(&stage.home().join("main")), before);
        // A pointer to a repository that does not point back opens nothing.
        stage.write(stage.project().join(".git"), format!("gitdir: {}\n", stage.home().join("main/.git").display()));
        let git = stage.home().join("main/.git").display().to_string();
        stage.sh_with(&COW, &format!("test ! -e {git}")).ok();
    }

    fn renaming_a_directory_of_the_real_tree_is_refused_as_across_file_systems(stage) {
        fill(stage);
        let rename = "perl -e 'rename($ARGV[0], $ARGV[1]) or die $!+0' src moved";
        let ran = stage.sh_with(&COW, rename);
        assert_eq!(ran.code(), 18, "EXDEV: {ran:?}");
        // What programs do then, and a directory that the agent made itself.
        stage.sh_with(&COW, "mv src moved && cat moved/deep/file && test ! -e src").ok();
        let made = "mkdir mine && perl -e 'rename($ARGV[0], $ARGV[1]) or die $!+0' mine yours";
        stage.sh_with(&COW, made).ok();
    }

    fn writing_one_of_two_names_of_a_real_file_parts_them(stage) {
        fill(stage);
        fs::hard_link(stage.project().join("kept"), stage.project().join("other")).expect("a link");
        let ran = stage.sh_with(&COW, "echo changed > kept; cat other; ln kept third; echo again > third; cat kept").ok();
        assert_eq!(ran.stdout(), "as it wasagain\n");
    }

    fn what_is_hidden_in_it_stays_hidden_and_what_is_read_only_stays_so(stage) {
        fill(stage);
        stage.write(stage.project().join("secrets/key"), "CANARY");
        let hide = [COW[0], COW[1], COW[2], "--hide", "secrets", "-r", "src"];
        let ran = stage.sh_with(&hide, "cat secrets/key; mv secrets s2; cat s2/key; echo x > src/deep/file; cat kept; true").ok();
        assert_eq!(ran.stdout(), "as it was", "{ran:?}");
    }

    fn what_the_host_changes_meanwhile_is_seen_as_the_guide_says(stage) {
        for name in ["in-place", "saved", "mine", "unseen/file"] {
            stage.write(stage.project().join(name), "old");
        }
        let script = "cat in-place saved >/dev/null; cat missing 2>/dev/null; echo agent > mine; echo up; read line;
            cat in-place mine unseen/file unseen/new; ls | tr '\\n' ' '; cat saved";
        let mut running = Running::start(&mut stage.cage(&COW, &["/bin/sh", "-c", script]));
        let (mut stdin, mut stdout) = (running.stdin(), BufReader::new(running.stdout()));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it is up");
        for name in ["in-place", "mine", "unseen/file", "unseen/new", "missing"] {
            stage.write(stage.project().join(name), "new ");
        }
        stage.write(stage.project().join("saved.tmp"), "new ");
        fs::rename(stage.project().join("saved.tmp"), stage.project().join("saved")).expect("saved");
        stdin.write_all(b"go\n").expect("it goes on");
        let mut said = String::new();
        stdout.read_to_string(&mut said).expect("what it sees");
        running.finish(DEADLINE).ok();
        let seen = said.strip_prefix("new agent\nnew new ").expect(&said);
        assert!(seen.starts_with("in-place mine missing saved unseen "), "{said}");
        // The kernel may remember the file that was there before; it never mixes the two.
        assert!(seen.ends_with(" old") || seen.ends_with(" new "), "{said}");
        // And the host has its own versions of all of them.
        assert_eq!(stage.read("mine").as_deref(), Some("new "));
        assert_eq!(fs::read_to_string(upper(stage).join("mine")).expect("the agent's"), "agent\n");
    }

    fn a_checkout_of_the_hosts_during_a_run_is_seen_as_the_guide_says(stage) {
        stage.sh_outside("git init -q -b main . && git config user.name n && git config user.email e && mkdir unseen &&
            echo main > both && echo main > only && echo main > unseen/file && git add . && git commit -q -m main &&
            git checkout -q -b other && for f in both only unseen/file; do echo other > $f; done && git commit -q -a -m other &&
            git checkout -q main").ok();
        let script = "cat only both >/dev/null; echo agents > both; echo up; read line; cat both unseen/file only";
        let mut running = Running::start(&mut stage.cage(&COW, &["/bin/sh", "-c", script]));
        let (mut stdin, mut stdout) = (running.stdin(), BufReader::new(running.stdout()));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it is up");
        stage.sh_outside("git checkout -q other").ok();
        stdin.write_all(b"go\n").expect("it goes on");
        let mut said = String::new();
        stdout.read_to_string(&mut said).expect("what it sees");
        running.finish(DEADLINE).ok();
        // Its own stays its own, what it had not looked at is new, what it had is one of the two.
        assert!(["agents\nother\nmain\n", "agents\nother\nother\n"].contains(&said.as_str()), "{said}");
        // Both changed one file: a conflict, and both versions stay.
        let applied = Running::start(&mut stage.ironcage(["apply"])).finish(DEADLINE).ended(1);
        assert!(applied.stdout().contains("both: it changed in the real tree too"), "{applied:?}");
        assert_eq!(stage.read("both").as_deref(), Some("other\n"));
        assert_eq!(fs::read_to_string(upper(stage).join("both")).expect("the agent's"), "agents\n");
        assert_eq!(stage.sh_outside("git status --porcelain && git branch --show-current").ok().stdout(), "other\n");
    }
}
