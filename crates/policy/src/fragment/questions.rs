//! The [questions] section of one source.

use super::Check;
use crate::file::QuestionsSection;
use crate::questions::{InvalidKey, QuestionsFragment};
use crate::{Diagnostic, Sourced};
use toml::Spanned;

/// Longest address of a webhook.
const LONGEST: usize = 2048;

impl Check<'_> {
    /// A command that is executed outside, by an absolute path.
    pub(super) fn program(
        &self,
        words: &[Spanned<String>],
        example: &str,
    ) -> Result<Option<Sourced<Vec<String>>>, Diagnostic> {
        let Some(first) = words.first() else {
            return Ok(None);
        };
        if !first.get_ref().starts_with('/') {
            let wrong = self.wrong(
                first,
                "the path of the program is not absolute",
                "not absolute",
            );
            return Err(wrong.remedy(format!("use an absolute path, such as {example:?}")));
        }
        let all = words.iter().map(|word| word.get_ref().clone()).collect();
        Ok(Some(self.sourced(all, first.span())))
    }

    pub(super) fn questions(
        &self,
        section: &QuestionsSection,
    ) -> Result<QuestionsFragment, Diagnostic> {
        let notify = self.program(&section.notify, "/usr/bin/notify-send")?;
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
