//! What cages used is there after their end, for their project alone, and after `kill -9` of the service.

use crate::service::Service;
use crate::service_api::key;
use ironcage_tests::{either, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn usage(service: &Service, key: &str) -> Value {
    service.send(key, "GET", "/v1/usage", "", b"").ok().json()
}

either! {
    fn what_cages_used_stays_with_their_project(stage) {
        let mut service = Service::start(stage);
        let tenant = key(stage, &["--project", "tenant", "--scope", "cages"]);
        let (worker, idle) = (service.create(&json!({})), service.create(&json!({})));
        service.run(&worker, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
        let used = |service: &Service, cage: &str| {
            let shown = usage(service, &service.key);
            let cages = shown["cages"].as_array().expect("cages").clone();
            cages.into_iter().find(|one| one["cage"] == cage).unwrap_or_else(|| panic!("no {cage}: {shown}"))
        };
        // One that runs is seen by a look, which the next service goes on from.
        let cpu = |cage: &Value| cage["used"]["cpu_seconds"].as_f64().expect("seconds");
        assert!(wait_until(PATIENCE, || cpu(&used(&service, &worker)) > 0.0));
        let before = used(&service, &worker);
        assert!(before.get("ended_at").is_none() && before["used"]["memory_gib_seconds"].as_f64() > Some(0.0), "{before}");
        service.kill();
        let mut service = Service::start(stage);
        assert_eq!(service.delete(&worker).status, 204);
        let after = used(&service, &worker);
        assert!(after["ended_at"].is_string() && cpu(&after) >= cpu(&before), "{before} {after}");
        assert!(after["used"]["seconds"].as_f64() >= before["used"]["seconds"].as_f64(), "{before} {after}");
        assert!(cpu(&after) > cpu(&used(&service, &idle)), "{after}");
        service.kill();
        let service = Service::start(stage);
        assert_eq!(used(&service, &worker), after);
        let shown = usage(&service, &service.key);
        assert!(shown["total"]["cpu_seconds"].as_f64() >= Some(cpu(&after)), "{shown}");
        let theirs = usage(&service, &tenant);
        assert_eq!((&theirs["cages"], &theirs["total"]["seconds"]), (&json!([]), &json!(0.0)));
        // Pages.
        let first = service.get("/v1/usage?limit=1").ok().json();
        let cursor = first["next_cursor"].as_str().expect("a cursor");
        let second = service.get(&format!("/v1/usage?limit=1&cursor={cursor}")).ok().json();
        assert_eq!((&first["cages"][0]["cage"], &second["cages"][0]["cage"]), (&json!(idle), &json!(worker)));
        assert!(second.get("next_cursor").is_none());
        service.get("/v1/usage?cursor=nothing").refused(400, "invalid_request");
        assert_eq!(service.delete(&idle).status, 204);
    }
}
