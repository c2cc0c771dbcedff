//! Server-sent events.

use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::keys::Key;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// Where events are sent. When the client is gone, sending fails.
#[derive(Debug)]
pub(crate) struct Events {
    sender: mpsc::Sender<Bytes>,
    /// What a client that was given up finds behind all that it was sent.
    last: Arc<OnceLock<Bytes>>,
}

/// How long a client may not take what it is sent, before it is given up.
const SLOW: Duration = Duration::from_secs(30);

/// The client is gone.
#[derive(Debug)]
pub(crate) struct Gone;

/// How often the key of a stream is checked again.
const CHECK: Duration = Duration::from_secs(2);

/// Waits until a key is not valid any more, or cannot be checked.
async fn no_longer_valid(engine: &Engine, key: &Key) -> ApiError {
    loop {
        tokio::time::sleep(CHECK).await;
        match engine.keys.still_valid(key) {
            Ok(true) => {}
            Ok(false) => {
                let message = "the key was revoked, or has expired";
                return ApiError::new(Code::Unauthorized, message);
            }
            // The path of the file is not for the client.
            Err(_) => return ApiError::new(Code::Internal, "cannot read the key"),
        }
    }
}

impl Events {
    /// A stream of events, and its answer.
    pub(crate) fn channel() -> (Events, Response) {
        let (sender, receiver) = mpsc::channel(4);
        let last: Arc<OnceLock<Bytes>> = Arc::default();
        let state = Some((receiver, Arc::clone(&last)));
        let stream = futures_util::stream::unfold(state, |state| async move {
            let (mut receiver, last): (mpsc::Receiver<Bytes>, Arc<OnceLock<Bytes>>) = state?;
            let (bytes, state) = match receiver.recv().await {
                Some(bytes) => (bytes, Some((receiver, last))),
                None => (last.get()?.clone(), None),
            };
            Some((Ok::<_, std::convert::Infallible>(bytes), state))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        (
            Events { sender, last },
            (headers, Body::from_stream(stream)).into_response(),
        )
    }

    pub(crate) async fn send(&self, name: &str, data: &impl Serialize) -> Result<(), Gone> {
        // These are types of our own, which all are JSON.
        let data = serde_json::to_string(data).map_err(|_| Gone)?;
        self.raw(format!("event: {name}\ndata: {data}\n\n")).await
    }

    /// Sends an event with an id, for clients that continue after it. One that does not take it for
    /// long is given up, and finds the reason behind what it was sent.
    pub(crate) async fn send_with_id(
        &self,
        id: &str,
        name: &str,
        data: &impl Serialize,
    ) -> Result<(), Gone> {
        let data = serde_json::to_string(data).map_err(|_| Gone)?;
        let text = format!("id: {id}\nevent: {name}\ndata: {data}\n\n");
        match tokio::time::timeout(SLOW, self.raw(text)).await {
            Ok(sent) => sent,
            Err(_) => {
                let seconds = SLOW.as_secs();
                self.give_up(format!("the client took nothing for {seconds} s"));
                Err(Gone)
            }
        }
    }

    /// Leaves the reason for a client that is too slow, for when it reads on.
    pub(crate) fn give_up(&self, message: String) {
        let error = ApiError::new(Code::TooSlow, message)
            .hint("connect again with the header Last-Event-ID");
        self.end_with(&error);
    }

    /// Runs what sends events as long as the client is there and its key is valid.
    pub(crate) async fn run(
        &self,
        engine: &Engine,
        key: &Key,
        work: impl Future<Output = Result<(), Gone>>,
    ) {
        tokio::select! {
            // A client that is gone needs no answer.
            _ = work => {}
            () = self.closed() => {}
            error = no_longer_valid(engine, key) => self.end_with(&error),
        }
    }

    /// Leaves an error behind all that was sent.
    fn end_with(&self, error: &ApiError) {
        // This is a type of our own, which is JSON.
        let data = serde_json::to_string(&error.body()).unwrap_or_default();
        let text = format!("event: error\ndata: {data}\n\n");
        // Only the first reason counts.
        let _ = self.last.set(Bytes::from(text));
    }

    /// Something that clients skip, so that a connection that is gone is noticed.
    pub(crate) async fn keep_alive(&self) -> Result<(), Gone> {
        self.raw(":\n\n".to_owned()).await
    }

    async fn raw(&self, text: String) -> Result<(), Gone> {
        self.sender.send(Bytes::from(text)).await.map_err(|_| Gone)
    }

    /// Waits until the client is gone.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_with_its_key_and_not_before() {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::open(crate::engine::tests::settings(data.path())).unwrap();
        let make = || engine.keys.create("k", "team", [].into()).unwrap().0;
        let (valid, revoked) = (make(), make());
        let follow = async |key: &Key| {
            let (events, response) = Events::channel();
            let work = async {
                events.send("before", &1).await?;
                tokio::time::sleep(Duration::from_secs(3600)).await;
                events.send("after", &2).await
            };
            events.run(&engine, key, work).await;
            drop(events);
            let body = axum::body::to_bytes(response.into_body(), 10_000).await;
            String::from_utf8(body.unwrap().to_vec()).unwrap()
        };
        let text = follow(&valid).await;
        assert!(
            text.contains("event: after") && !text.contains("error"),
            "{text}"
        );
        engine.keys.revoke(&revoked.id).unwrap();
        let text = follow(&revoked).await;
        assert!(text.contains("event: before"), "{text}");
        assert!(
            text.contains("event: error\n") && text.contains("unauthorized"),
            "{text}"
        );
        assert!(!text.contains("event: after"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_finds_the_reason() {
        let (events, response) = Events::channel();
        let sender = tokio::spawn(async move {
            let mut sent = 0;
            while events.send_with_id("1", "audit", &sent).await.is_ok() {
                sent += 1;
            }
            sent
        });
        let sent = sender.await.unwrap();
        assert!((1..100).contains(&sent), "{sent}");
        let body = axum::body::to_bytes(response.into_body(), 10_000).await;
        let text = String::from_utf8(body.unwrap().to_vec()).unwrap();
        assert_eq!(text.matches("event: audit\n").count(), sent);
        assert!(
            text.contains("event: error\n") && text.contains("too_slow"),
            "{text}"
        );
        // One that reads gets all, and no reason.
        let (events, response) = Events::channel();
        tokio::spawn(async move {
            for number in 0..50 {
                events.send_with_id("1", "audit", &number).await.unwrap();
            }
        });
        let body = axum::body::to_bytes(response.into_body(), 10_000).await;
        let text = String::from_utf8(body.unwrap().to_vec()).unwrap();
        assert_eq!(text.matches("event: audit\n").count(), 50);
        assert!(!text.contains("event: error"));
    }
}
