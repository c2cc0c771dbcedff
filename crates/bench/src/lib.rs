//! The benchmarks behind `ironcage bench`: start, system calls, a mixed task, memory, the workspace, the network,
//! the service.
//!
//! Each bench measures the `ironcage` program from outside, as a user would start it, beside
//! the bare command and the peers that are installed, in interleaved rounds, so that a
//! change of the machine's mood meets all of them. A bench returns a report: numbers, the
//! host they were seen on, and the command that reproduces them. It prints nothing, and
//! nothing here confines anything.
#![forbid(unsafe_code)]

mod arm;
mod calls;
mod corpus;
mod error;
mod exec;
mod facts;
mod field;
mod floor;
mod image_engines;
mod images;
mod intent;
mod leases;
mod memory;
mod network;
mod peers;
mod prepared;
mod process_tree;
mod resident;
mod scratch;
mod serve;
mod start;
mod statistics;
mod steps;
mod syscalls;
mod table;
mod task;
mod tools;
mod verdict;
mod workspace;

use std::path::PathBuf;

pub use calls::{CallsReport, CallsRequest, bench_calls, serve_tools};
pub use corpus::{
    AttacksReport, AttacksRequest, CorpusReport, LabelledCorpus, Score, SessionsReport,
    SessionsRequest, bench_attacks, bench_corpus, bench_sessions,
};
pub use error::{ArmError, BenchError};
pub use exec::{ExecBenchRequest, ExecReport, bench_exec};
pub use facts::HostFacts;
pub use field::{Escapes, FieldReport, FieldRequest, Suspect, bench_field};
pub use floor::{FloorRequest, serve_floor};
pub use images::{ImageReport, ImageRequest, bench_image};
pub use intent::{IntentReport, IntentRequest, RequestForecast, bench_intent};
pub use leases::{LeasesReport, LeasesRequest, Soak, bench_leases};
pub use memory::{MemoryReport, MemoryRequest, bench_memory};
pub use network::{NetworkBenchRequest, NetworkReport, bench_network, measure_network};
pub use prepared::{PoolReport, bench_pool};
pub use resident::{PrivateCgroupLaunch, serve_launches};
pub use serve::{ServeReport, ServeRequest, bench_serve};
pub use start::{StartReport, StartRequest, bench_start};
pub use statistics::Summary;
pub use steps::{StepsReport, bench_steps};
pub use syscalls::{SyscallTimes, SyscallsReport, SyscallsRequest, bench_syscalls, time_syscalls};
pub use task::{TaskReport, TaskRequest, bench_task};
pub use tools::{ToolsReport, ToolsRequest, bench_tools};
pub use verdict::{Target, Verdict};
pub use workspace::{WorkspaceReport, WorkspaceRequest, bench_workspace};

/// This program, which a bench starts again: as its floor, as what is timed inside, as the one who
/// starts a peer.
fn own_program() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(BenchError::call("reading the program's own path"))
}
