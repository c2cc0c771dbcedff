//! What a key of a tenant cannot get by a detour: the host's loopback, templates of the operator, leases on
//! limits, timeouts that are moved again and again.

use crate::service::Service;
use crate::service_api::key;
use crate::templates::{Tree, template};
use ironcage_tests::{Running, Stage, either, wait_until};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const JSON: &str = "Content-Type: application/json\r\n";

fn bounds(stage: &Stage, words: &[&str]) {
    let words = ["serve", "project", "set"].iter().chain(words);
    Running::start(&mut stage.ironcage(words))
        .finish(PATIENCE)
        .ok();
}

fn sent(service: &Service, key: &str, path: &str, body: &Value) -> crate::service::HttpResponse {
    service.send(key, "POST", path, JSON, body.to_string().as_bytes())
}

fn id_of(cage: &Value) -> String {
    cage["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{cage}"))
        .to_owned()
}

/// The second of its day of a time in RFC 3339.
fn seconds(time: &Value) -> i64 {
    let text = time.as_str().and_then(|text| text.get(11..19));
    let parts = text.unwrap_or_else(|| panic!("{time}")).split(':');
    parts.fold(0, |sum, part| {
        sum * 60 + part.parse::<i64>().expect("digits")
    })
}

either! {
    fn the_loopback_of_the_host_is_not_a_host_that_a_tenant_names(stage) {
        let service = Service::start(stage);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = (&stream).write_all(b"of the host\n");
            }
        });
        let plain = key(stage, &["--scope", "cages", "--scope", "permissions"]);
        let own = format!("host.ironcage:{port}");
        for host in [own.as_str(), "HOST.ironcage.", "**.ironcage"] {
            sent(&service, &plain, "/v1/cages", &json!({ "network": { "allow": [host] } })).refused(403, "forbidden");
        }
        let cage = sent(&service, &plain, "/v1/cages", &json!({ "network": { "mode": "live" } })).ok().json();
        let id = id_of(&cage);
        let rules = format!("/v1/cages/{id}/network/rules");
        let reach = || service.run(&id, &format!("curl -sS --max-time 20 --http0.9 http://{own}/ 2>&1; true"))["stdout"].to_string();
        for rule in [json!({ "verdict": "allow", "host": own }), json!({ "verdict": "allow", "requests": format!("GET {own}/**") })] {
            sent(&service, &plain, &rules, &rule).refused(403, "forbidden");
        }
        let lease = json!({ "host": own, "reason": "a test" });
        sent(&service, &plain, &format!("/v1/cages/{id}/leases"), &lease).refused(403, "forbidden");
        assert!(!reach().contains("of the host"));
        // Who may name what is the host's own gives it.
        service.post(&rules, &json!({ "verdict": "allow", "host": own })).ok();
        let reached = reach();
        assert!(reached.contains("of the host"), "{reached}");
        assert_eq!(service.delete(&id).status, 204);
    }

    fn a_denial_and_a_limit_are_lifted_only_by_a_key_that_names_what_is_the_hosts(stage) {
        let service = Service::start(stage);
        let plain = key(stage, &["--scope", "cages", "--scope", "permissions"]);
        let id = service.create(&json!({ "network": { "mode": "live", "allow": ["a.example"] } }));
        let rules = format!("/v1/cages/{id}/network/rules");
        let denied = service.post(&rules, &json!({ "verdict": "deny", "host": "a.example" })).ok().json();
        let path = format!("{rules}/{}", denied["numbers"][0]);
        service.send(&plain, "DELETE", &path, "", b"").refused(403, "forbidden");
        service.send(&service.key, "DELETE", &path, "", b"").ok();
        let allowed = sent(&service, &plain, &rules, &json!({ "verdict": "allow", "host": "b.example" })).ok().json();
        service.send(&plain, "DELETE", &format!("{rules}/{}", allowed["numbers"][0]), "", b"").ok();
        let limit = |key: &str, text: &str| service.send(key, "PATCH", &format!("/v1/cages/{id}/network/limits"), JSON, text.as_bytes());
        limit(&service.key, "{\"connections\":10}").ok();
        limit(&plain, "{\"connections\":11}").refused(403, "forbidden");
        limit(&plain, "{\"connections\":18446744073709551615,\"bytes_out\":5}").refused(403, "forbidden");
        assert_eq!(limit(&plain, "{\"connections\":5,\"bytes_out\":1000}").ok().json(), json!({ "connections": 5, "bytes_out": 1000 }));
        limit(&service.key, "{\"connections\":10}").ok();
        assert_eq!(service.delete(&id).status, 204);
    }

    fn what_a_template_brings_is_held_to_the_ceiling_of_a_project(stage) {
        let tree = Tree::new(stage);
        stage.write(tree.directory.join("policy.toml"), "[network]\nmode = \"live\"\nallow = [\"wide.example\"]\n");
        for (name, text) in [
            ("policy", "root = \"root\"\npolicy = \"policy.toml\"\n"),
            ("profile", "root = \"root\"\nprofile = \"coding-agent\"\n"),
            ("plain", "root = \"root\"\nprofile = \"shell\"\n"),
        ] {
            tree.write(stage, text);
            template(stage, &["build", name, &tree.file()]).ok();
        }
        let service = Service::start(stage);
        bounds(stage, &["bound", "--allow-host", "*.example.com"]);
        bounds(stage, &["python", "--profile", "python"]);
        let scopes = ["cages", "permissions"].map(|scope| ["--scope", scope]).concat();
        let of = |project: &str| key(stage, &[&["--project", project], &scopes[..]].concat());
        let (bound, python, free) = (of("bound"), of("python"), of("free"));
        let create = |key: &str, spec: &Value| sent(&service, key, "/v1/cages", spec);
        for name in ["policy", "profile"] {
            for key in [&bound, &python] {
                create(key, &json!({ "template": name })).refused(403, "forbidden");
            }
            create(&bound, &json!({ "template": "absent" })).refused(404, "not_found");
            let sandbox = json!({ "templateID": name });
            assert_eq!(sent(&service, &bound, "/v2/sandboxes", &sandbox).status, 403);
            // Its policy is not one that every key adds hosts to.
            let id = id_of(&create(&free, &json!({ "template": name })).ok().json());
            let rule = json!({ "verdict": "allow", "host": "b.example" });
            sent(&service, &free, &format!("/v1/cages/{id}/network/rules"), &rule).refused(403, "forbidden");
            assert_eq!(service.send(&free, "DELETE", &format!("/v1/cages/{id}"), "", b"").status, 204);
        }
        create(&python, &json!({ "template": "plain" })).refused(403, "forbidden");
        // A profile that is allowed stands in place of the template's.
        for (key, spec) in [
            (&bound, json!({ "template": "plain" })),
            (&bound, json!({ "template": "policy", "profile": "shell" })),
            (&python, json!({ "template": "plain", "profile": "python" })),
        ] {
            let id = id_of(&create(key, &spec).ok().json());
            assert_eq!(service.send(key, "DELETE", &format!("/v1/cages/{id}"), "", b"").status, 204);
        }
    }

    fn requests_with_the_token_of_a_cage_count_and_wrong_tokens_do(stage) {
        let service = Service::with(stage, &["--listen", "127.0.0.1:0", "--rate", "20"]);
        let (slow, free) = (key(stage, &[]), key(stage, &["--rate", "100000"]));
        let sandbox = |key: &str| sent(&service, key, "/v2/sandboxes", &json!({ "templateID": "base" })).ok().json();
        let (one, other) = (sandbox(&slow), sandbox(&free));
        let ask = |sandbox: &Value, token: &str| {
            let head = format!("E2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: 49983\r\n{token}", sandbox["sandboxID"].as_str().expect("an id"));
            service.raw(format!("POST /process.Process/List HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}").as_bytes()).status
        };
        let token = |sandbox: &Value| format!("X-Access-Token: {}\r\n", sandbox["envdAccessToken"].as_str().expect("a token"));
        // Faster than the bucket fills, from several clients at once.
        let until_refused = |sandbox: &Value, token: &str, before: u16| {
            let refused = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..2_000 {
                            match ask(sandbox, token) {
                                429 => refused.store(true, Ordering::Relaxed),
                                status => assert_eq!(status, before),
                            }
                            if refused.load(Ordering::Relaxed) {
                                return;
                            }
                        }
                    });
                }
            });
            assert!(refused.into_inner(), "never counted");
        };
        until_refused(&one, &token(&one), 200);
        // What one key, wrong tokens and no token take, is taken from nobody else.
        assert_eq!(ask(&other, &token(&other)), 200);
        until_refused(&other, "X-Access-Token: wrong\r\n", 401);
        until_refused(&other, "", 401);
        assert_eq!(ask(&other, &token(&other)), 200);
        for sandbox in [&one, &other] {
            assert_eq!(service.send(&free, "DELETE", &format!("/sandboxes/{}", sandbox["sandboxID"].as_str().expect("an id")), "", b"").status, 204);
        }
    }

    fn no_sequence_of_timeouts_lets_a_cage_live_beyond_the_ceiling(stage) {
        let service = Service::start(stage);
        bounds(stage, &["brief", "--cage-timeout", "8"]);
        bounds(stage, &["bound", "--cage-timeout", "600"]);
        let of = |project: &str| key(stage, &["--project", project]);
        let (brief, bound, free) = (of("brief"), of("bound"), of("free"));
        let start = |key: &str, timeout: u32, on_timeout: &str| {
            id_of(&sent(&service, key, "/v1/cages", &json!({ "timeout": timeout, "on_timeout": on_timeout })).ok().json())
        };
        let get = |key: &str, id: &str| service.send(key, "GET", &format!("/v1/cages/{id}"), "", b"");
        // Paused when its time is over, and ended with the last of it.
        let (over, stays) = (start(&brief, 1, "pause"), start(&free, 1, "pause"));
        let paused = |key: &str, id: &str| get(key, id).json()["state"] == json!("paused");
        assert!(wait_until(PATIENCE, || paused(&free, &stays)));
        assert!(wait_until(PATIENCE, || get(&brief, &over).status == 404));
        assert!(paused(&free, &stays));
        // From now on, not from its beginning: a little of 600 s has gone.
        let id = start(&bound, 300, "delete");
        let path = format!("/v1/cages/{id}");
        service.send(&bound, "PATCH", &path, JSON, b"{\"timeout\":600}").refused(403, "forbidden");
        service.send(&bound, "PATCH", &path, JSON, b"{\"timeout\":400}").ok();
        let times = || {
            let cage = get(&bound, &id).ok().json();
            (seconds(&cage["ends_at"]) - seconds(&cage["created_at"])).rem_euclid(86_400)
        };
        // What keeps a sandbox alive again and again is bounded, and not refused.
        for _ in 0..3 {
            let refresh = json!({ "duration": 600 });
            assert_eq!(sent(&service, &bound, &format!("/sandboxes/{id}/refreshes"), &refresh).status, 204);
            assert_eq!(times(), 600);
        }
        let id = start(&free, 300, "delete");
        service.send(&free, "PATCH", &format!("/v1/cages/{id}"), JSON, b"{\"timeout\":7200}").ok();
    }
}
