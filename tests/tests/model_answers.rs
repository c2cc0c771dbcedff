//! What a model answers, read at the egress proxy: leases that are there before the agent acts,
//! gone when the result has passed, and nothing that the ceiling does not give at once.

use ironcage_tests::{Running, Stage, TlsWeb, either, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/scripted_model.py");

/// The agent's side of one exchange: a request, and the whole of its answer.
const AGENT: &str = "import json, ssl, sys, urllib.request\n\
    request = urllib.request.Request(sys.argv[1] + '/v1/messages', sys.argv[2].encode(),\n\
    \x20   {'content-type': 'application/json'})\n\
    print(len(urllib.request.urlopen(request, timeout=60).read()))\n";

/// A cage whose model is scripted.
struct Cage<'a> {
    stage: &'a Stage,
    id: String,
    model: String,
}

impl<'a> Cage<'a> {
    /// The words of a run whose model this is.
    fn flags(stage: &Stage, server: &TlsWeb, policy: &str) -> Vec<String> {
        stage.write(stage.project().join("agent.py"), AGENT);
        let file = stage.base().join("policy.toml");
        let models = format!("[network]\nmodels = [\"model.test:{}\"]\n", server.port);
        stage.write(&file, format!("{models}{policy}"));
        let mut flags = server.place("model.test");
        let model = format!("model.test:{}", server.port);
        let file = file.display().to_string();
        flags.extend(
            [
                "--workspace-mode",
                "direct",
                "--policy",
                &file,
                "--allow-host",
                &model,
            ]
            .map(str::to_owned),
        );
        flags
    }

    fn start(stage: &'a Stage, server: &TlsWeb, policy: &str) -> Self {
        let mut run = stage.ironcage(["run", "-q", "-d"]);
        run.args(Self::flags(stage, server, policy));
        run.env("SSL_CERT_FILE", &server.authority);
        let ran = Running::start(&mut run).finish(PATIENCE).ok();
        Cage {
            stage,
            id: ran.stdout().trim().to_owned(),
            model: format!("https://model.test:{}", server.port),
        }
    }

    fn sh(&self, script: &str) -> String {
        let mut exec = self.stage.ironcage(["exec", &self.id, "--"]);
        exec.args(["/bin/sh", "-c", script]);
        Running::start(&mut exec).finish(PATIENCE).stdout()
    }

    fn says(&self, verb: &[&str]) -> String {
        let mut command = self.stage.ironcage(verb);
        Running::start(command.arg(&self.id))
            .finish(PATIENCE)
            .stdout()
    }

    /// One exchange with the model, which answers as `script` says.
    fn ask(&self, script: Value, results: &[&str]) {
        let results: Vec<Value> = (results.iter())
            .map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": "done"}))
            .collect();
        let request = json!({
            "script": script,
            "messages": [{"role": "user", "content": results}],
        });
        let mut exec = self.stage.ironcage(["exec", &self.id, "--"]);
        exec.args([
            "/usr/bin/python3",
            "agent.py",
            &self.model,
            &request.to_string(),
        ]);
        let ran = Running::start(&mut exec).finish(PATIENCE).ok();
        assert!(
            ran.stdout().trim().parse::<usize>().unwrap_or(0) > 20,
            "{ran:?}"
        );
    }

    /// The model calls a shell command.
    fn calls(&self, id: &str, command: &str) {
        self.ask(json!({"calls": [bash(id, command)], "pieces": 1}), &[]);
    }

    fn returns(&self, ids: &[&str]) {
        self.ask(json!({}), ids);
    }

    #[track_caller]
    fn wait_for_leases(&self, count: usize) {
        let mut last = String::new();
        let come = wait_until(PATIENCE, || {
            last = self.says(&["lease", "list"]);
            let open = |line: &&str| line.contains(" write ") || line.contains(" host ");
            last.lines().filter(open).count() == count
        });
        assert!(
            come,
            "{count} leases were expected: {last}\n{}",
            self.record()
        );
    }

    fn record(&self) -> String {
        self.says(&["audit", "show"])
    }

    #[track_caller]
    fn wait_for_record(&self, text: &str) {
        let come = wait_until(PATIENCE, || self.record().contains(text));
        assert!(come, "{text}: {}", self.record());
    }
}

impl Drop for Cage<'_> {
    fn drop(&mut self) {
        let mut stop = self.stage.ironcage(["stop", "-q", "--time", "0", &self.id]);
        let _ = Running::start(&mut stop).finish(PATIENCE);
    }
}

fn bash(id: &str, command: &str) -> Value {
    json!({"id": id, "name": "Bash", "input": {"command": command}})
}

either! {
    fn a_call_in_an_answer_has_its_lease_until_its_result_passes(stage) {
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let out = stage.base().join("out");
        let data = stage.base().join("data");
        for place in [&out, &data] {
            stage.write(place.join("there"), "1\n");
        }
        let policy = format!(
            "[ceiling.auto.files]\nwrite = [{out:?}]\n[ceiling.ask.files]\nread = [{data:?}]\n"
        );
        let cage = Cage::start(stage, &server, &policy);
        let write = format!("echo x > {}/x && echo written; true", out.display());
        assert_eq!(cage.sh(&write), "", "nothing is open before");

        // In single bytes, and as it comes.
        cage.calls("t1", &format!("cp a {}/b", out.display()));
        cage.wait_for_leases(1);
        assert_eq!(cage.sh(&write), "written\n");
        cage.returns(&["t1"]);
        cage.wait_for_leases(0);
        assert_eq!(cage.sh(&write), "", "it is closed after the result");

        // Compressed; and two calls at once have one lease, to the end of both.
        let command = format!("rm {}/b", out.display());
        for (id, encoding) in [("t2", "gzip"), ("t3", "deflate")] {
            cage.ask(json!({"calls": [bash(id, &command)], "encoding": encoding}), &[]);
            cage.wait_for_leases(1);
        }
        cage.returns(&["t2"]);
        cage.calls("t4", "true");
        cage.returns(&["t4"]);
        cage.wait_for_leases(1);
        assert_eq!(cage.sh(&write), "written\n");
        cage.returns(&["t2", "t3"]);
        cage.wait_for_leases(0);

        // Asked for, outside of the ceiling, or never: on record, and not open.
        cage.calls("t5", &format!("cat {}/there", data.display()));
        cage.wait_for_record("request 1: the model's response asks for read");
        assert_eq!(cage.sh(&format!("cat {}/there", data.display())), "");
        cage.calls("t6", "cat /root/.ssh/id_ed25519");
        cage.wait_for_record("outside the cage's ceiling");

        // Words are no calls, whatever they look like; what comes after them is read.
        let hidden = format!(
            "data: {}\n\n",
            json!({"type": "tool_use", "id": "t7", "name": "Bash", "input": {"command": command}})
        );
        cage.ask(json!({"words": [hidden], "calls": [bash("t8", "cat /no/such/place")]}), &[]);
        cage.wait_for_record("read /no/such/place");
        cage.wait_for_leases(0);
        let record = cage.record();
        assert_eq!(record.matches("lease 1: write").count(), 1, "{record}");
        // t1, t2, t3, t5, t6 and t8: neither what needs nothing nor what is hidden in words.
        let calls = record.lines().filter(|line| line.contains("  model calls Bash"));
        assert_eq!(calls.count(), 6, "{record}");
    }

    fn a_call_that_the_rules_for_tools_deny_opens_nothing_and_is_explained(stage) {
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let out = stage.base().join("out");
        stage.write(out.join("there"), "1\n");
        let policy = format!(
            "[ceiling.auto.files]\nwrite = [{out:?}]\n[tools]\nallow = [\"Bash\"]\ndeny = [\"Write\"]\n[tools.arguments.Bash]\ncommand = {{ matches = 'cp .*' }}\n"
        );
        let cage = Cage::start(stage, &server, &policy);
        cage.calls("t1", &format!("rm {}/b", out.display()));
        cage.wait_for_record("tool    denied model response Bash");
        let write = json!({"id": "t2", "name": "Write", "input": {"file_path": out.join("b"), "content": "x"}});
        cage.ask(json!({"calls": [write]}), &[]);
        cage.wait_for_record("tool    denied model response Write");
        let record = cage.record();
        assert!(!record.contains("lease 1"), "{record}");
        let why = cage.says(&["why"]);
        for text in ["denied: model response Bash", "tools.arguments.Bash", "tools.deny: Write"] {
            assert!(why.contains(text), "{text}: {why}");
        }
        // What they allow has its lease, as without them.
        cage.calls("t3", &format!("cp a {}/b", out.display()));
        cage.wait_for_leases(1);
        // The same rules hold for a call that is to be carried out.
        let mut exec = stage.ironcage(["exec", &cage.id, "--intent", "-"]);
        let call = json!({"type": "tool_use", "id": "t4", "name": "Write", "input": {"file_path": "x", "content": "x"}});
        let said = Running::start(&mut exec).feed(call.to_string().into_bytes(), PATIENCE).stdout();
        assert!(said.contains("tool-denied"), "{said}");
        cage.wait_for_record("tool    denied tool call Write");
    }

    fn answers_over_http2_and_compressed_are_read_and_what_is_not_read_is_on_record(stage) {
        let Some(server) = TlsWeb::start(stage, "model.test") else { return };
        let out = stage.base().join("out");
        stage.write(out.join("there"), "1\n");
        let cage = Cage::start(stage, &server, &format!("[ceiling.auto.files]\nwrite = [{out:?}]\n"));
        let exchange = |version: &str, script: Value, results: &[&str]| {
            let results: Vec<Value> = (results.iter())
                .map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": "done"}))
                .collect();
            let request = json!({"script": script, "messages": [{"role": "user", "content": results}]});
            stage.write(stage.project().join("request.json"), request.to_string());
            let said = cage.sh(&format!(
                "curl -sS {version} -o got -w '%{{http_version}} %{{http_code}}' -H 'content-type: application/json' -d @request.json {}/v1/messages 2>&1",
                cage.model
            ));
            let wanted = if version == "--http2" { "2 200" } else { "1.1 200" };
            assert_eq!(said, wanted);
        };
        let write = format!("echo x > {}/x && echo written; true", out.display());
        let command = format!("rm {}/b", out.display());
        for (number, version, encoding) in [
            (1, "--http2", Value::Null),
            (2, "--http2", json!("br")),
            (3, "--http2", json!("gzip")),
            (4, "--http1.1", json!("br")),
        ] {
            let id = format!("t{number}");
            let calls = json!([{"id": id, "command": command}]);
            exchange(version, json!({"calls": calls, "encoding": encoding}), &[]);
            cage.wait_for_leases(1);
            assert_eq!(cage.sh(&write), "written\n", "{version} {encoding}");
            exchange(version, json!({}), &[&id]);
            cage.wait_for_leases(0);
            assert_eq!(cage.sh(&write), "", "{version} {encoding}");
        }
        assert!(server.log().contains("2.0 POST /v1/messages"), "{}", server.log());
        assert!(!cage.record().contains("not read"), "{}", cage.record());

        let calls = json!([{"id": "t9", "command": command}]);
        exchange("--http2", json!({"calls": calls, "encoding": "zstd"}), &[]);
        cage.wait_for_record("an answer is encoded as zstd, which is not read");
        // The server says its word, and the connection ends with the client's.
        cage.sh(&format!(
            "timeout 20 curl -sS --http1.1 -m 3 -o switched -H 'connection: upgrade' -H 'upgrade: websocket' -H 'sec-websocket-version: 13' -H 'sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==' {}/socket",
            cage.model
        ));
        cage.wait_for_record("a WebSocket was opened; its messages are not read");
        cage.wait_for_leases(0);
    }

    fn a_models_words_stand_beside_a_question_narrow_where_the_policy_says_so_and_open_nothing(stage) {
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let (out, other, data) = (stage.base().join("out"), stage.base().join("other"), stage.base().join("data"));
        for place in [&out, &other, &data] {
            stage.write(place.join("there"), "1\n");
        }
        let policy = format!(
            "[ceiling]\nwords = \"narrow\"\n[ceiling.auto.files]\nwrite = [{out:?}, {other:?}]\n[ceiling.ask.files]\nread = [{data:?}]\n"
        );
        let cage = Cage::start(stage, &server, &policy);
        let write = |place: &std::path::Path| format!("echo x > {}/x && echo written; true", place.display());
        let remove = |id: &str, place: &std::path::Path| bash(id, &format!("rm {}/b", place.display()));

        // Words alone: everything that can be leased is named, and nothing is open or asked.
        let everything = format!("I write to `{}`, {} and read {}/there.", out.display(), other.display(), data.display());
        cage.ask(json!({"words": [everything], "pieces": 1}), &[]);
        cage.ask(json!({"calls": [bash("t0", "cat /no/such/place")]}), &[]);
        cage.wait_for_record("read /no/such/place");
        cage.wait_for_leases(0);
        assert_eq!(cage.sh(&write(&out)), "");
        assert!(!cage.record().contains("request 1"), "{}", cage.record());

        // What is asked for later says where it was named.
        cage.calls("t1", &format!("cat {}/there", data.display()));
        let named = format!("the model announced {}/there", data.display());
        cage.wait_for_record(&named);
        let pending = Running::start(&mut stage.ironcage(["request", "list"])).finish(PATIENCE).stdout();
        assert!(pending.contains("the model announced it:"), "{pending}");
        // What they name is given as it would be without them.
        cage.ask(json!({"calls": [remove("t2", &out)]}), &[]);
        cage.wait_for_leases(1);
        cage.returns(&["t2"]);
        cage.wait_for_leases(0);
        // What would take the home away needs nothing that the cage lacks, and is on record all the same.
        cage.calls("t5", "rm -rf ~");
        cage.wait_for_record(": that is the cage's own and goes with it; the host's is not in the cage");
        cage.calls("t6", "rm -rf .");
        cage.wait_for_record(": nothing holds it: the cage writes to the host's own files there");
        drop(cage);

        // In another cage they name one place, and the call needs another.
        let cage = Cage::start(stage, &server, &policy);
        let said = format!("Now I remove `{}/b`.", out.display());
        cage.ask(json!({"words": [said], "calls": [remove("t3", &other)]}), &[]);
        cage.wait_for_record("request 1: the model's response asks for write");
        cage.wait_for_leases(0);
        assert_eq!(cage.sh(&write(&other)), "");
        cage.ask(json!({"calls": [remove("t4", &out)]}), &["t3"]);
        cage.wait_for_leases(1);
        assert_eq!(cage.sh(&write(&out)), "written\n");
    }

    fn what_a_child_does_is_counted_with_its_parent_and_stops_both(stage) {
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let policy = "[ceiling]\nchildren = 1\n[ceiling.drift]\nshorten = 1\nask = 2\nfreeze = 2\n[ceiling.ask.network]\nallow = [\"other.test\"]\n";
        let cage = Cage::start(stage, &server, policy);
        // Each child says one thing and does another.
        let child = |host: &str| {
            let call = json!({"script": {"calls": [bash("t", "curl http://named.test/")], "pieces": 1}});
            stage.write(stage.project().join("call.json"), call.to_string());
            format!(
                "/.ironcage/bin/ironcage child -- /bin/sh -c 'python3 agent.py {} \"$(cat call.json)\"; until [ -e told ]; do sleep 0.05; done; \
                 python3 -c \"import socket; socket.getaddrinfo(\\\"{host}\\\", 80)\"; echo went on; sleep 600'",
                cage.model
            )
        };
        let children = || {
            let told = cage.says(&["inspect"]);
            let list = told.split_once("\"children\": [").map(|(_, rest)| rest.split(']').next().unwrap_or_default().to_owned());
            let ids = list.unwrap_or_default();
            ids.split(',').map(|id| id.trim().trim_matches('"').to_owned()).find(|id| !id.is_empty())
        };
        for (number, host) in [(1, "one.test"), (2, "two.test")] {
            let told = stage.project().join("told");
            let _ = std::fs::remove_file(&told);
            let mut exec = stage.ironcage(["exec", "-d", &cage.id, "--", "/bin/sh", "-c"]);
            Running::start(exec.arg(child(host))).finish(PATIENCE).ok();
            let mut id = None;
            assert!(wait_until(PATIENCE, || { id = children(); id.is_some() }), "{}", cage.record());
            let id = id.unwrap_or_default();
            let record = || Running::start(&mut stage.ironcage(["audit", "show", &id])).finish(PATIENCE).stdout();
            assert!(wait_until(PATIENCE, || record().contains("model calls Bash")), "{}", record());
            stage.write(&told, "");
            cage.wait_for_record(&format!("drift {number}: in its child {id}: the model called Bash"));
            assert!(record().contains("drift 1: the model called Bash"), "{}", record());
            if number == 1 {
                Running::start(&mut stage.ironcage(["stop", "--time", "0", &id])).finish(PATIENCE);
                assert!(wait_until(PATIENCE, || children().is_none()));
                continue;
            }
            // The parent is stopped by what its children did, and the child with it.
            for stopped in [&cage.id, &id] {
                let refused = || {
                    let mut exec = stage.ironcage(["exec", stopped.as_str(), "--", "true"]);
                    format!("{:?}", Running::start(&mut exec).finish(PATIENCE))
                };
                assert!(wait_until(PATIENCE, || refused().contains("ironcage resume")), "{}", refused());
            }
        }
    }

    fn a_cage_whose_deeds_are_not_its_models_words_is_trusted_less_and_stopped(stage) {
        let Some(server) = TlsWeb::of(stage, "model.test", "/usr/bin/python3", SERVER) else { return };
        let out = stage.base().join("out");
        stage.write(out.join("there"), "1\n");
        let policy = format!(
            "[ceiling.auto.files]\nwrite = [{out:?}]\n[ceiling.drift]\nshorten = 1\nask = 2\nfreeze = 3\n"
        );
        let cage = Cage::start(stage, &server, &policy);
        let contact = |host: &str| cage.sh(&format!("python3 -c 'import socket; socket.getaddrinfo(\"{host}\", 80)'; true"));

        // Each host counts when it is first refused. While nothing is said, nothing is contradicted; nor is a call that may do anything.
        contact("nobody.test");
        cage.calls("t1", "./anything");
        contact("still-nobody.test");
        cage.returns(&["t1"]);
        // What is named is no drift, though it is refused.
        cage.calls("t2", "curl http://named.test/");
        cage.wait_for_record("model calls Bash: host named.test");
        contact("named.test");
        cage.wait_for_record("dns   named.test");
        assert!(!cage.record().contains("drift 1"), "{}", cage.record());

        contact("one.test");
        cage.wait_for_record("drift 1: the model called Bash, which says nothing of one.test");
        cage.calls("t3", &format!("rm {}/b", out.display()));
        // A quarter as long.
        cage.wait_for_record("for 2 min 30 s");
        cage.returns(&["t3"]);
        cage.wait_for_leases(0);
        contact("two.test");
        cage.wait_for_record("drift 2");
        cage.calls("t4", &format!("rm {}/b", out.display()));
        cage.wait_for_record("request 1: the model's response asks for write");
        cage.wait_for_leases(0);

        // The third time it is stopped, with what tries it.
        let mut exec = stage.ironcage(["exec", "-d", &cage.id, "--", "/bin/sh", "-c"]);
        exec.arg("python3 -c 'import socket; socket.getaddrinfo(\"three.test\", 80)'; touch went-on");
        Running::start(&mut exec).finish(PATIENCE).ok();
        cage.wait_for_record("drift 3");
        let mut refused = stage.ironcage(["exec", &cage.id, "--", "true"]);
        let refused = format!("{:?}", Running::start(&mut refused).finish(PATIENCE));
        assert!(refused.contains("ironcage resume"), "{refused}");
        cage.says(&["resume"]);
        let went = wait_until(PATIENCE, || cage.sh("ls").contains("went-on"));
        assert!(went, "it goes on: {}", cage.record());
        assert!(cage.record().contains("resumed by the operator"), "{}", cage.record());
        drop(cage);

        // Who sits before it is told, and how it goes on.
        let call = json!({"script": {"calls": [bash("t9", "curl http://named.test/")]}});
        let script = format!(
            "python3 agent.py https://model.test:{} '{call}'; for n in $(seq 600); do python3 -c \"import socket; socket.getaddrinfo('h$n.test', 80)\" 2>/dev/null; done",
            server.port
        );
        let mut run = stage.ironcage(["run", "--name", "watched"]);
        run.args(Cage::flags(stage, &server, &policy.replace("freeze = 3", "freeze = 2")));
        run.env("SSL_CERT_FILE", &server.authority).args(["--", "/bin/sh", "-c", &script]);
        let run = Running::start(&mut run);
        let record = || Running::start(&mut stage.ironcage(["audit", "show", "watched"])).finish(PATIENCE).stdout();
        let frozen = wait_until(PATIENCE, || record().contains("drift 2"));
        assert!(frozen, "{}", record());
        Running::start(&mut stage.ironcage(["stop", "-q", "--time", "0", "watched"])).finish(PATIENCE);
        let said = format!("{:?}", run.finish(PATIENCE));
        assert!(said.contains("so it was stopped: look with `ironcage lease list -f"), "{said}");
    }
}
