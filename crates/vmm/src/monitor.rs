//! The monitor: starts the machine, and carries frames between its clients and the guest.
//!
//! It reads nothing of what the streams hold. A guest that sends what the protocol does not have, or
//! more than a client has credited, loses the session or the machine.

use crate::machine::Parts;
use crate::relay::Relays;
use crate::{FILES, VmError, address, doing, machine, template};
use ironcage_guest::{
    Decoder, Frame, FrameError, GUEST_SESSIONS, Kind, MACHINE, MAX_SESSIONS, MachineConfig, WINDOW,
};
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{OFlags, fcntl_setfl};
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use ironcage_sys::rustix::stdio;
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes on their way to the guest above which clients are not read.
const FULL: usize = 256 << 10;
/// Bytes on their way to a guest that sends and does not read. Only answers go past [`FULL`].
const MOST_TO_GUEST: usize = 4 * FULL;
/// Bytes on their way to one client that the protocol can bring about, with room for headers.
const MOST: usize = 4 * WINDOW as usize;
/// What is kept of what QEMU says.
const SAID: usize = 2048;

/// Why the machine ends.
#[derive(Debug, thiserror::Error)]
enum MachineEnd {
    #[error("poll failed: {0}")]
    Poll(#[source] Errno),
    #[error("the file server has ended")]
    FileServer,
    #[error("the virtual machine has ended")]
    Ended,
    #[error("the control channel failed: {0}")]
    Control(#[source] Errno),
    #[error("the guest broke the protocol: {0}")]
    Protocol(#[source] FrameError),
    #[error("the guest could not be set up: {message}")]
    GuestSetup { message: String },
    #[error("the guest sends requests and does not read the answers")]
    UnreadAnswers,
    #[error("cannot get random bytes for the guest: {0}")]
    Entropy(#[source] Errno),
    #[error("cannot encode the guest's setup: {0}")]
    Encode(#[source] serde_json::Error),
}

struct Client {
    stream: UnixStream,
    decoder: Decoder,
    out: Vec<u8>,
    /// Whether it goes as soon as it has everything.
    done: bool,
}

struct Monitor {
    config: MachineConfig,
    listener: UnixListener,
    control: UnixStream,
    qemu: Child,
    files: Child,
    /// Ends with the file server: nobody writes to it.
    files_end: Option<OwnedFd>,
    complaints: Option<OwnedFd>,
    said: Vec<u8>,
    decoder: Decoder,
    to_guest: Vec<u8>,
    /// What the guest has told of itself: that it is there, then that it is set up.
    stage: Stage,
    clients: BTreeMap<u32, Client>,
    relays: Relays,
    next: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Booting,
    SettingUp,
    Ready,
}

/// Runs to the machine's end.
pub(crate) fn run() -> Result<ExitCode, VmError> {
    let own = stdio::stdin()
        .try_clone_to_owned()
        .map_err(doing("take the socket"))?;
    let listener = UnixListener::from(own);
    let spare = listener.try_clone().map_err(doing("copy the socket"))?;
    let mut monitor = match Monitor::start(listener) {
        Ok(monitor) => monitor,
        Err(error) => {
            refuse(&spare, &error.to_string());
            return Err(error);
        }
    };
    drop(spare);
    let why = loop {
        match monitor.turn() {
            Ok(()) => {}
            Err(why) => break why,
        }
    };
    monitor.finish(&why);
    Ok(ExitCode::FAILURE)
}

/// Tells those who have connected by now why there is no machine.
fn refuse(listener: &UnixListener, why: &str) {
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    // The first one starts this process before it connects.
    for _ in 0..100 {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let mut out = Vec::new();
        Frame {
            payload: why.bytes().take(1000).collect(),
            ..Frame::new(Kind::Broken, 0)
        }
        .write_to(&mut out);
        // One that is gone needs no answer.
        let _ = stream.write_all(&out);
        return;
    }
}

/// What QEMU said of a start that failed, and the end of both processes.
fn start_failed(qemu: &mut Child, files: &mut Child, error: VmError) -> VmError {
    let _ = qemu.kill();
    let mut text = String::new();
    if let Some(complaints) = qemu.stderr.take() {
        // Without its words the error still says what failed.
        let _ = complaints.take(SAID as u64).read_to_string(&mut text);
    }
    for child in [qemu, files] {
        // What has ended needs no end.
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = text.replace(|c: char| c.is_control(), " ");
    doing("restore the machine from its template")(io::Error::other(format!(
        "{error} {}",
        text.trim()
    )))
}

fn nonblocking(descriptor: impl AsFd) -> Result<(), VmError> {
    fcntl_setfl(descriptor, OFlags::NONBLOCK).map_err(doing("set up a stream"))
}

impl Monitor {
    fn start(listener: UnixListener) -> Result<Monitor, VmError> {
        let config = machine::read(Path::new(MACHINE))?;
        let relays = Relays::new(config.guest.relays.clone())?;
        let shared = UnixListener::bind_addr(&address(FILES)?)
            .map_err(doing("make the file server's socket"))?;
        let own = std::env::current_exe().map_err(doing("find this program"))?;
        let mut files = Command::new(own)
            .arg("files")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(shared)))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(doing("start the file server"))?;
        let files_end = files.stdout.take().map(OwnedFd::from);
        let (control, end) = UnixStream::pair().map_err(doing("make the control channel"))?;
        let mut parts = Parts::of_cage();
        let (mut memory, mut socket) = (None, None);
        if config.restore {
            let copied = memory.insert(template::memory()?);
            machine::inherit(&*copied)?;
            parts.memory = Some(template::path_of(copied));
            let (ours, theirs) = UnixStream::pair().map_err(doing("make QEMU's socket"))?;
            parts.commands = Some(theirs);
            parts.restore = true;
            socket = Some(ours);
        }
        let mut qemu = machine::start(&config, &parts, end)?;
        // QEMU has both by now, and it alone.
        drop((parts, memory));
        if let Some(socket) = socket
            && let Err(error) = template::restore(socket)
        {
            return Err(start_failed(&mut qemu, &mut files, error));
        }
        let complaints = qemu.stderr.take().map(OwnedFd::from);
        nonblocking(&listener)?;
        nonblocking(&control)?;
        if let Some(complaints) = &complaints {
            nonblocking(complaints)?;
        }
        // What is restored has said that it is there when the template was made.
        let stage = match config.restore {
            true => Stage::SettingUp,
            false => Stage::Booting,
        };
        let mut monitor = Monitor {
            config,
            listener,
            control,
            qemu,
            files,
            files_end,
            complaints,
            said: Vec::new(),
            decoder: Decoder::default(),
            to_guest: Vec::new(),
            stage,
            clients: BTreeMap::new(),
            relays,
            next: 1,
        };
        if stage == Stage::SettingUp {
            let setup = monitor.set_up().map_err(io::Error::other);
            setup.map_err(doing("set up the guest"))?;
        }
        Ok(monitor)
    }

    /// One round, or why it is the last.
    fn turn(&mut self) -> Result<(), MachineEnd> {
        let takes = self.stage == Stage::Ready && self.to_guest.len() < FULL;
        let mut control = PollFlags::IN;
        if !self.to_guest.is_empty() {
            control |= PollFlags::OUT;
        }
        let mut fds = Vec::with_capacity(self.clients.len() + 3);
        for client in self.clients.values() {
            let mut want = PollFlags::empty();
            if takes && !client.done {
                want |= PollFlags::IN;
            }
            if !client.out.is_empty() {
                want |= PollFlags::OUT;
            }
            fds.push(PollFd::new(&client.stream, want));
        }
        self.relays.poll(&mut fds, takes);
        fds.push(PollFd::new(&self.control, control));
        if self.clients.len() < MAX_SESSIONS {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(
            self.complaints
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN)),
        );
        fds.extend(
            self.files_end
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN)),
        );
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(MachineEnd::Poll(error)),
        }
        // Without it the guest would wait for its root for ever.
        let served = self.files_end.is_some();
        let unserved = fds.last().filter(|_| served);
        if unserved.is_some_and(|fd| fd.revents().contains(PollFlags::HUP)) {
            return Err(MachineEnd::FileServer);
        }
        let gone: Vec<bool> = fds
            .iter()
            .map(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
            .collect();
        drop(fds);
        self.hang_up(&gone);
        self.listen();
        self.read_complaints();
        self.read_guest()?;
        self.serve_clients();
        self.serve_relays();
        self.write_guest()
    }

    /// Drops clients that are gone, in the order of their numbers.
    fn hang_up(&mut self, gone: &[bool]) {
        let mut gone = gone.iter();
        let to_guest = &mut self.to_guest;
        self.clients.retain(|number, client| {
            let stays = !gone.next().copied().unwrap_or(false);
            if !stays && !client.done {
                Frame::new(Kind::Hangup, *number).write_to(to_guest);
            }
            stays
        });
    }

    /// Takes one client, so that a crowd of them does not stop the rest.
    fn listen(&mut self) {
        if self.clients.len() >= MAX_SESSIONS {
            return;
        }
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let client = Client {
            stream,
            decoder: Decoder::default(),
            out: Vec::new(),
            done: false,
        };
        let number = self.number();
        self.clients.insert(number, client);
    }

    /// The number of the next session that begins on this side.
    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = match self.next + 1 {
            GUEST_SESSIONS => 1,
            next => next,
        };
        number
    }

    /// Takes connections to ports of the guest, and carries those there are.
    fn serve_relays(&mut self) {
        let takes = |monitor: &Self| monitor.stage == Stage::Ready && monitor.to_guest.len() < FULL;
        if takes(self) && self.relays.accept(self.next, &mut self.to_guest) {
            self.number();
        }
        let room = takes(self);
        self.relays.turn(room, &mut self.to_guest);
    }

    fn read_complaints(&mut self) {
        let Some(complaints) = &self.complaints else {
            return;
        };
        let mut buffer = [0; 1024];
        match read(complaints, &mut buffer) {
            Ok(0) => self.complaints = None,
            Ok(count) if self.said.len() < SAID => self.said.extend_from_slice(&buffer[..count]),
            _ => {}
        }
    }

    fn read_guest(&mut self) -> Result<(), MachineEnd> {
        let mut buffer = [0; 64 << 10];
        match read(&self.control, &mut buffer) {
            Ok(0) => return Err(MachineEnd::Ended),
            Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(MachineEnd::Control(error)),
        }
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => self.pass_on(frame)?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(MachineEnd::Protocol(error)),
            }
        }
    }

    fn pass_on(&mut self, frame: Frame) -> Result<(), MachineEnd> {
        match (frame.kind, self.stage) {
            (Kind::Ready, Stage::Booting) => {
                self.stage = Stage::SettingUp;
                return self.set_up();
            }
            (Kind::Ready, Stage::SettingUp) => {
                self.stage = Stage::Ready;
                return Ok(());
            }
            (Kind::Broken, _) => {
                let text = String::from_utf8_lossy(&frame.payload);
                let message = text.chars().filter(|c| !c.is_control()).collect();
                return Err(MachineEnd::GuestSetup { message });
            }
            _ => {}
        }
        if self.to_guest.len() > MOST_TO_GUEST {
            return Err(MachineEnd::UnreadAnswers);
        }
        if self.relays.obey(&frame, &mut self.to_guest) {
            return Ok(());
        }
        // A session that is gone, or never was: its last frames are on their way.
        let Some(client) = self.clients.get_mut(&frame.session) else {
            return Ok(());
        };
        let passes = matches!(
            frame.kind,
            Kind::Start
                | Kind::Failed
                | Kind::Data
                | Kind::End
                | Kind::Credit
                | Kind::Stopped
                | Kind::Exited
        );
        if !passes || client.out.len() > MOST {
            // More than was credited: the session ends, with the error of a broken stream.
            client.out.clear();
            client.done = true;
            Frame::new(Kind::Hangup, frame.session).write_to(&mut self.to_guest);
            return Ok(());
        }
        client.done |= matches!(frame.kind, Kind::Exited | Kind::Failed);
        frame.write_to(&mut client.out);
        Ok(())
    }

    fn set_up(&mut self) -> Result<(), MachineEnd> {
        let mut setup = self.config.guest.clone();
        let mut entropy = [0; 32];
        getrandom(&mut entropy, GetRandomFlags::empty()).map_err(MachineEnd::Entropy)?;
        setup.entropy = entropy.to_vec();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        setup.time = since.map_or(0, |since| since.as_nanos() as u64);
        let bytes = setup.encode().map_err(MachineEnd::Encode)?;
        for part in Frame::parts(Kind::SetupPart, 0, &bytes) {
            part.write_to(&mut self.to_guest);
        }
        Frame::new(Kind::Ready, 0).write_to(&mut self.to_guest);
        Ok(())
    }

    fn serve_clients(&mut self) {
        let takes = self.stage == Stage::Ready && self.to_guest.len() < FULL;
        let to_guest = &mut self.to_guest;
        self.clients.retain(|number, client| {
            let here = client.write() && (!takes || client.done || client.read(*number, to_guest));
            if !here && !client.done {
                Frame::new(Kind::Hangup, *number).write_to(to_guest);
            }
            here && !(client.done && client.out.is_empty())
        });
    }

    fn write_guest(&mut self) -> Result<(), MachineEnd> {
        while !self.to_guest.is_empty() {
            match write(&self.control, &self.to_guest) {
                Ok(written) => drop(self.to_guest.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(MachineEnd::Control(error)),
            }
        }
        Ok(())
    }

    /// Tells every client why, and ends what is left.
    fn finish(&mut self, why: &MachineEnd) {
        // It closes its streams first, and ends in a moment.
        std::thread::sleep(Duration::from_millis(50));
        let ended = |child: &mut Child| match child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "running".to_owned(),
        };
        let state = format!(
            "QEMU: {}, file server: {}",
            ended(&mut self.qemu),
            ended(&mut self.files)
        );
        for child in [&mut self.qemu, &mut self.files] {
            // What has ended needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.read_complaints();
        let unrestored = self.config.restore && self.stage != Stage::Ready;
        let why = match unrestored {
            true => format!(
                "the machine could not be restored from its template, which `ironcage setup microvm --warm` makes again: {why}"
            ),
            false => why.to_string(),
        };
        let said = String::from_utf8_lossy(&self.said);
        let text = match said.trim() {
            "" => format!("{why} ({state})"),
            said => format!("{why} ({state}): {said}"),
        };
        let text = text.replace(|c: char| c.is_control(), " ");
        // Who connected while it went down is told too.
        while self.clients.len() < MAX_SESSIONS {
            let before = self.clients.len();
            self.listen();
            if self.clients.len() == before {
                break;
            }
        }
        for client in self.clients.values_mut() {
            let frame = Frame {
                payload: text.bytes().take(1000).collect(),
                ..Frame::new(Kind::Broken, 0)
            };
            frame.write_to(&mut client.out);
            let _ = client.stream.set_nonblocking(false);
            client.write();
        }
    }
}

impl Client {
    /// Writes what it takes. `false` where it is gone.
    fn write(&mut self) -> bool {
        while !self.out.is_empty() {
            match write(&self.stream, &self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what it says, for the guest. `false` where it is gone.
    fn read(&mut self, number: u32, to_guest: &mut Vec<u8>) -> bool {
        let mut buffer = [0; 32 << 10];
        match read(&self.stream, &mut buffer) {
            Ok(0) => return false,
            Ok(count) => self.decoder.push(buffer.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => Frame {
                    session: number,
                    ..frame
                }
                .write_to(to_guest),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Starts a monitor that outlives its starter, with a socket that clients can connect to already.
pub(crate) fn spawn(listener: UnixListener) -> io::Result<()> {
    let own = std::env::current_exe()?;
    Command::new(own)
        .arg("monitor")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
}
