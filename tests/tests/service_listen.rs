//! How the service is reached: TLS where other machines could, and a socket that systemd passes.

use crate::service::{Service, running};
use ironcage_tests::{Ran, Running, Stage, binary, either, wait_until};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Becomes the service with a socket, as systemd does: the kind of socket, where to report, the program,
/// its words.
const ACTIVATE: &str = r#"
import os, socket, sys
kind, report, count = sys.argv[1:4]
family = socket.AF_UNIX if kind.startswith("/") else socket.AF_INET
passed = socket.socket(family)
passed.bind(kind if kind.startswith("/") else (kind, 0))
if count != "deaf":
    passed.listen()
os.dup2(passed.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1" if count == "deaf" else count, NOTIFY_SOCKET=report)
os.execv(sys.argv[4], sys.argv[4:])
"#;

fn activated(stage: &Stage, kind: &str, count: &str, flags: &[&str]) -> Command {
    let mut command = stage.outside("/usr/bin/python3");
    let report = stage.base().join("run/notify");
    command
        .args(["-c", ACTIVATE, kind])
        .arg(report)
        .arg(count)
        .arg(binary())
        .arg("serve")
        .args(flags);
    command
}

/// A certificate for the loopback and its key, for the one who runs here.
fn certificate(stage: &Stage) -> (PathBuf, PathBuf) {
    let script = "umask 077; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=here \
         -addext subjectAltName=IP:127.0.0.1 -keyout new-key.pem -out new-cert.pem && mv new-key.pem key.pem && mv new-cert.pem cert.pem";
    let mut make = stage.outside("/bin/sh");
    make.args(["-ec", script])
        .current_dir(stage.base().join("config"));
    Running::start(&mut make).finish(PATIENCE).ok();
    let of = |name: &str| stage.base().join("config").join(name);
    (of("cert.pem"), of("key.pem"))
}

fn curl(stage: &Stage, service: &Service, authority: &Path, path: &str) -> Ran {
    let mut curl = stage.outside("/usr/bin/curl");
    curl.args(["--silent", "--show-error", "--max-time", "30", "--cacert"])
        .arg(authority)
        .args([
            "--header",
            &format!("Authorization: Bearer {}", service.key),
        ])
        .arg(format!("https://{}{path}", service.address));
    Running::start(&mut curl).finish(PATIENCE)
}

fn refused(stage: &Stage, flags: &[&str], says: &str) {
    let words = ["serve"].iter().chain(flags);
    let ran = Running::start(&mut stage.ironcage(words)).finish(PATIENCE);
    ran.ended(125).says(says);
}

either! {
    fn tls_is_served_with_the_certificate_that_is_in_the_files_now(stage) {
        let (cert, key) = certificate(stage);
        let (cert_text, key_text) = (cert.to_str().expect("text"), key.to_str().expect("text"));
        let tls = ["--tls-cert", cert_text, "--tls-key", key_text];
        // The certificate of before, which a renewal replaces.
        let first = stage.base().join("config/first.pem");
        stage.write(&first, std::fs::read(&cert).expect("a certificate"));
        let service = Service::with(stage, &[&["--listen", "127.0.0.1:0"], &tls[..]].concat());
        let info = curl(stage, &service, &first, "/v1/cages").ok();
        assert_eq!(info.stdout(), "{\"cages\":[]}", "{info:?}");
        // Who does not speak TLS gets nothing of HTTP, and others go on.
        let mut plain = TcpStream::connect(&service.address).expect("the service");
        plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        plain.write_all(b"GET /v1/cages HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut answer = Vec::new();
        // It may be reset.
        let _ = plain.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{answer:?}");
        certificate(stage);
        assert!(wait_until(PATIENCE, || curl(stage, &service, &cert, "/v1/cages").exit == ironcage_tests::Exit::Code(0)));
        assert_ne!(curl(stage, &service, &first, "/v1/cages").code(), 0);
        // Files that cannot be used leave the last ones in force.
        stage.write(&cert, "not a certificate");
        std::thread::sleep(Duration::from_millis(1100));
        let other = stage.base().join("config/second.pem");
        stage.write(&other, "");
        let insecure = Running::start(stage.outside("/usr/bin/curl").args(["--silent", "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}", &format!("https://{}/v1/openapi.json", service.address)])).finish(PATIENCE).ok();
        assert_eq!(insecure.stdout(), "200");
    }

    fn an_address_that_other_machines_reach_needs_a_certificate(stage) {
        refused(stage, &["--listen", "0.0.0.0:0"], "other machines reach it");
        refused(stage, &["--listen", "[::]:0"], "other machines reach it");
        refused(stage, &["--listen", "https://127.0.0.1:0"], "no certificate");
        let (cert, key) = certificate(stage);
        let (cert_text, key_text) = (cert.to_str().expect("text"), key.to_str().expect("text"));
        refused(stage, &["--listen", "127.0.0.1:0", "--tls-cert", key_text, "--tls-key", key_text], "has no certificate");
        refused(stage, &["--listen", "127.0.0.1:0", "--tls-cert", cert_text, "--tls-key", cert_text], "cannot read");
        let one = Running::start(&mut stage.ironcage(["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert_text])).finish(PATIENCE);
        assert!(one.code() != 0 && one.stderr.contains("--tls-key"), "{one:?}");
        let service = Service::with(stage, &["--listen", "0.0.0.0:0", "--tls-cert", cert_text, "--tls-key", key_text]);
        let port = service.address.rsplit(':').next().expect("a port");
        let local = Service::named(&format!("127.0.0.1:{port}"), &service.key);
        assert_eq!(curl(stage, &local, &cert, "/v1/cages").ok().stdout(), "{\"cages\":[]}");
        // A key is needed all the same.
        let stranger = Service::named(&local.address, "ick_000000000000_00");
        assert!(curl(stage, &stranger, &cert, "/v1/cages").ok().stdout().contains("unauthorized"));
    }

    fn a_socket_that_systemd_passes_is_served_and_no_cage_has_it(stage) {
        let report = UnixDatagram::bind(stage.base().join("run/notify")).expect("a socket");
        std::fs::set_permissions(stage.base().join("run/notify"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("a mode");
        let mut service = Service::of(stage, &mut activated(stage, "127.0.0.1", "1", &["--warm", "default=1"]));
        let mut state = [0; 64];
        let length = report.recv(&mut state).expect("a report");
        assert_eq!(&state[..length], b"READY=1");
        let id = service.create(&json!({}));
        assert_eq!(service.run(&id, "ls /proc/self/fd | wc -l")["exit"]["code"], json!(0));
        let address = service.address.clone();
        service.kill();
        assert!(running(stage) >= 1);
        assert!(wait_until(PATIENCE, || TcpStream::connect(&address).is_err()), "a cage holds the socket");
        // The next one finds the cage again.
        let service = Service::of(stage, &mut activated(stage, "127.0.0.1", "1", &[]));
        assert_eq!(service.get(&format!("/v1/cages/{id}")).ok().json()["state"], json!("running"));
        assert_eq!(service.delete(&id).status, 204);
        assert!(wait_until(PATIENCE, || running(stage) == 0));
    }

    fn a_passed_socket_is_held_to_the_same_rules(stage) {
        for (kind, count, says) in [
            ("0.0.0.0", "1", "other machines reach it"),
            ("127.0.0.1", "2", "expected one"),
            ("127.0.0.1", "deaf", "does not listen"),
        ] {
            let ran = Running::start(&mut activated(stage, kind, count, &[])).finish(PATIENCE);
            ran.ended(125).says(says);
        }
        let path = stage.base().join("run/serve.sock");
        let path = path.to_str().expect("text");
        let mut serve = Running::start(&mut activated(stage, path, "1", &[]));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(serve.stdout()), &mut line).expect("a line");
        assert_eq!(line.trim(), format!("ironcage serve: listening on unix:{path}"));
        let mut curl = stage.outside("/usr/bin/curl");
        curl.args(["--silent", "--unix-socket", path, "--output", "/dev/null", "--write-out", "%{http_code}", "http://x/v1/openapi.json"]);
        assert_eq!(Running::start(&mut curl).finish(PATIENCE).ok().stdout(), "200");
        serve.signal(rustix::process::Signal::TERM);
        serve.finish(PATIENCE).ok();
        // systemd made the path, and keeps it.
        assert!(Path::new(path).exists());
    }
}
