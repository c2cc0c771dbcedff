//! Real programs work inside as they do outside: shells, git, Python, compilers, Node, databases.

use ironcage_tests::{DIRECT, Ran, Running, Stage, either, rust_toolchain, skip};
use std::path::Path;
use std::time::Duration;

const IDENTITY: &str = "-c user.name=Agent -c user.email=agent@example.invalid";

/// A program that takes longer than a shell script.
#[track_caller]
fn build(stage: &Stage, flags: &[&str], script: &str) -> Ran {
    Running::start(&mut stage.cage(flags, &["/bin/sh", "-ec", script]))
        .finish(Duration::from_secs(600))
}

/// A repository made outside, with one commit and one change that is not committed.
fn repository(stage: &Stage) {
    let script = format!(
        "git init -q -b main . && echo one > file && git add file && git {IDENTITY} commit -q -m first && echo two > file"
    );
    stage.sh_outside(&script).ok();
}

either! {
    fn bash(stage) {
        let script = r#"
            set -euo pipefail
            words=(one two three)
            sort -r <(printf '%s\n' "${words[@]}") | tee sorted | head -n 1
            [[ $(cat <<<here) == here ]]
            echo "${#words[@]}" > count
        "#;
        let ran = stage.run(&[], &["/bin/bash", "-c", script]).ok();
        assert_eq!(ran.stdout(), "two\n");
        // The next run goes on with what this one left.
        assert_eq!(stage.sh("cat count sorted").ok().stdout(), "3\ntwo\nthree\none\n");
    }

    fn git_commits_in_a_repository_made_inside(stage) {
        let script = format!(
            "git init -q -b main made && cd made && echo one > file && git add file && git {IDENTITY} commit -q -m inside && git log --format=%s"
        );
        let ran = stage.sh_direct(&script).ok();
        assert_eq!(ran.stdout(), "inside\n");
        let seen = stage.sh_outside("git -C made log --format=%s && git -C made fsck").ok();
        assert_eq!(seen.stdout(), "inside\n");
    }

    fn git_shows_diff_and_log_of_the_workspaces_repository(stage) {
        repository(stage);
        let ran = stage.sh("git log --format=%s && git diff --stat && git status --porcelain").ok();
        assert!(ran.stdout().starts_with("first\n"), "{ran:?}");
        assert!(ran.stdout().contains("1 insertion(+), 1 deletion(-)"), "{ran:?}");
        assert!(ran.stdout().ends_with(" M file\n"), "{ran:?}");
    }

    fn git_commits_aside_and_to_the_real_repository_where_the_files_are_real(stage) {
        repository(stage);
        let commit = format!("git {IDENTITY} commit -q -a -m second");
        stage.sh(&commit).ok();
        assert_eq!(stage.sh("git log --format=%s").ok().stdout(), "second\nfirst\n");
        assert_eq!(stage.sh_outside("git log --format=%s").ok().stdout(), "first\n");
        stage.sh_direct(&commit).ok();
        assert_eq!(stage.sh_outside("git log --format=%s").ok().stdout(), "second\nfirst\n");
        let again = format!("git {IDENTITY} commit -q --allow-empty -m third");
        stage.sh_with(&[&DIRECT[..], &["--unprotect", ".git"]].concat(), &again).ok();
        assert_eq!(stage.sh_outside("git log --format=%s").ok().stdout(), "third\nsecond\nfirst\n");
    }

    fn python_makes_a_virtual_environment(stage) {
        let script = "
            /usr/bin/python3 -m venv env
            env/bin/python -c 'import sys, ssl, ctypes; assert sys.prefix != sys.base_prefix'
            env/bin/pip --version
        ";
        let ran = build(stage, &[], script).ok();
        assert!(ran.stdout().starts_with("pip "), "{ran:?}");
    }

    fn pytest(stage) {
        stage.write(
            stage.project().join("test_sum.py"),
            "def test_sum(tmp_path):\n    (tmp_path / 'x').write_text('1')\n    assert 1 + 1 == 2\n",
        );
        let ran = build(stage, &[], "/usr/bin/python3 -m pytest -q").ok();
        assert!(ran.stdout().contains("1 passed"), "{ran:?}");
    }

    fn gcc_and_make(stage) {
        stage.write(
            stage.project().join("hello.c"),
            "#include <stdio.h>\n#include <math.h>\nint main(void) { printf(\"%.0f\\n\", sqrt(1764)); return 0; }\n",
        );
        stage.write(
            stage.project().join("Makefile"),
            "CFLAGS = -O2 -pipe\nhello: hello.o\n\t$(CC) -o $@ $< -lm\nclean:\n\trm -f hello hello.o\n",
        );
        let ran = build(stage, &[], "make -j2 >&2 && ./hello && make clean >&2").ok();
        assert_eq!(ran.stdout(), "42\n");
        stage.sh("test ! -e hello.o && test -e hello.c").ok();
    }

    fn cargo_builds_and_tests_a_crate(stage) {
        let Some(toolchain) = rust_toolchain(stage) else {
            return;
        };
        stage.write(
            stage.project().join("Cargo.toml"),
            "[package]\nname = \"answer\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
        );
        stage.write(
            stage.project().join("src/main.rs"),
            "fn main() { println!(\"{}\", 6 * 7); }\n#[test]\nfn adds() { assert_eq!(1 + 1, 2); }\n",
        );
        let path = format!("PATH={}/bin:/usr/bin:/bin", toolchain.display());
        let flags = ["-r", toolchain.to_str().unwrap(), "--env", &path, "--env", "CARGO_HOME=/tmp/cargo"];
        let ran = build(stage, &flags, "cargo run --offline --quiet && cargo test --offline --quiet").ok();
        assert!(ran.stdout().starts_with("42\n"), "{ran:?}");
        assert!(ran.stdout().contains("1 passed"), "{ran:?}");
    }

    fn node(stage) {
        stage.write(
            stage.project().join("serve.js"),
            r#"
            const http = require('http'), fs = require('fs'), { Worker } = require('worker_threads');
            new WebAssembly.Memory({ initial: 1, maximum: 65536 });
            const worker = new Worker("require('worker_threads').parentPort.postMessage(42)", { eval: true });
            worker.on('message', (answer) => {
                const server = http.createServer((_, response) => response.end(String(answer)));
                server.listen(0, '127.0.0.1', async () => {
                    const reply = await (await fetch('http://127.0.0.1:' + server.address().port)).text();
                    fs.writeFileSync('reply', reply);
                    console.log(reply);
                    process.exit(0);
                });
            });
            "#,
        );
        let ran = build(stage, &[], "node serve.js").ok();
        assert_eq!(ran.stdout(), "42\n");
        assert_eq!(stage.sh("cat reply").ok().stdout(), "42");
    }

    fn node_fetches_by_undici_and_runs_webassembly_where_no_cgroup_bounds_its_memory(stage) {
        // The module exports `add`; its memory may grow to 4 GB, for which V8 reserves more than 8.
        stage.write(
            stage.project().join("wasm.js"),
            r#"
            const http = require('http');
            const code = new WebAssembly.Module(Uint8Array.from([
                0, 97, 115, 109, 1, 0, 0, 0, 1, 7, 1, 96, 2, 127, 127, 1, 127, 3, 2, 1, 0,
                7, 7, 1, 3, 97, 100, 100, 0, 0, 10, 9, 1, 7, 0, 32, 0, 32, 1, 106, 11]));
            const { add } = new WebAssembly.Instance(code).exports;
            const memory = new WebAssembly.Memory({ initial: 16, maximum: 65536 });
            memory.grow(1600);
            const server = http.createServer((request, response) => {
                request.on('data', () => {}).on('end', () => response.end(String(add(40, 2))));
            }).listen(0, '127.0.0.1', async () => {
                const url = 'http://127.0.0.1:' + server.address().port;
                const replies = await Promise.all(Array.from({ length: 20 }, (_, i) =>
                    fetch(url, { method: 'POST', body: 'x'.repeat(100000 + i) }).then((reply) => reply.text())));
                console.log(process.versions.undici ? new Set(replies) : 'no undici');
                process.exit(0);
            });
            "#,
        );
        let ran = build(stage, &["--profile", "node"], "node wasm.js").ok();
        assert_eq!(ran.stdout(), "Set(1) { '42' }\n");
    }

    fn java_compiles_and_runs(stage) {
        if !Path::new("/usr/bin/javac").exists() {
            skip("needs a JDK (default-jdk-headless)");
            return;
        }
        stage.write(
            stage.project().join("Answer.java"),
            "import java.util.stream.*;\npublic class Answer {\n  public static void main(String[] a) throws Exception {\n\
             Thread t = new Thread(() -> System.out.println(IntStream.rangeClosed(1, 8).parallel().sum() + 6));\n\
             t.start(); t.join();\n  }\n}\n",
        );
        let ran = build(stage, &[], "javac Answer.java && java Answer").ok();
        assert_eq!(ran.stdout(), "42\n");
    }

    fn chromium_loads_a_page_from_a_server_in_the_cage(stage) {
        if !Path::new("/usr/bin/chromium").exists() {
            skip("needs chromium");
            return;
        }
        stage.write(
            stage.project().join("site/index.html"),
            "<p id=p>as sent</p><script>fetch('answer').then(r => r.text()).then(t => p.textContent = 'drawn ' + t.trim())</script>",
        );
        stage.write(stage.project().join("site/answer"), "42\n");
        // Its default would read the page before the script has fetched.
        let script = "
            /usr/bin/python3 -m http.server --directory site --bind 127.0.0.1 8000 >/dev/null 2>&1 &
            until /usr/bin/python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.1; done
            chromium --headless --virtual-time-budget=10000 --dump-dom http://127.0.0.1:8000/
        ";
        for profile in ["shell", "coding-agent"] {
            let ran = build(stage, &["--profile", profile], script).ok();
            assert!(ran.stdout().contains("<p id=\"p\">drawn 42</p>"), "{ran:?}");
        }
        let ran = build(stage, &[], "cat /etc/chromium.d/*").ok();
        assert!(!ran.stdout().contains("API_KEY"), "{ran:?}");
    }

    fn sqlite(stage) {
        let script = r#"
            sqlite3 t.db 'pragma journal_mode=wal; create table t(x); insert into t values (40), (2);'
            sqlite3 t.db 'select sum(x) from t; pragma integrity_check;'
        "#;
        let ran = build(stage, &[], script).ok();
        assert_eq!(ran.stdout(), "wal\n42\nok\n");
    }

    fn redis_serves_on_the_cages_own_loopback(stage) {
        let script = r#"
            redis-server --port 6390 --bind 127.0.0.1 --save '' --dir /tmp >/tmp/redis.log 2>&1 &
            tries=0
            until redis-cli -p 6390 ping >/dev/null 2>&1; do
                tries=$((tries + 1))
                [ $tries -lt 200 ] || { cat /tmp/redis.log >&2; exit 1; }
                sleep 0.1
            done
            redis-cli -p 6390 set answer 42
            redis-cli -p 6390 get answer
            redis-cli -p 6390 shutdown nosave || true
            wait
        "#;
        let ran = build(stage, &[], script).ok();
        assert_eq!(ran.stdout(), "OK\n42\n");
    }

    fn two_cages_use_the_same_port_at_once(stage) {
        let serve = "
import http.server, sys
s = http.server.HTTPServer(('127.0.0.1', 8123), http.server.BaseHTTPRequestHandler)
print('listening', flush=True)
sys.stdin.read()
";
        let mut first = Running::start(&mut stage.cage(&[], &["/usr/bin/python3", "-c", serve]));
        let hold = first.stdin();
        let mut heard = first.stdout();
        let mut line = [0; 10];
        std::io::Read::read_exact(&mut heard, &mut line).expect("the first server listens");
        // Each with a change of its own.
        let ran = stage.run(&["--fresh"], &["/usr/bin/python3", "-c", serve]).ok();
        assert_eq!(ran.stdout(), "listening\n");
        drop((hold, heard));
        first.finish(Duration::from_secs(60)).ok();
    }
}
