//! Templates of the operator: the profile or the policy that a cage from one gets.

use super::Engine;
use crate::api::types::CreateCage;
use crate::error::{ApiError, ApiResult, Code};
use crate::projects::{Ceiling, above};
use ironcage_images::{ImageError, Store, Template, TemplateName};

fn not_found(error: &ImageError) -> ApiError {
    let code = match error {
        ImageError::NoTemplate { .. } => Code::NotFound,
        _ => Code::StartFailed,
    };
    let shown = ApiError::new(code, ironcage_model::in_full(error));
    match error.hint() {
        Some(hint) => shown.hint(hint),
        None => shown,
    }
}

/// Holds a template to a ceiling, as if the cage named what the template brings, and says whether the
/// cage has a policy of its own by it.
fn bring(template: Template, spec: &mut CreateCage, ceiling: &Ceiling) -> ApiResult<bool> {
    let bound = ceiling.profiles.is_some() || ceiling.hosts.is_some() || ceiling.memory.is_some();
    if template.policy.is_some() {
        return match bound {
            true => Err(above(&format!(
                "the policy of the template `{}`",
                template.name
            ))),
            false => Ok(true),
        };
    }
    let known = template
        .profile
        .as_deref()
        .is_none_or(super::check::opens_no_host);
    if bound {
        // Named from here on: the ceiling is held to it, and it is what the cage starts with.
        spec.profile = template.profile;
    }
    Ok(!known)
}

impl Engine {
    /// Resolves what the template of a cage brings. `true` where that is more than the profiles that
    /// every key may name.
    pub(super) fn resolve_template(&self, spec: &mut CreateCage, project: &str) -> ApiResult<bool> {
        let Some(name) = &spec.template else {
            return Ok(false);
        };
        if spec.profile.is_some() || spec.policy.is_some() {
            // They stand in place of the template's.
            return Ok(false);
        }
        let name: TemplateName = name.parse().map_err(|why| {
            ApiError::invalid(format!(
                "invalid template name `{}`: {why}",
                name.escape_debug()
            ))
        })?;
        let state = ironcage_audit::state_dir()
            .map_err(|error| ApiError::internal("find the templates", &error))?;
        let template = Store::at(&state.join("images")).template(&name);
        let template = template.map_err(|error| not_found(&error))?;
        let ceiling = self.projects.of_request(project)?.ceiling;
        bring(template, spec, &ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(profile: Option<&str>, policy: bool) -> Template {
        let digest = || format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        Template {
            name: "tools".parse().unwrap(),
            image: digest(),
            base: "root".to_owned(),
            steps: Vec::new(),
            built_on: Vec::new(),
            profile: profile.map(str::to_owned),
            policy: policy.then(digest),
            built_on: Vec::new(),
        }
    }

    #[test]
    fn what_a_template_brings_is_held_to_the_ceiling_as_if_the_cage_named_it() {
        let free = Ceiling::default();
        let ceilings = [
            Ceiling {
                profiles: Some(["python".to_owned()].into()),
                ..Ceiling::default()
            },
            Ceiling {
                hosts: Some(Vec::new()),
                ..Ceiling::default()
            },
            Ceiling {
                memory: Some(1 << 20),
                ..Ceiling::default()
            },
        ];
        let brought = |template, ceiling: &Ceiling| {
            let mut spec = CreateCage::default();
            let own = bring(template, &mut spec, ceiling).map_err(|error| error.code);
            (own, spec.profile)
        };
        for ceiling in &ceilings {
            let (refused, _) = brought(template(None, true), ceiling);
            assert_eq!(refused, Err(Code::Forbidden));
            let (own, profile) = brought(template(Some("coding-agent"), false), ceiling);
            assert_eq!((own, profile.as_deref()), (Ok(true), Some("coding-agent")));
            assert_eq!(brought(template(None, false), ceiling), (Ok(false), None));
        }
        assert_eq!(brought(template(None, true), &free), (Ok(true), None));
        assert_eq!(
            brought(template(Some("mine"), false), &free),
            (Ok(true), None)
        );
        assert_eq!(
            brought(template(Some("python"), false), &free),
            (Ok(false), None)
        );
    }
}
