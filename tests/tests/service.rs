//! The service: cages by HTTP, its end in the middle of everything, its keys, and E2B's SDKs unmodified.

use ironcage_tests::{Running, Stage, either, skip, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(180);

/// A service of a stage.
pub(crate) struct Service {
    running: Option<Running>,
    pub(crate) address: String,
    pub(crate) key: String,
}

/// An answer of it.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl HttpResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> HttpResponse {
        assert!(
            (200..300).contains(&self.status),
            "{}: {}",
            self.status,
            String::from_utf8_lossy(&self.body)
        );
        self
    }

    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) {
        let body = self.json();
        assert_eq!(
            (self.status, body["error"]["code"].as_str()),
            (status, Some(code)),
            "{body}"
        );
    }
}

impl Service {
    pub(crate) fn start(stage: &Stage) -> Service {
        Service::at(stage, "127.0.0.1:0")
    }

    pub(crate) fn at(stage: &Stage, listen: &str) -> Service {
        Service::with(stage, &["--listen", listen])
    }

    pub(crate) fn with(stage: &Stage, flags: &[&str]) -> Service {
        let words = ["serve"].iter().chain(flags);
        Service::of(stage, &mut stage.ironcage(words))
    }

    /// One that another command becomes.
    pub(crate) fn of(stage: &Stage, command: &mut std::process::Command) -> Service {
        let mut running = Running::start(command);
        let mut line = String::new();
        BufReader::new(running.stdout())
            .read_line(&mut line)
            .expect("a line");
        let address = line
            .trim()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        assert!(address.contains(':'), "{line}");
        let env = stage.ironcage(["serve", "env", "--listen", &address]);
        let env = Running::start(&mut { env }).finish(PATIENCE).ok().stdout();
        let key = env
            .lines()
            .find_map(|line| line.strip_prefix("export IRONCAGE_API_KEY='"));
        let key = key
            .unwrap_or_else(|| panic!("{env}"))
            .trim_end_matches('\'')
            .to_owned();
        Service {
            running: Some(running),
            address,
            key,
        }
    }

    /// One that runs already, by another address or with another key.
    pub(crate) fn named(address: &str, key: &str) -> Service {
        Service {
            running: None,
            address: address.to_owned(),
            key: key.to_owned(),
        }
    }

    pub(crate) fn raw(&self, text: &[u8]) -> HttpResponse {
        let mut stream = TcpStream::connect(&self.address).expect("the service");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(text).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let end = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .expect("a status");
        let mut body = answer.split_off(end + 4);
        if head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
        {
            body = unchunked(&body);
        }
        HttpResponse { status, head, body }
    }

    pub(crate) fn send(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> HttpResponse {
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n{headers}Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        text.extend_from_slice(body);
        self.raw(&text)
    }

    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        self.send(&self.key, "GET", path, "", b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.send(
            &self.key,
            "POST",
            path,
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        )
    }

    pub(crate) fn create(&self, spec: &Value) -> String {
        let cage = self.post("/v1/cages", spec).ok().json();
        cage["id"].as_str().expect("an id").to_owned()
    }

    pub(crate) fn run(&self, id: &str, command: &str) -> Value {
        self.post(
            &format!("/v1/cages/{id}/run"),
            &json!({ "command": command }),
        )
        .ok()
        .json()
    }

    pub(crate) fn delete(&self, id: &str) -> HttpResponse {
        self.send(&self.key, "DELETE", &format!("/v1/cages/{id}"), "", b"")
    }

    pub(crate) fn kill(&mut self) {
        let running = self.running.take().expect("it runs");
        running.signal(Signal::KILL);
        running.finish(PATIENCE);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal(Signal::TERM);
            running.finish(PATIENCE);
        }
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&body[..end])
            .ok()
            .and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.expect("the size of a chunk");
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
        if size == 0 {
            break;
        }
    }
    whole
}

/// Ids of the cages of this stage that run, as `ironcage ps` lists them. Root's list has cages of other stages, too.
pub(crate) fn ids(stage: &Stage) -> BTreeSet<String> {
    let listed = Running::start(&mut stage.ironcage(["ps", "--json"]))
        .finish(PATIENCE)
        .ok();
    let listed: Value = serde_json::from_str(&listed.stdout()).expect("JSON");
    let cages = listed.as_array().expect("a list").iter();
    let base = stage.base().to_str().expect("text");
    let own = cages.filter(|cage| {
        let workspace = cage["workspace"].as_str().unwrap_or_default();
        workspace.is_empty() || workspace.starts_with(base)
    });
    own.filter_map(|cage| cage["id"].as_str().map(str::to_owned))
        .collect()
}

/// How many cages of this stage run.
pub(crate) fn running(stage: &Stage) -> usize {
    ids(stage).len()
}

either! {
    fn a_cage_is_created_used_and_deleted_by_http(stage) {
        let service = Service::start(stage);
        let id = service.create(&json!({ "metadata": { "a": "1" }, "env": { "FROM": "create" } }));
        let ran = service.run(&id, "echo $FROM; echo no >&2; exit 3");
        assert_eq!((&ran["stdout"], &ran["stderr"], &ran["exit"]["code"]), (&json!("create\n"), &json!("no\n"), &json!(3)));
        let files = format!("/v1/cages/{id}/files");
        let content = format!("{files}/content?path=a/b.txt");
        service.send(&service.key, "PUT", &content, "", b"hello").ok();
        assert_eq!(service.get(&content).ok().body, b"hello");
        let part = service.send(&service.key, "GET", &content, "Range: bytes=1-2\r\n", b"");
        assert_eq!((part.status, part.body.as_slice()), (206, &b"el"[..]));
        service.send(&service.key, "GET", &content, "Range: bytes=9-\r\n", b"").refused(416, "range_not_satisfiable");
        let listed = service.get(&format!("{files}?path=.&depth=2")).ok().json();
        assert_eq!(listed["entries"].as_array().map(Vec::len), Some(2), "{listed}");
        // The paths of the cage are its own: what leads out of it inside leads nowhere else outside.
        let secret = stage.base().join("secret");
        stage.write(&secret, "outside");
        service.run(&id, &format!("ln -s {} link; ln -s ../../../../../../../etc up", secret.display()));
        service.get(&format!("{files}/content?path=link")).refused(404, "not_found");
        service.get(&format!("{files}/content?path={}", secret.display())).refused(404, "not_found");
        let found = service.get("/v1/cages?metadata=a%3D1").ok().json();
        assert_eq!(found["cages"].as_array().map(Vec::len), Some(1), "{found}");
        let found = service.get("/v1/cages?metadata=a%3D2").ok().json();
        assert_eq!(found["cages"].as_array().map(Vec::len), Some(0), "{found}");
        // A command that takes too long is killed with its children.
        let slow = json!({ "command": "sleep 1000 & sleep 1000", "timeout": 1 });
        let slow = service.post(&format!("/v1/cages/{id}/run"), &slow).ok().json();
        assert_eq!(slow["timed_out"], json!(true));
        let ran = service.run(&id, "cat /proc/[0-9]*/comm | grep -c '^sleep$'");
        assert_eq!(ran["stdout"], json!("0\n"), "{ran}");
        let usage = service.get(&format!("/v1/cages/{id}/usage")).ok().json();
        assert!(usage["memory_limit"].as_u64() > Some(0), "{usage}");
        let audit = service.get(&format!("/v1/cages/{id}/audit")).ok().json();
        assert_eq!(audit["events"][0]["event"], json!("start"), "{audit}");
        service.post(&format!("/v1/cages/{id}/pause"), &json!({})).ok();
        service.post(&format!("/v1/cages/{id}/run"), &json!({ "command": "true" })).refused(409, "cage_paused");
        service.post(&format!("/v1/cages/{id}/resume"), &json!({})).ok();
        assert_eq!(service.run(&id, "true")["exit"]["code"], json!(0));
        assert_eq!(service.delete(&id).status, 204);
        service.get(&format!("/v1/cages/{id}")).refused(404, "not_found");
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }

    fn what_is_not_a_request_is_an_error_with_a_code_and_leaves_nothing(stage) {
        let service = Service::start(stage);
        service.raw(b"GET /v1/cages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").refused(401, "unauthorized");
        service.send("ick_000000000000_00", "GET", "/v1/cages", "", b"").refused(401, "unauthorized");
        service.send("ick_../local_x", "GET", "/v1/cages", "", b"").refused(401, "unauthorized");
        let json_type = "Content-Type: application/json\r\n";
        for body in ["", "{", "[]", "{\"unknown\":1}", "{\"timeout\":0}", "{\"timeout\":-1}", "{\"profile\":\"--network=open\"}", "{\"limits\":{\"memory\":\"-1\"}}", "{\"workspace_mode\":\"direct\"}", "{\"env\":{\"A=B\":\"\"}}"] {
            service.send(&service.key, "POST", "/v1/cages", json_type, body.as_bytes()).refused(400, "invalid_request");
        }
        let absent = json!({ "profile": "there-is-none" });
        service.post("/v1/cages", &absent).refused(422, "start_failed");
        for path in ["/v1/cages/../../etc/passwd", "/v1/nothing", "/etc/passwd"] {
            service.get(path).refused(404, "not_found");
        }
        service.get("/v1/cages/c000000000000").refused(404, "not_found");
        service.get("/v1/cages?limit=0").refused(400, "invalid_request");
        service.send(&service.key, "PUT", "/v1/cages", "", b"").refused(405, "method_not_allowed");
        let huge = vec![b' '; 17 << 20];
        service.send(&service.key, "POST", "/v1/cages", json_type, &huge).refused(413, "too_large");
        let long = format!("X-Long: {}\r\n", "x".repeat(400_000));
        assert_eq!(service.send(&service.key, "GET", "/v1/cages", &long, b"").status, 431);
        assert!(wait_until(PATIENCE, || running(stage) == 0));
        // It still works.
        let id = service.create(&json!({}));
        assert_eq!(service.delete(&id).status, 204);
    }

    fn cages_and_their_processes_survive_kill_9_of_the_service(stage) {
        let mut service = Service::start(stage);
        let headers = "Content-Type: application/json\r\nIdempotency-Key: once\r\n";
        let first = service.send(&service.key, "POST", "/v1/cages", headers, b"{}").ok().json();
        let id = first["id"].as_str().expect("an id").to_owned();
        let start = json!({ "command": "echo before; read line; echo after $line; sleep 1000", "stdin": true });
        let process = service.post(&format!("/v1/cages/{id}/processes"), &start).ok().json();
        let process = format!("/v1/cages/{id}/processes/{}", process["pid"]);
        let paused = service.create(&json!({}));
        service.post(&format!("/v1/cages/{paused}/pause"), &json!({})).ok();
        let address = service.address.clone();
        service.kill();
        let service = Service::at(stage, &address);
        let again = service.send(&service.key, "POST", "/v1/cages", headers, b"{}").ok().json();
        assert_eq!(again["id"], json!(id));
        service.send(&service.key, "POST", "/v1/cages", headers, b"{\"timeout\":9}").refused(409, "idempotency_mismatch");
        assert_eq!(service.get(&format!("/v1/cages/{paused}")).ok().json()["state"], json!("paused"));
        let wrote = service.send(&service.key, "POST", &format!("{process}/stdin?close=true"), "", b"restart\n");
        assert_eq!(wrote.status, 204);
        let output = || service.get(&process).ok().json()["output"].as_u64();
        assert!(wait_until(PATIENCE, || output() == Some(21)), "{:?}", output());
        service.post(&format!("{process}/signal"), &json!({ "signal": "SIGKILL" })).ok();
        let followed = service.get(&format!("{process}/output?from=0")).ok();
        let text = String::from_utf8_lossy(&followed.body).into_owned();
        // "before\nafter restart\n", perhaps in two events.
        assert!(text.contains("YmVmb3JlC") && text.contains("event: exit"), "{text}");
        for id in [id, paused] {
            assert_eq!(service.delete(&id).status, 204);
        }
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }

    fn a_service_that_is_killed_while_it_creates_leaves_no_cage_that_nobody_knows(stage) {
        let mut service = Service::start(stage);
        let address = service.address.clone();
        let text = format!(
            "POST /v1/cages HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}",
            service.key
        );
        for delay in [0, 10, 40, 90] {
            let mut stream = TcpStream::connect(&service.address).expect("the service");
            stream.write_all(text.as_bytes()).expect("sent");
            std::thread::sleep(Duration::from_millis(delay));
            service.kill();
            service = Service::at(stage, &address);
        }
        let known = || service.get("/v1/cages").ok().json()["cages"].as_array().map(Vec::len);
        assert!(wait_until(PATIENCE, || Some(running(stage)) == known()), "{} run, {:?} are known", running(stage), known());
        let cages = service.get("/v1/cages").ok().json();
        for cage in cages["cages"].as_array().expect("a list") {
            assert_eq!(service.delete(cage["id"].as_str().expect("an id")).status, 204);
        }
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }

    fn a_project_never_sees_the_cages_of_another(stage) {
        let service = Service::start(stage);
        let key = |flags: &[&str]| {
            let words = ["serve", "key", "create"].iter().chain(flags);
            let made = Running::start(&mut stage.ironcage(words)).finish(PATIENCE).ok();
            made.stdout().trim().to_owned()
        };
        let (one, other) = (key(&["--project", "one", "a"]), key(&["--project", "other", "b"]));
        let reader = key(&["--project", "one", "--scope", "read", "c"]);
        let json_type = "Content-Type: application/json\r\n";
        let id = service.send(&one, "POST", "/v1/cages", json_type, b"{}").ok().json()["id"].as_str().expect("an id").to_owned();
        let path = format!("/v1/cages/{id}");
        assert_eq!(service.send(&one, "GET", &path, "", b"").status, 200);
        assert_eq!(service.send(&reader, "GET", &path, "", b"").status, 200);
        service.send(&reader, "DELETE", &path, "", b"").refused(403, "forbidden");
        for (method, path) in [("GET", path.clone()), ("DELETE", path.clone()), ("GET", format!("{path}/processes")), ("GET", format!("{path}/files?path=/"))] {
            service.send(&other, method, &path, "", b"").refused(404, "not_found");
        }
        let seen = service.send(&other, "GET", "/v1/cages?state=running,paused,ended", "", b"").ok().json();
        assert_eq!(seen["cages"], json!([]));
        assert_eq!(service.send(&other, "GET", &format!("/sandboxes/{id}"), "", b"").status, 404);
        assert_eq!(service.send(&other, "DELETE", &format!("/sandboxes/{id}"), "", b"").status, 404);
        // A token of another cage opens nothing.
        let headers = format!("E2b-Sandbox-Id: {id}\r\nX-Access-Token: 00\r\n");
        assert_eq!(service.send(&other, "POST", "/process.Process/List", &headers, b"{}").status, 401);
        // The host's directories and policies need a scope.
        for spec in [
            json!({ "directory": "/etc" }),
            json!({ "policy": "" }),
            json!({ "network": { "mode": "open" } }),
            json!({ "network": { "allow": ["10.0.0.0/8"] } }),
        ] {
            service.send(&one, "POST", "/v1/cages", json_type, spec.to_string().as_bytes()).refused(403, "forbidden");
        }
        let listed = Running::start(&mut stage.ironcage(["serve", "key", "list", "--json"])).finish(PATIENCE).ok();
        let listed: Value = serde_json::from_str(&listed.stdout()).expect("JSON");
        let found = listed.as_array().into_iter().flatten().find(|key| key["name"] == "b").expect("the key");
        Running::start(&mut stage.ironcage(["serve", "key", "revoke", found["id"].as_str().expect("an id")])).finish(PATIENCE).ok();
        service.send(&other, "GET", "/v1/cages", "", b"").refused(401, "unauthorized");
        assert_eq!(service.send(&one, "DELETE", &path, "", b"").status, 204);
    }

    fn leases_are_granted_within_the_ceiling_and_revoked_by_http(stage) {
        let service = Service::start(stage);
        let policy = "[ceiling.auto.network]\nallow = [\"api.test\"]\n";
        let made = service.post("/v1/cages", &json!({ "policy": policy }));
        let id = made.ok().json()["id"].as_str().expect("an id").to_owned();
        let leases = format!("/v1/cages/{id}/leases");
        let granted = service.post(&leases, &json!({ "host": "api.test", "reason": "a test" })).ok().json();
        assert_eq!(granted["outcome"], json!("granted"), "{granted}");
        let denied = service.post(&leases, &json!({ "host": "other.test", "reason": "a test" })).ok().json();
        assert_eq!(denied["outcome"], json!("denied"), "{denied}");
        service.post(&leases, &json!({ "host": "-", "reason": "a test" })).refused(400, "invalid_request");
        let listed = service.get(&leases).ok().json();
        assert_eq!(listed["leases"].as_array().map(Vec::len), Some(1), "{listed}");
        let path = format!("{leases}/{}", granted["lease"]);
        assert_eq!(service.send(&service.key, "DELETE", &path, "", b"").status, 204);
        assert_eq!(service.get(&leases).ok().json()["leases"], json!([]));
        assert_eq!(service.get(&format!("/v1/cages/{id}/requests")).ok().json()["requests"], json!([]));
        assert_eq!(service.delete(&id).status, 204);
    }

    fn a_cage_ends_with_its_time_and_a_directory_keeps_its_change(stage) {
        let service = Service::start(stage);
        stage.write(stage.project().join("kept.txt"), "before\n");
        let spec = json!({ "directory": stage.project(), "timeout": 300 });
        let id = service.create(&spec);
        service.run(&id, "echo after > kept.txt");
        assert_eq!(stage.read("kept.txt").as_deref(), Some("before\n"));
        let text = json!({ "timeout": 1 }).to_string();
        service.send(&service.key, "PATCH", &format!("/v1/cages/{id}"), "Content-Type: application/json\r\n", text.as_bytes()).ok();
        let gone = || service.get(&format!("/v1/cages/{id}")).status == 404;
        assert!(wait_until(PATIENCE, gone));
        assert!(wait_until(PATIENCE, || running(stage) == 0));
        let applied = Running::start(&mut stage.ironcage(["apply"])).finish(PATIENCE);
        assert_eq!(stage.read("kept.txt").as_deref(), Some("after\n"), "{applied:?}");
    }
}

/// A client program with the variables that `ironcage serve env --e2b` prints.
pub(super) fn sdk(
    stage: &Stage,
    service: &Service,
    program: &Path,
    arguments: &[&dyn AsRef<std::ffi::OsStr>],
) {
    let mut command = stage.outside(program);
    let url = format!("http://{}", service.address);
    command
        .args(arguments.iter().map(|argument| argument.as_ref()))
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_API_KEY", &service.key);
    let ran = Running::start(&mut command).finish(DEADLINE).ok();
    assert_eq!(ran.stdout(), "ok\n");
    assert!(wait_until(PATIENCE, || running(stage) == 0));
}

/// What `scripts/test` installs of a kind, if it did.
pub(super) fn installed(kind: &str, file: &str) -> Option<PathBuf> {
    let path = Path::new("/var/cache/ironcage-test").join(kind);
    if !path.join(file).exists() {
        skip(&format!(
            "no E2B SDK in {}: ./scripts/test installs it",
            path.display()
        ));
        return None;
    }
    Some(path)
}

/// A script in a place that the user of a stage can read.
pub(super) fn script(stage: &Stage, name: &str) -> PathBuf {
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk").join(name))
        .expect("the script");
    let path = stage.base().join(name);
    stage.write(&path, text);
    path
}

either! {
    fn the_e2b_sdk_of_pypi_works_unmodified(stage) {
        if let Some(place) = installed("e2b-python", "bin/python") {
            let service = Service::start(stage);
            sdk(stage, &service, &place.join("bin/python"), &[&script(stage, "e2b_smoke.py")]);
        }
    }

    fn the_e2b_sdk_of_npm_works_unmodified(stage) {
        if let Some(place) = installed("e2b-node", "node_modules/e2b/package.json") {
            let service = Service::start(stage);
            let text = script(stage, "e2b_smoke.mjs");
            let modules = stage.base().join("node_modules");
            std::os::unix::fs::symlink(place.join("node_modules"), modules).expect("linked");
            sdk(stage, &service, Path::new("/usr/bin/env"), &[&"node", &text]);
        }
    }
}
