//! Floods against the egress proxy: ten thousand connections, clients that say nothing or little
//! at a time. It neither passes them nor falls over, and one cage's flood is not another's.
//!
//! Nothing here asserts how long something took; what would hang is ended by the deadlines.

use ironcage_tests::web::{Web, refs};
use ironcage_tests::{DIRECT, Running, Stage, both, wait_until};
use std::io::Write;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Opens connections to a port on which the proxy waits for the first message of TLS, says the
/// beginning of one on some of them, and holds them all until it is told to go on.
const FLOOD: &str = "import os, socket, sys\n\
    name, port, each, parts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])\n\
    at = socket.getaddrinfo(name, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]\n\
    for part in range(parts):\n\
    \x20   if os.fork() == 0:\n\
    \x20       held, refused = [], 0\n\
    \x20       for i in range(each):\n\
    \x20           try:\n\
    \x20               s = socket.socket(); s.settimeout(60); s.connect(at)\n\
    \x20               if i % 3 == 0: s.send(b'\\x16\\x03\\x01')\n\
    \x20               held.append(s)\n\
    \x20           except OSError: refused += 1\n\
    \x20       open('held.%d' % part, 'w').write('%d %d' % (len(held), refused))\n\
    \x20       while not os.path.exists('go'): import time; time.sleep(0.05)\n\
    \x20       os._exit(0)\n\
    for part in range(parts): os.wait()\n\
    print('over', flush=True)\n\
    sys.stdin.readline()\n";

fn proxy_of(launcher: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().find_map(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name.trim() == "ironcage-egress").then(|| pid.parse().ok())?
    })
}

fn get(stage: &Stage, web: &Web) -> String {
    let port = web.address.port();
    let script = format!("curl -sS -m 100 http://web.test:{port}/ || echo no");
    stage
        .sh_with(&refs(&web.flags("web.test")), &script)
        .stdout()
}

/// Asks for many names and connects to many addresses, none of which any rule allows.
const JUNK: &str = "import socket\n\
    for i in range(700):\n\
    \x20   try: socket.getaddrinfo('n%d.test' % i, 80)\n\
    \x20   except OSError: pass\n\
    \x20   s = socket.socket(); s.settimeout(10)\n\
    \x20   try: s.connect(('203.0.113.%d' % (i % 250), 1000 + i))\n\
    \x20   except OSError: pass\n\
    \x20   s.close()\n";

both! {
    fn junk_does_not_crowd_allowed_connections_out_of_the_log(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        stage.write(stage.project().join("junk.py"), JUNK);
        let mut flags = web.flags("web.test");
        // So that connections to every port come to the proxy at all.
        flags.extend(["--allow-host", "quiet.test:*"].map(str::to_owned));
        let script = format!(
            "python3 junk.py; curl -sS -m 100 http://web.test:{port}/; python3 -c \"import socket; socket.getaddrinfo('late.test', 80)\" 2> /dev/null; true"
        );
        let ran = stage.sh_with(&refs(&flags), &script).ok();
        assert!(ran.stdout().contains("hello web.test"), "{}", ran.stdout());
        let log = Running::start(&mut stage.ironcage(["audit", "show", "--json"])).finish(PATIENCE).ok().stdout();
        let network = |verdict: &str, host: &str| {
            log.lines().any(|line| {
                line.contains("\"event\":\"network\"")
                    && line.contains(&format!("\"verdict\":\"{verdict}\""))
                    && line.contains(&format!("\"host\":\"{host}\""))
            })
        };
        assert!(network("allowed", "web.test"), "{log}");
        assert!(network("denied", "n0.test"), "{log}");
        // What was left out is counted.
        assert!(network("denied", "(others)"), "{log}");
    }

    fn ten_thousand_connections_are_held_or_refused_and_starve_nobody(stage) {
        let web = Web::start(0);
        let port = web.address.port();
        let hello = format!("hello web.test:{port}\n");
        stage.write(stage.project().join("flood.py"), FLOOD);
        let mut flags = web.flags("web.test");
        flags.extend(["--allow-host", "quiet.test:443", "--pids", "64"].map(str::to_owned));
        let script = format!(
            "python3 flood.py quiet.test 443 2500 4; curl -sS -m 100 http://web.test:{port}/"
        );
        let mut flags = refs(&flags);
        flags.extend(DIRECT);
        let mut command = stage.cage(&flags, &["/bin/sh", "-c", &script]);
        let mut flooding = Running::start(&mut command);
        let held = || -> Option<Vec<u32>> {
            let mut numbers = Vec::new();
            for part in 0..4 {
                let text = stage.read(format!("held.{part}"))?;
                let mut words = text.split(' ').map_while(|word| word.parse::<u32>().ok());
                numbers.extend([words.next()?, words.next()?]);
            }
            Some(numbers)
        };
        assert!(wait_until(PATIENCE, || held().is_some()), "the flood did not come about");
        let tried: u32 = held().unwrap_or_default().iter().sum();
        assert_eq!(tried, 10_000);
        // The proxy is there, small, and another cage's proxy does not know of it.
        let proxy = proxy_of(flooding.pid()).expect("a proxy");
        let status = std::fs::read_to_string(format!("/proc/{proxy}/status")).expect("its status");
        let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let memory: u64 = memory
            .and_then(|text| text.trim().trim_end_matches(" kB").parse().ok())
            .expect("a number");
        assert!(memory < 64 * 1024, "{memory} kB for {tried} connections");
        assert_eq!(get(stage, &web), hello);
        // When it is over, the same proxy carries again.
        stage.write(stage.project().join("go"), "");
        let mut stdin = flooding.stdin();
        stdin.write_all(b"\n").expect("a line");
        drop(stdin);
        let ran = flooding.finish(PATIENCE);
        assert!(ran.stdout().ends_with(&hello), "{ran:?}");
        let told = stage.ironcage(["net", "--json", "last"]).output().expect("net");
        assert!(told.status.success());
    }
}
