//! The flags by which Ironcage is given a network, as its users give one.

use crate::probe::ProxyRules;
use crate::stage::allowed::NAME;
use crate::stage::{PROXY_SECRET, echo, upstream};
use std::ffi::OsString;

/// The flags for rules over the stage's allowed host.
pub(super) fn flags(rules: ProxyRules) -> Vec<OsString> {
    if rules == ProxyRules::Upstream {
        // The upstream proxy knows where the name leads.
        let port = upstream::PORT.to_string();
        let words = ["--allow-host", NAME, "--allow-host-port", &port];
        return words.map(OsString::from).into();
    }
    // Where the name leads: loopback, which has to be named beside it.
    let mut words: Vec<String> = vec![
        "--resolve".into(),
        format!("{NAME}=127.0.0.1"),
        "--allow-host".into(),
        "127.0.0.1:80".into(),
        "--allow-host".into(),
        "127.0.0.1:443".into(),
    ];
    let mut flag = |name: &str, value: String| words.extend([name.to_owned(), value]);
    match rules {
        ProxyRules::Upstream => {}
        ProxyRules::Reading => flag("--http-allow", format!("GET,HEAD {NAME}/pkg/**")),
        ProxyRules::Posting => flag("--http-allow", format!("GET,POST {NAME}/pkg/**")),
        ProxyRules::Budget => {
            flag("--allow-host", NAME.to_owned());
            flag(
                "--network-limit",
                format!("bytes-out={}K", ProxyRules::BUDGET >> 10),
            );
        }
        ProxyRules::Name => flag("--allow-host", NAME.to_owned()),
        ProxyRules::Open => {
            flag("--allow-host", NAME.to_owned());
            flag("--network", "open".to_owned());
            // Names of the internet that lead inwards.
            for (name, address) in [
                ("rebound.test", "169.254.169.254"),
                ("rebound6.test", "fd00:ec2::254"),
                ("metadata.google.internal", "169.254.169.254"),
                ("inward.test", "127.0.0.1"),
            ] {
                flag("--resolve", format!("{name}={address}"));
            }
        }
        ProxyRules::Secret => {
            flag("--allow-host", NAME.to_owned());
            flag("--secret", format!("{PROXY_SECRET}@{NAME}"));
        }
        ProxyRules::Echo => {
            // Without TLS a secret goes to a named port of the host's own and nowhere else.
            let port = echo::PORT;
            flag("--allow-host", NAME.to_owned());
            flag("--allow-host", format!("{NAME}:{port}"));
            flag("--allow-host", format!("127.0.0.1:{port}"));
            flag("--allow-host-port", port.to_string());
            flag(
                "--secret",
                format!("{PROXY_SECRET}@http://host.ironcage:{port}"),
            );
        }
    }
    words.into_iter().map(OsString::from).collect()
}
