//! The arguments of `ironcage image`. `ironcage-registry` executes them.

#![allow(
    missing_docs,
    reason = "the comments are help texts, and these have none of their own"
)]

use clap::Subcommand;
use std::path::PathBuf;

/// Pull, load, list and remove container images
///
/// `ironcage run --image NAME` runs a command with an image as its system. Images are kept in your
/// state directory, each layer once. They are unpacked as you: owners other than root, device nodes,
/// set-user-ID bits and extended attributes are dropped.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub command: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Fetch an image from a registry
    ///
    /// Uses the credentials of `docker login` and the mirrors in containers' registries.conf. A
    /// download that was interrupted continues where it ended.
    Pull {
        /// Image, for example python:3.12 or ghcr.io/owner/app@sha256:...
        image: String,
        /// Use HTTP without TLS; only for a registry on this machine
        #[arg(long)]
        insecure: bool,
        /// Print nothing but errors
        #[arg(long, short)]
        quiet: bool,
    },
    /// Load images from an archive or an OCI layout
    ///
    /// Reads what `docker save`, `podman save`, `skopeo copy` and `ironcage image export` write.
    Load {
        /// Archive, or directory with an OCI layout
        path: PathBuf,
        /// Name for the image, instead of the one in the archive
        #[arg(long)]
        name: Option<String>,
    },
    /// List images
    List {
        /// List those of the store that all users share
        #[arg(long)]
        shared: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one image
    Show {
        /// Name, or the first digits of its digest
        image: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images
    ///
    /// An image that a running cage uses is kept, with an error.
    Rm {
        /// Names, or the first digits of digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove images without a name, and data that no image needs
    Prune {
        /// Also remove images with a name, unless a running cage uses them
        #[arg(long)]
        all: bool,
    },
    /// Copy images to the store that all users of this host share (as root)
    ///
    /// Everybody can run them, read-only and only by their digests: `ironcage run --image
    /// sha256:...`. Prints the digests.
    Share {
        /// Names, or the first digits of digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove images from the store that all users share (as root)
    ///
    /// An image that a running cage uses is kept, with an error.
    Unshare {
        /// Digests, or their first digits
        #[arg(required = true, value_name = "DIGEST")]
        images: Vec<String>,
    },
    /// Make an image of what the last cage changed in its image
    ///
    /// Means the last cage of this workspace, for cages of `ironcage run --image IMAGE --writable-image`. The image gets one more layer.
    Commit {
        /// Name for the new image
        name: String,
    },
    /// Write an image as an archive
    ///
    /// `docker load`, `podman load` and `skopeo` read it.
    Export {
        /// Name, or the first digits of its digest
        image: String,
        /// File to write [default: standard output]
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
}
