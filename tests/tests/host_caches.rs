//! The user's own caches, read through those of the cage: what was downloaded is there, the agent's changes are kept
//! aside, and neither credentials nor what lies beside a cache is in view.

use ironcage_tests::{DIRECT, Running, Stage, either, wait_until};
use std::time::Duration;

const AGENT: [&str; 2] = ["--profile", "coding-agent"];
const READS: [&str; 3] = ["--profile", "coding-agent", "--host-caches"];

/// Caches of the user's own, with what must stay unseen beside them and in them.
fn caches(stage: &Stage) {
    for (path, content) in [
        (
            ".cargo/registry/cache/index/some-1.0.0.crate",
            "crate of the host\n",
        ),
        (".cargo/credentials.toml", "canary"),
        (".cargo/config.toml", "canary"),
        (".npm/_cacache/content-v2/aa", "package of the host\n"),
        (".npm/_logs/log", "canary"),
        (".npmrc", "canary"),
        (".cache/uv/archive-v0/x", "archive of the host\n"),
        (".cache/uv/git-v0/db/config", "canary"),
        ("go/pkg/mod/cache/download/m", "module of the host\n"),
        ("go/pkg/mod/cache/vcs/x/config", "canary"),
    ] {
        stage.write(stage.home().join(path), content);
    }
}

const READ: &str = "cat $CARGO_HOME/registry/cache/index/some-1.0.0.crate $npm_config_cache/_cacache/content-v2/aa \
    $UV_CACHE_DIR/archive-v0/x $GOMODCACHE/cache/download/m";

either! {
    fn what_the_user_has_downloaded_is_there_where_it_is_asked_for(stage) {
        caches(stage);
        let ran = stage.sh_with(&READS, READ).ok();
        assert_eq!(ran.stdout(), "crate of the host\npackage of the host\narchive of the host\nmodule of the host\n");
        assert_ne!(stage.sh_with(&AGENT, READ).code(), 0, "nobody asked for it");
        stage.write(stage.project().join("ironcage.toml"), "[state]\nhost-caches = true\n");
        let ran = stage.sh_with(&AGENT, READ);
        assert!(ran.code() != 0 && ran.stderr.contains("host-caches"), "a file that is not trusted: {ran:?}");
    }

    fn what_the_agent_changes_is_kept_and_the_users_own_stays(stage) {
        caches(stage);
        let index = "cd $CARGO_HOME/registry/cache/index";
        stage.sh_with(&READS, &format!("{index} && echo changed > some-1.0.0.crate && echo new > new.crate && rm -r ../../../../npm/_cacache/content-v2")).ok();
        let ran = stage.sh_with(&READS, &format!("{index} && cat some-1.0.0.crate new.crate; ls $npm_config_cache/_cacache")).ok();
        assert_eq!(ran.stdout(), "changed\nnew\n");
        let own = stage.sh_outside("cat ~/.cargo/registry/cache/index/* ~/.npm/_cacache/content-v2/*").ok();
        assert_eq!(own.stdout(), "crate of the host\npackage of the host\n");
        Running::start(&mut stage.ironcage(["state", "reset", "--yes", "."])).finish(Duration::from_secs(60)).ok();
        stage.sh_with(&READS, READ).ok();
    }

    fn nothing_beside_a_cache_and_no_credentials_are_in_view(stage) {
        caches(stage);
        let look = "grep -rs canary $CARGO_HOME $npm_config_cache $UV_CACHE_DIR $GOMODCACHE ~ ; ls -A $CARGO_HOME $npm_config_cache";
        let inside = stage.sh_with(&READS, look).stdout();
        assert!(!inside.contains("canary") && !inside.contains("_logs") && !inside.contains("credentials"), "{inside}");
        assert!(inside.contains("_cacache") && inside.contains("registry"), "{inside}");
        let outside = stage.sh_outside("grep -rs canary ~/.cargo ~/.npm ~/.cache/uv ~/go").stdout();
        assert_eq!(outside.lines().count(), 5, "the host has them: {outside}");
    }

    fn a_cache_elsewhere_is_found_by_its_variable_unless_it_is_no_place_for_one(stage) {
        caches(stage);
        let read = "cat $CARGO_HOME/registry/cache/index/some-1.0.0.crate; ls -A $GOMODCACHE";
        let mut cage = stage.cage(&READS, &["/bin/sh", "-c", read]);
        cage.env("CARGO_HOME", stage.aside().join("cargo")).env("GOMODCACHE", stage.home());
        stage.write(stage.aside().join("cargo/registry/cache/index/some-1.0.0.crate"), "moved\n");
        let ran = Running::start(&mut cage).finish(Duration::from_secs(60)).says("is not visible");
        assert_eq!(ran.stdout(), "moved\n");
        // What an agent can write decides nothing.
        let mut cage = stage.cage(&READS, &["/bin/sh", "-c", read]);
        cage.env("CARGO_HOME", stage.project().join("cargo"));
        stage.write(stage.project().join("cargo/registry/cache/index/some-1.0.0.crate"), "planted\n");
        let ran = Running::start(&mut cage).finish(Duration::from_secs(60)).says("agents can write to");
        assert!(!ran.stdout().contains("planted"), "{ran:?}");
    }

    fn a_second_cage_meanwhile_runs_without(stage) {
        caches(stage);
        let mut first = Running::start(&mut stage.cage(&[&READS[..], &DIRECT].concat(), &["/bin/sh", "-c", "touch here; cat; rm here"]));
        let hold = first.stdin();
        assert!(wait_until(Duration::from_secs(60), || stage.project().join("here").exists()));
        let second = stage.sh_with(&READS, READ).says("another cage");
        assert_ne!(second.code(), 0, "{second:?}");
        drop(hold);
        first.finish(Duration::from_secs(60)).ok();
        stage.sh_with(&READS, READ).ok();
    }

    fn a_link_that_an_agent_left_in_its_cache_leads_nowhere(stage) {
        caches(stage);
        stage.mkdir(stage.aside().join("outside"));
        let outside = stage.aside().join("outside");
        stage.sh_with(&AGENT, &format!("ln -s {} $CARGO_HOME", outside.display())).ok();
        stage.sh_with(&READS, "true").ended(125).says("state reset");
        assert!(!outside.join("registry").exists());
    }
}
