//! The canary process: has secrets in its arguments, environment, memory and descriptors, and
//! tells when it is signalled or traced.

use super::log::{Channel, HitLog};
use super::{Canary, Layout, Nonces, StageError, making};
use crate::params::Victim;
use ironcage_sys::attack;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The environment variable that holds a secret.
const SECRET_VARIABLE: &str = "STAGE_PROCESS_SECRET";
/// Signals that it notes: USR1, USR2, URG, TERM.
const NOTED: [i32; 4] = [10, 12, 23, 15];

/// The suite's side.
pub(crate) struct VictimHandle {
    child: Child,
    params: Victim,
}

impl VictimHandle {
    /// Starts it and waits until it says where its secrets are.
    pub(crate) fn start(
        layout: &Layout,
        nonces: &Nonces,
        log: &HitLog,
    ) -> Result<VictimHandle, StageError> {
        let what = || "the canary process".to_owned();
        let mut child = Command::new(&layout.program)
            .args(["probe", "role", "canary", nonces.of(Canary::Arguments)])
            .env_clear()
            .env(SECRET_VARIABLE, nonces.of(Canary::ProcessEnvironment))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(making(what()))?;
        if let Some(mut input) = child.stdin.take() {
            let memory = nonces.of(Canary::Memory);
            let held = nonces.of(Canary::HeldFile);
            writeln!(input, "{memory}\n{held}").map_err(making(what()))?;
        }
        let output = child.stdout.take();
        let missing = || making(what())(io::Error::other("it ended before it was ready"));
        let mut lines = BufReader::new(output.ok_or_else(missing)?).lines();
        let ready = lines.next().and_then(Result::ok).ok_or_else(missing)?;
        let mut numbers = ready.split(' ');
        let address = numbers
            .next()
            .and_then(|text| text.parse().ok())
            .ok_or_else(missing)?;
        let descriptor = numbers
            .next()
            .and_then(|text| text.parse().ok())
            .ok_or_else(missing)?;
        let pid =
            i32::try_from(child.id()).map_err(|error| making(what())(io::Error::other(error)))?;
        let log = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.strip_prefix("signal ") {
                    Some(number) => log.note(Channel::Signal, format!("signal {number}")),
                    None => log.note(Channel::Traced, line),
                }
            }
        });
        Ok(VictimHandle {
            child,
            params: Victim {
                pid,
                address,
                descriptor,
            },
        })
    }

    /// What probes inside are told about it.
    pub(crate) fn params(&self) -> Victim {
        self.params.clone()
    }
}

impl Drop for VictimHandle {
    fn drop(&mut self) {
        // It may be gone already; the namespace takes it anyway.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tracer() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    Some(line.trim().to_owned()).filter(|pid| pid != "0")
}

/// The canary process itself: reads its secrets, says where they are, tells what happens to it.
pub(crate) fn run() -> io::Result<()> {
    attack::die_with_parent()?;
    attack::block_signals(&NOTED);
    let mut lines = io::stdin().lines();
    let mut secret = || {
        lines
            .next()
            .unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
    };
    let memory = attack::leak_memory(secret()?.into_bytes());
    let held = secret()?;
    let path = format!("/tmp/held-{}", std::process::id());
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    file.write_all(held.as_bytes())?;
    let mut out = io::stdout();
    writeln!(
        out,
        "{} {}",
        attack::memory_address(memory),
        file.as_raw_fd()
    )?;
    out.flush()?;
    let mut traced = None;
    loop {
        if let Some(seen) = attack::wait_signal(&NOTED, Duration::from_millis(10)) {
            writeln!(out, "signal {}", seen.0)?;
            out.flush()?;
        }
        let now = tracer();
        if now != traced {
            if let Some(pid) = &now {
                writeln!(out, "traced by process {pid}")?;
                out.flush()?;
            }
            traced = now;
        }
    }
}
