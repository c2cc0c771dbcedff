//! The native API beyond cages and processes: pending changes, and events as they happen.

use crate::service::{Service, running};
use ironcage_tests::{Running, Stage, either, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A new key, with these flags of `ironcage serve key create`.
pub(crate) fn key(stage: &Stage, flags: &[&str]) -> String {
    let words = ["serve", "key", "create", "a-key"].iter().chain(flags);
    let made = Running::start(&mut stage.ironcage(words))
        .finish(PATIENCE)
        .ok();
    made.stdout().trim().to_owned()
}

/// A stream of events that is read as it comes.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(service: &Service, path: &str, headers: &str) -> Events {
        let mut stream = TcpStream::connect(&service.address).expect("the service");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n{headers}\r\n",
            service.key
        );
        stream.write_all(text.as_bytes()).expect("sent");
        let mut events = Events(BufReader::new(stream));
        let status = events.line().expect("a status");
        assert!(status.contains(" 200 "), "{status}");
        events
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.0.read_line(&mut line).expect("a line");
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event: its id, its name and its data; `None` at the end.
    fn next(&mut self) -> Option<(String, String, Value)> {
        let (mut id, mut name) = (String::new(), String::new());
        loop {
            let line = self.line()?;
            if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_owned();
            } else if let Some(value) = line.strip_prefix("event: ") {
                name = value.to_owned();
            } else if let Some(value) = line.strip_prefix("data: ") {
                return Some((id, name, serde_json::from_str(value).expect("JSON")));
            }
        }
    }

    /// Events up to one of this name or this type, and that one.
    fn until(&mut self, wanted: &str) -> Vec<(String, String, Value)> {
        let mut seen = Vec::new();
        loop {
            let event = self
                .next()
                .unwrap_or_else(|| panic!("no {wanted}: {seen:?}"));
            let found =
                event.1 == wanted || event.2["type"] == wanted || event.2["event"] == wanted;
            seen.push(event);
            if found {
                return seen;
            }
        }
    }
}

either! {
    fn a_pending_change_is_listed_shown_applied_and_discarded_by_http(stage) {
        let service = Service::start(stage);
        let project = stage.project();
        stage.write(project.join("kept.txt"), "before\n");
        stage.write(project.join("other.txt"), "before\n");
        let id = service.create(&json!({ "directory": project }));
        service.run(&id, "echo after > kept.txt; echo new > --theirs; printf 'a\\033[2J\\n' > other.txt; mkdir d; echo deep > d/f");
        let listed = service.get(&format!("/v1/changes?cage={id}")).ok().json();
        let change = listed["changes"][0]["id"].as_str().unwrap_or_else(|| panic!("{listed}")).to_owned();
        assert_eq!((&listed["changes"][0]["in_use"], &listed["changes"][0]["cage"]), (&json!(true), &json!(id)));
        assert_eq!(service.get(&format!("/v1/cages/{id}")).ok().json()["change"], json!(change));
        assert_eq!(service.get("/v1/changes?cage=none").ok().json()["changes"], json!([]));
        let path = format!("/v1/changes/{change}");
        let files = service.get(&path).ok().json();
        let names: Vec<&str> = files["files"].as_array().expect("files").iter().filter_map(|file| file["path"].as_str()).collect();
        for name in ["kept.txt", "--theirs", "other.txt"] {
            assert!(names.contains(&name), "{files}");
        }
        let diff = service.get(&format!("{path}/diff")).ok();
        let text = String::from_utf8_lossy(&diff.body).into_owned();
        assert!(text.contains("+after") && !text.contains('\u{1b}'), "{text}");
        assert!(diff.head.to_ascii_lowercase().contains("content-type: text/x-diff"), "{}", diff.head);
        let one = service.get(&format!("{path}/diff?path=kept.txt&raw=true")).ok();
        let text = String::from_utf8_lossy(&one.body).into_owned();
        assert!(text.contains("+after") && !text.contains("other.txt"), "{text}");
        // Paths stay below the workspace, and in the change.
        for wrong in ["/etc/passwd", "../up", "a%2F..%2F..%2Fb", "%00", ""] {
            service.get(&format!("{path}/diff?path={wrong}")).refused(400, "invalid_request");
        }
        service.post(&format!("{path}/apply"), &json!({ "paths": ["../kept.txt"] })).refused(400, "invalid_request");
        service.post(&format!("{path}/apply"), &json!({ "paths": ["absent.txt"] })).refused(404, "not_found");
        // What was reviewed is applied, and nothing that the agent wrote since, by whatever review.
        let etag = |query: &str| {
            let diff = service.get(&format!("{path}/diff{query}")).ok();
            let head = diff.head.to_ascii_lowercase();
            head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag").trim().to_owned()
        };
        let files = || service.get(&path).ok().json()["digest"].as_str().expect("a digest").to_owned();
        let reviews = [etag(""), etag("?raw=true"), files()];
        service.run(&id, "echo later >> late.txt");
        for review in &reviews {
            service.post(&format!("{path}/apply"), &json!({ "digest": review })).refused(409, "conflict");
        }
        assert_eq!(stage.read("late.txt"), None);
        service.post(&format!("{path}/apply"), &json!({ "digest": "--theirs" })).refused(400, "invalid_request");
        let part = service.get(&format!("{path}?path=late.txt")).ok().json();
        let review = json!({ "digest": part["digest"], "paths": ["late.txt"] });
        service.run(&id, "echo other > kept2.txt");
        service.post(&format!("{path}/apply"), &review).ok();
        assert_eq!(stage.read("late.txt").as_deref(), Some("later\n"));
        service.run(&id, "rm kept2.txt");
        let reviewed = json!({ "digest": etag("?path=kept.txt"), "paths": ["kept.txt"] });
        service.post(&format!("{path}/apply"), &reviewed).ok();
        service.run(&id, "echo before > kept.txt");
        let back = json!({ "digest": etag("?path=kept.txt"), "paths": ["kept.txt"] });
        service.post(&format!("{path}/apply"), &back).ok();
        assert_eq!(stage.read("kept.txt").as_deref(), Some("before\n"));
        service.run(&id, "echo after > kept.txt");
        // A part is applied while the cage runs, which is not discarded meanwhile.
        let applied = service.post(&format!("{path}/apply"), &json!({ "paths": ["kept.txt"] })).ok().json();
        assert_eq!((&applied["applied"], &applied["finished"]), (&json!(1), &json!(false)), "{applied}");
        assert_eq!(stage.read("kept.txt").as_deref(), Some("after\n"));
        assert_eq!(stage.read("other.txt").as_deref(), Some("before\n"));
        service.post(&format!("{path}/discard"), &json!({})).refused(409, "conflict");
        assert_eq!(service.run(&id, "cat kept.txt other.txt | head -1")["stdout"], json!("after\n"));
        // It stays when its cage is gone.
        assert_eq!(service.delete(&id).status, 204);
        assert!(wait_until(PATIENCE, || running(stage) == 0));
        // The real file changes as well: a conflict, and both versions stay.
        stage.write(project.join("other.txt"), "mine\n");
        let applied = service.post(&format!("{path}/apply"), &json!({ "paths": ["other.txt"] })).ok().json();
        assert_eq!(applied["conflicts"], json!(["other.txt"]), "{applied}");
        assert_eq!(stage.read("other.txt").as_deref(), Some("mine\n"));
        assert_eq!(service.post(&format!("{path}/discard"), &json!({ "paths": ["other.txt"] })).status, 204);
        let applied = service.post(&format!("{path}/apply"), &json!({})).ok().json();
        assert_eq!(applied["finished"], json!(true), "{applied}");
        assert_eq!(stage.read("--theirs").as_deref(), Some("new\n"));
        assert_eq!(stage.read("d/f").as_deref(), Some("deep\n"));
        service.get(&path).refused(404, "not_found");
        assert_eq!(service.get("/v1/changes").ok().json()["changes"], json!([]));
    }

    fn what_was_denied_in_a_cage_is_explained(stage) {
        let service = Service::start(stage);
        let id = service.create(&json!({}));
        let why = || service.get(&format!("/v1/cages/{id}/why")).ok().json()["text"].as_str().expect("a text").to_owned();
        assert!(why().starts_with(&format!("cage {id}: ")) && !why().contains("denied: "), "{}", why());
        service.run(&id, "unshare -U true");
        assert!(wait_until(PATIENCE, || why().contains("denied: unshare")), "{}", why());
        service.get("/v1/cages/c000000000000/why").refused(404, "not_found");
        service.delete(&id);
    }

    fn a_change_belongs_to_the_project_whose_cage_worked_on_it_last(stage) {
        let service = Service::start(stage);
        stage.write(stage.project().join("f"), "before\n");
        let both = ["--scope", "cages", "--scope", "host"];
        let owner = key(stage, &[&["--project", "one", "--scope", "permissions"], &both[..]].concat());
        let writer = key(stage, &["--project", "one", "--scope", "cages", "--scope", "permissions"]);
        let reader = key(stage, &["--project", "one", "--scope", "read"]);
        let other = key(stage, &[&["--project", "other", "--scope", "permissions"], &both[..]].concat());
        let json_type = "Content-Type: application/json\r\n";
        let spec = json!({ "directory": stage.project() }).to_string();
        let create = |key: &str| {
            let cage = service.send(key, "POST", "/v1/cages", json_type, spec.as_bytes()).ok().json();
            cage["id"].as_str().expect("an id").to_owned()
        };
        let id = create(&owner);
        service.run(&id, "echo after > f");
        assert_eq!(service.delete(&id).status, 204);
        let list = |key: &str| service.send(key, "GET", "/v1/changes", "", b"").ok().json()["changes"].clone();
        let change = list(&owner)[0]["id"].as_str().expect("a change").to_owned();
        assert_eq!(list(&reader)[0]["id"], json!(change));
        assert_eq!(list(&other), json!([]));
        let path = format!("/v1/changes/{change}");
        for (method, path) in [("GET", path.clone()), ("GET", format!("{path}/diff")), ("POST", format!("{path}/apply")), ("POST", format!("{path}/discard"))] {
            service.send(&other, method, &path, json_type, b"{}").refused(404, "not_found");
        }
        // Seeing it, discarding it and writing the host's files are three things.
        assert_eq!(service.send(&reader, "GET", &format!("{path}/diff"), "", b"").status, 200);
        service.send(&reader, "POST", &format!("{path}/discard"), json_type, b"{}").refused(403, "forbidden");
        for key in [&reader, &writer] {
            service.send(key, "POST", &format!("{path}/apply"), json_type, b"{}").refused(403, "forbidden");
        }
        // The other project goes on with it: it is that one's now.
        let id = create(&other);
        assert_eq!(service.run(&id, "cat f")["stdout"], json!("after\n"));
        assert_eq!(list(&owner), json!([]));
        assert_eq!(list(&other)[0]["id"], json!(change));
        assert_eq!(service.delete(&id).status, 204);
        // What the command line leaves is nobody's here.
        let ran = stage.run(&[], &["sh", "-c", "echo cli >> f"]);
        ran.ok();
        assert_eq!(list(&other), json!([]));
        service.send(&other, "POST", &format!("{path}/apply"), json_type, b"{}").refused(404, "not_found");
        assert_eq!(stage.read("f").as_deref(), Some("before\n"));
    }

    fn the_events_of_a_cage_are_followed_and_continued_after_a_restart(stage) {
        let mut service = Service::start(stage);
        let id = service.create(&json!({}));
        let path = format!("/v1/cages/{id}/events");
        let mut events = Events::open(&service, &path, "");
        let begin = events.until("start");
        assert_eq!((begin[0].0.as_str(), begin[0].1.as_str()), ("1", "audit"));
        service.post(&format!("/v1/cages/{id}/pause"), &json!({})).ok();
        let paused = events.until("paused");
        let seen: u64 = paused.last().expect("one").0.parse().expect("a number");
        let address = service.address.clone();
        service.kill();
        assert!(events.next().is_none());
        let service = Service::at(stage, &address);
        let mut events = Events::open(&service, &path, &format!("Last-Event-ID: {seen}\r\n"));
        service.post(&format!("/v1/cages/{id}/resume"), &json!({})).ok();
        let resumed = events.until("unpaused");
        let numbers: Vec<u64> = resumed.iter().map(|event| event.0.parse().expect("a number")).collect();
        assert_eq!(numbers, (seen + 1..=seen + numbers.len() as u64).collect::<Vec<_>>());
        assert_eq!(service.delete(&id).status, 204);
        let rest = events.until("end");
        assert!(rest.iter().any(|event| event.2["event"] == "exit"), "{rest:?}");
        assert!(events.next().is_none());
        service.get(&path).refused(404, "not_found");
        let id = service.create(&json!({}));
        let path = format!("/v1/cages/{id}/events");
        service.send(&service.key, "GET", &path, "Last-Event-ID: x\r\n", b"").refused(400, "invalid_request");
        let other = key(stage, &["--project", "other"]);
        service.send(&other, "GET", &path, "", b"").refused(404, "not_found");
        // The end of the service ends what follows, and says so.
        let mut events = Events::open(&service, &path, "");
        events.until("start");
        drop(service);
        let end = events.until("stopping").pop().expect("an end");
        assert_eq!(end.2["reason"], json!("the service is stopping"));
    }

    fn what_becomes_of_the_cages_of_a_project_is_followed(stage) {
        let mut service = Service::start(stage);
        let mut events = Events::open(&service, "/v1/events", "");
        let id = service.create(&json!({}));
        let created = events.until("created").pop().expect("one");
        assert_eq!((&created.2["cage"], &created.2["state"]), (&json!(id), &json!("running")));
        // Another project has events of its own.
        let other = key(stage, &["--project", "other"]);
        let json_type = "Content-Type: application/json\r\n";
        let theirs = service.send(&other, "POST", "/v1/cages", json_type, b"{}").ok().json();
        service.post(&format!("/v1/cages/{id}/pause"), &json!({})).ok();
        service.post(&format!("/v1/cages/{id}/resume"), &json!({})).ok();
        assert_eq!(service.delete(&id).status, 204);
        let seen = events.until("deleted");
        let types: Vec<_> = seen.iter().map(|event| event.2["type"].as_str().unwrap_or_default()).collect();
        assert_eq!(types, ["paused", "resumed", "ended", "deleted"]);
        assert!(seen.iter().all(|event| event.2["cage"] != theirs["id"]), "{seen:?}");
        // A client that comes back gets what it missed, and no more.
        let mut events = Events::open(&service, "/v1/events", &format!("Last-Event-ID: {}\r\n", created.0));
        let again = events.until("deleted");
        assert_eq!(again, seen);
        // Where that cannot be known, it is told.
        let address = service.address.clone();
        service.kill();
        let service = Service::at(stage, &address);
        let mut events = Events::open(&service, "/v1/events", &format!("Last-Event-ID: {}\r\n", created.0));
        assert_eq!(events.next().expect("an event").1, "reset");
        let id = service.create(&json!({}));
        assert_eq!(events.until("created").pop().expect("one").2["cage"], json!(id));
        assert_eq!(service.delete(&id).status, 204);
        let theirs = format!("/v1/cages/{}", theirs["id"].as_str().expect("an id"));
        assert_eq!(service.send(&other, "DELETE", &theirs, "", b"").status, 204);
    }
}
