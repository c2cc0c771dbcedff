//! Keys in the user's agents, attacked through what a cage has of them: one key, for commits.
//!
//! Each probe signs a commit first. Whoever lets that not through is not praised for the rest.

use super::{Attempts, Canary, Channel, Class, Observation, Oracle, Probe, Setup, Severity};
use crate::stage::key_agent::{
    COMMITS, OWN_KEY, message, public_key, signature_for, string, strings,
};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const KA: Probe = Probe {
    setup: Setup::Keys,
    canary: "a stand-in for the user's ssh-agent, which does whatever it is asked and notes it",
    references: &["CWE-441", "ATT&CK T1552.004"],
    ..Probe::of(Class::Ka)
};
const FILTER: &str = "the key filter: it writes its own messages, and passes none on";

pub(crate) const PROBES: &[Probe] = &[
    Probe {
        id: "KA-01",
        severity: Severity::Medium,
        title: "see the keys of the agent that the policy does not name",
        canary: "the comment of another key in the user's agent",
        layers: &[FILTER],
        inside: |_| each(&[("a list", vec![message::LIST])]),
        oracle: Oracle::Nonce(Canary::OtherKey),
        ..KA
    },
    Probe {
        id: "KA-02",
        severity: Severity::Critical,
        title: "sign something else with a key that is for commits: a login, a file",
        layers: &["the key filter: what a signature is for is read from what is signed"],
        inside: |_| each(&other_purposes()),
        oracle: Oracle::Hit(Channel::AgentMisused),
        ..KA
    },
    Probe {
        id: "KA-03",
        severity: Severity::Critical,
        title: "sign with a key of the agent that the policy does not name",
        layers: &[FILTER],
        inside: |_| other_key(),
        oracle: Oracle::Hit(Channel::AgentOther),
        ..KA
    },
    Probe {
        id: "KA-04",
        title: "lock the agent, take its keys away, add one, have it load a library",
        layers: &[FILTER],
        inside: |_| each(&changes()),
        oracle: Oracle::Hit(Channel::AgentChanged),
        ..KA
    },
];

const PATIENCE: Duration = Duration::from_secs(10);

fn dial() -> io::Result<UnixStream> {
    let path = std::env::var_os("SSH_AUTH_SOCK").ok_or(io::ErrorKind::NotFound)?;
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Says something, and the answer to it.
fn say(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = dial()?;
    stream.write_all(bytes)?;
    hear(&mut stream)
}

fn hear(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length).min(1 << 16);
    let mut answer = vec![0; usize::try_from(length).unwrap_or_default()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn sign(key: &[u8], data: &[u8], flags: u32) -> Vec<u8> {
    let mut request = vec![message::SIGN];
    request.extend(strings(&[key, data]));
    request.extend(flags.to_be_bytes());
    request
}

fn tell(attempts: &mut Attempts, what: &str, answer: io::Result<Vec<u8>>) {
    match answer {
        Ok(answer) => {
            let number = answer.first().copied().unwrap_or_default();
            let refused = [0, message::FAILURE].contains(&number);
            attempts.say(!refused, format!("{what}: answer {number}"));
            attempts.carry(&answer);
        }
        Err(error) => attempts.say(false, format!("{what}: {}", crate::errno::of(&error))),
    }
}

/// What the policy allows; without it nothing that follows tells anything.
fn permitted(attempts: &mut Attempts) {
    let commit = sign(&public_key(OWN_KEY), &signature_for(COMMITS), 0);
    let signed = say(&strings(&[&commit]));
    let number = signed.ok().and_then(|answer| answer.first().copied());
    attempts.say(false, format!("a commit: answer {number:?}"));
}

fn each(messages: &[(&str, Vec<u8>)]) -> Observation {
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let commit = strings(&[&sign(&public_key(OWN_KEY), &signature_for(COMMITS), 0)]);
    for (what, message) in messages {
        let framed = strings(&[message]);
        tell(&mut attempts, what, say(&framed));
        // Behind what is allowed, on the same connection and in the same write.
        let behind = dial().and_then(|mut stream| {
            stream.write_all(&[commit.as_slice(), &framed].concat())?;
            hear(&mut stream)?;
            hear(&mut stream)
        });
        tell(&mut attempts, &format!("{what}, behind a commit"), behind);
        // In pieces, as a slow client sends it.
        let pieces = dial().and_then(|mut stream| {
            for piece in framed.chunks(3) {
                stream.write_all(piece)?;
            }
            hear(&mut stream)
        });
        tell(&mut attempts, &format!("{what}, in pieces"), pieces);
    }
    attempts.done()
}

/// A login as `user` in a session that nobody has proved.
fn login(key: &[u8], method: &str, host_key: Option<&[u8]>) -> Vec<u8> {
    let mut data = strings(&[&[5; 32]]);
    data.push(50);
    data.extend(strings(&[b"root", b"ssh-connection", method.as_bytes()]));
    data.push(1);
    data.extend(strings(&[b"ssh-ed25519", key]));
    data.extend(host_key.map(|key| strings(&[key])).unwrap_or_default());
    data
}

fn other_purposes() -> Vec<(&'static str, Vec<u8>)> {
    let own = public_key(OWN_KEY);
    let server = public_key("a server");
    let commit = signature_for(COMMITS);
    let bound = "publickey-hostbound-v00@openssh.com";
    let mut after = commit.clone();
    after.extend_from_slice(b"and more");
    let mut short = b"SSHSIG".to_vec();
    short.extend(strings(&[COMMITS.as_bytes(), b"", b"sha512", &[7; 20]]));
    vec![
        ("any bytes", sign(&own, b"any bytes", 0)),
        ("nothing", sign(&own, b"", 0)),
        ("a file", sign(&own, &signature_for("file"), 0)),
        ("no namespace", sign(&own, &signature_for(""), 0)),
        ("capital letters", sign(&own, &signature_for("Git"), 0)),
        ("a zero byte", sign(&own, &signature_for("git\0file"), 0)),
        ("something after a commit", sign(&own, &after, 0)),
        ("a short hash", sign(&own, &short, 0)),
        ("a login", sign(&own, &login(&own, "publickey", None), 0)),
        (
            "a login that names its server",
            sign(&own, &login(&own, bound, Some(&server)), 0),
        ),
        (
            "flags that nobody knows",
            sign(&own, &signature_for("file"), 1 << 31),
        ),
    ]
}

/// The keys that a list shows, and one that it may not.
fn other_key() -> Observation {
    let mut attempts = Attempts::new();
    permitted(&mut attempts);
    let listed = say(&strings(&[&[message::LIST]])).unwrap_or_default();
    let mut rest = listed.get(5..).unwrap_or_default();
    let mut keys = Vec::new();
    while let Some((key, after)) = string(rest) {
        let Some((_, after)) = string(after) else {
            break;
        };
        keys.push(key.to_owned());
        rest = after;
    }
    let own = public_key(OWN_KEY);
    // One that is like the own key, where none is shown.
    let mut similar = own.clone();
    similar.push(0);
    keys.retain(|key| *key != own);
    keys.push(similar);
    keys.push(public_key("a key that is guessed"));
    keys.push(Vec::new());
    for key in keys {
        let asked = sign(&key, &signature_for(COMMITS), 0);
        tell(&mut attempts, "a key", say(&strings(&[&asked])));
    }
    attempts.done()
}

fn changes() -> Vec<(&'static str, Vec<u8>)> {
    const ADD_WITH_LIMITS: u8 = 25;
    const LOAD: u8 = 20;
    let own = public_key(OWN_KEY);
    let with = |number: u8, parts: &[&[u8]]| {
        let mut message = vec![number];
        message.extend(strings(parts));
        message
    };
    let session = b"session-bind@openssh.com";
    let mut forged = with(
        message::EXTENSION,
        &[
            session,
            &public_key("a server"),
            &[5; 32],
            &strings(&[b"ssh-ed25519", &[1; 64]]),
        ],
    );
    forged.push(0);
    vec![
        ("lock", with(message::LOCK, &[b"locked"])),
        ("take all keys away", vec![message::REMOVE_ALL]),
        ("take one away", with(message::REMOVE, &[&own])),
        (
            "add one",
            with(message::ADD, &[b"ssh-ed25519", &[2; 32], &[3; 64], b"new"]),
        ),
        (
            "add one that asks",
            with(
                ADD_WITH_LIMITS,
                &[b"ssh-ed25519", &[2; 32], &[3; 64], b"new"],
            ),
        ),
        ("load a library", with(LOAD, &[b"/tmp/library.so", b""])),
        ("an extension", with(message::EXTENSION, &[b"query"])),
        ("a session with a forged proof", forged),
    ]
}
