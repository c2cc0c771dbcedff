//! Where the values are.

use crate::order::SecretUses;
use ironcage_model::{HostRule, SecretPlace, SecretSource};
use ironcage_plan::{Item, PlannedSecret};
use std::cell::Cell;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};
use zeroize::{Zeroize as _, Zeroizing};

/// A shorter value could not be told from other text, a longer one is none.
pub(super) const SHORTEST: usize = 8;
const LONGEST: usize = 8192;
/// Bytes of bodies that are held at once while they are looked at, all connections together.
const HELD: usize = 16 << 20;

/// One secret.
pub(crate) struct Secret {
    pub(crate) name: String,
    pub(crate) placeholder: String,
    pub(crate) value: Zeroizing<Vec<u8>>,
    pub(crate) hosts: Vec<HostRule>,
    pub(crate) places: Vec<SecretPlace>,
    /// How often it is still put on requests.
    pub(crate) left: Cell<SecretUses>,
}

impl Secret {
    /// Whether it is put on requests at all.
    pub(crate) fn is_given(&self) -> bool {
        self.left.get() != SecretUses::None
    }

    /// Takes one use. `false` where none is left.
    pub(crate) fn spend(&self) -> bool {
        match self.left.get() {
            SecretUses::Any => true,
            SecretUses::Some(left) if left > 0 => {
                self.left.set(SecretUses::Some(left - 1));
                true
            }
            SecretUses::Some(_) | SecretUses::None => false,
        }
    }
}

/// All secrets of a cage.
#[derive(Default)]
pub(crate) struct Vault {
    pub(crate) secrets: Vec<Secret>,
    pub(super) held: Cell<usize>,
}

/// Room for a body while it is looked at.
pub(crate) struct Room<'a> {
    vault: &'a Vault,
    bytes: usize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let held = self.vault.held.get();
        self.vault.held.set(held.saturating_sub(self.bytes));
    }
}

impl Vault {
    /// Reads every value from where it comes.
    ///
    /// # Errors
    /// Where there is none, or what is there is no secret. Never with a part of it.
    pub(crate) fn load(planned: &[Item<PlannedSecret>]) -> Result<Self, String> {
        let mut secrets = Vec::new();
        for item in planned {
            let rule = &item.what.rule;
            let value =
                read(&rule.from).map_err(|why| format!("the secret {}: {why}", rule.name))?;
            secrets.push(Secret {
                name: rule.name.clone(),
                placeholder: item.what.placeholder.clone(),
                value,
                hosts: rule.hosts.clone(),
                places: rule.places.clone(),
                left: Cell::new(match rule.leased {
                    true => SecretUses::None,
                    false => SecretUses::Any,
                }),
            });
        }
        Ok(Vault {
            secrets,
            held: Cell::new(0),
        })
    }

    /// A lease on a secret begins or ends.
    pub(crate) fn lease(&self, name: &str, uses: SecretUses) {
        for secret in self.secrets.iter().filter(|secret| secret.name == name) {
            secret.left.set(uses);
        }
    }

    /// Room for so many bytes, if there is any.
    pub(crate) fn room(&self, bytes: usize) -> Option<Room<'_>> {
        let held = self.held.get().checked_add(bytes)?;
        (held <= HELD).then(|| {
            self.held.set(held);
            Room { vault: self, bytes }
        })
    }
}

fn read(from: &SecretSource) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut value = Zeroizing::new(match from {
        SecretSource::Env(name) => std::env::var_os(name)
            .ok_or_else(|| format!("there is no variable {name} in your environment"))?
            .into_vec(),
        SecretSource::File(path) => {
            std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?
        }
        SecretSource::Command(command) => {
            let ran = Command::new("/bin/sh")
                .args(["-c", command])
                .stdin(Stdio::null())
                .stderr(Stdio::inherit())
                .output()
                .map_err(|error| format!("its command cannot be run: {error}"))?;
            if !ran.status.success() {
                let mut output = ran.stdout;
                output.zeroize();
                return Err(format!("its command ended with {}", ran.status));
            }
            ran.stdout
        }
    });
    while value.last().is_some_and(u8::is_ascii_whitespace) {
        value.pop();
    }
    if value.iter().any(|byte| !(0x21..0x7f).contains(byte)) {
        return Err("it holds spaces or characters that are no ASCII text".to_owned());
    }
    if !(SHORTEST..=LONGEST).contains(&value.len()) {
        return Err(format!(
            "it has {} characters; a secret has {SHORTEST} to {LONGEST}",
            value.len()
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_files_and_commands_and_errors_do_not_hold_them() {
        let place = std::env::temp_dir().join(format!("secret-{}", std::process::id()));
        std::fs::write(&place, "value-of-file\n").unwrap();
        let from_file = read(&SecretSource::File(place.clone())).unwrap();
        assert_eq!(from_file.as_slice(), b"value-of-file");
        std::fs::write(&place, "short").unwrap();
        let error = read(&SecretSource::File(place.clone())).unwrap_err();
        assert!(!error.contains("short"), "{error}");
        std::fs::remove_file(&place).unwrap();
        assert!(read(&SecretSource::File(place)).is_err());
        let command = |text: &str| read(&SecretSource::Command(text.into()));
        assert_eq!(
            command("echo from-command").unwrap().as_slice(),
            b"from-command"
        );
        assert!(command("exit 3").unwrap_err().contains("exit status: 3"));
        assert!(command("echo two words").is_err());
        assert!(read(&SecretSource::Env("IRONCAGE_NO_SUCH_VARIABLE".into())).is_err());
    }
}
