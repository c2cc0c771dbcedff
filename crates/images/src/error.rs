//! Why something about an image failed.

use crate::Digest;
use ironcage_model::Printable;
use std::io;
use std::path::PathBuf;

/// Why something about an image failed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A name that no image can have.
    #[error("invalid image name `{text}`: {why}")]
    BadReference {
        /// The name.
        text: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A digest that is not a SHA-256.
    #[error("invalid digest `{text}`: expected sha256: and 64 hexadecimal digits")]
    BadDigest { text: String },
    /// A document that cannot be read.
    #[error("cannot read {what}")]
    BadDocument {
        what: &'static str,
        /// Where it is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A document that contradicts itself.
    #[error("invalid image: {}", Printable::new(why))]
    Inconsistent { why: String },
    /// No manifest for this machine.
    #[error("the image has no manifest for {wanted}; it offers {}", list(offered))]
    NoPlatform {
        /// This machine's platform.
        wanted: String,
        /// What the image has.
        offered: Vec<String>,
    },
    /// Content that differs from its digest.
    #[error("{what} has digest {actual}, expected {expected}")]
    WrongDigest {
        /// The content.
        what: String,
        /// The digest it was named by.
        expected: Digest,
        /// The digest it has.
        actual: Digest,
    },
    /// A layer of a kind that cannot be unpacked.
    #[error(
        "cannot unpack a layer of media type `{media_type}`: expected a tar archive, plain or compressed with gzip or zstd"
    )]
    LayerType { media_type: String },
    /// An entry of a layer that must not be unpacked.
    #[error("cannot unpack `{}`: {why}", Printable::new(entry))]
    Entry {
        /// Its name.
        entry: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// More than a layer may have.
    #[error("cannot unpack the layer: it has more than {limit}")]
    TooLarge { limit: String },
    /// An archive in which no image is.
    #[error(
        "cannot load {}: it is neither an OCI layout nor an archive of `docker save`",
        Printable::new(path)
    )]
    NotAnArchive {
        /// The file or directory.
        path: PathBuf,
    },
    /// No image of that name.
    #[error("no image `{name}` in the store")]
    Missing {
        /// The name that was asked for.
        name: String,
    },
    /// A name that fits several images.
    #[error("`{name}` fits several images: {}", list(found))]
    Ambiguous {
        name: String,
        /// What it fits.
        found: Vec<String>,
    },
    /// An image that a cage uses.
    #[error("cannot remove {name}: a running cage uses it")]
    InUse {
        /// The image.
        name: String,
    },
    /// An image that a template leads to.
    #[error("cannot remove {name}: the template `{template}` uses it")]
    OfTemplate {
        /// The image.
        name: String,
        template: String,
    },
    /// An image of the shared store that a cage uses.
    #[error("cannot remove {name}: a running cage of user {user} uses it")]
    SharedInUse { name: String, user: u32 },
    /// A shared store that not only root can change.
    #[error(
        "cannot use the shared store: {} is not a directory of root alone",
        Printable::new(path)
    )]
    UnsafeShared { path: PathBuf },
    /// A change of the shared store by somebody else than root.
    #[error("cannot change the shared store: it is root's")]
    SharedIsRoots,
    /// A template file that cannot be used.
    #[error("invalid template {}: {why}", Printable::new(path))]
    BadTemplate {
        path: PathBuf,
        /// What is wrong, as the parser says.
        why: String,
    },
    /// No template of that name.
    #[error("no template `{}`", Printable::new(name))]
    NoTemplate { name: String },
    /// A template whose image is gone.
    #[error("the image of the template `{name}` is not in the store")]
    TemplateGone { name: String },
    /// An image's signal that is not one.
    #[error(
        "the image names the stop signal `{}`: expected a number up to 64 or a name such as SIGRTMIN+3",
        Printable::new(name)
    )]
    StopSignal { name: String },
    /// A writable system that a cage uses.
    #[error("a running cage in this workspace uses its image writable")]
    SystemInUse,
    /// A writable system to which nothing was written.
    #[error("nothing to commit: no cage in this workspace has changed the system of its image")]
    NothingToCommit,
    /// The system refused something.
    #[error("cannot {action} {}", Printable::new(path))]
    Io {
        /// What was tried.
        action: &'static str,
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The state store refused something.
    #[error(transparent)]
    State(#[from] ironcage_state::StateError),
}

impl ImageError {
    /// What can be done about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            ImageError::Missing { name } => Some(format!(
                "`ironcage image pull {name}` fetches it, `ironcage image list` shows what is there"
            )),
            ImageError::UnsafeShared { .. } => {
                Some("it must belong to root, with mode 755: `chown root`, `chmod 755`".into())
            }
            ImageError::SharedIsRoots => Some("run it as root, for example with sudo".into()),
            ImageError::InUse { .. } => Some("stop the cage first; `ironcage ps` lists them".into()),
            ImageError::OfTemplate { template, .. } => {
                Some(format!("`ironcage template rm {template}` removes the template first"))
            }
            ImageError::NoTemplate { .. } => Some(
                "`ironcage template list` shows what is there, `ironcage template build FILE` makes one"
                    .into(),
            ),
            ImageError::TemplateGone { .. } => {
                Some("build it again with `ironcage template build`".into())
            }
            ImageError::SystemInUse => {
                Some("wait until it has ended, or use another workspace".into())
            }
            ImageError::NothingToCommit => Some(
                "`ironcage run --image IMAGE --writable-image -- COMMAND` starts one that can"
                    .into(),
            ),
            ImageError::Ambiguous { .. } => Some("use the whole name, or more digits".into()),
            ImageError::NotAnArchive { .. } => Some(
                "make one with `docker save` or `skopeo copy ... oci-archive:FILE`; a plain directory needs `--name NAME`"
                    .into(),
            ),
            ImageError::WrongDigest { .. } => {
                Some("the content was changed or cut short on its way; fetch it again".into())
            }
            _ => None,
        }
    }
}

fn list(items: &[String]) -> String {
    match items.is_empty() {
        true => "nothing".to_owned(),
        false => items.join(", "),
    }
}

/// Adds what was tried to the kernel's answer.
pub(crate) trait Doing<T> {
    fn doing(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, ImageError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, ImageError> {
        self.map_err(|source| ImageError::Io {
            action,
            path: path.into(),
            source: source.into(),
        })
    }
}
