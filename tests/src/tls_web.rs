//! A web server behind TLS on the loopback, with a certificate authority of its own.

use crate::{Ran, Running, Stage, skip};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The server; it ends with this.
#[derive(Debug)]
pub struct TlsWeb {
    child: Child,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    /// The authority's certificate.
    pub authority: PathBuf,
    address: String,
    log: PathBuf,
}

impl Drop for TlsWeb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a shell script with `openssl` in a directory.
fn openssl(directory: &std::path::Path, script: &str) {
    let made = Command::new("/bin/sh")
        .current_dir(directory)
        .args(["-ec", script])
        .output()
        .expect("a shell");
    assert!(made.status.success(), "{made:?}");
}

impl TlsWeb {
    /// Starts it for a name. `None`, which counts as skipped, where there is no node.
    pub fn start(stage: &Stage, name: &str) -> Option<TlsWeb> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/web_server.mjs");
        TlsWeb::of(stage, name, "node", script)
    }

    /// A server of another kind, which takes the same arguments and says its port.
    pub fn of(stage: &Stage, name: &str, program: &str, script: &str) -> Option<TlsWeb> {
        TlsWeb::at(stage, name, program, script, None)
    }

    /// The same, on the port of HTTPS at an address of the loopback network, for clients that know
    /// no other port.
    pub fn at(
        stage: &Stage,
        name: &str,
        program: &str,
        script: &str,
        address: Option<&str>,
    ) -> Option<TlsWeb> {
        let found = Command::new(program).arg("--version").output();
        if !found.is_ok_and(|found| found.status.success()) {
            skip(&format!("no {program}"));
            return None;
        }
        let directory = stage.aside().join(format!("web-{name}"));
        std::fs::create_dir_all(&directory).expect("a directory");
        // Readable for the launcher, whoever it is.
        let script_of_keys = format!(
            "umask 022
             new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
             openssl req -x509 $new -days 2 -subj '/CN=authority of the test' -keyout ca.key -out ca.pem \
               -addext basicConstraints=critical,CA:TRUE
             openssl req $new -subj /CN={name} -keyout key.pem -out request.pem
             echo subjectAltName=DNS:{name} > names
             openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -days 2 -extfile names -out cert.pem"
        );
        openssl(&directory, &script_of_keys);
        let log = directory.join("log");
        let mut child = Command::new(program)
            .arg(script)
            .arg(directory.join("cert.pem"))
            .arg(directory.join("key.pem"))
            .arg(&log)
            .args(address)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output"))
            .read_line(&mut line)
            .expect("a line");
        Some(TlsWeb {
            child,
            port: line.trim().parse().expect("a port"),
            address: address.unwrap_or("127.0.0.1").to_owned(),
            authority: directory.join("ca.pem"),
            log,
        })
    }

    /// Flags that lead a name here, besides those that allow it.
    pub fn place(&self, name: &str) -> Vec<String> {
        [
            "--allow-host",
            &format!("{}:{}", self.address, self.port),
            "--resolve",
            &format!("{name}={}", self.address),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Runs a shell script in a cage of somebody who trusts the server's authority.
    pub fn sh(&self, stage: &Stage, flags: &[String], script: &str) -> Ran {
        self.sh_env(stage, flags, &[], script)
    }

    /// The same with variables of the caller's.
    pub fn sh_env(
        &self,
        stage: &Stage,
        flags: &[String],
        env: &[(&str, &str)],
        script: &str,
    ) -> Ran {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut cage = stage.cage(&flags, &["/bin/sh", "-c", script]);
        cage.env("SSL_CERT_FILE", &self.authority);
        cage.envs(env.iter().copied());
        Running::start(&mut cage).finish(Duration::from_secs(300))
    }

    /// What it was asked, a line for each request.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
