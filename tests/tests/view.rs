//! What a cage shows of the host: the allow-listed view, what flags add and take away, what is refused.

use ironcage_tests::{DIRECT, Ran, Running, Stage, both};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Runs from another directory than the project.
#[track_caller]
fn run_in(stage: &Stage, directory: &Path, flags: &[&str], script: &str) -> Ran {
    let mut command = stage.cage(flags, &["/bin/sh", "-c", script]);
    command.current_dir(directory);
    Running::start(&mut command).finish(Duration::from_secs(120))
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split_whitespace().collect()
}

both! {
    fn home_and_workspace_may_lie_below_var_tmp(stage) {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let made = tempfile::Builder::new().prefix("ironcage-var-").permissions(open).tempdir_in("/var/tmp").expect("a directory");
        let base = made.path();
        let (home, project, link) = (base.join("home"), base.join("work/project"), base.join("link"));
        stage.mkdir(&home);
        stage.write(project.join("file"), "here\n");
        std::os::unix::fs::symlink(base.join("work"), &link).expect("linked");
        let write = "echo a > /var/tmp/a && echo b > /tmp/b && echo c > ~/c && ls -d /var/run/. && ls";
        for (home, project, seen) in [
            (stage.home(), project.clone(), true),
            (home.clone(), project.clone(), true),
            (home.clone(), link.join("project"), true),
            (home.clone(), stage.project(), false),
        ] {
            let mut command = stage.cage(&["-q"], &["/bin/sh", "-c", write]);
            command.env("HOME", &home).current_dir(&project);
            let ran = Running::start(&mut command).finish(Duration::from_secs(120)).ok();
            assert_eq!(ran.stdout().contains("file"), seen, "{}", project.display());
        }
        assert!(!Path::new("/var/tmp/a").exists() && !base.join("home/c").exists());
        // A path that is given lies in its place, and nothing else of the host does.
        let look = format!("cat {}/project/file; ls /var/tmp | wc -l", text(&base.join("work")));
        let given = stage.sh_with(&["-r", text(&base.join("work"))], &look).ok();
        assert_eq!(given.stdout(), "here\n1\n");
        // Where nothing lies there, it is the cage's /tmp.
        assert_eq!(stage.sh("readlink /var/tmp").ok().stdout(), "../tmp\n");
    }

    fn home_is_empty_and_at_its_own_path(stage) {
        stage.write(stage.home().join(".ssh/id_ed25519"), "secret");
        stage.write(stage.home().join("notes"), "secret");
        let look = "echo $HOME; ls -A ~; cat ~/.ssh/id_ed25519 ~/notes";
        assert_eq!(stage.sh_outside(look).ok().stdout().matches("secret").count(), 2);
        let ran = stage.sh(look);
        assert_eq!(ran.stdout(), format!("{}\nproject\n", stage.home().display()));
    }

    fn what_is_written_in_home_stays_inside(stage) {
        stage.sh("echo x > ~/made && test -s ~/made").ok();
        assert!(!stage.home().join("made").exists());
    }

    fn temporary_directories_are_private(stage) {
        let outside = tempfile::Builder::new().prefix("ironcage-seen-").tempfile_in("/tmp").expect("a file");
        let name = outside.path().file_name().expect("a name").to_string_lossy().into_owned();
        let ran = stage.sh("ls -A /tmp /dev/shm /var/tmp; echo x > /tmp/ironcage-planted && cat /tmp/ironcage-planted").ok();
        assert!(!ran.stdout().contains(&name), "{ran:?}");
        assert!(!Path::new("/tmp/ironcage-planted").exists());
    }

    fn etc_holds_what_programs_need_and_nothing_else(stage) {
        for file in ["passwd", "group", "hosts", "resolv.conf", "nsswitch.conf", "ld.so.cache", "services"] {
            stage.sh(&format!("cat /etc/{file}")).ok();
        }
        for file in ["shadow", "gshadow", "sudoers", "fstab", "ssh/ssh_config.d", "ssh/sshd_config", "crontab", "pam.d", "systemd"] {
            assert_ne!(stage.sh(&format!("test -e /etc/{file}")).code(), 0, "/etc/{file} is visible");
        }
        assert_eq!(stage.sh("ls -A /etc/ssh").ok().stdout(), "ssh_config\nssh_known_hosts\n");
        // These would tell which host it is.
        for file in ["hostname", "machine-id"] {
            let host = std::fs::read_to_string(format!("/etc/{file}")).unwrap_or_default();
            let inside = stage.sh(&format!("cat /etc/{file}")).stdout();
            assert!(inside != host || host.is_empty(), "/etc/{file} is the host's");
        }
        let passwd = stage.sh("cat /etc/passwd").ok().stdout();
        assert!(passwd.contains("agent:x:1000:"), "{passwd}");
        assert!(!passwd.lines().any(|line| line.starts_with(ironcage_tests::TEST_USER)), "{passwd}");
    }

    fn names_resolve_inside(stage) {
        let script = "import getpass, pwd, os, socket; print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, socket.gethostbyname('localhost'))";
        let ran = stage.run(&[], &["/usr/bin/python3", "-c", script]).ok();
        assert_eq!(ran.stdout(), format!("agent {} 127.0.0.1\n", stage.home().display()));
    }

    fn there_is_no_sys(stage) {
        assert!(Path::new("/sys/kernel").exists());
        assert_eq!(stage.sh("ls -A /sys 2>/dev/null | wc -l").ok().stdout(), "0\n");
    }

    fn proc_shows_the_cage_and_hides_the_kernel(stage) {
        let ran = stage.sh("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done; cat /proc/self/status").ok();
        assert!(!ran.stdout().contains("cargo"), "{ran:?}");
        for masked in ["kcore", "keys", "timer_list", "sysrq-trigger", "kmsg"] {
            let ran = stage.sh(&format!("head -c 1 /proc/{masked} 2>/dev/null | wc -c"));
            assert_eq!(ran.stdout(), "0\n", "/proc/{masked} is readable");
        }
        let addresses = stage.sh("grep -cv '^0000000000000000 ' /proc/kallsyms");
        assert!(matches!(addresses.stdout().trim(), "0" | ""), "kernel addresses: {addresses:?}");
        for written in ["/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger", "/proc/sys/user/max_user_namespaces"] {
            assert_ne!(stage.sh(&format!("echo 1 > {written}")).code(), 0, "{written} is writable");
        }
        assert_eq!(stage.sh("cat /proc/sys/user/max_user_namespaces").ok().stdout(), "0\n");
    }

    fn dev_is_minimal(stage) {
        let known = words("null zero full random urandom tty ptmx pts shm fd stdin stdout stderr mqueue console core");
        let ran = stage.sh("ls -A /dev").ok();
        let listing = ran.stdout();
        let seen = words(&listing);
        assert!(seen.is_subset(&known), "{:?}", seen.difference(&known));
        for needed in ["null", "zero", "urandom", "shm", "fd", "ptmx"] {
            assert!(seen.contains(needed), "no /dev/{needed}");
        }
        stage.sh("echo x > /dev/null && head -c 4 /dev/urandom | wc -c | grep -q 4 && echo x > /dev/shm/x").ok();
    }

    fn the_system_is_read_only(stage) {
        for place in ["/usr", "/usr/bin", "/etc", "/", "/lib", "/dev", "/proc"] {
            assert_ne!(stage.sh(&format!("echo x > {place}/ironcage-planted")).code(), 0, "{place} is writable");
        }
        stage.sh("echo x > planted").ok();
    }

    fn only_standard_streams_are_open(stage) {
        let ran = stage.sh("ls /proc/self/fd").ok();
        // `ls` itself holds 3, the directory.
        assert_eq!(ran.stdout(), "0\n1\n2\n3\n");
    }

    fn the_environment_is_a_short_safe_list(stage) {
        let mut command = stage.cage(&[], &["/usr/bin/env"]);
        command.env("AWS_SECRET_ACCESS_KEY", "secret").env("SSH_AUTH_SOCK", "/run/agent").env("LD_PRELOAD", "");
        let ran = Running::start(&mut command).finish(Duration::from_secs(60)).ok();
        let shown = ran.stdout();
        assert!(!shown.contains("secret") && !shown.contains("SSH_AUTH_SOCK") && !shown.contains("LD_PRELOAD"), "{shown}");
        assert!(!shown.contains("XDG_STATE_HOME"), "{shown}");
        for needed in ["PATH=", "HOME="] {
            assert!(shown.lines().any(|line| line.starts_with(needed)), "no {needed} in {shown}");
        }
        assert!(shown.lines().count() < 20, "{shown}");
    }

    fn env_sets_and_passes_variables(stage) {
        let mut command = stage.cage(&["--env", "GIVEN=one two", "--env", "PASSED"], &["/usr/bin/env"]);
        command.env("PASSED", "from outside").env("OTHER", "not named");
        let ran = Running::start(&mut command).finish(Duration::from_secs(60)).ok();
        assert!(ran.stdout().contains("GIVEN=one two\n"), "{ran:?}");
        assert!(ran.stdout().contains("PASSED=from outside\n"), "{ran:?}");
        assert!(!ran.stdout().contains("OTHER"), "{ran:?}");
    }

    fn the_workspace_is_the_current_directory_at_its_own_path(stage) {
        stage.write(stage.project().join("given"), "x");
        let ran = stage.sh_direct("pwd; cat given; echo made > made").ok();
        assert_eq!(ran.stdout(), format!("{}\nx", stage.project().display()));
        assert_eq!(stage.read("made").as_deref(), Some("made\n"));
    }

    fn without_a_repository_nothing_above_the_current_directory_is_seen(stage) {
        stage.write(stage.project().join("above"), "x");
        stage.mkdir(stage.project().join("deep"));
        let deep = stage.project().join("deep");
        run_in(stage, &deep, &DIRECT, "! test -e ../above && echo x > here").ok();
        assert!(deep.join("here").exists());
    }

    fn the_workspace_is_the_top_of_the_repository_around(stage) {
        stage.write(stage.project().join("above"), "x");
        stage.sh_outside("git init -q . && mkdir deep").ok();
        let deep = stage.project().join("deep");
        let ran = run_in(stage, &deep, &DIRECT, "pwd; cat ../above && echo y > ../made").ok();
        assert_eq!(ran.stdout(), format!("{}\nx", deep.display()));
        assert_eq!(stage.read("made").as_deref(), Some("y\n"));
    }

    fn read_gives_a_path_to_read(stage) {
        stage.write(stage.aside().join("file"), "granted");
        let file = stage.aside().join("file");
        let look = format!("cat {0}; echo x > {0}", file.display());
        assert_eq!(stage.sh(&look).stdout(), "");
        assert_eq!(stage.sh_with(&["-r", text(&stage.aside())], &look).stdout(), "granted");
        assert_eq!(stage.sh_with(&["--read", text(&file)], &look).stdout(), "granted");
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), "granted");
    }

    fn write_gives_a_path_to_write(stage) {
        let file = stage.aside().join("made");
        let script = format!("echo x > {}", file.display());
        assert_ne!(stage.sh(&script).code(), 0);
        assert!(!file.exists());
        stage.sh_with(&["-w", text(&stage.aside())], &script).ok();
        assert!(!file.exists(), "it is kept aside");
        stage.sh_with(&["-w", &format!("{}:direct", text(&stage.aside()))], &script).ok();
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), "x\n");
    }

    fn hide_takes_a_path_out_of_the_workspace(stage) {
        stage.write(stage.project().join("secrets/key"), "secret");
        stage.write(stage.project().join(".env"), "secret");
        let look = "cat secrets/key .env";
        assert_eq!(stage.sh(look).ok().stdout(), "secretsecret");
        let ran = stage.sh_with(&["--hide", "secrets", "--hide", ".env"], look);
        assert!(!ran.stdout().contains("secret"), "{ran:?}");
        // Hidden is not removable, and not replaceable.
        stage.sh_with(&[&DIRECT[..], &["--hide", "secrets"]].concat(), "rm -rf secrets; mv secrets other; echo x > secrets/key");
        assert_eq!(stage.read("secrets/key").as_deref(), Some("secret"));
    }

    fn the_workspace_can_be_named(stage) {
        stage.write(stage.aside().join("given"), "x");
        let ran = stage.sh_with(&["--workspace", text(&stage.aside()), DIRECT[0], DIRECT[1]], "cat given; pwd; echo y > made").ok();
        assert_eq!(ran.stdout(), format!("x{}\n", stage.aside().display()));
        assert!(stage.aside().join("made").exists());
    }

    fn a_read_only_workspace_is_not_written(stage) {
        stage.write(stage.project().join("given"), "x");
        let ran = stage.sh_with(&["--workspace-mode", "read-only"], "cat given; echo y > made");
        assert_eq!(ran.stdout(), "x");
        assert_ne!(ran.code(), 0);
        assert_eq!(stage.read("made"), None);
        stage.sh_with(&["--workspace-mode", "direct"], "echo y > made").ok();
        assert_eq!(stage.read("made").as_deref(), Some("y\n"));
    }

    fn cwd_and_hostname_are_as_asked(stage) {
        stage.mkdir(stage.project().join("deep"));
        let ran = stage.sh_with(&["--cwd", text(&stage.project().join("deep")), "--hostname", "den"], "pwd; uname -n").ok();
        assert_eq!(ran.stdout(), format!("{}/deep\nden\n", stage.project().display()));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
        assert_ne!(stage.sh("uname -n").ok().stdout(), host);
    }

    fn a_link_out_of_the_workspace_leads_nowhere(stage) {
        stage.write(stage.aside().join("file"), "secret");
        let link = stage.project().join("link");
        std::os::unix::fs::symlink(stage.aside().join("file"), &link).expect("a link");
        assert_eq!(stage.sh_outside("cat link").ok().stdout(), "secret");
        assert_eq!(stage.sh("cat link").stdout(), "");
    }

    fn home_root_and_what_is_above_are_no_workspaces(stage) {
        stage.write(stage.home().join(".ssh/id_ed25519"), "secret");
        for place in [stage.home(), stage.base().to_owned()] {
            let ran = run_in(stage, &place, &[], "true").ended(125).denied("start-workspace-refused");
            assert!(ran.stderr.contains("--i-know"), "{ran:?}");
            run_in(stage, &place, &["--workspace", text(&place)], "true").ended(125).says("--i-know");
        }
        // The whole system is no workspace, whatever the user knows.
        run_in(stage, Path::new("/"), &[], "true").ended(125).denied("start-workspace-refused");
        stage.sh_with(&["--workspace", "/", "--i-know"], "true").ended(125);
        let home = stage.home();
        let ran = run_in(stage, &home, &["--workspace", text(&home), "--i-know", DIRECT[0], DIRECT[1]], "echo x > made; cat .ssh/id_ed25519");
        assert!(home.join("made").exists(), "{ran:?}");
        assert_eq!(ran.stdout(), "", "credentials stay hidden");
    }

    fn ironcages_own_directories_are_no_workspaces(stage) {
        stage.sh("true").ok();
        for place in [stage.state(), stage.state().join("ironcage")] {
            if place.is_dir() {
                run_in(stage, &place, &[], "true").ended(125);
                stage.sh_with(&["-w", text(&place)], "true").ended(125);
            }
        }
        stage.sh_with(&["-w", text(&stage.aside())], "true").ok();
    }

    fn files_that_the_host_trusts_are_read_only(stage) {
        let trusted = [".envrc", ".mcp.json", ".vscode/tasks.json", ".idea/workspace.xml", ".claude/settings.json", ".codex/config.toml", ".cursor/mcp.json", ".bashrc"];
        for file in trusted {
            stage.write(stage.project().join(file), "trusted");
        }
        stage.sh_outside("git init -q . && echo 'exit 0' > .git/hooks/pre-commit && git config --local a.b c").ok();
        let config = stage.read(".git/config").expect("a configuration");
        for file in trusted {
            let top = file.split('/').next().expect("a name");
            for attempt in [
                format!("echo changed > {file}"),
                format!("rm -f {file}"),
                format!("mv {top} aside"),
                format!("printf changed > new && mv -f new {file}"),
                format!("ln -f plain {file}"),
            ] {
                stage.sh_direct(&attempt);
                assert_eq!(stage.read(file).as_deref(), Some("trusted"), "{attempt}");
            }
        }
        for attempt in [
            "echo 'touch pwned' > .git/hooks/pre-commit",
            "echo 'touch pwned' > .git/hooks/post-checkout",
            "git config core.fsmonitor 'touch pwned'",
            "mv .git old; mkdir -p .git/hooks",
            "echo x > .git/commondir",
        ] {
            stage.sh_direct(attempt);
        }
        assert_eq!(stage.read(".git/config").as_deref(), Some(&*config));
        assert_eq!(stage.read(".git/hooks/pre-commit").as_deref(), Some("exit 0\n"));
        assert_eq!(stage.read(".git/hooks/post-checkout"), None);
        assert_eq!(stage.read(".git/commondir"), None);
        // The allowing arm: they can be read, and a file beside them is written.
        assert_eq!(stage.sh_direct("cat .envrc .vscode/tasks.json; echo x > plain").ok().stdout(), "trustedtrusted");
        assert_eq!(stage.read("plain").as_deref(), Some("x\n"));
    }

    fn unprotect_lifts_one_and_only_that(stage) {
        stage.write(stage.project().join(".envrc"), "trusted");
        stage.write(stage.project().join(".mcp.json"), "trusted");
        stage.sh_with(&[&DIRECT[..], &["--unprotect", ".envrc"]].concat(), "echo changed > .envrc; echo changed > .mcp.json");
        assert_eq!(stage.read(".envrc").as_deref(), Some("changed\n"));
        assert_eq!(stage.read(".mcp.json").as_deref(), Some("trusted"));
    }

    fn all_namespaces_are_the_cages_own(stage) {
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"] {
            let inside = stage.sh(&format!("readlink /proc/self/ns/{kind}")).ok().stdout();
            let outside = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace");
            assert!(inside.starts_with(&format!("{kind}:[")), "{inside}");
            assert_ne!(inside.trim(), outside.to_string_lossy(), "{kind}");
        }
    }

    fn the_network_is_loopback_only(stage) {
        let ran = stage.sh("cut -d: -f1 /proc/net/dev | tail -n +3").ok();
        assert_eq!(ran.stdout().trim(), "lo");
    }
}
