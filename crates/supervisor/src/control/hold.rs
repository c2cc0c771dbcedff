//! A cage that is held still while somebody works on its files from outside.

use crate::RunError;
use crate::intents::IntentEvent;
use crate::supervise::Supervision;
use ironcage_control::{ExecRequest, Reply};
use ironcage_model::{EventKind, SupervisorReason};
use std::io;
use std::os::fd::AsFd as _;
use std::time::Instant;

/// Commands that wait at once.
const MAX_WAITING: usize = 64;

/// Who holds the cage, and what waits for that to end.
#[derive(Debug)]
pub(super) struct Hold {
    /// A client; nobody where it is stopped for the user to look at.
    holder: Option<u64>,
    /// Whether a client paused it, until one resumes it.
    paused: bool,
    /// Commands to start in it then, with who wants them.
    waiting: Vec<(u64, ExecRequest)>,
}

impl Hold {
    pub(super) fn is_pause(&self) -> bool {
        self.paused
    }
}

impl Supervision<'_> {
    /// Whether nothing in the cage may be let go on.
    pub(crate) fn is_held(&self) -> bool {
        self.control.hold.is_some()
    }

    /// Whether the cage is stopped for its user to look at.
    pub(crate) fn is_frozen(&self) -> bool {
        let hold = self.control.hold.as_ref();
        hold.is_some_and(|hold| hold.holder.is_none())
    }

    /// Lets what was stopped go on, unless the user is to look at it first.
    pub(crate) fn let_go_on(&self) {
        if !self.is_frozen() {
            // A cage that is just ending cannot, and need not.
            let _ = self.cage.resume();
        }
    }

    /// Stops the cage for its user to look at. `false` where it cannot be done at this moment.
    pub(crate) fn freeze(&mut self) -> bool {
        if self.control.hold.is_some() || self.control.stopping.is_some() {
            return self.is_frozen();
        }
        let held = self.cage.hold().is_ok();
        if held {
            self.control.hold = Some(Hold {
                holder: None,
                paused: false,
                waiting: Vec::new(),
            });
        }
        held
    }

    fn is_paused(&self) -> bool {
        self.control.hold.as_ref().is_some_and(Hold::is_pause)
    }

    /// Why nothing can be started in a cage that is stopped.
    fn stopped_reason(&self) -> SupervisorReason {
        match self.is_paused() {
            true => SupervisorReason::Paused,
            false => SupervisorReason::Frozen,
        }
    }

    /// Stops every process of the cage until a client resumes it. One that is stopped for its user
    /// to look at stays so: resuming it after a pause would pass over the user.
    pub(super) fn pause(&mut self, key: u64) -> Result<(), RunError> {
        if self.is_paused() {
            self.control.reply(key, &Reply::Paused, &[]);
            return Ok(());
        }
        let against = if self.is_frozen() {
            Some(SupervisorReason::Frozen)
        } else if self.control.hold.is_some() {
            Some(SupervisorReason::ChangeInProgress)
        } else if self.control.stopping.is_some() {
            Some(SupervisorReason::Stopping)
        } else {
            None
        };
        let done = match against {
            Some(reason) => Err(reason),
            None => self
                .cage
                .hold()
                .map_err(|error| SupervisorReason::Unresponsive {
                    error: error.to_string(),
                }),
        };
        if let Err(reason) = done {
            self.control.refuse(key, reason);
            return Ok(());
        }
        self.control.hold = Some(Hold {
            holder: None,
            paused: true,
            waiting: Vec::new(),
        });
        self.audit.write(EventKind::Paused)?;
        self.control.reply(key, &Reply::Paused, &[]);
        Ok(())
    }

    /// A cage that was paused goes on.
    pub(super) fn unpause(&mut self, key: u64) -> Result<(), RunError> {
        if self.control.hold.take_if(|hold| hold.paused).is_none() {
            let reason = match self.is_frozen() {
                true => SupervisorReason::Frozen,
                false => SupervisorReason::NotFrozen,
            };
            self.control.refuse(key, reason);
            return Ok(());
        }
        self.audit.write(EventKind::Unpaused)?;
        match self.cage.release() {
            Ok(()) => self.control.reply(key, &Reply::Resumed, &[]),
            Err(error) => {
                let error = error.to_string();
                self.control
                    .refuse(key, SupervisorReason::Unresponsive { error });
            }
        }
        Ok(())
    }

    /// The user has looked at a cage that was stopped: it goes on.
    pub(super) fn thaw(&mut self, key: u64) -> Result<(), RunError> {
        if self.is_paused() {
            return self.unpause(key);
        }
        let frozen = |hold: &mut Hold| hold.holder.is_none();
        if self.control.hold.take_if(frozen).is_none() {
            self.control.refuse(key, SupervisorReason::NotFrozen);
            return Ok(());
        }
        self.intents.handle(IntentEvent::Reviewed, Instant::now());
        self.audit.write(EventKind::Resumed)?;
        self.tell_of_thaw(Instant::now())?;
        match self.cage.release() {
            Ok(()) => self.control.reply(key, &Reply::Resumed, &[]),
            Err(error) => {
                let error = error.to_string();
                self.control
                    .refuse(key, SupervisorReason::Unresponsive { error });
            }
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, key: u64) {
        let against = if self.is_frozen() {
            Some(self.stopped_reason())
        } else if self.control.hold.is_some() {
            Some(SupervisorReason::ChangeInProgress)
        } else if self.control.stopping.is_some() {
            Some(SupervisorReason::Stopping)
        } else if self.scopes.writes() {
            let by = "a command runs in a scope of it".into();
            Some(SupervisorReason::ChangeInUse { by })
        } else if self.children.is_any() {
            let by = "a child cage works on it".into();
            Some(SupervisorReason::ChangeInUse { by })
        } else if self.parent.is_some() {
            Some(SupervisorReason::ChangeOfParent)
        } else {
            let why = self.cage.cannot_hold();
            why.map(|error| SupervisorReason::Unresponsive {
                error: error.to_string(),
            })
        };
        if let Some(reason) = against {
            return self.control.refuse(key, reason);
        }
        if let Err(error) = self.cage.hold() {
            let error = error.to_string();
            let reason = SupervisorReason::Unresponsive { error };
            return self.control.refuse(key, reason);
        }
        self.control.hold = Some(Hold {
            holder: Some(key),
            paused: false,
            waiting: Vec::new(),
        });
        match self.cage.proc().try_clone_to_owned() {
            Ok(proc) => self.control.reply(key, &Reply::Held, &[proc.as_fd()]),
            Err(error) => {
                let error = error.to_string();
                self.control
                    .refuse(key, SupervisorReason::Unresponsive { error });
            }
        }
    }

    /// Puts a command off that cannot be started while the cage is held.
    pub(super) fn put_off(&mut self, key: u64, request: ExecRequest) -> Option<ExecRequest> {
        if self.is_frozen() {
            let reason = self.stopped_reason();
            self.control.refuse(key, reason);
            return None;
        }
        match &mut self.control.hold {
            Some(hold) => {
                if hold.waiting.len() < MAX_WAITING {
                    hold.waiting.push((key, request));
                } else {
                    self.control.refuse(key, SupervisorReason::ChangeInProgress);
                }
                None
            }
            None => Some(request),
        }
    }

    /// Lets the cage go on, if this client holds it.
    pub(super) fn release(&mut self, key: u64, now: Instant) -> Result<(), RunError> {
        let Some(hold) = self.control.hold.take_if(|hold| hold.holder == Some(key)) else {
            return Ok(());
        };
        let stale = self
            .cage
            .release()
            .err()
            .map(|error: io::Error| error.to_string());
        self.control.reply(key, &Reply::Released { stale }, &[]);
        if self.control.stopping.is_some() {
            // It could not hear that it is to end.
            let _ = self.cage.resume();
        }
        for (client, request) in hold.waiting {
            self.exec(client, request, None, now)?;
        }
        Ok(())
    }
}
