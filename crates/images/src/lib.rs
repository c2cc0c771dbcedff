//! Container images: what they are called, where they are kept, and how their layers are unpacked.
//!
//! An image comes from somebody else. Nothing here follows a link out of the directory that it
//! unpacks to, trusts a size that the image names, or shows a layer before its digest is checked.
//! `ironcage-registry` pulls images into the store; the launcher only reads [`Store::image`].
#![forbid(unsafe_code)]

mod archive;
mod collect;
mod commit;
mod config;
mod digest;
mod error;
mod export;
mod flatten;
#[doc(hidden)] // for the fuzzer in fuzz/
pub mod fuzz;
mod reference;
mod shared;
mod store;
mod system;
mod template;
mod tree;
mod unpack;
mod user;

pub use archive::load;
pub use commit::commit;
pub use config::{Descriptor, ImageConfig, Index, Manifest, RunConfig, media};
pub use digest::{Digest, DigestWriter};
pub use error::ImageError;
pub use export::export;
pub use reference::Reference;
pub use shared::find;
pub use store::{Blob, Image, ImageUse, Pruned, Store};
pub use system::{SystemClaim, UPPER, WORK, WritableSystem};
pub use template::{BuildRules, StepKey, Template, TemplateFile, TemplateName, template_root};
pub use unpack::{LayerNotes, Limits};
pub use user::{ImageUser, UserError};
