//! Webhooks: events are signed and come at least once, in their order, also where the receiver fails and
//! the service is killed; and nobody is sent to an address of the host who may not name it.

use crate::service::{Service, running};
use crate::service_api::key;
use ironcage_tests::{Running, Stage, either, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A request that a receiver got.
#[derive(Debug, Clone)]
struct Got {
    head: String,
    body: String,
    taken: bool,
}

impl Got {
    fn field(&self, name: &str) -> String {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let (_, value) = found
            .next_back()
            .unwrap_or_else(|| panic!("no {name}: {self:?}"));
        value.to_owned()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

/// A receiver of webhooks, which refuses what it gets until it is told to take it.
struct Receiver {
    port: u16,
    taking: Arc<AtomicBool>,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Receiver {
    fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let receiver = Receiver {
            port: listener.local_addr().expect("an address").port(),
            taking: Arc::default(),
            got: Arc::default(),
        };
        let (taking, got) = (Arc::clone(&receiver.taking), Arc::clone(&receiver.got));
        std::thread::spawn(move || {
            // One that leaves half-way was killed.
            for stream in listener.incoming().flatten() {
                let _ = receive(stream, &taking, &got);
            }
        });
        receiver
    }

    fn all(&self) -> Vec<Got> {
        self.got.lock().expect("the requests").clone()
    }

    /// Types and cages of what was taken, each once.
    fn taken(&self) -> Vec<(String, String)> {
        let mut taken: Vec<(String, String)> = Vec::new();
        for got in self.all().iter().filter(|got| got.taken) {
            let body = got.json();
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            let event = (text(&body["type"]), text(&body["data"]["cage"]));
            if !taken.contains(&event) {
                taken.push(event);
            }
        }
        taken
    }
}

fn receive(
    mut stream: TcpStream,
    taking: &AtomicBool,
    got: &Mutex<Vec<Got>>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.parse::<usize>().ok())?
            });
            if body.len() >= length.expect("a length") {
                let taken = taking.load(Ordering::SeqCst);
                let (head, body) = (head.to_owned(), body.to_owned());
                got.lock()
                    .expect("the requests")
                    .push(Got { head, body, taken });
                let status = if taken {
                    "204 No Content"
                } else {
                    "503 Service Unavailable"
                };
                return write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            }
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

fn webhook(stage: &Stage, words: &[&str]) -> String {
    let words = ["serve", "webhook"].iter().chain(words);
    Running::start(&mut stage.ironcage(words))
        .finish(PATIENCE)
        .ok()
        .stdout()
}

/// The signature that a receiver expects, as any library of Standard Webhooks makes it.
fn signature(stage: &Stage, secret: &str, got: &Got) -> String {
    const SCRIPT: &str = "import base64, hashlib, hmac, sys\n\
        key = base64.b64decode(sys.argv[1].removeprefix('whsec_'))\n\
        print('v1,' + base64.b64encode(hmac.new(key, '.'.join(sys.argv[2:]).encode(), hashlib.sha256).digest()).decode())";
    let mut python = stage.outside("/usr/bin/python3");
    python.args([
        "-c",
        SCRIPT,
        secret,
        &got.field("webhook-id"),
        &got.field("webhook-timestamp"),
        &got.body,
    ]);
    Running::start(&mut python)
        .finish(PATIENCE)
        .ok()
        .stdout()
        .trim()
        .to_owned()
}

either! {
    fn a_receiver_that_fails_and_a_service_that_is_killed_lose_no_event(stage) {
        let receiver = Receiver::start();
        let url = format!("http://127.0.0.1:{}/in", receiver.port);
        let made = webhook(stage, &["create", &url]);
        let (id, secret) = made.trim().split_once("  ").expect("an ID and a secret");
        let mut service = Service::start(stage);
        let cage = service.create(&json!({ "metadata": { "job": "7" } }));
        assert!(wait_until(PATIENCE, || !receiver.all().is_empty()));
        service.kill();
        // The queue is there after that, and what comes of the cage is added to it.
        let service = Service::start(stage);
        service.post(&format!("/v1/cages/{cage}/pause"), &json!({})).ok();
        let refused = receiver.all().len();
        assert!(wait_until(PATIENCE, || receiver.all().len() > refused));
        receiver.taking.store(true, Ordering::SeqCst);
        assert_eq!(service.delete(&cage).status, 204);
        assert!(wait_until(PATIENCE, || receiver.taken().len() == 4), "{:?}", receiver.all());
        let expected = ["created", "paused", "ended", "deleted"].map(|event| (format!("cage.{event}"), cage.clone()));
        assert_eq!(receiver.taken(), expected);
        let all = receiver.all();
        let first = all[0].json();
        assert_eq!((&first["type"], &first["data"]["metadata"]["job"]), (&json!("cage.created"), &json!("7")));
        // An attempt that is made again has the same ID and body, and a signature of its own time.
        for got in all.iter().filter(|got| got.json()["type"] == "cage.created") {
            assert_eq!((&got.body, got.field("webhook-id")), (&all[0].body, all[0].field("webhook-id")));
            assert_eq!(got.field("webhook-signature"), signature(stage, secret, got));
        }
        assert_ne!(signature(stage, "whsec_AAAA", &all[0]), all[0].field("webhook-signature"));
        let shown = || service.get(&format!("/v1/webhooks/{id}")).ok().json();
        assert!(wait_until(PATIENCE, || shown()["delivered"] == json!(4)), "{}", shown());
        let shown = shown();
        assert_eq!((&shown["waiting"], &shown["dropped"]), (&json!(0), &json!(0)));
        assert!(!shown.to_string().contains("whsec") && shown.get("error").is_none(), "{shown}");
        webhook(stage, &["delete", id]);
        assert_eq!(webhook(stage, &["list"]), "");
        service.get(&format!("/v1/webhooks/{id}")).refused(404, "not_found");
    }

    fn a_tenant_is_told_of_its_own_cages_and_sends_nothing_to_the_host(stage) {
        let (own, others) = (Receiver::start(), Receiver::start());
        let service = Service::start(stage);
        let tenant = key(stage, &["--project", "tenant", "--scope", "cages"]);
        let at = |receiver: &Receiver| format!("http://127.0.0.1:{}/", receiver.port);
        let send = |key: &str, method: &str, path: &str, body: &Value| {
            service.send(key, method, path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
        };
        let create = |url: &str| send(&tenant, "POST", "/v1/webhooks", &json!({ "url": url }));
        create(&at(&others)).refused(403, "forbidden");
        create(&at(&others).replace("http:", "https:")).refused(403, "forbidden");
        // A name is resolved when something is sent.
        let named = create(&at(&others).replace("http:", "https:").replace("127.0.0.1", "localhost")).ok().json();
        let named = named["webhook"]["id"].as_str().expect("an ID").to_owned();
        own.taking.store(true, Ordering::SeqCst);
        webhook(stage, &["create", "--event", "created", &at(&own)]);
        let theirs = send(&tenant, "POST", "/v1/cages", &json!({})).ok().json()["id"].as_str().expect("an ID").to_owned();
        let ours = service.create(&json!({}));
        let shown = || send(&tenant, "GET", &format!("/v1/webhooks/{named}"), &json!({})).ok().json();
        assert!(wait_until(PATIENCE, || shown()["failures"].as_u64() > Some(0)), "{}", shown());
        assert!(shown()["error"].as_str().expect("why").contains("loopback"), "{}", shown());
        assert!(wait_until(PATIENCE, || !own.taken().is_empty()));
        assert_eq!(service.delete(&ours).status, 204);
        assert_eq!(send(&tenant, "DELETE", &format!("/v1/cages/{theirs}"), &json!({})).status, 204);
        assert_eq!(own.taken(), [("cage.created".to_owned(), ours)]);
        assert!(others.all().is_empty(), "{:?}", others.all());
        service.get(&format!("/v1/webhooks/{named}")).refused(404, "not_found");
        assert_eq!(send(&tenant, "DELETE", &format!("/v1/webhooks/{named}"), &json!({})).status, 204);
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }
}
