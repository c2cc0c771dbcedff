//! The protocol between a microVM's cage and the init of its guest.
//!
//! One byte stream (virtio-serial) carries frames of many sessions. A session is one command in the
//! guest. Each direction of a stream is under credit, so that a slow reader holds up its own command
//! only, and what either side has to buffer has a bound.
//!
//! Everything that comes from the guest is hostile input: [`Decoder`] refuses what the protocol
//! does not have, before it buffers it.
#![forbid(unsafe_code)]

mod carried;
mod frame;
mod order;

pub use carried::Carried;
pub use frame::{Decoder, FRAME_HEADER, Frame, FrameError, Kind, MAX_PAYLOAD};
pub use order::{GuestOrder, MAX_ORDER, OrderError, TerminalSize};

use serde::{Deserialize, Serialize};

/// The name of the virtio-serial port.
pub const PORT: &str = "ironcage.control";
/// The tag of the shared root.
pub const ROOT_TAG: &str = "root";

/// Where a cage has what its microVM needs.
pub const PLACE: &str = "/.ironcage/vm";
/// The program in it that boots the machine, serves its files and carries its commands.
pub const PROGRAM: &str = "/.ironcage/vm/ironcage-vmm";
/// The guest's kernel.
pub const KERNEL: &str = "/.ironcage/vm/kernel";
/// The guest's initramfs.
pub const INITRAMFS: &str = "/.ironcage/vm/initramfs";
/// The abstract name in the cage at which a connection to a port of the guest's loopback begins: the
/// port, two bytes in network order, then what is carried.
pub const PORTS_SOCKET: &str = "ironcage-vm-ports";
/// The host's system in a cage whose own is another one: QEMU is started from it.
pub const SYSTEM: &str = "/.ironcage/vm/system";
/// Storage of the guest alone, in its memory, where commands are root of it.
pub const SCRATCH: &str = "/scratch";
/// How the machine is made, as [`MachineConfig`].
pub const MACHINE: &str = "/.ironcage/vm/machine.json";

/// Where a cage has the template that its machine is restored from: the guest's memory, and the
/// state of its devices.
pub const TEMPLATE: &str = "/.ironcage/vm/template";
pub const TEMPLATE_MEMORY: &str = "/.ironcage/vm/template/memory";
pub const TEMPLATE_STATE: &str = "/.ironcage/vm/template/state";
/// Where a cage has QEMU, if it is not the system's.
pub const QEMU: &str = "/.ironcage/vm/qemu";

/// The device of KVM, in a cage whose machine uses it.
pub const KVM: &str = "/dev/kvm";

/// Bytes of one stream that may be on their way before the reader has asked for more.
pub const WINDOW: u32 = 64 << 10;
/// Sessions that may be open at once.
pub const MAX_SESSIONS: usize = 72;

/// Connections that are carried at once, both ways together.
pub const MAX_CONNECTIONS: usize = 64;
/// The first number of a session that the guest begins.
pub const GUEST_SESSIONS: u32 = 1 << 31;

/// Streams of a session. A connection has the first one only, both ways.
pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;

/// What the guest's init is told before the first command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSetup {
    /// The agent's ids, the same as in the cage.
    pub uid: u32,
    pub gid: u32,
    /// Whether commands are root of this kernel. Files are the agent's all the same.
    pub root: bool,
    pub hostname: String,
    /// Whether the guest has a network interface.
    pub network: bool,
    /// The largest number of open files of a process.
    pub files: u64,
    /// The largest number of processes of the agent.
    pub processes: u64,
    /// The system call filter as the kernel has it, eight bytes for each instruction.
    pub filter: Vec<u8>,
    /// The time, in nanoseconds since the epoch.
    pub time: u64,
    /// Fresh randomness for the guest's pool.
    pub entropy: Vec<u8>,
    /// Where the guest's init listens for what is outside the guest.
    pub relays: Vec<Relay>,
}

/// A place in the guest that leads to the same place of the cage. The guest says which one by its
/// index and nothing else, so it reaches what the plan lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relay {
    /// A Unix socket of the view, by its path.
    Socket(Vec<u8>),
    /// A port of the loopback.
    Port(u16),
}

impl MachineConfig {
    /// The file's content.
    ///
    /// # Errors
    /// None that can happen: it holds nothing that JSON lacks.
    pub fn encode(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Reads the file's content.
    ///
    /// # Errors
    /// Bytes that are not one.
    pub fn decode(bytes: &[u8]) -> serde_json::Result<MachineConfig> {
        serde_json::from_slice(bytes)
    }
}

impl GuestSetup {
    /// The ids of commands.
    pub fn ids(&self) -> (u32, u32) {
        match self.root {
            true => (0, 0),
            false => (self.uid, self.gid),
        }
    }

    /// The setup as it travels.
    ///
    /// # Errors
    /// None that can happen: it holds nothing that JSON lacks.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }

    /// Reads a setup.
    ///
    /// # Errors
    /// Bytes that are not one.
    pub fn decode(bytes: &[u8]) -> serde_json::Result<GuestSetup> {
        serde_json::from_slice(bytes)
    }
}

/// How a virtual machine is made: what the plan says, for the program that boots it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineConfig {
    /// The VMM.
    pub qemu: String,
    /// What loads it and its libraries, where both are below [`SYSTEM`].
    pub loader: Option<String>,
    /// RAM of the guest in MiB.
    pub memory: u64,
    /// The directory of its firmware, where that is not the system's.
    pub firmware: Option<String>,
    /// Whether the machine is restored from a template. Else it boots.
    pub restore: bool,
    /// Whether the host's KVM carries out its instructions.
    pub kvm: bool,
    /// The VMM's own system call filter, eight bytes for each instruction.
    pub vmm_filter: Vec<u8>,
    /// The file server's own.
    pub files_filter: Vec<u8>,
    /// What the guest's init is told; `time` and `entropy` are filled in when it is.
    pub guest: GuestSetup,
}

/// The guest's network: QEMU's user network in the cage's network namespace, where everything
/// meets the egress proxy.
pub mod network {
    use std::net::Ipv4Addr;

    pub const NETWORK: &str = "198.19.255.0/24";
    pub const PREFIX: u8 = 24;
    pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 2);
    pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 3);
    pub const GUEST: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 15);
}
