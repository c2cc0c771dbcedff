//! The planting attacks of the catalogue (PS and FS) in a copy-on-write workspace whose user then applies the change:
//! what the host would execute or trust stays aside, at any depth, whether it was there or not, and what is harmless
//! comes over.

use ironcage_tests::{Running, Stage, either};
use std::time::Duration;

fn apply(stage: &Stage) -> String {
    let ran = Running::start(&mut stage.ironcage(["apply"]))
        .finish(Duration::from_secs(60))
        .ok();
    ran.stdout()
}

/// Plants by each way that a name can come to hold something else, and a harmless file beside it.
fn plant(stage: &Stage, names: &[&str]) {
    for (number, name) in names.iter().enumerate() {
        let put = match number % 3 {
            0 => "echo evil > $1",
            1 => "echo evil > made && mv made $1",
            _ => "echo evil > made && ln -f made $1 && rm made",
        };
        let script = format!(
            "mkdir -p $(dirname $1) && {put} && chmod 755 $1; echo fine > $(dirname $1)/fine-{number}.txt"
        );
        stage
            .run(&["-q"], &["/bin/sh", "-c", &script, "sh", name])
            .ok();
    }
    let told = apply(stage);
    for (number, name) in names.iter().enumerate() {
        let content = stage.read(name);
        assert!(
            content.as_deref() != Some("evil\n"),
            "{name} came over\n{told}"
        );
        // A directory that is withheld takes what lies in it along.
        let around = std::path::Path::new(name).parent().expect("a parent");
        let beside = stage.read(around.join(format!("fine-{number}.txt")));
        let whole = around
            .components()
            .any(|part| part.as_os_str().to_string_lossy().starts_with('.'));
        assert!(
            whole || beside.is_some(),
            "what lies beside {name} did not come over\n{told}"
        );
        assert!(told.contains("pending"), "{told}");
    }
}

either! {
    fn ps_01_and_fs_03_hooks_and_settings_of_git(stage) {
        stage.sh_outside("git init -q . && git config user.name n && git config user.email e").ok();
        let config = stage.read(".git/config");
        plant(stage, &[".git/hooks/pre-commit", ".git/config", ".git/commondir", ".git/info/attributes", ".git/objects/info/alternates"]);
        assert_eq!(stage.read(".git/config"), config);
        assert_eq!(stage.read(".git/commondir"), None);
    }

    fn ps_02_settings_of_editors_agents_and_shells_that_are_there(stage) {
        let names = [".vscode/tasks.json", ".envrc", ".claude/settings.json", ".cursor/mcp.json", ".mcp.json", ".codex/config.toml"];
        for name in names {
            stage.write(stage.project().join(name), "mine\n");
        }
        plant(stage, &names);
        for name in names {
            assert_eq!(stage.read(name).as_deref(), Some("mine\n"), "{name}");
        }
    }

    fn fs_06_and_ps_02_control_files_that_were_not_there_at_any_depth(stage) {
        plant(stage, &[".mcp.json", "sub/.envrc", "sub/deep/.vscode/tasks.json", ".devcontainer/devcontainer.json", "sub/.claude/settings.json", ".husky/pre-commit"]);
    }

    fn ps_05_and_ps_06_programs_that_shadow_others(stage) {
        stage.write(stage.project().join(".venv/bin/python"), "mine\n");
        stage.sh("mkdir -p env/bin && echo home = /usr/bin > env/pyvenv.cfg && for f in .venv/bin/python .venv/bin/pip env/bin/python; do
            echo evil > $f && chmod +x $f || exit 1; done && echo 'all:' > Makefile && echo fine > fine").ok();
        let told = apply(stage);
        // A build file is flagged: it comes over, and that is said. The programs of a Python environment are withheld,
        // also where nothing but their place tells what they are.
        assert!(stage.read("fine").is_some() && told.contains("applied   Makefile"), "{told}");
        assert_eq!(stage.read(".venv/bin/python").as_deref(), Some("mine\n"), "{told}");
        for name in [".venv/bin/pip", "env/bin/python", "env/pyvenv.cfg"] {
            assert_eq!(stage.read(name), None, "{name}: {told}");
        }
        // An environment is one line and one decision: a part of it is not enough.
        let lines = |tree: &str| told.lines().filter(|line| line.contains(&format!("pending   {tree}"))).count();
        assert_eq!((lines(".venv"), lines("env")), (1, 1), "{told}");
        Running::start(&mut stage.ironcage(["apply", ".venv/bin"])).finish(Duration::from_secs(60)).ok();
        assert_eq!(stage.read(".venv/bin/python").as_deref(), Some("mine\n"));
        Running::start(&mut stage.ironcage(["apply", ".venv"])).finish(Duration::from_secs(60)).ok();
        assert_eq!(stage.read(".venv/bin/python").as_deref(), Some("evil\n"));
        assert_eq!(stage.read(".venv/bin/pip").as_deref(), Some("evil\n"));
    }

    fn ps_02_other_names_of_the_same_tools(stage) {
        plant(stage, &[".config/lefthook-local.yaml", "sub/lefthook.jsonc", "mise.local.toml", ".config/mise/config.toml", "opencode.jsonc", "sub/.helix/languages.toml",
            ".bsp/sbt.json", "hie.yaml", ".pnp.cjs", ".pnpmfile.mjs", "sub/.huskyrc.cjs"]);
    }

    fn build_files_under_other_names_come_over_and_are_told(stage) {
        let names = ["compose.override.yml", "Taskfile.dist.yaml", ".justfile", ".prettierrc.toml", "vite.config.mts", "pnpm-workspace.yaml"];
        for name in names {
            stage.run(&["-q"], &["/bin/sh", "-c", "mkdir -p $(dirname $1) && echo x > $1 && echo x > fine", "sh", name]).ok();
        }
        let told = apply(stage);
        for name in names {
            assert_eq!(stage.read(name).as_deref(), Some("x\n"), "{name}: {told}");
            assert!(told.contains(&format!("applied   {name}: ")), "{name}: {told}");
        }
        assert!(!told.contains("fine"), "{told}");
    }

    fn ps_02_pipelines_that_any_push_executes_stay_aside_until_they_are_named(stage) {
        stage.write(stage.project().join(".github/workflows/ci.yml"), "steps:\n");
        let script = "mkdir -p .gitea/workflows && for name in .github/workflows/ci.yml .gitea/workflows/x.yml .gitlab-ci.yml Jenkinsfile; do echo planted >> $name; done; echo x > .github/CODEOWNERS";
        stage.run(&["-q"], &["/bin/sh", "-c", script]).ok();
        let told = apply(stage);
        assert_eq!(stage.read(".github/workflows/ci.yml").as_deref(), Some("steps:\n"), "{told}");
        for name in [".gitea/workflows/x.yml", ".gitlab-ci.yml", "Jenkinsfile"] {
            assert_eq!(stage.read(name), None, "{name}: {told}");
        }
        assert_eq!(stage.read(".github/CODEOWNERS").as_deref(), Some("x\n"), "{told}");
        assert!(told.contains("pending   .github/workflows"), "{told}");
        for name in [".github/workflows/ci.yml", ".gitlab-ci.yml"] {
            Running::start(&mut stage.ironcage(["apply", name])).finish(Duration::from_secs(60)).ok();
            assert!(stage.read(name).is_some_and(|text| text.ends_with("planted\n")), "{name}");
        }
        assert_eq!(stage.read("Jenkinsfile"), None, "what was not named");
    }

    /// make and npm say themselves that what came over is what they run, and what stayed aside is not.
    fn the_tools_themselves_do_not_run_what_stayed_aside(stage) {
        stage.write(stage.project().join("package.json"), r#"{"name": "x", "version": "1.0.0", "scripts": {"go": "echo script-ran"}}"#);
        stage.write(stage.project().join("Makefile"), "go:\n\t@echo old\n");
        // .npmrc names the shell by which npm runs scripts.
        stage.sh("printf 'script-shell=%s/evil.sh\\n' \"$PWD\" > .npmrc && printf '#!/bin/sh\\necho evil-ran\\n' > evil.sh && chmod +x evil.sh && printf 'go:\\n\\t@echo new\\n' > GNUmakefile").ok();
        let told = apply(stage);
        assert!(told.contains("pending   .npmrc") && told.contains("applied   GNUmakefile"), "{told}");
        assert_eq!(stage.sh_outside("make -s go").ok().stdout(), "new\n");
        if stage.sh_outside("command -v npm >/dev/null").code() != 0 {
            return ironcage_tests::skip("npm is not on this machine");
        }
        let npm = |stage: &Stage| stage.sh_outside("npm run -s go").ok().stdout();
        assert_eq!(npm(stage), "script-ran\n");
        Running::start(&mut stage.ironcage(["apply", ".npmrc"])).finish(Duration::from_secs(60)).ok();
        assert_eq!(npm(stage), "evil-ran\n", "npm obeys .npmrc, so the test would have noticed");
    }

    fn ps_05_programs_in_a_directory_of_the_search_path_that_a_link_leads_to(stage) {
        // A link above the workspace, and a directory that is not there yet.
        let above = stage.base().join("above");
        std::os::unix::fs::symlink(stage.home(), &above).expect("a link");
        stage.write(stage.project().join("tools/bin/mine"), "#!/bin/sh\necho mine\n");
        let path = format!("{}/project/late/bin:{}/project/tools/bin:/usr/bin:/bin", above.display(), above.display());
        // The agent moves what is on the search path away and leads it elsewhere.
        stage.sh("set -e; program() { mkdir -p $(dirname $1); printf '#!/bin/sh\\necho evil\\n' > $1; chmod +x $1; }
            program late/bin/ls; program other/bin/mine; program elsewhere/tool; rm -r tools; ln -s other tools").ok();
        let mut command = stage.ironcage(["apply"]);
        let told = Running::start(command.env("PATH", &path)).finish(Duration::from_secs(60)).ok().stdout();
        let run = |program: &str| stage.sh_outside(&format!("PATH={path}; export PATH; {program} 2>&1; true")).ok().stdout();
        assert!(!run("ls").contains("evil") && !run("mine").contains("evil"), "{told}");
        for name in ["late/bin/ls", "other/bin/mine", "tools"] {
            assert!(told.contains(&format!("pending   {name}")), "{name}: {told}");
        }
        assert!(stage.project().join("elsewhere/tool").exists(), "{told}");
        let mut command = stage.ironcage(["apply", "late/bin/ls"]);
        Running::start(command.env("PATH", &path)).finish(Duration::from_secs(60)).ok();
        assert_eq!(run("ls"), "evil\n");
    }

    fn a_directory_that_git_would_take_for_a_repository_and_an_index_that_hides_a_file(stage) {
        stage.sh_outside("git init -q . && git config user.name n && git config user.email e && git config extensions.worktreeConfig true &&
            echo 1 > file && git add file && git commit -q -m first").ok();
        let canary = stage.home().join("canary");
        let script = format!(
            "mkdir d && echo 'ref: refs/heads/main' > d/HEAD && echo ../.git > d/commondir && echo fine > d/fine.txt &&
             printf '[core]\\n\\tworktree = %s\\n\\tfsmonitor = touch {}; false\\n' \"$PWD\" > d/config.worktree &&
             git update-index --add --cacheinfo 100644,$(echo evil | git hash-object -w --stdin),hidden",
            canary.display()
        );
        stage.sh(&script).ok();
        let told = apply(stage);
        for name in ["d/HEAD", "d/commondir", "d/config.worktree", "hidden"] {
            assert!(told.contains(name), "{name}: {told}");
        }
        assert_eq!(stage.read("d/fine.txt").as_deref(), Some("fine\n"), "{told}");
        let own = stage.sh_outside("cd d && git status --porcelain && git add . && git commit -q -m mine && git fsck && git rev-parse --absolute-git-dir").ok();
        assert!(own.stdout().contains(&stage.project().join(".git").display().to_string()), "{own:?}");
        assert!(!canary.exists(), "{told}");
        assert_eq!(stage.sh_outside("git ls-tree -r --name-only HEAD").ok().stdout(), "d/fine.txt\nfile\n");
    }
}
