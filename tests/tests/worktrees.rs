//! Two cages at the same time on two worktrees of one repository.

use ironcage_tests::{Running, either};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);

either! {
    fn two_cages_commit_and_apply_at_the_same_time_and_each_moves_only_its_own(stage) {
        stage.sh_outside("git init -q -b main ../main && cd ../main && git config user.name n && git config user.email e &&
            echo 0 > file && git add file && git commit -q -m first &&
            git worktree add -q ../one && git worktree add -q ../two").ok();
        let commits = "for i in 1 2 3 4 5; do echo $i > made-$i; git add made-$i; git commit -q -m made-$i; done; git branch side-$1; git tag tag-$1";
        let places: Vec<(&str, String)> = ["one", "two"]
            .map(|name| (name, stage.home().join(name).display().to_string()))
            .to_vec();
        let cages: Vec<Running> = places
            .iter()
            .map(|(name, place)| {
                let flags = ["-q", "--workspace", place.as_str()];
                Running::start(&mut stage.cage(&flags, &["/bin/sh", "-ec", commits, "sh", name]))
            })
            .collect();
        for cage in cages {
            cage.finish(DEADLINE).ok();
        }
        assert_eq!(stage.sh_outside("cd ../main && git for-each-ref --format='%(refname:short)' | tr '\\n' ' '").ok().stdout(), "main one two ");
        let applies: Vec<Running> = places
            .iter()
            .map(|(_, place)| Running::start(&mut stage.ironcage(["apply", "--workspace", place.as_str()])))
            .collect();
        for apply in applies {
            let ran = apply.finish(DEADLINE).ok();
            assert!(!ran.stdout().contains("pending"), "{ran:?}");
        }
        stage.sh_outside("cd ../main && git fsck --strict --no-dangling").ok();
        for (name, place) in &places {
            let log = stage.sh_outside(&format!("cd {place} && git status --porcelain && git log --format=%s")).ok();
            assert_eq!(log.stdout(), "made-5\nmade-4\nmade-3\nmade-2\nmade-1\nfirst\n");
            let refs = format!("cd {place} && git rev-parse HEAD {name} side-{name} tag-{name} | uniq | wc -l");
            assert_eq!(stage.sh_outside(&refs).ok().stdout().trim(), "1");
        }
        let main = stage.sh_outside("cd ../main && git status --porcelain && git log --format=%s main && git rev-parse --abbrev-ref HEAD").ok();
        assert_eq!(main.stdout(), "first\nmain\n");
    }
}
