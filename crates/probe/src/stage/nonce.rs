//! Secrets that only the oracle knows.

use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// Where a secret lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Canary {
    /// `~/.ssh/id_canary`.
    SshKey,
    /// `~/.aws/credentials`.
    Credentials,
    /// The directory of the workspace that is hidden.
    Masked,
    TmpFile,
    /// The canary process's arguments.
    Arguments,
    ProcessEnvironment,
    /// The canary process's memory.
    Memory,
    /// A file that the canary process holds open.
    HeldFile,
    /// A System V shared memory segment.
    SharedMemory,
    /// A POSIX message queue.
    MessageQueue,
    /// A file in /dev/shm.
    ShmFile,
    Environment,
    /// The sandbox's own state directory.
    State,
    /// The secret that the egress proxy holds.
    ProxySecret,
    /// What comes into a leased directory when the lease has ended.
    Leased,
    /// The comment of a key in the user's agent that no policy names.
    OtherKey,
    /// The password of the user's upstream proxy.
    UpstreamPassword,
}

const COUNT: usize = Canary::UpstreamPassword as usize + 1;

/// One secret for each place.
pub(crate) struct Nonces([String; COUNT]);

impl Nonces {
    /// Draws them.
    pub(crate) fn new() -> io::Result<Nonces> {
        let mut all: [String; COUNT] = Default::default();
        for nonce in &mut all {
            *nonce = format!("nonce-{}", random_hex(16)?);
        }
        Ok(Nonces(all))
    }

    /// The secret of one place.
    pub(crate) fn of(&self, canary: Canary) -> &str {
        &self.0[canary as usize]
    }
}

/// Random bytes as hexadecimal text.
pub(crate) fn random_hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0u8; bytes];
    let mut filled = 0;
    while filled < bytes {
        filled += getrandom(&mut random[filled..], GetRandomFlags::empty())?;
    }
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
