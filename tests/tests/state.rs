//! What outlives a cage: for each workspace its own, never the user's copies.

use ironcage_tests::{Ran, Running, Stage, both, tree};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

const AGENT: [&str; 2] = ["--profile", "coding-agent"];

fn state(stage: &Stage, args: &[&str]) -> Ran {
    let mut command = stage.ironcage(["state"]);
    Running::start(command.args(args)).finish(Duration::from_secs(120))
}

/// A directory of the user's own that a cage must neither read nor change.
fn own_login(stage: &Stage) -> PathBuf {
    let login = stage.home().join(".claude/settings.json");
    stage.write(&login, "canary");
    stage.write(stage.home().join(".claude.json"), "canary");
    login
}

both! {
    fn what_a_profile_keeps_is_there_in_the_next_run_and_the_users_own_is_not(stage) {
        let login = own_login(stage);
        let first = stage.sh_with(&AGENT, "cat ~/.claude/* ~/.claude.json; echo kept > ~/.claude/settings.json; echo gone > ~/other").stdout();
        assert!(!first.contains("canary"), "{first}");
        let second = stage.sh_with(&AGENT, "cat ~/.claude/settings.json; test ! -e ~/other").ok();
        assert_eq!(second.stdout().trim(), "kept");
        assert_eq!(std::fs::read_to_string(login).expect("the user's own"), "canary");
    }

    fn a_file_that_is_saved_by_rename_is_kept(stage) {
        let save = "set -e; cd $CLAUDE_CONFIG_DIR; echo $1 > .claude.json.new; mv .claude.json.new .claude.json; \
                    echo $1 > $HISTFILE.new; mv $HISTFILE.new $HISTFILE";
        for word in ["one", "two"] {
            stage.run(&AGENT, &["/bin/sh", "-c", save, "sh", word]).ok();
        }
        let ran = stage.sh_with(&AGENT, "cat ~/.claude/.claude.json $HISTFILE").ok();
        assert_eq!(ran.stdout(), "two\ntwo\n");
        assert!(tree(&stage.home()).iter().all(|path| !path.ends_with(".claude.json")));
    }

    fn the_agent_owns_the_directories_around_what_is_kept(stage) {
        stage.sh_with(&AGENT, "mkdir ~/.config/tool && touch ~/.config/opencode/x ~/.local/share/y").ok();
        stage.sh_with(&AGENT, "test -e ~/.config/opencode/x && test ! -e ~/.config/tool").ok();
    }

    fn two_workspaces_share_nothing(stage) {
        let other = stage.home().join("other");
        stage.mkdir(&other);
        stage.sh_with(&AGENT, "echo 1 > ~/.claude/x; echo 1 > $CARGO_HOME/x || mkdir -p $CARGO_HOME && echo 1 > $CARGO_HOME/x").ok();
        let other = other.display().to_string();
        let flags = [AGENT[0], AGENT[1], "--workspace", &other];
        stage.sh_with(&flags, "test ! -e ~/.claude/x && test ! -e $CARGO_HOME/x").ok();
        stage.sh_with(&AGENT, "test -e ~/.claude/x && test -e $CARGO_HOME/x").ok();
    }

    fn a_cache_is_of_one_profile_and_never_the_hosts(stage) {
        stage.write(stage.home().join(".cache/pip/x"), "canary");
        let python = ["--profile", "python"];
        stage.sh_with(&python, "mkdir -p $PIP_CACHE_DIR && test ! -e $PIP_CACHE_DIR/x && echo 1 > $PIP_CACHE_DIR/mine").ok();
        stage.sh_with(&python, "cat $PIP_CACHE_DIR/mine").ok();
        stage.sh_with(&AGENT, "test ! -e $PIP_CACHE_DIR/mine").ok();
        stage.sh_with(&["--profile", "shell"], "test -z \"$PIP_CACHE_DIR\" && test ! -e /var/cache/cage").ok();
        assert!(!stage.home().join(".cache/pip/mine").exists());
    }

    fn a_path_is_kept_by_a_flag_and_nothing_by_another(stage) {
        stage.sh_with(&["--state", ".tool"], "echo 1 > ~/.tool/x").ok();
        stage.sh_with(&["--state", "~/.tool"], "cat ~/.tool/x").ok();
        stage.sh("test ! -e ~/.tool").ok();
        stage.sh_with(&AGENT, "echo 1 > ~/.claude/x").ok();
        let none = [AGENT[0], AGENT[1], "--no-state"];
        stage.sh_with(&none, "test ! -e ~/.claude && test -z \"$CARGO_HOME\"").ok();
        stage.sh_with(&["--state", "/etc"], "true").ended(125).says("cannot keep");
    }

    fn all_of_what_is_kept_is_counted(stage) {
        stage.sh_with(&["--state", ".tool"], "head -c 100000 /dev/zero > ~/.tool/x").ok();
        let listed = state(stage, &["list", "--json"]).ok().stdout();
        assert!(listed.contains("\"partial\":false") && !listed.contains("\"home_bytes\":0"), "{listed}");
    }

    fn a_single_file_is_kept_where_the_user_has_one(stage) {
        stage.write(stage.home().join(".toolrc"), "canary");
        stage.sh_with(&["--state", ".toolrc"], "test ! -s ~/.toolrc && echo mine >> ~/.toolrc").ok();
        let ran = stage.sh_with(&["--state", ".toolrc"], "cat ~/.toolrc").ok();
        assert_eq!(ran.stdout(), "mine\n");
    }

    fn reset_removes_it_however_deep_and_closed_it_is(stage) {
        let deep = "cd ~/.claude && i=0; while [ $i -lt 300 ]; do mkdir dddddddddddddddd && cd dddddddddddddddd; i=$((i+1)); done; \
                    cd ~/.claude && mkdir closed && touch closed/x && ln -s /etc closed/link && chmod 0 closed";
        stage.sh_with(&AGENT, deep).ok();
        let kept = stage.state().join("ironcage/kept");
        let listed = state(stage, &["list"]).ok().stdout();
        assert!(listed.contains("/home/project"), "{listed}");
        assert!(listed.contains("in directories that cannot be read"), "{listed}");
        // Nobody is there to ask: nothing is done.
        state(stage, &["reset"]).failed("confirmation-needed");
        state(stage, &["reset", "--yes"]).ok();
        assert_eq!(std::fs::read_dir(&kept).expect("the place").count(), 0, "{:?}", tree(&kept));
        assert_eq!(state(stage, &["list"]).ok().stdout(), "nothing is kept for any workspace\n");
        stage.sh_with(&AGENT, "test ! -e ~/.claude/closed").ok();
        state(stage, &["reset", "--all", "--yes"]).ok();
        assert_eq!(std::fs::read_dir(&kept).expect("the place").count(), 0);
    }

    fn the_places_are_private_and_no_other_cage_sees_them(stage) {
        stage.sh_with(&AGENT, "touch ~/.claude/x").ok();
        let kept = stage.state().join("ironcage/kept");
        for path in tree(&kept).iter().filter(|path| path.is_dir()).chain([&kept]) {
            let metadata = path.metadata().expect("what was made");
            assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (0o700, stage.uid()), "{}", path.display());
        }
        let ran = stage.sh_with(&AGENT, &format!("ls {}", kept.display()));
        assert_ne!(ran.code(), 0);
        let read = ["-r", kept.to_str().expect("text")];
        stage.sh_with(&read, "true").ended(125).denied("start-path-refused");
    }

    fn a_link_that_an_agent_left_is_not_followed(stage) {
        let target = stage.aside().join("target");
        stage.mkdir(&target);
        let link = format!("ln -s {} ~/.tool/sub", target.display());
        stage.sh_with(&["--state", ".tool"], &link).ok();
        stage.sh_with(&["--state", ".tool/sub/new"], "true").ended(125).says("state reset");
        assert!(!target.join("new").exists());
        state(stage, &["reset", "--yes"]).ok();
        assert!(target.exists());
        stage.sh_with(&["--state", ".tool/sub/new"], "true").ok();
    }

    fn import_copies_and_credentials_only_by_explicit_word(stage) {
        own_login(stage);
        stage.write(stage.home().join(".tool/settings"), "mine");
        symlink("/etc/passwd", stage.home().join(".tool/link")).expect("a link");
        let home = stage.home().display().to_string();
        state(stage, &["import", &format!("{home}/.tool")]).failed("confirmation-needed");
        let told = state(stage, &["import", "--yes", &format!("{home}/.tool")]).ok().stdout();
        assert!(told.contains("skipped") && told.contains(".tool/link"), "{told}");
        let ran = stage.sh_with(&["--state", ".tool"], "cat ~/.tool/settings; test ! -e ~/.tool/link && echo new > ~/.tool/settings").ok();
        assert_eq!(ran.stdout(), "mine");
        let again = format!("{home}/.tool");
        state(stage, &["import", "--yes", &again]).ended(125).says("--replace");
        state(stage, &["import", "--yes", "--replace", &again]).ok();
        let ran = stage.sh_with(&["--state", ".tool"], "cat ~/.tool/settings").ok();
        assert_eq!(ran.stdout(), "mine");
        let login = format!("{home}/.claude.json");
        state(stage, &["import", &login]).ended(125).says("--i-know");
        stage.sh_with(&AGENT, "test ! -e ~/.claude/.claude.json").ok();
        state(stage, &["import", "--yes", "--i-know", &login]).ok();
        let ran = stage.sh_with(&AGENT, "cat $CLAUDE_CONFIG_DIR/.claude.json").ok();
        assert_eq!(ran.stdout(), "canary");
        state(stage, &["import", "/etc/passwd"]).ended(125).says("not below your home");
    }
}
