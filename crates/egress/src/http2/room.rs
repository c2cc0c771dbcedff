//! Room for requests of HTTP/2 that are under way, all connections together. It is memory of the
//! proxy, outside the cage's limits.

use http::header::{HeaderName, HeaderValue};
use std::cell::Cell;

/// What a request costs beside its head: its task, and what stands in the tables of both sides.
const REQUEST: usize = 16 * 1024;
/// Bytes of all of them: a bound on their number, too.
const REQUESTS: usize = 32 << 20;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Room for a request while that is under way.
#[derive(Debug)]
pub(super) struct RequestRoom(usize);

impl RequestRoom {
    pub(super) fn take(head: &http::request::Parts) -> Option<Self> {
        let bytes = REQUEST + size(head);
        HELD.with(|held| {
            let with = held.get().checked_add(bytes)?;
            (with <= REQUESTS).then(|| {
                held.set(with);
                RequestRoom(bytes)
            })
        })
    }
}

impl Drop for RequestRoom {
    fn drop(&mut self) {
        HELD.with(|held| held.set(held.get().saturating_sub(self.0)));
    }
}

/// Bytes that a head takes, in about.
fn size(head: &http::request::Parts) -> usize {
    let field = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 64;
    let fields: usize = head.headers.iter().map(field).sum();
    let path = head
        .uri
        .path_and_query()
        .map_or(0, |path| path.as_str().len());
    fields + path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_room_by_number_and_by_length_and_give_it_back() {
        let head = |length: usize| {
            let request = http::Request::get("https://a.com/").header("x", "y".repeat(length));
            request.body(()).unwrap().into_parts().0
        };
        for (length, at_least, at_most) in [(1, 1024, 2048), (60 * 1024, 256, 512)] {
            let (head, mut taken) = (head(length), Vec::new());
            while let Some(room) = RequestRoom::take(&head) {
                taken.push(room);
            }
            assert!(
                (at_least..=at_most).contains(&taken.len()),
                "{length}: {}",
                taken.len()
            );
            taken.pop();
            assert!(RequestRoom::take(&head).is_some());
        }
    }
}
