//! What a newcomer and an agent meet in the first hour, beside the prompt and the notes.

use ironcage_tests::{Ran, Running, Screen, Stage, either, skip, wait_until};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn ironcage(stage: &Stage, args: &[&str]) -> Ran {
    Running::start(&mut stage.ironcage(args)).finish(PATIENCE)
}

/// A policy whose ceiling gives what is aside at once.
fn policy(stage: &Stage) -> String {
    stage.write(stage.aside().join("data"), "leased\n");
    let path = stage.base().join("ceiling.toml");
    let text = format!(
        "[ceiling.auto.files]\nread = [\"{}\"]\n",
        stage.aside().display()
    );
    stage.write(&path, text);
    path.display().to_string()
}

/// The flags that a line names behind these words, up to the end of the line or an explanation.
#[track_caller]
fn flags_after<'a>(text: &'a str, words: &str) -> &'a str {
    let (_, rest) = text
        .split_once(words)
        .unwrap_or_else(|| panic!("no {words:?}: {text}"));
    let line = rest.lines().next().unwrap_or_default();
    line.split(" (").next().unwrap_or_default().trim()
}

/// The README's first command, from `run` on.
fn first_command() -> String {
    let readme = include_str!("../../README.md");
    let mut lines = readme.lines();
    let line = lines.find_map(|line| line.split_once("-p ironcage -- "));
    let (_, command) = line.expect("the README begins with a run");
    command.to_owned()
}

fn get(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

either! {
    fn the_first_command_of_the_readme_works_on_a_terminal_as_it_stands(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let binary = ironcage_tests::binary().display();
        screen.line(&format!("{binary} {}; echo status=$?", first_command()));
        screen.shows("hello from the cage");
        screen.shows("status=0");
    }

    fn a_refused_file_names_the_flag_that_shows_it_and_the_flag_works(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let file = stage.aside().join("notes");
        stage.write(&file, "the notes\n");
        let file = file.display().to_string();
        let binary = ironcage_tests::binary().display();
        screen.line(&format!("clear; {binary} run cat {file}; echo status=$?"));
        screen.shows("status=1");
        // One line of the terminal is shorter than the path.
        let shown = screen.tmux(&["capture-pane", "-p", "-J", "-S", "-200"]);
        let flags = flags_after(&shown, "to read it: ").to_owned();
        assert_eq!(flags, format!("-r {file}"), "{shown}");
        screen.line(&format!("clear; {binary} run -q {flags} cat {file}; echo status=$?"));
        screen.shows("the notes");
        // The same afterwards, by the log.
        let why = ironcage(stage, &["run", "-q", "cat", &file]).ended(1);
        assert!(!why.stderr.contains("to read it"), "quiet: {why:?}");
        let why = ironcage(stage, &["why", "--last"]).ok().stdout();
        assert!(why.contains(&format!("hidden file: {file}")) && why.contains(&format!("-r {file}")), "{why}");
        // What is not on the host either is nobody's doing, and what worked is not explained.
        let absent = ironcage(stage, &["run", "cat", &format!("{file}-absent")]).ended(1);
        assert!(!absent.stderr.contains("to read it"), "{absent:?}");
        let works = ironcage(stage, &["run", "sh", "-c", &format!("cat {file} || true")]).ok();
        assert!(!works.stderr.contains("to read it"), "{works:?}");
    }

    fn a_file_that_is_gone_with_the_cage_is_named_with_the_flag_that_keeps_it(stage) {
        let results = stage.home().join("results");
        stage.sh_outside("mkdir ~/results").ok();
        let file = results.join("sums");
        let run = |flags: &[&str], script: &str| {
            ironcage(stage, &[&["run"], flags, &["--", "sh", "-c", script]].concat()).ok()
        };
        let script = format!("mkdir -p {0}; echo 3 > {0}/sums; cat {0}/sums", results.display());
        let lost = run(&[], &script);
        let words = format!("{} is gone with the cage; to write the host's:", file.display());
        let flags: Vec<&str> = flags_after(&lost.stderr, &words).split(' ').collect();
        let kept = run(&flags, &script);
        assert!(!kept.stderr.contains("is gone"), "{kept:?}");
        assert!(!file.exists(), "copy-on-write, as the workspace is");
        ironcage(stage, &["apply"]).ok();
        assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some("3\n"));
        // Where the host has no directory for it, and where nobody expects it to stay.
        let own = run(&[], "mkdir ~/own; echo 4 > ~/own/four; echo 4 > ~/four");
        assert!(own.stderr.contains("four is gone with the cage; to keep it, write it below the workspace"), "{own:?}");
        let flags: Vec<&str> = flags_after(&own.stderr, "own/four is gone with the cage; to keep it for the next run:").split(' ').collect();
        let kept = run(&flags, "echo 4 > ~/own/four");
        assert!(!kept.stderr.contains("is gone"), "{kept:?}");
        assert_eq!(run(&flags, "cat ~/own/four").stdout(), "4\n");
        let elsewhere = run(&[], "echo 5 > /tmp/five; echo 5 > five; mkdir -p ~/.cache; echo 5 > ~/.cache/five");
        assert!(!elsewhere.stderr.contains("is gone"), "{elsewhere:?}");
    }

    fn an_mcp_server_at_a_terminal_says_what_it_waits_for(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let binary = ironcage_tests::binary().display();
        screen.line(&format!("clear; {binary} mcp; echo ended=$?"));
        screen.shows("ironcage: waiting for an MCP client");
        screen.keys(&["C-d"]);
        screen.shows("ended=0");
        let client = ironcage(stage, &["mcp"]).ok();
        assert!(!client.stderr.contains("waiting"), "{client:?}");
    }

    fn a_login_that_stays_outside_is_named_with_the_flag_that_uses_it(stage) {
        // Not the agent itself: its name, and where it looks for its login.
        let agent = stage.base().join("agents/claude");
        stage.write(&agent, "#!/bin/sh\ngrep -o 'sk-ant-oat01-ironcage' ~/.claude/.credentials.json || echo not logged in\n");
        std::fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
        let agents = stage.base().join("agents").display().to_string();
        let run = |flags: &[&str]| {
            let mut run = stage.ironcage([&["run", "-r", &agents], flags, &["claude"]].concat());
            let path = format!("{agents}:/usr/bin:/bin");
            Running::start(run.env("PATH", path)).finish(PATIENCE).ok()
        };
        // Nobody is logged in anywhere.
        assert!(!run(&[]).stderr.contains("your login"));
        let login = r#"{"claudeAiOauth":{"accessToken":"own-access-token","refreshToken":"own-refresh-token","expiresAt":4000000000000,"scopes":["user:inference"]}}"#;
        stage.write(stage.home().join(".claude/.credentials.json"), login);
        let told = run(&[]);
        assert_eq!(told.stdout(), "not logged in\n");
        let flags = flags_after(&told.stderr, "is not in the cage; ").split_once(" lets").expect("a flag").0;
        let flags: Vec<&str> = flags.split(' ').collect();
        let used = run(&flags);
        assert_eq!((flags, used.stdout().as_str()), (vec!["--login", "claude"], "sk-ant-oat01-ironcage\n"));
        assert!(!used.stderr.contains("your login"), "{used:?}");
    }

    fn a_hidden_socket_is_named_with_the_flag_that_gives_it(stage) {
        let socket = stage.aside().join("docker.sock");
        stage.sh_outside("mkdir -p ../aside").ok();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let address = format!("unix://{}", socket.display());
        let run = |flags: &[&str], command: &str| {
            let mut run = stage.ironcage([&["run"], flags, &["--", "sh", "-c", command]].concat());
            Running::start(run.env("DOCKER_HOST", &address)).finish(PATIENCE)
        };
        // Whatever the program itself says, and whether it is installed or not.
        let denied = run(&[], "docker version; exit 1");
        let line = format!("the socket {} is on the host, but not in this cage; to use it:", socket.display());
        let flags = flags_after(&denied.stderr, &line).to_owned();
        assert_eq!(flags, format!("--allow-socket {} --i-know", socket.display()));
        let why = ironcage(stage, &["why"]).stdout();
        assert!(why.contains("docker version"), "{why}");
        // With the flags it is there, and nothing is to be said.
        let flags: Vec<&str> = flags.split(' ').collect();
        let given = run(&flags, &format!("docker version; test -S {}; echo there=$?; exit 1", socket.display()));
        assert!(given.stdout().contains("there=0") && !given.stderr.contains("the socket"), "{given:?}");
        // A command that does not use it hears nothing of it.
        let other = run(&[], "exit 1");
        assert!(!other.stderr.contains("the socket"), "{other:?}");
    }

    fn a_denied_system_call_is_told_at_the_end_with_its_flag(stage) {
        const TRACE: &str = "import ctypes, sys\n\
            sys.exit(0 if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 else 1)";
        if !std::path::Path::new("/usr/bin/python3").exists() {
            return skip("python3 is not installed");
        }
        let run = |flags: &[&str], program: &str| {
            ironcage(stage, &[&["run"], flags, &["--", "/usr/bin/python3", "-c", program]].concat())
        };
        let denied = run(&[], TRACE);
        assert_eq!(denied.code(), 1, "{denied:?}");
        let flags = flags_after(&denied.stderr, "system call ptrace refused once, by python3; to allow:").to_owned();
        let flags: Vec<&str> = flags.split(' ').collect();
        let given = run(&flags, TRACE).ok();
        assert!(!given.stderr.contains("system call"), "{given:?}");
        // A program that goes on without the call has nothing to tell.
        let on = run(&[], "import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0)").ok();
        assert!(!on.stderr.contains("system call"), "{on:?}");
    }

    fn a_hidden_key_needs_one_more_flag_which_is_named(stage) {
        let key = stage.home().join(".ssh/id_ed25519");
        stage.write(&key, "the key\n");
        let key = key.display().to_string();
        let ran = ironcage(stage, &["run", "cat", &key]).ended(1);
        let flags: Vec<&str> = flags_after(&ran.stderr, "to read it: ").split(' ').collect();
        assert_eq!(flags, ["-r", &key, "--i-know"], "{ran:?}");
        let args = [&["run", "-q"], &flags[..], &["cat", &key]].concat();
        assert_eq!(ironcage(stage, &args).ok().stdout(), "the key\n");
    }

    fn a_run_that_its_ceiling_would_have_served_is_told_of_scoped_shells_once(stage) {
        let policy = policy(stage);
        let data = stage.aside().join("data").display().to_string();
        let run = |flags: &[&str], words: &[&str]| {
            let args = [&["run", "--policy", &policy][..], flags, words].concat();
            ironcage(stage, &args)
        };
        let first = run(&[], &["cat", &data]).ended(1);
        let hint = "with `--shell scoped`, commands request it";
        assert!(first.stderr.contains(hint), "{first:?}");
        let second = run(&[], &["cat", &data]).ended(1);
        assert!(!second.stderr.contains(hint), "{second:?}");
        // The flag, typed: a command of a shell has what it names.
        let shell = format!("bash -c 'cat {data}'");
        let scoped = run(&["--shell", "scoped"], &["--", "bash", "-c", &shell]).ok();
        assert_eq!(scoped.stdout(), "leased\n");
        // A run without a ceiling would gain nothing by it.
        let without = ironcage(stage, &["run", "cat", &data]).ended(1);
        assert!(!without.stderr.contains("--shell"), "{without:?}");
    }

    fn a_published_port_is_reached_from_outside_and_another_is_not(stage) {
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("its address").port()
        };
        let (published, other) = (free(), free());
        let publish = format!("{published}:3000");
        let serve = "import http.server as h\n\
                     class S(h.BaseHTTPRequestHandler):\n\
                     \x20   def do_GET(self):\n\
                     \x20       self.send_response(200); self.end_headers(); self.wfile.write(b'from the cage')\n\
                     h.HTTPServer(('0.0.0.0', 3000), S).serve_forever()";
        let id = ironcage(stage, &["run", "-q", "-d", "-p", &publish, "--", "/usr/bin/python3", "-c", serve]).ok();
        let answers = || get(published).is_some_and(|answer| answer.ends_with("from the cage"));
        assert!(wait_until(PATIENCE, answers), "nothing answers at the published port");
        assert_eq!(get(other), None);
        ironcage(stage, &["rm", "--force", id.stdout().trim()]).ok();
        assert_eq!(get(published), None, "the port outlives its cage");
    }

    fn shell_starts_the_users_shell_with_the_flags_of_a_cage(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        let binary = ironcage_tests::binary().display();
        screen.line(&format!("SHELL=/bin/sh {binary} shell -q --env PS1='caged> '; echo ended=$?"));
        screen.asks("caged>");
        screen.line("tty; echo in-$((40+2)); ls -A ~/.ssh; exit 7");
        screen.shows("/dev/pts/");
        screen.shows("in-42");
        screen.shows("ended=7");
        // Without a terminal it takes its commands from where its input comes.
        let mut shell = stage.ironcage(["shell", "-q"]);
        shell.env("SHELL", "/bin/sh");
        let ran = Running::start(&mut shell).feed(b"echo fed-$((40+2))\n".to_vec(), PATIENCE).ok();
        assert_eq!(ran.stdout(), "fed-42\n");
    }

    fn what_an_agent_keeps_is_bounded_and_a_refusal_names_the_way_on(stage) {
        let config = stage.base().join("config/ironcage/config.toml");
        stage.write(&config, "[state]\nlimit = \"4M\"\nlimit-per-path = \"3M\"\n");
        let keep = |script: &str| ironcage(stage, &["run", "--state", ".agent", "sh", "-c", script]);
        let log = "mkdir -p ~/.agent/logs; head -c 2000000 /dev/zero > ~/.agent/logs/$1; echo kept > ~/.agent/settings";
        let write = |name: &str| keep(&log.replace("$1", name));
        let first = write("one").ok();
        assert!(!first.stderr.contains("oldest log files"), "{first:?}");
        let second = write("two").ok();
        assert!(second.stderr.contains("removed the 1 oldest log files"), "{second:?}");
        let left = keep("ls ~/.agent/logs; cat ~/.agent/settings").ok().stdout();
        assert_eq!(left, "two\nkept\n");
        // What may be a login is not removed; the next start says so.
        keep("head -c 4000000 /dev/zero > ~/.agent/database").ok().says("the next run is refused");
        let refused = keep("true").ended(125).says("limit-per-path").says("--no-state");
        assert!(refused.stderr.contains("state reset"), "{refused:?}");
        ironcage(stage, &["run", "-q", "--no-state", "true"]).ok();
        stage.write(&config, "[state]\nlimit = \"40M\"\nlimit-per-path = \"30M\"\n");
        keep("cat ~/.agent/settings").ok();
        // A file that came with the repository decides nothing of this.
        stage.write(stage.project().join("ironcage.toml"), "[state]\nlimit = \"1M\"\n");
        let narrowed = keep("cat ~/.agent/settings").ok().says("state.limit");
        assert!(!narrowed.stderr.contains("the next run is refused"), "{narrowed:?}");
    }

    fn an_agent_learns_inside_how_to_ask_and_what_it_reads_there_works(stage) {
        let policy = policy(stage);
        let read = "cat $IRONCAGE_HELP; cat /etc/claude-code/CLAUDE.md /etc/codex/config.toml";
        let text = stage.sh_with(&["-q", "--policy", &policy], read).ok().stdout();
        assert_eq!(text.matches("/.ironcage/bin/ironcage ask --read PATH").count(), 3, "{text}");
        // The line of the file, typed.
        let data = stage.aside().join("data").display().to_string();
        let ask = format!("cat {data}; /.ironcage/bin/ironcage ask --read {data} --reason 'WHY' --wait 120 && cat {data}");
        let ran = stage.sh_with(&["-q", "--policy", &policy], &ask).ok();
        assert!(ran.stdout().ends_with("leased\n"), "{ran:?}");
        // Where nothing can be requested, nothing says so.
        let without = "echo \"[$IRONCAGE_HELP]\"; ls /etc/claude-code /etc/codex 2>&1; true";
        let ran = stage.sh_with(&["-q"], without).ok();
        assert!(ran.stdout().starts_with("[]\n") && !ran.stdout().contains("CLAUDE.md"), "{ran:?}");
    }

    fn a_nested_run_is_answered_with_child(stage) {
        let policy = policy(stage);
        let ran = stage.sh_with(&["-q", "-e", "IRONCAGE_ERROR_CODES=1", "--policy", &policy], "/.ironcage/bin/ironcage run -- true");
        ran.failed("in-a-cage").says("ironcage child");
    }

    fn profile_init_writes_sections_that_a_run_takes(stage) {
        ironcage(stage, &["profile", "init", "shell"]).ok();
        let text = stage.read("ironcage.toml").expect("a policy");
        for section in ["[network]", "[ceiling]", "[ceiling.ask.files]", "[questions]"] {
            assert!(text.contains(section), "{section}: {text}");
        }
        ironcage(stage, &["policy", "check", "ironcage.toml"]).ok();
        ironcage(stage, &["run", "-q", "true"]).ok();
    }

    fn settings_go_out_and_come_in_with_a_list_of_what_differs(stage) {
        let file = stage.base().join("export.toml");
        let text = format!(
            "[workspace]\nmode = \"direct\"\n[files]\nread = [\"{}\"]\n[network]\nallow = [\"example.com\", \"192.0.2.0/24\"]\n",
            stage.aside().display()
        );
        stage.write(&file, text);
        let file = file.display().to_string();
        let exported = ironcage(stage, &["policy", "export", "srt", "--policy", &file]).ok();
        exported.stderr.contains("limits").then_some(()).expect("what is lost");
        let value: serde_json::Value = serde_json::from_slice(&exported.bytes).expect("JSON");
        assert_eq!(value["network"]["allowedDomains"][0], "example.com");
        let settings = stage.base().join("srt.json");
        stage.write(&settings, exported.stdout());
        // What went out comes in again.
        let back = ironcage(stage, &["policy", "import", "srt", settings.to_str().expect("text")]).ok().stdout();
        assert!(back.contains("example.com") && back.contains("mode = \"direct\""), "{back}");
        let exported = ironcage(stage, &["policy", "export", "mxc", "--policy", &file]).ok();
        let value: serde_json::Value = serde_json::from_slice(&exported.bytes).expect("JSON");
        assert_eq!(value["network"]["egress"]["allow"][0]["to"][0]["cidr"], "192.0.2.0/24");
        assert!(exported.stderr.contains("`example.com:80,443`") || exported.stderr.contains("`example.com`"), "{exported:?}");
    }

    fn settings_of_codex_and_vs_code_hold_in_the_cage(stage) {
        stage.write(stage.project().join("file"), "content\n");
        let codex = stage.base().join("config.toml");
        let policy = stage.base().join("imported.toml");
        let (codex_path, policy_path) = (codex.display().to_string(), policy.display().to_string());
        let import = |kind: &str, from: &str| {
            let _ = std::fs::remove_file(&policy);
            ironcage(stage, &["policy", "import", kind, from, "-o", &policy_path])
        };
        let write = |script: &str| stage.sh_with(&["-q", "--policy", &policy_path], script);
        stage.write(&codex, "sandbox_mode = \"read-only\"\n");
        import("codex", &codex_path).ok();
        assert_ne!(write("echo x > file").code(), 0);
        let text = "sandbox_mode = \"workspace-write\"\n[sandbox_workspace_write]\nnetwork_access = true\n";
        stage.write(&codex, text);
        import("codex", &codex_path).ok().says("network.allow");
        write("echo x > file").ok();
        stage.write(&codex, "sandbox_mode = 3\n");
        import("codex", &codex_path).ended(125);
        let vscode = stage.base().join("settings.json");
        stage.write(stage.project().join("secret"), "CANARY\n");
        stage.write(&vscode, r#"{"chat.agent.sandbox.fileSystem.userConfiguredPaths": {"deniedPaths": ["secret"]},
            "chat.agent.sandbox.network.allowedDomains": ["example.com"], "editor.fontSize": 12}"#);
        import("vscode", vscode.to_str().expect("text")).ok();
        let ran = write("echo y > file; cat secret; true").ok();
        assert!(!ran.stdout().contains("CANARY"), "{ran:?}");
        assert_eq!(stage.read("file").as_deref(), Some("y\n"));
    }
}
