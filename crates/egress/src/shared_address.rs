//! Rules over names, where a name is not what a connection is for: an address that is such a
//! name's, or another name at the same server.
//!
//! It goes by what names lead to now, and by the names that rules write out; behind a pattern
//! there are names that nobody here knows.

use crate::decide::{Denied, Rules};
use crate::resolve::{Resolver, Unresolved};
use ironcage_model::{HostName, NetworkReason};
use std::net::IpAddr;

/// Whether an address may be reached as such: not where it is that of a name which a rule denies,
/// or which gets some requests only.
pub(crate) async fn not_bound(
    rules: &Rules,
    resolver: &Resolver,
    address: IpAddr,
    port: u16,
) -> Result<(), Denied> {
    for name in rules.bound(port) {
        match resolver.addresses(&name).await {
            Ok(found) if holds(&found, address) => {
                let name = name.to_string();
                return Err(Denied::because(NetworkReason::AddressShared { name }));
            }
            Ok(_) | Err(Unresolved::NoSuchName) => {}
            Err(Unresolved::NoAnswer) => {
                let name = name.to_string();
                return Err(Denied::because(NetworkReason::AddressSharingUnknown {
                    name,
                }));
            }
        }
    }
    Ok(())
}

/// Whether a name leads to where one does that gets some requests only: then the server would
/// take requests for that one in TLS which is for this one.
pub(crate) async fn is_beside_ruled(
    rules: &Rules,
    resolver: &Resolver,
    name: &HostName,
    port: u16,
) -> bool {
    let ruled = rules.ruled(port);
    if ruled.is_empty() {
        return false;
    }
    // Without an address of its own it leads nowhere.
    let Ok(own) = resolver.addresses(name).await else {
        return false;
    };
    for other in ruled {
        if let Ok(found) = resolver.addresses(&other).await
            && own.iter().any(|address| holds(&found, *address))
        {
            return true;
        }
    }
    false
}

fn holds(addresses: &[IpAddr], address: IpAddr) -> bool {
    let mut known = addresses.iter().map(IpAddr::to_canonical);
    known.any(|known| known == address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        HostName::from_ascii(text.as_bytes()).unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    fn resolver() -> Resolver {
        let known = [
            ("api.test", "11.0.0.2"),
            ("same.test", "11.0.0.2"),
            ("other.test", "11.0.0.3"),
            ("bad.test", "11.0.0.4"),
        ];
        Resolver::of_known(known.map(|(known, at)| (name(known), address(at))))
    }

    #[test]
    fn an_address_of_a_name_with_rules_is_not_reached_as_an_address() {
        let rules = Rules::of_requests(vec!["GET api.test/pub/**".parse().unwrap()]);
        rules.deny_for_test("bad.test:*".parse().unwrap());
        let resolver = resolver();
        let reached = |text: &str, port| {
            wait(not_bound(&rules, &resolver, address(text), port)).map_err(|denied| denied.reason)
        };
        let denied = reached("11.0.0.2", 443).unwrap_err();
        let name = "api.test".to_owned();
        assert_eq!(denied, NetworkReason::AddressShared { name });
        assert!(reached("::ffff:11.0.0.2", 443).is_err());
        assert!(reached("11.0.0.4", 22).is_err());
        // Another port of the name has no rules over it, another address is nobody's.
        assert!(reached("11.0.0.2", 22).is_ok());
        assert!(reached("11.0.0.3", 443).is_ok());
    }

    #[test]
    fn a_name_beside_one_with_rules_over_requests_is_known() {
        let rules = Rules::of_requests(vec!["GET api.test/pub/**".parse().unwrap()]);
        let resolver = resolver();
        let beside = |text: &str, port| wait(is_beside_ruled(&rules, &resolver, &name(text), port));
        assert!(beside("same.test", 443));
        assert!(!beside("same.test", 8443));
        assert!(!beside("other.test", 443));
    }
}
