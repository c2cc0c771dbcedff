//! The backends that this version has.

use ironcage_backend::Backend;
use ironcage_chroot::Chroot;
use ironcage_landlock::Landlock;
use ironcage_model::Isolation;
use ironcage_namespace::Namespace;
use ironcage_oci::Oci;

/// The backend of a rung of the ladder.
pub fn backend(isolation: Isolation) -> &'static dyn Backend {
    match isolation {
        Isolation::Landlock => &Landlock,
        Isolation::Chroot => &Chroot,
        Isolation::Oci => &Oci,
        Isolation::Namespace => &Namespace,
    }
}
