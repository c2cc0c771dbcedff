//! The [questions] section of one source.

use super::Check;
use crate::Diagnostic;
use crate::file::QuestionsSection;
use crate::questions::{InvalidKey, QuestionsFragment};

/// Longest address of a webhook.
const LONGEST: usize = 2048;

impl Check<'_> {
    pub(super) fn questions(
        &self,
        section: &QuestionsSection,
    ) -> Result<QuestionsFragment, Diagnostic> {
        let notify = match section.notify.first() {
            None => None,
            Some(first) => {
                if !first.get_ref().starts_with('/') {
                    return Err(self
                        .wrong(
                            first,
                            "the path of the program is not absolute",
                            "not absolute",
                        )
                        .remedy("use an absolute path, such as \"/usr/bin/notify-send\""));
                }
                let words = section.notify.iter();
                let words = words.map(|word| word.get_ref().clone()).collect();
                Some(self.sourced(words, first.span()))
            }
        };
        Ok(QuestionsFragment {
            expire: self.one(&section.expire, Self::quantity)?,
            remember: self.one(&section.remember, Self::quantity)?,
            key: self.one(&section.key, |this, text| {
                text.get_ref().parse().map_err(|error: InvalidKey| {
                    this.wrong(text, error.to_string(), "not understood")
                        .remedy(
                            "use a key that programs do not need, such as \"ctrl-^\" or \"ctrl-]\"",
                        )
                })
            })?,
            notify,
            webhook: self.one(&section.webhook, |this, text| {
                let address = text.get_ref();
                let web = address.starts_with("https://") || address.starts_with("http://");
                let plain = address.bytes().all(|byte| byte.is_ascii_graphic());
                match web && plain && address.len() <= LONGEST {
                    true => Ok(address.clone()),
                    false => Err(this
                        .wrong(text, "invalid webhook URL", "not understood")
                        .remedy("expected \"https://host/path\"")),
                }
            })?,
        })
    }
}
