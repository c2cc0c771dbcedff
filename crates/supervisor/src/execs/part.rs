//! The execs of one cage: a part of the supervisor. It owns what is known of each command, from its
//! start to its end.

use crate::effects::Effect;
use crate::ending::of_status;
use ironcage_control::{ExecDescription, Reply};
use ironcage_model::{Ending, EventKind};
use libc::{SIGCONT, SIGHUP, SIGKILL};
use std::time::{Duration, Instant};

/// How long an exec whose client is gone may take to end.
const HANGUP: Duration = Duration::from_secs(2);

/// Something that the execs have to know.
#[derive(Debug)]
pub(crate) enum ExecEvent {
    /// PID 1 was ordered to start a command, and its client has its streams.
    Started {
        number: u32,
        command: Vec<String>,
        client: u64,
        /// Whether it lives on without its client.
        detached: bool,
    },
    Executed(u32),
    /// It could not be executed; its end is told too.
    NotExecuted {
        number: u32,
        errno: i32,
    },
    /// The command is over, with a status as waitpid encodes it.
    Exited {
        number: u32,
        status: i32,
    },
    /// The client of a command is gone.
    ClientGone(u32),
    /// Time has passed.
    Tick,
    /// The cage is gone, and with it every command.
    CageEnded(Ending),
}

/// A command that was started in the running cage.
#[derive(Debug)]
struct Exec {
    number: u32,
    command: Vec<String>,
    client: Option<u64>,
    detached: bool,
    born: Instant,
    not_executed: Option<i32>,
    /// When it is killed, once its client is gone.
    killed_at: Option<Instant>,
}

/// The execs of one cage.
#[derive(Debug)]
pub(crate) struct Execs {
    running: Vec<Exec>,
    next: u32,
    /// Whether these are of a scope: then a command's end is told when the scope's is proved.
    /// The digest of the plan, where these are a scope's.
    of_scope: Option<String>,
}

impl Execs {
    pub(crate) fn of_cage() -> Self {
        Execs {
            running: Vec::new(),
            next: 1,
            of_scope: None,
        }
    }

    /// Of a scope with a plan of this digest, whose one command has this number.
    pub(crate) fn of_scope(number: u32, plan: String) -> Self {
        Execs {
            running: Vec::new(),
            next: number,
            of_scope: Some(plan),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn describe(&self) -> impl Iterator<Item = ExecDescription> {
        self.running.iter().map(|exec| ExecDescription {
            number: exec.number,
            command: exec.command.clone(),
        })
    }

    /// The number of the next command.
    pub(crate) fn next_number(&self) -> u32 {
        self.next
    }

    /// Takes the number of the next command, for one that others keep account of.
    pub(crate) fn draw_number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.checked_add(1).unwrap_or(1);
        number
    }

    /// Who waits for a command.
    pub(crate) fn client_of(&self, number: u32) -> Option<u64> {
        let mut running = self.running.iter();
        running.find(|exec| exec.number == number)?.client
    }

    /// When an exec without a client is to be killed.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.running.iter().filter_map(|exec| exec.killed_at).min()
    }

    fn get(&mut self, number: u32) -> Option<&mut Exec> {
        self.running.iter_mut().find(|exec| exec.number == number)
    }

    pub(crate) fn handle(&mut self, event: ExecEvent, now: Instant) -> Vec<Effect> {
        match event {
            ExecEvent::Started {
                number,
                command,
                client,
                detached,
            } => {
                self.next = number.checked_add(1).unwrap_or(1);
                let plan = self.of_scope.clone();
                let started = EventKind::Exec {
                    number,
                    command: command.clone(),
                    detached,
                    scope: plan.is_some(),
                    plan,
                };
                self.running.push(Exec {
                    number,
                    command,
                    client: Some(client),
                    detached,
                    born: now,
                    not_executed: None,
                    killed_at: None,
                });
                vec![Effect::Audit(started)]
            }
            ExecEvent::Executed(number) => {
                let told = self.get(number).filter(|exec| exec.detached);
                let told = told.filter(|exec| exec.not_executed.is_none());
                let client = told.and_then(|exec| exec.client);
                let reply = client.map(|client| Effect::Reply {
                    client,
                    reply: Reply::Executed,
                });
                reply.into_iter().collect()
            }
            ExecEvent::NotExecuted { number, errno } => {
                if let Some(exec) = self.get(number) {
                    exec.not_executed = Some(errno);
                }
                Vec::new()
            }
            ExecEvent::Exited { number, status } => self.exited(number, status, now),
            ExecEvent::ClientGone(number) => self.client_gone(number, now),
            ExecEvent::Tick => self.kill_late(now),
            ExecEvent::CageEnded(ending) => {
                let all = std::mem::take(&mut self.running).into_iter();
                all.flat_map(|exec| exec.ended(ending.clone(), now))
                    .collect()
            }
        }
    }

    fn exited(&mut self, number: u32, status: i32, now: Instant) -> Vec<Effect> {
        let mut running = self.running.iter();
        let Some(index) = running.position(|exec| exec.number == number) else {
            return Vec::new();
        };
        let ending = |exec: &Exec| match exec.not_executed {
            Some(errno) => Ending::NotExecuted { errno },
            None => of_status(status),
        };
        if self.of_scope.is_some() {
            let ended = self.running.get(index).map(ending);
            return ended.map(Effect::ScopeCommandEnded).into_iter().collect();
        }
        let exec = self.running.swap_remove(index);
        let ending = ending(&exec);
        exec.ended(ending, now)
    }

    /// A client is gone: so is its exec, unless it was detached.
    fn client_gone(&mut self, number: u32, now: Instant) -> Vec<Effect> {
        let Some(exec) = self.get(number) else {
            return Vec::new();
        };
        exec.client = None;
        if exec.detached {
            return Vec::new();
        }
        exec.killed_at = Some(now + HANGUP);
        // What stopped must go on to hear it.
        let signals = [SIGHUP, SIGCONT].into_iter();
        signals
            .map(|signal| Effect::SignalExec { number, signal })
            .collect()
    }

    /// Kills execs whose clients are gone and whose time is up.
    fn kill_late(&mut self, now: Instant) -> Vec<Effect> {
        let late = |exec: &&mut Exec| exec.killed_at.is_some_and(|at| now >= at);
        let late = self.running.iter_mut().filter(late);
        let killed = late.map(|exec| {
            exec.killed_at = None;
            Effect::SignalExec {
                number: exec.number,
                signal: SIGKILL,
            }
        });
        killed.collect()
    }
}

impl Exec {
    /// The audit log first: who is told may act on it.
    fn ended(self, ending: Ending, now: Instant) -> Vec<Effect> {
        let lived = now.saturating_duration_since(self.born);
        let mut effects = vec![Effect::Audit(EventKind::ExecExit {
            number: self.number,
            ending: ending.clone(),
            milliseconds: lived.as_millis() as u64,
        })];
        effects.extend(self.client.map(|client| Effect::Reply {
            client,
            reply: Reply::ExecEnded(ending),
        }));
        effects
    }
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
