//! Clients that mean harm, or that nobody wrote by hand: every route of the API's description with the key of
//! another tenant, with paths that lead elsewhere, with bodies that are no requests, and with those that are;
//! connections that stall; and the end of the service in the middle of a request.

use crate::service::{HttpResponse, Service, running};
use crate::service_api::key;
use ironcage_tests::{either, wait_until};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const JSON: &str = "Content-Type: application/json\r\n";

/// A route of the description.
struct Route {
    method: String,
    path: String,
    /// Names of its parameters, and where they are.
    parameters: Vec<(String, String)>,
    /// The schema of its JSON body.
    body: Option<Value>,
    /// Status and schema of what it answers, besides errors.
    answers: Vec<(u16, Option<Value>)>,
    streams: bool,
}

fn description(service: &Service) -> Value {
    service.get("/v1/openapi.json").ok().json()
}

fn routes(description: &Value) -> Vec<Route> {
    let mut routes = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for (path, methods) in description["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let parameters = parameters.map(|one| (text(&one["name"]), text(&one["in"])));
            let responses = operation["responses"].as_object().expect("responses");
            let streams = responses
                .values()
                .any(|answer| !answer["content"]["text/event-stream"].is_null());
            let answers = responses.iter().filter_map(|(status, answer)| {
                let schema = answer["content"]["application/json"]["schema"].clone();
                Some((status.parse().ok()?, Some(schema).filter(Value::is_object)))
            });
            let body = operation["requestBody"]["content"]["application/json"]["schema"].clone();
            routes.push(Route {
                method: method.to_uppercase(),
                path: path.clone(),
                parameters: parameters.collect(),
                body: Some(body).filter(Value::is_object),
                answers: answers.collect(),
                streams,
            });
        }
    }
    assert!(routes.len() > 40, "{} routes", routes.len());
    routes
}

impl Route {
    /// Its path with values for what it names.
    fn filled(&self, value: impl Fn(&str) -> String) -> String {
        let mut path = self.path.clone();
        for (name, _) in self.parameters.iter().filter(|(_, place)| place == "path") {
            path = path.replace(&format!("{{{name}}}"), &value(name));
        }
        let query = self.parameters.iter();
        match query
            .filter(|(_, place)| place == "query")
            .any(|(name, _)| name == "path")
        {
            true => format!("{path}?path=some"),
            false => path,
        }
    }
}

fn resolved<'a>(description: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(named) => resolved(
            description,
            description.pointer(&named[1..]).expect("a schema"),
        ),
        None => schema,
    }
}

fn kinds(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    }
}

/// A value of a schema: what it must have, and with `full` all that it may have.
fn example(description: &Value, schema: &Value, full: bool) -> Value {
    let schema = resolved(description, schema);
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        if let Some(last) = schema[several].as_array().and_then(|all| all.last()) {
            return example(description, last, full);
        }
    }
    match kinds(schema).first() {
        Some(&"object") => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let properties = schema["properties"].as_object().into_iter().flatten();
            let chosen = properties.filter(|(name, _)| full || required.contains(&json!(name)));
            let filled = chosen.map(|(name, of)| (name.clone(), example(description, of, full)));
            Value::Object(filled.collect::<Map<_, _>>())
        }
        Some(&"array") => json!([example(description, &schema["items"], full)]),
        Some(&"integer" | &"number") => schema["minimum"]
            .is_number()
            .then(|| schema["minimum"].clone())
            .unwrap_or(json!(1)),
        Some(&"boolean") => json!(true),
        _ => schema["example"]
            .is_string()
            .then(|| schema["example"].clone())
            .unwrap_or(json!("some")),
    }
}

/// How a value is not of its schema, if it is not.
fn violation(description: &Value, schema: &Value, value: &Value, place: &str) -> Option<String> {
    let schema = resolved(description, schema);
    for several in ["oneOf", "anyOf"] {
        if let Some(all) = schema[several].as_array() {
            let fits = |one: &Value| violation(description, one, value, place).is_none();
            return (!all.iter().any(fits)).then(|| format!("{place}: {value} fits none"));
        }
    }
    if let Some(known) = schema["enum"].as_array()
        && !known.contains(value)
    {
        return Some(format!("{place}: {value} is not one of {known:?}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = kinds(schema);
    if !kinds.is_empty()
        && !kinds.contains(&kind)
        && (kind != "integer" || !kinds.contains(&"number"))
    {
        return Some(format!("{place}: {value} is not {kinds:?}"));
    }
    match value {
        Value::Array(items) => items
            .iter()
            .find_map(|item| violation(description, &schema["items"], item, place)),
        Value::Object(fields) => {
            let required = schema["required"].as_array().into_iter().flatten();
            let mut required = required.filter_map(Value::as_str);
            if let Some(absent) = required.find(|name| !fields.contains_key(*name)) {
                return Some(format!("{place}: there is no {absent}"));
            }
            fields.iter().find_map(|(name, field)| {
                let of = schema["properties"].get(name)?;
                violation(description, of, field, &format!("{place}.{name}"))
            })
        }
        _ => None,
    }
}

/// An error of the service: its code, one of those that the description names.
#[track_caller]
fn error_code(description: &Value, answer: &HttpResponse, what: &str) -> String {
    assert!((400..500).contains(&answer.status), "{what}: {answer:?}");
    let body = answer.json();
    let schema = json!({ "$ref": "#/components/schemas/ErrorBody" });
    assert_eq!(violation(description, &schema, &body, what), None);
    body["error"]["code"].as_str().expect("a code").to_owned()
}

fn send(service: &Service, key: &str, route: &Route, path: &str, body: &[u8]) -> HttpResponse {
    let kind = if route.body.is_some() { JSON } else { "" };
    service.send(key, &route.method, path, kind, body)
}

either! {
    fn no_route_tells_another_tenant_from_one_that_asks_for_nothing(stage) {
        let service = Service::start(stage);
        let all = ["cages", "permissions", "host", "read"].map(|scope| ["--scope", scope]).concat();
        let theirs = key(stage, &[&["--project", "theirs"], &all[..]].concat());
        stage.write(stage.project().join("f"), "before\n");
        let id = service.create(&json!({ "directory": stage.project(), "metadata": { "secret": "mine" }, "network": { "mode": "live" } }));
        service.run(&id, "echo after > f");
        let process = service.post(&format!("/v1/cages/{id}/processes"), &json!({ "command": "sleep 1000" })).ok().json()["pid"].to_string();
        let change = service.get(&format!("/v1/cages/{id}")).ok().json()["change"].as_str().expect("a change").to_owned();
        let bare = service.create(&json!({}));
        let kept = service.post(&format!("/v1/cages/{bare}/snapshots"), &json!({})).ok().json()["id"].as_str().expect("a snapshot").to_owned();
        // It is told nothing: nobody deletes while it is there.
        let hook = service.post("/v1/webhooks", &json!({ "url": "http://127.0.0.1:1/", "events": ["deleted"] })).ok().json()["webhook"]["id"].as_str().expect("a webhook").to_owned();
        let description = description(&service);
        let mut asked = 0;
        for route in routes(&description).iter().filter(|route| route.path.contains('{')) {
            let body = route.body.as_ref().map(|schema| example(&description, schema, false).to_string()).unwrap_or_default();
            let with = |id: &str, change: &str, snapshot: &str, webhook: &str| {
                let path = route.filled(|name| match name {
                    "id" => id.to_owned(),
                    "change" => change.to_owned(),
                    "snapshot" => snapshot.to_owned(),
                    "pid" => process.clone(),
                    "webhook" => webhook.to_owned(),
                    _ => "1".to_owned(),
                });
                (send(&service, &theirs, route, &path, body.as_bytes()), path)
            };
            let (answer, path) = with(&id, &change, &kept, &hook);
            let what = format!("{} {path}", route.method);
            assert_eq!((answer.status, error_code(&description, &answer, &what).as_str()), (404, "not_found"), "{what}");
            // What does not exist at all is answered with the same words.
            let (absent, _) = with("c000000000000", "w000000000000", "snap_0", "000000000000");
            let text = |answer: &HttpResponse| String::from_utf8_lossy(&answer.body).replace(&id, "X").replace(&change, "X").replace(&kept, "X").replace(&hook, "X").replace("c000000000000", "X").replace("w000000000000", "X").replace("snap_0", "X").replace("000000000000", "X");
            assert_eq!(text(&answer), text(&absent), "{what}");
            asked += 1;
            // The same request is one for the one whose it is.
            if route.method == "GET" && !route.streams && route.path.matches('{').count() == 1 && !route.path.contains("/files") {
                let own = service.get(&path.replace("?path=some", ""));
                assert_eq!(own.status, 200, "{what}: {own:?}");
            }
        }
        assert!(asked > 35, "{asked}");
        for path in ["/v1/cages", "/v1/changes", "/v1/snapshots", "/v1/webhooks"] {
            let seen = service.send(&theirs, "GET", path, "", b"").ok();
            let seen = String::from_utf8_lossy(&seen.body).into_owned();
            assert!(!seen.contains(&id) && !seen.contains(&change) && !seen.contains(&kept) && !seen.contains(&hook) && !seen.contains("mine"), "{seen}");
        }
        assert_eq!(service.run(&id, "cat f")["stdout"], json!("after\n"));
        assert_eq!(service.delete(&id).status, 204);
    }

    fn parameters_of_paths_that_lead_elsewhere_are_errors(stage) {
        let service = Service::start(stage);
        let id = service.create(&json!({}));
        let description = description(&service);
        let long = "x".repeat(9000);
        for route in routes(&description).iter().filter(|route| route.path.contains('{')) {
            for wrong in ["..%2f..%2fetc%2fpasswd", "%2e%2e", "..", ".", "%00", "%ff", "a%0d%0ab", "-1", "99999999999999999999", "%F0%9F%92%A9", &long] {
                let named = route.path.matches('{').count();
                for which in 0..named {
                    let mut number = 0;
                    let mut path = String::new();
                    for part in route.path.split_inclusive('}') {
                        match part.split_once('{') {
                            Some((before, name)) => {
                                let value = match (number == which, name) {
                                    (true, _) => wrong.to_owned(),
                                    (false, "id}") => id.clone(),
                                    _ => "1".to_owned(),
                                };
                                path.push_str(before);
                                path.push_str(&value);
                                number += 1;
                            }
                            None => path.push_str(part),
                        }
                    }
                    let body = route.body.as_ref().map(|schema| example(&description, schema, false).to_string()).unwrap_or_default();
                    let answer = send(&service, &service.key, route, &format!("{path}?path=some"), body.as_bytes());
                    let what = format!("{} {}", route.method, path.chars().take(100).collect::<String>());
                    error_code(&description, &answer, &what);
                }
            }
        }
        // It is there, unharmed.
        assert_eq!(service.run(&id, "echo fine")["stdout"], json!("fine\n"));
        assert_eq!(service.delete(&id).status, 204);
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }

    fn bodies_that_are_no_requests_are_errors_and_answers_are_what_the_description_says(stage) {
        let service = Service::start(stage);
        let description = description(&service);
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        let id = service.create(&json!({ "timeout": 3000 }));
        let fill = |name: &str| if name == "id" { id.clone() } else { "1".to_owned() };
        let mut fitting = 0;
        for route in routes(&description) {
            let path = route.filled(fill);
            let what = format!("{} {path}", route.method);
            if let Some(schema) = &route.body {
                let whole = example(&description, schema, true);
                let mut bodies: Vec<Vec<u8>> = [deep.as_bytes(), b"{", b"[]", b"\"\"", b"1e999", b"\xff\xfe", b"{\"unheard-of\":1}"].map(<[u8]>::to_vec).into();
                for name in whole.as_object().expect("an object").keys() {
                    for wrong in [json!({ "a": [[]] }), json!(-1.5), json!([null]), json!("x".repeat(200_000))] {
                        let mut changed = whole.clone();
                        changed[name] = wrong;
                        bodies.push(changed.to_string().into_bytes());
                    }
                }
                for body in bodies {
                    let answer = service.send(&service.key, &route.method, &path, JSON, &body);
                    let shown = format!("{what} with {}", String::from_utf8_lossy(&body).chars().take(300).collect::<String>());
                    // Some of it is valid after all, such as a long text.
                    let parsed = serde_json::from_slice::<Value>(&body).ok();
                    let invalid = parsed.and_then(|value| violation(&description, schema, &value, &what));
                    if invalid.is_some() || !(200..300).contains(&answer.status) {
                        error_code(&description, &answer, &shown);
                    }
                }
            }
            if route.streams || (route.method == "DELETE" && route.path == "/v1/cages/{id}") {
                continue;
            }
            let body = route.body.as_ref().map(|schema| example(&description, schema, false).to_string()).unwrap_or_default();
            let answer = send(&service, &service.key, &route, &path, body.as_bytes());
            if !(200..300).contains(&answer.status) {
                error_code(&description, &answer, &what);
                continue;
            }
            let known = route.answers.iter().find(|(status, _)| *status == answer.status);
            let (_, schema) = known.unwrap_or_else(|| panic!("{what} answered {}", answer.status));
            if let Some(schema) = schema {
                assert_eq!(violation(&description, schema, &answer.json(), &what), None);
                fitting += 1;
            }
            if route.path.ends_with("/pause") {
                service.post(&format!("/v1/cages/{id}/resume"), &json!({})).ok();
            }
        }
        assert!(fitting > 12, "{fitting}");
        // None of these is told of what follows.
        for hook in service.get("/v1/webhooks").ok().json()["webhooks"].as_array().expect("webhooks") {
            let path = format!("/v1/webhooks/{}", hook["id"].as_str().expect("an id"));
            assert_eq!(service.send(&service.key, "DELETE", &path, "", b"").status, 204);
        }
        for cage in service.get("/v1/cages").ok().json()["cages"].as_array().expect("cages") {
            assert_eq!(service.delete(cage["id"].as_str().expect("an id")).status, 204);
        }
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }

    fn clients_that_stall_or_leave_half_way_harm_nobody(stage) {
        let service = Service::with(stage, &["--listen", "127.0.0.1:0", "--max-connections", "40"]);
        let connect = || TcpStream::connect(&service.address).expect("the service");
        // Fewer than there may be: one sends nothing, one half a header, one half a body, one ends its side.
        let mut stalled = Vec::new();
        for number in 0..30 {
            let mut stream = connect();
            let head = format!("POST /v1/cages HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nContent-Type: application/json\r\n", service.key);
            match number % 4 {
                0 => {}
                1 => stream.write_all(&head.as_bytes()[..20]).expect("sent"),
                2 => stream.write_all(format!("{head}Content-Length: 100\r\n\r\n{{").as_bytes()).expect("sent"),
                _ => {
                    stream.write_all(format!("{head}Content-Length: 100\r\n\r\n{{").as_bytes()).expect("sent");
                    stream.shutdown(Shutdown::Write).expect("half closed");
                }
            }
            stalled.push(stream);
        }
        let id = service.create(&json!({}));
        assert_eq!(service.run(&id, "echo fine")["stdout"], json!("fine\n"));
        // More than there may be wait, and are served when others are gone.
        let crowd: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
        drop(stalled);
        drop(crowd);
        assert_eq!(service.run(&id, "echo fine")["stdout"], json!("fine\n"));
        // A header that does not come is not waited for.
        let mut slow = connect();
        slow.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        slow.write_all(b"GET /v1/cages HTTP/1.1\r\n").expect("sent");
        let mut rest = Vec::new();
        let _ = slow.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
        assert_eq!(service.get("/v1/cages").ok().json()["cages"].as_array().map(Vec::len), Some(1));
        assert_eq!(service.delete(&id).status, 204);
    }

    fn a_service_that_is_killed_in_the_middle_of_anything_loses_nothing(stage) {
        let mut service = Service::start(stage);
        let address = service.address.clone();
        for (number, (method, path, body)) in [
            ("POST", "/run", "{\"command\":\"sleep 0.05; echo ran >> ran\"}"),
            ("POST", "/processes", "{\"command\":\"sleep 1000\"}"),
            ("POST", "/pause", ""),
            ("DELETE", "", ""),
        ].into_iter().enumerate() {
            for delay in [0, 2, 10, 40] {
                let id = service.create(&json!({}));
                let text = format!(
                    "{method} /v1/cages/{id}{path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\n{JSON}Content-Length: {}\r\n\r\n{body}",
                    service.key,
                    body.len()
                );
                let mut stream = TcpStream::connect(&service.address).expect("the service");
                stream.write_all(text.as_bytes()).expect("sent");
                std::thread::sleep(Duration::from_millis(delay));
                service.kill();
                service = Service::at(stage, &address);
                let found = service.get(&format!("/v1/cages/{id}"));
                if found.status == 200 && found.json()["state"] != json!("ended") {
                    assert_eq!(running(stage), 1);
                    service.post(&format!("/v1/cages/{id}/resume"), &json!({})).ok();
                    assert_eq!(service.run(&id, "echo fine")["stdout"], json!("fine\n"));
                } else {
                    assert_eq!(number, 3, "{found:?}");
                }
                service.delete(&id);
                assert!(wait_until(PATIENCE, || running(stage) == 0), "{method} {path} after {delay} ms");
                service.get(&format!("/v1/cages/{id}")).refused(404, "not_found");
            }
        }
    }
}
