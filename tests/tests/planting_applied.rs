//! The planting attacks of the catalogue (PS and FS) in a copy-on-write workspace whose user then applies the change:
//! what the host would execute or trust stays aside, at any depth, whether it was there or not, and what is harmless
//! comes over.

use ironcage_tests::{Running, Stage, both};
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
        assert!(told.contains("aside"), "{told}");
    }
}

both! {
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
        Running::start(&mut stage.ironcage(["apply", ".venv/bin"])).finish(Duration::from_secs(60)).ok();
        assert_eq!(stage.read(".venv/bin/python").as_deref(), Some("evil\n"));
    }
}
