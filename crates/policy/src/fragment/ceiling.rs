//! The ceiling of one source: the same paths as in the base, in three parts.

use super::Check;
use crate::Diagnostic;
use crate::ceiling::{CeilingFragment, CeilingPath};
use crate::file::CeilingSection;
use ironcage_model::{Holders, Mark, Right};

impl Check<'_> {
    pub(super) fn ceiling(&self, section: &CeilingSection) -> Result<CeilingFragment, Diagnostic> {
        let mut paths = Vec::new();
        for (mark, part) in [
            (Mark::Auto, &section.auto),
            (Mark::Ask, &section.ask),
            (Mark::Deny, &section.deny),
        ] {
            for (right, list) in [
                (Right::Read, &part.files.read),
                (Right::Write, &part.files.write),
            ] {
                paths.extend(self.each(list, |this, text| {
                    let path = this.path(text)?;
                    Ok(CeilingPath { path, right, mark })
                })?);
            }
        }
        Ok(CeilingFragment {
            longest: self.one(&section.longest, Self::quantity)?,
            grace: self.one(&section.grace, Self::quantity)?,
            holders: self.one(&section.holders, |this, text| {
                let kinds = [Holders::Kill, Holders::Keep];
                let name = this.name_of(text, "way with holders", &kinds.map(Holders::name))?;
                Ok(match name.as_str() {
                    "keep" => Holders::Keep,
                    _ => Holders::Kill,
                })
            })?,
            paths,
        })
    }
}
