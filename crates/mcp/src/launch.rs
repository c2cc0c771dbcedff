//! The command that starts a server in its cage.

use crate::error::McpError;
use crate::pins::Lock;
use crate::settings::{Settings, hex};
use ironcage_tools::McpServer;
use std::path::Path;
use tokio::process::Command;

/// Largest script whose content is part of a pin.
const LARGEST_SCRIPT: u64 = 16 << 20;

/// How the server is started, with what the command line adds to the policy.
pub(crate) fn server(
    settings: &Settings,
    name: &str,
    env: &[String],
    command: &[String],
) -> Result<McpServer, McpError> {
    let known = settings.policy.servers.get(name);
    let mut server = known.cloned().unwrap_or_default();
    if server.command.is_empty() && server.url.is_none() {
        server.command = command.to_vec();
    }
    server.env.extend(env.iter().cloned());
    match server.command.is_empty() && server.url.is_none() {
        true => Err(McpError::NoCommand(name.to_owned())),
        false => Ok(server),
    }
}

/// `ironcage run` with the server's command, or with the relay to its URL.
pub(crate) fn command(
    settings: &Settings,
    server: &McpServer,
    cage: Option<&str>,
) -> Result<Command, McpError> {
    let mut command = Command::new(&settings.ironcage);
    command.args(["run", "--quiet"]);
    if let Some(cage) = cage {
        command.args(["--name", cage]);
    }
    match (&server.policy, &server.profile) {
        (Some(policy), _) => {
            command.arg("--policy").arg(policy);
        }
        (None, profile) => {
            command.args(["--profile", profile.as_deref().unwrap_or("shell")]);
        }
    }
    if let Some(url) = &server.url {
        let own = std::env::current_exe().map_err(|error| McpError::Cage(error.to_string()))?;
        let host = authority(url);
        command.args(["--workspace-mode", "scratch", "--no-state"]);
        command.arg("--read").arg(&own);
        // The host's loopback needs words of its own, and no TLS for a secret.
        let for_secret = match host.strip_prefix("host.ironcage:") {
            Some(port) => {
                command.args(["--allow-host-port", port]);
                format!("http://{host}")
            }
            None => {
                command.args(["--allow-host", &host]);
                host
            }
        };
        let token = server.token.as_deref();
        let variable = token.map(|token| token.split('=').next().unwrap_or(token));
        if let Some(token) = token {
            command.arg("--secret").arg(format!("{token}@{for_secret}"));
        }
        command.arg("--").arg(&own);
        command.args([
            "--state",
            "/",
            "--workspace",
            "/",
            "--ironcage",
            "/",
            "mcp",
            "__relay",
        ]);
        command.arg(url);
        if let Some(variable) = variable {
            command.args(["--token", variable]);
        }
        return Ok(command);
    }
    let workspace = server.workspace.as_ref().unwrap_or(&settings.workspace);
    command.arg("--workspace").arg(workspace);
    match (&server.workspace_mode, &server.policy) {
        (Some(mode), _) => {
            command.args(["--workspace-mode", mode]);
        }
        (None, None) => {
            command.args(["--workspace-mode", "read-only"]);
        }
        (None, Some(_)) => {}
    }
    for variable in &server.env {
        command.args(["--env", variable]);
    }
    command.arg("--").args(&server.command);
    Ok(command)
}

/// The host of a URL with its port, as network rules write it. The policy has checked the URL.
fn authority(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let port = if scheme == "http" { 80 } else { 443 };
    match authority.rsplit_once(':') {
        Some((_, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            authority.to_owned()
        }
        _ => format!("{authority}:{port}"),
    }
}

/// A hash over how the server is started: its command, the scripts that the command names, or its
/// URL, and everything that decides about its cage.
pub(crate) fn fingerprint(server: &McpServer) -> String {
    let mut text = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        server.command,
        server.url,
        server.policy,
        server.profile,
        server.workspace,
        server.workspace_mode,
        server.env,
        server.token,
    );
    if let Some(policy) = &server.policy {
        // One that cannot be read starts no cage.
        text.push_str(&script(policy).map_or_else(String::new, |content| hex(&content)));
    }
    for word in &server.command {
        // From where the server starts, or from here where it has the gateway's workspace.
        let path = match &server.workspace {
            Some(workspace) => workspace.join(word),
            None => Path::new(word).to_owned(),
        };
        if let Some(content) = script(&path).filter(|content| !is_database(content)) {
            text.push_str(&hex(&content));
        }
    }
    hex(text.as_bytes())
}

/// Whether it is a database of SQLite, which changes as it is used. Python runs a file that ends with a ZIP archive, whatever
/// is in front of it.
fn is_database(content: &[u8]) -> bool {
    let zip = || content.windows(4).any(|bytes| bytes == b"PK\x05\x06");
    content.starts_with(b"SQLite format 3\0") && !zip()
}

fn script(path: &Path) -> Option<Vec<u8>> {
    ironcage_files::read(path, LARGEST_SCRIPT, ironcage_files::Links::Follow).ok()
}

/// Whether the server is started differently than when a person approved it.
pub(crate) fn differs(lock: &Lock, name: &str, server: &McpServer) -> bool {
    let known = lock.servers.get(name);
    known.is_some_and(|known| known.launch != fingerprint(server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::ServerPin;

    #[test]
    fn the_network_and_the_token_of_a_server_on_http_are_for_its_port_alone() {
        let settings = Settings {
            state: "/state".into(),
            workspace: "/w".into(),
            ironcage: "/ironcage".into(),
            policy: Default::default(),
        };
        let words = |url: &str| {
            let server = McpServer {
                url: Some(url.to_owned()),
                token: Some("KEY=env:KEY".to_owned()),
                ..McpServer::default()
            };
            let command = super::command(&settings, &server, None).unwrap();
            let words = command.as_std().get_args();
            let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        for (url, network, secret) in [
            (
                "https://mcp.test/x",
                "--allow-host mcp.test:443 ",
                "--secret KEY=env:KEY@mcp.test:443 ",
            ),
            (
                "https://mcp.test:8443",
                "--allow-host mcp.test:8443 ",
                "--secret KEY=env:KEY@mcp.test:8443 ",
            ),
            (
                "http://host.ironcage:8931/mcp",
                "--allow-host-port 8931 ",
                "--secret KEY=env:KEY@http://host.ironcage:8931 ",
            ),
        ] {
            let words = words(url);
            assert!(words.contains(network) && words.contains(secret), "{words}");
            assert!(
                words.ends_with(&format!("__relay {url} --token KEY")),
                "{words}"
            );
        }
    }

    #[test]
    fn a_pin_covers_files_of_the_command_but_no_database() {
        let directory = tempfile::tempdir().unwrap();
        let server = McpServer {
            command: vec!["python3".into(), "server".into(), "data.db".into()],
            workspace: Some(directory.path().to_owned()),
            ..McpServer::default()
        };
        let write = |name: &str, content: &[u8]| {
            std::fs::write(directory.path().join(name), content).unwrap();
            fingerprint(&server)
        };
        let first = write("server", b"one");
        assert_ne!(
            write("server", b"two"),
            first,
            "a script without a dot in its name"
        );
        let script = write("server", b"one");
        assert_eq!(script, first);
        let database = write("data.db", b"SQLite format 3\0one");
        assert_eq!(database, first);
        assert_eq!(write("data.db", b"SQLite format 3\0two"), first);
        assert_ne!(write("data.db", b"SQLite format 3\0PK\x05\x06"), first);
        assert_ne!(write("data.db", b"print(1)"), first);
    }

    #[test]
    fn a_server_that_would_be_started_differently_is_known_by_everything_about_its_start() {
        let directory = tempfile::tempdir().unwrap();
        let policy = directory.path().join("server.toml");
        std::fs::write(&policy, "a").unwrap();
        let server = McpServer {
            command: vec!["true".into()],
            policy: Some(policy.clone()),
            ..McpServer::default()
        };
        let mut lock = Lock::default();
        assert!(!differs(&lock, "s", &server));
        let pin = ServerPin {
            launch: fingerprint(&server),
            ..ServerPin::default()
        };
        lock.servers.insert("s".into(), pin);
        assert!(!differs(&lock, "s", &server));
        let mut more = server.clone();
        more.env.push("HOME".into());
        assert!(differs(&lock, "s", &more));
        let mut wider = server.clone();
        wider.workspace_mode = Some("direct".into());
        assert!(differs(&lock, "s", &wider));
        std::fs::write(&policy, "b").unwrap();
        assert!(differs(&lock, "s", &server));
    }
}
