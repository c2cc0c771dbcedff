//! The flags by which Ironcage is given a network, as its users give one.

use crate::probe::DoorRules;
use crate::stage::DOOR_SECRET;
use crate::stage::allowed::NAME;
use std::ffi::OsString;

/// The flags for rules over the stage's allowed host.
pub(super) fn flags(rules: DoorRules) -> Vec<OsString> {
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
        DoorRules::Reading => flag("--http-allow", format!("GET,HEAD {NAME}/pkg/**")),
        DoorRules::Posting => flag("--http-allow", format!("GET,POST {NAME}/pkg/**")),
        DoorRules::Budget => {
            flag("--allow-host", NAME.to_owned());
            flag(
                "--network-limit",
                format!("bytes-out={}K", DoorRules::BUDGET >> 10),
            );
        }
        DoorRules::Name => flag("--allow-host", NAME.to_owned()),
        DoorRules::Open => {
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
        DoorRules::Secret => {
            flag("--allow-host", NAME.to_owned());
            flag("--secret", format!("{DOOR_SECRET}@{NAME}"));
        }
    }
    words.into_iter().map(OsString::from).collect()
}
