//! Paths outside the workspace that need an explicit flag (`--i-know`): secrets, directories of
//! the whole system, and for writing everything that the host itself executes. The lists are
//! `policies/guarded.toml`, `credentials.toml` and `protected.toml`.

use crate::Request;
use crate::plan::Access;
use ironcage_host::{HostFiles, NodeType};
use ironcage_policy::{Listed, credentials, guarded, protected};
use std::path::{Component, Path, PathBuf};

/// The caller's home directory, and those of others that are known.
pub(crate) fn known_homes(request: &Request) -> Vec<PathBuf> {
    let own = std::iter::once(&request.home);
    own.chain(&request.other_homes).cloned().collect()
}

/// Home directories that matter for a path: those that are known, and the one that the path
/// itself lies in.
pub(crate) fn homes(known: &[PathBuf], path: &Path) -> Vec<PathBuf> {
    let mut homes = known.to_vec();
    if path.starts_with("/root") {
        homes.push("/root".into());
    }
    if let Ok(rest) = path.strip_prefix("/home")
        && let Some(Component::Normal(name)) = rest.components().next()
    {
        homes.push(Path::new("/home").join(name));
    }
    homes.dedup();
    homes
}

/// Why a path is given only by an explicit word.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) why: String,
    /// Whether parts of it need none.
    pub(crate) parts_are_free: bool,
}

/// Why a path is given only by an explicit word, or nothing if it needs none.
pub(crate) fn why(known: &[PathBuf], path: &Path, access: Access) -> Option<Guard> {
    let whole = |why: &str| {
        let (why, parts_are_free) = (why.to_owned(), true);
        Some(Guard {
            why,
            parts_are_free,
        })
    };
    let homes = homes(known, path);
    let of = |entry: &Listed| -> Vec<PathBuf> {
        match entry.path.strip_prefix("~/") {
            Some(rest) => homes.iter().map(|home| home.join(rest)).collect(),
            None => vec![entry.path.into()],
        }
    };
    let in_homes = |entry: &Listed| -> Vec<PathBuf> {
        homes.iter().map(|home| home.join(entry.path)).collect()
    };
    let find = |list: &'static [Listed],
                places: &dyn Fn(&Listed) -> Vec<PathBuf>,
                hit: &dyn Fn(&Path) -> bool| {
        list.iter()
            .find(|entry| places(entry).iter().any(|place| hit(place)))
    };
    let in_it = |place: &Path| path.starts_with(place);
    if let Some(entry) = find(credentials::ENTRIES, &in_homes, &in_it)
        .or_else(|| find(guarded::SECRETS, &of, &in_it))
    {
        return Some(Guard {
            why: format!("it contains secrets: {}", entry.why),
            parts_are_free: false,
        });
    }
    if homes.iter().any(|home| home == path) {
        return whole("it is a home directory, with keys and settings");
    }
    if homes.iter().any(|home| home.starts_with(path)) {
        return whole("it contains a home directory");
    }
    let is_it = |place: &Path| place == path;
    if let Some(entry) = find(guarded::WHOLE, &of, &is_it) {
        // For writing, what is in it may be guarded as well.
        let parts_are_free =
            access != Access::Write || find(guarded::EXECUTED, &of, &in_it).is_none();
        return Some(Guard {
            why: entry.why.into(),
            parts_are_free,
        });
    }
    if access != Access::Write {
        return None;
    }
    let around = |place: &Path| path.starts_with(place) || place.starts_with(path);
    let executed = find(guarded::EXECUTED, &of, &around)
        .or_else(|| find(protected::ENTRIES, &in_homes, &around))?;
    Some(Guard {
        why: format!(
            "the host would execute or trust files written there ({}: {})",
            executed.path, executed.why
        ),
        parts_are_free: false,
    })
}

/// The same for what a link in the place of a home directory's credentials leads to: a secret
/// is one under its other name too.
pub(crate) fn behind_link(files: &dyn HostFiles, known: &[PathBuf], path: &Path) -> Option<Guard> {
    for home in homes(known, path) {
        for entry in credentials::ENTRIES {
            let named = home.join(entry.path);
            let is_link = files
                .node(&named)
                .is_some_and(|node| node.kind == NodeType::Symlink);
            if is_link && files.real(&named).is_ok_and(|real| path.starts_with(real)) {
                return Some(Guard {
                    why: format!(
                        "{} points there and contains secrets: {}",
                        named.display(),
                        entry.why
                    ),
                    parts_are_free: false,
                });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(path: &str, access: Access) -> bool {
        let homes = ["/home/ann".into(), "/data/homes/bob".into()];
        why(&homes, Path::new(path), access).is_some()
    }

    #[test]
    fn secrets_are_guarded_in_every_home_and_what_lies_beside_them_is_not() {
        for secret in [
            "/home/ann/.ssh",
            "/home/ann/.ssh/id_ed25519",
            "/home/eve/.aws/credentials",
            "/root/.netrc",
            "/data/homes/bob/.gnupg",
            "/etc/shadow",
            "/etc/ssl/private/key.pem",
        ] {
            assert!(guarded(secret, Access::Read), "{secret}");
            assert!(guarded(secret, Access::Write), "{secret}");
        }
        for open in [
            "/home/ann/.sshx",
            "/home/ann/notes",
            "/etc/hosts",
            "/etc/ssl/certs",
            "/srv/.ssh",
        ] {
            assert!(!guarded(open, Access::Read), "{open}");
        }
    }

    #[test]
    fn the_directories_of_all_are_guarded_as_a_whole_and_their_parts_are_not() {
        for whole in [
            "/etc",
            "/home",
            "/home/ann",
            "/home/eve",
            "/root",
            "/run",
            "/var",
            "/tmp",
            "/data",
        ] {
            assert!(guarded(whole, Access::Read), "{whole}");
        }
        for part in [
            "/home/eve/shared",
            "/var/www",
            "/tmp/build",
            "/usr",
            "/opt",
            "/srv",
        ] {
            assert!(!guarded(part, Access::Read), "{part}");
        }
    }

    #[test]
    fn what_the_host_executes_is_guarded_against_writing_alone() {
        for executed in [
            "/usr/local",
            "/opt/tool",
            "/home/ann/.bashrc",
            "/home/ann/.config",
            "/home/ann/.local",
            "/home/ann/.local/bin",
        ] {
            assert!(guarded(executed, Access::Write), "{executed}");
            assert!(!guarded(executed, Access::Read), "{executed}");
        }
        for open in [
            "/home/ann/other",
            "/home/ann/.local/share/app",
            "/srv/data",
            "/var/www",
        ] {
            assert!(!guarded(open, Access::Write), "{open}");
        }
    }
}
