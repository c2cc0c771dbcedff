//! The JSON documents of an image: index, manifest and configuration.
//!
//! Only the fields that are used are read, so these few types stand here instead of the crate
//! `oci-spec`, whose builders and derive macros would be in every start of `run --image`.

use crate::{Digest, ImageError, Limits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The media types of documents and layers.
pub mod media {
    /// An index, as OCI names it.
    pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// An index, as Docker names it.
    pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    /// A manifest, as OCI names it.
    pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// A manifest, as Docker names it.
    pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// A configuration, as Docker names it.
    pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// A configuration, as OCI names it.
    pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    /// A layer that gzip compressed.
    pub const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
}

/// The largest document that is read: manifests of real images have a few kilobytes.
pub(crate) const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
/// Overlayfs takes up to 500 lower layers; Docker makes images of at most 127.
pub(crate) const MAX_LAYERS: usize = 128;

/// A reference to content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The platform that it is for, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Names and remarks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// An operating system on a processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// As in `amd64`.
    #[serde(default)]
    pub architecture: String,
    /// As in `linux`.
    #[serde(default)]
    pub os: String,
}

/// A list of manifests, one for each platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    pub schema_version: u32,
    pub manifests: Vec<Descriptor>,
}

impl Index {
    /// The manifest for this machine.
    ///
    /// # Errors
    /// If there is none, or the image lists only others.
    pub fn for_this_machine(&self) -> Result<&Descriptor, ImageError> {
        let own = |descriptor: &&Descriptor| match &descriptor.platform {
            Some(platform) => platform.os == "linux" && platform.architecture == architecture(),
            None => false,
        };
        // A layout that one tool wrote for one platform names none.
        let unnamed = || match self.manifests.as_slice() {
            [only] if only.platform.is_none() => Some(only),
            _ => None,
        };
        let found = self.manifests.iter().find(own).or_else(unnamed);
        found.ok_or_else(|| ImageError::NoPlatform {
            wanted: format!("linux/{}", architecture()),
            offered: self
                .manifests
                .iter()
                .filter_map(|descriptor| descriptor.platform.as_ref())
                .map(|platform| format!("{}/{}", platform.os, platform.architecture))
                .take(20)
                .collect(),
        })
    }
}

/// This machine, as Go and so image indexes name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What an image consists of.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    /// What this document is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// The configuration.
    pub config: Descriptor,
    /// The layers, the lowest first.
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    /// Checks what the manifest claims, before anything of the image is fetched.
    ///
    /// # Errors
    /// If it has too many layers, or parts that are too large.
    pub fn check(&self) -> Result<(), ImageError> {
        let wrong = |why: String| Err(ImageError::Inconsistent { why });
        if self.schema_version != 2 {
            return wrong(format!(
                "its manifest has schema version {}; 2 is supported",
                self.schema_version
            ));
        }
        // Registries keep other things in the same form: charts, signatures, models.
        let config = self.config.media_type.as_str();
        if !["", media::CONFIG, media::DOCKER_CONFIG].contains(&config) {
            let config: String = config.chars().take(100).collect();
            return wrong(format!(
                "it is not a container image: its configuration has media type {config}"
            ));
        }
        let count = self.layers.len();
        if count == 0 || count > MAX_LAYERS {
            return wrong(format!(
                "it has {count} layers; 1 to {MAX_LAYERS} are possible"
            ));
        }
        if self.config.size > MAX_DOCUMENT {
            let size = self.config.size;
            return wrong(format!(
                "its configuration has {size} bytes; at most {MAX_DOCUMENT} are possible"
            ));
        }
        let most = Limits::default().bytes;
        let sizes = self.layers.iter().map(|layer| layer.size);
        let sum = sizes.fold(0, u64::saturating_add);
        match sum > most {
            true => wrong(format!(
                "its layers have {sum} bytes; at most {most} are possible"
            )),
            false => Ok(()),
        }
    }
}

/// How a program is started by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// `NAME=VALUE`.
    #[serde(deserialize_with = "null_is_empty")]
    pub env: Vec<String>,
    /// What always runs.
    #[serde(deserialize_with = "null_is_empty")]
    pub entrypoint: Vec<String>,
    /// Its arguments, unless others are given.
    #[serde(deserialize_with = "null_is_empty")]
    pub cmd: Vec<String>,
    /// A user, with an optional group.
    #[serde(deserialize_with = "null_is_empty")]
    pub user: String,
    /// Where it starts.
    #[serde(deserialize_with = "null_is_empty")]
    pub working_dir: String,
    /// The signal that asks it to end.
    #[serde(
        deserialize_with = "null_is_empty",
        skip_serializing_if = "String::is_empty"
    )]
    pub stop_signal: String,
    /// Remarks.
    #[serde(deserialize_with = "null_is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl RunConfig {
    /// Where the image's own command starts. The top is what an image has that names nothing.
    pub fn working_directory(&self) -> Option<&Path> {
        let path = Path::new(&self.working_dir);
        (path.is_absolute() && path.components().count() > 1).then_some(path)
    }

    /// The number of the signal that asks it to end. `None` if the image names none.
    ///
    /// # Errors
    /// If it names something else.
    pub fn stop_signal(&self) -> Option<Result<i32, ImageError>> {
        let name = self.stop_signal.trim();
        if name.is_empty() {
            return None;
        }
        let bare = name.strip_prefix("SIG").unwrap_or(name);
        let real_time = |text: &str| SIGRTMIN.checked_add(text.parse().ok()?);
        let number = match bare {
            "HUP" => Some(1),
            "INT" => Some(2),
            "QUIT" => Some(3),
            "KILL" => Some(9),
            "USR1" => Some(10),
            "USR2" => Some(12),
            "TERM" => Some(15),
            "PWR" => Some(30),
            "RTMIN" => Some(SIGRTMIN),
            other => match other.strip_prefix("RTMIN+") {
                Some(more) => real_time(more),
                None => other.parse().ok(),
            },
        };
        let number = number.filter(|number| (1..=64).contains(number));
        Some(number.ok_or_else(|| ImageError::StopSignal { name: name.into() }))
    }
}

/// The first real-time signal that programs have: the C library keeps two.
const SIGRTMIN: i32 = 34;

/// Docker writes `null` for what is empty.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An image's configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageConfig {
    /// As in `amd64`.
    #[serde(default)]
    pub architecture: String,
    /// As in `linux`.
    #[serde(default)]
    pub os: String,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// How a program is started.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub config: RunConfig,
    /// The digests of the uncompressed layers.
    pub rootfs: RootFs,
}

/// The layers of a configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RootFs {
    /// `layers`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The digests of the uncompressed layers, the lowest first.
    pub diff_ids: Vec<Digest>,
}

/// Parses a document of an image.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(
    bytes: &[u8],
    what: &'static str,
) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|source| ImageError::BadDocument { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_signal_has_a_number_or_is_an_error() {
        let of = |name: &str| {
            let run = RunConfig {
                stop_signal: name.into(),
                ..RunConfig::default()
            };
            run.stop_signal().map(|found| found.ok())
        };
        assert_eq!(of(""), None);
        for (name, number) in [("SIGRTMIN+3", 37), ("37", 37), ("SIGTERM", 15), ("PWR", 30)] {
            assert_eq!(of(name), Some(Some(number)), "{name}");
        }
        for wrong in ["0", "65", "-1", "SIGNONE", "RTMIN+2147483647", "SIGRTMIN+"] {
            assert_eq!(of(wrong), Some(None), "{wrong}");
        }
    }

    #[test]
    fn an_index_gives_the_manifest_of_this_machine() {
        let text = |architecture: &str| {
            let digest = Digest::of(architecture.as_bytes());
            format!(
                r#"{{"digest":"{digest}","size":1,"platform":{{"os":"linux","architecture":"{architecture}"}}}}"#
            )
        };
        let both = format!(
            r#"{{"schemaVersion":2,"manifests":[{},{}]}}"#,
            text("s390x"),
            text(architecture())
        );
        let index: Index = parse(both.as_bytes(), "the index").unwrap();
        let own = index.for_this_machine().unwrap();
        assert_eq!(own.digest, Digest::of(architecture().as_bytes()));
        let other = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, text("s390x"));
        let index: Index = parse(other.as_bytes(), "the index").unwrap();
        let error = index.for_this_machine().unwrap_err();
        assert!(
            matches!(error, ImageError::NoPlatform { offered, .. } if offered == ["linux/s390x"])
        );
    }

    #[test]
    fn a_manifest_is_checked_before_its_parts_are_fetched() {
        let part = |size: u64| Descriptor {
            media_type: String::new(),
            digest: Digest::of(b"part"),
            size,
            platform: None,
            annotations: BTreeMap::new(),
        };
        let manifest = |config: u64, layers: usize, size: u64| Manifest {
            schema_version: 2,
            media_type: String::new(),
            config: part(config),
            layers: vec![part(size); layers],
        };
        let most = Limits::default().bytes;
        for (fits, manifest) in [
            (true, manifest(MAX_DOCUMENT, 1, most)),
            (true, manifest(1, MAX_LAYERS, 1)),
            (false, manifest(MAX_DOCUMENT + 1, 1, 1)),
            (false, manifest(1, MAX_LAYERS + 1, 1)),
            (false, manifest(1, 0, 1)),
            (false, manifest(1, 2, most)),
            (false, manifest(1, 2, u64::MAX)),
        ] {
            let result = manifest.check();
            assert_eq!(result.is_ok(), fits, "{result:?}");
        }
    }

    #[test]
    fn null_in_a_configuration_is_empty() {
        let text = r#"{"config":{"Env":null,"Cmd":["sh"],"User":null},"rootfs":{"type":"layers","diff_ids":[]}}"#;
        let config: ImageConfig = parse(text.as_bytes(), "the configuration").unwrap();
        assert_eq!(config.config.cmd, ["sh"]);
        assert!(config.config.env.is_empty());
    }
}
