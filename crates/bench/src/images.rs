//! `bench image`: what an image costs: the start of a cage with one beside a start without and beside
//! other engines, the memory of each, and unpacking one beside skopeo and umoci.

use crate::image_engines::{Engine, EngineCandidate, IMAGE, clean, others};
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{BenchError, HostFacts};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What a start with an image may take, in starts without one.
const START: Target = Target {
    at_most: 1.3,
    unit: "",
};
/// What unpacking may take, in runs of skopeo and umoci.
const UNPACK: Target = Target {
    at_most: 1.0,
    unit: "",
};
/// Starts that are thrown away first: caches fill, lazy things are made.
const WARM_UP: usize = 3;
/// The image: files, and bytes in each.
const FILES: usize = 4000;
const BYTES: usize = 12_000;
const PER_DIRECTORY: usize = 100;
const BUSYBOX: &str = "/bin/busybox";

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many starts of each.
    pub starts: usize,
    /// How often the image is unpacked by each.
    pub runs: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct ImageReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<ImageArm>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct ImageArm {
    name: &'static str,
    about: String,
    #[serde(flatten)]
    outcome: ImageOutcome,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
enum ImageOutcome {
    Measured {
        milliseconds: Summary,
        /// Of the engine's own processes while a command sleeps. An engine's daemon is not in it.
        private_megabytes: Option<f64>,
    },
    Unavailable {
        reason: String,
    },
}

/// Makes an image, and measures starts and unpacking.
pub fn bench_image(request: &ImageRequest) -> Result<ImageReport, BenchError> {
    if request.starts == 0 || request.runs == 0 {
        let why = "bench image needs at least one start and one run";
        return Err(BenchError::Request(why.to_owned()));
    }
    let needs = ["/usr/bin/umoci", "/usr/bin/skopeo", BUSYBOX];
    if let Some(missing) = needs.iter().find(|path| !Path::new(path).exists()) {
        let why = format!("bench image needs {missing}: install umoci, skopeo and busybox-static");
        return Err(BenchError::Request(why));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let layout = make_layout(&scratch)?;
    let mut arms = starts(request, &scratch, &layout)?;
    let [ours, peers] = unpacking(request, &scratch, &layout)?;
    let size = format!("{FILES} files of {BYTES} bytes in one layer, compressed");
    let unpacked = [
        (
            "ironcage image load",
            format!("an OCI layout, {size}, to an empty store"),
            ours,
        ),
        (
            "skopeo copy, umoci unpack",
            "the same layout to another, and that to a directory".to_owned(),
            peers,
        ),
    ];
    let mut unpack_medians = Vec::new();
    for (name, about, times) in unpacked {
        let milliseconds = summary(&times)?;
        unpack_medians.push(milliseconds.median);
        arms.push(ImageArm {
            name,
            about,
            outcome: ImageOutcome::Measured {
                milliseconds,
                private_megabytes: None,
            },
        });
    }
    let median = |index: usize| match arms.get(index).map(|arm| &arm.outcome) {
        Some(ImageOutcome::Measured { milliseconds, .. }) => milliseconds.median,
        _ => f64::NAN,
    };
    let ratio = match unpack_medians.as_slice() {
        [ours, peers] => ours / peers,
        _ => f64::NAN,
    };
    let verdicts = vec![
        Verdict::new(
            "start with an image / start, by median",
            median(1) / median(0),
            START,
        ),
        Verdict::new("load / skopeo and umoci, by median", ratio, UNPACK),
    ];
    Ok(ImageReport {
        bench: "image",
        host,
        reproduce: format!(
            "ironcage bench image --starts {} --runs {}",
            request.starts, request.runs
        ),
        arms,
        verdicts,
    })
}

fn summary(times: &[Duration]) -> Result<Summary, BenchError> {
    Summary::of_times(times).ok_or_else(|| BenchError::Request("no samples".to_owned()))
}

/// Runs a program to its end, in the environment of the scratch.
fn execute(scratch: &Scratch, program: &Path, words: &[&str]) -> Result<Duration, BenchError> {
    let name = program.display().to_string();
    let begun = Instant::now();
    let output = Command::new(program)
        .args(words)
        .env_clear()
        .envs(scratch.environment())
        .current_dir(scratch.work())
        .output()
        .map_err(|source| BenchError::Spawn {
            program: name.clone(),
            source,
        })?;
    let elapsed = begun.elapsed();
    match output.status.success() {
        true => Ok(elapsed),
        false => Err(BenchError::Failed {
            arm: name,
            reason: crate::ArmError::Result(String::from_utf8_lossy(&output.stderr).into_owned()),
        }),
    }
}

/// Makes an OCI layout with one image.
fn make_layout(scratch: &Scratch) -> Result<PathBuf, BenchError> {
    let tree = scratch.folder("tree")?;
    let bin = scratch.folder("tree/bin")?;
    for name in ["busybox", "true", "sleep"] {
        let to = bin.join(name);
        std::fs::copy(BUSYBOX, &to).map_err(BenchError::file("copy", to))?;
    }
    // Where engines mount what is theirs: a system that cannot be written must have them.
    for name in ["dev", "etc", "proc", "run", "sys", "tmp", "var"] {
        scratch.folder(&format!("tree/{name}"))?;
    }
    // Text that compresses like source code does.
    for number in 0..FILES {
        let directory = format!("tree/usr/share/{}", number / PER_DIRECTORY);
        let path = scratch.folder(&directory)?.join(format!("{number}.txt"));
        let line =
            |line: usize| format!("{number} {} fn word_{}(value: u32)\n", line * 7, line % 97);
        let mut text: String = (0..BYTES / 20).map(line).collect();
        text.truncate(BYTES);
        std::fs::write(&path, text).map_err(BenchError::file("write", path))?;
    }
    let layout = scratch.path("layout");
    let (layout_text, tree_text) = (layout.display().to_string(), tree.display().to_string());
    let image = format!("{layout_text}:bench");
    let umoci = |words: &[&str]| execute(scratch, Path::new("/usr/bin/umoci"), words);
    umoci(&["init", "--layout", &layout_text])?;
    umoci(&["new", "--image", &image])?;
    umoci(&["insert", "--rootless", "--image", &image, &tree_text, "/"])?;
    Ok(layout)
}

/// Starts without the image and with it, and in other engines, in turns.
fn starts(
    request: &ImageRequest,
    scratch: &Scratch,
    layout: &Path,
) -> Result<Vec<ImageArm>, BenchError> {
    let layout = layout.display().to_string();
    let load = ["image", "load", &layout, "--name", IMAGE];
    execute(scratch, &request.ironcage, &load)?;
    let archive = scratch.path("image.tar");
    let archive_text = archive.display().to_string();
    let export = ["image", "export", IMAGE, "--output", &archive_text];
    execute(scratch, &request.ironcage, &export)?;
    let bundle = scratch.path("system");
    let bundle_text = bundle.display().to_string();
    let image = format!("{layout}:bench");
    let unpack = ["unpack", "--rootless", "--image", &image, &bundle_text];
    execute(scratch, Path::new("/usr/bin/umoci"), &unpack)?;
    let ours = [None, Some(IMAGE)].map(|image| Engine::ironcage(&request.ironcage, image));
    let ours = ours.map(|engine| EngineCandidate {
        name: engine.name,
        engine: Ok(engine),
    });
    let others = others(scratch, &archive, &bundle.join("rootfs"));
    let candidates: Vec<EngineCandidate> = ours.into_iter().chain(others).collect();
    let measured = measure(request, scratch, &candidates);
    clean(scratch, &candidates);
    measured
}

fn measure(
    request: &ImageRequest,
    scratch: &Scratch,
    candidates: &[EngineCandidate],
) -> Result<Vec<ImageArm>, BenchError> {
    // Without the first two there is nothing to compare.
    let is_required = |index: usize| index < 2;
    let mut states = Vec::new();
    for candidate in candidates {
        states.push(match &candidate.engine {
            Ok(engine) => Ok((engine.arm(scratch)?, Vec::new())),
            Err(reason) => Err(reason.clone()),
        });
    }
    let mut shuffle = Shuffle::new();
    for round in 0..WARM_UP + request.starts {
        for index in shuffle.order(states.len()) {
            let Some(Ok((arm, times))) = states.get_mut(index) else {
                continue;
            };
            match arm.measure()? {
                Ok(_) if round < WARM_UP => {}
                Ok(elapsed) => times.push(elapsed),
                Err(reason) if is_required(index) => {
                    let arm = candidates[index].name.to_owned();
                    return Err(BenchError::Failed { arm, reason });
                }
                Err(reason) => states[index] = Err(reason.to_string()),
            }
        }
    }
    let mut arms = Vec::new();
    for (index, (candidate, state)) in candidates.iter().zip(states).enumerate() {
        let memory = match (&candidate.engine, &state) {
            (Ok(engine), Ok(_)) => Some(engine.memory(scratch)),
            _ => None,
        };
        let state = match (state, memory) {
            (Ok(_), Some(Err(reason))) if is_required(index) => {
                let arm = candidate.name.to_owned();
                return Err(BenchError::Failed { arm, reason });
            }
            (Ok(_), Some(Err(reason))) => Err(reason.to_string()),
            (Ok((_, times)), Some(Ok(bytes))) => Ok((times, bytes)),
            (Ok(_), None) => Err("not measured".to_owned()),
            (Err(reason), _) => Err(reason),
        };
        let about = match &candidate.engine {
            Ok(engine) => engine.about.clone(),
            Err(_) => "not measured".to_owned(),
        };
        arms.push(ImageArm {
            name: candidate.name,
            about,
            outcome: match state {
                Ok((times, bytes)) => ImageOutcome::Measured {
                    milliseconds: summary(&times)?,
                    private_megabytes: Some(bytes as f64 / (1024.0 * 1024.0)),
                },
                Err(reason) => ImageOutcome::Unavailable { reason },
            },
        });
    }
    Ok(arms)
}

/// Unpacks the image by each, in turns, every time to a place of its own.
fn unpacking(
    request: &ImageRequest,
    scratch: &Scratch,
    layout: &Path,
) -> Result<[Vec<Duration>; 2], BenchError> {
    let layout = layout.display().to_string();
    let mut times = [Vec::new(), Vec::new()];
    let mut shuffle = Shuffle::new();
    for _ in 0..request.runs {
        for index in shuffle.order(2) {
            let elapsed = match index {
                0 => {
                    scratch.put_aside(&scratch.path("state/ironcage/images"))?;
                    let load = ["image", "load", &layout, "--name", IMAGE];
                    execute(scratch, &request.ironcage, &load)?
                }
                _ => {
                    let (copy, bundle) = (scratch.path("copy"), scratch.path("bundle"));
                    scratch.put_aside(&copy)?;
                    scratch.put_aside(&bundle)?;
                    let (from, to) = (
                        format!("oci:{layout}:bench"),
                        format!("oci:{}:bench", copy.display()),
                    );
                    let image = format!("{}:bench", copy.display());
                    let bundle = bundle.display().to_string();
                    let skopeo = ["copy", "--quiet", "--insecure-policy", &from, &to];
                    let umoci = ["unpack", "--rootless", "--image", &image, &bundle];
                    execute(scratch, Path::new("/usr/bin/skopeo"), &skopeo)?
                        + execute(scratch, Path::new("/usr/bin/umoci"), &umoci)?
                }
            };
            times[index].push(elapsed);
        }
    }
    Ok(times)
}

impl fmt::Display for ImageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.host)?;
        writeln!(f, "{}\n", self.reproduce)?;
        let mut table = Table::new([
            "arm",
            "median ms",
            "quartiles",
            "min ms",
            "p99 ms",
            "private MB",
        ]);
        for arm in &self.arms {
            let ImageOutcome::Measured {
                milliseconds,
                private_megabytes,
            } = &arm.outcome
            else {
                continue;
            };
            table.row([
                arm.name.to_owned(),
                number(milliseconds.median, 2),
                milliseconds.spread(2),
                number(milliseconds.min, 2),
                number(milliseconds.p99, 2),
                private_megabytes.map_or_else(|| "-".to_owned(), |size| number(size, 2)),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(f)?;
        for arm in &self.arms {
            match &arm.outcome {
                ImageOutcome::Measured { .. } => writeln!(f, "{}: {}", arm.name, arm.about)?,
                ImageOutcome::Unavailable { reason } => {
                    writeln!(f, "{}: not measured: {reason}", arm.name)?;
                }
            }
        }
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
