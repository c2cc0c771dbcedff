//! The virtio queues of the shared root, which QEMU hands over by vhost-user.
//!
//! Descriptors and requests are the guest's, and so hostile: the crates that read them check them
//! against the guest's memory, and a request that cannot be read ends nothing but itself.

use super::Files;
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::transport::{Reader, VirtioFsWriter};
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringMutex, VringT};
use virtio_queue::QueueOwnedT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

/// Numbers of virtio: what the device can.
const VERSION_1: u64 = 1 << 32;
const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;
/// One for what must not wait, one for requests.
const QUEUES: usize = 2;
const QUEUE_SIZE: usize = 1024;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Vring = VringMutex<Memory>;

struct Device {
    server: Server<Arc<Files>>,
    memory: Memory,
    event_index: bool,
    exit: (EventConsumer, EventNotifier),
}

impl Device {
    /// Serves what waits in a queue. `true` where something did.
    fn serve(&self, vring: &Vring) -> io::Result<bool> {
        let memory = self.memory.memory();
        let mut served = false;
        loop {
            let chain = {
                let mut state = vring.get_mut();
                let queue = state.get_queue_mut();
                queue.iter(memory.clone()).map_err(io::Error::other)?.next()
            };
            let Some(chain) = chain else {
                return Ok(served);
            };
            served = true;
            let head = chain.head_index();
            let reader = Reader::from_descriptor_chain(&*memory, chain.clone());
            let writer = VirtioFsWriter::new(&*memory, chain);
            let written = match (reader, writer) {
                (Ok(reader), Ok(writer)) => {
                    let answer = self
                        .server
                        .handle_message(reader, writer.into(), None, None);
                    answer.unwrap_or(0)
                }
                // Not a request: the guest gets its descriptors back, and no answer.
                _ => 0,
            };
            let written = u32::try_from(written).unwrap_or(0);
            vring.add_used(head, written).map_err(io::Error::other)?;
            if vring.needs_notification().map_err(io::Error::other)? {
                vring.signal_used_queue()?;
            }
        }
    }
}

impl VhostUserBackendMut for Device {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        VERSION_1
            | INDIRECT_DESCRIPTORS
            | EVENT_INDEX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, enabled: bool) {
        self.event_index = enabled;
    }

    fn update_memory(&mut self, memory: Memory) -> io::Result<()> {
        self.memory = memory;
        Ok(())
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        let (consumer, notifier) = &self.exit;
        Some((consumer.try_clone().ok()?, notifier.try_clone().ok()?))
    }

    fn handle_event(
        &mut self,
        event: u16,
        events: EventSet,
        vrings: &[Vring],
        _: usize,
    ) -> io::Result<()> {
        if events != EventSet::IN {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(vring) = vrings.get(usize::from(event)) else {
            return Ok(());
        };
        if !self.event_index {
            self.serve(vring)?;
            return Ok(());
        }
        loop {
            vring.disable_notification().map_err(io::Error::other)?;
            self.serve(vring)?;
            // Something may have come before notifications were on again.
            if !vring.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }
}

/// Serves one machine to its end.
pub(crate) fn serve(files: Arc<Files>, listener: UnixListener) -> io::Result<()> {
    let exit = new_event_consumer_and_notifier(EventFlag::NONBLOCK)?;
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let device = Device {
        server: Server::new(files),
        memory: memory.clone(),
        event_index: false,
        exit,
    };
    let device = Arc::new(Mutex::new(device));
    let mut daemon = VhostUserDaemon::new("files".into(), device.clone(), memory)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut listener = Listener::from(listener);
    let served = daemon.start(&mut listener).and_then(|()| daemon.wait());
    // Nobody else has it any more: what it holds is closed with it.
    let device = device.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = device.exit.1.notify();
    match served {
        Ok(()) => Ok(()),
        // QEMU is gone.
        Err(vhost_user_backend::Error::HandleRequest(
            vhost::vhost_user::Error::Disconnected | vhost::vhost_user::Error::PartialMessage,
        )) => Ok(()),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}
