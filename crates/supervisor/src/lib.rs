//! The lifecycle of a cage: prepare, start, supervise, report.
//!
//! [`run`] runs one command from start to end in the calling process, which is the cage's supervisor. It
//! relays the streams, answers denied system calls, decides on leases, watches the limits and writes the
//! audit log. It never exceeds the plan, and parses nothing that the agent sends.
#![forbid(unsafe_code)]

mod audit_writer;
mod backends;
mod background;
mod channels;
mod children;
mod connects;
mod control;
mod cores;
mod denials;
mod effects;
mod ending;
mod error;
mod execs;
mod forecast;
mod forked_reader;
mod guests;
mod intents;
mod leases;
mod limits;
mod log;
mod log_budget;
mod needed;
mod network;
mod observe;
mod output;
mod path_lookup;
mod permission_requests;
mod prompting;
mod request_reader;
mod run;
mod scope;
mod signing;
mod stopping;
mod streams;
mod supervise;
mod taint;
mod untrusted_fds;

pub use backends::backend;
pub use background::{AwaitedStart, Background, ForkRole, detach};
pub use children::{ChildSpec, ParentLink, SpawnChild};
pub use control::ExitNotifier;
pub use error::RunError;
pub use forecast::{Forecast, forecast};
pub use ironcage_layers::ablation::weaken;
pub use ironcage_layers::cgroup::sweep as sweep_cgroups;
pub use ironcage_layers::network::delivery_messages;
pub use needed::remote_hosts;
pub use network::DenialLine;
pub use run::{FinishedRun, Job, NotPermanent, Permanent, run};
