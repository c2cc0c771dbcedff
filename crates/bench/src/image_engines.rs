//! The engines that `bench image` measures beside Ironcage, with the same image: how `docker`, `podman`
//! and `systemd-nspawn` are asked for the nearest thing to a cage, as their users ask for it.

use crate::arm::Arm;
use crate::peers::find_program;
use crate::process_tree::{Process, ProcessTree, private_memory};
use crate::scratch::Scratch;
use crate::{ArmError, BenchError};
use ironcage_sys::rustix::process::{Pid, Signal, geteuid, kill_process};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the image is called in stores of other engines.
pub(crate) const IMAGE: &str = "localhost/bench:1";
/// How long a container may take until its command sleeps.
const PATIENCE: Duration = Duration::from_secs(60);
/// What sleeps while memory is counted: no other process of the machine has these arguments.
const SLEEP: [&str; 2] = ["/bin/sleep", "86321"];

/// How a program is asked for one command in the image.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) name: &'static str,
    pub(crate) about: String,
    program: PathBuf,
    /// Up to the command.
    arguments: Vec<OsString>,
    /// The same for a command that keeps running, if other words are needed.
    in_background: Option<Vec<OsString>>,
}

/// An engine, or why it is not measured.
pub(crate) struct EngineCandidate {
    pub(crate) name: &'static str,
    pub(crate) engine: Result<Engine, String>,
}

impl Engine {
    pub(crate) fn ironcage(program: &Path, image: Option<&str>) -> Engine {
        let (name, about) = match image {
            None => (
                "start",
                "`ironcage run -- /bin/true` with the host's system",
            ),
            Some(_) => ("start with an image", "the same with `--image`"),
        };
        let mut arguments = words(&["run", "-q"]);
        arguments.extend(
            image
                .into_iter()
                .flat_map(|image| words(&["--image", image])),
        );
        arguments.push("--".into());
        Engine {
            name,
            about: about.to_owned(),
            program: program.to_owned(),
            arguments,
            in_background: None,
        }
    }

    /// One start of `/bin/true`, to be timed.
    pub(crate) fn arm(&self, scratch: &Scratch) -> Result<Arm, BenchError> {
        let arguments: Vec<OsString> = self
            .arguments
            .iter()
            .cloned()
            .chain(["/bin/true".into()])
            .collect();
        Arm::spawned(
            self.name,
            &self.program,
            &arguments,
            scratch.work(),
            scratch,
        )
    }

    /// The memory that its own processes share with no other while one command sleeps, in bytes.
    pub(crate) fn memory(&self, scratch: &Scratch) -> Result<u64, ArmError> {
        let mut arguments = self
            .in_background
            .clone()
            .unwrap_or_else(|| self.arguments.clone());
        arguments.extend(words(&SLEEP));
        let child = Command::new(&self.program)
            .args(arguments)
            .env_clear()
            .envs(scratch.environment())
            .current_dir(scratch.work())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(ArmError::system("start it"))?;
        Sleeping {
            child,
            engine: self,
        }
        .weigh(scratch)
    }
}

/// A command that sleeps; ended when this goes.
struct Sleeping<'e> {
    child: Child,
    engine: &'e Engine,
}

impl Sleeping<'_> {
    fn weigh(mut self, scratch: &Scratch) -> Result<u64, ArmError> {
        let id = match self.engine.in_background {
            None => None,
            Some(_) => {
                let mut text = String::new();
                if let Some(output) = &mut self.child.stdout {
                    let read = std::io::Read::read_to_string(output, &mut text);
                    read.map_err(ArmError::system("read its answer"))?;
                }
                Some(text.trim().to_owned()).filter(|id| id.len() >= 12)
            }
        };
        let weighed = self.wait_and_sum(id.as_deref());
        if let Some(id) = id {
            let removed = Command::new(&self.engine.program)
                .args(
                    self.engine
                        .arguments
                        .iter()
                        .take_while(|word| *word != "run"),
                )
                .args(["rm", "--force", &id])
                .env_clear()
                .envs(scratch.environment())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            removed.map_err(ArmError::system("remove its container"))?;
        }
        weighed
    }

    fn wait_and_sum(&self, id: Option<&str>) -> Result<u64, ArmError> {
        let begun = Instant::now();
        loop {
            let tree = ProcessTree::now().map_err(ArmError::system("read /proc"))?;
            let top = i32::try_from(self.child.id()).unwrap_or_default();
            let own: Vec<&Process> = match id {
                None => tree.below(top),
                // Who watches a container of a daemon was started by the daemon, and names it.
                Some(id) => {
                    let watchers = tree.all().filter(|process| names(process, id));
                    watchers
                        .flat_map(|watcher| tree.below(watcher.pid))
                        .collect()
                }
            };
            if own
                .iter()
                .any(|process| names(process, SLEEP[1]) && process.name == "sleep")
            {
                // What ends meanwhile, such as a helper of the start, does not count.
                let engine = own.iter().filter(|process| process.name != "sleep");
                let sizes = engine.filter_map(|process| private_memory(process.pid).ok());
                return Ok(sizes.sum());
            }
            if begun.elapsed() > PATIENCE {
                return Err(ArmError::Result("its command did not come to sleep".into()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Its end is what the engine passes on, and what `wait` collects.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
            std::thread::sleep(Duration::from_millis(200));
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Whether the arguments of a process have this text in them.
fn names(process: &Process, text: &str) -> bool {
    let arguments = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    arguments
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// The other engines with the image in their stores.
pub(crate) fn others(scratch: &Scratch, archive: &Path, tree: &Path) -> Vec<EngineCandidate> {
    vec![
        EngineCandidate {
            name: "docker",
            engine: docker(scratch, archive),
        },
        EngineCandidate {
            name: "podman",
            engine: podman(scratch, archive),
        },
        EngineCandidate {
            name: "systemd-nspawn",
            engine: nspawn(tree),
        },
    ]
}

fn quiet(scratch: &Scratch, program: &Path, words: &[OsString]) -> Result<(), String> {
    let output = Command::new(program)
        .args(words)
        .env_clear()
        .envs(scratch.environment())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(text.lines().last().unwrap_or("it failed").to_owned())
        }
    }
}

/// An engine with a store of images: loads the archive, and says how to run it.
fn with_store(
    (name, program): (&'static str, PathBuf),
    global: Vec<OsString>,
    scratch: &Scratch,
    archive: &Path,
) -> Result<Engine, String> {
    let load = global
        .iter()
        .cloned()
        .chain(words(&["load", "--quiet", "--input"]));
    let load: Vec<OsString> = load.chain([archive.into()]).collect();
    quiet(scratch, &program, &load)?;
    let run = |flags: &[&str]| {
        let all = global
            .iter()
            .cloned()
            .chain(words(&["run", "--rm", "--network", "none"]));
        // Its own default may be more than this host allows.
        let limits = words(match name {
            "podman" => &["--ulimit", "host"],
            _ => &[],
        });
        all.chain(limits)
            .chain(words(flags))
            .chain(words(&[IMAGE]))
            .collect::<Vec<_>>()
    };
    Ok(Engine {
        name,
        about: format!("`{name} run --rm --network none IMAGE /bin/true`"),
        program,
        arguments: run(&[]),
        in_background: Some(run(&["--detach"])),
    })
}

fn docker(scratch: &Scratch, archive: &Path) -> Result<Engine, String> {
    let program = find_program("docker").ok_or("not installed")?;
    let host = std::env::var("DOCKER_HOST")
        .ok()
        .filter(|host| !host.is_empty());
    let global: Vec<OsString> = host
        .iter()
        .flat_map(|host| words(&["--host", host]))
        .collect();
    with_store(("docker", program), global, scratch, archive)
}

/// With a store of its own, below the scratch.
fn podman(scratch: &Scratch, archive: &Path) -> Result<Engine, String> {
    let program = find_program("podman").ok_or("not installed")?;
    let place = |name: &str| scratch.folder(name).map_err(|error| error.to_string());
    let (root, run) = (place("podman")?, place("podman-run")?);
    let mut global = words(&["--cgroup-manager", "cgroupfs"]);
    global.extend(["--root".into(), root.into(), "--runroot".into(), run.into()]);
    with_store(("podman", program), global, scratch, archive)
}

fn nspawn(tree: &Path) -> Result<Engine, String> {
    let program = find_program("systemd-nspawn").ok_or("not installed")?;
    if !geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    let mut arguments = words(&[
        "--quiet",
        "--read-only",
        "--private-network",
        "--register=no",
    ]);
    arguments.extend(words(&[
        "--keep-unit",
        "--resolv-conf=off",
        "--timezone=off",
        "--directory",
    ]));
    arguments.extend([tree.into()]);
    Ok(Engine {
        name: "systemd-nspawn",
        about: "`systemd-nspawn --read-only --private-network --register=no -D TREE /bin/true`"
            .to_owned(),
        program,
        arguments,
        in_background: None,
    })
}

/// Removes the image from stores that outlive the bench.
pub(crate) fn clean(scratch: &Scratch, candidates: &[EngineCandidate]) {
    for engine in candidates
        .iter()
        .filter_map(|found| found.engine.as_ref().ok())
    {
        if engine.name == "docker" {
            let global = engine.arguments.iter().take_while(|word| *word != "run");
            let remove = global
                .cloned()
                .chain(words(&["image", "rm", "--force", IMAGE]));
            // It says so itself, and the numbers stand.
            let _ = quiet(scratch, &engine.program, &remove.collect::<Vec<_>>());
        }
    }
}
