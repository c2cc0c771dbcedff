//! Bundles of hosts that a policy names in one word.

pub use ironcage_catalog::bundles::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_of_a_bundle_is_one_in_its_normal_form() {
        for bundle in ENTRIES {
            for host in bundle.hosts {
                let rule = crate::allowed(host).unwrap();
                assert_eq!(rule.to_string(), *host, "{}", bundle.name);
            }
        }
        assert!(find("github").is_some() && find("nothing").is_none());
    }

    #[test]
    fn every_bundle_of_a_command_exists() {
        for entry in crate::commands::ENTRIES {
            for name in entry.bundles {
                assert!(find(name).is_some(), "{}: {name}", entry.command);
            }
        }
    }
}
