//! `ironcage template`: runs the steps of a template file in cages, and keeps what they lead to.

use crate::image_error;
use crate::images::{print, print_json, told};
use crate::progress::Progress;
use ironcage_command::error::CliError;
use ironcage_command::template::Action;
use ironcage_files::{Links, read, read_text};
use ironcage_images::{
    Digest, Image, ImageError, Limits, Reference, StepKey, Store, Template, TemplateFile,
    TemplateName, commit, load, template_root,
};
use ironcage_model::Printable;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The largest template and policy file that is read.
const MAX_TEXT: u64 = 1024 * 1024;
/// The largest file that steps can read.
const MAX_FILE: u64 = 256 * 1024 * 1024;
/// How much of a command stands on a line of progress.
const SHOWN: usize = 100;

pub(crate) fn run(store: &Store, ironcage: &Path, action: Action) -> Result<(), CliError> {
    match action {
        Action::Build {
            name,
            file,
            no_cache,
            quiet,
        } => {
            let name = parsed(&name)?;
            let build = Build::prepare(store, ironcage, &file, quiet)?;
            build.run(name, no_cache)
        }
        Action::List { json } => list(store, json),
        Action::Show { name, json } => show(store, &parsed(&name)?, json),
        Action::Prune => {
            let pruned = store.prune_templates();
            print(&told(&pruned.map_err(|error| image_error(&error))?))
        }
        Action::Rm { names } => {
            for name in names {
                let name = parsed(&name)?;
                store
                    .remove_template(&name)
                    .map_err(|error| image_error(&error))?;
                print(&format!("removed the template {name}"))?;
            }
            Ok(())
        }
    }
}

fn parsed(name: &str) -> Result<TemplateName, CliError> {
    name.parse().map_err(|why: &'static str| {
        CliError::new(format!("invalid template name `{}`", Printable::new(name))).hint(why)
    })
}

fn list(store: &Store, as_json: bool) -> Result<(), CliError> {
    let templates = store.templates().map_err(|error| image_error(&error))?;
    if as_json {
        return print_json(&templates);
    }
    if templates.is_empty() {
        anstream::eprintln!("no templates; `ironcage template build NAME` makes one");
        return Ok(());
    }
    let names = templates.iter().map(|template| template.name.to_string());
    let width = names.map(|name| name.len()).max().unwrap_or(0).max(4);
    print(&format!("{:width$}  {:12}  STEPS  BASE", "NAME", "IMAGE"))?;
    for template in &templates {
        print(&format!(
            "{:width$}  {:12}  {:5}  {}",
            template.name.to_string(),
            template.image.short(),
            template.steps.len(),
            Printable::new(&template.base)
        ))?;
    }
    Ok(())
}

fn show(store: &Store, name: &TemplateName, as_json: bool) -> Result<(), CliError> {
    let template = store.template(name).map_err(|error| image_error(&error))?;
    if as_json {
        return print_json(&template);
    }
    let policy = template.policy.as_ref();
    let policy = policy.map(|policy| store.template_policy(policy).display().to_string());
    let mut lines = vec![
        ("name", template.name.to_string()),
        ("image", template.image.to_string()),
        ("base", template.base),
        ("profile", template.profile.unwrap_or_default()),
        ("policy", policy.unwrap_or_default()),
    ];
    lines.extend(template.steps.into_iter().map(|step| ("step", step)));
    for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        print(&format!("{name:<8} {}", Printable::new(&value)))?;
    }
    Ok(())
}

/// A template file, with what it needs.
struct Build<'a> {
    store: &'a Store,
    ironcage: &'a Path,
    /// The directory of the template file.
    directory: PathBuf,
    file: TemplateFile,
    policy: Option<Vec<u8>>,
    /// The files that steps read.
    files: BTreeMap<PathBuf, (Digest, bool)>,
    quiet: bool,
}

impl<'a> Build<'a> {
    fn prepare(
        store: &'a Store,
        ironcage: &'a Path,
        path: &Path,
        quiet: bool,
    ) -> Result<Self, CliError> {
        let unreadable = |path: &Path, error: &std::io::Error| {
            CliError::new(format!("cannot read {}: {error}", path.display()))
        };
        let text = read_text(path, MAX_TEXT, Links::Follow).map_err(|error| {
            CliError::from_error(&error).hint("docs/guides/images.md shows a template file")
        })?;
        let file = TemplateFile::parse(&text, path).map_err(|error| image_error(&error))?;
        let directory = fs::canonicalize(path)
            .map_err(|error| unreadable(path, &error))?
            .parent()
            .map(Path::to_owned)
            .unwrap_or_default();
        let policy = file.policy.as_ref().map(|policy| {
            let path = directory.join(policy);
            read(&path, MAX_TEXT, Links::Follow).map_err(|error| CliError::from_error(&error))
        });
        let policy = policy.transpose()?;
        let mut files = BTreeMap::new();
        for name in &file.files {
            let path = directory.join(name);
            let content = read(&path, MAX_FILE, Links::Follow)
                .map_err(|error| CliError::from_error(&error))?;
            let mode = fs::metadata(&path)
                .map_err(|error| unreadable(&path, &error))?
                .permissions()
                .mode();
            files.insert(name.clone(), (Digest::of(&content), mode & 0o100 != 0));
        }
        Ok(Build {
            store,
            ironcage,
            directory,
            file,
            policy,
            files,
            quiet,
        })
    }

    fn run(&self, name: TemplateName, no_cache: bool) -> Result<(), CliError> {
        // Nothing is removed from the store meanwhile. Commits and pulls hold the same lock, shared.
        let adding = self.store.adding().map_err(|error| image_error(&error))?;
        let (base, mut image) = self.base()?;
        let place = Workspace::new(self.store, &self.directory, &self.files)?;
        let count = self.file.steps.len();
        let mut built_on = Vec::new();
        for (index, command) in self.file.steps.iter().enumerate() {
            let label = format!("step {} of {count}", index + 1);
            let key = StepKey {
                base: &image.digest,
                command,
                rules: &self.file.build,
                files: &self.files,
            };
            let known = key.image().map_err(|error| image_error(&error))?;
            built_on.push(image.digest.clone());
            image = match self.store.image(&known.to_string()) {
                Ok(image) if !no_cache => {
                    self.say(&format!("{label}: cached: {}", shortened(command)));
                    image
                }
                _ => {
                    self.say(&format!("{label}: {}", shortened(command)));
                    self.step(&image, command, &place, &known, &label)?
                }
            };
        }
        let template = Template {
            name,
            image: image.digest.clone(),
            base,
            steps: self.file.steps.clone(),
            built_on,
            profile: self.file.profile.clone(),
            policy: self.policy.as_deref().map(Digest::of),
        };
        self.store
            .keep_template(&template, self.policy.as_deref())
            .map_err(|error| image_error(&error))?;
        drop(adding);
        match self.quiet {
            true => Ok(()),
            false => print(&format!("{}  {}", template.name, image.digest.short())),
        }
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            anstream::eprintln!("{text}");
        }
    }

    /// What the template starts from: its name, and the image.
    fn base(&self) -> Result<(String, Image), CliError> {
        if let Some(root) = &self.file.root {
            let path = self.directory.join(root);
            let name = template_root(&path).map_err(|error| image_error(&error))?;
            let progress = Progress::new(self.quiet);
            let unpacking = |done, of| progress.unpacking(done, of);
            let images = load(
                self.store,
                &path,
                Some(&name),
                Limits::default(),
                &unpacking,
            );
            drop(progress);
            let images = images.map_err(|error| image_error(&error))?;
            let image = images.into_iter().next().ok_or_else(|| {
                CliError::new(format!("cannot use {}: no system in it", path.display()))
            })?;
            return Ok((path.display().to_string(), image));
        }
        let name = self.file.image.clone().unwrap_or_default();
        match self.store.image(&name) {
            Ok(image) => Ok((name, image)),
            Err(ImageError::Missing { .. }) => {
                let mut pull = Command::new(self.ironcage);
                pull.args(["image", "pull"]);
                if self.quiet {
                    pull.arg("--quiet");
                }
                self.execute(pull.arg("--").arg(&name), "cannot pull the base image")?;
                let image = self.store.image(&name);
                image
                    .map(|image| (name, image))
                    .map_err(|error| image_error(&error))
            }
            Err(error) => Err(image_error(&error)),
        }
    }

    /// Runs a step in a cage, and makes an image of what it wrote.
    fn step(
        &self,
        base: &Image,
        command: &str,
        place: &Workspace<'_>,
        name: &Reference,
        label: &str,
    ) -> Result<Image, CliError> {
        let mut run = Command::new(self.ironcage);
        run.args(["run", "-q", "--writable-image", "--no-state", "--image"])
            .arg(base.digest.to_string())
            .args(["--workspace-mode", "read-only", "--workspace"])
            .arg(&place.path)
            .args(["--cwd"])
            .arg(&place.path);
        for bundle in &self.file.build.allow_bundles {
            run.args(["--allow-bundle", bundle]);
        }
        for host in &self.file.build.allow_hosts {
            run.args(["--allow-host", host]);
        }
        if self.file.build.root_inside {
            run.arg("--root-inside");
        }
        run.args(["--entrypoint", "/bin/sh", "--", "-ec", command]);
        self.execute(&mut run, &format!("{label} failed"))?;
        let system = self.store.writable_system(&place.path);
        match commit(self.store, &system, name) {
            // A step that wrote nothing leads to the image that it started from.
            Err(ImageError::NothingToCommit) => {
                let named = self.store.name(name, &base.digest);
                named
                    .map(|()| base.clone())
                    .map_err(|error| image_error(&error))
            }
            other => other.map_err(|error| image_error(&error)),
        }
    }

    fn execute(&self, command: &mut Command, failed: &str) -> Result<(), CliError> {
        command.stdin(Stdio::null());
        if self.quiet {
            command.stdout(Stdio::null());
        }
        let status = command.status().map_err(|error| {
            let program = self.ironcage.display();
            CliError::new(format!("cannot execute {program}: {error}"))
        })?;
        match status.success() {
            true => Ok(()),
            false => Err(CliError::new(format!("{failed}: {status}"))
                .hint("the template is as it was; steps before this one are cached")),
        }
    }
}

fn shortened(command: &str) -> String {
    let line = command.lines().next().unwrap_or_default();
    let more = line.chars().count() > SHOWN || command.lines().count() > 1;
    let line: String = line.chars().take(SHOWN).collect();
    let dots = if more { " ..." } else { "" };
    format!("{}{dots}", Printable::new(&line))
}

/// Copies of the files that steps read, as the workspace of their cages.
struct Workspace<'a> {
    store: &'a Store,
    /// Removed when it is dropped.
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl<'a> Workspace<'a> {
    fn new(
        store: &'a Store,
        from: &Path,
        files: &BTreeMap<PathBuf, (Digest, bool)>,
    ) -> Result<Self, CliError> {
        let cannot = |path: &Path, error: &dyn std::fmt::Display| {
            CliError::new(format!("cannot create {}: {error}", path.display()))
        };
        // Not in the store: Ironcage's own directories are never a workspace.
        let directory = tempfile::Builder::new()
            .prefix("ironcage-template-")
            .tempdir()
            .map_err(|error| cannot(&std::env::temp_dir(), &error))?;
        let path =
            fs::canonicalize(directory.path()).map_err(|error| cannot(directory.path(), &error))?;
        let place = Workspace {
            store,
            _directory: directory,
            path,
        };
        for (name, (digest, executable)) in files {
            let (source, to) = (from.join(name), place.path.join(name));
            let content = read(&source, MAX_FILE, Links::Follow)
                .map_err(|error| CliError::from_error(&error))?;
            if Digest::of(&content) != *digest {
                return Err(CliError::new(format!(
                    "cannot build: {} changed while it was read",
                    source.display()
                ))
                .hint("build again"));
            }
            if let Some(above) = to.parent() {
                fs::create_dir_all(above).map_err(|error| cannot(above, &error))?;
            }
            fs::write(&to, content).map_err(|error| cannot(&to, &error))?;
            let mode = if *executable { 0o755 } else { 0o644 };
            fs::set_permissions(&to, fs::Permissions::from_mode(mode))
                .map_err(|error| cannot(&to, &error))?;
        }
        Ok(place)
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        // What cannot be removed now goes with the image below it.
        let _ = self.store.writable_system(&self.path).remove();
    }
}
