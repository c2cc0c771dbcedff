//! The lifecycle of a cage: prepare, start, supervise, report.
//!
//! [`run`] holds one command from start to end in the calling process, which is the cage's
//! supervisor: it relays the streams, answers refused system calls, watches the limits and
//! writes the record. It decides nothing that the plan has not decided, and parses nothing
//! that the agent says.
#![forbid(unsafe_code)]

mod archive;
mod asking;
mod backends;
mod background;
mod channels;
pub mod client;
mod control;
mod cores;
mod door;
mod ending;
mod error;
mod family;
mod forecast;
mod intents;
mod leases;
mod limits;
mod live_network;
mod log;
mod named;
mod needed;
mod observe;
mod output;
mod prompting;
mod publish;
mod questions;
mod recorder;
mod refusals;
mod relay;
mod run;
mod scope;
mod sockets;
mod strangers;
mod streams;
mod supervise;
mod taint;
pub mod terminal;
mod watchdog;

pub use archive::Archive;
pub use backends::backend;
pub use background::{Awaited, Background, Side, detach};
pub use control::Farewell;
pub use error::RunError;
pub use family::{Birthright, Kin, Maker};
pub use forecast::{Forecast, forecast};
pub use ironcage_layers::network::delivery_messages;
pub use ironcage_oci::run_init as run_container_init;
pub use run::{Finished, Job, run};
