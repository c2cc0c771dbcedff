//! The pending change of a cage, as `ironcage diff` prints it.

use crate::answers;
use crate::api::{Caller, Path};
use crate::engine::Engine;
use crate::error::ApiResult;
use crate::keys::Scope;
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;

/// Bytes of a diff that are shown.
const MOST: u64 = 2 << 20;

#[derive(Debug, Serialize)]
pub(super) struct Diff {
    /// The ID of the change; absent where the cage has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    /// What `ironcage diff` prints: control characters are escaped.
    text: String,
    /// Whether there is more than is shown.
    truncated: bool,
}

/// The change that a cage works on, or left, as long as it is its project's: one that another cage
/// continued is that one's.
pub(super) async fn diff(
    caller: Caller,
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Diff>> {
    caller.needs(Scope::Read)?;
    let entry = engine.cage(&caller.key, &id)?;
    let changes = engine.changes(&caller.key).await?;
    let own = changes
        .into_iter()
        .find(|change| change.cage == entry.id.as_str());
    let Some(change) = own else {
        return Ok(axum::Json(Diff {
            change: None,
            text: String::new(),
            truncated: false,
        }));
    };
    let words = ["change", "diff", &change.id];
    let printed = engine
        .command_line
        .run_up_to(&caller.key.project, &words, MOST)
        .await?;
    answers::hold(printed.bytes.len())?;
    Ok(axum::Json(Diff {
        change: Some(change.id),
        text: String::from_utf8_lossy(&printed.bytes).into_owned(),
        truncated: printed.truncated,
    }))
}
