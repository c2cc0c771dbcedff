//! A guest whose kernel and init are the attacker's: it has root, the control port and every device of
//! its machine, and says what no init of ours would.
//!
//! It is `/init` of an initramfs that a test makes; the file `/attack` beside it names what it does.

mod device;

use device::Device;
use ironcage_guest::{
    Decoder, Frame, GUEST_SESSIONS, Kind, MAX_PAYLOAD, PORT, STDOUT, WINDOW, network,
};
use ironcage_sys::attack::raw_frames;
use ironcage_sys::guest::{configure_interface, load_module};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{MountFlags, mount};
use ironcage_sys::rustix::net::{SendFlags, send};
use ironcage_sys::rustix::system::{RebootCommand, reboot};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

/// Names the attack.
const ATTACK: &str = "/attack";
/// Frames after which a flood that nobody stopped is over.
const FLOOD: u32 = 2_000_000;
/// Rounds of garbage for a device.
const ROUNDS: u32 = 400;
/// Frames of garbage for the network.
const FRAMES: u32 = 20_000;

/// Whether this process is the first one of such a guest.
pub fn is_here() -> bool {
    std::process::id() == 1 && Path::new(ATTACK).is_file()
}

/// Attacks, then ends the machine.
pub fn run() {
    // What went wrong shows outside: the attack has no effect, and the test fails.
    let _ = attack();
    let _ = reboot(RebootCommand::Restart);
}

fn attack() -> io::Result<()> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        fs::create_dir_all(place)?;
        mount(kind, place, kind, MountFlags::empty(), c"")?;
    }
    let attack = fs::read_to_string(ATTACK)?;
    // Before a driver is loaded: the kernel takes the registers away from others then.
    let drives = matches!(attack.trim(), "asked" | "device");
    let driven = drives.then(|| drive(attack.trim() == "device"));
    let mut modules: Vec<_> = fs::read_dir("/modules")?.flatten().collect();
    modules.sort_by_key(fs::DirEntry::file_name);
    for module in modules {
        load_module(File::open(module.path())?.as_fd())?;
    }
    let mut port = Port::open()?;
    let done = match attack.trim() {
        "garbage" => port.garbage(),
        "oversized" => port.oversized(),
        "flood" => port.flood(),
        "unasked" => port.unasked(),
        "overfed" => port.overfed(),
        "frames" => port.frames(),
        _ => match driven {
            Some(Ok(answered)) => port.report(answered),
            Some(Err(error)) => Err(error),
            None => Ok(()),
        },
    };
    let Err(error) = done else {
        return Ok(());
    };
    let reason = Frame {
        payload: error.to_string().into_bytes(),
        ..Frame::new(Kind::Broken, 0)
    };
    port.say(&reason)
}

/// Drives the device of the file server as no driver does. Whether it answered a request that is in
/// order, before the garbage.
fn drive(garbage: bool) -> io::Result<bool> {
    let mut device = Device::find()?;
    let answered = device.is_answered();
    if garbage {
        device.garbage(ROUNDS)?;
    }
    device.reset();
    Ok(answered)
}

struct Port {
    file: File,
    decoder: Decoder,
}

impl Port {
    fn open() -> io::Result<Port> {
        loop {
            for entry in fs::read_dir("/sys/class/virtio-ports")
                .into_iter()
                .flatten()
            {
                let entry = entry?;
                let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
                if name.trim_end() == PORT {
                    let path = Path::new("/dev").join(entry.file_name());
                    let file = File::options().read(true).write(true).open(path)?;
                    let decoder = Decoder::default();
                    return Ok(Port { file, decoder });
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn say(&mut self, frame: &Frame) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame.write_to(&mut bytes);
        self.file.write_all(&bytes)
    }

    fn hear(&mut self) -> io::Result<Frame> {
        let mut buffer = [0; 32 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                return Ok(frame);
            }
            match self.file.read(&mut buffer)? {
                // The host has not opened its end yet.
                0 => std::thread::sleep(Duration::from_millis(5)),
                count => self.decoder.push(buffer.get(..count).unwrap_or_default()),
            }
        }
    }

    /// As the init does, so that commands are sent.
    fn pretend(&mut self) -> io::Result<()> {
        self.say(&Frame::new(Kind::Ready, 0))?;
        while self.hear()?.kind != Kind::Ready {}
        self.say(&Frame::new(Kind::Ready, 0))
    }

    /// The number of the first command.
    fn command(&mut self) -> io::Result<u32> {
        loop {
            let frame = self.hear()?;
            if frame.kind == Kind::Start {
                return Ok(frame.session);
            }
        }
    }

    fn garbage(&mut self) -> io::Result<()> {
        let mut random = File::open("/dev/urandom")?;
        let mut bytes = [0; 4096];
        loop {
            random.read_exact(&mut bytes)?;
            self.file.write_all(&bytes)?;
        }
    }

    /// A header that announces four gigabytes.
    fn oversized(&mut self) -> io::Result<()> {
        self.pretend()?;
        let session = self.command()?;
        let mut bytes = Vec::new();
        Frame::data(session, STDOUT, b"x").write_to(&mut bytes);
        if let Some(length) = bytes.get_mut(8..12) {
            length.copy_from_slice(&u32::MAX.to_le_bytes());
        }
        self.file.write_all(&bytes)?;
        loop {
            self.hear()?;
        }
    }

    /// Asks for connections that there are not, and reads no answer.
    fn flood(&mut self) -> io::Result<()> {
        self.pretend()?;
        let mut bytes = Vec::new();
        for index in 0..4096 {
            Frame::number(Kind::Connect, GUEST_SESSIONS + index, u32::MAX).write_to(&mut bytes);
        }
        for _ in 0..FLOOD / 4096 {
            self.file.write_all(&bytes)?;
        }
        // Nobody stopped it.
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    }

    /// Everything that the protocol has, for sessions that do not exist, and places that are not
    /// listed; then runs the first command as an init would.
    fn unasked(&mut self) -> io::Result<()> {
        self.pretend()?;
        let session = self.command()?;
        for other in [0, session + 1, GUEST_SESSIONS - 1, GUEST_SESSIONS, u32::MAX] {
            for kind in [Kind::Start, Kind::Ready, Kind::Stopped, Kind::Hangup] {
                self.say(&Frame::new(kind, other))?;
            }
            for kind in [Kind::Failed, Kind::Exited, Kind::Signal, Kind::Connect] {
                self.say(&Frame::number(kind, other, u32::MAX))?;
            }
            self.say(&Frame::credit(other, 0, u32::MAX))?;
            self.say(&Frame::data(other, STDOUT, &[0; MAX_PAYLOAD]))?;
            self.say(&Frame::end(other, STDOUT))?;
        }
        // Of the command itself: credit for more than there is, and what only the host says.
        self.say(&Frame::credit(session, 0, u32::MAX))?;
        self.tell(session, "survived\n")
    }

    /// More output than was credited.
    fn overfed(&mut self) -> io::Result<()> {
        self.pretend()?;
        let session = self.command()?;
        self.say(&Frame::new(Kind::Start, session))?;
        let frame = Frame::data(session, STDOUT, &[b'x'; MAX_PAYLOAD]);
        for _ in 0..64 * WINDOW as usize / MAX_PAYLOAD {
            self.say(&frame)?;
        }
        loop {
            self.hear()?;
        }
    }

    /// Runs the first command as an init would: it says this and ends with 7.
    fn tell(&mut self, session: u32, text: &str) -> io::Result<()> {
        self.say(&Frame::new(Kind::Start, session))?;
        self.say(&Frame::data(session, STDOUT, text.as_bytes()))?;
        self.say(&Frame::number(Kind::Exited, session, 7 << 8))?;
        loop {
            self.hear()?;
        }
    }

    /// Says what came of driving the device.
    fn report(&mut self, answered: bool) -> io::Result<()> {
        self.pretend()?;
        let session = self.command()?;
        self.tell(session, &format!("answered: {answered}\nsurvived\n"))
    }

    /// Frames of the network that no kernel would send.
    fn frames(&mut self) -> io::Result<()> {
        self.pretend()?;
        let session = self.command()?;
        let mask = Ipv4Addr::from(u32::MAX << (32 - u32::from(network::PREFIX)));
        configure_interface("eth0", network::GUEST, mask, network::GATEWAY)?;
        let interface = raw_frames("eth0")?;
        let mut random = File::open("/dev/urandom")?;
        let mut frame = [0; 1514];
        let mut sent = 0;
        for round in 0..FRAMES {
            random.read_exact(&mut frame)?;
            // To the gateway, by a protocol that it knows: IPv4, ARP, IPv6, or anything.
            let kinds: [[u8; 2]; 4] = [[8, 0], [8, 6], [0x86, 0xdd], [frame[12], frame[13]]];
            frame[..6].fill(0xff);
            frame[12..14].copy_from_slice(&kinds[round as usize % 4]);
            if round % 4 == 0 {
                // A header of IPv4 that is whole, with ICMP, TCP or UDP in it, from the guest to anywhere.
                frame[14] = 0x45;
                frame[20..22].fill(0);
                frame[23] = [1, 6, 17][round as usize / 4 % 3];
                frame[26..30].copy_from_slice(&network::GUEST.octets());
                let sum = checksum(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum);
            }
            let length = 60 + usize::from(frame[1500]) * 5;
            // A full queue is a flood that was held up.
            match send(&interface, &frame[..length], SendFlags::empty()) {
                Ok(_) => sent += 1,
                Err(Errno::NOBUFS | Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error.into()),
            }
        }
        self.tell(session, &format!("survived {sent}\n"))
    }
}

/// The checksum of a header of IPv4, whose own bytes do not count.
fn checksum(header: &[u8]) -> [u8; 2] {
    let words = header.chunks_exact(2).enumerate();
    let words = words.filter(|(index, _)| *index != 5);
    let mut sum: u32 = words
        .map(|(_, word)| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
