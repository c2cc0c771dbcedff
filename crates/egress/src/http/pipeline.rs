//! The way of every request, whichever version of HTTP carries it: the rules authorise it, values
//! of secrets replace their placeholders, and it is signed. Each step takes a request and returns
//! a new one, so nothing can go on that a step has not seen.

use super::head::{Fields, Refused};
use super::judge::{Judge, RequestRecord};
use crate::secret::BodyRoom;
use crate::traffic_log::Counts;
use std::io;

/// Method, target and header fields of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestParts {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) fields: Fields,
}

/// A request that the rules allow, with the values of secrets in its header.
#[derive(Debug)]
pub(crate) struct AuthorisedRequest {
    pub(super) parts: RequestParts,
    pub(super) record: RequestRecord,
}

/// A request as the server gets it.
#[derive(Debug)]
pub(crate) struct UpstreamRequest {
    pub(crate) parts: RequestParts,
    /// The body, where it was read as a whole. Otherwise it still streams.
    pub(crate) body: Option<HeldBody>,
    pub(crate) record: RequestRecord,
}

/// A body that was read as a whole.
#[derive(Debug)]
pub(crate) struct HeldBody {
    upstream: Vec<u8>,
    /// Where it is another.
    from_client: Option<Vec<u8>>,
    /// As long as this is there, the room is taken.
    _room: BodyRoom,
}

impl HeldBody {
    /// As the server gets it, with the values of secrets.
    pub(crate) fn upstream(&self) -> &[u8] {
        &self.upstream
    }

    /// As the client sent it. The reader of models' exchanges gets no other: it must never see a
    /// value.
    pub(crate) fn as_sent(&self) -> &[u8] {
        self.from_client.as_deref().unwrap_or(&self.upstream)
    }
}

/// Why a request did not get to the server.
#[derive(Debug)]
pub(crate) enum NotSent {
    Refused(Refused),
    Broken(io::Error),
}

impl From<Refused> for NotSent {
    fn from(refused: Refused) -> Self {
        NotSent::Refused(refused)
    }
}

impl From<io::Error> for NotSent {
    fn from(error: io::Error) -> Self {
        NotSent::Broken(error)
    }
}

/// The body of a request that has not been read yet.
pub(crate) trait RequestBody {
    /// How long it says that it is; `None` where it does not.
    fn length(&self) -> Option<u64>;

    /// Reads all of it. `expects` says that the client waits for a word before it sends it.
    async fn read(&mut self, length: usize, expects: bool) -> Result<Vec<u8>, NotSent>;
}

impl Judge {
    /// Decides over a request and puts values into its header. What is refused is on record.
    ///
    /// # Errors
    /// Where the request must not go on.
    pub(crate) async fn authorise(
        &self,
        parts: RequestParts,
    ) -> Result<AuthorisedRequest, Refused> {
        if let Some(injector) = &self.injector
            && let Err(refused) = injector.refresh(&parts.fields).await
        {
            self.refuse(None, &refused);
            return Err(refused);
        }
        let mut record = RequestRecord::of(&parts);
        let injected = self.decide(&parts).and_then(|rule| {
            record.rule = rule;
            let Some(injector) = &self.injector else {
                return Ok(parts);
            };
            record.uses_login = injector.uses_login(&parts.fields);
            injector.inject(parts)
        });
        match injected {
            Ok(parts) => Ok(AuthorisedRequest { parts, record }),
            Err(refused) => {
                self.stop(&record, &refused);
                Err(refused)
            }
        }
    }

    /// Puts values into the body of a request, and signs it. `first` says that it is the first of
    /// its connection. What is refused is on record.
    ///
    /// # Errors
    /// Where the request must not go on, or the connection was lost.
    pub(crate) async fn prepare(
        &self,
        request: AuthorisedRequest,
        (counts, first): (&Counts, bool),
        body: &mut impl RequestBody,
    ) -> Result<UpstreamRequest, NotSent> {
        let AuthorisedRequest { parts, record } = request;
        let prepared = match within_limits(counts, first, body.length()) {
            Ok(()) => self.complete(parts, body).await,
            Err(refused) => Err(refused.into()),
        };
        match prepared {
            Ok((parts, body)) => Ok(UpstreamRequest {
                parts,
                body,
                record,
            }),
            Err(NotSent::Refused(refused)) => {
                self.stop(&record, &refused);
                Err(refused.into())
            }
            Err(broken) => Err(broken),
        }
    }

    async fn complete(
        &self,
        mut parts: RequestParts,
        body: &mut impl RequestBody,
    ) -> Result<(RequestParts, Option<HeldBody>), NotSent> {
        let Some(injector) = &self.injector else {
            return Ok((parts, None));
        };
        let host = self.authority.written();
        let room = injector.holds_body(&parts, &host, body.length())?;
        let held = match (room, body.length()) {
            (Some(room), Some(length)) => {
                let expects = parts.fields.iter().any(|(name, _)| name == "expect");
                parts.fields.retain(|(name, _)| name != "expect");
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let from_client = body.read(length, expects).await?;
                let injected = injector.inject_body(&parts.fields, &from_client)?;
                let (upstream, from_client) = match injected {
                    Some(upstream) => (upstream, Some(from_client)),
                    None => (from_client, None),
                };
                Some(HeldBody {
                    upstream,
                    from_client,
                    _room: room,
                })
            }
            _ => None,
        };
        let parts = injector.sign(parts, &host, held.as_ref().map(HeldBody::upstream))?;
        Ok((parts, held))
    }
}

/// Whether another request, with a body of this length, may go out.
fn within_limits(counts: &Counts, first: bool, length: Option<u64>) -> Result<(), Refused> {
    let refused =
        |status: u16| move |denied: crate::decide::Denied| Refused::new(status, denied.reason);
    counts.requests(first).map_err(refused(429))?;
    counts.says_body(length.unwrap_or(0)).map_err(refused(413))
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
