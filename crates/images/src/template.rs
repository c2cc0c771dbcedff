//! Templates: a system, a policy and set-up commands, built once.
//!
//! A template file names a base, files of its directory and steps. Each step runs in a cage with a
//! writable image, and what it wrote becomes an image of its own. That image is found again by a key
//! over everything that the step depends on, so that a later build runs only what changed.
//!
//! ```text
//! templates/NAME.json          what the template leads to
//! templates/policies/HEX.toml  policies of templates, by digest
//! ```

use crate::config::{MAX_DOCUMENT, parse};
use crate::error::Doing as _;
use crate::store::listed;
use crate::{Digest, Image, ImageError, Pruned, Reference, Store};
use ironcage_files::{Links, read};
use ironcage_sys::faults::step;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const TEMPLATES: &str = "templates";
const POLICIES: &str = "policies";
const RECORD: &str = ".json";
/// Where the images of steps are named. They belong to no registry.
const STEPS: &str = "localhost/template-step";
/// Where directories that templates start from are named.
const ROOTS: &str = "localhost/template-root";
const MAX_NAME: usize = 64;

/// A template file as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TemplateFile {
    /// The image to start from.
    pub image: Option<String>,
    /// A directory with a system to start from, beside the file.
    pub root: Option<PathBuf>,
    /// The profile of cages from this template.
    pub profile: Option<String>,
    /// The policy file of cages from this template, beside the file.
    pub policy: Option<PathBuf>,
    /// Files beside the template file that steps can read, in their working directory.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// Commands for `/bin/sh`, each in a cage of its own.
    #[serde(default)]
    pub steps: Vec<String>,
    #[serde(default)]
    pub build: BuildRules,
}

/// What the cages of the steps may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct BuildRules {
    pub allow_bundles: Vec<String>,
    pub allow_hosts: Vec<String>,
    /// Run steps as user 0 inside the cage, for package managers that insist on it.
    pub root_inside: bool,
}

impl TemplateFile {
    /// Parses a template file.
    ///
    /// # Errors
    /// If it is not TOML of this form, or contradicts itself.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ImageError> {
        let bad = |why: String| ImageError::BadTemplate {
            path: path.to_owned(),
            why,
        };
        let file: TemplateFile =
            toml::from_str(text).map_err(|error| bad(error.to_string().trim_end().to_owned()))?;
        if file.image.is_some() == file.root.is_some() {
            return Err(bad("expected either `image` or `root`".into()));
        }
        if file.profile.is_some() && file.policy.is_some() {
            return Err(bad("expected either `profile` or `policy`, not both".into()));
        }
        if let Some(step) = file.steps.iter().find(|step| step.trim().is_empty()) {
            return Err(bad(format!("a step must not be empty: {step:?}")));
        }
        // Names only: a path that leads elsewhere would put other files of the host into an image.
        let plain = |path: &&PathBuf| {
            let mut parts = path.components();
            let normal = |part| matches!(part, std::path::Component::Normal(_));
            path.as_os_str().is_empty() || !parts.all(normal)
        };
        if let Some(outside) = file.files.iter().find(plain) {
            return Err(bad(format!(
                "expected paths below the directory of the template in `files`, found {outside:?}"
            )));
        }
        Ok(file)
    }
}

/// The name of a template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

impl FromStr for TemplateName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        let begins = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        match begins && text.len() <= MAX_NAME && text.bytes().all(allowed) {
            true => Ok(TemplateName(text.to_owned())),
            false => Err(
                "expected at most 64 lower-case letters, digits, '.', '_' and '-', beginning with a letter or digit",
            ),
        }
    }
}

impl TryFrom<String> for TemplateName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> String {
        name.0
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Everything that a step depends on.
#[derive(Debug, Serialize)]
pub struct StepKey<'a> {
    /// The image below.
    pub base: &'a Digest,
    pub command: &'a str,
    pub rules: &'a BuildRules,
    /// The files that it can read, with the digests of their content and whether they are executable.
    pub files: &'a BTreeMap<PathBuf, (Digest, bool)>,
}

impl StepKey<'_> {
    /// The name of the image that the step leads to.
    ///
    /// # Errors
    /// If a path of the files is not UTF-8.
    pub fn image(&self) -> Result<Reference, ImageError> {
        let text = serde_json::to_vec(self).map_err(|source| ImageError::BadDocument {
            what: "the key of a step",
            source,
        })?;
        format!("{STEPS}:{}", Digest::of(&text).hex()).parse()
    }
}

/// The name of the image of a directory that templates start from.
///
/// # Errors
/// Never for a digest.
pub fn template_root(directory: &Path) -> Result<Reference, ImageError> {
    let key = Digest::of(directory.as_os_str().as_encoded_bytes());
    format!("{ROOTS}:{}", key.hex()).parse()
}

/// Whether a name was given by the build of a template, and by nobody else.
fn is_of_build(name: &str) -> bool {
    let of = |prefix: &str| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(':'))
    };
    of(STEPS) || of(ROOTS)
}

/// A template that was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    pub name: TemplateName,
    /// The image that cages from it run.
    pub image: Digest,
    /// What it was built from: an image's name or a directory.
    pub base: String,
    /// The commands that were run.
    pub steps: Vec<String>,
    /// What it was built on: the image that it starts from, and that of each step but the last.
    #[serde(default)]
    pub built_on: Vec<Digest>,
    pub profile: Option<String>,
    /// The digest of its policy.
    pub policy: Option<Digest>,
}

impl Store {
    fn template_path(&self, name: &TemplateName) -> PathBuf {
        self.root.join(TEMPLATES).join(format!("{name}{RECORD}"))
    }

    /// The policy file of a template.
    pub fn template_policy(&self, policy: &Digest) -> PathBuf {
        let policies = self.root.join(TEMPLATES).join(POLICIES);
        policies.join(format!("{}.toml", policy.hex()))
    }

    /// Keeps a template, in place of one of the same name. `policy` is the text behind its digest.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_template(
        &self,
        template: &Template,
        policy: Option<&[u8]>,
    ) -> Result<(), ImageError> {
        let mut builder = fs::DirBuilder::new();
        let policies = self.root.join(TEMPLATES).join(POLICIES);
        builder.recursive(true).mode(0o700);
        builder.create(&policies).doing("create", policies)?;
        if let (Some(digest), Some(text)) = (&template.policy, policy) {
            self.write(&self.template_policy(digest), text)?;
        }
        let text =
            serde_json::to_vec_pretty(template).map_err(|source| ImageError::BadDocument {
                what: "the template",
                source,
            })?;
        self.write(&self.template_path(&template.name), &text)
    }

    /// Finds a template.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn template(&self, name: &TemplateName) -> Result<Template, ImageError> {
        let path = self.template_path(name);
        if !path.exists() {
            return Err(ImageError::NoTemplate {
                name: name.to_string(),
            });
        }
        let text = read(&path, MAX_DOCUMENT, Links::Refuse)
            .map_err(io::Error::other)
            .doing("read", path)?;
        parse(&text, "the template")
    }

    /// The image of a template.
    ///
    /// # Errors
    /// If it was removed.
    pub fn template_image(&self, template: &Template) -> Result<Image, ImageError> {
        self.image(&template.image.to_string())
            .map_err(|error| match error {
                ImageError::Missing { .. } => ImageError::TemplateGone {
                    name: template.name.to_string(),
                },
                other => other,
            })
    }

    /// Every template, by name.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn templates(&self) -> Result<Vec<Template>, ImageError> {
        let mut templates = Vec::new();
        for name in listed(&self.root.join(TEMPLATES))? {
            let name = name.to_str().and_then(|name| name.strip_suffix(RECORD));
            if let Some(Ok(name)) = name.map(TemplateName::from_str) {
                templates.push(self.template(&name)?);
            }
        }
        Ok(templates)
    }

    /// The template that leads to an image.
    pub(crate) fn template_of(&self, image: &Digest) -> Result<Option<String>, ImageError> {
        let templates = self.templates()?;
        let found = templates.iter().find(|template| template.image == *image);
        Ok(found.map(|template| template.name.to_string()))
    }

    /// Removes images that builds have left and no template is built on. A later build that needs one
    /// runs its steps again.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn prune_templates(&self) -> Result<Pruned, ImageError> {
        let _lock = self.removing()?;
        let mut kept = BTreeSet::new();
        for template in self.templates()? {
            kept.extend(template.built_on);
            kept.insert(template.image);
        }
        let mut pruned = Pruned::default();
        // Held until everything is removed that the images had.
        let mut claims = Vec::new();
        for image in self.images()? {
            let is_left =
                !image.names.is_empty() && image.names.iter().all(|name| is_of_build(name));
            if !is_left || kept.contains(&image.digest) {
                continue;
            }
            if let Some(claim) = self.claim_unused(&image.digest)? {
                claims.push(claim);
                pruned.images.extend(self.remove_image(&image)?.images);
            }
        }
        self.collect(&mut pruned)?;
        Ok(pruned)
    }

    /// Removes a template. Its image stays until `prune --all`.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn remove_template(&self, name: &TemplateName) -> Result<(), ImageError> {
        let _lock = self.removing()?;
        let template = self.template(name)?;
        let path = self.template_path(name);
        step();
        fs::remove_file(&path).doing("remove", path)?;
        let policy = template.policy.as_ref().filter(|policy| {
            let others = self.templates().unwrap_or_default();
            !others
                .iter()
                .any(|other| other.policy.as_ref() == Some(policy))
        });
        if let Some(policy) = policy {
            let path = self.template_policy(policy);
            step();
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).doing("remove", path);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<TemplateFile, ImageError> {
        TemplateFile::parse(text, Path::new("template.toml"))
    }

    #[test]
    fn a_file_has_one_base_and_one_source_of_policy() {
        let good = "image = \"a:1\"\nprofile = \"strict\"\nfiles = [\"a/b\"]\nsteps = [\"true\"]\n";
        assert_eq!(parsed(good).unwrap().steps, ["true"]);
        for bad in [
            "",
            "image = \"a\"\nroot = \"b\"",
            "image = \"a\"\nprofile = \"b\"\npolicy = \"c\"",
            "image = \"a\"\nsteps = [\" \"]",
            "image = \"a\"\nfiles = [\"../b\"]",
            "image = \"a\"\nfiles = [\"/etc/passwd\"]",
            "image = \"a\"\nfiles = [\"\"]",
            "image = \"a\"\nstep = [\"true\"]",
            "image = 1",
        ] {
            let error = parsed(bad).unwrap_err();
            assert!(matches!(error, ImageError::BadTemplate { .. }), "{bad}");
        }
    }

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["a", "data-science", "3.12_x"] {
            assert!(good.parse::<TemplateName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "A", "-a", &"a".repeat(65)] {
            assert!(bad.parse::<TemplateName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_changes_with_everything_that_a_step_depends_on() {
        let (base, rules) = (Digest::of(b"a"), BuildRules::default());
        let files = BTreeMap::from([(PathBuf::from("x"), (Digest::of(b"x"), false))]);
        let of = |base: &Digest, command: &str, rules: &BuildRules, files| {
            let key = StepKey {
                base,
                command,
                rules,
                files,
            };
            key.image().unwrap().to_string()
        };
        let first = of(&base, "true", &rules, &files);
        assert_eq!(first, of(&base, "true", &rules, &files));
        let network = BuildRules {
            allow_bundles: vec!["pip".into()],
            ..BuildRules::default()
        };
        let executable = BTreeMap::from([(PathBuf::from("x"), (Digest::of(b"x"), true))]);
        for other in [
            of(&Digest::of(b"b"), "true", &rules, &files),
            of(&base, "false", &rules, &files),
            of(&base, "true", &network, &files),
            of(&base, "true", &rules, &executable),
            of(&base, "true", &rules, &BTreeMap::new()),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn a_template_is_kept_found_and_removed_with_its_policy() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let name: TemplateName = "web".parse().unwrap();
        let policy = Digest::of(b"[limits]\n");
        let template = Template {
            name: name.clone(),
            image: Digest::of(b"image"),
            base: "a:1".into(),
            steps: vec!["true".into()],
            built_on: Vec::new(),
            profile: None,
            policy: Some(policy.clone()),
        };
        store.keep_template(&template, Some(b"[limits]\n")).unwrap();
        let second = Template {
            name: "other".parse().unwrap(),
            ..template.clone()
        };
        store.keep_template(&second, Some(b"[limits]\n")).unwrap();
        assert_eq!(store.template(&name).unwrap(), template);
        assert_eq!(store.templates().unwrap().len(), 2);
        assert!(store.template_of(&template.image).unwrap().is_some());
        assert!(store.template_of(&policy).unwrap().is_none());
        store.remove_template(&name).unwrap();
        assert!(store.template_policy(&policy).exists(), "the other has it");
        store.remove_template(&second.name).unwrap();
        assert!(!store.template_policy(&policy).exists());
        assert!(matches!(
            store.template(&name),
            Err(ImageError::NoTemplate { .. })
        ));
    }
}
