//! What somebody who has taken the egress proxy over could reach: the containment suite, run in a
//! process that is confined as the proxy's is.

use ironcage_tests::{Running, Who, both};
use serde_json::Value;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);

/// Files, descriptors, processes, sockets of the host, addresses, secrets, system calls.
const STOPPED: [&str; 32] = [
    "FS-01", "FS-02", "FS-21", "FD-01", "FD-03", "FD-05", "FD-06", "PR-01", "PR-02", "PR-03",
    "PR-04", "PR-05", "PR-06", "PR-07", "IP-01", "IP-01d", "IP-02", "IP-02d", "IP-03", "IP-04",
    "IP-06", "NE-01", "NE-02", "NE-03", "NE-06", "SE-01", "SE-06", "SU-03", "SU-06", "SY-01",
    "SY-07", "SY-14",
];
/// What the proxy is for: it asks the host's resolvers, and so could whoever has it.
const OPEN: &str = "NE-04";

both! {
    fn who_takes_the_proxy_over_reaches_nothing_of_the_host_but_its_resolver(stage) {
        let mut command = stage.ironcage(["probe", "run", "--json", "--against", "ironcage-egress"]);
        command.args(STOPPED).arg(OPEN);
        if stage.who() == Who::Root {
            // The suite puts its own over it, in a mount namespace of its own.
            command.env("HOME", "/root");
        }
        let ran = Running::start(&mut command).finish(DEADLINE);
        let found: Value = serde_json::from_slice(&ran.bytes).unwrap_or_else(|_| panic!("{ran:?}"));
        let rows = found["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), STOPPED.len() + 1);
        for row in rows {
            let id = row["id"].as_str().expect("an id");
            let wanted = if id == OPEN { "escaped" } else { "blocked" };
            assert_eq!(row["verdict"], wanted, "{row}");
        }
    }
}
