//! The keys section of a policy file: checked, with the position of every value.

use super::Check;
use crate::Diagnostic;
use crate::file::KeysSection;
use crate::network::InvalidHostRule;
use crate::signing_keys::{SigningKeysFragment, sign_key, ssh_key};
use std::path::PathBuf;
use toml::Spanned;

impl Check<'_> {
    pub(super) fn keys(&self, section: &KeysSection) -> Result<SigningKeysFragment, Diagnostic> {
        Ok(SigningKeysFragment {
            ssh: self.each(&section.ssh, |this, text| this.key(text, ssh_key))?,
            sign: self.each(&section.sign, |this, text| this.key(text, sign_key))?,
            confirm: self.one(&section.confirm, |_, value| Ok(*value.get_ref()))?,
        })
    }

    fn key<T>(
        &self,
        text: &Spanned<String>,
        read: impl Fn(&str, &dyn Fn(&str) -> PathBuf) -> Result<T, InvalidHostRule>,
    ) -> Result<T, Diagnostic> {
        let invalid = std::cell::RefCell::new(None);
        let found = read(text.get_ref(), &|path| {
            let spanned = Spanned::new(text.span(), path.to_owned());
            self.path(&spanned).unwrap_or_else(|diagnostic| {
                invalid.replace(Some(diagnostic));
                PathBuf::new()
            })
        });
        if let Some(diagnostic) = invalid.take() {
            return Err(diagnostic);
        }
        found.map_err(|error| {
            let title = format!("cannot parse `{}`", error.text.escape_debug());
            self.wrong(text, title, "not understood")
                .remedy(error.remedy)
        })
    }
}
