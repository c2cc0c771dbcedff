//! The last events of a project's cages, for clients that follow them.
//!
//! Followers have no buffer of their own. Each reads the one log of its project from a number on,
//! and one that is so slow that the log has gone on without it is told so (ADR 42).

use crate::api::types::CageState;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, futures::Notified, watch};
use utoipa::ToSchema;

/// Events of one project that are kept.
const MOST_EVENTS: usize = 1000;

/// What became of a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ProjectEvent {
    /// What happened.
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    pub(crate) cage: String,
    pub(crate) state: CageState,
    /// RFC 3339.
    pub(crate) time: String,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<String>,
}

/// Which event it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Created,
    Updated,
    Paused,
    Resumed,
    Ended,
    Deleted,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] = [
        Kind::Created,
        Kind::Updated,
        Kind::Paused,
        Kind::Resumed,
        Kind::Ended,
        Kind::Deleted,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Created => "created",
            Kind::Updated => "updated",
            Kind::Paused => "paused",
            Kind::Resumed => "resumed",
            Kind::Ended => "ended",
            Kind::Deleted => "deleted",
        }
    }
}

#[derive(Debug, Default)]
struct KeptEvents {
    /// Number of the event that comes next.
    next: u64,
    last: VecDeque<Arc<ProjectEvent>>,
}

impl KeptEvents {
    fn oldest(&self) -> u64 {
        self.next - self.last.len() as u64
    }
}

/// The events of all projects.
#[derive(Debug)]
pub(crate) struct EventLog {
    /// Numbers begin again with the service: those of another one are told apart by this.
    service: u64,
    projects: Mutex<HashMap<String, KeptEvents>>,
    told: Notify,
    stopping: watch::Sender<bool>,
}

/// What a follower gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Following {
    /// Events, and the number after the last.
    Events(Vec<Arc<ProjectEvent>>, u64),
    /// Events from this number on are not kept any more.
    Missed,
}

impl EventLog {
    pub(crate) fn new(service: u64) -> EventLog {
        EventLog {
            service,
            projects: Mutex::default(),
            told: Notify::new(),
            stopping: watch::Sender::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, KeptEvents>> {
        self.projects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, project: &str, event: ProjectEvent) {
        let mut projects = self.lock();
        let events = projects.entry(project.to_owned()).or_default();
        if events.last.len() == MOST_EVENTS {
            events.last.pop_front();
        }
        events.last.push_back(Arc::new(event));
        events.next += 1;
        drop(projects);
        self.told.notify_waiters();
    }

    /// Wakes with the next event of any project, if it is asked for before that is told.
    pub(crate) fn told(&self) -> Notified<'_> {
        self.told.notified()
    }

    /// Number of the event of a project that comes next.
    pub(crate) fn next(&self, project: &str) -> u64 {
        self.lock().get(project).map_or(0, |events| events.next)
    }

    /// The events of a project from a number on.
    pub(crate) fn from(&self, project: &str, from: u64, most: usize) -> Following {
        let projects = self.lock();
        let none = KeptEvents::default();
        let events = projects.get(project).unwrap_or(&none);
        let Some(skip) = from.checked_sub(events.oldest()) else {
            return Following::Missed;
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let found: Vec<_> = events.last.iter().skip(skip).take(most).cloned().collect();
        let next = from + found.len() as u64;
        Following::Events(found, next)
    }

    /// The id of an event, for `Last-Event-ID`.
    pub(crate) fn id(&self, number: u64) -> String {
        format!("{:x}-{number}", self.service)
    }

    /// The number after the event of an id; `None` where it is not of this service.
    pub(crate) fn after(&self, project: &str, id: &str) -> Option<u64> {
        let (service, number) = id.split_once('-')?;
        let number: u64 = number.parse().ok()?;
        let of_this = u64::from_str_radix(service, 16).is_ok_and(|found| found == self.service);
        (of_this && number < self.next(project)).then_some(number + 1)
    }

    /// Ends all that follows something.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits for the end of the service.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(cage: u64) -> ProjectEvent {
        ProjectEvent {
            kind: Kind::Created,
            cage: cage.to_string(),
            state: CageState::Running,
            time: String::new(),
            ending: None,
        }
    }

    #[test]
    fn events_are_kept_by_project_in_bounded_number_and_resumed_by_their_ids() {
        let log = EventLog::new(255);
        assert_eq!(log.from("a", 0, 10), Following::Events(Vec::new(), 0));
        for number in 0..3 {
            log.tell("a", event(number));
        }
        let cages = |following: Following| match following {
            Following::Events(events, next) => {
                let cages = events.iter().map(|event| event.cage.clone());
                (cages.collect::<Vec<_>>().join(","), next)
            }
            Following::Missed => panic!("missed"),
        };
        assert_eq!(cages(log.from("a", 0, 2)), ("0,1".to_owned(), 2));
        assert_eq!(log.id(1), "ff-1");
        let after = log.after("a", "ff-1").unwrap();
        assert_eq!(cages(log.from("a", after, 10)), ("2".to_owned(), 3));
        // Of another service, of another project, or no id at all.
        for id in ["fe-1", "ff-3", "ff", "ff-x", ""] {
            assert_eq!(log.after("a", id), None, "{id}");
        }
        assert_eq!(log.after("b", "ff-1"), None);
        for number in 3..MOST_EVENTS as u64 + 5 {
            log.tell("a", event(number));
        }
        assert_eq!(log.from("a", 4, 1), Following::Missed);
        assert_eq!(cages(log.from("a", 5, 1)), ("5".to_owned(), 6));
        assert_eq!(log.lock()["a"].last.len(), MOST_EVENTS);
    }
}
