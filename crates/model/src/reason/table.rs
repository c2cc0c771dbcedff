//! The macros behind the tables of reasons, and the data that a reason carries.

use crate::Printable;
use serde::{Deserialize, Serialize};

/// A code in the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasonEntry {
    /// The code.
    pub code: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// A value that belongs to a reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Datum {
    /// A count, a port, the number of a lease.
    Number(u64),
    /// Anything else.
    Text(String),
}

/// A field of a reason.
pub(super) trait Field: Sized {
    fn datum(&self) -> Datum;
    fn read(datum: &Datum) -> Option<Self>;
    fn cut(&mut self, bytes: usize);
    /// As the text shows it: what a cage may have chosen is escaped.
    fn shown(&self) -> String;
}

impl Field for u64 {
    fn datum(&self) -> Datum {
        Datum::Number(*self)
    }

    fn read(datum: &Datum) -> Option<Self> {
        match datum {
            Datum::Number(number) => Some(*number),
            Datum::Text(_) => None,
        }
    }

    fn cut(&mut self, _bytes: usize) {}

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Field for String {
    fn datum(&self) -> Datum {
        Datum::Text(self.clone())
    }

    fn read(datum: &Datum) -> Option<Self> {
        match datum {
            Datum::Text(text) => Some(text.clone()),
            Datum::Number(_) => None,
        }
    }

    fn cut(&mut self, bytes: usize) {
        if self.len() > bytes {
            let end = (0..=bytes).rev().find(|at| self.is_char_boundary(*at));
            self.truncate(end.unwrap_or(0));
        }
    }

    fn shown(&self) -> String {
        Printable::new(self).to_string()
    }
}

/// A table of reasons with their data. Each entry is: meaning, variant and fields, code, text,
/// remedy.
macro_rules! reasons {
    (
        $(#[$about:meta])* $area:ident
        $(
            $(#[doc = $meaning:literal])+
            $variant:ident $({ $($field:ident: $kind:ty),+ })?
            $code:literal $text:literal => $remedy:literal;
        )+
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the text of each reason says what its fields are")]
        pub enum $area {
            $(
                $(#[doc = $meaning])+
                $variant $({ $($field: $kind),+ })?,
            )+
        }

        impl $area {
            /// The table, for the reference.
            pub const TABLE: &'static [$crate::reason::ReasonEntry] = &[
                $($crate::reason::ReasonEntry {
                    code: $code,
                    meaning: concat!($($meaning),+),
                    remedy: $remedy,
                }),+
            ];

            /// The stable code.
            pub const fn code(&self) -> &'static str {
                match self {
                    $($area::$variant $({ $($field: _),+ })? => $code,)+
                }
            }

            pub(super) fn data(
                &self,
            ) -> std::collections::BTreeMap<String, $crate::reason::Datum> {
                match self {
                    $($area::$variant $({ $($field),+ })? => [
                        $($((
                            stringify!($field).to_owned(),
                            $crate::reason::table::Field::datum($field),
                        )),+)?
                    ].into(),)+
                }
            }

            pub(super) fn read(
                code: &str,
                data: &std::collections::BTreeMap<String, $crate::reason::Datum>,
            ) -> Option<Self> {
                match code {
                    $($code => Some($area::$variant $({
                        $($field: $crate::reason::table::Field::read(
                            data.get(stringify!($field))?,
                        )?),+
                    })?),)+
                    _ => None,
                }
            }

            pub(super) fn cut(&mut self, bytes: usize) {
                match self {
                    $($area::$variant $({ $($field),+ })? => {
                        $($($crate::reason::table::Field::cut($field, bytes);)+)?
                    })+
                }
                let _ = bytes;
            }
        }

        impl std::fmt::Display for $area {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($area::$variant $({ $($field),+ })? => write!(
                        f,
                        $text
                        $($(, $field = $crate::reason::table::Field::shown($field))+)?
                    ),)+
                }
            }
        }
    };
}

/// A table of codes of errors that have their data and text elsewhere. Each entry is: meaning,
/// variant, code, remedy.
macro_rules! codes {
    (
        $(#[$about:meta])* $area:ident
        $(
            $(#[doc = $meaning:literal])+
            $variant:ident $code:literal => $remedy:literal;
        )+
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $area {
            $(
                $(#[doc = $meaning])+
                $variant,
            )+
        }

        impl $area {
            /// The table, for the reference.
            pub const TABLE: &'static [$crate::reason::ReasonEntry] = &[
                $($crate::reason::ReasonEntry {
                    code: $code,
                    meaning: concat!($($meaning),+),
                    remedy: $remedy,
                }),+
            ];

            /// The stable code.
            pub const fn code(self) -> &'static str {
                match self {
                    $($area::$variant => $code,)+
                }
            }

            /// Every code, in the order of the table.
            pub const ALL: &'static [$area] = &[$($area::$variant),+];

            pub(super) fn find(code: &str) -> Option<Self> {
                match code {
                    $($code => Some($area::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
