//! The text of `ironcage version`: version, commit, target and kind of build, all set at build time.

#[cfg(not(debug_assertions))]
macro_rules! build_kind {
    () => {
        "release"
    };
}

/// Debug builds die at the step that `IRONCAGE_FAULT` names, for the tests of interrupted starts,
/// and disable the layers that `IRONCAGE_LAYERS_OFF` names, for `ironcage probe matrix`.
#[cfg(debug_assertions)]
macro_rules! build_kind {
    () => {
        "debug, fault injection, layers can be disabled"
    };
}

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
