//! Sign-in: a link that works once becomes a key that expires.
//!
//! The link is in the terminal, in its scrollback, perhaps in a message. So it is not the key: it is
//! exchanged once, within minutes, and of no use after.

use crate::api::{Caller, Json};
use crate::clock;
use crate::engine::Engine;
use crate::error::{ApiError, ApiResult, Code};
use crate::keys::{Key, KeyError, Keys, SCOPES, Scope};
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const MINUTE: u64 = 60_000_000;
/// How long a link works.
const LINK: u64 = 10 * MINUTE;
/// How long a browser stays signed in.
const SESSION: u64 = 12 * 60 * MINUTE;
/// The name of both keys.
const NAME: &str = "dashboard";

/// Links are kept apart from the keys of the API: none is one.
fn links(data: &Path) -> Keys {
    Keys::in_data(&data.join("dashboard"))
}

/// Makes a link's secret. Without a project it shows the cages of all of them.
pub(crate) fn link(
    data: &Path,
    project: Option<&str>,
    read_only: bool,
) -> Result<String, KeyError> {
    let mut scopes: BTreeSet<Scope> = match read_only {
        true => [Scope::Read].into(),
        false => SCOPES.into_iter().collect(),
    };
    match project {
        Some(_) => scopes.remove(&Scope::Admin),
        None => scopes.insert(Scope::Admin),
    };
    let links = links(data);
    links.remove_expired()?;
    let end = clock::now() + LINK;
    let (_, text) = links.create_until(NAME, project.unwrap_or("default"), scopes, end)?;
    Ok(text)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignIn {
    link: String,
}

/// What a key shows and may do.
#[derive(Debug, Serialize)]
pub(super) struct Session {
    /// Only where it was made just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    project: String,
    scopes: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    version: &'static str,
}

impl Session {
    fn of(key: &Key, text: Option<String>) -> axum::Json<Session> {
        let scopes = SCOPES.into_iter().filter(|scope| key.may(*scope));
        axum::Json(Session {
            key: text,
            project: key.project.clone(),
            scopes: scopes.map(Scope::name).collect(),
            expires_at: key.expires.map(clock::rfc3339),
            version: env!("CARGO_PKG_VERSION"),
        })
    }
}

fn internal(error: &KeyError) -> ApiError {
    // Who asks has no key yet: the path of the file is not for them.
    let source = std::error::Error::source(error).map_or_else(String::new, ToString::to_string);
    ApiError::new(
        Code::Internal,
        format!("cannot use the links of the dashboard: {source}"),
    )
}

/// Exchanges a link for a key.
pub(super) async fn open(
    State(engine): State<Arc<Engine>>,
    Json(SignIn { link }): Json<SignIn>,
) -> ApiResult<axum::Json<Session>> {
    let refused = || {
        ApiError::new(
            Code::Unauthorized,
            "the link was used already, is older than ten minutes, or is not one",
        )
        .hint("`ironcage serve dashboard` prints another one")
    };
    let links = links(&engine.settings.data);
    let found = links.check(&link).map_err(|error| internal(&error))?;
    let found = found.ok_or_else(refused)?;
    // The file is removed by one request only, however many come at once.
    match links.revoke(&found.id) {
        Ok(()) => {}
        Err(KeyError::NotFound { .. }) => return Err(refused()),
        Err(error) => return Err(internal(&error)),
    }
    engine
        .keys
        .remove_expired()
        .map_err(|error| internal(&error))?;
    let end = clock::now() + SESSION;
    let made = engine
        .keys
        .create_until(NAME, &found.project, found.scopes, end);
    let (key, text) = made.map_err(|error| internal(&error))?;
    Ok(Session::of(&key, Some(text)))
}

/// What the key of the request shows and may do.
pub(super) async fn shown(caller: Caller) -> ApiResult<axum::Json<Session>> {
    caller.needs(Scope::Read)?;
    Ok(Session::of(&caller.key, None))
}

/// Signs out: the key is not valid any more. Keys that nobody made for a browser stay.
pub(super) async fn end(
    caller: Caller,
    State(engine): State<Arc<Engine>>,
) -> ApiResult<StatusCode> {
    if caller.key.name == NAME && caller.key.expires.is_some() {
        match engine.keys.revoke(&caller.key.id) {
            Ok(()) | Err(KeyError::NotFound { .. }) => {}
            Err(error) => return Err(internal(&error)),
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_not_a_key_and_carries_what_was_asked_for() {
        let data = tempfile::tempdir().unwrap();
        let made = |project, read_only| {
            let text = link(data.path(), project, read_only).unwrap();
            assert!(Keys::in_data(data.path()).check(&text).unwrap().is_none());
            let key = links(data.path()).check(&text).unwrap().unwrap();
            let of_key = SCOPES.into_iter().filter(|scope| key.may(*scope));
            (
                key.project.clone(),
                of_key.map(Scope::name).collect::<Vec<_>>(),
            )
        };
        let all = SCOPES.map(Scope::name).to_vec();
        assert_eq!(made(None, false), ("default".to_owned(), all.clone()));
        assert_eq!(
            made(None, true),
            ("default".to_owned(), vec!["read", "admin"])
        );
        let of_team = all.into_iter().filter(|scope| *scope != "admin");
        assert_eq!(
            made(Some("team"), false),
            ("team".to_owned(), of_team.collect())
        );
        assert_eq!(made(Some("team"), true), ("team".to_owned(), vec!["read"]));
    }
}
