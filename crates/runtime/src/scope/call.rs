//! A tool call as the command of a scope: what is executed for it, and what it needs.
//!
//! The call was written by a model, and so by whoever the model listened to. It is read here, in
//! the scope's own supervisor, before anything of the scope is there; what it needs is asked for in
//! its name, and only what the ceiling gives at once is given.

use super::MOST_OF_A_CALL;
use crate::needed::{Names, Need, Needed};
use ironcage_control::{Bytes, GrantRequest, NotGiven, ScopeRequest, Wanted};
use ironcage_intent::{Action, Call, Calls, Context, Destination, Needs, Table};
use ironcage_model::{Contact, LeaseOrigin, Resource, Right, Term};
use ironcage_plan::{Access, Item, NodeKind, Plan, ViewOp};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where this program is seen in a scope that works on a file with it.
const TOOL: &str = "/.ironcage/tool";
/// And where the call is.
const CALL: &str = "/.ironcage/call";

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
    pub(super) refused: Vec<NotGiven>,
    /// Whether this program carries it out.
    tool: bool,
}

fn contact(destination: &Destination) -> Contact {
    match destination {
        Destination::Host { .. } => Contact::Host(destination.to_string()),
        Destination::Bundle(name) => Contact::Bundle(name.clone()),
        Destination::Remote(name) => Contact::Remote(name.clone()),
    }
}

/// Reads a tool call.
pub(super) fn read(plan: &Plan, text: &str) -> Result<Planned, String> {
    let call = Call::read(text.as_bytes()).map_err(|error| error.to_string())?;
    let calls = Calls::shipped().map_err(|error| error.to_string())?;
    let tools = Table::shipped().map_err(|error| error.to_string())?;
    let context = Context {
        cwd: plan.command.cwd.clone(),
        home: plan.home().map(Path::to_owned),
    };
    let Some(action) = calls.action(&call, &context) else {
        return Err(format!(
            "the tool `{}`, with these arguments, is none that is carried out here",
            ironcage_model::Printable::new(&call.name)
        ));
    };
    let mut needs = Needs::default();
    match &action {
        Action::File(file) if file.writes() => drop(needs.writes.insert(file.path.clone())),
        Action::File(file) => drop(needs.reads.insert(file.path.clone())),
        _ => needs = calls.needs(&call, &tools, &context),
    }
    let tool = matches!(action, Action::File(_));
    let (argv, cwd) = match action {
        Action::Script { text, cwd } => (vec!["bash".into(), "-c".into(), text], cwd),
        Action::Program { argv, cwd } => (argv, cwd),
        Action::Fetch { url } => {
            let words = ["curl", "-sSfL", "--max-time", FETCH_SECONDS, "--", &url];
            (words.map(str::to_owned).to_vec(), None)
        }
        Action::File(_) => {
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
        return Err(format!(
            "it needs more than {MOST_OF_A_CALL} things that the cage does not have"
        ));
    }
    Ok(planned)
}

impl Planned {
    fn ask_for(&mut self, plan: &Plan, needs: &Needs, reason: &str) {
        let names = Names {
            reads: needs.reads.iter().cloned().collect(),
            writes: needs.writes.iter().cloned().collect(),
            contacts: needs.destinations.iter().map(contact).collect(),
        };
        let needed = Needed::of(plan, &names);
        self.refused.extend(needed.refused);
        for path in needed.passing.iter().filter(|_| self.tool) {
            self.refused.push(NotGiven {
                resource: Resource::Path {
                    path: path.to_string_lossy().into_owned(),
                    right: Right::Write,
                },
                reason: "what is written there would be gone with the call; write in the workspace"
                    .into(),
                ask: false,
            });
        }
        for need in needed.needs {
            let wanted = match need {
                Need::Path { right, handle, .. } => {
                    self.descriptors.push(handle);
                    Wanted::Path { right }
                }
                Need::Host(rule) => Wanted::Other(Resource::Host { rule }),
            };
            self.asked.leases.push(GrantRequest {
                wanted,
                term: Term::UntilRevoked,
                uses: None,
                reason: reason.to_owned(),
            });
        }
    }

    /// Puts this program into the scope's view, where it carries the call out.
    pub(super) fn furnish(&self, plan: &mut Plan, text: &str) -> Result<(), String> {
        if !self.tool {
            return Ok(());
        }
        let source = std::fs::read_link("/proc/self/exe").map_err(|error| error.to_string())?;
        if source.as_os_str().as_bytes().ends_with(b" (deleted)") {
            return Err(
                "the ironcage that started this cage was replaced since; start the cage anew"
                    .into(),
            );
        }
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
        let seal = plan
            .view
            .iter()
            .position(|op| matches!(op.what, ViewOp::Seal));
        let place = seal.unwrap_or(plan.view.len());
        plan.view.splice(place..place, ops);
        Ok(())
    }
}
