//! After the rules allow a call: a person's approval where one is needed, and leases of the cage of its server.

use super::Gateway;
use crate::catalog::Entry;
use crate::leases::{Asker, CallLeases, NotClosed, NotLeased};
use crate::pins::canonical;
use crate::settings::hex;
use crate::upstream::Upstream;
use ironcage_client::WaitingCall;
use ironcage_model::{Resource, ToolReason, ToolVerdict, in_full};
use ironcage_tools::{Decision, Flow, Flows, one_line};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// How often the answer of a person is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// What becomes of a call that is not made, and why.
pub(super) type CallDenial = (ToolVerdict, ToolReason);

impl Gateway {
    pub(super) fn flows(&self) -> MutexGuard<'_, Flows> {
        let flows = self.0.flows.lock();
        flows.unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Why a person is asked about a call. That data could leave counts more than a rule.
    pub(super) fn asks(
        &self,
        entry: &Entry,
        decision: &Decision,
        flow: Flow,
    ) -> Option<ToolReason> {
        self.flows().ask(&entry.tool, flow).or(match decision {
            Decision::Ask(reason) => Some(reason.clone()),
            _ => None,
        })
    }

    /// Waits for a person's word, as long as the command line says.
    pub(super) async fn consent(
        &self,
        mut waiting: WaitingCall,
        reason: ToolReason,
    ) -> Result<(), CallDenial> {
        waiting.workspace.clone_from(&self.0.settings.workspace);
        let tool = waiting.tool.clone();
        let asked = match reason {
            reason @ ToolReason::FlowAsks { .. } => reason,
            _ => ToolReason::ApprovalRequired { tool: tool.clone() },
        };
        let until = Instant::now() + self.0.wait;
        loop {
            let answer = match self.0.approvals.ask(waiting.clone()) {
                Ok(answer) => answer,
                Err(error) => {
                    let error = ironcage_model::in_full(&error);
                    anstream::eprintln!("ironcage: cannot ask the user: {error}");
                    return Err((ToolVerdict::Failed, asked));
                }
            };
            match answer {
                Some(true) => return Ok(()),
                Some(false) => {
                    return Err((ToolVerdict::Denied, ToolReason::DeniedByOperator { tool }));
                }
                None if Instant::now() >= until => return Err((ToolVerdict::Asked, asked)),
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Opens what a call needs. What the ceiling wants a person for is asked about like the call itself.
    pub(super) async fn lease(
        &self,
        upstream: &Upstream,
        entry: &Entry,
        arguments: &Value,
        needs: Vec<Resource>,
        asker: Asker,
    ) -> Result<Option<CallLeases>, CallDenial> {
        let Some(cage) = upstream.cage.clone().filter(|_| !needs.is_empty()) else {
            return Ok(None);
        };
        let tool = entry.tool.clone();
        let open = |asker: Asker| {
            let (cage, needs, tool) = (cage.clone(), needs.clone(), tool.clone());
            tokio::task::spawn_blocking(move || CallLeases::open(&cage, needs, asker, &tool))
        };
        let mut opened = open(asker).await;
        if matches!(opened, Ok(Err(NotLeased::NeedsPerson))) && asker == Asker::Call {
            let reason = ToolReason::ApprovalRequired { tool: tool.clone() };
            let waiting = waiting(entry, arguments, &reason, &needs);
            self.consent(waiting, reason).await?;
            opened = open(Asker::Person).await;
        }
        let denied = |resource: String, error: String| {
            let (resource, error) = (one_line(&resource), one_line(&error));
            let tool = tool.clone();
            let reason = ToolReason::LeaseDenied {
                tool,
                resource,
                error,
            };
            (ToolVerdict::Denied, reason)
        };
        match opened {
            Ok(Ok(leases)) => Ok(Some(leases)),
            Ok(Err(NotLeased::Denied { resource, error })) => {
                Err(denied(resource, in_full(&error)))
            }
            Ok(Err(NotLeased::NeedsPerson)) => {
                Err(denied("it".to_owned(), "nobody can approve it".to_owned()))
            }
            Err(error) => Err(denied("it".to_owned(), error.to_string())),
        }
    }
}

/// Closes what was open for a call. Without the proof its result is withheld.
pub(super) async fn close(leases: CallLeases, tool: &str) -> Result<(), ToolReason> {
    let not_closed = |resource: String, error: String| ToolReason::LeaseNotClosed {
        tool: tool.to_owned(),
        resource,
        error,
    };
    match tokio::task::spawn_blocking(move || leases.close()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(NotClosed { resource, error })) => Err(not_closed(resource, error)),
        Err(error) => Err(not_closed("it".to_owned(), error.to_string())),
    }
}

/// A call that waits for a person, who sees what it needs besides.
pub(super) fn waiting(
    entry: &Entry,
    arguments: &Value,
    reason: &ToolReason,
    needs: &[Resource],
) -> WaitingCall {
    let needs: Vec<String> = needs.iter().map(ToString::to_string).collect();
    // An approval from before private data met untrusted content is not one for after it.
    let met = matches!(reason, ToolReason::FlowAsks { .. });
    let what = json!([entry.server, entry.tool, entry.pin, arguments, needs, met]);
    let mut reason = reason.to_string();
    if !needs.is_empty() {
        reason = format!("{reason}; it needs {}", needs.join(", "));
    }
    WaitingCall {
        number: 0,
        server: entry.server.clone(),
        tool: entry.tool.clone(),
        digest: hex(canonical(&what).as_bytes()),
        arguments: arguments.clone(),
        reason,
        workspace: PathBuf::new(),
        allowed: None,
    }
}
