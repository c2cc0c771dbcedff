//! Switches by which a test build leaves something out of a cage, to show what rests on it.

use crate::Layer;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A layer, or a thing of the launcher's own that stands beside the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Switch {
    /// A layer.
    Layer(Layer),
    /// The environment is an allow-list.
    Environment,
    /// The cage's first process cannot be read or traced by the agent.
    Unreadable,
    /// The cage ends with its launcher: parent-death signal and control socket.
    Tether,
    /// The limit on time.
    Deadline,
}

impl Switch {
    const OTHERS: [Switch; 4] = [
        Switch::Environment,
        Switch::Unreadable,
        Switch::Tether,
        Switch::Deadline,
    ];

    /// Every switch: the layers, then the rest.
    pub fn all() -> impl Iterator<Item = Switch> {
        let layers = Layer::ALL.into_iter().map(Switch::Layer);
        layers.chain(Switch::OTHERS)
    }

    /// The name used in documents and by the test build.
    pub const fn name(self) -> &'static str {
        match self {
            Switch::Layer(layer) => layer.name(),
            Switch::Environment => "environment",
            Switch::Unreadable => "unreadable",
            Switch::Tether => "tether",
            Switch::Deadline => "deadline",
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Switch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A name that is no switch's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSwitch(pub String);

impl fmt::Display for UnknownSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is nothing `{}` to leave out", self.0)
    }
}

impl std::error::Error for UnknownSwitch {}

impl FromStr for Switch {
    type Err = UnknownSwitch;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Switch::all()
            .find(|switch| switch.name() == name)
            .ok_or_else(|| UnknownSwitch(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_is_there_once() {
        for switch in Switch::all() {
            assert_eq!(switch.name().parse(), Ok(switch));
        }
        assert!("nothing".parse::<Switch>().is_err());
    }
}
