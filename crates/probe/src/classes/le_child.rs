//! A child cage that asks for more than its parent has, and a child of a child.
//!
//! The probe opens children with policies of its own: for a key that no policy gives, for a
//! directory to write to, for a workspace as it is. Each tries to take what it asked for, whatever
//! it was told. One that asks for nothing shows that there are children, and children of those.

use super::le::{PATIENCE, hear, say};
use super::le_requests::{SOCKET, fell_over, key};
use super::{Attempts, Class, Inside, Observation, Oracle, Probe, Setup, Severity};
use ironcage_sys::packet;
use ironcage_sys::rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, Read, pipe};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;

/// A child that may have one itself.
const WITHIN: &str = "[ceiling]\nchildren = 1\n";
/// The program that is in every cage that can ask.
const TOOL: &str = "/.ironcage/bin/ironcage";

pub(crate) const PROBES: &[Probe] = &[Probe {
    id: "LE-15",
    severity: Severity::Critical,
    title: "open child cages that ask for more than their parent has, also one in another",
    canary: "a key in the home directory; a host file and files that the host trusts, compared",
    setup: Setup::Leased,
    layers: &["a child's policy is checked against its parent's, part by part"],
    references: &["CWE-269", "ATT&CK T1611"],
    oracle: Oracle::Seen(|stage, evidence| {
        let outside = stage.params.outside.clone();
        let changed = stage
            .layout
            .first_change(|path| path.starts_with(&outside) || stage.layout.is_trusted(path));
        let changed = changed.map(|path| format!("{} changed", path.display()));
        fell_over(evidence)
            .or_else(|| key(stage, evidence))
            .or(changed)
    }),
    inside: more_than_the_parent,
    ..Probe::of(Class::Le)
}];

fn more_than_the_parent(inside: &Inside) -> Observation {
    let mut attempts = Attempts::new();
    let params = &inside.params;
    say(inside, "wants");
    hear(inside, "given");
    let (home, workspace) = (params.home.display(), params.workspace.display());
    let (leased, outside) = (params.leased.display(), params.outside.display());
    let take = format!(
        "cat {home}/.ssh/id_canary; echo child >> {outside}/host.txt; echo child >> {workspace}/.git/HEAD"
    );
    // The suite looks whether there was a child's child that asks for nothing. Uncaged there is none.
    let works = [
        TOOL,
        "child",
        "--profile",
        "strict",
        "--",
        "echo",
        "child works",
    ];
    let plain = child(inside, Some(WITHIN), &works);
    match &plain {
        Ok((_, output)) if output.starts_with(b"child works") => {
            let _ = fs::write(params.leased.join("used"), b"");
        }
        other => attempts.say(false, format!("a plain child: {other:?}")),
    }
    // Where they cannot be made, there is a way less.
    let _ = symlink("../.ssh", params.leased.join("link"));
    if plain.is_ok() {
        let _ = symlink(params.home.join(".ssh"), params.workspace.join("link"));
    }
    let policies = [
        format!("[files]\nread = [\"{home}/.ssh\"]\n"),
        format!("[files]\nread = [\"{home}\"]\n"),
        format!("[files]\nread = [\"{leased}/link\"]\n"),
        format!("[files]\nread = [\"{workspace}/link\"]\n"),
        format!("[files]\nread = [\"{leased}/../.ssh\"]\n"),
        format!("[files]\nwrite = [\"{outside}\"]\n"),
        format!("[files]\nwrite-direct = [\"{outside}\"]\n"),
        "[workspace]\nmode = \"direct\"\n".to_owned(),
        "isolation = \"landlock\"\n".to_owned(),
        "extends = \"coding-agent\"\n[workspace]\nmode = \"direct\"\n".to_owned(),
        format!("extends = \"{home}/ceiling.toml\"\n"),
        "[ceiling]\nchildren = 64\n".to_owned(),
        format!("[ceiling.auto.files]\nread = [\"{home}/.ssh\"]\n"),
    ];
    let asks = format!("{TOOL} ask --read {home}/.ssh; {take}");
    for policy in &policies {
        let words = ["/bin/sh", "-c", &asks];
        try_child(&mut attempts, inside, Some(policy), &words);
    }
    // Without a policy: what the parent has, and no more.
    try_child(&mut attempts, inside, None, &["/bin/sh", "-c", &asks]);
    // The child of a child is measured by the child, and so by the parent.
    let inner = params.workspace.join("inner.toml");
    for policy in policies.iter().filter(|_| plain.is_ok()) {
        let _ = fs::write(&inner, policy);
        let nested = format!(
            "{TOOL} child --policy {} -- /bin/sh -c '{asks}'",
            inner.display()
        );
        try_child(
            &mut attempts,
            inside,
            Some(WITHIN),
            &["/bin/sh", "-c", &nested],
        );
    }
    attempts.read("read the key", params.home.join(".ssh/id_canary"));
    say(inside, "holds");
    hear(inside, "ended");
    attempts.done()
}

/// Opens a child and carries out whatever it printed: what counts is what comes out.
fn try_child(attempts: &mut Attempts, inside: &Inside, policy: Option<&str>, words: &[&str]) {
    match child(inside, policy, words) {
        Ok((answer, output)) => {
            attempts.carry(&output);
            attempts.say(false, answer.chars().take(80).collect::<String>());
        }
        Err(error) => attempts.say(false, format!("no child: {error}")),
    }
}

/// Asks for a child, and waits for its end: the answer, and what it printed.
fn child(inside: &Inside, policy: Option<&str>, words: &[&str]) -> io::Result<(String, Vec<u8>)> {
    let socket = UnixStream::connect(SOCKET)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let (input, empty) = pipe()?;
    drop(empty);
    let (mut printed, output) = pipe()?;
    let mut line = serde_json::json!({ "child": {
        "command": words,
        "cwd": inside.params.workspace,
    }});
    if let Some(policy) = policy {
        line["child"]["policy"] = policy.into();
    }
    let text = format!("{line}\n");
    let descriptors = [input.as_fd(), output.as_fd(), output.as_fd()];
    let mut space = [MaybeUninit::uninit(); packet::ancillary_space(3)];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let message = [IoSlice::new(text.as_bytes())];
    let sent = sendmsg(&socket, &message, &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent < text.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    drop((input, output));
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer)?;
    let mut all = Vec::new();
    printed.read_to_end(&mut all)?;
    Ok((answer, all))
}
