//! Server-sent events.

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;

/// Where events are sent. When the client is gone, sending fails.
#[derive(Debug)]
pub(crate) struct Events(mpsc::Sender<Bytes>);

/// The client is gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Events {
    /// A stream of events, and its answer.
    pub(crate) fn channel() -> (Events, Response) {
        let (sender, receiver) = mpsc::channel(4);
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
            let bytes: Bytes = receiver.recv().await?;
            Some((Ok::<_, std::convert::Infallible>(bytes), receiver))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        (
            Events(sender),
            (headers, Body::from_stream(stream)).into_response(),
        )
    }

    pub(crate) async fn send(&self, name: &str, data: &impl Serialize) -> Result<(), Gone> {
        // These are types of our own, which all are JSON.
        let data = serde_json::to_string(data).map_err(|_| Gone)?;
        self.raw(format!("event: {name}\ndata: {data}\n\n")).await
    }

    /// Something that clients skip, so that a connection that is gone is noticed.
    pub(crate) async fn keep_alive(&self) -> Result<(), Gone> {
        self.raw(":\n\n".to_owned()).await
    }

    async fn raw(&self, text: String) -> Result<(), Gone> {
        self.0.send(Bytes::from(text)).await.map_err(|_| Gone)
    }

    /// Waits until the client is gone.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}
