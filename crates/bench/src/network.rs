//! `bench network`: what goes through the egress proxy, beside bare loopback, pasta, and a
//! bridge of two socat over a Unix socket, which is how several peers do it.
//!
//! One server on the host's loopback, one client, which is this program again: bare, in a cage,
//! behind the others. The client measures and leaves the numbers in its directory.

use crate::process_tree::ProcessTree;
use crate::scratch::Scratch;
use crate::statistics::{Shuffle, Summary, median};
use crate::table::{Table, number};
use crate::verdict::{Target, Verdict};
use crate::{ArmError, BenchError, HostFacts, own_program};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CLIENT: &str = "__bench-network";
const PROGRAM: &str = "client";
const RESULT: &str = "network.json";
const NAME: &str = "bench.test";
/// Bytes of one measurement of throughput, over all streams.
const BYTES: u64 = 256 << 20;
const STREAMS: u64 = 50;
const CONNECTS: usize = 300;
const REQUESTS: usize = 5000;
const REQUEST: usize = 128;
/// How long the other side may take to be there.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one measurement may take at all.
const DEADLINE: Duration = Duration::from_secs(120);

const BRIDGE: Target = Target {
    at_most: 0.33,
    unit: "",
};
/// One stream at 0.6 of what bare loopback has.
const OF_NATIVE: Target = Target {
    at_most: 1.0 / 0.6,
    unit: "",
};
const START: Target = Target {
    at_most: 1.0,
    unit: "ms",
};
const MEMORY: Target = Target {
    at_most: 8.0,
    unit: "MB",
};

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct NetworkBenchRequest {
    /// The `ironcage` program.
    pub ironcage: PathBuf,
    /// How many times each arm is measured.
    pub rounds: usize,
    /// How many starts with and without a network.
    pub starts: usize,
}

/// What one client saw.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ClientMeasurement {
    /// Bytes a second, in millions.
    one_stream: f64,
    many_streams: f64,
    /// From connect to the first answer, in microseconds.
    connect: f64,
    requests_per_second: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct NetworkReport {
    bench: &'static str,
    host: HostFacts,
    reproduce: String,
    rounds: usize,
    arms: Vec<ArmReport>,
    missing: Vec<&'static str>,
    start_without: Summary,
    start_with: Summary,
    door_megabytes: f64,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct ArmReport {
    name: &'static str,
    #[serde(flatten)]
    seen: ClientMeasurement,
}

/// The other side: gives as many bytes as it is asked for, or says back what it hears.
fn serve(listener: TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || answer(stream));
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut word = [0; 9];
    stream.read_exact(&mut word[..1])?;
    if word[0] == b'd' {
        stream.read_exact(&mut word[1..])?;
        let mut left = u64::from_be_bytes(word[1..].try_into().unwrap_or_default());
        let part = vec![0x5a; 256 << 10];
        while left > 0 {
            let length = part.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            stream.write_all(&part[..length])?;
            left -= length as u64;
        }
        return Ok(());
    }
    stream.write_all(&word[..1])?;
    let mut request = [0; REQUEST];
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&request)?;
    }
}

fn connect(to: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Millions of bytes a second over so many streams at once.
fn throughput(to: &[SocketAddr], streams: u64) -> io::Result<f64> {
    let share = BYTES / streams;
    let began = Instant::now();
    let readers: Vec<_> = (0..streams)
        .map(|_| {
            let to = to.to_vec();
            std::thread::spawn(move || -> io::Result<u64> {
                let mut stream = connect(&to)?;
                let mut word = vec![b'd'];
                word.extend(share.to_be_bytes());
                stream.write_all(&word)?;
                let mut part = vec![0; 256 << 10];
                let mut got = 0;
                loop {
                    match stream.read(&mut part)? {
                        0 => return Ok(got),
                        bytes => got += bytes as u64,
                    }
                }
            })
        })
        .collect();
    let mut got = 0;
    for reader in readers {
        let read = reader.join();
        got += read.map_err(|_| io::Error::other("a stream's thread ended"))??;
    }
    if got != share * streams {
        return Err(io::Error::other(format!("{got} bytes came of {BYTES}")));
    }
    Ok(got as f64 / 1e6 / began.elapsed().as_secs_f64())
}

fn first_answer(to: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut stream = connect(to)?;
    stream.write_all(b"e")?;
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

fn measure(to: &[SocketAddr]) -> io::Result<ClientMeasurement> {
    // A bridge may still be starting.
    let began = Instant::now();
    while let Err(error) = first_answer(to) {
        if began.elapsed() > PATIENCE {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut connects = Vec::with_capacity(CONNECTS);
    for _ in 0..CONNECTS {
        let began = Instant::now();
        first_answer(to)?;
        connects.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let mut stream = first_answer(to)?;
    let mut request = [0x20; REQUEST];
    let began = Instant::now();
    for _ in 0..REQUESTS {
        stream.write_all(&request)?;
        stream.read_exact(&mut request)?;
    }
    let requests_per_second = REQUESTS as f64 / began.elapsed().as_secs_f64();
    Ok(ClientMeasurement {
        one_stream: throughput(to, 1)?,
        many_streams: throughput(to, STREAMS)?,
        connect: median(&connects).unwrap_or(f64::NAN),
        requests_per_second,
    })
}

/// The client: measures what it reaches, and leaves the numbers in the current directory.
pub fn measure_network(host: &str, port: u16) -> Result<(), BenchError> {
    let found = (host, port).to_socket_addrs();
    let to: Vec<SocketAddr> = found.map_err(BenchError::call("the look-up"))?.collect();
    let seen = measure(&to).map_err(BenchError::call("the measurement"))?;
    let text = serde_json::to_string(&seen)
        .map_err(|error| BenchError::call("writing JSON")(error.into()))?;
    std::fs::write(RESULT, text).map_err(BenchError::file("write", RESULT))
}

/// One way from the client to the server.
struct Route {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
}

/// A process that ends with this.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The ways that can be gone here, those that cannot, and what has to stay meanwhile.
struct Routes {
    ways: Vec<Route>,
    missing: Vec<&'static str>,
    _bridge: Option<KillOnDrop>,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Measures every way in turns, then starts, then the proxy's memory.
pub fn bench_network(request: &NetworkBenchRequest) -> Result<NetworkReport, BenchError> {
    if request.rounds == 0 || request.starts == 0 {
        let why = "bench network needs at least one round and one start";
        return Err(BenchError::Request(why.to_owned()));
    }
    let host = HostFacts::now();
    let scratch = Scratch::new()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(BenchError::call("listening on the loopback"))?;
    let port = listener
        .local_addr()
        .map_err(BenchError::call("listening on the loopback"))?
        .port();
    std::thread::spawn(move || serve(listener));
    let client = scratch.work().join(PROGRAM);
    std::fs::copy(own_program()?, &client).map_err(BenchError::file("copy to", &client))?;
    let Routes {
        ways,
        missing,
        _bridge,
    } = ways(request, &scratch, &client, port)?;

    let mut seen: Vec<Vec<ClientMeasurement>> = ways.iter().map(|_| Vec::new()).collect();
    let mut proxy = 0_u64;
    let mut shuffle = Shuffle::new();
    for _ in 0..request.rounds {
        for index in shuffle.order(ways.len()) {
            if let (Some(way), Some(seen)) = (ways.get(index), seen.get_mut(index)) {
                let (result, memory) = run(way, &scratch)?;
                seen.push(result);
                proxy = proxy.max(memory);
            }
        }
    }
    let arms: Vec<ArmReport> = ways
        .iter()
        .zip(&seen)
        .map(|(way, seen)| ArmReport {
            name: way.name,
            seen: middle(seen),
        })
        .collect();
    let (without, with) = starts(request, &scratch, port)?;
    let door_megabytes = proxy as f64 / 1e6;
    Ok(NetworkReport {
        bench: "network",
        host,
        reproduce: format!(
            "ironcage bench network --rounds {} --starts {}",
            request.rounds, request.starts
        ),
        rounds: request.rounds,
        verdicts: verdicts(&arms, &without, &with, door_megabytes),
        arms,
        missing,
        start_without: without,
        start_with: with,
        door_megabytes,
    })
}

fn ways(
    request: &NetworkBenchRequest,
    scratch: &Scratch,
    client: &Path,
    port: u16,
) -> Result<Routes, BenchError> {
    let port_text = port.to_string();
    let client_text = client.display().to_string();
    let mut missing = Vec::new();
    let mut ways = vec![Route {
        name: "bare loopback",
        program: client.to_owned(),
        arguments: words(&[CLIENT, "127.0.0.1", &port_text]),
    }];
    let mut caged = words(&["run", "-q", "--workspace-mode", "direct"]);
    caged.extend(network_flags(port));
    caged.extend(words(&["--", &client_text, CLIENT, NAME, &port_text]));
    ways.push(Route {
        name: "ironcage",
        program: request.ironcage.clone(),
        arguments: caged,
    });
    let socat = Path::new("/usr/bin/socat");
    let mut bridge = None;
    if socat.exists() {
        let path = scratch.work().join("bridge");
        let listen = format!("UNIX-LISTEN:{},fork,mode=666", path.display());
        let to = format!("TCP:127.0.0.1:{port}");
        let outer = Command::new(socat)
            .args([listen, to])
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| BenchError::Spawn {
                program: "socat".into(),
                source,
            })?;
        bridge = Some(KillOnDrop(outer));
        let script = format!(
            "socat TCP-LISTEN:{port},bind=127.0.0.1,fork UNIX-CONNECT:bridge 2>/dev/null & {client_text} {CLIENT} 127.0.0.1 {port}"
        );
        let flags = [
            "run",
            "-q",
            "--workspace-mode",
            "direct",
            "--network",
            "off",
            "--",
        ];
        let mut arguments = words(&flags);
        arguments.extend(words(&["/bin/sh", "-c", &script]));
        ways.push(Route {
            name: "socat bridge",
            program: request.ironcage.clone(),
            arguments,
        });
    } else {
        missing.push("socat");
    }
    let pasta = Path::new("/usr/bin/pasta");
    // Started by root it becomes nobody, who cannot read the scratch directory.
    if pasta.exists() && !ironcage_sys::rustix::process::geteuid().is_root() {
        let flags = ["-q", "--config-net", "-T", &port_text, "--"];
        let mut arguments = words(&flags);
        arguments.extend(words(&[&client_text, CLIENT, "127.0.0.1", &port_text]));
        ways.push(Route {
            name: "pasta",
            program: pasta.to_owned(),
            arguments,
        });
    } else {
        missing.push("pasta (as an unprivileged user)");
    }
    Ok(Routes {
        ways,
        missing,
        _bridge: bridge,
    })
}

fn network_flags(port: u16) -> Vec<String> {
    words(&[
        "--allow-host",
        &format!("{NAME}:{port}"),
        "--allow-host",
        &format!("127.0.0.1:{port}"),
        "--resolve",
        &format!("{NAME}=127.0.0.1"),
    ])
}

/// Goes one way; what the client saw, and the most memory that a proxy had meanwhile.
fn run(way: &Route, scratch: &Scratch) -> Result<(ClientMeasurement, u64), BenchError> {
    let result = scratch.work().join(RESULT);
    let _ = std::fs::remove_file(&result);
    let mut complaints = scratch.complaints(way.name)?;
    let mut child = Command::new(&way.program)
        .args(&way.arguments)
        .env_clear()
        .envs(scratch.environment())
        .current_dir(scratch.work())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaints.descriptor()?)
        .spawn()
        .map_err(|source| BenchError::Spawn {
            program: way.name.to_owned(),
            source,
        })?;
    let mut memory = 0;
    let began = Instant::now();
    let status = loop {
        if let Ok(pid) = i32::try_from(child.id()) {
            memory = memory.max(proxy_memory(pid));
        }
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() > DEADLINE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(BenchError::Failed {
                    arm: way.name.to_owned(),
                    reason: ArmError::Result("it did not end in two minutes".into()),
                });
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(BenchError::call("waiting for a client")(error)),
        }
    };
    let failed = |reason: ArmError| BenchError::Failed {
        arm: way.name.to_owned(),
        reason,
    };
    if !status.success() {
        return Err(failed(ArmError::Status {
            status: status.to_string(),
            complaints: complaints.take(),
        }));
    }
    let text = std::fs::read_to_string(&result).map_err(BenchError::file("read", &result))?;
    let seen = serde_json::from_str(&text)
        .map_err(|error| failed(ArmError::system("read what the client saw")(error)))?;
    Ok((seen, memory))
}

/// The memory of its own that the proxy below a launcher has; 0 where none can be seen.
fn proxy_memory(launcher: i32) -> u64 {
    let Ok(tree) = ProcessTree::now() else {
        return 0;
    };
    let proxies = tree.below(launcher).into_iter();
    let proxies = proxies.filter(|process| process.name == "ironcage-egress");
    proxies
        .filter_map(|proxy| own_memory(proxy.pid))
        .max()
        .unwrap_or(0)
}

/// From `status`, which everybody may read: the proxy lets nobody look at its maps.
fn own_memory(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn middle(seen: &[ClientMeasurement]) -> ClientMeasurement {
    let of = |part: fn(&ClientMeasurement) -> f64| {
        let values: Vec<f64> = seen.iter().map(part).collect();
        median(&values).unwrap_or(f64::NAN)
    };
    ClientMeasurement {
        one_stream: of(|seen| seen.one_stream),
        many_streams: of(|seen| seen.many_streams),
        connect: of(|seen| seen.connect),
        requests_per_second: of(|seen| seen.requests_per_second),
    }
}

/// Starts without and with a network, in turns.
fn starts(
    request: &NetworkBenchRequest,
    scratch: &Scratch,
    port: u16,
) -> Result<(Summary, Summary), BenchError> {
    use crate::arm::Arm;
    let arm = |name, flags: Vec<String>| {
        let mut arguments = words(&["run", "-q", "--workspace-mode", "direct"]);
        arguments.extend(flags);
        arguments.extend(words(&["--", "/bin/true"]));
        let arguments: Vec<_> = arguments.into_iter().map(Into::into).collect();
        Arm::spawned(name, &request.ironcage, &arguments, scratch.work(), scratch)
    };
    let mut sides = [
        arm("without a network", words(&["--network", "off"]))?,
        arm("with a network", network_flags(port))?,
    ];
    let mut times: [Vec<Duration>; 2] = Default::default();
    let mut shuffle = Shuffle::new();
    for _ in 0..request.starts {
        for side in shuffle.order(2) {
            let measured = sides[side].measure()?;
            let time = measured.map_err(|reason| BenchError::Failed {
                arm: "a start".into(),
                reason,
            })?;
            times[side].push(time);
        }
    }
    let none = || BenchError::Request("no start was timed".into());
    let of = |times: &[Duration]| Summary::of_times(times).ok_or_else(none);
    Ok((of(&times[0])?, of(&times[1])?))
}

fn verdicts(arms: &[ArmReport], without: &Summary, with: &Summary, proxy: f64) -> Vec<Verdict> {
    let one = |name: &str| {
        let mut named = arms.iter().filter(|arm| arm.name == name);
        named.next().map(|arm| arm.seen.one_stream)
    };
    let mut verdicts = Vec::new();
    if let (Some(bridge), Some(proxy)) = (one("socat bridge"), one("ironcage")) {
        let what = "one stream: the bridge's throughput by the proxy's";
        verdicts.push(Verdict::new(what, bridge / proxy, BRIDGE));
    }
    if let (Some(bare), Some(proxy)) = (one("bare loopback"), one("ironcage")) {
        let what = "one stream: bare throughput by the proxy's";
        verdicts.push(Verdict::new(what, bare / proxy, OF_NATIVE));
    }
    let added = with.median - without.median;
    verdicts.push(Verdict::new("added to a start, by median", added, START));
    verdicts.push(Verdict::new("the proxy's own memory", proxy, MEMORY));
    verdicts
}

impl fmt::Display for NetworkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the egress proxy, median of {} rounds", self.rounds)?;
        write!(f, "{}", self.host)?;
        writeln!(f, "command: {}\n", self.reproduce)?;
        let mut table = Table::new([
            "way",
            "1 stream MB/s",
            "50 streams MB/s",
            "connect to answer us",
            "requests/s",
        ]);
        for ArmReport { name, seen } in &self.arms {
            table.row([
                (*name).to_owned(),
                number(seen.one_stream, 0),
                number(seen.many_streams, 0),
                number(seen.connect, 0),
                number(seen.requests_per_second, 0),
            ]);
        }
        writeln!(f, "{table}")?;
        if !self.missing.is_empty() {
            writeln!(
                f,
                "not here, and so not measured: {}",
                self.missing.join(", ")
            )?;
        }
        writeln!(
            f,
            "start without a network {:.2} ms, with {:.2} ms (median of {})",
            self.start_without.median, self.start_with.median, self.start_with.runs
        )?;
        for verdict in &self.verdicts {
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
