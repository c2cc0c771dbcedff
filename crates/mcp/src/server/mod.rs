//! Ironcage as an MCP server: its tools work in one cage of the current workspace, by the commands
//! that a person would use.

mod cage;
mod tools;

use crate::error::McpError;
use crate::http::{self, HttpServer};
use crate::lines::Lines;
use crate::settings::Settings;
use cage::Cage;
use ironcage_command::mcp::Listen;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler, ServiceExt};
use std::path::PathBuf;
use std::sync::Arc;

const INSTRUCTIONS: &str = "Tools of Ironcage: commands and files in a cage of the workspace. The cage sees a \
system, the workspace and an empty home; changes stay pending until the user applies them. A denial \
has a code: explain_denial says what would allow it, request_permission asks the user.";

#[derive(Clone)]
struct Server {
    cage: Arc<Cage>,
}

impl HttpServer for Server {
    /// They are always the same.
    async fn knows_its_tools(&self) {}
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let own = Implementation::new("ironcage", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities)
            .with_server_info(own)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let called = tools::call(&self.cage, &request.name, &arguments);
        tokio::select! {
            result = called => result.map(CallToolResponse::from),
            () = context.ct.cancelled() => Err(ErrorData::internal_error("cancelled", None)),
        }
    }
}

/// `ironcage mcp`.
pub(crate) async fn run(
    settings: Settings,
    profile: Option<String>,
    policy: Option<PathBuf>,
    listen: Listen,
) -> Result<(), McpError> {
    let cage = Arc::new(Cage::new(settings, profile, policy)?);
    let server = Server { cage: cage.clone() };
    let served = match listen.listen {
        Some(address) => http::serve(server, address, &listen).await,
        None => stdio(server).await,
    };
    let stopped = cage.stop().await;
    served.and(stopped)
}

async fn stdio(server: Server) -> Result<(), McpError> {
    let transport = Lines::of_client(tokio::io::stdin(), tokio::io::stdout());
    match server.serve(transport).await {
        Ok(service) => {
            tokio::select! {
                ended = service.waiting() => {
                    ended.map(drop).map_err(|error| McpError::Client(error.to_string()))
                }
                () = http::asked_to_end() => Ok(()),
            }
        }
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(McpError::Client(error.to_string())),
    }
}
