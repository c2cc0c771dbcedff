//! Compares what a model's words named with what is asked for. It never adds to what is given:
//! beside a question it is shown, and where the policy says so, what strays from it is asked for
//! first.

use ironcage_model::{Destination, Extent, HostName, Mark, Resource};
use ironcage_plan::Leases;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Names that are kept of one kind: paths or hosts, within the ceiling or outside it. A model that
/// is made to name junk does not so have what it named before forgotten: of another kind nothing
/// is pushed out, and what takes its place within the ceiling contradicts as well as it did.
const MOST_OF_A_KIND: usize = 32;
/// How long they count.
const FRESH: Duration = Duration::from_secs(600);

/// A place that words named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Path(PathBuf),
    Host(HostName),
}

impl Place {
    fn is_path(&self) -> bool {
        matches!(self, Place::Path(_))
    }

    /// Its path or its name.
    pub(crate) fn text(&self) -> String {
        match self {
            Place::Path(path) => path.to_string_lossy().into_owned(),
            Place::Host(name) => name.as_str().to_owned(),
        }
    }

    /// Whether it names this: itself, something in it, or the directory that it lies in.
    pub(crate) fn names(&self, resource: &Resource) -> bool {
        match (self, resource) {
            (Place::Path(path), Resource::Path { path: wanted, .. }) => {
                let wanted = Path::new(wanted);
                // What lies right below the root holds too much to say anything.
                let around = path.components().count() > 2;
                path.starts_with(wanted) || (around && wanted.starts_with(path))
            }
            (Place::Host(name), Resource::Host { rule }) => rule.knows(name),
            _ => false,
        }
    }

    /// Whether it could be leased.
    pub(crate) fn is_leasable(&self, leases: &Leases) -> bool {
        match self {
            Place::Path(path) => {
                let mut parts = leases.paths.iter();
                parts.any(|part| part.what.mark != Mark::Deny && path.starts_with(&part.what.path))
            }
            Place::Host(name) => {
                let mut parts = leases.others.iter();
                parts.any(|part| match &part.what.extent {
                    // Where every host can be leased, any word with a dot would be one.
                    Extent::Host(rule) if rule.to != Destination::Any => {
                        part.what.mark != Mark::Deny && rule.knows(name)
                    }
                    _ => false,
                })
            }
        }
    }
}

/// A place that words named, and when.
#[derive(Debug, Clone)]
struct AnnouncedPlace {
    place: Place,
    /// Whether it lies within the ceiling.
    leasable: bool,
    at: Instant,
}

/// What a model's words named of late.
#[derive(Debug, Clone, Default)]
pub struct Words {
    places: VecDeque<AnnouncedPlace>,
}

impl Words {
    /// Words name these paths and hosts. What is no path and no host is passed over.
    pub fn hear(
        &mut self,
        named: &ironcage_model::Announced,
        leases: Option<&Leases>,
        now: Instant,
    ) {
        let paths = named.paths.iter().map(PathBuf::from);
        let paths = paths.filter(|path| path.is_absolute() && path.parent().is_some());
        let hosts = named.hosts.iter();
        let hosts = hosts.filter_map(|name| HostName::from_ascii(name.as_bytes()).ok());
        for place in paths.map(Place::Path).chain(hosts.map(Place::Host)) {
            self.places.retain(|known| known.place != place);
            let leasable = leases.is_some_and(|leases| place.is_leasable(leases));
            let is_path = place.is_path();
            let alike = |known: &AnnouncedPlace| {
                (known.leasable, known.place.is_path()) == (leasable, is_path)
            };
            if self.places.iter().filter(|known| alike(known)).count() >= MOST_OF_A_KIND
                && let Some(oldest) = self.places.iter().position(alike)
            {
                self.places.remove(oldest);
            }
            self.places.push_back(AnnouncedPlace {
                place,
                leasable,
                at: now,
            });
        }
    }

    fn fresh(&self, now: Instant) -> impl Iterator<Item = &Place> {
        let places = self.places.iter().rev();
        let fresh = places.take_while(move |known| now.duration_since(known.at) < FRESH);
        fresh.map(|known| &known.place)
    }

    /// Where words named this: itself, something in it, or the directory that it lies in.
    pub fn naming(&self, resource: &Resource, now: Instant) -> Option<String> {
        let mut fresh = self.fresh(now);
        fresh.find(|place| place.names(resource)).map(Place::text)
    }

    /// Whether words named another place of this kind that could be leased, and not this one.
    pub fn stray(&self, resource: &Resource, leases: &Leases, now: Instant) -> bool {
        let leasable = |place: &Place| {
            let same_kind = match resource {
                Resource::Path { .. } => place.is_path(),
                Resource::Host { .. } => !place.is_path(),
                _ => false,
            };
            same_kind && place.is_leasable(leases)
        };
        self.fresh(now).any(leasable) && self.naming(resource, now).is_none()
    }
}
