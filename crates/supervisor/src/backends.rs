//! The backends that this version has.

use ironcage_backend::Backend;
use ironcage_microvm::Microvm;
use ironcage_model::Isolation;
use ironcage_namespace::{Chroot, Landlock, Namespace, Wasm};
use ironcage_oci::Oci;

/// The backend of an isolation level.
pub fn backend(isolation: Isolation) -> &'static dyn Backend {
    match isolation {
        Isolation::Landlock => &Landlock,
        Isolation::Chroot => &Chroot,
        Isolation::Oci => &Oci,
        Isolation::Namespace => &Namespace,
        Isolation::Wasm => &Wasm,
        Isolation::Microvm => &Microvm,
    }
}
