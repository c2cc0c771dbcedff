//! A service of the bench's own, on loopback, with its state in the scratch directory.

use super::http::Client;
use crate::process_tree::{ProcessTree, private_memory};
use crate::scratch::Scratch;
use crate::{ArmError, BenchError};
use ironcage_sys::rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the pool may take to be full.
const FILLED: Duration = Duration::from_secs(300);

/// A running service.
#[derive(Debug)]
pub(super) struct Service {
    child: Child,
    address: SocketAddr,
    key: String,
    program: PathBuf,
    environment: Vec<(OsString, OsString)>,
    pool: usize,
}

fn failed(reason: ArmError) -> BenchError {
    BenchError::Failed {
        arm: "ironcage serve".to_owned(),
        reason,
    }
}

impl Service {
    /// Starts one that keeps this number of cages warm.
    pub(super) fn start(
        program: &Path,
        scratch: &Scratch,
        pool: usize,
    ) -> Result<Service, BenchError> {
        let spawn_error = |source| BenchError::Spawn {
            program: "ironcage serve".to_owned(),
            source,
        };
        let mut environment = scratch.environment();
        environment.retain(|(name, _)| name != "HOME");
        environment.push(("HOME".into(), scratch.folder("home")?.into()));
        let command = |words: &[&str]| {
            let mut command = Command::new(program);
            command
                .args(words)
                .env_clear()
                .envs(environment.iter().cloned())
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            command
        };
        let warm = format!("--warm=default={pool}");
        let limits = ["--rate=1000000", "--max-cages=10000"];
        let words = [&["serve", "--listen=127.0.0.1:0", &warm], &limits[..]].concat();
        let mut child = command(&words).spawn().map_err(spawn_error)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(spawn_error)?;
        }
        let address = line.trim().rsplit('/').next().and_then(|a| a.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(ArmError::Result(
                "it did not say where it listens".to_owned(),
            )));
        };
        let mut service = Service {
            child,
            address,
            key: String::new(),
            program: program.to_owned(),
            environment: environment.clone(),
            pool,
        };
        let listen = address.to_string();
        let env = command(&["serve", "env", "--listen", &listen]).output();
        let env = env.map_err(spawn_error)?;
        let text = String::from_utf8_lossy(&env.stdout).into_owned();
        let key = text
            .lines()
            .find_map(|line| line.strip_prefix("export IRONCAGE_API_KEY='"));
        service.key = key.unwrap_or_default().trim_end_matches('\'').to_owned();
        Ok(service)
    }

    pub(super) fn client(&self) -> Client {
        Client::new(self.address, &self.key)
    }

    /// Waits until the pool is full.
    pub(super) fn filled(&self) -> Result<(), BenchError> {
        let mut client = self.client();
        let begun = Instant::now();
        loop {
            let numbers = client.send("GET", "/metrics", None).map_err(failed)?;
            let ready = numbers
                .as_str()
                .unwrap_or_default()
                .lines()
                .find_map(|line| {
                    line.strip_prefix("ironcage_warm_cages{profile=\"default\"} ")?
                        .parse::<usize>()
                        .ok()
                });
            if ready.is_some_and(|ready| ready >= self.pool) {
                return Ok(());
            }
            if begun.elapsed() > FILLED {
                return Err(failed(ArmError::Result(format!(
                    "its pool has {ready:?} of {} cages",
                    self.pool
                ))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Private memory of the service, and of the processes of all cages together.
    pub(super) fn memory(&self) -> Result<(u64, u64), BenchError> {
        let proc_error = BenchError::file("read", "/proc");
        let listed = Command::new(&self.program)
            .args(["ps", "--json"])
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir("/")
            .output()
            .map_err(|source| BenchError::Spawn {
                program: "ironcage ps".to_owned(),
                source,
            })?;
        let listed: Value = serde_json::from_slice(&listed.stdout)
            .map_err(|error| failed(ArmError::system("read what ironcage ps prints")(error)))?;
        let supervisors = listed.as_array().into_iter().flatten();
        let supervisors: Vec<i32> = supervisors
            .filter_map(|cage| i32::try_from(cage["supervisor"].as_i64()?).ok())
            .collect();
        let tree = ProcessTree::now().map_err(proc_error)?;
        // One that ends meanwhile, or that may not be looked at, is left out.
        let private = |pid: i32| private_memory(pid).unwrap_or(0);
        let cages = supervisors.iter().flat_map(|pid| tree.below(*pid));
        let own = i32::try_from(self.child.id()).unwrap_or(0);
        Ok((
            private(own),
            cages.map(|process| private(process.pid)).sum(),
        ))
    }

    /// Ends all cages that were created.
    pub(super) fn empty(&self) -> Result<(), ArmError> {
        let mut client = self.client();
        loop {
            let cages = client.send("GET", "/v1/cages?limit=1000", None)?;
            let cages = cages["cages"].as_array().cloned().unwrap_or_default();
            if cages.is_empty() {
                return Ok(());
            }
            for cage in cages {
                remove(&mut client, cage["id"].as_str().unwrap_or_default())?;
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A service that does not answer is asked to end all the same.
        let _ = self.empty();
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Creates a cage: its ID.
pub(super) fn create(client: &mut Client, spec: &Value) -> Result<String, ArmError> {
    let cage = client.send("POST", "/v1/cages", Some(spec))?;
    let id = cage["id"].as_str().map(str::to_owned);
    id.ok_or_else(|| ArmError::Answer {
        expected: "a cage",
        got: cage.to_string(),
    })
}

/// Runs the command that every arm runs.
pub(super) fn exec(client: &mut Client, id: &str) -> Result<(), ArmError> {
    let run = json!({ "argv": [super::COMMAND] });
    let ran = client.send("POST", &format!("/v1/cages/{id}/run"), Some(&run))?;
    match ran["exit"]["code"] == 0 {
        true => Ok(()),
        false => Err(ArmError::Answer {
            expected: "exit status 0",
            got: ran.to_string(),
        }),
    }
}

pub(super) fn remove(client: &mut Client, id: &str) -> Result<(), ArmError> {
    client
        .send("DELETE", &format!("/v1/cages/{id}"), None)
        .map(drop)
}
