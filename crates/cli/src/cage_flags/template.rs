//! `--template`: an image, and a policy for cages from it.

use super::CageFlags;
use super::image::shown;
use crate::error::CliError;
use crate::paths;
use ironcage_images::{Store, TemplateName};

impl CageFlags {
    /// These flags with the image and the policy of the template in its place, or `None` if they name
    /// no template. Changes nothing.
    pub(super) fn without_template(&self) -> Result<Option<CageFlags>, CliError> {
        let Some(name) = &self.template else {
            return Ok(None);
        };
        let name: TemplateName = name.parse().map_err(|why| {
            CliError::new(format!("invalid template name `{}`", name.escape_debug())).hint(why)
        })?;
        let home = paths::home(&ironcage_host::SystemFiles::default())?;
        let store = Store::at(&paths::images(&home));
        let template = store.template(&name).map_err(|error| shown(&error))?;
        let image = store.template_image(&template);
        let image = image.map_err(|error| shown(&error))?;
        let mut flags = CageFlags {
            template: None,
            image: Some(image.digest.to_string()),
            ..self.clone()
        };
        if !flags.names_policy() {
            let policy = template.policy.as_ref();
            let policy = policy.map(|policy| store.template_policy(policy));
            flags.set_base(template.profile, policy);
        }
        Ok(Some(flags))
    }
}
