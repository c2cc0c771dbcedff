//! The files in `/etc` that are generated for the cage.

use crate::Request;
use crate::identity::{git, ssh};
use crate::network::Network;
use crate::plan::Identity;
use crate::signing::Signing;
use ironcage_policy::Policy;

/// The content of one synthesised file, or `None` when it is a link or unknown here.
pub(crate) fn content(
    name: &str,
    (identity, network, signing): (&Identity, Option<&Network>, Option<&Signing>),
    policy: &Policy,
    request: &Request,
) -> Option<String> {
    let home = request.home.display();
    let hostname = &policy.hostname.value;
    let (agent, group) = (identity.uid, identity.gid);
    Some(match name {
        "passwd" if agent == 0 => format!(
            "root:x:0:0:root:{home}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "passwd" => format!(
            "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{agent}:{group}:agent:{home}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group" if agent == 0 => "root:x:0:\nnogroup:x:65534:\n".into(),
        "group" => format!("root:x:0:\ntty:x:5:\nagent:x:{group}:\nnogroup:x:65534:\n"),
        "hosts" => format!(
            "127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost ip6-loopback {hostname}\n"
        ),
        "resolv.conf" if policy.network.is_given() => {
            "# The egress proxy resolves the names that the policy allows.\nnameserver 198.18.0.1\n".into()
        }
        "resolv.conf" => "# This cage has no network. This resolver says of every name that it does not exist.\nnameserver 127.0.0.53\n".into(),
        "nsswitch.conf" => "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n".into(),
        "hostname" => format!("{hostname}\n"),
        "machine-id" => format!("{}\n", "0".repeat(32)),
        "gitconfig" => {
            let given = policy.git_identity.value;
            let settings = if given { request.git.as_slice() } else { &[] };
            let secrets = network.map_or(&[][..], |network| &network.secrets);
            let signing = signing.map_or("", |signing| signing.git.as_str());
            let config = git::config(settings, &request.workspace, !signing.is_empty());
            config + &git::credentials(secrets) + signing
        }
        "ssh/ssh_config" => ssh::config(),
        "ssh/ssh_known_hosts" => ssh::known_hosts_file(&request.known_hosts, network),
        _ => return None,
    })
}
