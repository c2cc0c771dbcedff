//! `--image`: finds the image in the store, and pulls it if it is missing.

use super::{CageFlags, real};
use crate::error::CliError;
use crate::paths;
use ironcage_files::{Links, read_text};
use ironcage_images::{Image, ImageError, ImageUse, Store, SystemClaim, WritableSystem};
use ironcage_plan::{ImageRoot, Overlaid, Plan, ViewOp};
use ironcage_programs::Program;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest list of users that is read.
const MAX_LIST: u64 = 1024 * 1024;

/// An image that a cage is to run.
pub(crate) struct SelectedImage {
    pub(crate) root: ImageRoot,
    pub(crate) held: HeldImage,
}

/// An image that stays in the store while a cage runs it.
pub(crate) struct HeldImage {
    base: Base,
    system: Option<WritableSystem>,
}

/// The base of a cage's system.
enum Base {
    Image {
        store: Store,
        image: Box<Image>,
        _held: ImageUse,
    },
    /// A directory with a system.
    Directory(PathBuf),
}

impl HeldImage {
    /// Empties the writable system for a cage by this plan, the last step before a start. The claim
    /// must live as long as the cage.
    pub(crate) fn begin_system(&self, plan: &Plan) -> Result<Option<SystemClaim>, CliError> {
        let Some(system) = &self.system else {
            return Ok(None);
        };
        let directories = plan.view.iter().filter_map(|item| match &item.what {
            ViewOp::Overlay {
                of: Overlaid::System,
                target,
                ..
            } => target.file_name(),
            _ => None,
        });
        let directories: Vec<_> = directories.collect();
        let begun = match &self.base {
            Base::Image { store, image, .. } => system.begin(store, image, &directories),
            Base::Directory(root) => system.begin_over(root, &directories),
        };
        begun.map(Some).map_err(|error| shown(&error))
    }
}

impl SelectedImage {
    /// The signal by which the image's init shuts down, if it names one.
    pub(crate) fn stop_signal(&self) -> Result<Option<i32>, CliError> {
        let named = match &self.held.base {
            Base::Image { image, .. } => image.run.stop_signal().transpose(),
            Base::Directory(_) => Ok(None),
        };
        named.map_err(|error| shown(&error))
    }

    /// The command: the image's entry point with the given arguments, or with its own.
    pub(crate) fn argv(&self, given: Vec<OsString>, entry: Option<&OsString>) -> Vec<OsString> {
        // Its default arguments are for its own entry point.
        if let Some(entry) = entry {
            return std::iter::once(entry.clone()).chain(given).collect();
        }
        let Base::Image { image, .. } = &self.held.base else {
            return given;
        };
        let own = || image.run.cmd.iter().map(OsString::from).collect();
        let arguments = match given.is_empty() {
            true => own(),
            false => given,
        };
        let entry = image.run.entrypoint.iter().map(OsString::from);
        entry.chain(arguments).collect()
    }
}

/// A list of users or groups. It comes from a stranger: a link, a FIFO or a huge file in its place is
/// as good as none.
fn list(root: &Path, name: &str) -> String {
    let path = root.join("etc").join(name);
    read_text(&path, MAX_LIST, Links::Refuse).unwrap_or_default()
}

pub(super) fn shown(error: &ImageError) -> CliError {
    let shown = CliError::from_error(error);
    match error.hint() {
        Some(hint) => shown.hint(hint),
        None => shown,
    }
}

impl CageFlags {
    /// Whether the command comes from an image if none is given.
    pub(crate) fn has_image(&self) -> bool {
        self.image.is_some() || self.template.is_some() || self.boot
    }

    /// Finds the image. Changes nothing.
    pub(crate) fn selected_image(
        &self,
        home: &Path,
        workspace: &Path,
    ) -> Result<Option<SelectedImage>, CliError> {
        let Some(name) = &self.image else {
            return self.selected_directory(home, workspace);
        };
        let store = Store::at(&paths::images(home));
        let image = store.image(name).map_err(|error| shown(&error))?;
        let held = store.use_image(&image).map_err(|error| shown(&error))?;
        let root = store.root(&image);
        let variables = image.run.env.iter().filter_map(|variable| {
            let (name, value) = variable.split_once('=')?;
            let valid = !name.is_empty() && !variable.contains('\0');
            valid.then(|| (name.to_owned(), value.to_owned()))
        });
        let variables = variables.collect();
        let system = (self.writable_image || self.boot).then(|| store.writable_system(workspace));
        Ok(Some(SelectedImage {
            root: ImageRoot {
                name: name.clone(),
                env: variables,
                passwd: list(&root, "passwd"),
                group: list(&root, "group"),
                layers: system.as_ref().map(WritableSystem::layers),
                root,
            },
            held: HeldImage {
                base: Base::Image {
                    store,
                    image: Box::new(image),
                    _held: held,
                },
                system,
            },
        }))
    }

    /// The directory of `--root`, where its system is booted: what it writes goes to layers beside it.
    fn selected_directory(
        &self,
        home: &Path,
        workspace: &Path,
    ) -> Result<Option<SelectedImage>, CliError> {
        let (Some(root), true) = (&self.root, self.boot) else {
            return Ok(None);
        };
        let root = real(root, "--root")?;
        let system = Store::at(&paths::images(home)).writable_system(workspace);
        Ok(Some(SelectedImage {
            root: ImageRoot {
                name: root.display().to_string(),
                env: Vec::new(),
                passwd: list(&root, "passwd"),
                group: list(&root, "group"),
                layers: Some(system.layers()),
                root: root.clone(),
            },
            held: HeldImage {
                base: Base::Directory(root),
                system: Some(system),
            },
        }))
    }

    /// Pulls the image if it is not in the store.
    pub(crate) fn pull_image(&self, quiet: bool) -> Result<(), CliError> {
        let Some(name) = &self.image else {
            return Ok(());
        };
        let home = paths::home(&ironcage_host::SystemFiles::default())?;
        let directory = paths::images(&home);
        match Store::at(&directory).image(name) {
            Err(ImageError::Missing { .. }) => {}
            // Whatever else is wrong is said when the plan is made.
            _ => return Ok(()),
        }
        let program = Program::Registry
            .find()
            .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
        let mut pull = Command::new(&program);
        pull.arg("--store").arg(directory).args(["image", "pull"]);
        if quiet {
            pull.arg("--quiet");
        }
        let status = pull.arg("--").arg(name).status();
        let status = status.map_err(|error| {
            CliError::new(format!("cannot execute {}: {error}", program.display()))
        })?;
        match status.success() {
            true => Ok(()),
            false => Err(
                CliError::new(format!("cannot run the image {name}: it was not pulled"))
                    .hint("`ironcage image load FILE` takes one from `docker save`"),
            ),
        }
    }
}
