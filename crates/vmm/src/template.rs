//! Templates: a machine that is saved when its init is ready and knows nothing of its cage yet, and
//! machines that begin there.
//!
//! A template is made by `ironcage setup microvm`, outside cages and without a guest that anybody
//! but Ironcage has a hand in. A restored machine gets its name, time, randomness, files and
//! network as a machine that boots does: from the monitor, before its first command.

use crate::commands::{CommandError, Commands};
use crate::machine::{self, Parts};
use crate::{VmError, doing};
use ironcage_guest::{Decoder, Kind, MachineConfig, TEMPLATE_MEMORY, TEMPLATE_STATE};
use ironcage_sys::rustix::fs::{MemfdFlags, SeekFrom, ftruncate, memfd_create, seek};
use ironcage_sys::rustix::io::Errno;
use serde_json::json;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long a guest may take until it is ready to be saved, under emulation on a busy host.
const BOOT: Duration = Duration::from_secs(300);
/// How long QEMU may take to save a machine, or to begin to restore one.
const SAVE: Duration = Duration::from_secs(60);
/// A page of the guest.
const PAGE: usize = 4096;

fn failed(error: CommandError) -> VmError {
    doing("talk to QEMU")(io::Error::other(error))
}

/// Makes a template in a directory: `template MACHINE KERNEL INITRAMFS DIRECTORY`.
pub(crate) fn make(words: &[OsString]) -> Result<ExitCode, VmError> {
    let [description, kernel, initramfs, directory] = words else {
        return Err(doing("read the command")(io::Error::from(
            io::ErrorKind::InvalidInput,
        )));
    };
    let config = machine::read(Path::new(description))?;
    let directory = PathBuf::from(directory);
    let booted = directory.join("booted");
    let parts = |commands, files: &Path| Parts {
        kernel: Path::new(kernel),
        initramfs: Path::new(initramfs),
        files: format!("path={}", files.display()),
        memory: Some(booted.clone().into()),
        commands: Some(commands),
        restore: false,
    };
    let socket = directory.join("files");
    let mut machine = TemplateMachine::start(&config, Path::new(description), &socket, parts)?;
    machine.boot()?;
    machine.save(&directory.join("state"))?;
    drop(machine);
    let action = || format!("write {}", directory.display());
    compact(&booted, &directory.join("memory")).map_err(doing(action()))?;
    for left in [booted, socket] {
        fs::remove_file(left).map_err(doing(action()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A machine that becomes a template, with its file server.
struct TemplateMachine {
    qemu: Child,
    files: Child,
    control: UnixStream,
    commands: UnixStream,
}

impl TemplateMachine {
    fn start<'p>(
        config: &MachineConfig,
        description: &Path,
        socket: &Path,
        parts: impl FnOnce(UnixStream, &Path) -> Parts<'p>,
    ) -> Result<TemplateMachine, VmError> {
        let listener =
            UnixListener::bind(socket).map_err(doing("make the file server's socket"))?;
        let own = std::env::current_exe().map_err(doing("find this program"))?;
        let files = Command::new(own)
            .arg("files")
            .arg(description)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(doing("start the file server"))?;
        let (control, end) = UnixStream::pair().map_err(doing("make the control channel"))?;
        let (commands, theirs) = UnixStream::pair().map_err(doing("make QEMU's socket"))?;
        let mut command = Command::new(&config.qemu);
        command.env_clear();
        let started = machine::run(command, config, &parts(theirs, socket), end);
        match started {
            Ok(qemu) => Ok(TemplateMachine {
                qemu,
                files,
                control,
                commands,
            }),
            Err(error) => {
                let mut files = files;
                let _ = files.kill();
                let _ = files.wait();
                Err(error)
            }
        }
    }

    /// Waits until the init is ready, which it says once.
    fn boot(&mut self) -> Result<(), VmError> {
        let action = "boot the guest of the template";
        let until = Instant::now() + BOOT;
        let mut decoder = Decoder::default();
        let mut part = [0; 4096];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(doing(action)(io::Error::from(io::ErrorKind::TimedOut)));
            }
            self.control
                .set_read_timeout(Some(left))
                .map_err(doing(action))?;
            match self.control.read(&mut part) {
                Ok(0) => return Err(self.ended(action)),
                Ok(count) => decoder.push(part.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(doing(action)(error)),
            }
            let frame = decoder.next_frame().map_err(io::Error::other);
            match frame.map_err(doing(action))? {
                Some(frame) if frame.kind == Kind::Ready => return Ok(()),
                Some(_) => return Err(doing(action)(io::Error::from(Errno::PROTO))),
                None => {}
            }
        }
    }

    /// What QEMU said before it ended.
    fn ended(&mut self, action: &str) -> VmError {
        let mut text = String::new();
        if let Some(complaints) = self.qemu.stderr.take() {
            // Without its words the error still says that it ended.
            let _ = complaints.take(1000).read_to_string(&mut text);
        }
        let text = text.replace(char::is_control, " ");
        doing(action)(io::Error::other(format!("QEMU ended: {}", text.trim())))
    }

    fn save(&mut self, state: &Path) -> Result<(), VmError> {
        let stream = self
            .commands
            .try_clone()
            .map_err(doing("copy QEMU's socket"))?;
        let mut commands = Commands::new(stream, SAVE).map_err(failed)?;
        commands.leave_memory(true).map_err(failed)?;
        let uri = format!("file:{}", state.display());
        commands
            .execute("migrate", json!({ "uri": uri }))
            .map_err(failed)?;
        commands.saved().map_err(failed)
    }
}

impl Drop for TemplateMachine {
    fn drop(&mut self) {
        for child in [&mut self.qemu, &mut self.files] {
            // What has ended needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Copies the memory without pages that are empty: they are most of it.
fn compact(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (File::open(from)?, File::create_new(to)?);
    to.set_len(from.metadata()?.len())?;
    let mut page = [0; PAGE];
    each_extent(&from, |start, length| {
        for at in (start..start + length).step_by(PAGE) {
            let count = from.read_at(&mut page, at)?;
            let bytes = page.get(..count).unwrap_or_default();
            if bytes.iter().any(|byte| *byte != 0) {
                to.write_all_at(bytes, at)?;
            }
        }
        Ok(())
    })
}

/// Calls a function with the start and the length of each part of a file that is not a hole.
fn each_extent(file: &File, mut call: impl FnMut(u64, u64) -> io::Result<()>) -> io::Result<()> {
    let mut at = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?;
        call(start, end - start)?;
        at = end;
    }
}

/// Memory of a machine that is to be restored: a copy of the template's, of its own.
pub(crate) fn memory() -> Result<OwnedFd, VmError> {
    let action = "copy the template's memory";
    let from = File::open(TEMPLATE_MEMORY).map_err(doing(action))?;
    copy(&from).map_err(doing(action))
}

fn copy(from: &File) -> io::Result<OwnedFd> {
    let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
    ftruncate(&memory, from.metadata()?.len())?;
    let mut part = vec![0; 1 << 20];
    each_extent(from, |start, length| {
        let mut at = start;
        while at < start + length {
            let most = part.len().min((start + length - at) as usize);
            let buffer = part.get_mut(..most).unwrap_or_default();
            from.read_exact_at(buffer, at)?;
            memory.write_all_at(buffer, at)?;
            at += most as u64;
        }
        Ok(())
    })?;
    Ok(memory.into())
}

/// The path by which QEMU opens a descriptor that it was given.
pub(crate) fn path_of(descriptor: &OwnedFd) -> OsString {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into()
}

/// Has QEMU read the state of the devices. The guest goes on as soon as that is done.
pub(crate) fn restore(socket: UnixStream) -> Result<(), VmError> {
    let mut commands = Commands::new(socket, SAVE).map_err(failed)?;
    commands.leave_memory(false).map_err(failed)?;
    let uri = format!("file:{TEMPLATE_STATE}");
    commands
        .execute("migrate-incoming", json!({ "uri": uri }))
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_keeps_what_is_not_empty_and_its_copy_is_the_same() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("booted"), place.path().join("memory"));
        let file = File::create(&from).unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(&[0; 8 * PAGE], 0).unwrap();
        file.write_all_at(b"first", 5 * PAGE as u64).unwrap();
        file.write_all_at(b"last", (4 << 20) - 4).unwrap();
        compact(&from, &to).unwrap();
        let whole = fs::read(&from).unwrap();
        assert_eq!(fs::read(&to).unwrap(), whole);
        let mut kept = Vec::new();
        each_extent(&File::open(&to).unwrap(), |start, length| {
            kept.push((start, length));
            Ok(())
        })
        .unwrap();
        // File systems differ in the size of what they keep.
        let size: u64 = kept.iter().map(|(_, length)| length).sum();
        assert!(size < 1 << 20, "{kept:?}");
        let copied = File::from(copy(&File::open(&to).unwrap()).unwrap());
        let mut bytes = vec![0; whole.len()];
        copied.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, whole);
        // The template itself is never written.
        copied.write_all_at(b"other", 0).unwrap();
        assert_eq!(fs::read(&to).unwrap(), whole);
    }
}
