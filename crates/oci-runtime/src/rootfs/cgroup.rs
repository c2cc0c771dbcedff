//! `/sys/fs/cgroup` of a container: its own groups, and nothing above them.

use super::options::Options;
use super::{RootFs, attach, change, clone_at, detached};
use crate::cgroup::Groups;
use crate::error::{Error, IoContext as _};
use crate::spec::Mount;
use ironcage_sys::mount::MountAttributes;
use ironcage_sys::rustix::fs::{Mode, OFlags, mkdirat, open, openat, symlinkat};
use std::os::fd::AsFd as _;
use std::path::Path;

impl RootFs {
    /// Binds the container's groups. In version 1 each hierarchy has a directory, and a link for each
    /// controller of several.
    pub(super) fn cgroups(
        &self,
        mount: &Mount,
        options: &Options,
        groups: &Groups,
    ) -> Result<(), Error> {
        let target = &mount.destination;
        let action = || format!("mount cgroups at {}", target.display());
        let handle = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = self.directory(target)?;
        let own = |path: &Path| {
            open(path, handle, Mode::empty()).and_then(|at| clone_at(at.as_fd(), false))
        };
        if groups.unified {
            let Some(path) = groups.with("") else {
                return Err(Error::refused(action(), "this host has no cgroups"));
            };
            let tree = own(path).doing(action)?;
            change(tree.as_fd(), options.set, options.clear, false).doing(action)?;
            attach(tree.as_fd(), place.as_fd()).doing(action)?;
            return self.finish(tree.as_fd(), options).doing(action);
        }
        let data = [("mode".to_owned(), Some("755".to_owned()))];
        let read_only = MountAttributes::READ_ONLY;
        let above = detached(
            "tmpfs",
            Path::new("tmpfs"),
            &data,
            options.set.without(read_only),
        )?;
        attach(above.as_fd(), place.as_fd()).doing(action)?;
        for group in &groups.groups {
            let Some(name) = group.name() else { continue };
            mkdirat(&above, name, Mode::from_raw_mode(0o755)).doing(action)?;
            let below = openat(&above, name, handle, Mode::empty()).doing(action)?;
            let tree = own(&group.path).doing(action)?;
            change(tree.as_fd(), options.set, options.clear, false).doing(action)?;
            attach(tree.as_fd(), below.as_fd()).doing(action)?;
            for link in group.links() {
                // One of them may be the directory's own name.
                let _ = symlinkat(name, &above, link);
            }
        }
        change(above.as_fd(), options.set, MountAttributes::NONE, false).doing(action)?;
        self.finish(above.as_fd(), options).doing(action)
    }
}
