//! Warm cages of the service: who gets one, what it is then, and where those go that nobody gets.

use crate::service::{Service, ids, running};
use crate::service_api::key;
use ironcage_tests::{Running, Stage, either, wait_until};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Warm cages that the service says are ready.
fn ready(service: &Service) -> u64 {
    let text = service.get("/metrics").ok();
    let text = String::from_utf8(text.body).expect("text");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("ironcage_warm_cages{profile=\"default\"} "));
    line.and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{text}"))
}

fn warm(stage: &Stage, count: u64) -> Service {
    let flag = format!("--warm=default={count}");
    let service = Service::with(stage, &["--listen", "127.0.0.1:0", &flag]);
    assert!(wait_until(PATIENCE, || ready(&service) == count));
    service
}

either! {
    fn a_request_gets_a_warm_cage_that_is_its_own_and_was_nobodys(stage) {
        let service = warm(stage, 2);
        let before = ids(stage);
        assert_eq!(before.len(), 2);
        // Nobody sees one, or can name it.
        let admin = key(stage, &["--scope", "admin", "--scope", "cages"]);
        for key in [&service.key, &admin] {
            assert_eq!(service.send(key, "GET", "/v1/cages", "", b"").ok().json()["cages"], json!([]));
            for id in &before {
                for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/audit"), ("GET", "/files?path=."), ("POST", "/run")] {
                    let body: &[u8] = if path == "/run" { b"{\"command\":\"true\"}" } else { b"" };
                    service.send(key, method, &format!("/v1/cages/{id}{path}"), "Content-Type: application/json\r\n", body).refused(404, "not_found");
                }
            }
        }
        let spec = json!({ "env": { "WHOSE": "mine" }, "metadata": { "m": "1" }, "timeout": 100 });
        let created = service.post("/v1/cages", &spec).ok().json();
        let id = created["id"].as_str().expect("an id").to_owned();
        assert!(before.contains(&id), "{id} of {before:?}");
        assert_eq!(created["metadata"], json!({ "m": "1" }));
        let ran = service.run(&id, "echo $WHOSE; pwd; touch mine; ls");
        assert_eq!(ran["stdout"], json!(format!("mine\n{}\nmine\n", created["workspace"].as_str().expect("a workspace"))));
        // What a warm cage is not becomes a cage of its own, and the pool is filled again.
        let other = service.create(&json!({ "limits": { "pids": 500 } }));
        assert!(!before.contains(&other));
        assert!(wait_until(PATIENCE, || ready(&service) == 2));
        assert_eq!(ids(stage).len(), 4);
        // Another tenant gets another one, and nothing of the first.
        let team = key(stage, &["--project", "team"]);
        let theirs = service.send(&team, "POST", "/v1/cages", "Content-Type: application/json\r\n", b"{}").ok().json();
        let theirs = theirs["id"].as_str().expect("an id").to_owned();
        assert_ne!(theirs, id);
        service.send(&team, "GET", &format!("/v1/cages/{id}"), "", b"").refused(404, "not_found");
        let ran = service.send(&team, "POST", &format!("/v1/cages/{theirs}/run"), "Content-Type: application/json\r\n", b"{\"command\":\"echo ${WHOSE-none}; ls\"}").ok().json();
        assert_eq!(ran["stdout"], json!("none\n"));
        for id in [id, other, theirs] {
            assert_eq!(service.delete(&id).status, 204);
        }
        drop(service);
        assert!(wait_until(PATIENCE, || running(stage) == 0), "{:?}", ids(stage));
    }

    fn warm_cages_of_a_killed_service_are_ended_and_those_that_were_created_stay(stage) {
        let mut service = warm(stage, 3);
        let headers = "Content-Type: application/json\r\nIdempotency-Key: once\r\n";
        let created = service.send(&service.key, "POST", "/v1/cages", headers, b"{}").ok().json();
        let id = created["id"].as_str().expect("an id").to_owned();
        service.run(&id, "echo kept > kept");
        let address = service.address.clone();
        service.kill();
        assert!(running(stage) >= 3);
        let service = Service::at(stage, &address);
        assert!(wait_until(PATIENCE, || ids(stage) == BTreeSet::from([id.clone()])), "{:?}", ids(stage));
        let again = service.send(&service.key, "POST", "/v1/cages", headers, b"{}").ok().json();
        assert_eq!(again["id"], json!(id));
        assert_eq!(service.run(&id, "cat kept")["stdout"], json!("kept\n"));
        assert_eq!(service.delete(&id).status, 204);
    }

    fn a_service_that_is_killed_while_it_fills_its_pool_leaves_nothing(stage) {
        for delay in [0, 20, 60, 150] {
            let mut service = Service::with(stage, &["--listen", "127.0.0.1:0", "--warm=default=8"]);
            std::thread::sleep(Duration::from_millis(delay));
            let created = service.create(&json!({}));
            service.kill();
            let service = Service::start(stage);
            assert!(wait_until(PATIENCE, || ids(stage) == BTreeSet::from([created.clone()])), "{:?}", ids(stage));
            assert_eq!(service.delete(&created).status, 204);
        }
        // A start that was interrupted may still be on its way.
        let _service = Service::start(stage);
        assert!(wait_until(PATIENCE, || running(stage) == 0), "{:?}", ids(stage));
    }

    fn a_request_that_comes_twice_takes_one_warm_cage(stage) {
        let service = warm(stage, 4);
        let headers = "Content-Type: application/json\r\nIdempotency-Key: twice\r\n";
        let ids: BTreeSet<String> = std::thread::scope(|scope| {
            let send = || {
                let answer = service.send(&service.key, "POST", "/v1/cages", headers, b"{}");
                answer.json()["id"].as_str().map(str::to_owned)
            };
            let sent: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
            sent.into_iter().filter_map(|sent| sent.join().expect("an answer")).collect()
        });
        assert_eq!(ids.len(), 1, "{ids:?}");
        let listed = service.get("/v1/cages").ok().json();
        assert_eq!(listed["cages"].as_array().map(Vec::len), Some(1), "{listed}");
        assert!(wait_until(PATIENCE, || ready(&service) == 4 && running(stage) == 5));
        for id in ids {
            assert_eq!(service.delete(&id).status, 204);
        }
    }

    fn a_policy_that_changes_holds_for_the_next_request(stage) {
        let service = warm(stage, 2);
        let limit = |id: &str| service.get(&format!("/v1/cages/{id}/usage")).ok().json()["pids_limit"].as_u64();
        let first = service.create(&json!({}));
        assert_ne!(limit(&first), Some(77));
        let config = stage.base().join("config/ironcage");
        stage.write(config.join("config.toml"), "[limits]\npids = 77\n");
        let second = service.create(&json!({}));
        assert_eq!(limit(&second), Some(77));
        assert!(wait_until(PATIENCE, || ready(&service) == 2));
        let before = ids(stage);
        let third = service.create(&json!({}));
        assert!(before.contains(&third));
        assert_eq!(limit(&third), Some(77));
        for id in [first, second, third] {
            assert_eq!(service.delete(&id).status, 204);
        }
    }

    fn a_profile_that_limits_time_is_not_kept_warm(stage) {
        let refused = Running::start(&mut stage.ironcage(["serve", "--listen", "127.0.0.1:0", "--warm", "strict=1"])).finish(PATIENCE);
        assert_eq!(refused.code(), 125, "{refused:?}");
        assert!(refused.stderr.contains("limits the time of cages"), "{refused:?}");
        let refused = Running::start(&mut stage.ironcage(["serve", "--listen", "127.0.0.1:0", "--warm", "python"])).finish(PATIENCE);
        assert!(refused.code() != 0 && refused.stderr.contains("PROFILE=N"), "{refused:?}");
        let service = Service::with(stage, &["--listen", "127.0.0.1:0", "--warm", "python=1"]);
        assert_eq!(service.get("/v1/cages").ok().json()["cages"], json!([]));
    }
}
