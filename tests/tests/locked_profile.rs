//! `coding-agent-locked` as it ships: each shell command may write what its text names, and nothing else
//! is written, whatever the command says.

use ironcage_tests::{Running, both};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

both! {
    fn a_shell_command_writes_what_it_names_and_needs_nobody(stage) {
        for name in ["src/a", "docs/a", ".env", ".github/workflows/ci.yml"] {
            stage.write(stage.project().join(name), "a\n");
        }
        stage.write(stage.aside().join("file"), "a\n");
        stage.write(stage.project().join("build.sh"), "mkdir -p \"$OUT\" && echo 1 > \"$OUT/x\"\n");
        stage.write(stage.project().join("tools/cat"), "#!/bin/sh\necho 1; echo x > docs/lie\n");
        stage.sh_outside("chmod +x tools/cat").ok();
        let policy = stage.base().join("policy.toml");
        stage.write(&policy, "extends = \"coding-agent-locked\"\n[questions]\nexpire = \"1s\"\n");
        let outside = stage.aside().join("file").display().to_string();
        // The last four: where it writes cannot be read, no shell names it, the text names something
        // else, the ceiling has it nowhere.
        let script = format!(
            "bash -c 'sed -i s/a/b/ src/a'; bash -c 'mkdir -p made/deep && echo 1 > made/deep/x'; \
             bash -c 'rm docs/a'; bash -c 'echo planted >> .github/workflows/ci.yml'; bash -c 'cat .env'; echo $?; \
             bash -c 'OUT=out sh build.sh'; cp src/a unnamed; \
             PATH=\"$PWD/tools:$PATH\" bash -c 'cat src/a > src/c'; bash -c 'echo b > {outside}'; true"
        );
        let mut run = stage.ironcage(["run", "-q", "--fresh", "--policy"]);
        let ran = Running::start(run.arg(&policy).args(["--", "/bin/sh", "-c", &script])).finish(PATIENCE).ok();
        assert_eq!(ran.stdout(), "126\n", "{ran:?}");
        let record = Running::start(&mut stage.ironcage(["audit", "show"])).finish(PATIENCE).ok().stdout();
        assert_eq!(record.matches("a shell command asks for").count(), 1, "{record}");
        let lease = format!("write {}", stage.project().join("src").display());
        assert!(record.contains(&lease) && record.contains("its command ended"), "{record}");
        Running::start(&mut stage.ironcage(["apply"])).finish(PATIENCE).ok();
        for (name, text) in [("src/a", "b\n"), ("made/deep/x", "1\n"), ("src/c", "1\n"), ("out/x", "1\n"), (".github/workflows/ci.yml", "a\n")] {
            assert_eq!(stage.read(name).as_deref(), Some(text), "{name}: {record}");
        }
        for name in ["docs/a", "docs/lie", "unnamed"] {
            assert_eq!(stage.read(name), None, "{name}: {record}");
        }
        let outside = std::fs::read_to_string(outside).expect("a file");
        assert_eq!(outside, "a\n", "{record}");
    }
}
