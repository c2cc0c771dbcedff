//! The gateway: one MCP server for the client, many servers behind it.

mod admission;
mod calls;
mod handler;
mod input;

use crate::audit::Audit;
use crate::catalog::{Catalog, Described};
use crate::error::McpError;
use crate::lines::Lines;
use crate::pins::Lock;
use crate::settings::Settings;
use crate::upstream::{Change, Era, Reports, Upstream};
use crate::{http, launch};
use ironcage_client::WaitingCalls;
use ironcage_command::mcp::Gateway as Args;
use ironcage_model::{ToolCall, ToolReason, ToolVerdict};
use rmcp::ServiceExt;
use rmcp::model::{
    Implementation, PromptsCapability, ResourcesCapability, ServerCapabilities, ServerConfig,
    ToolsCapability,
};
use rmcp::service::{Peer, RoleServer, SubscriptionSendError, SubscriptionSink};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell, mpsc};

/// Most refused requests of one server that are logged.
const MOST_REFUSED: u32 = 64;

/// The servers for clients of one era.
pub(crate) struct Running {
    pub(crate) servers: BTreeMap<String, Arc<Upstream>>,
    catalog: RwLock<Catalog>,
    /// Clients that are told of changes.
    pub(crate) clients: Mutex<Vec<Peer<RoleServer>>>,
    /// Clients of the later era that asked to be told of some.
    pub(crate) subscriptions: Mutex<Vec<SubscriptionSink>>,
    changes: Mutex<Option<mpsc::Receiver<(String, Change)>>>,
    /// Servers that are started differently than when a person approved them: kept back, unstarted.
    changed: Vec<Described>,
}

impl Running {
    pub(crate) fn catalog(&self) -> RwLockReadGuard<'_, Catalog> {
        let catalog = self.catalog.read();
        catalog.unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn catalog_mut(&self) -> RwLockWriteGuard<'_, Catalog> {
        let catalog = self.catalog.write();
        catalog.unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// What all sessions of a gateway have in common.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) audit: Audit,
    pub(crate) approvals: WaitingCalls,
    pub(crate) wait: Duration,
    /// What the calls of all clients have brought: a gateway stands for one agent.
    pub(crate) flows: std::sync::Mutex<ironcage_tools::Flows>,
    states: input::StateSigner,
    /// The only server, under its own names.
    pub(crate) single: bool,
    servers: BTreeMap<String, ironcage_tools::McpServer>,
    handshake: OnceCell<Arc<Running>>,
    stateless: OnceCell<Arc<Running>>,
}

/// The side of a client.
#[derive(Clone)]
pub(crate) struct Gateway(pub(crate) Arc<Shared>);

impl Gateway {
    fn new(settings: Settings, args: &Args) -> Result<Self, McpError> {
        let mut servers = BTreeMap::new();
        match &args.server {
            Some(name) => {
                let server = launch::server(&settings, name, &args.env, &args.command)?;
                servers.insert(name.clone(), server);
            }
            None => {
                for name in settings.policy.servers.keys() {
                    let server = launch::server(&settings, name, &[], &[])?;
                    servers.insert(name.clone(), server);
                }
            }
        }
        if servers.is_empty() {
            return Err(McpError::NoServers);
        }
        let command = std::env::args().skip_while(|word| word != "mcp");
        let audit = Audit::create(&settings, command.collect())?;
        Ok(Gateway(Arc::new(Shared {
            approvals: settings.calls()?,
            settings,
            audit,
            wait: Duration::from_secs(args.wait),
            flows: std::sync::Mutex::default(),
            states: input::StateSigner::new()?,
            single: args.server.is_some(),
            servers,
            handshake: OnceCell::new(),
            stateless: OnceCell::new(),
        })))
    }

    /// The servers for clients of an era, started with the first of them.
    pub(crate) async fn running(&self, era: Era) -> Arc<Running> {
        let cell = match era {
            Era::Handshake => &self.0.handshake,
            Era::Stateless => &self.0.stateless,
        };
        let running = cell.get_or_init(|| self.start(era)).await.clone();
        self.follow(&running).await;
        running
    }

    async fn start(&self, era: Era) -> Arc<Running> {
        let shared = &self.0;
        let (changes, received) = mpsc::channel(256);
        let (refused, mut refusals) = mpsc::channel::<(String, &'static str)>(256);
        let reports = Reports { changes, refused };
        // Where the lock cannot be read, nothing is known to be as it was approved.
        let lock = Lock::read(&shared.settings);
        if let Err(error) = &lock {
            ironcage_command::error::CliError::from_error(error).print();
        }
        let (changed, same): (Vec<_>, Vec<_>) =
            shared
                .servers
                .iter()
                .partition(|(name, server)| match &lock {
                    Ok(lock) => launch::differs(lock, name, server),
                    Err(_) => true,
                });
        let lock = lock.unwrap_or_default();
        let changed = changed.into_iter();
        let changed = changed.map(|(name, server)| unstarted(&lock, name, server));
        let changed: Vec<Described> = changed.collect();
        let starts = same.into_iter().map(|(name, server)| {
            let (settings, name, server) = (shared.settings.clone(), name.clone(), server.clone());
            let reports = reports.clone();
            // Leases are asked of a cage by its name.
            let cage = settings.policy.leases(&name).then(|| {
                let id = shared.audit.id();
                format!("mcp-{id}-{}{name}", era.letter())
            });
            tokio::spawn(async move {
                let started = Upstream::start(&settings, &name, server, era, reports, cage).await;
                (name, started)
            })
        });
        let starts: Vec<_> = starts.collect();
        let mut servers = BTreeMap::new();
        for start in starts {
            match start.await {
                Ok((name, Ok(upstream))) => {
                    servers.insert(name, upstream);
                }
                Ok((_, Err(error))) => {
                    let shown = ironcage_command::error::CliError::from_error(&error);
                    match error.hint() {
                        Some(hint) => shown.hint(hint).print(),
                        None => shown.print(),
                    }
                }
                Err(error) => anstream::eprintln!("ironcage: {error}"),
            }
        }
        let gateway = self.clone();
        tokio::spawn(async move {
            let mut logged: BTreeMap<String, u32> = BTreeMap::new();
            while let Some((server, method)) = refusals.recv().await {
                // A server that asks on and on fills no log.
                let count = logged.entry(server.clone()).or_default();
                *count = count.saturating_add(1);
                if *count > MOST_REFUSED {
                    continue;
                }
                let reason = ToolReason::RequestNotAllowed {
                    server: server.clone(),
                    method: method.to_owned(),
                };
                let call = ToolCall {
                    server,
                    method: method.to_owned(),
                    name: String::new(),
                    arguments: String::new(),
                    verdict: ToolVerdict::Denied,
                    because: Some(Box::new(reason.into())),
                    rule: String::new(),
                    pin: String::new(),
                    leases: Vec::new(),
                    milliseconds: 0,
                    bytes: 0,
                };
                let _ = gateway.0.audit.call(call);
            }
        });
        let running = Arc::new(Running {
            servers,
            catalog: RwLock::default(),
            clients: Mutex::default(),
            subscriptions: Mutex::default(),
            changes: Mutex::new(Some(received)),
            changed,
        });
        self.refresh(&running).await;
        running
    }

    /// Reads the tools of all servers and compares them with their pins.
    pub(crate) async fn refresh(&self, running: &Running) {
        let mut described = running.changed.clone();
        for (name, upstream) in &running.servers {
            match upstream.describe().await {
                Ok((pin, tools)) => described.push(Described {
                    name: name.clone(),
                    launch: upstream.launch.clone(),
                    pin,
                    tools,
                }),
                Err(error) => {
                    let error = ironcage_tools::one_line(&error.to_string());
                    anstream::eprintln!("ironcage: cannot list the tools of {name}: {error}");
                }
            }
        }
        match Catalog::make(&self.0.settings, &described, self.0.single) {
            Ok(catalog) => {
                for entry in catalog.kept(&self.0.settings) {
                    let why = entry
                        .kept
                        .as_ref()
                        .map(|kept| kept.text())
                        .unwrap_or_default();
                    let tool = ironcage_tools::one_line(&entry.tool);
                    anstream::eprintln!(
                        "ironcage: {} keeps back {tool}: {why}; `ironcage mcp approve {}`",
                        entry.server,
                        entry.server
                    );
                }
                *running.catalog_mut() = catalog;
            }
            Err(error) => {
                // Whatever was shown before may no longer be what it was.
                *running.catalog_mut() = Catalog::default();
                ironcage_command::error::CliError::from_error(&error).print();
            }
        }
    }

    /// Starts the task that follows changes, once.
    async fn follow(&self, running: &Arc<Running>) {
        let Some(mut changes) = running.changes.lock().await.take() else {
            return;
        };
        let (gateway, running) = (self.clone(), running.clone());
        tokio::spawn(async move {
            while let Some(first) = changes.recv().await {
                // A server that says it often has all servers asked for their lists once.
                let mut all = vec![first];
                while let Ok(more) = changes.try_recv() {
                    if !all.contains(&more) {
                        all.push(more);
                    }
                }
                for (server, change) in all {
                    gateway.changed(&running, &server, change).await;
                }
            }
        });
    }

    async fn changed(&self, running: &Running, server: &str, change: Change) {
        if matches!(change, Change::Tools) {
            self.refresh(running).await;
        }
        self.announce(running, &change).await;
        let mut clients = running.clients.lock().await;
        clients.retain(|client| !client.is_transport_closed());
        for client in clients.iter() {
            // A client that is gone is removed with the next change.
            let _ = match &change {
                Change::Tools => client.notify_tool_list_changed().await,
                Change::Resources => client.notify_resource_list_changed().await,
                Change::Prompts => client.notify_prompt_list_changed().await,
                Change::Updated(params) => {
                    let verdict = self.0.settings.policy.resource(server, &params.uri);
                    match verdict.decision {
                        ironcage_tools::Decision::Allow => {
                            client.notify_resource_updated(params.clone()).await
                        }
                        _ => Ok(()),
                    }
                }
            };
        }
    }

    /// Ends every server and its cage.
    async fn stop(&self) {
        let cells = [&self.0.handshake, &self.0.stateless];
        let running = cells.into_iter().filter_map(OnceCell::get);
        let servers = running.flat_map(|running| running.servers.values());
        let stops = servers.map(|upstream| {
            let upstream = upstream.clone();
            tokio::spawn(async move { upstream.stop().await })
        });
        for stop in stops.collect::<Vec<_>>() {
            // A task that failed leaves the cage to the end of this process.
            let _ = stop.await;
        }
    }

    /// Tells the clients that subscribed to changes of this kind.
    async fn announce(&self, running: &Running, change: &Change) {
        let mut sinks = running.subscriptions.lock().await;
        let mut kept = Vec::new();
        for sink in sinks.drain(..) {
            let sent = match change {
                Change::Tools => sink.notify_tool_list_changed().await,
                Change::Resources => sink.notify_resource_list_changed().await,
                Change::Prompts => sink.notify_prompt_list_changed().await,
                Change::Updated(_) => Ok(()),
            };
            // What was not asked for is no reason to forget a client; one that is gone is.
            if !matches!(
                sent,
                Err(SubscriptionSendError::SubscriptionClosed | SubscriptionSendError::Service(_))
            ) {
                kept.push(sink);
            }
        }
        *sinks = kept;
    }

    /// What the gateway says of itself to clients of an era.
    pub(crate) fn config(&self, running: Option<&Running>) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        let mut instructions = Vec::new();
        let servers = running.into_iter().flat_map(|running| &running.servers);
        let mut own = ToolsCapability::default();
        own.list_changed = Some(true);
        capabilities.tools = Some(own);
        for (name, upstream) in servers {
            let Some(info) = upstream.peer().peer_info() else {
                continue;
            };
            let theirs = &info.capabilities;
            if let Some(resources) = &theirs.resources {
                let known = capabilities
                    .resources
                    .get_or_insert_with(ResourcesCapability::default);
                known.subscribe = known.subscribe.or(resources.subscribe);
                known.list_changed = known.list_changed.or(resources.list_changed);
            }
            if let Some(prompts) = &theirs.prompts {
                let known = capabilities
                    .prompts
                    .get_or_insert_with(PromptsCapability::default);
                known.list_changed = known.list_changed.or(prompts.list_changed);
            }
            if theirs.completions.is_some() {
                capabilities.completions = Some(Default::default());
            }
            if theirs.logging.is_some() {
                capabilities.logging = Some(Default::default());
            }
            // Instructions are text for the model: only those that were approved.
            let lock = Lock::read(&self.0.settings).unwrap_or_default();
            let approved = lock
                .servers
                .get(name)
                .and_then(|pin| pin.instructions.clone());
            if let Some(text) = info
                .instructions
                .clone()
                .filter(|text| Some(text) == approved.as_ref())
            {
                instructions.push(match self.0.single {
                    true => text,
                    false => format!("[{name}] {text}"),
                });
            }
        }
        let own = Implementation::new("ironcage-mcp-gateway", env!("CARGO_PKG_VERSION"));
        let config = ServerConfig::new(capabilities).with_server_info(own);
        match instructions.is_empty() {
            true => config,
            false => config.with_instructions(instructions.join("\n\n")),
        }
    }
}

/// What was approved of a server that is started differently now: its calls are refused with that
/// reason.
fn unstarted(lock: &Lock, name: &str, server: &ironcage_tools::McpServer) -> Described {
    let mut pin = lock.servers.get(name).cloned().unwrap_or_default();
    pin.launch = launch::fingerprint(server);
    let tools = pin.tools.values();
    let tools = tools.filter_map(|pin| serde_json::from_value(pin.tool.clone()).ok());
    Described {
        name: name.to_owned(),
        launch: server.clone(),
        tools: tools.collect(),
        pin,
    }
}

/// `ironcage mcp gateway`.
pub(crate) async fn run(settings: Settings, args: Args) -> Result<(), McpError> {
    let gateway = Gateway::new(settings, &args)?;
    let id = gateway.0.audit.id();
    anstream::eprintln!("ironcage: gateway {id}; `ironcage why {id}` explains what it refuses");
    let served = match args.listen.listen {
        Some(address) => http::serve(gateway.clone(), address, &args.listen).await,
        None => stdio(gateway.clone()).await,
    };
    gateway.stop().await;
    gateway.0.audit.end()?;
    served
}

async fn stdio(gateway: Gateway) -> Result<(), McpError> {
    let transport = Lines::of_client(tokio::io::stdin(), tokio::io::stdout());
    let service = match gateway.serve(transport).await {
        Ok(service) => service,
        // A client that leaves before it says anything is not an error.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Client(error.to_string())),
    };
    tokio::select! {
        ended = service.waiting() => drop(ended.map_err(|error| McpError::Client(error.to_string()))?),
        () = http::asked_to_end() => {}
    }
    Ok(())
}
