//! Every probe, in the order of the report.

use crate::classes;
use crate::probe::{Class, Probe};

/// A word that names neither a probe nor a class.
#[derive(Debug, thiserror::Error)]
#[error("unknown probe or class `{0}`; `ironcage probe list` lists them")]
pub struct UnknownProbe(pub String);

pub fn probes() -> impl Iterator<Item = &'static Probe> {
    classes::ALL.iter().flat_map(|class| class.iter())
}

/// The probe with this id, whatever the case.
pub fn find(id: &str) -> Option<&'static Probe> {
    probes().find(|probe| probe.id.eq_ignore_ascii_case(id))
}

/// The probes that these words name: ids or classes; all of them if there is no word.
pub fn select(words: &[String]) -> Result<Vec<&'static Probe>, UnknownProbe> {
    let mut chosen: Vec<&'static Probe> = Vec::new();
    for word in words {
        let class = Class::ALL
            .iter()
            .find(|class| class.prefix().eq_ignore_ascii_case(word));
        match (find(word), class) {
            (Some(probe), _) => chosen.push(probe),
            (None, Some(class)) => chosen.extend(probes().filter(|probe| probe.class == *class)),
            (None, None) => return Err(UnknownProbe(word.clone())),
        }
    }
    if words.is_empty() {
        chosen.extend(probes());
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Kind;

    #[test]
    fn ids_are_unique_and_begin_with_their_class() {
        let mut seen = std::collections::BTreeSet::new();
        for probe in probes() {
            assert!(probe.id.starts_with(probe.class.prefix()), "{}", probe.id);
            assert!(seen.insert(probe.id), "{} twice", probe.id);
            assert!(!probe.layers.is_empty(), "{} names no layer", probe.id);
            assert!(
                !probe.title.is_empty() && !probe.canary.is_empty(),
                "{}",
                probe.id
            );
        }
    }

    #[test]
    fn only_surfaces_are_accepted_open() {
        for entry in crate::accepted::SURFACES {
            let probe = find(entry.id).unwrap();
            assert_eq!(probe.kind, Kind::Surface, "{}", entry.id);
        }
    }

    #[test]
    fn a_class_selects_all_of_its_probes_and_an_unknown_word_is_refused() {
        let all = select(&["fs".to_owned()]).unwrap();
        assert!(all.len() > 10 && all.iter().all(|probe| probe.class == Class::Fs));
        assert!(select(&["XX-99".to_owned()]).is_err());
    }
}
