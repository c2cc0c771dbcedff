//! The gateway's entries in the audit log: a log of its own, as a cage has one.

use crate::error::McpError;
use crate::settings::Settings;
use ironcage_audit::Log;
use ironcage_model::{CageId, Ending, Event, EventKind, ToolCall};
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug)]
pub(crate) struct Audit {
    log: Mutex<Log>,
    id: CageId,
    started: Instant,
}

impl Audit {
    pub(crate) fn create(settings: &Settings, command: Vec<String>) -> Result<Self, McpError> {
        let mut random = [0; 12];
        crate::settings::random(&mut random)?;
        let id = CageId::from_entropy(random);
        let log = Log::create(&settings.audit(), &id).map_err(McpError::Audit)?;
        let audit = Audit {
            log: Mutex::new(log),
            id,
            started: Instant::now(),
        };
        let rules = serde_json::to_vec(&*settings.policy).unwrap_or_default();
        audit.append(EventKind::Start {
            name: None,
            command,
            workspace: settings.workspace.to_string_lossy().into_owned(),
            profile: "mcp-gateway".to_owned(),
            isolation: None,
            runtime: None,
            plan: crate::settings::hex(&rules),
            layers: Vec::new(),
            degraded: Vec::new(),
            shared: Vec::new(),
            parent: None,
        })?;
        Ok(audit)
    }

    pub(crate) fn id(&self) -> &CageId {
        &self.id
    }

    fn append(&self, kind: EventKind) -> Result<(), McpError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let event = Event {
            time: u64::try_from(now.unwrap_or_default().as_micros()).unwrap_or(u64::MAX),
            cage: self.id.clone(),
            kind,
        };
        let mut log = self
            .log
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        log.append(&event).map_err(McpError::Audit)
    }

    /// Logs a call. One that cannot be logged is not carried out.
    pub(crate) fn call(&self, call: ToolCall) -> Result<(), McpError> {
        self.append(EventKind::ToolCall(call))
    }

    /// Ends the log.
    pub(crate) fn end(&self) -> Result<(), McpError> {
        let milliseconds = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.append(EventKind::Exit {
            ending: Ending::Exited { code: 0 },
            milliseconds,
            usage: None,
        })
    }
}
