//! Tool calls as requests: each runs in a scope with what it needs, and nothing beyond the ceiling.

use ironcage_tests::{Ran, Running, Stage, either};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

struct Cage<'a> {
    stage: &'a Stage,
    id: String,
}

impl<'a> Cage<'a> {
    /// A ceiling with `given` at once, `asked` for a person, and `denied` for nobody.
    #[track_caller]
    fn start(stage: &'a Stage) -> Self {
        let aside = stage.aside();
        for name in ["given", "asked", "given/denied", "outside", "narrow"] {
            stage.write(aside.join(name).join("file"), format!("{name}\n"));
        }
        let at = |name: &str| aside.join(name).display().to_string();
        let policy = stage.base().join("policy.toml");
        let text = format!(
            "[ceiling.auto.files]\nread = [\"{}\"]\nwrite = [\"{}\", \"{}\"]\n[ceiling.ask.files]\nread = [\"{}\"]\n[ceiling.deny.files]\nread = [\"{}\"]\n",
            at("narrow"),
            at("given"),
            at("narrow/file"),
            at("asked"),
            at("given/denied"),
        );
        stage.write(&policy, text);
        let mut run = stage.ironcage(["run", "-q", "-d", "--workspace-mode", "cow", "--policy"]);
        run.arg(&policy);
        let ran = Running::start(&mut run).finish(PATIENCE).ok();
        let id = ran.stdout().trim().to_owned();
        Cage { stage, id }
    }

    #[track_caller]
    fn call(&self, call: &Value) -> Ran {
        let mut exec = self.stage.ironcage(["exec", &self.id, "--intent", "-"]);
        Running::start(&mut exec).feed(call.to_string().into_bytes(), PATIENCE)
    }

    /// The result of a call in Anthropic's shape: whether it is an error, and its text.
    #[track_caller]
    fn tool(&self, name: &str, input: Value) -> (bool, String) {
        let call = json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": input});
        let said = self.call(&call).stdout();
        let result: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(result["type"], "tool_result", "{said}");
        assert_eq!(result["tool_use_id"], "toolu_1", "{said}");
        let text = result["content"].as_str().expect("text").to_owned();
        (result["is_error"].as_bool().expect("a boolean"), text)
    }

    /// What a refused call is told, for its first resource.
    #[track_caller]
    fn refused(&self, name: &str, input: Value) -> Value {
        let (error, text) = self.tool(name, input);
        assert!(error, "{text}");
        let told: Value = serde_json::from_str(&text).expect("JSON");
        told["refused"][0].clone()
    }

    #[track_caller]
    fn sh(&self, script: &str) -> Ran {
        let mut exec = self
            .stage
            .ironcage(["exec", &self.id, "--", "/bin/sh", "-c", script]);
        Running::start(&mut exec).finish(PATIENCE)
    }

    /// Says yes to a question.
    #[track_caller]
    fn approve(&self, question: u32) {
        let question = format!("{}/{question}", self.id);
        let mut approve = self.stage.ironcage(["approve", &question]);
        Running::start(&mut approve).finish(PATIENCE).ok();
    }

    fn record(&self) -> String {
        let mut show = self.stage.ironcage(["audit", "show", &self.id]);
        Running::start(&mut show).finish(PATIENCE).stdout()
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["rm", "--force", &self.id]);
        Running::start(&mut stop).finish(PATIENCE);
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

either! {
    fn file_tools_work_on_the_shared_workspace(stage) {
        let cage = Cage::start(stage);
        let (error, said) = cage.tool("Write", json!({"file_path": "new/a.txt", "content": "one\ntwo\nthree\n"}));
        assert!(!error && said.starts_with("wrote "), "{said}");
        assert_eq!(cage.sh("cat new/a.txt").ok().stdout(), "one\ntwo\nthree\n");
        // Pending, as everything that the cage writes.
        assert!(!stage.project().join("new").exists());
        let (error, said) = cage.tool("Edit", json!({"file_path": "new/a.txt", "old_string": "two", "new_string": "2"}));
        assert!(!error, "{said}");
        assert_eq!(cage.tool("Read", json!({"file_path": "new/a.txt", "offset": 2, "limit": 1})), (false, "2\n".into()));
        assert_eq!(cage.tool("LS", json!({"path": "new"})), (false, "a.txt\n".into()));
        // What does not fit is told, and changes nothing.
        let (error, said) = cage.tool("Edit", json!({"file_path": "new/a.txt", "old_string": "e", "new_string": "x"}));
        assert!(error && said.contains("times"), "{said}");
        let (error, said) = cage.tool("Read", json!({"file_path": "no/such"}));
        assert!(error && said.contains("No such file"), "{said}");
        assert_eq!(cage.sh("cat new/a.txt").ok().stdout(), "one\n2\nthree\n");
        // Nothing of the means is left in the cage.
        cage.sh("ls /.ironcage/tool /.ironcage/call").ended(2);
    }

    fn a_call_gets_what_it_needs_where_the_ceiling_gives_it_at_once(stage) {
        let cage = Cage::start(stage);
        let given = stage.aside().join("given");
        assert_eq!(cage.tool("Read", json!({"file_path": shown(&given.join("file"))})), (false, "given\n".into()));
        let (error, said) = cage.tool("Write", json!({"file_path": shown(&given.join("sub/made")), "content": "x"}));
        // The directory around it is not there either: nothing around that is given by itself.
        assert!(error && said.contains("\"lease-path-not-found\""), "{said}");
        // What would be gone with the call is not said to be written.
        let (error, said) = cage.tool("Write", json!({"file_path": "/tmp/lost", "content": "x"}));
        assert!(error && said.contains("\"call-written-to-scratch\""), "{said}");
        std::fs::create_dir(given.join("sub")).expect("a directory");
        give(stage, &given.join("sub"));
        let (error, said) = cage.tool("Write", json!({"file_path": shown(&given.join("sub/made")), "content": "x"}));
        assert!(!error, "{said}");
        assert_eq!(std::fs::read_to_string(given.join("sub/made")).ok().as_deref(), Some("x"));
        // A command, read by the shell's grammar.
        let (error, said) = cage.tool("Bash", json!({"command": format!("cat {} && echo done", shown(&given.join("file")))}));
        assert_eq!((error, said.as_str()), (false, "given\ndone\n"));
        // Gone with the call.
        cage.sh(&format!("cat {}", shown(&given.join("file")))).ended(1);
        let record = cage.record();
        for said in ["lease 1: read", "lease 1: revoked", "a call of Read", "(in a scope)"] {
            assert!(record.contains(said), "{said}: {record}");
        }
    }

    fn a_call_that_reads_a_directory_and_writes_in_it_gets_both_as_named(stage) {
        let cage = Cage::start(stage);
        let place = stage.aside().join("given/sub");
        stage.write(place.join("out"), "old\n");
        let place = shown(&place);
        let (error, said) = cage.tool("Bash", json!({"command": format!("echo new > {place}/out && ls {place}")}));
        assert_eq!((error, said.as_str()), (false, "out\n"));
        // Where the ceiling gives reading of all and writing of one, both are given and no more.
        let narrow = shown(&stage.aside().join("narrow"));
        stage.write(stage.aside().join("narrow/other"), "kept\n");
        let (error, said) = cage.tool("Bash", json!({"command": format!("echo new > {narrow}/file && ls {narrow}")}));
        assert_eq!((error, said.as_str()), (false, "file\nother\n"));
        assert_eq!(std::fs::read_to_string(stage.aside().join("narrow/file")).ok().as_deref(), Some("new\n"));
        let record = cage.record();
        for lease in [format!("read {narrow} "), format!("write {narrow}/file")] {
            assert!(record.contains(&lease), "{lease}: {record}");
        }
        assert!(!record.contains(&format!("write {narrow} ")), "{record}");
        let sneaky = json!({"command": format!("echo new > {narrow}/file; ls {narrow}; X=other; echo x > {narrow}/$X")});
        cage.tool("Bash", sneaky);
        assert_eq!(std::fs::read_to_string(stage.aside().join("narrow/other")).ok().as_deref(), Some("kept\n"));
        // Gone with the call, and proved to be.
        cage.sh(&format!("ls {narrow}")).ended(2);
        let opened = record.matches(": revoked").count();
        assert!(opened >= 4, "{record}");
        let asked = shown(&stage.aside().join("asked"));
        // Still nothing beyond the ceiling, where reading alone can be asked for.
        let refused = cage.refused("Bash", json!({"command": format!("echo new > {asked}/file && ls {asked}")}));
        assert_eq!(refused["ask"], false, "{refused}");
        // A directory that is only entered is needed too.
        let (error, said) = cage.tool("Bash", json!({"command": format!("cd {place} && pwd")}));
        assert_eq!((error, said), (false, format!("{place}\n")));
    }

    fn a_call_is_told_what_it_is_not_given_and_how_to_ask(stage) {
        let cage = Cage::start(stage);
        let aside = stage.aside();
        let asked = cage.refused("Read", json!({"file_path": shown(&aside.join("asked/file"))}));
        assert_eq!(asked["ask"], true, "{asked}");
        assert!(asked["how"].as_str().is_some_and(|how| how.contains("ironcage approve")), "{asked}");
        // A yes is for the next call that needs the same, and for that one.
        cage.approve(1);
        let (error, said) = cage.tool("Read", json!({"file_path": shown(&aside.join("asked/file"))}));
        assert!(!error, "{said}");
        let again = cage.refused("Read", json!({"file_path": shown(&aside.join("asked/file"))}));
        assert_eq!(again["code"], "lease-still-pending", "{again}");
        assert!(again["why"].as_str().is_some_and(|why| why.contains("request 2")), "{again}");
        // What the ceiling does not give is not there: the scope's own /tmp is empty.
        for (name, input) in [
            ("Read", json!({"file_path": shown(&aside.join("outside/file"))})),
            ("Read", json!({"file_path": shown(&aside.join("given/../outside/file"))})),
            ("Read", json!({"file_path": shown(&aside.join("given/denied/file"))})),
            ("Bash", json!({"command": format!("cat {}", shown(&aside.join("outside/file")))})),
            ("Bash", json!({"command": format!("cp {} x", shown(&aside.join("given/denied/file")))})),
        ] {
            let (error, said) = cage.tool(name, input);
            assert!(error && said.contains("No such file"), "{said}");
        }
        for (name, input) in [
            ("Write", json!({"file_path": shown(&aside.join("asked/file")), "content": "x"})),
            // With what is around something denied, that would come along.
            ("Bash", json!({"command": format!("ls {0}; touch {0}/x", shown(&aside.join("given")))})),
            ("Edit", json!({"file_path": "/etc/shadow", "old_string": "a", "new_string": "b"})),
        ] {
            let told = cage.refused(name, input);
            assert_eq!(told["ask"], false, "{told}");
            assert!(told["why"].as_str().is_some_and(|why| !why.is_empty()), "{told}");
        }
        // By its name alone it is made, and nothing comes along.
        give(stage, &aside.join("given"));
        let (error, said) = cage.tool("Bash", json!({"command": format!("touch {}/x", shown(&aside.join("given")))}));
        assert!(!error && aside.join("given/x").exists(), "{said}");
        // A link of the agent's own leads where it leads.
        std::os::unix::fs::symlink(aside.join("outside"), aside.join("given/link")).expect("a link");
        let told = cage.refused("Read", json!({"file_path": shown(&aside.join("given/link/file"))}));
        assert!(told["what"].as_str().is_some_and(|what| what.contains("given/link/file")), "{told}");
        // Whether anything is there is not told of what is not given, nor where a link leads.
        std::os::unix::fs::symlink(aside.join("nowhere"), aside.join("given/broken")).expect("a link");
        let broken = cage.refused("Read", json!({"file_path": shown(&aside.join("given/broken/file"))}));
        assert_eq!((&told["why"], &told["code"]), (&broken["why"], &broken["code"]));
        let why = |path: &str| {
            let told = cage.refused("Read", json!({"file_path": path}));
            (told["why"].as_str().expect("why").replace(path, "PATH"), told["code"].clone())
        };
        assert_eq!(why("/root"), why("/no/such/place"));
        // What the text does not tell runs with what the cage has anyway.
        let (error, said) = cage.tool("Bash", json!({"command": format!("X={}; cat $(echo $X)", shown(&aside.join("outside/file")))}));
        assert!(error && said.contains("No such file"), "{said}");
        assert!(cage.record().contains("lease denied"));
        assert_eq!(std::fs::read_to_string(aside.join("asked/file")).ok().as_deref(), Some("asked\n"));
    }

    fn results_have_the_shape_of_their_calls(stage) {
        let cage = Cage::start(stage);
        let says = |call: Value, key: &str| {
            let said = cage.call(&call).ok().stdout();
            let result: Value = serde_json::from_str(&said).expect("JSON");
            result.pointer(key).cloned().unwrap_or_else(|| panic!("{said}"))
        };
        let chat = json!({"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{\"command\":[\"echo\",\"hi\"]}"}});
        assert_eq!(says(chat.clone(), "/content"), "hi\n");
        assert_eq!(says(chat, "/tool_call_id"), "c1");
        let response = json!({"type": "function_call", "call_id": "c2", "name": "shell", "arguments": "{\"command\":[\"sh\",\"-c\",\"echo out; echo err >&2; exit 3\"]}"});
        assert_eq!(says(response.clone(), "/output"), "out\nerr\n[exit status 3]");
        assert_eq!(says(response, "/call_id"), "c2");
        let mcp = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "execute_command", "arguments": {"command": "pwd"}}});
        assert_eq!(says(mcp.clone(), "/result/content/0/text"), format!("{}\n", stage.project().display()));
        assert_eq!(says(mcp, "/id"), 7);
    }

    fn searches_and_patches_are_carried_out_within_what_the_cage_has(stage) {
        let cage = Cage::start(stage);
        let outside = shown(&stage.aside().join("outside"));
        cage.sh(&format!("mkdir src && printf 'fn main() {{\\n    old();\\n}}\\n' > src/a.rs && echo 'fn b' > src/b.txt && ln -s {outside} src/link")).ok();
        let grep = |input: Value| cage.tool("Grep", input);
        assert_eq!(grep(json!({"pattern": "^fn"})), (false, "src/a.rs\nsrc/b.txt\n".into()));
        let lines = json!({"pattern": "OLD", "-i": true, "output_mode": "content", "-n": true, "glob": "*.rs", "path": "src"});
        assert_eq!(grep(lines), (false, "src/a.rs:2:    old();\n".into()));
        assert_eq!(cage.tool("Glob", json!({"pattern": "**/*.rs"})), (false, "src/a.rs\n".into()));
        // What the ceiling gives is searched for the call, and what it does not give is not there.
        let given = shown(&stage.aside().join("given"));
        let (error, said) = grep(json!({"pattern": "given", "path": format!("{given}/file")}));
        assert_eq!((error, said), (false, format!("{given}/file\n")));
        let (error, said) = grep(json!({"pattern": "outside", "path": outside.clone()}));
        assert!(error && said.contains("No such file"), "{said}");
        // An argument that would be left out is refused, and not left out.
        let (error, said) = grep(json!({"pattern": "x", "type": "rust"}));
        assert!(error && said.contains("\"call-unknown\""), "{said}");

        let patch = |body: &str| cage.tool("apply_patch", json!({"input": format!("*** Begin Patch\n{body}*** End Patch\n")}));
        let (error, said) = patch("*** Add File: src/new.rs\n+// new\n*** Update File: src/a.rs\n@@ fn main() {\n-    old();\n+    new();\n*** Delete File: src/b.txt\n");
        assert!(!error && said.contains("src/new.rs"), "{said}");
        let expected = "// new\nfn main() {\n    new();\n}\na.rs\nlink\nnew.rs\n";
        assert_eq!(cage.sh("cat src/new.rs src/a.rs; ls src").ok().stdout(), expected);
        assert!(!stage.project().join("src").exists(), "the change is pending");
        // A hunk that does not fit leaves the other files as they are.
        let (error, said) = patch("*** Add File: src/x\n+x\n*** Update File: src/a.rs\n@@\n-nowhere\n+x\n");
        assert!(error && said.contains("hunk 1"), "{said}");
        cage.sh("ls src/x").ended(2);
        let refused = cage.refused("apply_patch", json!({"input": format!("*** Begin Patch\n*** Delete File: {}\n*** End Patch", shown(&stage.aside().join("asked/file")))}));
        assert_eq!(refused["ask"], false, "{refused}");
        assert!(stage.aside().join("asked/file").exists());
    }

    fn what_is_no_call_or_none_that_is_known_is_refused(stage) {
        let cage = Cage::start(stage);
        for text in ["", "{}", "[]", "{\"type\":\"tool_use\",\"name\":\"Bash\",\"name\":\"Read\"}", "\u{0}"] {
            let mut exec = stage.ironcage(["exec", &cage.id, "--intent", "-"]);
            Running::start(&mut exec).feed(text.as_bytes().to_vec(), PATIENCE).ended(125);
        }
        let (error, said) = cage.tool("Task", json!({"prompt": "x"}));
        assert!(error && said.contains("\"call-unknown\""), "{said}");
        let (error, said) = cage.tool("Bash", json!({"command": "echo still here"}));
        assert_eq!((error, said.as_str()), (false, "still here\n"));
    }
}

/// Gives a directory that the test made to the user for whom the cage runs.
fn give(stage: &Stage, path: &Path) {
    std::os::unix::fs::chown(path, Some(stage.uid()), Some(stage.uid())).expect("an owner");
}
