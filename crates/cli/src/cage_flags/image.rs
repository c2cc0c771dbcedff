//! `--image`: finds the image in the store, and pulls it if it is missing.

use super::{CageFlags, real};
use crate::error::CliError;
use crate::failure::FailureCode;
use crate::paths;
use ironcage_files::{Links, read_text};
use ironcage_images::{
    Image, ImageError, ImageUse, ImageUser, Store, SystemClaim, UserError, WritableSystem, find,
};
use ironcage_model::{Printable, StartCode};
use ironcage_plan::{ImageRoot, Overlaid, Plan, RunUser, UserOrigin, ViewOp};
use ironcage_programs::Program;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
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
            return with_entry(entry, given);
        }
        let Base::Image { image, .. } = &self.held.base else {
            return given;
        };
        let own = || image.run.cmd.iter().map(OsString::from).collect();
        let arguments = match given.is_empty() {
            true => own(),
            false => given,
        };
        let mut entry: Vec<OsString> = image.run.entrypoint.iter().map(OsString::from).collect();
        // A path is meant from the image's directory, wherever the command starts.
        if let (Some(program), Some(directory)) = (entry.first_mut(), image.run.working_directory())
            && program.as_bytes().contains(&b'/')
        {
            *program = directory.join(&*program).into();
        }
        entry.into_iter().chain(arguments).collect()
    }

    /// Where the command starts inside, if not in the user's own directory: where the flag says, or
    /// where the image does for its own command.
    pub(crate) fn workdir(
        &self,
        flag: Option<&Path>,
        is_own_command: bool,
    ) -> Result<Option<PathBuf>, CliError> {
        let own = match &self.held.base {
            Base::Image { image, .. } => image.run.working_directory(),
            Base::Directory(_) => None,
        };
        let wanted = match (flag, own) {
            (Some(flag), own) => own.unwrap_or(Path::new("/")).join(flag),
            (None, Some(own)) if is_own_command => own.to_owned(),
            _ => return Ok(None),
        };
        Ok(Some(without_dots(&wanted)))
    }

    /// The user that the flag or else the image names.
    fn user(&self, flag: Option<&str>) -> Result<Option<RunUser>, CliError> {
        let (passwd, group) = (&self.root.passwd, &self.root.group);
        let (text, origin) = match (flag, &self.held.base) {
            (Some(flag), _) => (flag, UserOrigin::Flag),
            (None, Base::Image { image, .. }) if !image.run.user.is_empty() => {
                let origin = UserOrigin::Image(self.root.name.clone());
                (image.run.user.as_str(), origin)
            }
            _ => return Ok(None),
        };
        let found = ImageUser::find(text, passwd, group);
        let found = found.map_err(|why| bad_user(text, &origin, &why))?;
        Ok(Some(run_user(found, origin)))
    }
}

/// A list of users or groups. It comes from a stranger: a link, a FIFO or a huge file in its place is
/// as good as none.
fn list(root: &Path, name: &str) -> String {
    let path = root.join("etc").join(name);
    read_text(&path, MAX_LIST, Links::Refuse).unwrap_or_default()
}

/// The command with an entry point of the user's, unless that is empty.
pub(super) fn with_entry(entry: &OsString, given: Vec<OsString>) -> Vec<OsString> {
    let entry = (!entry.is_empty()).then(|| entry.clone());
    entry.into_iter().chain(given).collect()
}

/// A path without `.` and `..`, as Docker takes a working directory: an image's own words lead to nothing
/// above its top.
pub(super) fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

fn run_user(found: ImageUser, origin: UserOrigin) -> RunUser {
    RunUser {
        name: found.name,
        uid: found.uid,
        gid: found.gid,
        origin,
    }
}

fn bad_user(text: &str, origin: &UserOrigin, why: &UserError) -> CliError {
    let whose = match origin {
        UserOrigin::Flag => "--user".to_owned(),
        UserOrigin::Image(image) => format!("the image {image}"),
    };
    let text = Printable::new(text);
    CliError::new(format!("cannot run as user `{text}` ({whose}): {why}"))
        .hint("`--user UID:GID` runs as any other user")
        .with_code(StartCode::Unsupported)
}

pub(super) fn shown(error: &ImageError) -> CliError {
    let shown = match error {
        ImageError::NoTemplate { .. } => {
            CliError::from_error(error).with_failure(FailureCode::NoSuchTemplate)
        }
        _ => CliError::from_error(error),
    };
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

    /// Whether --user names user 0, by number or by name: then the flag is --root-inside.
    pub(super) fn is_user_zero(&self) -> bool {
        let user = self.user.as_deref().map(|user| user.split(':').next());
        matches!(user.flatten(), Some("0" | "root"))
    }

    /// The user that a flag or the image names.
    pub(super) fn run_user(
        &self,
        image: Option<&SelectedImage>,
        root: Option<&Path>,
    ) -> Result<Option<RunUser>, CliError> {
        if let Some(image) = image {
            return image.user(self.user.as_deref());
        }
        let Some(user) = &self.user else {
            return Ok(None);
        };
        // Users of the host have no names in a cage.
        let of_root = |name| root.map(|root| list(root, name)).unwrap_or_default();
        let found = ImageUser::find(user, &of_root("passwd"), &of_root("group"));
        match found {
            // The name of user 0 is the same everywhere.
            Err(UserError::NoUser) if self.is_user_zero() => Ok(None),
            Err(why) => Err(bad_user(user, &UserOrigin::Flag, &why)),
            Ok(found) => Ok(Some(run_user(found, UserOrigin::Flag))),
        }
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
        let own = Store::at(&paths::images(home));
        let (store, image) = find(&own, name).map_err(|error| shown(&error))?;
        if store.is_shared() && (self.writable_image || self.boot) {
            let flag = if self.boot {
                "--boot"
            } else {
                "--writable-image"
            };
            return Err(CliError::new(format!(
                "cannot use {flag} with {name}: the shared store is read-only"
            ))
            .hint("`ironcage image pull` or `load` puts the image into your own store"));
        }
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
        match find(&Store::at(&directory), name) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_directory_leads_to_nothing_above_its_top() {
        for (path, clean) in [
            ("/srv/app", "/srv/app"),
            ("/srv/./app/", "/srv/app"),
            ("/srv/../etc", "/etc"),
            ("/../../etc", "/etc"),
            ("/..", "/"),
        ] {
            assert_eq!(without_dots(Path::new(path)), Path::new(clean));
        }
    }

    #[test]
    fn an_empty_entry_point_is_left_out() {
        let given = || vec![OsString::from("ls")];
        assert_eq!(with_entry(&"".into(), given()), ["ls"]);
        assert_eq!(with_entry(&"/bin/sh".into(), given()), ["/bin/sh", "ls"]);
    }
}
