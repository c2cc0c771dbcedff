//! Leases on hosts, requests, secrets, sockets and ports whose supervisor or egress proxy is killed at any step: nothing of
//! them stays open.

use crate::leases_beyond_files::{Cage, PATIENCE, led, serve};
use ironcage_tests::web::Web;
use ironcage_tests::{Ran, Running, Stage, TlsWeb, both, wait_until};
use std::io::{Read as _, Write as _};
use std::time::Duration;

/// Kills the supervisor, or the proxy, at each step of opening a host and closing it again.
fn killed_at_every_step(stage: &Stage, series: &str) {
    let web = Web::start(0);
    let port = web.address.port();
    let host = format!("web.test:{port}");
    let ceiling = format!("[ceiling.ask.network]\nallow = [\"{host}\"]\n");
    // Without a proxy nobody answers for names: it need not be waited for.
    let get = format!("curl -sS -m 2 http://{host}/ 2>/dev/null || echo no");
    let mut steps = 0;
    loop {
        let fault = format!("{series}:{steps}");
        let env = [("IRONCAGE_FAULT", fault.as_str())];
        let cage = Cage::start_with(stage, &ceiling, &led(&web, "web.test"), &env);
        let granted = cage.says("grant", &["--host", &host]).code() == 0;
        let revoked = granted && cage.says("revoke", &["1"]).stdout() == "lease 1: revoked\n";
        let record = cage.record();
        let over = wait_until(PATIENCE, || {
            let record = cage.record();
            // A record without an end was left by who was killed.
            record.contains("lease 1: revoked")
                || record.contains("lease 1: not opened")
                || !record.contains("the cage is running")
        });
        assert!(over, "{fault}: {}", cage.record());
        // Where the record says that it ended, and where nothing says anything: nothing goes out.
        let after = cage.sh(&get);
        assert!(after == "no\n" || after.is_empty(), "{fault}: {after}");
        assert!(
            granted || !record.contains("lease 1: revoked") || series == "proxy",
            "{fault}: {record}"
        );
        let whole = cage.record().contains("the cage is running");
        let proxy = !cage.record().contains("the egress proxy ended");
        if granted && revoked && whole && proxy {
            break;
        }
        steps += 1;
        assert!(steps < 100, "no lease got through");
    }
    assert!(steps > 3, "only {steps} steps: is this a debug build?");
}

/// What is leased, and whether it can be had at this moment.
type Kind<'a> = (&'a str, String, Box<dyn Fn(&Cage<'_>, &str) -> bool + 'a>);

/// Kills the supervisor, or the proxy, at each step of opening all of these and closing them again.
fn killed_with<'a>(series: &str, start: &dyn Fn(&str) -> Cage<'a>, kinds: &[Kind<'_>]) {
    let mut steps = None;
    loop {
        let fault = steps.map_or("none".to_owned(), |step: u32| format!("{series}:{step}"));
        let cage = start(&fault);
        let grants = kinds
            .iter()
            .map(|(flag, what, _)| cage.says("grant", &[flag, what]));
        let granted: Vec<Ran> = grants.take_while(|ran| ran.code() == 0).collect();
        let said: Vec<String> = granted.iter().map(Ran::stdout).collect();
        if steps.is_none() {
            // The allowing arm: while they are leased, they are had.
            for ((flag, _, had), said) in kinds.iter().zip(&said) {
                assert!(wait_until(PATIENCE, || had(&cage, said)), "{flag}: {said}");
            }
        }
        let ended = cage.says("revoke", &["--all"]).stdout();
        let revoked = ended.matches(": revoked").count() == kinds.len();
        let over = wait_until(PATIENCE, || {
            let record = cage.record();
            // A record without an end was left by who was killed.
            let open = |number: usize| {
                let of = |end: &str| record.contains(&format!("lease {number}: {end}"));
                !of("revoked") && !of("not opened")
            };
            !record.contains("the cage is running") || !(1..=said.len()).any(open)
        });
        assert!(over, "{fault}: {}", cage.record());
        let record = cage.record();
        let running = record.contains("the cage is running");
        let whole = running && !record.contains("the egress proxy ended");
        // Without a proxy nobody answers for names, and each waits in vain.
        let named = kinds.iter().any(|(flag, ..)| *flag == "--http");
        let looked_at = if named && !whole { 1 } else { kinds.len() };
        for ((flag, _, had), said) in kinds.iter().zip(&said).take(looked_at) {
            // Who is gone without a word may still be about to go.
            let closed = || !had(&cage, said);
            let held = if running {
                closed()
            } else {
                wait_until(PATIENCE, closed)
            };
            assert!(held, "{fault}: {flag} is had: {record}");
        }
        match steps {
            Some(_) if revoked && whole => break,
            None => assert!(revoked && whole, "{ended}{record}"),
            Some(_) => {}
        }
        steps = Some(steps.map_or(0, |step| step + 1));
        assert!(steps < Some(100), "no lease got through");
    }
    assert!(
        steps > Some(6),
        "only {steps:?} steps: is this a debug build?"
    );
}

/// The same with requests and a secret for a user, a socket and a port for root: what holds them
/// does not depend on who that is, and all of it with both takes long.
fn killed_beside_hosts(stage: &Stage, series: &str) {
    if stage.uid() == 0 {
        let given = stage.aside().join("given");
        serve(&given);
        let given = given.display().to_string();
        let ceiling =
            format!("[ceiling.ask.network]\nsockets = [\"{given}\"]\npublish = [\"*:3000\"]\n");
        let start = |fault: &str| {
            let cage = Cage::start_with(stage, &ceiling, &[], &[("IRONCAGE_FAULT", fault)]);
            let mut server = stage.ironcage([
                "exec",
                "-d",
                &cage.id,
                "--",
                "/usr/bin/python3",
                "-m",
                "http.server",
                "3000",
            ]);
            Running::start(&mut server).finish(PATIENCE).ok();
            cage
        };
        let ask = format!("python3 ask.py {given}");
        let answers = |_: &Cage<'_>, said: &str| {
            let port = said
                .strip_prefix("lease 2: port ")
                .and_then(|rest| rest.split(':').next());
            let port = port.and_then(|port| port.parse::<u16>().ok());
            let get = |port: u16| {
                let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
                stream
                    .set_read_timeout(Some(Duration::from_secs(20)))
                    .ok()?;
                stream.write_all(b"GET /ask.py HTTP/1.0\r\n\r\n").ok()?;
                let mut text = String::new();
                stream.read_to_string(&mut text).ok()?;
                // Another may listen there by now.
                Some(text.contains("s.sendall(b'hello"))
            };
            port.and_then(get) == Some(true)
        };
        let kinds: [Kind<'_>; 2] = [
            (
                "--socket",
                given.clone(),
                Box::new(|cage, _| cage.sh(&ask) == "got hello\n"),
            ),
            ("--publish", "0:3000".into(), Box::new(answers)),
        ];
        return killed_with(series, &start, &kinds);
    }
    let Some(server) = TlsWeb::start(stage, "api.test") else {
        return;
    };
    let port = server.port;
    let ceiling = format!(
        "[ceiling.ask.network]\nhttp = [\"GET api.test:{port}/**\"]\n\
         [ceiling.ask.network.secrets.TOKEN]\nhosts = [\"api.test:{port}\"]\n"
    );
    let authority = server.authority.display().to_string();
    let start = |fault: &str| {
        let env = [
            ("TOKEN", "real-value-of-the-token-0123456789"),
            ("SSL_CERT_FILE", &authority),
            ("IRONCAGE_FAULT", fault),
        ];
        Cage::start_with(stage, &ceiling, &server.place("api.test"), &env)
    };
    let get = |header: &str| {
        format!(
            "curl -sS --connect-timeout 2 -m 20 -o /dev/null -w '%{{http_code}}\\n' {header} https://api.test:{port}/reflect/a 2>/dev/null"
        )
    };
    let (plain, bearer) = (get(""), get("-H \"Authorization: Bearer $TOKEN\""));
    let kinds: [Kind<'_>; 2] = [
        (
            "--http",
            format!("GET api.test:{port}/reflect/**"),
            Box::new(|cage, _| cage.sh(&plain).contains("200")),
        ),
        (
            "--secret",
            "TOKEN".into(),
            Box::new(|cage, _| cage.sh(&bearer).contains("200")),
        ),
    ];
    killed_with(series, &start, &kinds);
}

both! {
    fn a_supervisor_killed_at_any_step_leaves_nothing_open_beside_hosts(stage) {
        killed_beside_hosts(stage, "lease");
    }

    fn a_proxy_killed_at_any_step_leaves_nothing_open_beside_hosts(stage) {
        killed_beside_hosts(stage, "proxy");
    }
}

both! {
    fn a_supervisor_killed_at_any_step_leaves_no_host_open(stage) {
        killed_at_every_step(stage, "lease");
    }

    fn a_proxy_killed_at_any_step_leaves_no_host_open(stage) {
        killed_at_every_step(stage, "proxy");
    }
}
