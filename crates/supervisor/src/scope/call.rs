//! A tool call as the command of a scope: what is executed for it, and what it needs.
//!
//! The call was written by a model, and so by whoever the model listened to. It is read here, in
//! the scope's own supervisor, before anything of the scope is there; what it needs is asked for in
//! its name, and only what the ceiling gives at once is given.

use super::MOST_OF_A_CALL;
use crate::needed::{Names, Needed, Nesting};
use ironcage_control::{Bytes, DeniedLease, GrantRequest, ScopeRequest};
use ironcage_intent::{Action, Call, Calls, Context, Destination, Needs, PatchedFile, Table};
use ironcage_model::{
    Contact, DeniedCall, LeaseOrigin, Reason, Resource, Right, SupervisorReason, Term, ToolCall,
    in_full,
};
use ironcage_plan::{Access, Item, NodeKind, Plan, ViewOp};
use ironcage_programs::{FindError, Program};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Where the program is seen in a scope that works on a file with it.
const TOOL: &str = "/.ironcage/tool";
/// And where the call is.
const CALL: &str = "/.ironcage/call";

/// Longest text of a denied call in the audit log.
const LOGGED: usize = 512;

/// How long something may take that is fetched.
const FETCH_SECONDS: &str = "60";

/// A tool call, ready to be carried out.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) argv: Vec<Bytes>,
    pub(super) cwd: Option<Bytes>,
    pub(super) asked: ScopeRequest,
    /// Of the paths that are asked for.
    pub(super) descriptors: Vec<OwnedFd>,
    /// What cannot even be asked for.
    pub(super) refused: Vec<DeniedLease>,
    /// Whether a program of Ironcage's carries it out.
    pub(super) tool: bool,
}

fn contact(destination: &Destination) -> Contact {
    match destination {
        Destination::Host { .. } => Contact::Host(destination.to_string()),
        Destination::Bundle(name) => Contact::Bundle(name.clone()),
        Destination::Remote(name) => Contact::Remote(name.clone()),
    }
}

/// A tool call that is not carried out.
#[derive(Debug)]
pub(super) struct NotPlanned {
    pub(super) reason: Box<Reason>,
    /// For the audit log, where the rules for tools decided.
    pub(super) denied: Option<Box<ToolCall>>,
}

impl From<SupervisorReason> for NotPlanned {
    fn from(reason: SupervisorReason) -> Self {
        NotPlanned {
            reason: Box::new(reason.into()),
            denied: None,
        }
    }
}

/// Reads a tool call.
pub(super) fn read(plan: &Plan, text: &str) -> Result<Planned, NotPlanned> {
    let unknown = |error: &dyn std::error::Error| SupervisorReason::CallUnknown {
        error: error.to_string(),
    };
    let call = Call::read(text.as_bytes()).map_err(|error| unknown(&error))?;
    permitted(plan, &call)?;
    let calls = Calls::shipped().map_err(|error| unknown(&error))?;
    let tools = Table::shipped().map_err(|error| unknown(&error))?;
    let context = Context {
        cwd: plan.command.cwd.clone(),
        home: plan.home().map(Path::to_owned),
    };
    let Some(action) = calls.action(&call, &context) else {
        let error = format!(
            "cannot carry out the tool `{}` with these arguments",
            call.name
        );
        return Err(SupervisorReason::CallUnknown { error }.into());
    };
    let mut needs = Needs::default();
    match &action {
        Action::File(file) if file.writes() => drop(needs.writes.insert(file.path.clone())),
        Action::File(file) => drop(needs.reads.insert(file.path.clone())),
        Action::Search { path, .. } => drop(needs.reads.insert(path.clone())),
        Action::Patch(files) => {
            let paths = files.iter().flat_map(PatchedFile::paths).cloned();
            needs.writes.extend(paths);
        }
        _ => needs = calls.needs(&call, &tools, &context),
    }
    let tool = matches!(
        action,
        Action::File(_) | Action::Search { .. } | Action::Patch(_)
    );
    let (argv, cwd) = match action {
        Action::Script { text, cwd } => (vec!["bash".into(), "-c".into(), text], cwd),
        Action::Program { argv, cwd } => (argv, cwd),
        Action::Fetch { url } => {
            let words = ["curl", "-sSfL", "--max-time", FETCH_SECONDS, "--", &url];
            (words.map(str::to_owned).to_vec(), None)
        }
        Action::File(_) | Action::Search { .. } | Action::Patch(_) => {
            let words = [TOOL, "__tool", CALL];
            (words.map(str::to_owned).to_vec(), None)
        }
    };
    let mut planned = Planned {
        argv: argv
            .into_iter()
            .map(|word| Bytes(word.into_bytes()))
            .collect(),
        cwd: cwd.map(|cwd| Bytes(cwd.into_bytes())),
        asked: ScopeRequest {
            leases: Vec::new(),
            origin: LeaseOrigin::ToolCall,
            call: None,
            shell: None,
            wait: 0,
        },
        descriptors: Vec::new(),
        refused: Vec::new(),
        tool,
    };
    planned.ask_for(plan, &needs, &format!("a call of {}", call.name));
    if planned.asked.leases.len() > MOST_OF_A_CALL {
        let limit = MOST_OF_A_CALL as u64;
        return Err(SupervisorReason::CallNeedsTooMuch { limit }.into());
    }
    Ok(planned)
}

/// Whether the rules for tools allow a call. Nobody can be asked about one here.
fn permitted(plan: &Plan, call: &Call) -> Result<(), NotPlanned> {
    let named = ironcage_tools::Call::named(&call.name, &call.input, Some(&plan.command.cwd));
    let Some((reason, rule)) = plan.tools.refusal(&named) else {
        return Ok(());
    };
    let mut reason = Reason::from(reason);
    reason.cut(LOGGED);
    let denied = DeniedCall {
        reason: reason.clone(),
        rule,
    };
    let tool = call.name.chars().take(LOGGED).collect();
    Err(NotPlanned {
        reason: Box::new(reason),
        denied: Some(Box::new(ToolCall::denied("tool call", tool, denied))),
    })
}

impl Planned {
    fn ask_for(&mut self, plan: &Plan, needs: &Needs, reason: &str) {
        let names = Names {
            reads: needs.reads_and_enters().cloned().collect(),
            writes: needs.writes.iter().cloned().collect(),
            contacts: needs.destinations.iter().map(contact).collect(),
        };
        let needed = Needed::of(plan, &names, Nesting::Allowed);
        self.refused.extend(needed.refused);
        for path in needed.passing.iter().filter(|_| self.tool) {
            self.refused.push(DeniedLease {
                resource: Resource::Path {
                    path: path.to_string_lossy().into_owned(),
                    right: Right::Write,
                },
                reason: SupervisorReason::WrittenToScratch.into(),
                ask: false,
            });
        }
        for need in needed.needs {
            let (wanted, handle) = need.target();
            self.descriptors.extend(handle);
            self.asked.leases.push(GrantRequest {
                wanted,
                term: Term::UntilRevoked,
                uses: None,
                reason: reason.to_owned(),
            });
        }
    }

    /// Puts the program into the scope's view that carries the call out there.
    pub(super) fn furnish(&self, plan: &mut Plan, text: &str) -> Result<(), SupervisorReason> {
        if !self.tool {
            return Ok(());
        }
        let source = Program::Inside.find().map_err(|error| match error {
            FindError::Replaced { .. } => SupervisorReason::ScopeFailed {
                error: "the ironcage that started this cage was replaced; start the cage again"
                    .into(),
            },
            other => SupervisorReason::ScopeFailed {
                error: in_full(&other),
            },
        })?;
        let made = |what| Item {
            what,
            origin: "tool call".into(),
        };
        let ops = [
            made(ViewOp::File {
                target: CALL.into(),
                content: text.to_owned(),
                mode: 0o444,
            }),
            made(ViewOp::Bind {
                source,
                target: TOOL.into(),
                access: Access::Read,
                kind: NodeKind::File,
                owner: None,
            }),
        ];
        plan.add_to_view(ops);
        Ok(())
    }
}
