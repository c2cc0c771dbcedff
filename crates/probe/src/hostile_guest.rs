//! A guest whose kernel and init are the attacker's: it has root, the control port and every device of
//! its machine, and says what no init of ours would.
//!
//! It is `/init` of an initramfs that a test makes; the file `/attack` beside it names what it does.

use ironcage_guest::{Decoder, Frame, GUEST_SESSIONS, Kind, MAX_PAYLOAD, PORT, STDOUT, WINDOW};
use ironcage_sys::guest::load_module;
use ironcage_sys::rustix::mount::{MountFlags, mount};
use ironcage_sys::rustix::system::{RebootCommand, reboot};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

/// Names the attack.
const ATTACK: &str = "/attack";
/// Frames after which a flood that nobody stopped is over.
const FLOOD: u32 = 2_000_000;

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
    let mut modules: Vec<_> = fs::read_dir("/modules")?.flatten().collect();
    modules.sort_by_key(fs::DirEntry::file_name);
    for module in modules {
        load_module(File::open(module.path())?.as_fd())?;
    }
    let mut port = Port::open()?;
    match fs::read_to_string(ATTACK)?.trim() {
        "garbage" => port.garbage(),
        "oversized" => port.oversized(),
        "flood" => port.flood(),
        "unasked" => port.unasked(),
        "overfed" => port.overfed(),
        _ => Ok(()),
    }
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
        self.say(&Frame::new(Kind::Start, session))?;
        self.say(&Frame::data(session, STDOUT, b"survived\n"))?;
        self.say(&Frame::number(Kind::Exited, session, 7 << 8))?;
        loop {
            self.hear()?;
        }
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
}
