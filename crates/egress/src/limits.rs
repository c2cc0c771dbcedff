//! Bounds on what goes out: how many connections, requests, hosts and bytes.
//!
//! Asked before something goes out, not after: what is over a bound stays inside.

use crate::decide::Denied;
use ironcage_model::{NetworkLimits, NetworkReason, bytes_as_written};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Hosts that are counted apart; the rest shares one count.
const HOSTS: usize = 4096;
const OTHERS: &str = "(others)";
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// What has gone out so far, and how much more may.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Cell<NetworkLimits>,
    total: Cell<u64>,
    hosts: RefCell<HashMap<String, Rc<Cell<u64>>>>,
    /// When hosts were new, the oldest first.
    news: RefCell<VecDeque<Instant>>,
    /// When the current second began, and the requests in it.
    second: Cell<Option<(Instant, u64)>>,
}

fn over(limit: impl std::fmt::Display, what: &str, key: &str) -> Denied {
    Denied::because(NetworkReason::LimitReached {
        amount: format!("{limit} {what}"),
        limit: key.to_owned(),
    })
}

impl Meter {
    pub(crate) fn new(limits: NetworkLimits) -> Self {
        Meter {
            limits: Cell::new(limits),
            total: Cell::new(0),
            hosts: RefCell::default(),
            news: RefCell::default(),
            second: Cell::new(None),
        }
    }

    /// Other limits hold from now on. What was counted stays counted.
    pub(crate) fn set(&self, limits: NetworkLimits) {
        self.limits.set(limits);
    }

    /// Whether another connection may be there beside so many.
    pub(crate) fn connection(&self, open: u64) -> Result<(), Denied> {
        match self.limits.get().connections {
            Some(limit) if open >= limit => Err(over(limit, "connections at once", "connections")),
            _ => Ok(()),
        }
    }

    /// Whether a host may be reached; the count of its bytes.
    pub(crate) fn host(&self, host: &str, now: Instant) -> Result<Rc<Cell<u64>>, Denied> {
        let mut hosts = self.hosts.borrow_mut();
        if let Some(known) = hosts.get(host) {
            return Ok(Rc::clone(known));
        }
        if let Some(limit) = self.limits.get().new_hosts_per_minute {
            let mut news = self.news.borrow_mut();
            while news
                .front()
                .is_some_and(|at| now.duration_since(*at) >= MINUTE)
            {
                news.pop_front();
            }
            // No more than can be told apart, so that the list has an end.
            if news.len() as u64 >= limit.min(HOSTS as u64) {
                let what = "new hosts in a minute";
                return Err(over(limit, what, "new-hosts-per-minute"));
            }
            news.push_back(now);
        }
        let host = if hosts.len() < HOSTS { host } else { OTHERS };
        Ok(Rc::clone(hosts.entry(host.to_owned()).or_default()))
    }

    /// The count of what goes out through a published port: its clients are the host's own.
    pub(crate) fn published(&self, port: &str) -> Rc<Cell<u64>> {
        let mut hosts = self.hosts.borrow_mut();
        Rc::clone(hosts.entry(port.to_owned()).or_default())
    }

    /// Whether another request may go out now.
    pub(crate) fn request(&self, now: Instant) -> Result<(), Denied> {
        let Some(limit) = self.limits.get().requests_per_second else {
            return Ok(());
        };
        let (began, count) = match self.second.get() {
            Some((began, count)) if now.duration_since(began) < SECOND => (began, count),
            _ => (now, 0),
        };
        if count >= limit {
            return Err(over(limit, "requests a second", "requests-per-second"));
        }
        self.second.set(Some((began, count + 1)));
        Ok(())
    }

    /// Whether a request may have a body of so many bytes.
    pub(crate) fn body(&self, bytes: u64) -> Result<(), Denied> {
        match self.limits.get().body {
            Some(limit) if bytes > limit => Err(over(bytes_as_written(limit), "in a body", "body")),
            _ => Ok(()),
        }
    }

    /// Whether so many bytes may go out to a host; they are counted where they may.
    pub(crate) fn send(&self, host: &Cell<u64>, bytes: u64) -> Result<(), Denied> {
        let limits = self.limits.get();
        let too_many = |limit: u64, whither: &str, key: &str| {
            let what = format!("out{whither}");
            Err(over(bytes_as_written(limit), &what, key))
        };
        let to_host = host.get().saturating_add(bytes);
        if let Some(limit) = limits.bytes_out_per_host.filter(|limit| to_host > *limit) {
            return too_many(limit, " to this host", "bytes-out-per-host");
        }
        let in_total = self.total.get().saturating_add(bytes);
        if let Some(limit) = limits.bytes_out.filter(|limit| in_total > *limit) {
            return too_many(limit, " in total", "bytes-out");
        }
        host.set(to_host);
        self.total.set(in_total);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_by_host_and_in_total_and_what_is_over_is_not_counted() {
        let meter = Meter::new(NetworkLimits {
            bytes_out_per_host: Some(100),
            bytes_out: Some(150),
            ..NetworkLimits::default()
        });
        let now = Instant::now();
        let (a, b) = (meter.host("a", now).unwrap(), meter.host("b", now).unwrap());
        assert!(meter.send(&a, 100).is_ok());
        let denied = meter.send(&a, 1).unwrap_err();
        assert!(
            matches!(&denied.reason, NetworkReason::LimitReached { limit, .. } if limit == "bytes-out-per-host"),
            "{denied:?}"
        );
        assert!(meter.send(&b, 51).is_err());
        assert!(meter.send(&b, 50).is_ok());
        let again = meter.host("a", now).unwrap();
        assert!(meter.send(&again, 1).is_err());
        meter.set(NetworkLimits::default());
        assert!(meter.send(&again, 1000).is_ok());
    }

    #[test]
    fn new_hosts_and_requests_are_bounded_in_their_time() {
        let meter = Meter::new(NetworkLimits {
            new_hosts_per_minute: Some(2),
            requests_per_second: Some(1),
            connections: Some(3),
            body: Some(10),
            ..NetworkLimits::default()
        });
        let start = Instant::now();
        assert!(meter.host("a", start).is_ok());
        assert!(meter.host("b", start).is_ok());
        assert!(meter.host("a", start).is_ok());
        assert!(meter.host("c", start).is_err());
        assert!(meter.host("c", start + MINUTE).is_ok());
        assert!(meter.request(start).is_ok());
        assert!(meter.request(start).is_err());
        assert!(meter.request(start + SECOND).is_ok());
        assert!(meter.connection(2).is_ok());
        assert!(meter.connection(3).is_err());
        assert!(meter.body(10).is_ok());
        assert!(meter.body(11).is_err());
    }

    #[test]
    fn many_hosts_share_a_count() {
        let meter = Meter::new(NetworkLimits::default());
        let now = Instant::now();
        for number in 0..HOSTS + 10 {
            meter.host(&number.to_string(), now).unwrap();
        }
        assert!(meter.hosts.borrow().len() <= HOSTS + 1);
    }
}
