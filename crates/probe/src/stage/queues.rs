//! System V and POSIX objects in the stage's own IPC namespace, which takes them with it.

use super::{Canary, Nonces, StageError, making, random_hex};
use crate::params::Params;
use ironcage_sys::attack;
use std::ffi::CString;
use std::io;

/// Objects that live as long as the stage's namespace.
pub(crate) struct Queues {
    shared_memory: i32,
    queue: i32,
    posix: CString,
}

fn random_key() -> io::Result<i32> {
    let text = random_hex(3)?;
    i32::from_str_radix(&text, 16)
        .map(|key| key | 1 << 24)
        .map_err(io::Error::other)
}

impl Queues {
    pub(crate) fn create(params: &mut Params, nonces: &Nonces) -> Result<Queues, StageError> {
        params.shm_key = random_key().map_err(making("a random key"))?;
        params.queue_key = random_key().map_err(making("a random key"))?;
        let tag = random_hex(6).map_err(making("random numbers"))?;
        params.queue_name = format!("/queue-{tag}");
        let posix = CString::new(params.queue_name.clone())
            .map_err(|error| making("a queue name")(io::Error::from(error)))?;
        let secret = nonces.of(Canary::SharedMemory).as_bytes();
        let shared_memory = attack::shared_memory_create(params.shm_key, secret)
            .map_err(making("a shared memory segment"))?;
        let queue = attack::sysv_queue_create(params.queue_key)
            .map_err(making("a System V message queue"))?;
        // Several: each run that gets through takes one.
        let secret = nonces.of(Canary::MessageQueue).as_bytes();
        attack::message_queue_create(&posix, secret, 4).map_err(making("a POSIX message queue"))?;
        Ok(Queues {
            shared_memory,
            queue,
            posix,
        })
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // The namespace takes them anyway; this is for a stage that is built without one.
        let _ = attack::shared_memory_remove(self.shared_memory);
        let _ = attack::sysv_queue_remove(self.queue);
        let _ = attack::message_queue_unlink(&self.posix);
    }
}
