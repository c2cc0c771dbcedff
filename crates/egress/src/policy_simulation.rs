//! Simulates a policy: the decision of a plan's proxy on a logged connection.

use crate::decide::{Rules, Target};
use ironcage_model::{HostName, NetworkReason, Protocol, RequestPath, Traffic};
use ironcage_plan::Network;
use std::net::IpAddr;

/// The rule that would let a recorded connection out, or why none would. Where a name leads is
/// known when it is connected to: an address that the rules refuse is not foreseen.
///
/// # Errors
/// The reason.
pub fn simulate(network: &Network, traffic: &Traffic) -> Result<String, NetworkReason> {
    if traffic.protocol == Protocol::Unix {
        let mut sockets = network.sockets.iter();
        let known = sockets.any(|item| item.what.path.as_os_str() == traffic.host.as_str());
        return match known {
            true => Ok(traffic.host.clone()),
            false => Err(NetworkReason::SocketNotAllowed),
        };
    }
    let rules = Rules::of(network);
    let target = match traffic.host.parse::<IpAddr>() {
        Ok(address) => Target::Address(address),
        Err(_) => match HostName::from_ascii(traffic.host.as_bytes()) {
            Ok(name) => Target::Name(name),
            Err(_) => return Err(NetworkReason::NotAHost),
        },
    };
    if let (Protocol::Dns, Target::Name(name)) = (traffic.protocol, &target) {
        let known = rules.knows(name).map_err(|denied| denied.reason);
        return known.map(|()| name.to_string());
    }
    let rule = rules.decide(&target, traffic.port);
    let rule = rule.map_err(|denied| denied.reason)?;
    let Target::Name(name) = &target else {
        return Ok(rule);
    };
    let Some(allowed) = rules.requests(name, traffic.port) else {
        return Ok(rule);
    };
    let request = traffic.request.as_deref().and_then(|r| r.split_once(' '));
    let Some((method, path)) = request else {
        return match traffic.protocol {
            // The record has a line for each of its requests besides.
            Protocol::Http | Protocol::Https => Ok(rule),
            _ => Err(NetworkReason::RequestsNotRecorded),
        };
    };
    let read = RequestPath::read(path);
    let path = read.map_err(|error| NetworkReason::PathAmbiguous {
        error: error.0.to_owned(),
    })?;
    let fits = allowed.iter().find(|rule| rule.allows(method, &path));
    let fits = fits.map(ToString::to_string);
    fits.ok_or_else(|| NetworkReason::RequestNotAllowed {
        request: traffic.request.clone().unwrap_or_default(),
    })
}
