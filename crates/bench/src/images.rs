//! `bench image`: what an image costs: the start of a cage with one beside a start without, and
//! unpacking one beside skopeo and umoci.

use crate::arm::Arm;
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{BenchError, HostFacts};
use serde::Serialize;
use std::ffi::OsString;
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
const IMAGE: &str = "localhost/bench:1";

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
    milliseconds: Summary,
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
    let [plain, image] = starts(request, &scratch, &layout)?;
    let [ours, peers] = unpacking(request, &scratch, &layout)?;
    let of = |times: &[Duration]| {
        Summary::of_times(times).ok_or_else(|| BenchError::Request("no samples".to_owned()))
    };
    let size = format!("{FILES} files of {BYTES} bytes in one layer, compressed");
    let arms = vec![
        ImageArm {
            name: "start",
            about: "`ironcage run -- /bin/true` with the host's system".to_owned(),
            milliseconds: of(&plain)?,
        },
        ImageArm {
            name: "start with an image",
            about: "the same with `--image`".to_owned(),
            milliseconds: of(&image)?,
        },
        ImageArm {
            name: "ironcage image load",
            about: format!("an OCI layout, {size}, to an empty store"),
            milliseconds: of(&ours)?,
        },
        ImageArm {
            name: "skopeo copy, umoci unpack",
            about: "the same layout to another, and that to a directory".to_owned(),
            milliseconds: of(&peers)?,
        },
    ];
    let ratio = |above: usize, below: usize| {
        arms[above].milliseconds.median / arms[below].milliseconds.median
    };
    let verdicts = vec![
        Verdict::new("start with an image / start, by median", ratio(1, 0), START),
        Verdict::new("load / skopeo and umoci, by median", ratio(2, 3), UNPACK),
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
    for name in ["busybox", "true"] {
        let to = bin.join(name);
        std::fs::copy(BUSYBOX, &to).map_err(BenchError::file("copy", to))?;
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

/// Starts without the image and with it, in turns.
fn starts(
    request: &ImageRequest,
    scratch: &Scratch,
    layout: &Path,
) -> Result<[Vec<Duration>; 2], BenchError> {
    let layout = layout.display().to_string();
    let load = ["image", "load", &layout, "--name", IMAGE];
    execute(scratch, &request.ironcage, &load)?;
    let arm = |name: &str, flags: &[&str]| {
        let words = ["run", "-q"]
            .iter()
            .chain(flags)
            .chain(&["--", "/bin/true"]);
        let words: Vec<OsString> = words.map(OsString::from).collect();
        Arm::spawned(name, &request.ironcage, &words, scratch.work(), scratch)
    };
    let mut arms = [arm("start", &[])?, arm("image", &["--image", IMAGE])?];
    let mut times = [Vec::new(), Vec::new()];
    let mut shuffle = Shuffle::new();
    for round in 0..WARM_UP + request.starts {
        if round == WARM_UP {
            times.iter_mut().for_each(Vec::clear);
        }
        for index in shuffle.order(arms.len()) {
            let measured = arms[index].measure()?;
            let elapsed = measured.map_err(|reason| BenchError::Failed {
                arm: ["start", "start with an image"][index].to_owned(),
                reason,
            })?;
            times[index].push(elapsed);
        }
    }
    Ok(times)
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
        let mut table = Table::new(["arm", "median ms", "quartiles", "min ms", "p99 ms"]);
        for arm in &self.arms {
            table.row([
                arm.name.to_owned(),
                number(arm.milliseconds.median, 2),
                arm.milliseconds.spread(2),
                number(arm.milliseconds.min, 2),
                number(arm.milliseconds.p99, 2),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(f)?;
        for arm in &self.arms {
            writeln!(f, "{}: {}", arm.name, arm.about)?;
        }
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
