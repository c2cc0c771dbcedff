//! What the network denies is told to the person, with the flag that allows it, and the program
//! learns of it at once. Each test types the flag that was told.

use ironcage_tests::web::Web;
use ironcage_tests::{Ran, Screen, Stage, both, either, skip};
use std::net::{IpAddr, TcpListener, UdpSocket};

const LOOK_UP: &str = "getent ahosts denied.example >/dev/null && echo resolved";

/// The flag that a line told, as words of a command line.
fn told_flag(said: &str, host: &str) -> Vec<String> {
    let begins = format!("ironcage: network: {host} refused");
    let mut lines = said.lines().filter(|line| line.starts_with(&begins));
    let line = lines
        .next_back()
        .unwrap_or_else(|| panic!("no line about {host} in: {said}"));
    let (_, flag) = line.split_once("to allow: ").expect("a flag");
    flag.split(' ').map(str::to_owned).collect()
}

fn run(stage: &Stage, flags: &[String], script: &str) -> Ran {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let command = ["/bin/sh", "-c", script];
    let arguments = ["run", "--workspace-mode", "direct"]
        .into_iter()
        .chain(flags);
    let mut command_line = stage.ironcage(arguments.chain(["--"]).chain(command));
    ironcage_tests::Running::start(&mut command_line).finish(Screen::PATIENCE)
}

/// An address of this machine that is not the loopback's. Nothing is sent.
fn address_of_this_machine() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // A network that is for documentation: the kernel only looks for a way there.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// A server on the loopback of this machine, where a person reaches it.
fn service() -> Web {
    Web::on(TcpListener::bind("127.0.0.1:0").expect("a port"))
}

fn get(host: &str, port: u16) -> String {
    format!("curl -sS -m 20 http://{host}:{port}/")
}

/// Starts a command in a cage that tells what it has to tell.
fn told(screen: &Screen<'_>, rest: &str) {
    let binary = ironcage_tests::binary().display();
    screen.line(&format!("{binary} run --workspace-mode direct {rest}"));
}

both! {
    fn without_a_network_a_lookup_fails_at_once_and_the_flag_that_is_told_allows_it(stage) {
        // Status 2 of getent is "not found"; a resolver that does not answer gives the same only
        // after it was tried several times, which the count would show.
        let ran = run(stage, &[], LOOK_UP);
        assert_eq!((ran.code(), ran.stdout().as_str()), (2, ""), "{ran:?}");
        let said = ran.stderr;
        assert!(said.contains("denied.example refused 2x; "), "{said}");
        let flag = told_flag(&said, "denied.example");
        assert_eq!(flag, ["--allow-host", "denied.example"]);
        let ran = run(stage, &flag, LOOK_UP);
        assert_eq!(ran.stdout(), "resolved\n", "{ran:?}");
        assert!(!ran.stderr.contains("refused"), "{ran:?}");
    }

    fn without_a_network_an_address_is_told_too_and_the_flag_allows_it(stage) {
        let Some(address) = address_of_this_machine() else {
            return skip("this machine has no address but the loopback's");
        };
        let web = Web::on(TcpListener::bind((address, 0)).expect("a port"));
        let (host, port) = (address.to_string(), web.address.port());
        let twice = format!("{0}; {0}", get(&host, port));
        let ran = run(stage, &[], &twice);
        assert_eq!(ran.code(), 7, "the kernel itself refuses it: {ran:?}");
        assert!(ran.stderr.contains("refused 2x; "), "{ran:?}");
        let flag = told_flag(&ran.stderr, &host);
        assert_eq!(flag.join(" "), format!("--allow-host {host}:{port}"));
        assert_eq!(web.heard(), [""; 0]);
        let ran = run(stage, &flag, &get(&host, port));
        assert!(ran.stdout().starts_with("hello "), "{ran:?}");
        assert!(!ran.stderr.contains("refused"), "{ran:?}");
    }

    fn a_service_of_this_machine_is_told_with_its_port_and_the_flag_leads_to_it(stage) {
        let web = service();
        let port = web.address.port();
        let other = ["--allow-host", "other.example"].map(str::to_owned);
        for rules in [&[][..], &other] {
            for name in ["127.0.0.1", "host.ironcage"] {
                let ran = run(stage, rules, &get(name, port));
                assert_ne!(ran.code(), 0, "{ran:?}");
                let flag = told_flag(&ran.stderr, name);
                assert_eq!(flag.join(" "), format!("--allow-host-port {port}"), "{ran:?}");
                let flags: Vec<String> = rules.iter().cloned().chain(flag).collect();
                let ran = run(stage, &flags, &get(name, port));
                assert!(ran.stdout().starts_with("hello "), "{ran:?}");
                assert!(!ran.stderr.contains("refused"), "{ran:?}");
            }
        }
        assert_eq!(web.heard().len(), 4, "only the allowed ones came");
        // The cage's own server of the same port, and a port where nobody listens anywhere.
        let own = format!(
            "python3 -m http.server {port} >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:{port}/; do sleep 0.1; done; echo own"
        );
        let own = own.replace("until", "sleep 2; until");
        let ran = run(stage, &[], &own);
        assert_eq!(ran.stdout(), "own\n", "{ran:?}");
        assert!(!ran.stderr.contains("refused"), "{ran:?}");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let ran = run(stage, &[], &get("127.0.0.1", free));
        assert_eq!(ran.code(), 7, "{ran:?}");
        assert!(!ran.stderr.contains("ironcage: network"), "nobody can allow it: {ran:?}");
    }

    fn with_other_rules_a_denied_host_is_told_too(stage) {
        let rules = ["--allow-host", "other.example"].map(str::to_owned);
        let ran = run(stage, &rules, LOOK_UP);
        assert_eq!(ran.code(), 2, "{ran:?}");
        let flag = told_flag(&ran.stderr, "denied.example");
        let flags: Vec<String> = rules.into_iter().chain(flag).collect();
        assert_eq!(run(stage, &flags, LOOK_UP).stdout(), "resolved\n");
    }
}

either! {
    fn a_host_of_a_bundle_is_told_with_the_bundle(stage) {
        let look_up = "getent ahosts api.github.com >/dev/null && echo resolved";
        let ran = run(stage, &[], look_up);
        let flag = told_flag(&ran.stderr, "api.github.com");
        assert_eq!(flag, ["--allow-bundle", "github"]);
        assert_eq!(run(stage, &flag, look_up).stdout(), "resolved\n");
    }

    fn a_name_that_leads_to_this_machine_needs_what_is_told_and_nothing_else(stage) {
        let web = service();
        let port = web.address.port();
        let name = ["--resolve", "dev.example=127.0.0.1"].map(str::to_owned);
        let ran = run(stage, &name, &get("dev.example", port));
        assert_ne!(ran.code(), 0, "{ran:?}");
        // The name with the port of the command, which a lookup does not have, and where it leads.
        let told = told_flag(&ran.stderr, "dev.example");
        let both = format!("--allow-host dev.example:{port} --allow-host 127.0.0.1:{port}");
        assert_eq!(told.join(" "), both);
        let flags: Vec<String> = name.into_iter().chain(told).collect();
        let ran = run(stage, &flags, &get("dev.example", port));
        assert!(ran.stdout().starts_with("hello "), "{flags:?} {ran:?}");
        assert!(!ran.stderr.contains("its own loopback"), "{ran:?}");
    }

    fn datagrams_and_lookups_are_not_told_as_connections(stage) {
        let script = "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((\"192.0.2.7\", 80))'; getent hosts localhost >/dev/null";
        let ran = run(stage, &[], script);
        assert!(!ran.stderr.contains("ironcage: network"), "{ran:?}");
    }

    fn quiet_runs_do_not_tell_and_the_audit_log_has_it(stage) {
        let ran = run(stage, &["-q".to_owned()], LOOK_UP);
        assert_eq!((ran.code(), ran.stderr.as_str()), (2, ""), "{ran:?}");
        let mut net = stage.ironcage(["net"]);
        let ran = ironcage_tests::Running::start(&mut net).finish(Screen::PATIENCE).ok();
        assert!(ran.stdout().contains("denied.example"), "{ran:?}");
    }

    fn a_command_of_lines_at_a_terminal_is_told_of_while_it_runs(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        told(&screen, "-- /bin/sh -c 'getent hosts denied.example; read line; echo got $line'");
        screen.shows("ironcage: network: denied.example refused; to allow: --allow-host denied.example");
        // The command is still there, and nothing was typed for it.
        screen.line("something");
        screen.shows("got something");
    }

    fn a_command_that_draws_its_screen_is_not_disturbed_and_the_end_tells(stage) {
        let Some(screen) = Screen::open(stage) else { return };
        told(&screen, "-- /bin/sh -c 'stty -icanon; getent hosts denied.example; sleep 2; echo drawn; stty icanon'");
        screen.shows("drawn");
        screen.shows("ironcage: network: denied.example refused 2x");
        let text = screen.text();
        assert!(text.rfind("drawn") < text.find("refused"), "{text}");
    }

    fn package_managers_do_not_try_a_denied_registry_again_and_again(stage) {
        stage.write(stage.project().join("Cargo.toml"), "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[lib]\npath = \"a.rs\"\n[dependencies]\nserde = \"1\"\n");
        stage.write(stage.project().join("a.rs"), "");
        for (tool, command) in [
            ("pip", "pip download --no-cache-dir six"),
            ("npm", "npm view left-pad"),
            ("cargo", "cargo fetch"),
        ] {
            if stage.sh(&format!("{tool} --version")).code() != 0 {
                skip(&format!("no {tool} in a cage of this host"));
                continue;
            }
            let ran = run(stage, &[], command);
            assert_ne!(ran.code(), 0, "{ran:?}");
            let said = ran.stderr;
            let told = said.lines().rfind(|line| line.starts_with("ironcage: network: "));
            let told = told.unwrap_or_else(|| panic!("{tool}: {said}"));
            // One attempt asks for addresses of IPv4 and IPv6.
            let few = ["refused; ", "refused 2x; ", "refused 4x; "];
            assert!(few.iter().any(|few| told.contains(few)), "{told}");
            assert!(told.ends_with(&format!("--allow-bundle {tool}")), "{told}");
        }
    }
}
