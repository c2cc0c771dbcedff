//! The places that a cage was ever leased.

use ironcage_model::Right;
use ironcage_state::Edition;
use std::path::{Path, PathBuf};

/// Most places that are kept apart; of more the directories around them are meant.
const MOST: usize = 64;

/// What a cage could read and write by leases, its scopes' included, and which marks it has seen.
#[derive(Debug, Default)]
pub(super) struct LeasedPlaces {
    read: Vec<PathBuf>,
    written: Vec<PathBuf>,
    /// The marks that the cage's places were last compared with.
    seen: Option<Edition>,
}

impl LeasedPlaces {
    /// A lease is about to be opened. That it ends takes nothing away: what was read was read.
    pub(super) fn add(&mut self, path: &Path, right: Right) {
        put(&mut self.read, path);
        if right == Right::Write {
            put(&mut self.written, path);
        }
        self.seen = None;
    }

    /// The marks that the places were last compared with.
    pub(super) fn seen(&self) -> Option<&Edition> {
        self.seen.as_ref()
    }

    pub(super) fn see(&mut self, edition: Edition) {
        self.seen = Some(edition);
    }

    pub(super) fn read(&self) -> impl Iterator<Item = &Path> {
        self.read.iter().map(PathBuf::as_path)
    }

    pub(super) fn written(&self) -> impl Iterator<Item = &Path> {
        self.written.iter().map(PathBuf::as_path)
    }
}

fn put(places: &mut Vec<PathBuf>, path: &Path) {
    if places.iter().any(|place| path.starts_with(place)) {
        return;
    }
    places.retain(|place| !place.starts_with(path));
    places.push(path.to_owned());
    while places.len() > MOST {
        // The deepest become the directory around them, so that nothing is left out.
        let depth = |path: &Path| path.components().count();
        let deepest = places.iter().map(|place| depth(place)).max().unwrap_or(0);
        let (deep, flat): (Vec<PathBuf>, Vec<PathBuf>) = std::mem::take(places)
            .into_iter()
            .partition(|place| depth(place) == deepest);
        *places = flat;
        for place in deep {
            let around = place.parent().unwrap_or(&place).to_owned();
            if !places.iter().any(|place| around.starts_with(place)) {
                places.push(around);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_was_leased_is_left_out_however_much_there_is() {
        let mut leased = LeasedPlaces::default();
        let mut all = Vec::new();
        for number in 0..1000 {
            let path = PathBuf::from(format!("/home/ann/{}/{number}/deep", number % 7));
            leased.add(&path, Right::Write);
            all.push(path);
        }
        leased.add(Path::new("/srv/read"), Right::Read);
        assert!(leased.written.len() <= MOST && leased.read.len() <= MOST);
        for path in &all {
            assert!(
                leased.written().any(|place| path.starts_with(place)),
                "{path:?}"
            );
        }
        assert!(
            leased
                .read()
                .any(|place| Path::new("/srv/read").starts_with(place))
        );
        assert!(
            !leased
                .written()
                .any(|place| Path::new("/srv/read").starts_with(place))
        );
    }
}
