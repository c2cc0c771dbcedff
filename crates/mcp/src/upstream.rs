//! One server in its cage, and what it asks of the client.

use crate::error::{McpError, ServerStartError};
use crate::lines::{Lines, echo};
use crate::settings::Settings;
use crate::{launch, pins};
use ironcage_tools::{McpServer, ServerRules};
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientRequest, CreateMessageRequestParams,
    CreateMessageResult, ElicitRequestParams, ElicitResult, ErrorCode, ErrorData, Implementation,
    ListRootsResult, LoggingMessageNotificationParam, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, Prompt, ProtocolVersion, RequestMetaObject, Resource,
    ResourceTemplate, ResourceUpdatedNotificationParam, ServerResult, Tool,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, PeerRequestOptions, RequestContext,
    RoleClient, RunningService,
};
use rmcp::{ClientHandler, Peer, ServiceError};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::BufReader;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};

/// How long a server may take until it answers for the first time. Package runners download then.
const START: Duration = Duration::from_secs(120);
/// How long a server may take to end after its input did.
const END: Duration = Duration::from_secs(3);
/// How long a server may take to tell one of its lists.
const LIST: Duration = Duration::from_secs(60);
/// Most pages of one list.
const MOST_PAGES: usize = 100;
/// Most tools of one server, as of its resources and prompts.
const MOST_TOOLS: usize = 2000;
/// Most messages of a server that wait for the client.
const MOST_WAITING: usize = 1024;

/// What a peer speaks: `initialize` first, or every request for itself (2026-07-28).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Handshake,
    Stateless,
}

impl Era {
    /// Tells apart the cages of one server for both.
    pub(crate) const fn letter(self) -> char {
        match self {
            Era::Handshake => 'a',
            Era::Stateless => 'b',
        }
    }

    pub(crate) fn of(version: Option<&ProtocolVersion>) -> Self {
        match version {
            Some(version) if !version.has_initialize() => Era::Stateless,
            _ => Era::Handshake,
        }
    }
}

/// What a server sends while it works on a request.
#[derive(Debug)]
pub(crate) enum FromServer {
    Progress(ProgressNotificationParam),
    Log(LoggingMessageNotificationParam),
    Sample(
        Box<CreateMessageRequestParams>,
        oneshot::Sender<Result<CreateMessageResult, ErrorData>>,
    ),
    Elicit(
        Box<ElicitRequestParams>,
        oneshot::Sender<Result<ElicitResult, ErrorData>>,
    ),
    Roots(oneshot::Sender<Result<ListRootsResult, ErrorData>>),
}

/// What happened beside any request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Tools,
    Resources,
    Prompts,
    Updated(ResourceUpdatedNotificationParam),
}

/// A request that the server works on.
#[derive(Debug)]
struct Active {
    number: u64,
    token: Option<ProgressToken>,
    sender: mpsc::Sender<FromServer>,
}

#[derive(Debug, Default)]
struct Requests {
    next: u64,
    active: Vec<Active>,
}

/// The side of a server that its cage talks to.
pub(crate) struct FromCage {
    name: String,
    rules: Allowed,
    requests: Mutex<Requests>,
    changes: mpsc::Sender<(String, Change)>,
    refused: mpsc::Sender<(String, &'static str)>,
}

/// What the server may ask of the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    pub(crate) sampling: bool,
    pub(crate) elicitation: bool,
    pub(crate) roots: bool,
}

impl Allowed {
    pub(crate) fn of(policy: &ironcage_tools::ToolPolicy, server: &str) -> Self {
        let may = |what: fn(&ServerRules) -> Option<bool>| policy.may(server, what);
        Allowed {
            sampling: may(|rules| rules.sampling),
            elicitation: may(|rules| rules.elicitation),
            roots: may(|rules| rules.roots),
        }
    }
}

impl Allowed {
    /// What a client says of itself with a request of the later era, as far as the server may know it.
    pub(crate) fn of_client(self, meta: &RequestMetaObject) -> Option<RequestMetaObject> {
        let theirs = meta.client_capabilities()?;
        let mut capabilities = ClientCapabilities::default();
        capabilities.sampling = theirs.sampling.filter(|_| self.sampling);
        capabilities.elicitation = theirs.elicitation.filter(|_| self.elicitation);
        capabilities.roots = theirs.roots.filter(|_| self.roots);
        let mut passed = RequestMetaObject::new();
        passed.set_client_capabilities(capabilities);
        if let Some(level) = meta.log_level() {
            passed.set_log_level(level);
        }
        Some(passed)
    }
}

impl FromCage {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Passes something on to the client whose request it belongs to. Where several requests are
    /// worked on and nothing says which, the last is meant.
    fn pass(&self, token: Option<&ProgressToken>, message: FromServer) -> bool {
        let requests = self.requests();
        let by_token = |active: &&Active| token.is_some() && active.token.as_ref() == token;
        let found = requests.active.iter().find(by_token);
        let found = match token {
            Some(_) => found,
            None => requests.active.last(),
        };
        found.is_some_and(|active| active.sender.try_send(message).is_ok())
    }

    async fn ask<T>(
        &self,
        allowed: bool,
        method: &'static str,
        message: impl FnOnce(oneshot::Sender<Result<T, ErrorData>>) -> FromServer,
    ) -> Result<T, ErrorData> {
        if !allowed {
            let _ = self.refused.try_send((self.name.clone(), method));
            let reason = ironcage_model::ToolReason::RequestNotAllowed {
                server: self.name.clone(),
                method: method.to_owned(),
            };
            let data = json!({"code": reason.code(), "reason": reason.to_string()});
            return Err(ErrorData::new(
                ErrorCode::METHOD_NOT_FOUND,
                reason.to_string(),
                Some(data),
            ));
        }
        let (sender, receiver) = oneshot::channel();
        let none = || ErrorData::new(ErrorCode::INVALID_REQUEST, "no client waits", None);
        if !self.pass(None, message(sender)) {
            return Err(none());
        }
        receiver.await.map_err(|_| none())?
    }

    async fn changed(&self, change: Change) {
        let _ = self.changes.send((self.name.clone(), change)).await;
    }
}

impl ClientHandler for FromCage {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if self.rules.sampling {
            capabilities.sampling = Some(Default::default());
        }
        if self.rules.elicitation {
            capabilities.elicitation = Some(Default::default());
        }
        if self.rules.roots {
            capabilities.roots = Some(Default::default());
        }
        let own = Implementation::new("ironcage-mcp-gateway", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(capabilities, own)
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let allowed = self.rules.sampling;
        let wrap = |sender| FromServer::Sample(Box::new(params), sender);
        self.ask(allowed, "sampling/createMessage", wrap).await
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let allowed = self.rules.elicitation;
        let wrap = |sender| FromServer::Elicit(Box::new(params), sender);
        self.ask(allowed, "elicitation/create", wrap).await
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        self.ask(self.rules.roots, "roots/list", FromServer::Roots)
            .await
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let token = params.progress_token.clone();
        self.pass(Some(&token), FromServer::Progress(params));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.pass(None, FromServer::Log(params));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed(Change::Tools).await;
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed(Change::Resources).await;
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed(Change::Prompts).await;
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.changed(Change::Updated(params)).await;
    }
}

/// Where a server reports what nobody asked for.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    pub(crate) changes: mpsc::Sender<(String, Change)>,
    pub(crate) refused: mpsc::Sender<(String, &'static str)>,
}

/// A running server.
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) launch: McpServer,
    /// The name of its cage, where calls are leased something.
    pub(crate) cage: Option<String>,
    /// A call with a lease has the cage alone: no other call can use what is open for it.
    pub(crate) alone: tokio::sync::RwLock<()>,
    service: RunningService<RoleClient, FromCage>,
    /// `ironcage run`, killed when this is dropped.
    child: tokio::sync::Mutex<Option<Child>>,
}

impl Upstream {
    /// Starts a server in its cage, and talks to it as the client does to the gateway.
    pub(crate) async fn start(
        settings: &Settings,
        name: &str,
        launch: McpServer,
        era: Era,
        reports: Reports,
        cage: Option<String>,
    ) -> Result<Arc<Self>, McpError> {
        let failed = |cause: ServerStartError| McpError::Start {
            server: name.to_owned(),
            cause,
        };
        let mut command = launch::command(settings, &launch, cage.as_deref())?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .map_err(|error| failed(ServerStartError::Spawn(error)))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed(ServerStartError::NoStreams));
        };
        tokio::spawn(echo(name.to_owned(), BufReader::new(stderr)));
        let handler = FromCage {
            name: name.to_owned(),
            rules: Allowed::of(&settings.policy, name),
            requests: Mutex::default(),
            changes: reports.changes,
            refused: reports.refused,
        };
        let lifecycle = match era {
            Era::Handshake => ClientLifecycleMode::Initialize,
            Era::Stateless => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: None,
            },
        };
        let started = handler.serve_with_lifecycle(Lines::of_server(stdout, stdin), lifecycle);
        let service = tokio::time::timeout(START, started)
            .await
            .map_err(|_| failed(ServerStartError::Timeout(START)))?
            .map_err(|error| failed(ServerStartError::Handshake(Box::new(error))))?;
        Ok(Arc::new(Upstream {
            name: name.to_owned(),
            launch,
            cage,
            alone: tokio::sync::RwLock::default(),
            service,
            child: tokio::sync::Mutex::new(Some(child)),
        }))
    }

    /// Closes the connection and waits until the cage has ended.
    pub(crate) async fn stop(&self) {
        self.service.cancellation_token().cancel();
        let Some(mut child) = self.child.lock().await.take() else {
            return;
        };
        // A server that goes on is killed with its cage.
        let _ = tokio::time::timeout(END, child.wait()).await;
    }

    pub(crate) fn peer(&self) -> &Peer<RoleClient> {
        self.service.peer()
    }

    /// What the server says of itself, for its pin.
    pub(crate) async fn describe(&self) -> Result<(pins::ServerPin, Vec<Tool>), ServiceError> {
        let info = self.peer().peer_info();
        let has_tools = info
            .as_ref()
            .is_none_or(|info| info.capabilities.tools.is_some());
        let tools = match has_tools {
            true => {
                let peer = self.peer();
                pages(|page| async move {
                    let found = peer.list_tools(page).await?;
                    Ok((found.tools, found.next_cursor))
                })
                .await?
            }
            false => Vec::new(),
        };
        let pinned = tools
            .iter()
            .map(|tool| (tool.name.to_string(), pins::ToolPin::of(tool)))
            .collect::<BTreeMap<_, _>>();
        let pin = pins::ServerPin {
            launch: launch::fingerprint(&self.launch),
            instructions: info.and_then(|info| info.instructions.clone()),
            tools: pinned,
        };
        Ok((pin, tools))
    }

    pub(crate) async fn resources(&self) -> Result<Vec<Resource>, ServiceError> {
        let peer = self.peer();
        pages(|page| async move {
            let found = peer.list_resources(page).await?;
            Ok((found.resources, found.next_cursor))
        })
        .await
    }

    pub(crate) async fn resource_templates(&self) -> Result<Vec<ResourceTemplate>, ServiceError> {
        let peer = self.peer();
        pages(|page| async move {
            let found = peer.list_resource_templates(page).await?;
            Ok((found.resource_templates, found.next_cursor))
        })
        .await
    }

    pub(crate) async fn prompts(&self) -> Result<Vec<Prompt>, ServiceError> {
        let peer = self.peer();
        pages(|page| async move {
            let found = peer.list_prompts(page).await?;
            Ok((found.prompts, found.next_cursor))
        })
        .await
    }

    /// Sends a request; what the server sends meanwhile goes to `sender`. A request that is dropped
    /// is cancelled.
    pub(crate) async fn request(
        &self,
        request: ClientRequest,
        sender: mpsc::Sender<FromServer>,
        meta: Option<RequestMetaObject>,
    ) -> Result<ServerResult, ServiceError> {
        let number = {
            let mut requests = self.service.service().requests();
            requests.next += 1;
            let number = requests.next;
            requests.active.push(Active {
                number,
                token: None,
                sender,
            });
            number
        };
        let _active = ActiveGuard(self, number);
        let mut options = PeerRequestOptions::no_options();
        options.meta = meta;
        let handle = self
            .peer()
            .send_request_with_option(request, options)
            .await?;
        {
            let mut requests = self.service.service().requests();
            let mut all = requests.active.iter_mut();
            if let Some(active) = all.find(|active| active.number == number) {
                active.token = Some(handle.progress_token.clone());
            }
        }
        let mut cancel = CancelGuard {
            peer: Some(self.peer().clone()),
            id: handle.id.clone(),
        };
        let result = handle.await_response().await;
        cancel.peer = None;
        result
    }
}

/// Every page of a list, up to a number of pages and of elements, and for a while: a server cannot
/// keep the gateway by a list without end.
async fn pages<T, F>(
    page: impl Fn(Option<PaginatedRequestParams>) -> F,
) -> Result<Vec<T>, ServiceError>
where
    F: Future<Output = Result<(Vec<T>, Option<String>), ServiceError>>,
{
    let all = async {
        let mut found = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let params = cursor.take().map(|cursor| {
                let mut params = PaginatedRequestParams::default();
                params.cursor = Some(cursor);
                params
            });
            let (more, next) = page(params).await?;
            found.extend(more);
            if next.is_none() || found.len() >= MOST_TOOLS {
                break;
            }
            cursor = next;
        }
        found.truncate(MOST_TOOLS);
        Ok(found)
    };
    let ended = tokio::time::timeout(LIST, all).await;
    ended.unwrap_or(Err(ServiceError::Timeout { timeout: LIST }))
}

/// Most messages that one request may have waiting.
pub(crate) fn channel() -> (mpsc::Sender<FromServer>, mpsc::Receiver<FromServer>) {
    mpsc::channel(MOST_WAITING)
}

struct ActiveGuard<'a>(&'a Upstream, u64);

impl Drop for ActiveGuard<'_> {
    fn drop(&mut self) {
        let mut requests = self.0.service.service().requests();
        requests.active.retain(|active| active.number != self.1);
    }
}

struct CancelGuard {
    peer: Option<Peer<RoleClient>>,
    id: rmcp::model::RequestId,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.take() {
            let id = self.id.clone();
            tokio::spawn(async move {
                let params = rmcp::model::CancelledNotificationParam::new(Some(id), None);
                let _ = peer.notify_cancelled(params).await;
            });
        }
    }
}
