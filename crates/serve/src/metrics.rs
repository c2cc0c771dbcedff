//! `/metrics`: numbers of the service in the text format of Prometheus.
//!
//! Labels are routes as the router has them, methods, classes of status and projects: nothing that a
//! client can make up.

use crate::api::Caller;
use crate::api::types::CageState;
use crate::engine::Engine;
use crate::error::ApiResult;
use crate::keys::{Key, Scope};
use crate::store::UsedAmounts;
use crate::usage::GIB;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Projects that have series of their own; the rest is counted together.
const MOST_PROJECTS: usize = 100;
/// A name that no project can have.
const OTHERS: &str = "(others)";
/// Upper bounds of the time until an answer begins, in seconds.
const BOUNDS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

/// How long answers of one route took to begin.
#[derive(Debug, Default, Clone)]
struct Times {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

#[derive(Debug, Default)]
struct Requests {
    counts: BTreeMap<(String, &'static str, &'static str), u64>,
    times: BTreeMap<String, Times>,
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<Requests>,
    started: AtomicU64,
    failed: AtomicU64,
}

const fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        429 => "429",
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("other")
}

impl Metrics {
    /// Counts a start of a cage.
    pub(crate) fn created(&self, succeeded: bool) {
        let count = match succeeded {
            true => &self.started,
            false => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn answered(&self, route: &str, method: &'static str, status: StatusCode, time: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let series = (route.to_owned(), method, class(status));
        *requests.counts.entry(series).or_default() += 1;
        let times = requests.times.entry(route.to_owned()).or_default();
        let seconds = time.as_secs_f64();
        for (bound, count) in BOUNDS.iter().zip(&mut times.buckets) {
            *count += u64::from(seconds <= *bound);
        }
        times.count += 1;
        times.sum += seconds;
    }
}

/// Counts a request by its route.
pub(crate) async fn measure(
    State(engine): State<Arc<Engine>>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let method = method(request.method());
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = path.as_ref().map_or("none", MatchedPath::as_str);
    let metrics = &engine.metrics;
    metrics.answered(route, method, response.status(), begun.elapsed());
    response
}

/// The text of an exposition.
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| {
                let value = value
                    .replace('\\', "\\\\")
                    .replace('"', "\\\"")
                    .replace('\n', "\\n");
                format!("{name}=\"{value}\"")
            })
            .collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

const fn state_name(state: CageState) -> &'static str {
    match state {
        CageState::Running => "running",
        CageState::Paused => "paused",
        CageState::Ended => "ended",
    }
}

/// Cages by project and state.
fn cages(engine: &Engine, key: &Key) -> BTreeMap<(String, &'static str), u64> {
    let mut projects: BTreeMap<String, BTreeMap<&'static str, u64>> = BTreeMap::new();
    for entry in engine.list(key) {
        let project = entry.record().project;
        let states = projects.entry(project).or_default();
        *states.entry(state_name(entry.state())).or_default() += 1;
    }
    let mut series = BTreeMap::new();
    for (number, (project, states)) in projects.into_iter().enumerate() {
        let name = match number < MOST_PROJECTS {
            true => project,
            false => OTHERS.to_owned(),
        };
        for (state, count) in states {
            *series.entry((name.clone(), state)).or_default() += count;
        }
    }
    series
}

/// Numbers of what cages used: name, help, and what of it.
type UsageNumber = (&'static str, &'static str, fn(&UsedAmounts) -> f64);
const USAGE: [UsageNumber; 4] = [
    (
        "ironcage_cage_cpu_seconds_total",
        "CPU time of cages since the service started.",
        |used| used.cpu_seconds,
    ),
    (
        "ironcage_cage_memory_byte_seconds_total",
        "Memory of cages over time since the service started.",
        |used| used.memory_gib_seconds * GIB,
    ),
    (
        "ironcage_cage_sent_bytes_total",
        "Bytes that went out through the proxies of cages.",
        |used| used.bytes_sent as f64,
    ),
    (
        "ironcage_cage_received_bytes_total",
        "Bytes that came in through the proxies of cages.",
        |used| used.bytes_received as f64,
    ),
];

/// What cages used, by project. Those beyond the number of series are one sum.
fn usage(projects: BTreeMap<String, UsedAmounts>) -> BTreeMap<String, UsedAmounts> {
    let mut series: BTreeMap<String, UsedAmounts> = BTreeMap::new();
    for (number, (project, used)) in projects.into_iter().enumerate() {
        let name = match number < MOST_PROJECTS {
            true => project,
            false => OTHERS.to_owned(),
        };
        series.entry(name).or_default().add(used);
    }
    series
}

fn add_usage(text: &mut Exposition, series: &BTreeMap<String, UsedAmounts>) {
    for (name, help, of) in USAGE {
        text.family(name, "counter", help);
        for (project, used) in series {
            text.sample(name, &[("project", project)], of(used));
        }
    }
}

fn exposition(engine: &Engine, key: &Key) -> String {
    let mut text = Exposition(String::new());
    text.family("ironcage_cages", "gauge", "Cages that the service knows.");
    for ((project, state), count) in cages(engine, key) {
        let labels = [("project", project.as_str()), ("state", state)];
        text.sample("ironcage_cages", &labels, count);
    }
    let mut projects = engine.usage.by_project();
    projects.retain(|project, _| key.may(Scope::Admin) || *project == key.project);
    add_usage(&mut text, &usage(projects));
    // What follows is about everybody.
    if !key.may(Scope::Admin) {
        return text.0;
    }
    let name = "ironcage_build_info";
    text.family(name, "gauge", "Version of the service.");
    text.sample(name, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let metrics = &engine.metrics;
    let name = "ironcage_cage_starts_total";
    text.family(name, "counter", "Cages that were to be created.");
    let counts = [("started", &metrics.started), ("failed", &metrics.failed)];
    for (result, count) in counts {
        text.sample(name, &[("result", result)], count.load(Ordering::Relaxed));
    }
    let (warm, adopted) = engine.warm_cages();
    let name = "ironcage_warm_cages";
    text.family(name, "gauge", "Cages that are started and not created.");
    for (profile, ready) in &warm {
        text.sample(name, &[("profile", profile)], ready);
    }
    text.one(
        "ironcage_warm_creations_total",
        "counter",
        "Creations that got a warm cage.",
        adopted,
    );
    text.one(
        "ironcage_limited_total",
        "counter",
        "Requests that a rate limit refused.",
        engine.limits.refused(),
    );
    let (delivered, failed) = engine.deliveries.counts();
    let name = "ironcage_webhook_attempts_total";
    text.family(name, "counter", "Attempts to deliver to webhooks.");
    for (result, count) in [("delivered", delivered), ("failed", failed)] {
        text.sample(name, &[("result", result)], count);
    }
    // A store that cannot be read says so with every request.
    let states = engine.store.webhook_states().unwrap_or_default();
    let sum = |of: fn(&crate::store::WebhookState) -> u64| -> u64 {
        states.iter().map(|(_, state)| of(state)).sum()
    };
    text.one(
        "ironcage_webhook_waiting",
        "gauge",
        "Deliveries that wait for webhooks.",
        sum(|state| state.waiting),
    );
    text.one(
        "ironcage_webhook_dropped",
        "gauge",
        "Deliveries to present webhooks that were given up.",
        sum(|state| state.dropped),
    );
    text.one(
        "ironcage_event_streams",
        "gauge",
        "Streams of events that clients follow.",
        engine.limits.streams(),
    );
    let requests = metrics.requests.lock();
    let requests = requests.unwrap_or_else(PoisonError::into_inner);
    let name = "ironcage_http_requests_total";
    text.family(name, "counter", "Requests by route, method and status.");
    for ((route, method, status), count) in &requests.counts {
        let labels = [
            ("route", route.as_str()),
            ("method", method),
            ("status", status),
        ];
        text.sample(name, &labels, count);
    }
    let name = "ironcage_http_request_duration_seconds";
    text.family(name, "histogram", "Time until an answer begins, by route.");
    for (route, times) in &requests.times {
        let bucket = format!("{name}_bucket");
        for (bound, count) in BOUNDS.iter().zip(times.buckets) {
            text.sample(
                &bucket,
                &[("route", route), ("le", &bound.to_string())],
                count,
            );
        }
        text.sample(&bucket, &[("route", route), ("le", "+Inf")], times.count);
        text.sample(&format!("{name}_sum"), &[("route", route)], times.sum);
        text.sample(&format!("{name}_count"), &[("route", route)], times.count);
    }
    text.0
}

/// The numbers of the service: all of them for a key with the scope `admin`, and the cages of its
/// project for another one.
pub(crate) async fn metrics(
    caller: Caller,
    State(engine): State<Arc<Engine>>,
) -> ApiResult<([(HeaderName, &'static str); 1], String)> {
    caller.needs(Scope::Read)?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok((
        [(header::CONTENT_TYPE, kind)],
        exposition(&engine, &caller.key),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_of_a_known_set_and_escaped() {
        assert_eq!(method(&Method::GET), "GET");
        let made_up = Method::from_bytes(b"MADEUP1").unwrap();
        assert_eq!(method(&made_up), "other");
        assert_eq!(class(StatusCode::TOO_MANY_REQUESTS), "429");
        assert_eq!(class(StatusCode::NOT_FOUND), "4xx");
        let mut text = Exposition(String::new());
        text.sample("a", &[("b", "c\"\\\n")], 1);
        assert_eq!(text.0, "a{b=\"c\\\"\\\\\\n\"} 1\n");
    }

    #[test]
    fn usage_is_by_project_and_in_base_units() {
        let used = UsedAmounts {
            cpu_seconds: 1.5,
            memory_gib_seconds: 2.0,
            bytes_sent: 7,
            ..UsedAmounts::default()
        };
        let projects = (0..MOST_PROJECTS + 2).map(|number| (format!("p{number:03}"), used));
        let series = usage(projects.collect());
        assert_eq!(series.len(), MOST_PROJECTS + 1);
        let mut text = Exposition(String::new());
        add_usage(&mut text, &series);
        for line in [
            "ironcage_cage_cpu_seconds_total{project=\"p000\"} 1.5",
            "ironcage_cage_memory_byte_seconds_total{project=\"p099\"} 2147483648",
            "ironcage_cage_sent_bytes_total{project=\"(others)\"} 14",
            "ironcage_cage_received_bytes_total{project=\"p001\"} 0",
        ] {
            assert!(text.0.lines().any(|found| found == line), "{line}");
        }
    }

    #[test]
    fn times_are_cumulative_buckets() {
        let metrics = Metrics::default();
        for milliseconds in [1, 20, 100_000] {
            let time = Duration::from_millis(milliseconds);
            metrics.answered("/v1", "GET", StatusCode::OK, time);
        }
        let requests = metrics.requests.lock().unwrap();
        let times = &requests.times["/v1"];
        assert_eq!(times.buckets, [1, 1, 2, 2, 2, 2, 2, 2]);
        assert_eq!(times.count, 3);
        let series = ("/v1".to_owned(), "GET", "2xx");
        assert_eq!(requests.counts[&series], 3);
    }
}
