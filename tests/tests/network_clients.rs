//! Programs as people use them, through the egress proxy, against servers on the loopback that a
//! local certificate authority vouches for: with TLS as it is, held to its name, and with TLS that
//! the proxy opens for rules over requests.
//!
//! `IRONCAGE_TEST_SSE_SECONDS=60` makes the event stream last a minute.

use ironcage_tests::web::{Web, own_address, refs};
use ironcage_tests::{Running, Stage, TlsWeb, Who, either, rust_toolchain, skip, wait_until};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const NAME: &str = "hub.test";

/// A server of the test's; it ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fixture(name: &str) -> String {
    format!("{}/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Whether Debian's own Python has these modules; where not, it counts as skipped.
fn has_modules(names: &str) -> bool {
    let found = Command::new("/usr/bin/python3")
        .args(["-c", &format!("import {names}")])
        .stderr(Stdio::null())
        .status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        skip(&format!(
            "no Python modules {names}: ./scripts/test installs them"
        ));
    }
    found
}

/// A Python server that takes a certificate.
fn python_server(stage: &Stage, script: &str) -> Option<TlsWeb> {
    TlsWeb::of(stage, NAME, "/usr/bin/python3", &fixture(script))
}

/// Flags and a beginning of the script for each way: TLS that is not opened, whose clients are
/// told the server's authority; and TLS that is, for whose clients nothing is done.
fn ways(stage: &Stage, server: &TlsWeb) -> [(Vec<String>, &'static str); 2] {
    let authority = std::fs::read(&server.authority).expect("an authority");
    stage.write(stage.project().join("ca.pem"), authority);
    let host = format!("{NAME}:{}", server.port);
    let with = |flag: &str| {
        let mut flags = server.place(NAME);
        flags.extend([flag.to_owned(), host.clone()]);
        flags
    };
    let told = "set -e; for v in SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS PIP_CERT CARGO_HTTP_CAINFO GIT_SSL_CAINFO npm_config_cafile; do export $v=$PWD/ca.pem; done\n\
                wget() { command wget --ca-certificate=$PWD/ca.pem \"$@\"; }\n";
    [
        (with("--allow-host"), told),
        (with("--http-allow"), "set -e\n"),
    ]
}

const PYTHON_CLIENTS: &str = r#"
import asyncio, sys
import aiohttp, httpx, requests, ssl, os
base = sys.argv[1]
trusted = os.environ["SSL_CERT_FILE"]
print(requests.get(base + "/requests", timeout=60).json()["version"])
with httpx.Client(timeout=60, verify=trusted) as client:
    print(client.get(base + "/httpx").json()["version"])
with httpx.Client(timeout=60, verify=trusted, http2=True) as client:
    print(client.get(base + "/httpx2").json()["version"])
async def main():
    context = ssl.create_default_context(cafile=trusted)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.get(base + "/aiohttp", ssl=context) as answer:
            print((await answer.json())["version"])
        async with session.ws_connect(base + "/socket", ssl=context) as socket:
            await socket.send_str("ping of a socket")
            print((await socket.receive()).data)
asyncio.run(main())
"#;

const GRPC_CLIENT: &str = r#"
import sys, os
import grpc
roots = open(os.environ["SSL_CERT_FILE"], "rb").read()
with grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(roots)) as channel:
    print(channel.unary_unary("/demo/unary")(b"abc", timeout=60).decode())
    print(b"".join(channel.unary_stream("/demo/stream")(b"one by one", timeout=60)).decode())
    print(channel.stream_unary("/demo/gather")((b"x" * 1000 for _ in range(200)), timeout=60).decode())
"#;

const RUST_CLIENT: &str = r#"
use std::io::{Read, Write};
fn main() {
    let at = std::env::args().nth(1).unwrap();
    let mut stream = std::net::TcpStream::connect(&at).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
    // To its end: head and body may come one after the other.
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    print!("{}", answer.split("\r\n\r\n").nth(1).unwrap());
}
"#;

either! {
    fn clients_of_the_web(stage) {
        if !has_modules("requests, httpx, h2, aiohttp") { return }
        let Some(server) = TlsWeb::start(stage, NAME) else { return };
        stage.write(stage.project().join("clients.py"), PYTHON_CLIENTS);
        for (flags, beginning) in ways(stage, &server) {
            let script = format!(
                "{beginning}u=https://{NAME}:{}/v1\n\
                 curl -sS -m 60 --http1.1 $u/curl | grep -o '\"version\":\"[0-9.]*'\n\
                 curl -sS -m 60 --http2 $u/curl2 | grep -o '\"version\":\"[0-9.]*'\n\
                 wget -q -O - -T 60 $u/wget | grep -o '\"version\":\"[0-9.]*'\n\
                 node -e 'fetch(process.argv[1]).then(r => r.json()).then(t => console.log(t.version))' $u/node\n\
                 /usr/bin/python3 clients.py $u\n",
                server.port
            );
            let ran = server.sh(stage, &flags, &script);
            let said = "\"version\":\"";
            let wanted = format!("{said}1.1\n{said}2.0\n{said}1.1\n1.1\n1.1\n1.1\n2.0\n1.1\nping of a socket\n");
            assert_eq!(ran.stdout(), wanted, "{flags:?} {ran:?}");
        }
    }

    fn package_managers_git_and_a_stream_of_events(stage) {
        let Some(server) = python_server(stage, "registry_server.py") else { return };
        let Some(toolchain) = rust_toolchain(stage) else { return };
        let repositories = server.authority.with_file_name("repositories");
        std::fs::create_dir(&repositories).expect("a directory");
        let made = Command::new("/bin/sh")
            .current_dir(&repositories)
            .args(["-ec", "export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1; g() { git -c user.name=a -c user.email=a@b.c -c init.defaultBranch=main \"$@\"; }; \
                   g init -q work; cd work; echo text > file; g add file; g commit -qm one; cd ..; \
                   g clone -q --bare work demo.git; git -C demo.git config http.receivepack true; rm -r work"])
            .output()
            .expect("git");
        assert!(made.status.success(), "{made:?}");
        stage.sh_outside("/usr/bin/python3 -m venv env").ok();
        stage.write(stage.project().join("crate/src/main.rs"), "fn main() { println!(\"crate {}\", demo::answer()); }\n");
        stage.write(
            stage.project().join("crate/Cargo.toml"),
            "[package]\nname = \"user\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\ndemo = { version = \"1\", registry = \"local\" }\n",
        );
        let seconds: u32 = std::env::var("IRONCAGE_TEST_SSE_SECONDS").map_or(2, |text| text.parse().expect("a number"));
        // Both ways as the user; they do not differ for root, and a toolchain takes its time.
        let count = if stage.who() == Who::User { 2 } else { 1 };
        for (number, (mut flags, beginning)) in ways(stage, &server).into_iter().enumerate().take(count) {
            flags.extend(["--fresh", "-r"].map(str::to_owned));
            flags.push(toolchain.display().to_string());
            let script = format!(
                "{beginning}u=https://{NAME}:{}; export HOME=/tmp/home CARGO_HOME=/tmp/cargo PATH={}/bin:$PATH; mkdir -p $HOME\n\
                 env/bin/pip install -q --no-deps --disable-pip-version-check --no-cache-dir --target packages --index-url $u/pip/simple demo\n\
                 PYTHONPATH=packages /usr/bin/python3 -c 'import demo; print(\"wheel\", demo.answer)'\n\
                 npm install --silent --no-audit --no-fund --cache /tmp/npm --registry $u/npm/ demo >/dev/null; node -e 'console.log(\"tarball\", require(\"demo\"))'\n\
                 (cd crate; CARGO_REGISTRIES_LOCAL_INDEX=sparse+$u/cargo/ cargo run --quiet)\n\
                 g() {{ git -c user.name=a -c user.email=a@b.c \"$@\"; }}\n\
                 git clone -q $u/git/demo.git 2>&1; cd demo; cat file; echo more{number} >> file; g commit -qam more{number}; git push -q origin HEAD:main 2>&1; cd ..\n\
                 curl -sSN -m 300 $u/events?{seconds}\n",
                server.port,
                toolchain.display()
            );
            let ran = server.sh(stage, &flags, &script);
            let text = if number == 0 { "text\n" } else { "text\nmore0\n" };
            let events: String = (0..seconds).map(|number| format!("data: {number}\n\n")).collect();
            assert_eq!(ran.stdout(), format!("wheel 42\ntarball 42\ncrate 42\n{text}{events}"), "{flags:?} {ran:?}");
            let log = Command::new("git")
                .arg("-C").arg(repositories.join("demo.git"))
                .args(["-c", "safe.directory=*", "log", "--format=%s", "-1", "main"])
                .output()
                .expect("git");
            assert_eq!(String::from_utf8_lossy(&log.stdout), format!("more{number}\n"), "{log:?}");
        }
    }

    fn grpc(stage) {
        if !has_modules("grpc") { return }
        let Some(server) = python_server(stage, "grpc_server.py") else { return };
        stage.write(stage.project().join("client.py"), GRPC_CLIENT);
        for (flags, beginning) in ways(stage, &server) {
            let script = format!("{beginning}/usr/bin/python3 client.py {NAME}:{}", server.port);
            let ran = server.sh(stage, &flags, &script);
            assert_eq!(ran.stdout(), "cba\none by one\n200000\n", "{flags:?} {ran:?}");
        }
    }

    fn databases_a_static_program_and_the_other_family(stage) {
        let address = own_address();
        let mut postgres = Command::new("/usr/bin/python3")
            .arg(fixture("postgres_server.py"))
            .arg(address.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut ready = String::new();
        let output = postgres.stdout.take().expect("its output");
        let _postgres = Server(postgres);
        BufReader::new(output).read_line(&mut ready).expect("a line");
        assert_eq!(ready, "ready\n");
        let redis = Command::new("redis-server")
            .args(["--bind", &address.to_string(), "--port", "6379", "--save", "", "--dir"])
            .arg(stage.aside())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server");
        let _redis = Server(redis);
        assert!(wait_until(MINUTE, || TcpStream::connect((address, 6379)).is_ok()));
        let web = Web::on(TcpListener::bind("[::1]:0").expect("a port"));
        let port = web.address.port();
        let source = stage.aside().join("client.rs");
        std::fs::write(&source, RUST_CLIENT).expect("a file");
        let program = stage.project().join("client");
        let built = Command::new("rustc")
            .args(["--edition=2021", "-Ctarget-feature=+crt-static", "-o"])
            .arg(&program)
            .arg(&source)
            .output()
            .expect("rustc");
        assert!(built.status.success(), "{built:?}");
        let place = format!("db.test={address}");
        let (v6, web_rule) = (format!("[::1]:{port}"), format!("web6.test:{port}"));
        let (sql_rule, redis_rule) = (format!("{address}:5432"), format!("{address}:6379"));
        let flags = [
            "--resolve", &place, "--allow-host", "db.test:5432", "--allow-host", "db.test:6379",
            "--allow-host", &sql_rule, "--allow-host", &redis_rule,
            "--resolve", "web6.test=::1", "--allow-host", &web_rule, "--allow-host", &v6,
        ];
        let script = format!(
            "set -e; psql -XAt -h db.test -U me -d db -c 'select 1'\n\
             redis-cli -h db.test set key value; redis-cli -h db.test get key\n\
             curl -sS -m 60 -6 http://web6.test:{port}/; curl -sS -m 60 -4 http://web6.test:{port}/\n\
             ./client web6.test:{port}\n"
        );
        let ran = stage.sh_with(&flags, &script);
        let hello = format!("hello web6.test:{port}\n");
        assert_eq!(ran.stdout(), format!("answer to select 1\nOK\nvalue\n{hello}{hello}{hello}"), "{ran:?}");
        // Without the rules the same programs reach nobody.
        let before = web.heard().len();
        let ran = stage.sh("psql -XAt -h db.test -U me -d db -c 'select 1'; redis-cli -h db.test get key; ./client web6.test:1; true");
        assert_eq!(ran.stdout(), "", "{ran:?}");
        assert_eq!(web.heard().len(), before);
    }
}

/// A server of SSH for the one account that it runs as.
fn ssh_server(stage: &Stage, address: Ipv4Addr) -> Option<Server> {
    let program = "/usr/sbin/sshd";
    if !std::path::Path::new(program).exists() {
        skip("no sshd: ./scripts/test installs it");
        return None;
    }
    let aside = stage.aside().display().to_string();
    stage
        .sh_outside(&format!(
            "set -e; cd {aside}; ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f user; cp user $HOME/project/key\n\
             export GIT_CONFIG_NOSYSTEM=1; g() {{ git -c user.name=a -c user.email=a@b.c -c init.defaultBranch=main \"$@\"; }}\n\
             g init -q work; cd work; echo text > file; g add file; g commit -qm one; cd ..; g clone -q --bare work demo.git\n"
        ))
        .ok();
    let settings = format!(
        "ListenAddress {address}:2222\nHostKey {aside}/host\nAuthorizedKeysFile {aside}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
    );
    stage.write(stage.aside().join("sshd.conf"), settings);
    let child = stage
        .outside(program)
        .args(["-D", "-e", "-f"])
        .arg(stage.aside().join("sshd.conf"))
        .stderr(Stdio::null())
        .spawn()
        .expect("sshd");
    let server = Server(child);
    let up = wait_until(MINUTE, || TcpStream::connect((address, 2222)).is_ok());
    assert!(up, "sshd does not listen");
    Some(server)
}

/// As the user alone: sshd without root lets nobody in but who runs it.
#[test]
fn git_over_ssh_clones_and_pushes() {
    let Some(stage) = Stage::new(Who::User) else {
        return;
    };
    let address = own_address();
    let Some(_server) = ssh_server(&stage, address) else {
        return;
    };
    let place = format!("code.test={address}");
    let rule = format!("{address}:2222");
    let flags = [
        "--resolve",
        &place,
        "--allow-host",
        "code.test:2222",
        "--allow-host",
        &rule,
    ];
    let who = stage.sh_outside("id -un").ok().stdout();
    let script = format!(
        "set -e; export GIT_SSH_COMMAND=\"ssh -i $PWD/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR\"\n\
         git clone -q ssh://{}@code.test:2222{}/demo.git; cd demo; cat file\n\
         echo more >> file; git -c user.name=a -c user.email=a@b.c commit -qam more; git push -q origin HEAD:main\n",
        who.trim(),
        stage.aside().display()
    );
    let ran = stage.sh_with(&refs(&flags.map(str::to_owned)), &script);
    assert_eq!(ran.stdout(), "text\n", "{ran:?}");
    let log = Running::start(
        stage
            .outside("git")
            .arg("-C")
            .arg(stage.aside().join("demo.git"))
            .args(["log", "--format=%s", "-1", "main"]),
    )
    .finish(MINUTE);
    assert_eq!(log.stdout(), "more\n", "{log:?}");
}
