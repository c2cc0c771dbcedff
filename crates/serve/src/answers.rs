//! The memory that answers take: what cages say is collected before it is sent, and clients may read
//! slowly. All answers together hold a bounded number of bytes.

use crate::error::{ApiError, ApiResult, Code};
use axum::body::{Body, HttpBody};
use axum::http::header;
use axum::response::Response;
use futures_util::StreamExt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

/// What all answers may hold, in KiB.
const MOST: usize = 256 * 1024;
/// Bytes of one answer that nobody counts.
const SMALL: usize = 64 * 1024;

static FREE: Semaphore = Semaphore::const_new(MOST);

/// What one answer holds.
#[derive(Debug, Default)]
struct HeldBytes {
    bytes: usize,
    /// KiB of the permit.
    counted: usize,
    permit: Option<SemaphorePermit<'static>>,
}

type Shared = Arc<Mutex<HeldBytes>>;

tokio::task_local! {
    static HELD: Shared;
}

/// Counts bytes that the answer of this request will hold, until it is sent. Outside of a request
/// nothing is counted: what is asked there is small.
pub(crate) fn hold(bytes: usize) -> ApiResult<()> {
    HELD.try_with(|held| add(held, bytes)).unwrap_or(Ok(()))
}

fn add(held: &Shared, bytes: usize) -> ApiResult<()> {
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    held.bytes = held.bytes.saturating_add(bytes);
    let wanted = held.bytes.saturating_sub(SMALL).div_ceil(1024);
    let more = u32::try_from(wanted - held.counted.min(wanted)).unwrap_or(u32::MAX);
    if more == 0 {
        return Ok(());
    }
    let permit = FREE.try_acquire_many(more).map_err(|_| {
        ApiError::new(
            Code::LimitReached,
            format!(
                "the answers of the service hold {} MiB already",
                MOST / 1024
            ),
        )
        .hint("ask again, or for less at a time")
    })?;
    held.counted = wanted;
    match &mut held.permit {
        Some(all) => all.merge(permit),
        none => *none = Some(permit),
    }
    Ok(())
}

/// Answers a request. What the answer holds counts until it is sent, or its client is gone.
pub(crate) async fn counted(answer: impl Future<Output = Response>) -> Response {
    let held = Shared::default();
    let mut response = HELD.scope(Arc::clone(&held), answer).await;
    let counts = held
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .permit
        .is_some();
    match counts {
        true => {
            if let Some(length) = response.body().size_hint().exact() {
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_LENGTH, length.into());
            }
            response.map(|body| {
                let kept = body.into_data_stream().map(move |bytes| {
                    let _held = &held;
                    bytes
                });
                Body::from_stream(kept)
            })
        }
        false => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_answers_count_until_they_are_sent_and_small_ones_do_not() {
        let answer = |bytes: usize| {
            counted(async move {
                hold(bytes / 2).unwrap();
                hold(bytes - bytes / 2).unwrap();
                Response::new(Body::from("x"))
            })
        };
        let small = answer(SMALL).await;
        assert_eq!(FREE.available_permits(), MOST);
        drop(small);
        let large = answer(SMALL + (1 << 20)).await;
        assert_eq!(FREE.available_permits(), MOST - 1024);
        let text = axum::body::to_bytes(large.into_body(), 10).await.unwrap();
        assert_eq!((&text[..], FREE.available_permits()), (&b"x"[..], MOST));
        let all = answer(MOST * 1024).await;
        let refused = HELD.sync_scope(Shared::default(), || hold(3 * SMALL));
        assert_eq!(refused.unwrap_err().code, Code::LimitReached);
        drop(all);
        HELD.sync_scope(Shared::default(), || hold(3 * SMALL))
            .unwrap();
    }
}
