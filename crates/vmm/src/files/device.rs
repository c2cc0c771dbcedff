//! The virtio queues of the shared root, which QEMU hands over by vhost-user.
//!
//! Descriptors and requests are the guest's, and so hostile: the crates that read them check them
//! against the guest's memory, and a request that cannot be read ends nothing but itself.

use super::Files;
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::transport::{Reader, VirtioFsWriter};
use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
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
            | VhostUserVirtioFeatures::LOG_ALL.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        // The last two are what QEMU wants of a device that it saves. No log is ever kept: QEMU
        // asks for one for a device in use only, and a template is saved before its guest uses it.
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::DEVICE_STATE
    }

    /// A machine is saved and restored while its guest knows no file, so there is no state: the end
    /// of the file says so.
    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        file: File,
    ) -> io::Result<Option<File>> {
        drop(file);
        Ok(None)
    }

    fn check_device_state(&self) -> io::Result<()> {
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use fuse_backend_rs::abi::fuse_abi::{InHeader, Opcode, OutHeader};
    use proptest::prelude::*;
    use vm_memory::{Bytes as _, GuestAddress};

    const TABLE: u64 = 0;
    const AVAILABLE: u64 = 0x1000;
    const USED: u64 = 0x2000;
    const REQUEST: u64 = 0x4000;
    const ANSWER: u64 = 0x8000;
    const SIZE: u16 = 16;

    struct Machine {
        device: Device,
        memory: GuestMemoryMmap,
        vring: Vring,
    }

    /// A device, and the memory of a guest that drives its queue.
    fn machine() -> Machine {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        let atomic = GuestMemoryAtomic::new(memory.clone());
        let vring = Vring::new(atomic.clone(), SIZE).unwrap();
        vring.set_queue_size(SIZE);
        vring.set_queue_info(TABLE, AVAILABLE, USED).unwrap();
        vring.set_queue_ready(true);
        let exit = new_event_consumer_and_notifier(EventFlag::NONBLOCK).unwrap();
        let device = Device {
            server: Server::new(Arc::new(Files::new().unwrap())),
            memory: atomic,
            event_index: false,
            exit,
        };
        Machine {
            device,
            memory,
            vring,
        }
    }

    impl Machine {
        fn describe(&self, index: u64, place: u64, length: u32, flags: u16, next: u16) {
            let at = TABLE + index * 16;
            self.memory.write_obj(place, GuestAddress(at)).unwrap();
            self.memory.write_obj(length, GuestAddress(at + 8)).unwrap();
            self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
            self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
        }

        /// Offers the chain that begins with the first descriptor, and serves it.
        fn serve(&self) -> io::Result<bool> {
            self.memory
                .write_obj(0_u16, GuestAddress(AVAILABLE + 4))
                .unwrap();
            self.memory
                .write_obj(1_u16, GuestAddress(AVAILABLE + 2))
                .unwrap();
            self.device.serve(&self.vring)
        }

        fn request(&self, header: InHeader, body: &[u8]) {
            self.memory
                .write_obj(header, GuestAddress(REQUEST))
                .unwrap();
            let length = size_of::<InHeader>();
            let rest = GuestAddress(REQUEST + length as u64);
            self.memory.write_slice(body, rest).unwrap();
            self.describe(0, REQUEST, (length + body.len()) as u32, 1, 1);
            self.describe(1, ANSWER, 4096, 2, 0);
        }
    }

    fn header(opcode: u32, node: u64, length: usize) -> InHeader {
        InHeader {
            len: length as u32,
            opcode,
            unique: 7,
            nodeid: node,
            ..InHeader::default()
        }
    }

    /// A number that stands for no file: what is asked of it must fail, whatever it is.
    const NOBODY: u64 = 1 << 40;

    #[test]
    fn a_request_that_is_whole_is_answered() {
        let machine = machine();
        let body = [0; 16];
        let length = size_of::<InHeader>() + body.len();
        machine.request(header(Opcode::Getattr as u32, 1, length), &body);
        assert!(machine.serve().unwrap());
        let answer: OutHeader = machine.memory.read_obj(GuestAddress(ANSWER)).unwrap();
        assert_eq!((answer.error, answer.unique), (0, 7));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn a_hostile_request_is_answered_with_an_error_or_not_at_all(
            opcode in prop_oneof![0_u32..60, any::<u32>()],
            claimed in prop_oneof![0_usize..200, Just(usize::MAX)],
            body in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let machine = machine();
            // A session that begins or ends has an answer. So have requests that reach no file: closing
            // a handle that nobody has, a flush, and the size of the whole file system.
            let harmless = [Opcode::Init, Opcode::Destroy, Opcode::Flush, Opcode::Release];
            let harmless = [&harmless[..], &[Opcode::Releasedir, Opcode::Statfs]].concat();
            prop_assume!(harmless.iter().all(|one| opcode != *one as u32));
            machine.request(header(opcode, NOBODY, claimed), &body);
            prop_assert!(machine.serve().unwrap());
            let answer: OutHeader = machine.memory.read_obj(GuestAddress(ANSWER)).unwrap();
            prop_assert!(answer.len == 0 || answer.error != 0, "{opcode}: {answer:?}");
        }

        #[test]
        fn a_hostile_queue_ends_nothing_but_itself(
            chain in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u16>(), any::<u16>()), 1..16),
            within in any::<bool>(),
        ) {
            let machine = machine();
            for (index, (place, length, flags, next)) in chain.into_iter().enumerate() {
                let place = if within { place % (1 << 20) } else { place };
                machine.describe(index as u64, place, length, flags, next % (SIZE + 1));
            }
            // It may refuse the queue; it must return, and take a good request afterwards.
            let _ = machine.serve();
            let fresh = super::tests::machine();
            fresh.request(header(Opcode::Getattr as u32, 1, 56), &[0; 16]);
            prop_assert!(fresh.serve().unwrap());
        }
    }
}
