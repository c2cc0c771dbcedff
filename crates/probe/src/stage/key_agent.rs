//! A stand-in for the user's ssh-agent. It has two keys, does whatever it is asked, and notes what
//! that was. The policy of the probes names one key, for commits.

use super::log::{Channel, HitLog};
use super::{StageError, making};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

/// The comment of the key that the policy names.
pub(crate) const OWN_KEY: &str = "stage-own-key";
/// The only purpose that the policy allows.
pub(crate) const COMMITS: &str = "git";

/// Numbers of the protocol.
pub(crate) mod message {
    pub(crate) const FAILURE: u8 = 5;
    pub(crate) const SUCCESS: u8 = 6;
    pub(crate) const LIST: u8 = 11;
    pub(crate) const LISTED: u8 = 12;
    pub(crate) const SIGN: u8 = 13;
    pub(crate) const SIGNED: u8 = 14;
    pub(crate) const ADD: u8 = 17;
    pub(crate) const REMOVE: u8 = 18;
    pub(crate) const REMOVE_ALL: u8 = 19;
    pub(crate) const LOCK: u8 = 22;
    pub(crate) const EXTENSION: u8 = 27;
}

/// Longest message that it reads.
const LONGEST: u32 = 256 * 1024;

/// The public key of a name: an Ed25519 key in form, which nobody has the other half of.
pub(crate) fn public_key(name: &str) -> Vec<u8> {
    let mut point = [0; 32];
    for (at, byte) in point.iter_mut().zip(name.bytes().cycle()) {
        *at = byte;
    }
    strings(&[b"ssh-ed25519", &point])
}

/// Strings as the protocol writes them.
pub(crate) fn strings(parts: &[&[u8]]) -> Vec<u8> {
    let mut all = Vec::new();
    for part in parts {
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        all.extend_from_slice(&length.to_be_bytes());
        all.extend_from_slice(part);
    }
    all
}

/// What somebody signs who signs for a purpose, as `ssh-keygen -Y sign` does.
pub(crate) fn signature_for(namespace: &str) -> Vec<u8> {
    let mut data = b"SSHSIG".to_vec();
    data.extend(strings(&[namespace.as_bytes(), b"", b"sha512", &[7; 64]]));
    data
}

/// The first string, and what follows.
pub(crate) fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

/// Listens until the process ends. `other` is the comment of the key that no policy names.
pub(super) fn start(path: &Path, other: &str, log: &HitLog) -> Result<(), StageError> {
    let listener = UnixListener::bind(path).map_err(making("a stand-in for an ssh-agent"))?;
    let (log, other) = (log.clone(), other.to_owned());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (log, other) = (log.clone(), other.clone());
            // A client that went away is an end like any other.
            thread::spawn(move || drop(serve(stream, &other, &log)));
        }
    });
    Ok(())
}

fn serve(mut stream: UnixStream, other: &str, log: &HitLog) -> io::Result<()> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length).min(LONGEST);
        let mut message = vec![0; usize::try_from(length).unwrap_or_default()];
        stream.read_exact(&mut message)?;
        let answer = answer(&message, other, log);
        stream.write_all(&strings(&[&answer]))?;
    }
}

fn answer(message: &[u8], other: &str, log: &HitLog) -> Vec<u8> {
    let (number, rest) = message.split_first().unwrap_or((&0, &[]));
    match *number {
        message::LIST => {
            let mut list = vec![message::LISTED];
            list.extend(2_u32.to_be_bytes());
            for name in [OWN_KEY, other] {
                list.extend(strings(&[&public_key(name), name.as_bytes()]));
            }
            list
        }
        message::SIGN => {
            sign(rest, log);
            let mut signed = vec![message::SIGNED];
            let signature = strings(&[b"ssh-ed25519", &[1; 64]]);
            signed.extend(strings(&[&signature]));
            signed
        }
        number => {
            log.note(Channel::AgentChanged, format!("request {number}"));
            vec![message::SUCCESS]
        }
    }
}

/// Notes what a signature was for.
fn sign(request: &[u8], log: &HitLog) {
    let read = string(request).and_then(|(key, rest)| Some((key, string(rest)?.0)));
    let Some((key, data)) = read else {
        return log.note(Channel::AgentMisused, "a request that cannot be read");
    };
    let channel = match (key == public_key(OWN_KEY), data == signature_for(COMMITS)) {
        (true, true) => Channel::AgentAllowed,
        (true, false) => Channel::AgentMisused,
        (false, _) => Channel::AgentOther,
    };
    let begins = String::from_utf8_lossy(data.get(..16).unwrap_or(data))
        .escape_default()
        .to_string();
    log.note(
        channel,
        format!("a signature over {} bytes: {begins}", data.len()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_signs_is_noted_by_key_and_purpose() {
        let log = HitLog::default();
        let ask = |key: &str, data: &[u8]| {
            let mut message = vec![message::SIGN];
            message.extend(strings(&[&public_key(key), data]));
            message.extend([0; 4]);
            answer(&message, "another", &log)
        };
        assert_eq!(ask(OWN_KEY, &signature_for(COMMITS))[0], message::SIGNED);
        assert!(log.first(Channel::AgentAllowed).is_some());
        assert!(log.first(Channel::AgentMisused).is_none());
        ask(OWN_KEY, &signature_for("file"));
        assert!(log.first(Channel::AgentMisused).is_some());
        assert!(log.first(Channel::AgentOther).is_none());
        ask("another", &signature_for(COMMITS));
        assert!(log.first(Channel::AgentOther).is_some());
        assert!(log.first(Channel::AgentChanged).is_none());
        answer(&[message::REMOVE_ALL], "another", &log);
        assert!(log.first(Channel::AgentChanged).is_some());
        let listed = answer(&[message::LIST], "another", &log);
        assert!(crate::oracle::contains(&listed, b"another"));
    }
}
