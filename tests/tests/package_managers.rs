//! Package managers install by the one flag that the denial named, from the index of the user's own
//! settings, without its password.

use ironcage_tests::{Ran, Running, Stage, TlsWeb, either, rust_toolchain, skip};
use std::time::Duration;

const REGISTRY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/registry_server.py");
const HIDDEN: &str = "hidden-password-of-the-index";
const SYSTEM: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A server whose address the user's configuration has, and nothing else.
fn registry(stage: &Stage) -> Option<TlsWeb> {
    let server = TlsWeb::of(stage, "registry.test", "/usr/bin/python3", REGISTRY)?;
    let config = format!(
        "[network]\nallow = [\"127.0.0.1:{}\"]\nresolve = {{ \"registry.test\" = \"127.0.0.1\" }}\n",
        server.port
    );
    stage.write(stage.base().join("config/ironcage/config.toml"), config);
    Some(server)
}

fn run(stage: &Stage, server: &TlsWeb, path: &str, flags: &[&str], script: &str) -> Ran {
    let flags = [&["--workspace-mode", "direct"], flags].concat();
    let mut cage = stage.cage(&flags, &["/bin/sh", "-ec", script]);
    cage.env("SSL_CERT_FILE", &server.authority)
        .env("PATH", path);
    Running::start(&mut cage).finish(Duration::from_secs(300))
}

/// Without a flag it is refused, and the flag that was told installs.
fn installs(stage: &Stage, server: &TlsWeb, path: &str, flags: &[&str], script: &str) -> Ran {
    let refused = run(stage, server, path, flags, script);
    assert_ne!(refused.code(), 0, "{refused:?}");
    assert_eq!(server.log(), "", "{refused:?}");
    let told = (refused.stderr.lines()).rfind(|line| line.starts_with("ironcage: network: "));
    let told = told.unwrap_or_else(|| panic!("{refused:?}"));
    let (_, flag) = told.split_once("to allow: ").expect("a flag");
    let flag: Vec<&str> = flags.iter().copied().chain(flag.split(' ')).collect();
    let ran = run(stage, server, path, &flag, script);
    assert_eq!(ran.code(), 0, "{flag:?} {ran:?}");
    assert!(
        !ran.stdout().contains(HIDDEN) && !ran.stderr.contains(HIDDEN),
        "{ran:?}"
    );
    ran
}

either! {
    fn pip_installs_from_the_users_index(stage) {
        let Some(server) = registry(stage) else { return };
        let index = format!("https://ann:{HIDDEN}@registry.test:{}/pip/simple/", server.port);
        stage.write(stage.base().join("config/pip/pip.conf"), format!("[global]\nindex-url = {index}\n"));
        let script = "pip3 install -q --no-cache-dir --target out demo; env; cd out; python3 -c 'import demo; print(demo.answer)'";
        let ran = installs(stage, &server, SYSTEM, &[], script);
        assert!(ran.stdout().ends_with("42\n"), "{ran:?}");
        let note = format!("--secret NAME@registry.test:{}", server.port);
        assert!(ran.stderr.contains(&note), "{ran:?}");
    }

    fn npm_installs_from_the_users_registry(stage) {
        if stage.sh_outside("npm --version").code() != 0 {
            return skip("no npm");
        }
        let Some(server) = registry(stage) else { return };
        let url = format!("https://registry.test:{}/npm/", server.port);
        let text = format!("registry={url}\n//registry.test:{}/npm/:_authToken={HIDDEN}\n", server.port);
        stage.write(stage.home().join(".npmrc"), text);
        let script = "npm install --no-audit --no-fund demo >&2; env; npm config list; node -p 'require(\"demo\")'";
        let ran = installs(stage, &server, SYSTEM, &[], script);
        assert!(ran.stdout().ends_with("42\n"), "{ran:?}");
    }

    fn cargo_fetches_from_the_users_mirror(stage) {
        let Some(toolchain) = rust_toolchain(stage) else { return };
        let Some(server) = registry(stage) else { return };
        let path = format!("{}/bin:{SYSTEM}", toolchain.display());
        let mirror = format!("sparse+https://ann:{HIDDEN}@registry.test:{}/cargo/", server.port);
        let text = format!("[source.crates-io]\nreplace-with = \"own\"\n[source.own]\nregistry = \"{mirror}\"\n[build]\nrustc-wrapper = \"/nonexistent\"\n");
        stage.write(stage.home().join(".cargo/config.toml"), text);
        let manifest = "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[lib]\npath = \"a.rs\"\n[dependencies]\ndemo = \"1\"\n";
        stage.write(stage.project().join("Cargo.toml"), manifest);
        stage.write(stage.project().join("a.rs"), "");
        let toolchain = toolchain.display().to_string();
        // With no CARGO_HOME that was used before, and the profile for it.
        let script = format!("export PATH={toolchain}/bin:$PATH; cargo fetch; cat /.cargo/config.toml; cat Cargo.lock");
        let ran = installs(stage, &server, &path, &["-r", &toolchain], &script);
        assert!(ran.stdout().contains("name = \"demo\""), "{ran:?}");
        assert!(!ran.stdout().contains("rustc-wrapper"), "{ran:?}");
    }

    fn go_downloads_from_the_users_proxy(stage) {
        const GO: &str = "/usr/local/go/bin";
        let path = format!("{GO}:{SYSTEM}");
        let found = stage.sh_outside(&format!("PATH={path} go version"));
        if found.code() != 0 {
            return skip("no go");
        }
        let Some(server) = registry(stage) else { return };
        let proxy = format!("https://ann:{HIDDEN}@registry.test:{}/go", server.port);
        stage.write(stage.base().join("config/go/env"), format!("GOPROXY={proxy}\nGOSUMDB=off\nGOTOOLCHAIN=local\n"));
        stage.write(stage.project().join("go.mod"), "module example.test/a\n\ngo 1.20\n\nrequire example.test/demo v1.0.0\n");
        let script = "export GOTOOLCHAIN=local GOFLAGS=-mod=mod; go mod download example.test/demo; env; cat go.sum";
        let ran = installs(stage, &server, &path, &[], script);
        assert!(ran.stdout().contains("example.test/demo v1.0.0 h1:"), "{ran:?}");
    }
}
