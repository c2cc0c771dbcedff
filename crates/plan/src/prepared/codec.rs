//! An own part as bytes. Paths and arguments are bytes that need not be text, so this is not JSON.
//! Origins stay behind: PID 1 explains nothing.

use super::OwnPart;
use crate::plan::{
    Access, Command, HiddenBy, Item, MEMORY, NodeKind, Overlaid, Owner, Variable, ViewOp,
    WriteRights, WriteRule,
};
use crate::view::FIXED_FILES;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

impl OwnPart {
    /// As bytes, with one more text.
    pub fn encode(&self, authority: &str) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(8192));
        out.bytes(authority.as_bytes());
        let Command {
            argv,
            candidates,
            env,
            cwd,
        } = &self.command;
        out.list(argv, |out, word| out.bytes(word.as_bytes()));
        out.list(candidates, |out, path| {
            out.bytes(path.as_os_str().as_bytes());
        });
        out.list(env, |out, item| {
            out.bytes(item.what.name.as_bytes());
            out.bytes(item.what.value.as_bytes());
        });
        out.bytes(cwd.as_os_str().as_bytes());
        out.flag(self.sticky);
        out.list(&self.view, |out, item| out.op(&item.what));
        out.list(&self.write_rules, |out, item| {
            out.bytes(item.what.path.as_os_str().as_bytes());
            out.flag(item.what.rights == WriteRights::Tree);
        });
        out.0
    }

    /// The own part and the text; `None` where the bytes are not exactly what `encode` writes.
    pub fn decode(bytes: &[u8]) -> Option<(OwnPart, String)> {
        let mut from = Reader(bytes);
        let authority = from.text()?;
        let own = OwnPart {
            command: Command {
                argv: from.list(|from| Some(OsString::from_vec(from.bytes()?.to_vec())))?,
                candidates: from.list(Reader::path)?,
                env: from.list(|from| {
                    Some(item(Variable {
                        name: OsString::from_vec(from.bytes()?.to_vec()),
                        value: OsString::from_vec(from.bytes()?.to_vec()),
                    }))
                })?,
                cwd: from.path()?,
            },
            sticky: from.flag()?,
            view: from.list(|from| from.op().map(item))?,
            write_rules: from.list(|from| {
                Some(item(WriteRule {
                    path: from.path()?,
                    rights: match from.flag()? {
                        true => WriteRights::Tree,
                        false => WriteRights::Existing,
                    },
                }))
            })?,
        };
        from.0.is_empty().then_some((own, authority))
    }
}

fn item<T>(what: T) -> Item<T> {
    Item {
        what,
        origin: String::new(),
    }
}

/// Accesses and kinds by their number.
const ACCESSES: [Access; 3] = [Access::Read, Access::Write, Access::Device];
const KINDS: [NodeKind; 2] = [NodeKind::Directory, NodeKind::File];
const HIDDEN_BY: [HiddenBy; 5] = [
    HiddenBy::Credentials,
    HiddenBy::SystemSecret,
    HiddenBy::Ironcage,
    HiddenBy::Policy,
    HiddenBy::Sensitive,
];
const OVERLAID: [Overlaid; 5] = [
    Overlaid::Workspace,
    Overlaid::Git,
    Overlaid::Granted,
    Overlaid::Cache,
    Overlaid::System,
];

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn length(&mut self, length: usize) {
        // What does not fit is more memory than PID 1 would read: it refuses the rest.
        self.number(u32::try_from(length).unwrap_or(u32::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.extend(bytes);
    }

    fn path(&mut self, path: impl AsRef<OsStr>) {
        self.bytes(path.as_ref().as_bytes());
    }

    fn flag(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    fn one_of<T: PartialEq>(&mut self, all: &[T], value: &T) {
        let at = all.iter().position(|one| one == value);
        self.0
            .push(at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX));
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Writer, &T)) {
        self.length(items.len());
        items.iter().for_each(|item| write(self, item));
    }

    fn owner(&mut self, owner: Option<Owner>) {
        self.flag(owner.is_some());
        if let Some(Owner { uid, gid, all }) = owner {
            self.number(uid);
            self.number(gid);
            self.flag(all);
        }
    }

    fn op(&mut self, op: &ViewOp) {
        match op {
            ViewOp::Directory {
                target,
                mode,
                agents,
            } => {
                self.0.push(b'd');
                self.path(target);
                self.number(*mode);
                self.flag(*agents);
            }
            ViewOp::Symlink { target, to } => {
                self.0.push(b'l');
                self.path(target);
                self.path(to);
            }
            ViewOp::File {
                target,
                content,
                mode,
            } => {
                self.0.push(b'f');
                self.path(target);
                self.bytes(content.as_bytes());
                self.number(*mode);
            }
            ViewOp::Authorities {
                target,
                bundles,
                java,
            } => {
                self.0.push(b'a');
                self.path(target);
                self.list(bundles, |out, path| out.path(path));
                self.flag(*java);
            }
            ViewOp::Cover { target, with } => {
                self.0.push(b'c');
                self.path(target);
                self.path(with);
            }
            ViewOp::Ephemeral { target, executable } => {
                self.0.push(b'e');
                self.path(target);
                self.flag(*executable);
            }
            ViewOp::Bind {
                source,
                target,
                access,
                kind,
                owner,
            } => {
                self.0.push(b'b');
                self.path(source);
                self.path(target);
                self.one_of(&ACCESSES, access);
                self.one_of(&KINDS, kind);
                self.owner(*owner);
            }
            ViewOp::Overlay {
                of,
                lower,
                target,
                upper,
                work,
                locked,
                memory,
                owner,
            } => {
                self.0.push(b'o');
                self.one_of(&OVERLAID, of);
                [lower, target, upper, work]
                    .into_iter()
                    .for_each(|path| self.path(path));
                self.flag(*locked);
                self.flag(memory.is_some());
                if let Some(memory) = memory {
                    self.one_of(&MEMORY, memory);
                }
                self.owner(*owner);
            }
            ViewOp::Pin { target, access } => {
                self.0.push(b'p');
                self.path(target);
                self.one_of(&ACCESSES, access);
            }
            ViewOp::Hide { target, kind, by } => {
                self.0.push(b'h');
                self.path(target);
                self.one_of(&KINDS, kind);
                self.one_of(&HIDDEN_BY, by);
            }
            ViewOp::Proc => self.0.push(b'P'),
            ViewOp::MaskProc { target, instead } => {
                self.0.push(b'm');
                self.path(target);
                self.flag(instead.is_some());
                if let Some(instead) = instead {
                    self.one_of(&FIXED_FILES, instead);
                }
            }
            ViewOp::ReadOnlyProc { target } => {
                self.0.push(b'r');
                self.path(target);
            }
            ViewOp::Cgroup => self.0.push(b'g'),
            ViewOp::Terminals => self.0.push(b't'),
            ViewOp::Seal => self.0.push(b's'),
            // A bound plan has none; PID 1 would refuse it.
            ViewOp::Supervisor { .. } => self.0.push(0),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn path(&mut self) -> Option<PathBuf> {
        Some(PathBuf::from(OsStr::from_bytes(self.bytes()?)))
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(usize::from(self.byte()?)).copied()
    }

    fn list<T>(&mut self, mut read: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        let count = self.length()?;
        // Each takes a byte at least: a count that promises more is wrong.
        if count > self.0.len() {
            return None;
        }
        (0..count).map(|_| read(self)).collect()
    }

    fn owner(&mut self) -> Option<Option<Owner>> {
        Some(match self.flag()? {
            false => None,
            true => Some(Owner {
                uid: self.number()?,
                gid: self.number()?,
                all: self.flag()?,
            }),
        })
    }

    fn op(&mut self) -> Option<ViewOp> {
        Some(match self.byte()? {
            b'd' => ViewOp::Directory {
                target: self.path()?,
                mode: self.number()?,
                agents: self.flag()?,
            },
            b'l' => ViewOp::Symlink {
                target: self.path()?,
                to: self.path()?,
            },
            b'f' => ViewOp::File {
                target: self.path()?,
                content: self.text()?,
                mode: self.number()?,
            },
            b'a' => ViewOp::Authorities {
                target: self.path()?,
                bundles: self.list(Reader::path)?,
                java: self.flag()?,
            },
            b'c' => ViewOp::Cover {
                target: self.path()?,
                with: self.path()?,
            },
            b'e' => ViewOp::Ephemeral {
                target: self.path()?,
                executable: self.flag()?,
            },
            b'b' => ViewOp::Bind {
                source: self.path()?,
                target: self.path()?,
                access: self.one_of(&ACCESSES)?,
                kind: self.one_of(&KINDS)?,
                owner: self.owner()?,
            },
            b'o' => ViewOp::Overlay {
                of: self.one_of(&OVERLAID)?,
                lower: self.path()?,
                target: self.path()?,
                upper: self.path()?,
                work: self.path()?,
                locked: self.flag()?,
                memory: match self.flag()? {
                    true => Some(self.one_of(&MEMORY)?),
                    false => None,
                },
                owner: self.owner()?,
            },
            b'p' => ViewOp::Pin {
                target: self.path()?,
                access: self.one_of(&ACCESSES)?,
            },
            b'h' => ViewOp::Hide {
                target: self.path()?,
                kind: self.one_of(&KINDS)?,
                by: self.one_of(&HIDDEN_BY)?,
            },
            b'P' => ViewOp::Proc,
            b'm' => ViewOp::MaskProc {
                target: self.path()?,
                instead: match self.flag()? {
                    true => Some(self.one_of(&FIXED_FILES)?),
                    false => None,
                },
            },
            b'r' => ViewOp::ReadOnlyProc {
                target: self.path()?,
            },
            b'g' => ViewOp::Cgroup,
            b't' => ViewOp::Terminals,
            b's' => ViewOp::Seal,
            _ => return None,
        })
    }
}
