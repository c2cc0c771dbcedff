//! The methods of MCP, as the gateway answers them.

use super::calls::{Pending, error_of};
use super::{Gateway, Running};
use crate::upstream::{Era, Upstream};
use ironcage_model::{ToolReason, ToolVerdict};
use ironcage_tools::{Decision, Verdict};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientRequest, CompleteRequest, CompleteRequestParams,
    CompleteResult, DiscoverResult, GetPromptRequest, GetPromptRequestParams, GetPromptResponse,
    InitializeRequestParams, InitializeResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequest,
    ReadResourceRequestParams, ReadResourceResponse, Reference, ServerConfig, ServerResult,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{
    NotificationContext, RequestContext, RoleServer, ServiceError, SubscriptionContext,
};
use rmcp::{ErrorData, ServerHandler};
use serde_json::Value;
use std::sync::Arc;

impl Gateway {
    async fn of(&self, context: &RequestContext<RoleServer>) -> Arc<Running> {
        self.running(Era::of(context.protocol_version().as_ref()))
            .await
    }

    /// The server whose prompt this is, and the name that it knows.
    fn prompt_owner<'a>(
        &self,
        running: &'a Running,
        name: &str,
    ) -> Option<(&'a Arc<Upstream>, String)> {
        if self.0.single {
            let upstream = running.servers.values().next()?;
            return Some((upstream, name.to_owned()));
        }
        let (server, prompt) = name.split_once("__")?;
        Some((running.servers.get(server)?, prompt.to_owned()))
    }

    /// The only server whose resource this can be by the policy.
    fn resource_owner<'a>(
        &self,
        running: &'a Running,
        uri: &str,
    ) -> Result<(&'a Arc<Upstream>, Verdict), ToolReason> {
        let policy = &self.0.settings.policy;
        let mut found = running.servers.values().filter_map(|upstream| {
            let verdict = policy.resource(&upstream.name, uri);
            (verdict.decision == Decision::Allow).then_some((upstream, verdict))
        });
        let first = found.next();
        match (first, found.next()) {
            (Some(owner), None) => Ok(owner),
            (Some((one, _)), Some((other, _))) => Err(ToolReason::ResourceNotAllowed {
                server: format!("{} and {}, which both claim it", one.name, other.name),
                uri: ironcage_tools::printable(uri),
            }),
            _ => Err(ToolReason::ResourceNotAllowed {
                server: running
                    .servers
                    .keys()
                    .cloned()
                    .collect::<Vec<_>>()
                    .join(", "),
                uri: ironcage_tools::printable(uri),
            }),
        }
    }

    /// Logs that a server did not do what belongs to no call, and makes an error of it.
    fn not_listed(&self, server: &str, method: &str, error: ServiceError) -> ErrorData {
        self.failed(Pending::new(server, method, "", &Value::Null), error)
    }

    /// Marks what a resource or a prompt brings. One through which data could leave is refused: nobody is asked here.
    fn brings(&self, server: &str, method: &str, name: &str) -> Result<(), ErrorData> {
        let flow = self.0.settings.policy.flow(server, method);
        let begun = self.flows().begin(server, method, flow, false);
        begun.map_err(|reason| self.denied(server, method, name, &reason))
    }

    /// Logs a refusal and makes an error of it.
    fn denied(&self, server: &str, method: &str, name: &str, reason: &ToolReason) -> ErrorData {
        let pending = Pending::new(server, method, name, &Value::Null);
        match self.log(pending, ToolVerdict::Denied, Some(reason)) {
            Ok(()) => error_of(reason),
            Err(error) => error,
        }
    }
}

impl crate::http::HttpServer for Gateway {
    async fn knows_its_tools(&self) {
        self.running(Era::Stateless).await;
    }
}

impl ServerHandler for Gateway {
    fn get_info(&self) -> ServerConfig {
        let running = self.0.handshake.get().or(self.0.stateless.get());
        self.config(running.map(|running| &**running))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        // What the gateway says of itself depends on its servers.
        self.running(Era::Handshake).await;
        self.negotiate_initialize(&request)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let running = self.running(Era::Handshake).await;
        running.clients.lock().await.push(context.peer);
    }

    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let running = self.running(Era::Stateless).await;
        Ok(DiscoverResult::from_server_info(
            self.supported_protocol_versions().into_owned(),
            self.config(Some(&running)),
        ))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let running = self.of(&context).await;
        let tools = running.catalog().shown(&self.0.settings);
        Ok(ListToolsResult::with_all_items(tools))
    }

    /// For headers that repeat an argument. Every request waits until the servers run (`http`), so the tool is known.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        let running = self.0.stateless.get()?;
        running
            .catalog()
            .find(name)
            .map(|entry| entry.shown.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.call(request, context).await
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let running = self.of(&context).await;
        let mut all = Vec::new();
        for (name, upstream) in &running.servers {
            let info = upstream.peer().peer_info();
            if info.is_none_or(|info| info.capabilities.resources.is_none()) {
                continue;
            }
            let found = upstream.resources().await;
            let found = found.map_err(|error| self.not_listed(name, "resources/list", error))?;
            let allowed = found.into_iter().filter(|resource| {
                let verdict = self.0.settings.policy.resource(name, &resource.uri);
                verdict.decision == Decision::Allow
            });
            all.extend(allowed);
        }
        let pending = Pending::new("", "resources/list", "", &Value::Null);
        self.answer(pending, ListResourcesResult::with_all_items(all))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let running = self.of(&context).await;
        let mut all = Vec::new();
        for (name, upstream) in &running.servers {
            let info = upstream.peer().peer_info();
            if info.is_none_or(|info| info.capabilities.resources.is_none()) {
                continue;
            }
            let method = "resources/templates/list";
            let found = upstream.resource_templates().await;
            let found = found.map_err(|error| self.not_listed(name, method, error))?;
            // A template is shown where the policy could allow what it makes.
            let allowed = found.into_iter().filter(|template| {
                let fixed = template.uri_template.split('{').next().unwrap_or_default();
                let policy = &self.0.settings.policy;
                let rules = policy.rules.servers.get(name);
                let patterns = rules.and_then(|rules| rules.resources.resources.as_deref());
                patterns.unwrap_or_default().iter().any(|pattern| {
                    let start = pattern.as_str().split('*').next().unwrap_or_default();
                    start.starts_with(fixed) || fixed.starts_with(start)
                })
            });
            all.extend(allowed);
        }
        let pending = Pending::new("", "resources/templates/list", "", &Value::Null);
        self.answer(pending, ListResourceTemplatesResult::with_all_items(all))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let method = "resources/read";
        let running = self.of(&context).await;
        let uri = request.uri.clone();
        let (upstream, verdict) = match self.resource_owner(&running, &uri) {
            Ok(found) => found,
            Err(reason) => return Err(self.denied("", method, &uri, &reason)),
        };
        let mut pending = Pending::new(&upstream.name, method, &uri, &Value::Null);
        pending.line.rule = verdict.rule;
        let mut params = ReadResourceRequestParams::new(uri);
        if self.may_ask(&upstream.name) {
            params.input_responses = request.input_responses;
            (pending, params.request_state) = self.state(pending, request.request_state)?;
        }
        // Not beside a call that has leases: the server could use them for this.
        let _shared = upstream.alone.read().await;
        self.brings(&upstream.name, method, &pending.line.name.clone())?;
        let request = ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params));
        let answer = match self.forward(upstream, request, &context).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.failed(pending, error)),
        };
        match answer {
            ServerResult::ReadResourceResult(result) => Ok(ReadResourceResponse::Complete(
                self.answer(pending, result)?,
            )),
            ServerResult::InputRequiredResult(result) => Ok(ReadResourceResponse::InputRequired(
                self.input_answer(pending, result)?,
            )),
            _ => Err(self.failed(pending, ServiceError::UnexpectedResponse)),
        }
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let running = self.of(&context).await;
        let mut all = Vec::new();
        for (name, upstream) in &running.servers {
            let info = upstream.peer().peer_info();
            if info.is_none_or(|info| info.capabilities.prompts.is_none()) {
                continue;
            }
            let found = upstream.prompts().await;
            let found = found.map_err(|error| self.not_listed(name, "prompts/list", error))?;
            for mut prompt in found {
                let verdict = self.0.settings.policy.prompt(name, &prompt.name);
                if verdict.decision != Decision::Allow {
                    continue;
                }
                if !self.0.single {
                    prompt.name = format!("{name}__{}", prompt.name);
                }
                all.push(prompt);
            }
        }
        let pending = Pending::new("", "prompts/list", "", &Value::Null);
        self.answer(pending, ListPromptsResult::with_all_items(all))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let method = "prompts/get";
        let running = self.of(&context).await;
        let Some((upstream, prompt)) = self.prompt_owner(&running, &request.name) else {
            let reason = ToolReason::PromptNotAllowed {
                server: String::new(),
                prompt: ironcage_tools::printable(&request.name),
            };
            return Err(self.denied("", method, &request.name, &reason));
        };
        let verdict = self.0.settings.policy.prompt(&upstream.name, &prompt);
        if let Decision::Deny(reason) = &verdict.decision {
            return Err(self.denied(&upstream.name, method, &prompt, reason));
        }
        let arguments = request.arguments.clone().map_or(Value::Null, Value::Object);
        let mut pending = Pending::new(&upstream.name, method, &prompt, &arguments);
        pending.line.rule = verdict.rule;
        let mut params = GetPromptRequestParams::new(prompt);
        params.arguments = request.arguments;
        if self.may_ask(&upstream.name) {
            params.input_responses = request.input_responses;
            (pending, params.request_state) = self.state(pending, request.request_state)?;
        }
        // Not beside a call that has leases: the server could use them for this.
        let _shared = upstream.alone.read().await;
        self.brings(&upstream.name, method, &pending.line.name.clone())?;
        let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
        let answer = match self.forward(upstream, request, &context).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.failed(pending, error)),
        };
        match answer {
            ServerResult::GetPromptResult(result) => {
                Ok(GetPromptResponse::Complete(self.answer(pending, result)?))
            }
            ServerResult::InputRequiredResult(result) => Ok(GetPromptResponse::InputRequired(
                self.input_answer(pending, result)?,
            )),
            _ => Err(self.failed(pending, ServiceError::UnexpectedResponse)),
        }
    }

    async fn complete(
        &self,
        mut request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let method = "completion/complete";
        let running = self.of(&context).await;
        let (upstream, name) = match &mut request.r#ref {
            Reference::Prompt(prompt) => {
                let found = self.prompt_owner(&running, &prompt.name);
                let allowed = found.filter(|(upstream, name)| {
                    let verdict = self.0.settings.policy.prompt(&upstream.name, name);
                    verdict.decision == Decision::Allow
                });
                let Some((upstream, name)) = allowed else {
                    let reason = ToolReason::PromptNotAllowed {
                        server: String::new(),
                        prompt: ironcage_tools::printable(&prompt.name),
                    };
                    return Err(self.denied("", method, &prompt.name, &reason));
                };
                prompt.name.clone_from(&name);
                (upstream, name)
            }
            Reference::Resource(template) => match self.resource_owner(&running, &template.uri) {
                Ok((upstream, _)) => (upstream, template.uri.clone()),
                Err(reason) => return Err(self.denied("", method, &template.uri, &reason)),
            },
            _ => {
                let pending = Pending::new("", method, "", &Value::Null);
                self.log(pending, ToolVerdict::Denied, None)?;
                return Err(ErrorData::invalid_params("unknown reference", None));
            }
        };
        request.meta = None;
        let arguments = serde_json::to_value(&request).unwrap_or(Value::Null);
        let pending = Pending::new(&upstream.name, method, &name, &arguments);
        let _shared = upstream.alone.read().await;
        self.brings(&upstream.name, method, &name)?;
        let request = ClientRequest::CompleteRequest(CompleteRequest::new(request));
        let answer = match self.forward(upstream, request, &context).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.failed(pending, error)),
        };
        match answer {
            ServerResult::CompleteResult(result) => self.answer(pending, result),
            _ => Err(self.failed(pending, ServiceError::UnexpectedResponse)),
        }
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let running = self.of(&context).await;
        for upstream in running.servers.values() {
            let info = upstream.peer().peer_info();
            if info.is_some_and(|info| info.capabilities.logging.is_some()) {
                let params = SetLevelRequestParams::new(request.level);
                let set = upstream.peer().set_level(params).await;
                set.map_err(|error| self.not_listed(&upstream.name, "logging/setLevel", error))?;
            }
        }
        Ok(())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let method = "resources/subscribe";
        let running = self.of(&context).await;
        let uri = request.uri;
        let upstream = match self.resource_owner(&running, &uri) {
            Ok((upstream, _)) => upstream,
            Err(reason) => return Err(self.denied("", method, &uri, &reason)),
        };
        let pending = Pending::new(&upstream.name, method, &uri, &Value::Null);
        let _shared = upstream.alone.read().await;
        self.brings(&upstream.name, method, &uri)?;
        match upstream
            .peer()
            .subscribe(SubscribeRequestParams::new(uri))
            .await
        {
            Ok(()) => self.log(pending, ToolVerdict::Called, None),
            Err(error) => Err(self.failed(pending, error)),
        }
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let method = "resources/unsubscribe";
        let running = self.of(&context).await;
        let uri = request.uri;
        let upstream = match self.resource_owner(&running, &uri) {
            Ok((upstream, _)) => upstream,
            Err(reason) => return Err(self.denied("", method, &uri, &reason)),
        };
        let pending = Pending::new(&upstream.name, method, &uri, &Value::Null);
        let _shared = upstream.alone.read().await;
        self.brings(&upstream.name, method, &uri)?;
        match upstream
            .peer()
            .unsubscribe(UnsubscribeRequestParams::new(uri))
            .await
        {
            Ok(()) => self.log(pending, ToolVerdict::Called, None),
            Err(error) => Err(self.failed(pending, error)),
        }
    }

    /// Changes of lists are told; updates of resources are not, in this era.
    fn accepted_subscription_filter(
        &self,
        asked: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let mut accepted = asked.clone();
        accepted.resource_subscriptions = None;
        Some(accepted)
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let running = self.running(Era::Stateless).await;
        let sink = subscription.sink().clone();
        running.subscriptions.lock().await.push(sink);
        subscription.cancelled().await;
        Ok(())
    }
}
