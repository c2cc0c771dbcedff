//! Keys of the user's ssh-agent and gpg-agent, for those that the policy names. Asks them for
//! public keys alone, and only where the policy names one.

use crate::package_tools::output_of;
use ironcage_files::{Links, read_text};
use ironcage_model::{HostRule, KeyAgent, Ports, base64};
use ironcage_plan::{
    GpgAgent, GpgAgentKey, GpgKeyError, KeyAgentError, KeyAgents, PublicKeyError, SshAgent,
    SshAgentKey,
};
use ironcage_policy::{Policy, SignKeyRule, SigningKeys, SshKeyName, bundles};
use ironcage_signing::{fingerprint, ssh};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long an agent may take for an answer that needs no person.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest file of a public key.
const LONGEST_KEY: u64 = 64 * 1024;

/// Asks the agents that a policy needs.
pub(crate) fn ask(keys: &SigningKeys, workspace: &Path) -> KeyAgents {
    let signs = keys.sign.iter().map(|rule| &rule.value);
    let ssh_names = signs.clone().filter_map(|rule| match rule {
        SignKeyRule::Ssh(name) => Some(name),
        SignKeyRule::Gpg(_) => None,
    });
    let logins = keys.ssh.iter().map(|rule| &rule.value.key);
    let ssh: Vec<&SshKeyName> = logins.chain(ssh_names).collect();
    let gpg: Vec<&str> = signs
        .filter_map(|rule| match rule {
            SignKeyRule::Gpg(name) => Some(name.as_str()),
            SignKeyRule::Ssh(_) => None,
        })
        .collect();
    KeyAgents {
        ssh: (!ssh.is_empty()).then(|| ssh_agent(&ssh)),
        gpg: (!gpg.is_empty()).then(|| gpg_agent(&gpg, workspace)),
        offered: None,
    }
}

/// The key that `--ssh-key` would name, where rules name single ports, as those for SSH servers do:
/// the first of the ssh-agent, by its file if that is in the usual place.
pub(crate) fn offered(policy: &Policy, home: &Path) -> Option<String> {
    let single = |rule: &HostRule| matches!(rule.ports, Ports::One(_));
    let mut rules = policy.network.allow.iter().map(|rule| &rule.value);
    let named = policy.all_bundles();
    let mut bundles = bundles::ENTRIES.iter();
    let mut bundle = bundles.any(|bundle| {
        let is_named = named.iter().any(|name| name.value == bundle.name);
        is_named && bundle.hosts.iter().any(|host| host.ends_with(":22"))
    });
    bundle |= rules.any(single) || !policy.network.host_ports.is_empty();
    if !bundle {
        return None;
    }
    let socket = std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty())?;
    let keys = ssh_keys(Path::new(&socket)).ok()?;
    let first = keys.first()?;
    let entries = std::fs::read_dir(home.join(".ssh")).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".pub")).collect();
    names.sort();
    let is_first = |name: &&String| {
        let path = home.join(".ssh").join(name);
        public_key(&path).is_ok_and(|blob| blob == first.blob)
    };
    Some(match names.iter().find(is_first) {
        Some(name) => format!("~/.ssh/{name}"),
        None => fingerprint(&first.blob),
    })
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ssh_agent(names: &[&SshKeyName]) -> Result<SshAgent, KeyAgentError> {
    let socket = std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty());
    let socket = socket.ok_or(KeyAgentError::NoSocketVariable)?;
    let unreachable = KeyAgentError::unreachable(KeyAgent::Ssh);
    let socket = std::fs::canonicalize(PathBuf::from(socket)).map_err(&unreachable)?;
    let keys = ssh_keys(&socket).map_err(unreachable)?;
    let files = names.iter().filter_map(|name| match name {
        SshKeyName::File(path) => Some((path.clone(), public_key(path))),
        _ => None,
    });
    Ok(SshAgent {
        socket,
        keys: keys.into_iter().map(as_planned).collect(),
        files: files.collect(),
    })
}

fn as_planned(key: ssh::Identity) -> SshAgentKey {
    SshAgentKey {
        fingerprint: fingerprint(&key.blob),
        kind: key.kind,
        blob: key.blob,
        comment: key.comment,
    }
}

fn ssh_keys(socket: &Path) -> io::Result<Vec<ssh::Identity>> {
    let mut stream = connect(socket)?;
    stream.write_all(&ssh::identities_request())?;
    let mut answer = vec![0; 4];
    stream.read_exact(&mut answer)?;
    let length = ssh::answer_length(&answer).unwrap_or(4);
    answer.resize(length, 0);
    stream.read_exact(answer.get_mut(4..).unwrap_or_default())?;
    let not_one = || io::Error::new(io::ErrorKind::InvalidData, "it is not an ssh-agent");
    ssh::identities(&answer).ok_or_else(not_one)
}

/// The public key in a file, or in the one beside a private key.
fn public_key(path: &Path) -> Result<Vec<u8>, PublicKeyError> {
    let is_public = path.extension().is_some_and(|ending| ending == "pub");
    let path = match is_public {
        true => path.to_owned(),
        false => {
            let mut name = path.as_os_str().to_owned();
            name.push(".pub");
            PathBuf::from(name)
        }
    };
    let text = read_text(&path, LONGEST_KEY, Links::Follow);
    let text = text.map_err(|error| PublicKeyError::Read {
        path: path.clone(),
        source: Arc::new(error.into()),
    })?;
    let mut words = text.split_ascii_whitespace();
    let kind = words.next().unwrap_or_default();
    let blob = words.next().and_then(base64::decode);
    // A key says its own type again.
    let fits = |blob: &Vec<u8>| {
        blob.get(4..)
            .is_some_and(|rest| rest.starts_with(kind.as_bytes()))
    };
    blob.filter(fits)
        .filter(|_| !kind.is_empty())
        .ok_or(PublicKeyError::Invalid { path })
}

fn gpg_agent(names: &[&str], workspace: &Path) -> Result<GpgAgent, KeyAgentError> {
    let run = |tool: &str, arguments: &[&str]| output_of(workspace, tool, arguments);
    let directories = run("gpgconf", &["--list-dirs", "agent-extra-socket"]);
    let directories = directories.ok_or(KeyAgentError::NoGpgconf)?;
    let socket = unescaped(directories.trim_ascii()).ok_or(KeyAgentError::NoRestrictedSocket)?;
    // One that runs already stays as it is.
    run("gpgconf", &["--launch", "gpg-agent"]);
    let unreachable = KeyAgentError::unreachable(KeyAgent::Gpg);
    let socket = std::fs::canonicalize(socket).map_err(&unreachable)?;
    let keys = names.iter().map(|name| {
        let list = [
            "--batch",
            "--with-colons",
            "--with-keygrip",
            "--list-secret-keys",
            "--",
            name,
        ];
        let listed = run("gpg", &list).and_then(|text| String::from_utf8(text).ok());
        let key = listed
            .ok_or(GpgKeyError::NotFound)
            .and_then(|text| signing_key(&text))
            .and_then(|(fingerprint, grips)| {
                let export = [
                    "--batch",
                    "--export-options",
                    "export-minimal",
                    "--export",
                    "--",
                    &fingerprint,
                ];
                let keyring = run("gpg", &export).filter(|keyring| !keyring.is_empty());
                let keyring = keyring.ok_or(GpgKeyError::NotExported)?;
                Ok(GpgAgentKey {
                    fingerprint,
                    grips,
                    keyring,
                })
            });
        ((*name).to_owned(), key)
    });
    Ok(GpgAgent {
        version: gpg_version(&socket).map_err(unreachable)?,
        keys: keys.collect(),
        socket,
    })
}

/// A path as gpgconf prints it: with `%` escapes.
fn unescaped(text: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = Vec::new();
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [*rest.next()?, *rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => *byte,
        });
    }
    (!bytes.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// The fingerprint of a key, and the keygrips of what signs in it, as gpg lists them.
fn signing_key(text: &str) -> Result<(String, Vec<String>), GpgKeyError> {
    let (mut fingerprint, mut grips, mut others) = (None, Vec::new(), Vec::new());
    let (mut signs, mut only_signs, mut keys) = (false, false, 0);
    for line in text.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let field = |number: usize| fields.get(number).copied().unwrap_or_default();
        match field(0) {
            kind @ ("sec" | "ssb") => {
                keys += usize::from(kind == "sec");
                let valid = !matches!(field(1), "r" | "e" | "i" | "d" | "n");
                // In lower case what this part can, in upper case what the whole key can; `#` is
                // a part that is not here.
                signs = valid && field(11).contains('s') && field(14) != "#";
                only_signs = !field(11).contains(['c', 'a']);
            }
            "fpr" if fingerprint.is_none() => fingerprint = Some(field(9).to_owned()),
            "grp" if signs && only_signs => grips.push(field(9).to_owned()),
            "grp" if signs => others.push(field(9).to_owned()),
            _ => {}
        }
    }
    // A part that also certifies can change the key itself: it signs only where no other does.
    if grips.is_empty() {
        grips = others;
    }
    match (keys, fingerprint) {
        (1, Some(fingerprint)) if !grips.is_empty() => Ok((fingerprint, grips)),
        (1, _) => Err(GpgKeyError::CannotSign),
        (0, _) => Err(GpgKeyError::NotFound),
        _ => Err(GpgKeyError::Ambiguous),
    }
}

fn gpg_version(socket: &Path) -> io::Result<String> {
    let mut stream = connect(socket)?;
    stream.write_all(b"GETINFO version\n")?;
    // Nothing in the answer may be long.
    let mut lines = BufReader::new(stream.take(4096)).lines();
    loop {
        let line = lines.next().transpose()?.unwrap_or_default();
        if let Some(version) = line.strip_prefix("D ") {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
            let version: String = version
                .bytes()
                .filter(|byte| plain(*byte))
                .map(char::from)
                .collect();
            return Ok(version);
        }
        if !line.starts_with("OK") {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is not a gpg-agent",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_signs_in_a_key_is_told_from_what_does_not() {
        let listed = "\
            sec:u:255:22:188E:1:::u:::cSC:::+::ed25519:::0:\n\
            fpr:::::::::AA79:\ngrp:::::::::1111:\n\
            ssb:u:255:22:2222:1::::::s:::+::ed25519::\nfpr:::::::::BB:\ngrp:::::::::2222:\n\
            ssb:e:255:22:3333:1::::::s:::+::ed25519::\nfpr:::::::::CC:\ngrp:::::::::3333:\n\
            ssb:u:255:18:4444:1::::::e:::+::cv25519::\nfpr:::::::::DD:\ngrp:::::::::4444:\n\
            ssb:u:255:22:5555:1::::::s:::#::ed25519::\nfpr:::::::::EE:\ngrp:::::::::5555:\n";
        assert_eq!(
            signing_key(listed),
            Ok(("AA79".into(), vec!["2222".into()]))
        );
        // A primary key that signs and certifies is left out where a part only signs.
        let primary = listed.replace(":cSC:", ":scSC:");
        assert_eq!(signing_key(&primary).unwrap().1, ["2222"]);
        let alone = "sec:u:255:22:1:1:::u:::scSC:::+\nfpr:::::::::AA:\ngrp:::::::::1111:\n";
        assert_eq!(signing_key(alone).unwrap().1, ["1111"]);
        let twice = format!("{listed}{listed}");
        assert_eq!(signing_key(&twice), Err(GpgKeyError::Ambiguous));
        assert_eq!(signing_key(""), Err(GpgKeyError::NotFound));
        let certifies = "sec:u:255:22:1:1:::u:::cC:::+\nfpr:::::::::AA:\n";
        assert_eq!(signing_key(certifies), Err(GpgKeyError::CannotSign));
    }

    #[test]
    fn gpgs_escapes_are_read() {
        assert_eq!(unescaped(b"/run/a%20b"), Some("/run/a b".into()));
        assert_eq!(unescaped(b""), None);
        assert_eq!(unescaped(b"/x%2"), None);
    }
}
