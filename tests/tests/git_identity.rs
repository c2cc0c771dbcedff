//! `git commit` works at once and is the user's; nothing else of the user's settings comes in.

use ironcage_tests::{Stage, either, skip};

fn repository(stage: &Stage) -> bool {
    stage.write(
        stage.home().join(".gitconfig"),
        "[user]\n\tname = Ann \\\"A\\\" Example\n\temail = ann@example.org\n[alias]\n\thi = !echo alias\n\
         [commit]\n\tgpgsign = true\n[core]\n\thooksPath = /nowhere\n[init]\n\tdefaultBranch = trunk\n",
    );
    if stage.sh_outside("git init -q .").code() != 0 {
        skip("needs git");
        return false;
    }
    true
}

either! {
    fn a_commit_has_the_users_name(stage) {
        if !repository(stage) {
            return;
        }
        let commit = "echo 1 > file && git add file && git commit -q -m first";
        stage.sh(commit).ok();
        let author = stage.sh("git log -1 --format='%an <%ae> %cn'").ok().stdout();
        assert_eq!(author.trim(), "Ann \"A\" Example <ann@example.org> Ann \"A\" Example");
        assert_eq!(stage.sh("git symbolic-ref --short HEAD").ok().stdout().trim(), "trunk");
    }

    fn aliases_hooks_and_signing_stay_outside(stage) {
        if !repository(stage) {
            return;
        }
        assert_eq!(stage.sh_outside("git hi").ok().stdout().trim(), "alias");
        assert_ne!(stage.sh("git hi").code(), 0);
        let settings = stage.sh("git config --list --name-only").ok().stdout();
        for key in ["alias.", "gpgsign", "hookspath"] {
            assert!(!settings.contains(key), "{settings}");
        }
        assert!(settings.contains("user.email"), "{settings}");
    }

    fn code_nobody_has_read_does_not_learn_who_the_user_is(stage) {
        if !repository(stage) {
            return;
        }
        let ran = stage.sh_with(&["--profile", "strict"], "cat /etc/gitconfig; git config user.email").ended(1);
        assert!(!ran.stdout().contains("ann@"), "{ran:?}");
        assert!(stage.sh("git config user.email").ok().stdout().contains("ann@"));
    }
}
