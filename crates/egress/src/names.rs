//! Addresses that stand for names in the cage. They lead nowhere but to the proxy, which
//! knows by them which name was meant.

use ironcage_model::HostName;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Names below a wildcard that a cage can ask for before it gets no more: each costs the proxy
/// memory.
const MOST: usize = 4096;
/// And names that a rule has itself, besides: the agent does not choose those, and junk below a
/// wildcard does not keep them from having an address.
const MOST_EXACT: usize = 4096;

/// First address of 198.18.0.0/15 that stands for a name; those before it are the cage's own.
const FIRST_V4: u32 = 0xc612_0100;
const LAST_V4: u32 = 0xc613_ffff;
/// The IPv6 addresses that stand for names are these with the number at the end.
const PREFIX_V6: u128 = 0xfd69_726f_6e63_0001_0000_0000_0000_0000;

/// Which address stands for which name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    list: Vec<HostName>,
    numbers: HashMap<HostName, u32>,
    /// How many of them a rule has itself.
    exact: usize,
}

impl Names {
    /// The addresses of a name, which a rule has itself or not; `None` when there are too many
    /// names of that kind.
    pub(crate) fn addresses(
        &mut self,
        name: &HostName,
        exact: bool,
    ) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let full = match exact {
            true => self.exact >= MOST_EXACT,
            false => self.list.len() - self.exact >= MOST,
        };
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if full => return None,
            None => {
                self.exact += usize::from(exact);
                let number = self.list.len() as u32;
                self.list.push(name.clone());
                self.numbers.insert(name.clone(), number);
                number
            }
        };
        Some((
            Ipv4Addr::from_bits(FIRST_V4 + number),
            Ipv6Addr::from_bits(PREFIX_V6 | u128::from(number)),
        ))
    }

    /// The name that an address stands for. `None` for one that stands for none, `Some(None)`
    /// for one that could, but does not.
    pub(crate) fn name(&self, address: IpAddr) -> Option<Option<&HostName>> {
        let number = match address {
            IpAddr::V4(four) => {
                let bits = four.to_bits();
                if !(FIRST_V4..=LAST_V4).contains(&bits) {
                    return None;
                }
                bits - FIRST_V4
            }
            IpAddr::V6(six) => {
                let number = six.to_bits() ^ PREFIX_V6;
                if number >> 64 != 0 {
                    return None;
                }
                u32::try_from(number).unwrap_or(u32::MAX)
            }
        };
        Some(self.list.get(number as usize))
    }
}

/// Whether an address can stand for a name in a cage.
pub fn stands_for_a_name(address: IpAddr) -> bool {
    Names::default().name(address).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_addresses_and_they_lead_back_to_it() {
        let mut names = Names::default();
        let name = |text: &str| HostName::from_ascii(text.as_bytes()).unwrap();
        let (four, six) = names.addresses(&name("a.com"), true).unwrap();
        let (other, _) = names.addresses(&name("b.com"), false).unwrap();
        assert_ne!(four, other);
        assert_eq!(names.addresses(&name("a.com"), true), Some((four, six)));
        assert_eq!(names.name(four.into()), Some(Some(&name("a.com"))));
        assert_eq!(names.name(six.into()), Some(Some(&name("a.com"))));
        assert_eq!(names.name("198.18.9.9".parse().unwrap()), Some(None));
        assert_eq!(
            names.name("fd69:726f:6e63:1::ffff".parse().unwrap()),
            Some(None)
        );
        assert_eq!(names.name("198.18.0.1".parse().unwrap()), None);
        assert_eq!(names.name("198.20.0.0".parse().unwrap()), None);
        assert_eq!(names.name("fd69:726f:6e63::1".parse().unwrap()), None);
        assert_eq!(names.name("1.1.1.1".parse().unwrap()), None);
    }

    #[test]
    fn there_is_an_end_to_names() {
        let mut names = Names::default();
        let name =
            |number: usize| HostName::from_ascii(format!("n{number}.com").as_bytes()).unwrap();
        for number in 0..MOST {
            assert!(names.addresses(&name(number), false).is_some());
        }
        assert!(names.addresses(&name(MOST), false).is_none());
        assert!(names.addresses(&name(0), false).is_some());
    }

    #[test]
    fn junk_below_a_wildcard_leaves_room_for_names_that_rules_have() {
        let mut names = Names::default();
        let name =
            |number: usize| HostName::from_ascii(format!("n{number}.com").as_bytes()).unwrap();
        for number in 0..10 * MOST {
            names.addresses(&name(number), false);
        }
        let exact = HostName::from_ascii(b"api.example.com").unwrap();
        let (four, _) = names.addresses(&exact, true).unwrap();
        assert_eq!(names.name(four.into()), Some(Some(&exact)));
        // They have an end, too.
        for number in 0..10 * MOST_EXACT {
            let name = HostName::from_ascii(format!("e{number}.com").as_bytes()).unwrap();
            names.addresses(&name, true);
        }
        assert_eq!(names.list.len(), MOST + MOST_EXACT);
        let last = FIRST_V4 as usize + names.list.len();
        assert!(last <= LAST_V4 as usize);
    }
}
