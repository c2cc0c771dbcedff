//! What `ironcage --version` says: version, commit, target, and how it was built.
//!
//! All of it is decided when the binary is built; nothing is computed at run time.

/// The kind of build, and what it can do that others cannot.
#[cfg(not(debug_assertions))]
macro_rules! build_kind {
    () => {
        "release"
    };
}

/// Debug builds die at the step that `IRONCAGE_FAULT` names, for the tests of interrupted starts,
/// and leave out what `IRONCAGE_LAYERS_OFF` names, for `ironcage probe matrix`.
#[cfg(debug_assertions)]
macro_rules! build_kind {
    () => {
        "debug, fault injection, layers can be left out"
    };
}

/// The text of `--version`.
pub(crate) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("IRONCAGE_COMMIT"),
    ", ",
    env!("IRONCAGE_TARGET"),
    ", ",
    build_kind!(),
    ")"
);
