//! `bench serve`: what a cage costs that a program creates by HTTP, beside `bwrap`, `docker run`, and a
//! server that starts `bwrap` for each request.

mod http;
mod service;

use crate::peers::{BwrapView, bwrap_arguments, find_program, version};
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts};
use http::{Client, NaiveServer, Wrapped, run};
use serde::Serialize;
use serde_json::{Value, json};
use service::{Service, create, exec, remove};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What every arm runs.
const COMMAND: &str = "/bin/true";
/// Rounds that are thrown away first.
const WARM_UP: usize = 3;
/// Clients of a burst, and of the sustained rate.
const CLIENTS: usize = 16;
/// From the creation to the end of the first command, with a warm cage.
const FIRST_EXEC: Target = Target {
    at_most: 5.0,
    unit: "ms",
};
/// A burst of 200.
const BURST: Target = Target {
    at_most: 1.0,
    unit: "s",
};
/// The rate of `bwrap`, as a share of ours.
const RATE: Target = Target {
    at_most: 0.5,
    unit: "",
};

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct ServeRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many creations of each.
    pub runs: usize,
    /// Creations in a burst; the pool has as many cages.
    pub burst: usize,
    /// Idle cages whose memory is measured; 0 skips it.
    pub idle: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct ServeReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    arms: Vec<ServeArm>,
    bursts: Vec<ServeRate>,
    sustained: Vec<ServeRate>,
    idle: Option<IdleCages>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct ServeArm {
    name: &'static str,
    about: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    milliseconds: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times_bwrap: Option<f64>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct ServeRate {
    name: &'static str,
    count: usize,
    seconds: f64,
    per_second: f64,
    /// Of each, from its request to the end of its command.
    milliseconds: Summary,
}

#[derive(Debug, Clone, Serialize)]
struct IdleCages {
    cages: usize,
    kilobytes_per_cage: f64,
    service_kilobytes: u64,
    /// Seconds that it took to create them.
    seconds: f64,
}

/// One of the things that are compared.
enum StartMethod<'a> {
    Spawned(PathBuf, Vec<OsString>),
    Naive(Client),
    /// Creates a cage of this kind and runs the command in it.
    Created(&'a Service, Client, Value),
    /// Runs the command in this cage.
    Exec(Client, String),
}

struct ServeCandidate<'a> {
    name: &'static str,
    about: String,
    method: Result<StartMethod<'a>, ArmError>,
    samples: Vec<f64>,
}

impl StartMethod<'_> {
    /// One measurement, in milliseconds.
    fn measure(&mut self, scratch: &Scratch) -> Result<f64, BenchError> {
        if let StartMethod::Created(service, ..) = self {
            service.filled()?;
        }
        let begun = Instant::now();
        let done = match self {
            StartMethod::Spawned(program, words) => {
                run(program, words, scratch.work()).map(|()| None)
            }
            StartMethod::Naive(client) => client.send("POST", "/", None).map(|_| None),
            StartMethod::Created(_, client, spec) => {
                create(client, spec).and_then(|id| exec(client, &id).map(|()| Some(id)))
            }
            StartMethod::Exec(client, id) => exec(client, id).map(|()| None),
        };
        let elapsed = begun.elapsed().as_secs_f64() * 1e3;
        let removed = match (done, self) {
            (Ok(Some(id)), StartMethod::Created(_, client, _)) => remove(client, &id),
            (done, _) => done.map(drop),
        };
        removed.map_err(|reason| BenchError::Failed {
            arm: "ironcage serve".to_owned(),
            reason,
        })?;
        Ok(elapsed)
    }
}

/// `docker run` of an image that is here, if a daemon answers.
fn docker() -> Result<(PathBuf, Vec<OsString>, String), ArmError> {
    let missing = ArmError::NotInstalled {
        package: "docker.io",
    };
    let program = find_program("docker").ok_or(missing)?;
    let ask = |words: &[&str]| -> Result<String, ArmError> {
        let output = std::process::Command::new(&program).args(words).output();
        let output = output.map_err(ArmError::system("ask docker"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(ArmError::Status {
                status: output.status.to_string(),
                complaints: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    };
    let images = ask(&["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"])?;
    let image = images.lines().find(|image| !image.contains("<none>"));
    let image = image.ok_or_else(|| ArmError::Result("docker has no image".to_owned()))?;
    let words = ["run", "--rm", "--network=none", image, COMMAND];
    ask(&words)?;
    let about = format!("{}, {image}", version(&program));
    Ok((program.clone(), words.map(OsString::from).into(), about))
}

/// Takes `count` measurements on several threads: the time of each, and the seconds of all.
fn together(
    count: usize,
    clients: usize,
    one: impl Fn() -> Result<f64, ArmError> + Sync,
) -> Result<(Vec<f64>, f64), ArmError> {
    let left = AtomicUsize::new(count);
    let begun = Instant::now();
    let samples: Result<Vec<Vec<f64>>, ArmError> = std::thread::scope(|scope| {
        let work = || {
            let mut samples = Vec::new();
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
                .is_ok()
            {
                samples.push(one()?);
            }
            Ok(samples)
        };
        let workers: Vec<_> = (0..clients.min(count)).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|worker| {
            let panicked = |_| Err(ArmError::Result("a client panicked".to_owned()));
            worker.join().unwrap_or_else(panicked)
        });
        ended.collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    Ok((samples?.concat(), seconds))
}

fn timed(work: impl FnOnce() -> Result<(), ArmError>) -> Result<f64, ArmError> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn rate(
    name: &'static str,
    found: Result<(Vec<f64>, f64), ArmError>,
) -> Result<ServeRate, BenchError> {
    let failed = |reason| BenchError::Failed {
        arm: name.to_owned(),
        reason,
    };
    let (samples, seconds) = found.map_err(failed)?;
    let milliseconds = Summary::of(&samples).ok_or_else(|| failed(ArmError::NoSamples))?;
    Ok(ServeRate {
        name,
        count: samples.len(),
        seconds,
        per_second: samples.len() as f64 / seconds,
        milliseconds,
    })
}

/// Measures a service of the bench's own.
pub fn bench_serve(request: &ServeRequest) -> Result<ServeReport, BenchError> {
    if request.runs == 0 || request.burst == 0 {
        let why = "bench serve needs at least one run, and one creation in a burst";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let wrapped = find_program("bwrap").map(|program| {
        let mut words = bwrap_arguments(BwrapView {
            workspace: scratch.work(),
            with_etc: false,
        });
        words.push(COMMAND.into());
        Wrapped {
            program,
            words,
            directory: scratch.work().to_owned(),
        }
    });
    let naive = wrapped.clone().map(NaiveServer::start).transpose();
    let naive = naive.map_err(BenchError::call("listen on loopback"))?;
    let service = Service::start(&request.ironcage, &scratch, request.burst)?;
    let arms = in_turns(
        request,
        &scratch,
        &service,
        wrapped.as_ref(),
        naive.as_ref(),
    )?;
    let bursts = bursts(request, &service, wrapped.as_ref(), naive.as_ref())?;
    let sustained = sustained(request, &service, wrapped.as_ref(), naive.as_ref())?;
    let idle = match request.idle {
        0 => None,
        cages => Some(idle(&service, cages)?),
    };
    let verdicts = verdicts(&arms, &bursts, &sustained);
    Ok(ServeReport {
        bench: "serve",
        host,
        reproduce: format!(
            "ironcage bench serve --runs {} --burst {} --idle {}",
            request.runs, request.burst, request.idle
        ),
        arms,
        bursts,
        sustained,
        idle,
        verdicts,
    })
}

fn in_turns(
    request: &ServeRequest,
    scratch: &Scratch,
    service: &Service,
    wrapped: Option<&Wrapped>,
    naive: Option<&NaiveServer>,
) -> Result<Vec<ServeArm>, BenchError> {
    let no_bwrap = || ArmError::NotInstalled {
        package: "bubblewrap",
    };
    let failed = |reason| BenchError::Failed {
        arm: "ironcage serve".to_owned(),
        reason,
    };
    service.filled()?;
    let running = create(&mut service.client(), &json!({})).map_err(failed)?;
    let spawned =
        |wrapped: &Wrapped| StartMethod::Spawned(wrapped.program.clone(), wrapped.words.clone());
    let created = |spec| Ok(StartMethod::Created(service, service.client(), spec));
    let (docker, docker_about) = match docker() {
        Ok((program, words, about)) => (Ok(StartMethod::Spawned(program, words)), about),
        Err(error) => (Err(error), String::new()),
    };
    let about_bwrap = wrapped.map_or_else(String::new, |wrapped| version(&wrapped.program));
    // No pool has this limit, which is the default.
    let cold = json!({ "limits": { "pids": 4096 } });
    let arm = |name, about: &str, method| ServeCandidate {
        name,
        about: about.to_owned(),
        method,
        samples: Vec::new(),
    };
    let mut candidates = [
        arm(
            "bare",
            COMMAND,
            Ok(StartMethod::Spawned(COMMAND.into(), Vec::new())),
        ),
        arm(
            "bwrap",
            &about_bwrap,
            wrapped.map(spawned).ok_or_else(no_bwrap),
        ),
        arm("docker run", &docker_about, docker),
        arm(
            "naive server",
            "an HTTP server that starts bwrap for each request",
            naive
                .map(|naive| StartMethod::Naive(Client::new(naive.address, "")))
                .ok_or_else(no_bwrap),
        ),
        arm(
            "warm",
            "POST /v1/cages and the first command, from the pool",
            created(json!({})),
        ),
        arm("cold", "the same without the pool", created(cold)),
        arm(
            "exec",
            "another command in a cage that runs",
            Ok(StartMethod::Exec(service.client(), running.clone())),
        ),
    ];
    let mut shuffle = Shuffle::new();
    for round in 0..WARM_UP + request.runs {
        for index in shuffle.order(candidates.len()) {
            let candidate = &mut candidates[index];
            if let Ok(method) = &mut candidate.method {
                let sample = method.measure(scratch)?;
                if round >= WARM_UP {
                    candidate.samples.push(sample);
                }
            }
        }
    }
    remove(&mut service.client(), &running).map_err(failed)?;
    let bwrap = Summary::of(&candidates[1].samples);
    Ok(candidates
        .into_iter()
        .map(|candidate| {
            let milliseconds = Summary::of(&candidate.samples);
            ServeArm {
                name: candidate.name,
                about: candidate.about,
                times_bwrap: milliseconds
                    .zip(bwrap)
                    .map(|(own, bwrap)| own.median / bwrap.median),
                milliseconds,
                reason: candidate.method.err().map(|error| error.to_string()),
            }
        })
        .collect())
}

/// As many as the pool has, at once.
fn bursts(
    request: &ServeRequest,
    service: &Service,
    wrapped: Option<&Wrapped>,
    naive: Option<&NaiveServer>,
) -> Result<Vec<ServeRate>, BenchError> {
    let mut rates = Vec::new();
    if let Some(wrapped) = wrapped {
        let burst = together(request.burst, CLIENTS, || timed(|| wrapped.run()));
        rates.push(rate("bwrap", burst)?);
    }
    if let Some(naive) = naive {
        let one = || {
            timed(|| {
                Client::new(naive.address, "")
                    .send("POST", "/", None)
                    .map(drop)
            })
        };
        rates.push(rate("naive server", together(request.burst, CLIENTS, one))?);
    }
    service.filled()?;
    let one = || {
        timed(|| {
            let mut client = service.client();
            let id = create(&mut client, &json!({}))?;
            exec(&mut client, &id)
        })
    };
    rates.push(rate("service", together(request.burst, CLIENTS, one))?);
    empty(service)?;
    Ok(rates)
}

/// Creations with their first command and their end, with the pool being filled meanwhile.
fn sustained(
    request: &ServeRequest,
    service: &Service,
    wrapped: Option<&Wrapped>,
    naive: Option<&NaiveServer>,
) -> Result<Vec<ServeRate>, BenchError> {
    let count = request.burst * 2;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rates = Vec::new();
    if let Some(wrapped) = wrapped {
        rates.push(rate(
            "bwrap",
            together(count, cpus, || timed(|| wrapped.run())),
        )?);
    }
    if let Some(naive) = naive {
        let one = || {
            timed(|| {
                Client::new(naive.address, "")
                    .send("POST", "/", None)
                    .map(drop)
            })
        };
        rates.push(rate("naive server", together(count, CLIENTS, one))?);
    }
    service.filled()?;
    let one = || {
        let mut client = service.client();
        let begun = Instant::now();
        let id = create(&mut client, &json!({}))?;
        exec(&mut client, &id)?;
        let elapsed = begun.elapsed().as_secs_f64() * 1e3;
        remove(&mut client, &id)?;
        Ok(elapsed)
    };
    rates.push(rate("service", together(count, CLIENTS, one))?);
    Ok(rates)
}

fn empty(service: &Service) -> Result<(), BenchError> {
    service.empty().map_err(|reason| BenchError::Failed {
        arm: "ironcage serve".to_owned(),
        reason,
    })
}

/// Cages that nobody uses, and what they hold.
fn idle(service: &Service, cages: usize) -> Result<IdleCages, BenchError> {
    service.filled()?;
    let (_, before) = service.memory()?;
    let long = json!({ "timeout": 86_400 });
    let one = || timed(|| create(&mut service.client(), &long).map(drop));
    let created = rate("service", together(cages, CLIENTS, one))?;
    service.filled()?;
    let (own, after) = service.memory()?;
    empty(service)?;
    Ok(IdleCages {
        cages,
        kilobytes_per_cage: after.saturating_sub(before) as f64 / 1024.0 / cages as f64,
        service_kilobytes: own / 1024,
        seconds: created.seconds,
    })
}

fn verdicts(arms: &[ServeArm], bursts: &[ServeRate], sustained: &[ServeRate]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let warm = arms.iter().find(|arm| arm.name == "warm");
    if let Some(warm) = warm.and_then(|arm| arm.milliseconds) {
        let what = "create to the end of the first command, warm, median";
        verdicts.push(Verdict::new(what, warm.median, FIRST_EXEC));
    }
    let of = |rates: &[ServeRate], name: &str| rates.iter().find(|rate| rate.name == name).cloned();
    if let Some(service) = of(bursts, "service") {
        let what = format!("a burst of {} creations", service.count);
        verdicts.push(Verdict::new(what, service.seconds, BURST));
    }
    if let Some((service, bwrap)) = of(sustained, "service").zip(of(sustained, "bwrap")) {
        let what = "rate of bwrap / sustained rate of the service";
        verdicts.push(Verdict::new(
            what,
            bwrap.per_second / service.per_second,
            RATE,
        ));
    }
    verdicts
}

impl fmt::Display for ServeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "cages by HTTP, from the request to the end of the first command, milliseconds"
        )?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new(["", "median", "quartiles", "min", "p99", "x bwrap"]);
        for arm in &self.arms {
            let Some(of) = arm.milliseconds else { continue };
            table.row([
                arm.name.to_owned(),
                number(of.median, 2),
                of.spread(2),
                number(of.min, 2),
                number(of.p99, 2),
                arm.times_bwrap
                    .map_or_else(String::new, |times| number(times, 2)),
            ]);
        }
        writeln!(f, "{table}")?;
        for arm in &self.arms {
            match &arm.reason {
                Some(reason) => writeln!(f, "{}: not measured: {reason}", arm.name)?,
                None => writeln!(f, "{}: {}", arm.name, arm.about)?,
            }
        }
        writeln!(f)?;
        let mut table = Table::new(["", "count", "seconds", "per second", "median", "p99"]);
        let burst = self.bursts.iter().map(|rate| ("burst", rate));
        let sustained = self.sustained.iter().map(|rate| ("sustained", rate));
        for (how, rate) in burst.chain(sustained) {
            table.row([
                format!("{}, {how}", rate.name),
                rate.count.to_string(),
                number(rate.seconds, 2),
                number(rate.per_second, 0),
                number(rate.milliseconds.median, 2),
                number(rate.milliseconds.p99, 2),
            ]);
        }
        writeln!(f, "{table}")?;
        if let Some(idle) = &self.idle {
            writeln!(
                f,
                "{} idle cages: created in {:.1} s, {:.0} KiB of private memory each; the service: {} KiB\n",
                idle.cages, idle.seconds, idle.kilobytes_per_cage, idle.service_kilobytes
            )?;
        }
        self.verdicts
            .iter()
            .try_for_each(|verdict| writeln!(f, "{verdict}"))
    }
}
