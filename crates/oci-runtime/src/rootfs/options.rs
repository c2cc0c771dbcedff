//! The words of a mount in `config.json`.

use crate::error::Error;
use crate::spec::Mount;
use ironcage_sys::mount::MountAttributes as A;

/// How mount events pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Propagation {
    pub(crate) kind: Kind,
    pub(crate) recursive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Private,
    Slave,
    Shared,
}

/// What the words of a mount say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) set: A,
    pub(crate) clear: A,
    /// The same with all mounts below.
    pub(crate) set_all: A,
    pub(crate) clear_all: A,
    pub(crate) bind: bool,
    pub(crate) recursive: bool,
    /// Files that the image has there are copied into the tmpfs.
    pub(crate) copy_up: bool,
    pub(crate) propagation: Option<Propagation>,
    /// The file system's own.
    pub(crate) data: Vec<(String, Option<String>)>,
}

/// Attributes with the word that sets and the word that clears each.
const ATTRIBUTES: [(&str, &str, A); 6] = [
    ("ro", "rw", A::READ_ONLY),
    ("nosuid", "suid", A::NO_SUID),
    ("nodev", "dev", A::NO_DEVICES),
    ("noexec", "exec", A::NO_EXEC),
    ("nodiratime", "diratime", A::NO_DIRECTORY_ACCESS_TIME),
    ("nosymfollow", "symfollow", A::NO_LINKS),
];

pub(crate) fn propagation(word: &str) -> Option<Propagation> {
    let (name, recursive) = match word.strip_prefix('r') {
        Some(name) => (name, true),
        None => (word, false),
    };
    let kind = match name {
        "private" => Kind::Private,
        "slave" => Kind::Slave,
        "shared" => Kind::Shared,
        _ => return None,
    };
    Some(Propagation { kind, recursive })
}

pub(crate) fn parse(mount: &Mount) -> Result<Options, Error> {
    let mut options = Options::default();
    for word in &mount.options {
        attribute(&mut options, word);
        match word.as_str() {
            "bind" => options.bind = true,
            "rbind" => (options.bind, options.recursive) = (true, true),
            "tmpcopyup" => options.copy_up = true,
            "noatime" => time(&mut options, A::NO_ACCESS_TIME),
            "strictatime" => time(&mut options, A::STRICT_ACCESS_TIME),
            "relatime" => time(&mut options, A::NONE),
            // Of the whole file system, which a bind is not to change.
            "defaults" | "remount" | "atime" | "norelatime" | "nostrictatime" => {}
            "loud" | "silent" | "nomand" | "mand" | "noiversion" | "iversion" | "async" => {}
            "unbindable" | "runbindable" => {
                return Err(refuse(
                    mount,
                    "unbindable mounts are not supported by this runtime",
                ));
            }
            "idmap" | "ridmap" => {
                return Err(refuse(
                    mount,
                    "idmapped mounts are not supported by this runtime",
                ));
            }
            word if is_attribute(word) => {}
            word => match (propagation(word), word.split_once('=')) {
                (Some(how), _) => options.propagation = Some(how),
                (None, Some((name, value))) => {
                    options.data.push((name.to_owned(), Some(value.to_owned())));
                }
                (None, None) => options.data.push((word.to_owned(), None)),
            },
        }
    }
    if mount.kind == "bind" {
        options.bind = true;
    }
    // A bind has the file system's options already.
    if options.bind {
        options.data.clear();
    }
    Ok(options)
}

fn refuse(mount: &Mount, why: &str) -> Error {
    Error::refused(format!("mount {}", mount.destination.display()), why)
}

fn time(options: &mut Options, how: A) {
    options.clear = options.clear.with(A::ACCESS_TIMES);
    options.set = options.set.without(A::ACCESS_TIMES).with(how);
}

fn is_attribute(word: &str) -> bool {
    ATTRIBUTES.iter().any(|(set, clear, _)| {
        let recursive = word.strip_prefix('r');
        [*set, *clear].contains(&word)
            || recursive.is_some_and(|word| [*set, *clear].contains(&word))
    })
}

/// Later words win.
fn attribute(options: &mut Options, word: &str) {
    for (set, clear, what) in ATTRIBUTES {
        if word == set {
            options.set = options.set.with(what);
            options.clear = options.clear.without(what);
        } else if word == clear {
            options.clear = options.clear.with(what);
            options.set = options.set.without(what);
        } else if word.strip_prefix('r') == Some(set) {
            options.set_all = options.set_all.with(what);
        } else if word.strip_prefix('r') == Some(clear) {
            options.clear_all = options.clear_all.with(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(kind: &str, words: &[&str]) -> Result<Options, Error> {
        parse(&Mount {
            kind: kind.into(),
            options: words.iter().map(|word| (*word).to_owned()).collect(),
            ..Mount::default()
        })
    }

    #[test]
    fn later_words_win_and_data_stays_apart() {
        let made = parsed(
            "tmpfs",
            &["ro", "nosuid", "rw", "size=64k", "mode=755", "nr_inodes=4"],
        )
        .unwrap();
        assert!(made.set.has(A::NO_SUID) && !made.set.has(A::READ_ONLY));
        assert!(made.clear.has(A::READ_ONLY));
        assert_eq!(made.data.len(), 3);
        let made = parsed("bind", &["rbind", "rprivate", "rro", "size=1"]).unwrap();
        assert!(made.bind && made.recursive && made.data.is_empty());
        assert!(made.set_all.has(A::READ_ONLY));
        let expected = Propagation {
            kind: Kind::Private,
            recursive: true,
        };
        assert_eq!(made.propagation, Some(expected));
        assert!(parsed("bind", &["idmap"]).is_err());
    }
}
