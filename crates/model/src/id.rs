//! Ids of cages.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The id of one cage: `c` and twelve characters from 32 that cannot be confused when read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CageId(String);

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const DIGITS: usize = 12;

impl CageId {
    /// Makes an id from random bytes.
    pub fn from_entropy(random: [u8; DIGITS]) -> Self {
        let mut text = String::with_capacity(DIGITS + 1);
        text.push('c');
        text.extend(
            random
                .iter()
                .map(|byte| char::from(ALPHABET[usize::from(byte & 31)])),
        );
        CageId(text)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<CageId> for String {
    fn from(id: CageId) -> Self {
        id.0
    }
}

/// Text that is not the id of a cage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidCageId(pub String);

impl fmt::Display for InvalidCageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a cage id (`c` and twelve letters or digits)",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for InvalidCageId {}

impl TryFrom<String> for CageId {
    type Error = InvalidCageId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let well_formed = text.len() == DIGITS + 1
            && text.starts_with('c')
            && text.bytes().skip(1).all(|byte| ALPHABET.contains(&byte));
        if well_formed {
            Ok(CageId(text))
        } else {
            Err(InvalidCageId(text))
        }
    }
}

impl FromStr for CageId {
    type Err = InvalidCageId;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.to_owned().try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_from_random_bytes_parses_back() {
        let id = CageId::from_entropy([0, 1, 31, 32, 255, 7, 8, 9, 10, 11, 12, 13]);
        assert_eq!(id.as_str().parse::<CageId>(), Ok(id));
    }

    #[test]
    fn a_path_is_not_an_id() {
        assert!("../../etc/pas".parse::<CageId>().is_err());
        assert!("c/../../../..".parse::<CageId>().is_err());
    }
}
