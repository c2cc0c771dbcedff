//! What a cage of the service reaches while it runs, and what keys and projects may use.

use crate::service::{Service, running};
use crate::service_api::key;
use ironcage_tests::{Running, Stage, either, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const JSON: &str = "Content-Type: application/json\r\n";

fn project(stage: &Stage, words: &[&str]) -> Value {
    let words = ["serve", "project"].iter().chain(words);
    let shown = Running::start(&mut stage.ironcage(words))
        .finish(PATIENCE)
        .ok();
    serde_json::from_str(&shown.stdout()).expect("JSON")
}

/// The answer of a server at a port of the host, if there is one.
fn fetched(port: u64) -> Option<String> {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).ok()?;
    stream.write_all(b"GET /page HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.contains("served inside").then_some(answer)
}

either! {
    fn rules_limits_and_ports_of_a_running_cage_change_by_http(stage) {
        let service = Service::start(stage);
        let id = service.create(&json!({ "network": { "mode": "live", "allow": ["a.example"], "deny": ["b.example"] } }));
        let network = format!("/v1/cages/{id}/network");
        let rules = format!("{network}/rules");
        let state = || service.get(&network).ok().json();
        let planned = state()["rules"].clone();
        assert_eq!(planned, json!([{ "verdict": "allow", "rule": "a.example" }, { "verdict": "deny", "rule": "b.example:*" }]));
        let added = service.post(&rules, &json!({ "verdict": "allow", "host": "c.example:8080" })).ok().json();
        service.post(&rules, &json!({ "verdict": "allow", "requests": "GET d.example/v1/**" })).ok();
        service.post(&rules, &json!({ "verdict": "deny", "host": "a.example" })).ok();
        let live: Vec<_> = state()["live"].as_array().expect("rules").iter().map(|rule| format!("{} {}", rule["verdict"].as_str().unwrap_or_default(), rule["rule"].as_str().unwrap_or_default())).collect();
        assert_eq!(live, ["allow c.example:8080", "allow GET d.example/v1/**", "deny a.example:*"]);
        let removed = service.send(&service.key, "DELETE", &format!("{rules}/{}", added["numbers"][0]), "", b"").ok().json();
        assert_eq!(removed["numbers"], added["numbers"]);
        service.send(&service.key, "DELETE", &format!("{rules}/{}", added["numbers"][0]), "", b"").refused(404, "not_found");
        for wrong in [json!({ "verdict": "allow" }), json!({ "verdict": "allow", "host": "no host" }), json!({ "verdict": "deny", "requests": "GET a.example" }), json!({ "verdict": "maybe", "host": "a.example" })] {
            service.post(&rules, &wrong).refused(400, "invalid_request");
        }
        let limit = |text: &str| service.send(&service.key, "PATCH", &format!("{network}/limits"), JSON, text.as_bytes());
        limit("{\"connections\":7}").ok();
        assert_eq!(limit("{\"bytes_out\":1000000}").ok().json(), json!({ "connections": 7, "bytes_out": 1000000 }));
        assert_eq!(state()["limits"], json!({ "connections": 7, "bytes_out": 1000000 }));
        limit("{\"connections\":0}").refused(400, "invalid_request");
        // A key that may not name the host's directories allows hosts by their names.
        let plain = key(stage, &["--scope", "cages", "--scope", "permissions"]);
        let cages = key(stage, &[]);
        let post = |key: &str, host: &str| service.send(key, "POST", &rules, JSON, json!({ "verdict": "allow", "host": host }).to_string().as_bytes());
        post(&plain, "e.example").ok();
        post(&plain, "10.0.0.1").refused(403, "forbidden");
        post(&cages, "f.example").refused(403, "forbidden");
        // A server in the cage is reached where its port is published, and nowhere else afterwards.
        service.run(&id, "echo served inside > page");
        let server = json!({ "argv": ["python3", "-m", "http.server", "3000", "--bind", "127.0.0.1"] });
        service.post(&format!("/v1/cages/{id}/processes"), &server).ok();
        let ports = format!("/v1/cages/{id}/ports");
        let published = service.send(&cages, "POST", &ports, JSON, b"{\"port\":3000}").ok().json();
        let port = published["host_port"].as_u64().expect("a port");
        assert!(wait_until(PATIENCE, || fetched(port).is_some()));
        assert_eq!(service.get(&ports).ok().json()["ports"], json!([published]));
        service.send(&cages, "POST", &ports, JSON, b"{\"port\":3000,\"host_port\":8099}").refused(403, "forbidden");
        service.send(&cages, "POST", &ports, JSON, b"{\"port\":0}").refused(400, "invalid_request");
        assert_eq!(service.send(&cages, "DELETE", &format!("{ports}/{port}"), "", b"").status, 204);
        assert!(wait_until(PATIENCE, || fetched(port).is_none()));
        service.send(&cages, "DELETE", &format!("{ports}/{port}"), "", b"").refused(404, "not_found");
        assert_eq!(service.delete(&id).status, 204);
        // Without a network there is nothing to change.
        let id = service.create(&json!({}));
        let off = service.post(&format!("/v1/cages/{id}/network/rules"), &json!({ "verdict": "allow", "host": "a.example" }));
        off.refused(403, "denied");
        assert_eq!(service.delete(&id).status, 204);
    }

    fn a_key_and_a_project_use_no_more_than_they_may(stage) {
        let service = Service::start(stage);
        let bounds = project(stage, &["set", "small", "--max-memory", "1G", "--max-cages", "3", "--cages-per-minute", "20"]);
        assert_eq!(bounds["bounds"]["memory"], json!(1 << 30));
        assert_eq!(project(stage, &["show", "small"]), bounds);
        let one = key(stage, &["--project", "small", "--max-cages", "1"]);
        let two = key(stage, &["--project", "small"]);
        let other = key(stage, &["--project", "large"]);
        let create = |key: &str, body: &Value| service.send(key, "POST", "/v1/cages", JSON, body.to_string().as_bytes());
        let with = |memory: &str| json!({ "limits": { "memory": memory } });
        let first = create(&one, &with("600M")).ok().json();
        let usage = service.get(&format!("/v1/cages/{}/usage", first["id"].as_str().expect("an id"))).ok().json();
        assert_eq!(usage["memory_limit"], json!(600 << 20));
        create(&one, &with("64M")).refused(429, "limit_reached");
        // 424 MiB are left, so not even the default fits.
        create(&two, &with("600M")).refused(429, "limit_reached");
        create(&two, &json!({})).refused(429, "limit_reached");
        create(&two, &with("50%")).refused(400, "invalid_request");
        let second = create(&two, &with("300M")).ok().json();
        create(&two, &with("64M")).ok();
        create(&two, &with("32M")).refused(429, "limit_reached");
        create(&other, &with("600M")).ok();
        // What ended is used no more.
        for cage in [&first, &second] {
            assert_eq!(service.delete(cage["id"].as_str().expect("an id")).status, 204);
        }
        let again = create(&one, &with("600M")).ok().json();
        assert_eq!(again["state"], json!("running"));
        // Too many in a minute are told when the next may come.
        project(stage, &["set", "small", "--cages-per-minute", "1"]);
        let refused = std::iter::repeat_with(|| create(&two, &with("32M"))).find(|answer| answer.status != 201).expect("one");
        let head = refused.head.to_ascii_lowercase();
        let wait = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).and_then(|wait| wait.trim().parse::<u64>().ok());
        assert!(wait.is_some_and(|wait| (1..=60).contains(&wait)), "{head}");
        refused.refused(429, "limit_reached");
        for cage in service.get("/v1/cages").ok().json()["cages"].as_array().expect("cages") {
            assert_eq!(service.delete(cage["id"].as_str().expect("an id")).status, 204);
        }
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }

    fn what_is_above_the_ceiling_of_a_project_is_refused_whatever_the_scopes_of_a_key(stage) {
        let service = Service::start(stage);
        let bounds = ["set", "bound", "--profile", "python", "--allow-host", "*.example.com", "--cage-memory", "256M", "--cage-timeout", "600"];
        project(stage, &bounds);
        let scopes = ["cages", "host", "permissions"].map(|scope| ["--scope", scope]).concat();
        let bound = key(stage, &[&["--project", "bound"], &scopes[..]].concat());
        let free = key(stage, &[&["--project", "free"], &scopes[..]].concat());
        let create = |key: &str, body: &Value| service.send(key, "POST", "/v1/cages", JSON, body.to_string().as_bytes());
        for above in [
            json!({ "profile": "shell" }),
            json!({ "policy": "" }),
            json!({ "timeout": 601 }),
            json!({ "limits": { "memory": "257M" } }),
            json!({ "network": { "allow": ["example.org"] } }),
            json!({ "network": { "mode": "open" } }),
        ] {
            create(&bound, &above).refused(403, "forbidden");
            let cage = create(&free, &above).ok().json();
            assert_eq!(service.delete(cage["id"].as_str().expect("an id")).status, 204);
        }
        let within = json!({ "profile": "python", "timeout": 600, "network": { "mode": "live", "allow": ["api.example.com"] } });
        let cage = create(&bound, &within).ok().json();
        let path = format!("/v1/cages/{}", cage["id"].as_str().expect("an id"));
        let usage = service.get(&format!("{path}/usage")).ok().json();
        assert_eq!(usage["memory_limit"], json!(256 << 20));
        // Nor later.
        service.send(&bound, "PATCH", &path, JSON, b"{\"timeout\":601}").refused(403, "forbidden");
        service.send(&bound, "PATCH", &path, JSON, b"{\"timeout\":300}").ok();
        let rule = |host: &str| service.send(&bound, "POST", &format!("{path}/network/rules"), JSON, json!({ "verdict": "allow", "host": host }).to_string().as_bytes());
        rule("example.org").refused(403, "forbidden");
        rule("other.example.com").ok();
        let lease = json!({ "host": "example.org", "reason": "a test" }).to_string();
        service.send(&bound, "POST", &format!("{path}/leases"), JSON, lease.as_bytes()).refused(403, "forbidden");
        assert_eq!(service.send(&bound, "DELETE", &path, "", b"").status, 204);
    }

    fn numbers_of_the_service_need_a_key_and_have_few_labels(stage) {
        let service = Service::start(stage);
        let id = service.create(&json!({}));
        service.raw(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").refused(401, "unauthorized");
        for number in 0..30 {
            service.get(&format!("/made-up/{number}")).refused(404, "not_found");
            service.get(&format!("/v1/cages/c{number}")).refused(404, "not_found");
        }
        let shown = service.get("/metrics").ok();
        assert!(shown.head.to_ascii_lowercase().contains("content-type: text/plain; version=0.0.4"), "{}", shown.head);
        let text = String::from_utf8(shown.body).expect("text");
        for line in [
            "ironcage_cages{project=\"default\",state=\"running\"} 1\n",
            "ironcage_cage_starts_total{result=\"started\"} 1\n",
            "ironcage_http_requests_total{route=\"none\",method=\"GET\",status=\"4xx\"} 30\n",
            "ironcage_http_requests_total{route=\"/v1/cages/{id}\",method=\"GET\",status=\"4xx\"} 30\n",
            "ironcage_http_request_duration_seconds_count{route=\"none\"} 30\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(!text.contains("made-up"), "{text}");
        // A key of another project sees its own cages, and nothing of others.
        let other = key(stage, &["--project", "other"]);
        let seen = service.send(&other, "GET", "/metrics", "", b"").ok();
        let seen = String::from_utf8(seen.body).expect("text");
        assert!(seen.contains("# TYPE ironcage_cages gauge") && !seen.contains("default") && !seen.contains("requests"), "{seen}");
        assert_eq!(service.delete(&id).status, 204);
    }
}
