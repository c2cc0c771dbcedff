//! Snapshots and forks of the files of cages by the native API: across kinds of cages, projects, and a
//! service that is killed.

use super::service::Service;
use ironcage_tests::{Running, either};
use serde_json::json;
use std::time::Duration;

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];
const PATIENCE: Duration = Duration::from_secs(60);

either! {
    fn a_cage_starts_with_the_files_of_a_snapshot_and_another_goes_back_to_them(stage) {
        let service = Service::with(stage, &LISTEN);
        let cage = service.create(&json!({ "env": { "A": "1" } }));
        service.run(&cage, "mkdir ~/d; echo first > ~/d/f; echo x > /tmp/t; echo w > w");
        let taken = service.post(&format!("/v1/cages/{cage}/snapshots"), &json!({ "name": "base" })).ok();
        assert_eq!(taken.status, 201);
        let taken = taken.json();
        let id = taken["id"].as_str().expect("an id");
        assert!(taken["bytes"].as_u64() > Some(0) && taken["cage"] == json!(cage), "{taken}");
        service.run(&cage, "echo second > ~/d/f; rm /tmp/t; echo new > ~/new");

        for name in [id, "base"] {
            let copy = service.create(&json!({ "snapshot": name }));
            let out = service.run(&copy, "cat ~/d/f /tmp/t w; echo $A; ls ~/new");
            assert_eq!(out["stdout"], "first\nx\nw\n1\n", "{out}");
        }
        // The cage itself goes back; what came later is gone.
        service.post(&format!("/v1/cages/{cage}/restore"), &json!({ "snapshot": "base" })).ok();
        let out = service.run(&cage, "cat ~/d/f /tmp/t w; ls ~/new");
        assert_eq!(out["stdout"], "first\nx\nw\n", "{out}");

        let path = format!("/v1/snapshots/{id}");
        assert_eq!(service.get(&path).ok().json()["name"], "base");
        let listed = service.get(&format!("/v1/snapshots?cage={cage}")).ok().json();
        assert_eq!(listed["snapshots"].as_array().map(Vec::len), Some(1), "{listed}");
        service.send(&service.key, "DELETE", &path, "", b"").ok();
        service.get(&path).refused(404, "not_found");
        service.post("/v1/cages", &json!({ "snapshot": id })).refused(404, "not_found");
    }

    fn what_cannot_have_a_snapshot_says_so(stage) {
        let service = Service::with(stage, &LISTEN);
        let work = stage.base().join("work");
        stage.mkdir(&work);
        let of_directory = service.create(&json!({ "directory": work }));
        let answer = service.post(&format!("/v1/cages/{of_directory}/snapshots"), &json!({}));
        assert!(answer.json()["error"]["hint"].as_str().is_some_and(|hint| hint.contains("ironcage change")));
        answer.refused(501, "not_offered");
        let cage = service.create(&json!({}));
        for name in ["", "../up", "a b"] {
            let body = json!({ "name": name });
            service.post(&format!("/v1/cages/{cage}/snapshots"), &body).refused(400, "invalid_request");
        }
        service.post(&format!("/v1/cages/{cage}/fork"), &json!({ "count": 21 })).refused(400, "invalid_request");
        service.post("/v1/cages", &json!({ "snapshot": "base", "template": "t" })).refused(400, "invalid_request");
        service.post(&format!("/v1/cages/{cage}/pause"), &json!({})).ok();
        service.post(&format!("/v1/cages/{cage}/snapshots"), &json!({})).refused(409, "cage_paused");
    }

    fn a_project_sees_its_own_snapshots_alone(stage) {
        let service = Service::with(stage, &LISTEN);
        let key = |project: &str| {
            let made = stage.ironcage(["serve", "key", "create", "--project", project, "--scope", "cages", "--scope", "read", "k"]);
            Running::start(&mut { made }).finish(PATIENCE).ok().stdout().trim().to_owned()
        };
        let (one, other) = (key("one"), key("other"));
        let json_type = "Content-Type: application/json\r\n";
        let cage = service.send(&one, "POST", "/v1/cages", json_type, b"{}").ok().json();
        let cage = cage["id"].as_str().expect("an id").to_owned();
        let path = format!("/v1/cages/{cage}/snapshots");
        let taken = service.send(&one, "POST", &path, json_type, br#"{"name":"mine"}"#).ok().json();
        let id = taken["id"].as_str().expect("an id");
        service.send(&other, "POST", &path, json_type, b"{}").refused(404, "not_found");
        for name in [id, "mine"] {
            let body = json!({ "snapshot": name }).to_string();
            service.send(&other, "POST", "/v1/cages", json_type, body.as_bytes()).refused(404, "not_found");
            service.send(&other, "DELETE", &format!("/v1/snapshots/{name}"), "", b"").refused(404, "not_found");
            service.send(&one, "POST", "/v1/cages", json_type, body.as_bytes()).ok();
        }
        let listed = service.send(&other, "GET", "/v1/snapshots", "", b"").ok().json();
        assert_eq!(listed["snapshots"], json!([]));
    }

    fn forks_are_cages_of_their_own_and_a_killed_service_keeps_what_is_whole(stage) {
        let mut service = Service::with(stage, &LISTEN);
        let cage = service.create(&json!({ "metadata": { "a": "1" } }));
        service.run(&cage, "echo here > ~/f");
        let forked = service.post(&format!("/v1/cages/{cage}/fork"), &json!({ "count": 3 })).ok().json();
        let forks = forked["cages"].as_array().expect("a list");
        assert_eq!(forks.len(), 3, "{forked}");
        for fork in forks {
            let id = fork["cage"]["id"].as_str().unwrap_or_else(|| panic!("{fork}"));
            assert_eq!(fork["cage"]["metadata"]["a"], "1");
            assert_eq!(service.run(id, "cat ~/f; echo own >> ~/f")["stdout"], "here\n");
        }
        assert_eq!(service.run(&cage, "cat ~/f")["stdout"], "here\n");
        assert_eq!(service.get("/v1/snapshots").ok().json()["snapshots"], json!([]));

        service.post(&format!("/v1/cages/{cage}/snapshots"), &json!({ "name": "kept" })).ok();
        let store = stage.state().join("ironcage/serve/snapshots");
        assert_eq!(std::fs::read_dir(&store).expect("a directory").count(), 1, "forks leave nothing");
        stage.write(store.join("slost.part"), "half");
        service.kill();
        let service = Service::with(stage, &LISTEN);
        assert_eq!(std::fs::read_dir(&store).expect("a directory").count(), 1, "a part goes");
        let copy = service.create(&json!({ "snapshot": "kept" }));
        assert_eq!(service.run(&copy, "cat ~/f")["stdout"], "here\n");
    }
}
