//! The command line, as runc has it.

use crate::create;
use crate::error::Error;
use crate::exec;
use crate::spec::{self, Capabilities, Process, Resources};
use crate::state::Store;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ironcage_sys::rustix::process::geteuid;
use std::path::PathBuf;
use std::time::Duration;

/// Run containers of Docker, podman, containerd and Kubernetes under Ironcage's layers
#[derive(Debug, Parser)]
#[command(name = "ironcage-oci-runtime", version = VERSION, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Engines look for the version of the specification.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\nspec: 1.2.0");

#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Directory where containers are kept [default: /run/ironcage/oci]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// File to which errors are appended
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Format of that file
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: Format,
    /// Accepted for runc's sake; there is nothing more to log
    #[arg(long, hide = true)]
    debug: bool,
    /// Refused: this runtime writes cgroups itself
    #[arg(long)]
    pub(crate) systemd_cgroup: bool,
    /// Profiles of this node [default: /etc/ironcage/oci-runtime.toml, where it exists]
    #[arg(long, value_name = "FILE")]
    policy_file: Option<PathBuf>,
}

impl Global {
    pub(crate) fn root(&self) -> PathBuf {
        match &self.root {
            Some(root) => root.clone(),
            None if geteuid().is_root() => "/run/ironcage/oci".into(),
            None => match std::env::var_os("XDG_RUNTIME_DIR") {
                Some(own) => PathBuf::from(own).join("ironcage/oci"),
                None => format!("/tmp/ironcage-oci-{}", geteuid().as_raw()).into(),
            },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    Table,
    Json,
}

impl ListFormat {
    pub(crate) fn is_json(self) -> bool {
        self == ListFormat::Json
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a container whose program waits for `start`
    Create(CreateArgs),
    /// Let the program of a created container run
    Start {
        /// Container ID
        id: String,
    },
    /// Create and start a container, and remove it when it ends
    Run(RunArgs),
    /// Print the state of a container as JSON
    State {
        /// Container ID
        id: String,
    },
    /// Send a signal to the first process of a container
    Kill {
        /// Container ID
        id: String,
        /// Name or number of the signal
        #[arg(default_value = "TERM")]
        signal: String,
        /// Signal every process of the container
        #[arg(short, long)]
        all: bool,
    },
    /// Remove a stopped container
    Delete {
        /// Container ID
        id: String,
        /// Kill it first if it still runs; one that does not exist is no error
        #[arg(short, long)]
        force: bool,
    },
    /// Run another process in a container
    Exec(ExecArgs),
    /// List the processes of a container
    Ps {
        /// Container ID
        id: String,
        /// Format of the list
        #[arg(short, long, value_enum, default_value = "table")]
        format: ListFormat,
        /// Options of ps(1), whose output has a column PID
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Freeze every process of a container
    Pause {
        /// Container ID
        id: String,
    },
    /// Resume a paused container
    Resume {
        /// Container ID
        id: String,
    },
    /// Change the limits of a container
    Update(UpdateArgs),
    /// List containers
    List {
        /// Format of the list
        #[arg(short, long, value_enum, default_value = "table")]
        format: ListFormat,
        /// Print IDs only
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print what a container uses, as JSON lines
    Events {
        /// Container ID
        id: String,
        /// Print once and exit
        #[arg(long)]
        stats: bool,
        /// Time between two lines
        #[arg(long, value_parser = interval, default_value = "5s")]
        interval: Duration,
    },
    /// Print what this runtime supports as JSON
    Features,
    /// Refused: filters and Landlock rules cannot be restored
    Checkpoint {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<String>,
    },
    /// Refused, as checkpoint
    Restore {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<String>,
    },
}

/// `5s`, `500ms`, `2m` or plain seconds.
fn interval(text: &str) -> Result<Duration, std::num::ParseIntError> {
    let (digits, scale) = match (
        text.strip_suffix("ms"),
        text.strip_suffix('s'),
        text.strip_suffix('m'),
    ) {
        (Some(digits), _, _) => (digits, 1),
        (_, Some(digits), _) => (digits, 1000),
        (_, _, Some(digits)) => (digits, 60_000),
        _ => (text, 1000),
    };
    let number: u32 = digits.parse()?;
    Ok(Duration::from_millis(u64::from(number.max(1)) * scale))
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Container ID
    id: String,
    /// Directory with config.json
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    bundle: PathBuf,
    /// Socket that gets the terminal
    #[arg(long, value_name = "SOCKET")]
    console_socket: Option<PathBuf>,
    /// Socket that gets a descriptor of the first process
    #[arg(long, value_name = "SOCKET")]
    pidfd_socket: Option<PathBuf>,
    /// File for the ID of the first process
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Replace the root without pivot_root, for hosts on a RAM disk
    #[arg(long)]
    no_pivot: bool,
    /// Keep the session keyring of the caller
    #[arg(long)]
    no_new_keyring: bool,
    /// Pass this many more descriptors than the standard streams
    #[arg(long, value_name = "N", default_value_t = 0)]
    preserve_fds: u16,
}

/// How many descriptors the program gets: those that the caller names, or that a service manager
/// passed on.
fn preserved(named: u16) -> Result<i32, Error> {
    let passed = std::env::var("LISTEN_FDS")
        .ok()
        .and_then(|text| text.parse::<u16>().ok());
    let count = i32::from(named.saturating_add(passed.unwrap_or(0)).min(1024));
    let mut all = 3..3 + count;
    match all.find(|number| ironcage_sys::process::pass_on(*number).is_err()) {
        Some(number) => Err(Error::refused(
            format!("preserve descriptor {number}"),
            "it is not open",
        )),
        None => Ok(count),
    }
}

impl CreateArgs {
    pub(crate) fn request(&self, global: &Global) -> Result<create::Request, Error> {
        Ok(create::Request {
            id: self.id.clone(),
            bundle: self.bundle.clone(),
            policy_file: global.policy_file.clone(),
            console_socket: self.console_socket.clone(),
            pidfd_socket: self.pidfd_socket.clone(),
            pid_file: self.pid_file.clone(),
            preserved: preserved(self.preserve_fds)?,
            no_pivot: self.no_pivot,
            no_new_keyring: self.no_new_keyring,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    /// Leave the container running
    #[arg(short, long)]
    pub(crate) detach: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Container ID
    id: String,
    /// Command and its arguments, without --process
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
    /// File with the process as JSON
    #[arg(short, long, value_name = "FILE")]
    process: Option<PathBuf>,
    /// Do not wait for the process
    #[arg(short, long)]
    detach: bool,
    /// Socket that gets the terminal
    #[arg(long, value_name = "SOCKET")]
    console_socket: Option<PathBuf>,
    /// Socket that gets a descriptor of the process
    #[arg(long, value_name = "SOCKET")]
    pidfd_socket: Option<PathBuf>,
    /// File for the ID of the process
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Give the process a terminal
    #[arg(short, long)]
    tty: bool,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Environment variable NAME=VALUE (can be repeated)
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// User and group by numbers, UID[:GID]
    #[arg(short, long, value_name = "UID[:GID]")]
    user: Option<String>,
    /// Supplementary group (can be repeated)
    #[arg(short = 'g', long, value_name = "GID")]
    additional_gids: Vec<u32>,
    /// Capability on top of the container's (can be repeated); the profile's are the most
    #[arg(short, long, value_name = "NAME")]
    cap: Vec<String>,
    /// Set no_new_privs
    #[arg(long)]
    no_new_privs: bool,
    /// AppArmor profile of the process
    #[arg(long, value_name = "PROFILE")]
    apparmor: Option<String>,
    /// SELinux label of the process
    #[arg(long, value_name = "LABEL")]
    process_label: Option<String>,
    /// Also in a paused container: the process is frozen, too
    #[arg(long)]
    ignore_paused: bool,
    /// Pass this many more descriptors than the standard streams
    #[arg(long, value_name = "N", default_value_t = 0)]
    preserve_fds: u16,
}

impl ExecArgs {
    pub(crate) fn request(self, store: &Store) -> Result<exec::Request, Error> {
        let process = match &self.process {
            Some(file) => spec::read(file)?,
            None => self.described(store)?,
        };
        Ok(exec::Request {
            id: self.id,
            process,
            console_socket: self.console_socket,
            pidfd_socket: self.pidfd_socket,
            pid_file: self.pid_file,
            preserved: preserved(self.preserve_fds)?,
            detach: self.detach,
            ignore_paused: self.ignore_paused,
        })
    }

    /// The container's own process with what the options change.
    fn described(&self, store: &Store) -> Result<Process, Error> {
        let (record, _) = store.look(&self.id)?;
        let mut process = record.spec.process.unwrap_or_default();
        process.args = self.args.clone();
        process.terminal = self.tty;
        process.env.extend(self.env.iter().cloned());
        process.no_new_privileges |= self.no_new_privs;
        if let Some(cwd) = &self.cwd {
            process.cwd.clone_from(cwd);
        }
        if let Some(user) = &self.user {
            let (uid, gid) = user.split_once(':').unwrap_or((user, "0"));
            let number = |text: &str| {
                text.parse::<u32>().map_err(|_| {
                    Error::refused(
                        format!("use the user {user:?}"),
                        "expected UID or UID:GID, by numbers",
                    )
                })
            };
            (process.user.uid, process.user.gid) = (number(uid)?, number(gid)?);
        }
        process.user.additional_gids.extend(&self.additional_gids);
        if let Some(profile) = &self.apparmor {
            process.apparmor_profile.clone_from(profile);
        }
        if let Some(label) = &self.process_label {
            process.selinux_label.clone_from(label);
        }
        if !self.cap.is_empty() {
            let mut held = process.capabilities.unwrap_or_default();
            let Capabilities {
                bounding,
                effective,
                permitted,
                ..
            } = &mut held;
            for list in [bounding, effective, permitted] {
                list.extend(self.cap.iter().cloned());
            }
            process.capabilities = Some(held);
        }
        Ok(process)
    }
}

#[derive(Debug, Args)]
pub(crate) struct UpdateArgs {
    /// Container ID
    pub(crate) id: String,
    /// File with the limits as JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    resources: Option<PathBuf>,
    /// Memory in bytes; -1 is no limit
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    memory: Option<i64>,
    /// Memory that is kept when memory is short, in bytes
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    memory_reservation: Option<i64>,
    /// Memory and swap together, in bytes; -1 is no limit
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    memory_swap: Option<i64>,
    /// Relative share of CPU time
    #[arg(long, value_name = "N")]
    cpu_share: Option<u64>,
    /// CPU time in each period, in microseconds
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    cpu_quota: Option<i64>,
    /// Period of the CPU quota, in microseconds
    #[arg(long, value_name = "N")]
    cpu_period: Option<u64>,
    /// CPUs to run on
    #[arg(long, value_name = "LIST")]
    cpuset_cpus: Option<String>,
    /// Memory nodes to use
    #[arg(long, value_name = "LIST")]
    cpuset_mems: Option<String>,
    /// Relative share of disk time
    #[arg(long, value_name = "N")]
    blkio_weight: Option<u16>,
    /// Most processes and threads; -1 is no limit
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pids_limit: Option<i64>,
}

impl UpdateArgs {
    pub(crate) fn resources(self) -> Result<Resources, Error> {
        let mut made: Resources = match &self.resources {
            None => Resources::default(),
            Some(file) if file.as_os_str() == "-" => spec::read_input()?,
            Some(file) => spec::read(file)?,
        };
        let memory = &mut made.memory;
        memory.limit = self.memory.or(memory.limit);
        memory.reservation = self.memory_reservation.or(memory.reservation);
        memory.swap = self.memory_swap.or(memory.swap);
        let cpu = &mut made.cpu;
        cpu.shares = self.cpu_share.or(cpu.shares);
        cpu.quota = self.cpu_quota.or(cpu.quota);
        cpu.period = self.cpu_period.or(cpu.period);
        cpu.cpus = self.cpuset_cpus.unwrap_or(std::mem::take(&mut cpu.cpus));
        cpu.mems = self.cpuset_mems.unwrap_or(std::mem::take(&mut cpu.mems));
        made.block_io.weight = self.blkio_weight.or(made.block_io.weight);
        made.pids.limit = self.pids_limit.or(made.pids.limit);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_what_engines_call() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
        for line in [
            "x --root /r --log /l --log-format json create --bundle /b --pid-file /p --console-socket /s id",
            "x --root /r start id",
            "x --log /l --log-format json kill --all id 9",
            "x delete --force id",
            "x exec --process /f --detach --pid-file /p id",
            "x ps --format json id",
            "x update --resources=- id",
            "x update --memory -1 id",
            "x list --format=json",
            "x events --stats id",
            "x --debug create --no-pivot --no-new-keyring --preserve-fds 2 --pidfd-socket /s id",
            "x exec -t -u 1:2 id sh -c true",
        ] {
            let words = line.split(' ');
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("2m"), Ok(Duration::from_secs(120)));
        assert!(interval("soon").is_err());
    }
}
