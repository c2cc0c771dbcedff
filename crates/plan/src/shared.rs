//! Resources that a cage shares with others: what one agent does there, another one sees.

use crate::plan::{Access, NodeKind, Plan, ViewOp};

/// Longer lists than any policy has would make the record of a start too long.
const MOST: usize = 32;

impl Plan {
    /// Directories of the host that the cage writes to, and what it reaches through the network
    /// proxy, each with where the policy says so. Everything else that a cage changes is its own.
    pub fn shared(&self) -> Vec<String> {
        let written = self.view.iter().filter_map(|item| match &item.what {
            ViewOp::Bind {
                source,
                access: Access::Write,
                kind: NodeKind::Directory | NodeKind::File,
                ..
            } => Some(format!("{}, written, by {}", source.display(), item.origin)),
            _ => None,
        });
        let network = self.network.iter();
        let hosts = network
            .clone()
            .flat_map(|network| &network.allow)
            .map(|item| {
                let rule = &item.what.rule;
                format!("{rule}, reached, by {}", item.origin)
            });
        let ports = network.flat_map(|network| &network.host_ports).map(|item| {
            format!(
                "port {} of this host, reached, by {}",
                item.what.port, item.origin
            )
        });
        let mut all: Vec<String> = written.chain(hosts).chain(ports).collect();
        if all.len() > MOST {
            let left = all.len() - MOST;
            all.truncate(MOST);
            all.push(format!("and {left} more"));
        }
        all
    }
}
