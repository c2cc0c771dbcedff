//! One call: decide, log, ask, forward, clean, log.

use super::admission::{close, waiting};
use super::input::{RequestKey, state_refused};
use super::{Gateway, Running};
use crate::leases::Asker;
use crate::pins::canonical;
use crate::results::{LARGEST, Unclean, clean, refusal};
use crate::settings::hex;
use crate::upstream::{Era, FromServer, Upstream, channel};
use ironcage_model::{ToolCall, ToolReason, ToolVerdict};
use ironcage_tools::{Call, Decision, one_line};
use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResponse, CallToolResult, ClientRequest,
    ErrorCode, ResultType, ServerResult,
};
use rmcp::service::{RequestContext, RoleServer, ServiceError};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::time::Instant;

/// A call while it is worked on, and what the log will say of it.
pub(super) struct Pending {
    pub(super) line: ToolCall,
    /// The whole name: the log has its beginning.
    name: String,
    started: Instant,
}

impl Pending {
    pub(super) fn new(server: &str, method: &str, name: &str, arguments: &Value) -> Self {
        Pending {
            line: ToolCall {
                server: server.to_owned(),
                method: method.to_owned(),
                name: name.chars().take(512).collect(),
                arguments: match arguments {
                    Value::Null => String::new(),
                    arguments => hex(canonical(arguments).as_bytes()),
                },
                verdict: ToolVerdict::Called,
                because: None,
                rule: String::new(),
                pin: String::new(),
                leases: Vec::new(),
                milliseconds: 0,
                bytes: 0,
            },
            name: name.to_owned(),
            started: Instant::now(),
        }
    }

    fn key(&self) -> RequestKey {
        let line = &self.line;
        RequestKey::new(&line.server, &line.method, &self.name, &line.arguments)
    }
}

impl Gateway {
    /// The state that a client sends with the input that a server wanted, as the server gave it. `Err` is the answer to
    /// one that the gateway did not sign for this request.
    pub(super) fn state(
        &self,
        pending: Pending,
        signed: Option<String>,
    ) -> Result<(Pending, Option<String>), ErrorData> {
        let Some(signed) = signed else {
            return Ok((pending, None));
        };
        match self.0.states.check(&pending.key(), &signed) {
            Some(state) => Ok((pending, Some(state))),
            None => {
                let reason = state_refused(&pending.name);
                self.log(pending, ToolVerdict::Denied, Some(&reason))?;
                Err(error_of(&reason))
            }
        }
    }

    /// Logs what became of a call.
    pub(super) fn log(
        &self,
        mut pending: Pending,
        verdict: ToolVerdict,
        reason: Option<&ToolReason>,
    ) -> Result<(), ErrorData> {
        let time = pending.started.elapsed().as_millis();
        pending.line.milliseconds = u64::try_from(time).unwrap_or(u64::MAX);
        pending.line.verdict = verdict;
        pending.line.because = reason.map(|reason| {
            let mut reason = ironcage_model::Reason::from(reason.clone());
            reason.cut(1024);
            Box::new(reason)
        });
        self.0.audit.call(pending.line).map_err(|error| {
            let error = ironcage_model::in_full(&error);
            ErrorData::internal_error(format!("the call cannot be logged: {error}"), None)
        })
    }

    fn refuse(
        &self,
        pending: Pending,
        verdict: ToolVerdict,
        reason: &ToolReason,
    ) -> Result<CallToolResponse, ErrorData> {
        self.log(pending, verdict, Some(reason))?;
        Ok(refusal(reason).into())
    }

    /// `tools/call`.
    pub(super) async fn call(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let era = Era::of(context.protocol_version().as_ref());
        let running = self.running(era).await;
        let name = params.name.to_string();
        let arguments = params.arguments.clone().map_or(Value::Null, Value::Object);
        let found = running.catalog().find(&name).cloned();
        let Some(entry) = found else {
            let pending = Pending::new("", "tools/call", &name, &arguments);
            let tool = ironcage_tools::printable(&name);
            return self.refuse(pending, ToolVerdict::Denied, &ToolReason::Unknown { tool });
        };
        let mut pending = Pending::new(&entry.server, "tools/call", &entry.tool, &arguments);
        pending.line.pin.clone_from(&entry.pin);
        let settings = &self.0.settings;
        let call = Call {
            server: Some(&entry.server),
            tool: &entry.tool,
            arguments: &arguments,
            cwd: Some(self.place(&running, &entry.server)),
        };
        let verdict = settings.policy.decide(&call);
        pending.line.rule.clone_from(&verdict.rule);
        if let Decision::Deny(reason) = &verdict.decision {
            return self.refuse(pending, ToolVerdict::Denied, reason);
        }
        if let Some(kept) = &entry.kept {
            let reason = ToolReason::Quarantined {
                tool: entry.tool.clone(),
                why: kept.text(),
            };
            return self.refuse(pending, ToolVerdict::Denied, &reason);
        }
        // What a server may not ask for, it gets no answers to.
        let may_ask = self.may_ask(&entry.server);
        let (mut pending, state) = self.state(pending, params.request_state.filter(|_| may_ask))?;
        let responses = params.input_responses.filter(|_| may_ask);
        let flow = settings.policy.flow(&entry.server, &entry.tool);
        let needs = settings.policy.needs(&call);
        // A person approves all that the server gets.
        let shown = shown(&arguments, responses.as_ref());
        let (mut asker, mut flow_approved) = (Asker::Call, false);
        if let Some(reason) = self.asks(&entry, &verdict.decision, flow) {
            flow_approved = matches!(reason, ToolReason::FlowAsks { .. });
            let waiting = waiting(&entry, &shown, &reason, &needs);
            if let Err((verdict, reason)) = self.consent(waiting, reason).await {
                return self.refuse(pending, verdict, &reason);
            }
            asker = Asker::Person;
        }
        let Some(upstream) = running.servers.get(&entry.server) else {
            let reason = ToolReason::ServerUnavailable {
                server: entry.server.clone(),
                error: "it was not started".to_owned(),
            };
            return self.refuse(pending, ToolVerdict::Failed, &reason);
        };
        let mut forwarded = CallToolRequestParams::new(entry.tool.clone());
        forwarded.arguments = params.arguments;
        forwarded.input_responses = responses;
        forwarded.request_state = state;
        // Whoever is leased something has the cage alone; the others share it.
        let shared = match needs.is_empty() {
            true => Some(upstream.alone.read().await),
            false => None,
        };
        let alone = match needs.is_empty() {
            true => None,
            false => Some(upstream.alone.write().await),
        };
        // It may have changed while the call waited.
        let same = (running.catalog().find(&name))
            .is_some_and(|now| now.kept.is_none() && now.pin == entry.pin);
        if !same {
            let tool = entry.tool.clone();
            let why = "it changed while the call waited".to_owned();
            let reason = ToolReason::Quarantined { tool, why };
            return self.refuse(pending, ToolVerdict::Denied, &reason);
        }
        let leases = match self.lease(upstream, &entry, &shown, needs, asker).await {
            Ok(leases) => leases,
            Err((verdict, reason)) => return self.refuse(pending, verdict, &reason),
        };
        if let Some(leases) = &leases {
            pending.line.leases = leases.names();
        }
        // Before the call: what it brings counts whatever it answers. And once more whether it needs a person: others may
        // have brought something while it waited.
        let begun = (self.flows()).begin(&entry.server, &entry.tool, flow, flow_approved);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(forwarded));
        let answer = match begun {
            Ok(()) => Ok(self.forward(upstream, request, &context).await),
            Err(reason) => Err(reason),
        };
        if let Some(leases) = leases
            && let Err(reason) = close(leases, &entry.tool).await
        {
            return self.refuse(pending, ToolVerdict::Failed, &reason);
        }
        drop((shared, alone));
        let answer = match answer {
            Ok(answer) => answer,
            Err(reason) => return self.refuse(pending, ToolVerdict::Asked, &reason),
        };
        let limit = settings
            .policy
            .largest_result(&entry.server)
            .unwrap_or(LARGEST);
        let cleaned = match answer {
            Ok(ServerResult::CallToolResult(result)) => self.cleaned(&entry.server, result, limit),
            Ok(ServerResult::InputRequiredResult(result)) => {
                let reason = self.input_refused(&entry.server, &result);
                if let Some(reason) = reason {
                    return self.refuse(pending, ToolVerdict::Denied, &reason);
                }
                return Ok(CallToolResponse::InputRequired(
                    self.input_wanted(pending, result)?,
                ));
            }
            Ok(_) => {
                let server = entry.server.clone();
                let error = "it answered something else".to_owned();
                let reason = ToolReason::ServerUnavailable { server, error };
                return self.refuse(pending, ToolVerdict::Failed, &reason);
            }
            Err(ServiceError::McpError(error)) => {
                self.log(pending, ToolVerdict::Called, None)?;
                return Err(cleaned_error(error));
            }
            Err(error) => {
                let server = entry.server.clone();
                let error = one_line(&error.to_string());
                let reason = ToolReason::ServerUnavailable { server, error };
                return self.refuse(pending, ToolVerdict::Failed, &reason);
            }
        };
        match cleaned {
            Ok((result, bytes)) => {
                pending.line.bytes = bytes;
                self.log(pending, ToolVerdict::Called, None)?;
                Ok(result.into())
            }
            Err(Unclean::TooLarge(bytes)) => {
                pending.line.bytes = bytes;
                let tool = entry.tool.clone();
                let reason = ToolReason::ResultTooLarge { tool, limit };
                self.refuse(pending, ToolVerdict::Failed, &reason)
            }
            Err(Unclean::Json(error)) => {
                let server = entry.server.clone();
                let error = one_line(&error.to_string());
                let reason = ToolReason::ServerUnavailable { server, error };
                self.refuse(pending, ToolVerdict::Failed, &reason)
            }
        }
    }

    /// Where the relative paths of a server begin.
    fn place<'a>(&'a self, running: &'a Running, server: &str) -> &'a std::path::Path {
        let own = running.servers.get(server);
        let own = own.and_then(|upstream| upstream.launch.workspace.as_deref());
        own.unwrap_or(&self.0.settings.workspace)
    }

    /// The result with its text cleaned and without links that the policy does not allow.
    fn cleaned(
        &self,
        server: &str,
        mut result: CallToolResult,
        limit: u64,
    ) -> Result<(CallToolResult, u64), Unclean> {
        result.content.retain(|block| match block {
            rmcp::model::ContentBlock::ResourceLink(link) => {
                let verdict = self.0.settings.policy.resource(server, &link.uri);
                verdict.decision == Decision::Allow
            }
            _ => true,
        });
        clean(result, limit)
    }

    /// Whether a server may ask anything of the client: only then does it get answers.
    pub(super) fn may_ask(&self, server: &str) -> bool {
        let allowed = crate::upstream::Allowed::of(&self.0.settings.policy, server);
        allowed.sampling || allowed.elicitation || allowed.roots
    }

    /// Why the input that a server wants cannot be asked for.
    pub(super) fn input_refused(
        &self,
        server: &str,
        result: &rmcp::model::InputRequiredResult,
    ) -> Option<ToolReason> {
        let allowed = crate::upstream::Allowed::of(&self.0.settings.policy, server);
        let value = serde_json::to_value(result).unwrap_or(Value::Null);
        refused_method(allowed, &value).map(|method| ToolReason::RequestNotAllowed {
            server: server.to_owned(),
            method: one_line(&method),
        })
    }

    /// An `input_required` result to anything but a tool call, where the server may ask for it.
    pub(super) fn input_answer(
        &self,
        pending: Pending,
        result: rmcp::model::InputRequiredResult,
    ) -> Result<rmcp::model::InputRequiredResult, ErrorData> {
        match self.input_refused(&pending.line.server, &result) {
            Some(reason) => {
                self.log(pending, ToolVerdict::Denied, Some(&reason))?;
                Err(error_of(&reason))
            }
            None => self.input_wanted(pending, result),
        }
    }

    /// Passes on what a server wants, with its state signed.
    fn input_wanted(
        &self,
        pending: Pending,
        result: rmcp::model::InputRequiredResult,
    ) -> Result<rmcp::model::InputRequiredResult, ErrorData> {
        let (key, state) = (pending.key(), result.request_state.clone());
        let mut wanted = self.answer(pending, result)?;
        // What the server gave, and not what was left of it after cleaning: nobody reads it but the server.
        wanted.request_state = state.map(|state| self.0.states.sign(&key, &state));
        Ok(wanted)
    }

    /// Logs that a server did not answer, and makes an error of it.
    pub(super) fn failed(&self, pending: Pending, error: ServiceError) -> ErrorData {
        let (shown, text) = match error {
            ServiceError::McpError(error) => {
                let text = one_line(&error.message);
                (Some(cleaned_error(error)), text)
            }
            other => (None, one_line(&other.to_string())),
        };
        let reason = ToolReason::ServerUnavailable {
            server: pending.line.server.clone(),
            error: text.chars().take(500).collect(),
        };
        match self.log(pending, ToolVerdict::Failed, Some(&reason)) {
            Ok(()) => shown.unwrap_or_else(|| error_of(&reason)),
            Err(error) => error,
        }
    }

    /// Sends a request to a server, and to the client what the server sends meanwhile.
    pub(super) async fn forward(
        &self,
        upstream: &Upstream,
        request: ClientRequest,
        context: &RequestContext<RoleServer>,
    ) -> Result<ServerResult, ServiceError> {
        let (sender, mut received) = channel();
        let allowed = crate::upstream::Allowed::of(&self.0.settings.policy, &upstream.name);
        let response = upstream.request(request, sender, allowed.of_client(&context.meta));
        tokio::pin!(response);
        loop {
            // In this task, so that the SDK knows to which request of the client it belongs.
            tokio::select! {
                biased;
                Some(message) = received.recv() => {
                    let passed = pass(message, context);
                    tokio::pin!(passed);
                    tokio::select! {
                        () = &mut passed => {}
                        result = &mut response => return result.map(completed),
                    }
                }
                result = &mut response => {
                    // What came before the result is passed on before it.
                    while let Ok(message) = received.try_recv() {
                        pass(message, context).await;
                    }
                    return result.map(completed);
                }
                () = context.ct.cancelled() => {
                    return Err(ServiceError::Cancelled { reason: None });
                }
            }
        }
    }

    /// An answer to anything but a tool call, cleaned and bounded.
    pub(super) fn answer<T: Serialize + DeserializeOwned>(
        &self,
        mut pending: Pending,
        answer: T,
    ) -> Result<T, ErrorData> {
        let server = pending.line.server.clone();
        let limit = self
            .0
            .settings
            .policy
            .largest_result(&server)
            .unwrap_or(LARGEST);
        let (answer, bytes) = match clean(answer, limit) {
            Ok(cleaned) => cleaned,
            Err(Unclean::TooLarge(bytes)) => {
                pending.line.bytes = bytes;
                let tool = one_line(&pending.line.name);
                let reason = ToolReason::ResultTooLarge { tool, limit };
                self.log(pending, ToolVerdict::Failed, Some(&reason))?;
                return Err(error_of(&reason));
            }
            Err(Unclean::Json(error)) => {
                let error = one_line(&error.to_string());
                let reason = ToolReason::ServerUnavailable { server, error };
                self.log(pending, ToolVerdict::Failed, Some(&reason))?;
                return Err(error_of(&reason));
            }
        };
        pending.line.bytes = bytes;
        self.log(pending, ToolVerdict::Called, None)?;
        Ok(answer)
    }
}

/// A result as clients of the later era expect it, also where the server speaks an earlier one. The SDK leaves the type out for
/// clients of earlier eras.
fn completed(mut result: ServerResult) -> ServerResult {
    let kind = match &mut result {
        ServerResult::CallToolResult(result) => &mut result.result_type,
        ServerResult::ReadResourceResult(result) => &mut result.result_type,
        ServerResult::GetPromptResult(result) => &mut result.result_type,
        ServerResult::CompleteResult(result) => &mut result.result_type,
        _ => return result,
    };
    kind.get_or_insert(ResultType::COMPLETE);
    result
}

/// The arguments as a person reads them, with the input that comes with them.
fn shown(arguments: &Value, responses: Option<&rmcp::model::InputResponses>) -> Value {
    match responses {
        Some(responses) if !responses.is_empty() => {
            json!({"arguments": arguments, "inputResponses": responses})
        }
        _ => arguments.clone(),
    }
}

/// A refusal as an error of the protocol.
pub(super) fn error_of(reason: &ToolReason) -> ErrorData {
    let data = json!({"code": reason.code(), "reason": reason.to_string()});
    ErrorData::new(ErrorCode::INVALID_PARAMS, reason.to_string(), Some(data))
}

/// Largest error and largest log message of a server that are passed on.
const LARGEST_NOTE: u64 = 64 << 10;

pub(super) fn cleaned_error(error: ErrorData) -> ErrorData {
    let code = error.code;
    clean(error, LARGEST_NOTE).map_or_else(
        |_| ErrorData::new(code, "the error of the server cannot be passed on", None),
        |(error, _)| error,
    )
}

/// The first method in an `input_required` result that the server may not use.
fn refused_method(allowed: crate::upstream::Allowed, result: &Value) -> Option<String> {
    let requests = result.get("inputRequests")?.as_object()?;
    requests.values().find_map(|request| {
        let method = request.get("method").and_then(Value::as_str);
        let method = method.unwrap_or_default();
        let may = match method {
            "sampling/createMessage" => allowed.sampling,
            "elicitation/create" => allowed.elicitation,
            "roots/list" => allowed.roots,
            _ => false,
        };
        (!may).then(|| method.to_owned())
    })
}

/// Passes on what a server sent while it worked on a request.
async fn pass(message: FromServer, context: &RequestContext<RoleServer>) {
    let peer = &context.peer;
    let failed = |error: ServiceError| ErrorData::internal_error(error.to_string(), None);
    match message {
        FromServer::Progress(mut params) => {
            // Only a client that gave a token is told, and by its own.
            if let Some(token) = context.meta.get_progress_token() {
                params.progress_token = token;
                params.message = params.message.map(|text| {
                    let text = ironcage_tools::printable(&text);
                    text.chars().take(4096).collect()
                });
                let _ = peer.notify_progress(params).await;
            }
        }
        FromServer::Log(params) => {
            if let Ok((params, _)) = clean(params, LARGEST_NOTE) {
                let _ = peer.notify_logging_message(params).await;
            }
        }
        FromServer::Sample(params, answer) => {
            let result = match clean(*params, LARGEST) {
                Ok((params, _)) => peer.create_message(params).await.map_err(failed),
                Err(error) => Err(ErrorData::internal_error(error.to_string(), None)),
            };
            let _ = answer.send(result);
        }
        FromServer::Elicit(params, answer) => {
            let result = match clean(*params, LARGEST) {
                Ok((params, _)) => peer.create_elicitation(params).await.map_err(failed),
                Err(error) => Err(ErrorData::internal_error(error.to_string(), None)),
            };
            let _ = answer.send(result);
        }
        FromServer::Roots(answer) => {
            let _ = answer.send(peer.list_roots().await.map_err(failed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Allowed;

    #[test]
    fn input_is_asked_for_only_where_the_server_may_ask() {
        let wants = |method: &str| json!({"inputRequests": {"a": {"method": method}}});
        let allowed = Allowed {
            sampling: false,
            elicitation: true,
            roots: false,
        };
        assert_eq!(refused_method(allowed, &wants("elicitation/create")), None);
        for method in ["sampling/createMessage", "roots/list", "other"] {
            let refused = refused_method(allowed, &wants(method));
            assert_eq!(refused.as_deref(), Some(method));
        }
    }

    #[test]
    fn an_error_of_a_server_is_cleaned_and_bounded() {
        let error = |text: String| ErrorData::internal_error(text, None);
        assert_eq!(cleaned_error(error("a\u{1b}[2Jb".into())).message, "ab");
        let long = cleaned_error(error("x".repeat(1 << 20)));
        assert!(long.message.len() < 100, "{}", long.message.len());
    }
}
