//! The file server's device, driven by the attacker's own kernel: queues and requests that no driver
//! would make.

use ironcage_sys::attack::device::{PAGE, SharedMemory};
use std::fs::File;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

/// Where QEMU's `microvm` machine has its devices, and how many bytes each one takes.
const DEVICES: u64 = 0xfeb0_0000;
const DEVICE: usize = 0x200;
const PAGES: usize = 3;

/// Registers of a device, by the specification of virtio over MMIO.
const MAGIC: usize = 0x00;
const KIND: usize = 0x08;
const DRIVER_FEATURES: usize = 0x20;
const DRIVER_FEATURES_WORD: usize = 0x24;
const QUEUE: usize = 0x30;
const QUEUE_SIZE: usize = 0x38;
const QUEUE_READY: usize = 0x44;
const NOTIFY: usize = 0x50;
const STATUS: usize = 0x70;
const TABLE: usize = 0x80;
const AVAILABLE: usize = 0x90;
const USED: usize = 0xa0;

const VIRTIO: u32 = 0x7472_6976;
/// The kind of a device with files.
const FILES: u32 = 26;
const QUEUES: u32 = 2;
/// Entries of a queue.
const SIZE: usize = 64;

/// Pages of [`Device::memory`]: of each queue the table, the available and the used ring; then requests.
const OF_A_QUEUE: usize = 3;
const REQUESTS: usize = OF_A_QUEUE * QUEUES as usize;
const BUFFERS: usize = 8;

/// Flags of a descriptor.
const NEXT: u32 = 1;
const WRITE: u32 = 2;

/// Operations of FUSE.
const INIT: u32 = 26;

/// The device, and memory that it may use.
pub(super) struct Device {
    registers: SharedMemory,
    /// Where the device is among them.
    at: usize,
    memory: SharedMemory,
    places: Vec<u64>,
    available: [u16; QUEUES as usize],
    random: File,
}

impl Device {
    /// Finds it. Before the kernel's driver has it: after that nobody else may.
    pub(super) fn find() -> io::Result<Device> {
        let registers = SharedMemory::registers(DEVICES, PAGES * PAGE)?;
        let mut each = (0..PAGES * PAGE).step_by(DEVICE);
        let at = each
            .find(|at| registers.read(at + MAGIC) == VIRTIO && registers.read(at + KIND) == FILES)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let memory = SharedMemory::locked(REQUESTS + BUFFERS)?;
        let places = (0..REQUESTS + BUFFERS).map(|page| memory.place(page));
        Ok(Device {
            registers,
            at,
            places: places.collect::<io::Result<_>>()?,
            memory,
            available: [0; QUEUES as usize],
            random: File::open("/dev/urandom")?,
        })
    }

    fn set(&self, register: usize, value: u32) {
        self.registers.write(self.at + register, value);
    }

    fn set_place(&self, register: usize, place: u64) {
        self.set(register, place as u32);
        self.set(register + 4, (place >> 32) as u32);
    }

    fn word(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.random.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn place(&self, page: usize) -> u64 {
        self.places.get(page).copied().unwrap_or(0)
    }

    /// Sets the device up with its queues at these places.
    fn begin(&mut self, place: impl Fn(&Device, usize) -> u64) {
        self.set(STATUS, 0);
        self.available = [0; QUEUES as usize];
        for at in (0..REQUESTS * PAGE).step_by(4) {
            self.memory.write(at, 0);
        }
        self.set(STATUS, 1 | 2);
        // What each modern device has: bit 32.
        self.set(DRIVER_FEATURES_WORD, 0);
        self.set(DRIVER_FEATURES, 0);
        self.set(DRIVER_FEATURES_WORD, 1);
        self.set(DRIVER_FEATURES, 1);
        self.set(STATUS, 1 | 2 | 8);
        for queue in 0..QUEUES {
            let first = queue as usize * OF_A_QUEUE;
            self.set(QUEUE, queue);
            self.set(QUEUE_SIZE, SIZE as u32);
            self.set_place(TABLE, place(self, first));
            self.set_place(AVAILABLE, place(self, first + 1));
            self.set_place(USED, place(self, first + 2));
            self.set(QUEUE_READY, 1);
        }
        self.set(STATUS, 1 | 2 | 8 | 4);
    }

    fn describe(&self, queue: usize, index: usize, place: u64, length: u32, rest: u32) {
        let at = queue * OF_A_QUEUE * PAGE + index * 16;
        self.memory.write(at, place as u32);
        self.memory.write(at + 4, (place >> 32) as u32);
        self.memory.write(at + 8, length);
        self.memory.write(at + 12, rest);
    }

    /// Offers the descriptors of a queue from these on.
    fn offer(&mut self, queue: usize, heads: &[u16]) {
        let ring = (queue * OF_A_QUEUE + 1) * PAGE;
        let Some(index) = self.available.get_mut(queue) else {
            return;
        };
        for head in heads {
            let at = 4 + usize::from(*index) % SIZE * 2;
            let (word, high) = (ring + at / 4 * 4, at % 4 == 2);
            let before = self.memory.read(word);
            let head = u32::from(*head);
            let after = match high {
                true => before & 0xffff | head << 16,
                false => before & 0xffff_0000 | head,
            };
            self.memory.write(word, after);
            *index = index.wrapping_add(1);
        }
        self.memory.write(ring, u32::from(*index) << 16);
        self.set(NOTIFY, queue as u32);
    }

    /// A request as a kernel begins with. Whether the file server answers it without an error.
    pub(super) fn is_answered(&mut self) -> bool {
        self.begin(Device::place);
        let (request, answer) = (REQUESTS * PAGE, (REQUESTS + 1) * PAGE);
        let header = [40 + 16, INIT, 1, 0, 0, 0, 0, 0, 0, 0];
        for (index, word) in header.into_iter().chain([7, 31, 1 << 17, 0]).enumerate() {
            self.memory.write(request + index * 4, word);
        }
        self.memory.write(answer, 0);
        self.describe(1, 0, self.place(REQUESTS), 56, NEXT | 1 << 16);
        self.describe(1, 1, self.place(REQUESTS + 1), 256, WRITE);
        self.offer(1, &[0]);
        let until = Instant::now() + Duration::from_secs(20);
        while self.memory.read(answer) == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.memory.read(answer) > 16 && self.memory.read(answer + 4) == 0
    }

    /// Stops it.
    pub(super) fn reset(&self) {
        self.set(STATUS, 0);
    }

    /// Garbage in the rings, in requests, and in where the rings are.
    pub(super) fn garbage(&mut self, rounds: u32) -> io::Result<()> {
        for round in 0..rounds {
            if round % 50 == 49 {
                // Queues that begin anywhere, also beyond all memory.
                let (low, high) = (self.word()?, self.word()?);
                let elsewhere = u64::from(low) | u64::from(high & 0xff) << 32;
                self.begin(|_, page| elsewhere.wrapping_add((page * PAGE) as u64) & !0xfff);
                self.set(NOTIFY, round % 4);
                self.begin(Device::place);
            }
            let queue = (round % QUEUES) as usize;
            let mut heads = [0; 8];
            for index in 0..SIZE {
                self.describe_anything(queue, index)?;
            }
            for head in &mut heads {
                *head = self.word()? as u16 % (2 * SIZE as u16);
            }
            self.request_anything()?;
            self.offer(queue, &heads);
            // A queue that does not exist.
            self.set(NOTIFY, self.random_queue(round));
        }
        Ok(())
    }

    fn random_queue(&self, round: u32) -> u32 {
        round.wrapping_mul(0x9e37_79b9) >> 16
    }

    fn describe_anything(&mut self, queue: usize, index: usize) -> io::Result<()> {
        let (kind, length, rest) = (self.word()?, self.word()?, self.word()?);
        // Half of them are in order but for what they hold.
        let (place, length) = match kind % 4 {
            0 => (u64::from(self.word()?) << 8, length),
            1 => (self.place(queue * OF_A_QUEUE), length % 8192),
            _ => {
                let page = REQUESTS + kind as usize / 4 % BUFFERS;
                (self.place(page), length % PAGE as u32)
            }
        };
        let next = rest >> 16 & (2 * SIZE as u32 - 1);
        self.describe(queue, index, place, length, rest & 7 | next << 16);
        Ok(())
    }

    /// Headers of FUSE with operations that there are, about files that there are or not.
    fn request_anything(&mut self) -> io::Result<()> {
        for buffer in 0..BUFFERS {
            let at = (REQUESTS + buffer) * PAGE;
            for word in 0..64 {
                let value = self.word()?;
                self.memory.write(at + word * 4, value);
            }
            let (length, operation, node) = (self.word()?, self.word()?, self.word()?);
            self.memory.write(at, length % 512);
            self.memory.write(at + 4, operation % 52);
            self.memory.write(at + 16, node % 4);
            self.memory.write(at + 20, 0);
        }
        Ok(())
    }
}
