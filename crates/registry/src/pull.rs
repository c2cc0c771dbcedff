//! Fetches an image from a registry into the store.

use crate::progress::Progress;
use crate::{credentials, image_error, mirrors};
use futures_util::StreamExt as _;
use ironcage_command::error::CliError;
use ironcage_images::{
    Descriptor, Digest, Image, ImageError, Index, Limits, Manifest, Reference, Store, media,
};
use oci_client::client::{BlobResponse, ClientConfig, ClientProtocol, SizedStream};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference as RegistryReference};
use std::io::{Seek as _, Write as _};
use std::time::Duration;

/// What a manifest may be.
const ACCEPTED: [&str; 4] = [
    media::MANIFEST,
    media::INDEX,
    media::DOCKER_MANIFEST,
    media::DOCKER_LIST,
];
const CONNECT: Duration = Duration::from_secs(20);
/// How long a registry may send nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a download that broke is continued.
const CONTINUED: u32 = 5;
/// The largest manifest that is taken.
const MAX_MANIFEST: usize = 4 * 1024 * 1024;

/// Fetches an image; returns it unpacked.
pub(crate) fn pull(
    store: &Store,
    image: &Reference,
    insecure: bool,
    quiet: bool,
) -> Result<Image, CliError> {
    if insecure && !image.is_loopback() {
        return Err(CliError::new(format!(
            "cannot pull {image} without TLS: {} is not on this machine",
            image.registry
        ))
        .hint("leave out --insecure; it is for a registry on localhost"));
    }
    // An error only says that there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("cannot start the HTTP client: {error}")))?;
    let _adding = store.adding().map_err(|error| image_error(&error))?;
    let sources = mirrors::sources(image)?;
    let last = sources.len().saturating_sub(1);
    for (index, source) in sources.iter().enumerate() {
        let insecure = source.insecure || insecure && source.reference.is_loopback();
        let fetch = Fetch::new(store, &source.reference, insecure, quiet)?;
        match runtime.block_on(fetch.image(image)) {
            Ok(image) => return Ok(image),
            Err(error) if index == last => return Err(error),
            Err(error) => {
                let registry = &source.reference.registry;
                anstream::eprintln!("ironcage: mirror {registry}: {}", error.message());
            }
        }
    }
    // There is always the registry itself.
    Err(CliError::new(format!(
        "cannot pull {image}: no registry to ask"
    )))
}

struct Fetch<'a> {
    store: &'a Store,
    source: &'a Reference,
    client: Client,
    auth: RegistryAuth,
    quiet: bool,
}

impl<'a> Fetch<'a> {
    fn new(
        store: &'a Store,
        source: &'a Reference,
        insecure: bool,
        quiet: bool,
    ) -> Result<Self, CliError> {
        let config = ClientConfig {
            protocol: match insecure {
                true => ClientProtocol::Http,
                false => ClientProtocol::Https,
            },
            connect_timeout: Some(CONNECT),
            read_timeout: Some(SILENCE),
            user_agent: concat!("ironcage/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        Ok(Fetch {
            store,
            source,
            client: Client::try_from(config)
                .map_err(|error| CliError::new(format!("cannot start the HTTP client: {error}")))?,
            auth: credentials::find(&source.registry)?,
            quiet,
        })
    }

    /// The name that the client of registries knows it by.
    fn reference(&self, digest: Option<&Digest>) -> RegistryReference {
        let (registry, repository) = (self.source.registry.clone(), self.source.repository.clone());
        match (digest.or(self.source.digest.as_ref()), &self.source.tag) {
            (Some(digest), _) => {
                RegistryReference::with_digest(registry, repository, digest.to_string())
            }
            (None, Some(tag)) => RegistryReference::with_tag(registry, repository, tag.clone()),
            (None, None) => RegistryReference::with_tag(registry, repository, "latest".into()),
        }
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> CliError {
        let shown = CliError::new(format!(
            "cannot pull {}: {}",
            self.source,
            ironcage_model::in_full(error)
        ));
        let registry = &self.source.registry;
        match (Failure::of(error), &self.auth) {
            (Failure::Connection, _) => shown.hint(format!(
                "check the name `{registry}`, and that this host reaches it"
            )),
            (Failure::Refused, RegistryAuth::Anonymous) => shown.hint(format!(
                "if it needs a login, `docker login {registry}` first"
            )),
            _ => shown,
        }
    }

    async fn image(&self, name: &Reference) -> Result<Image, CliError> {
        let (digest, bytes) = self.manifest().await?;
        let manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|error| self.failed(&error))?;
        manifest.check().map_err(|error| image_error(&error))?;
        let mut progress = Progress::new(self.quiet);
        let count = manifest.layers.len();
        self.blob(&manifest.config, &mut progress, (0, count))
            .await?;
        for (index, layer) in manifest.layers.iter().enumerate() {
            self.blob(layer, &mut progress, (index + 1, count)).await?;
        }
        let add = |error: ImageError| image_error(&error);
        self.store
            .add_blob(bytes.as_slice(), &digest)
            .map_err(add)?;
        let names: Vec<Reference> = name
            .tag
            .is_some()
            .then(|| Reference {
                digest: None,
                ..name.clone()
            })
            .into_iter()
            .collect();
        self.store
            .add_image(&digest, &names, Limits::default(), |done, of| {
                progress.unpacking(done, of);
            })
            .map_err(add)
    }

    /// The manifest for this machine, checked against every digest that was named on the way.
    async fn manifest(&self) -> Result<(Digest, Vec<u8>), CliError> {
        let mut wanted = self.source.digest.clone();
        for _ in 0..3 {
            let reference = self.reference(wanted.as_ref());
            let (bytes, _) = self
                .client
                .pull_manifest_raw(&reference, &self.auth, &ACCEPTED)
                .await
                .map_err(|error| self.failed(&error))?;
            if bytes.len() > MAX_MANIFEST {
                return Err(CliError::new(format!(
                    "cannot pull {}: its manifest has more than {MAX_MANIFEST} bytes",
                    self.source
                )));
            }
            let actual = Digest::of(&bytes);
            if let Some(expected) = wanted.filter(|expected| *expected != actual) {
                return Err(image_error(&ImageError::WrongDigest {
                    what: format!("the manifest of {}", self.source),
                    expected,
                    actual,
                }));
            }
            let document: serde_json::Value =
                serde_json::from_slice(&bytes).map_err(|error| self.failed(&error))?;
            if document.get("manifests").is_none() {
                return Ok((actual, bytes.to_vec()));
            }
            let index: Index =
                serde_json::from_value(document).map_err(|error| self.failed(&error))?;
            let own = index
                .for_this_machine()
                .map_err(|error| image_error(&error))?;
            wanted = Some(own.digest.clone());
        }
        Err(CliError::new(format!(
            "cannot pull {}: its index leads to an index without end",
            self.source
        )))
    }

    /// Fetches content, from where an earlier attempt ended.
    async fn blob(
        &self,
        wanted: &Descriptor,
        progress: &mut Progress,
        (number, count): (usize, usize),
    ) -> Result<(), CliError> {
        if self.store.blob(&wanted.digest).is_some() {
            return Ok(());
        }
        let mut attempt = 0;
        loop {
            match self.attempt(wanted, progress, (number, count)).await {
                Ok(()) => break,
                // What came is kept: the next attempt fetches the rest.
                Err(Broken::Connection(error)) if attempt == CONTINUED => return Err(error),
                Err(Broken::Connection(_)) => attempt += 1,
                Err(Broken::Final(error)) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(200 << attempt)).await;
        }
        self.store
            .finish_partial(&wanted.digest)
            .map_err(|error| image_error(&error))
    }

    async fn attempt(
        &self,
        wanted: &Descriptor,
        progress: &mut Progress,
        (number, count): (usize, usize),
    ) -> Result<(), Broken> {
        let (path, mut file) = self
            .store
            .partial(&wanted.digest)
            .map_err(|error| Broken::Final(image_error(&error)))?;
        let cannot_write = |error: std::io::Error| {
            Broken::Final(CliError::new(format!(
                "cannot write {}: {error}",
                path.display()
            )))
        };
        let mut have = file.stream_position().map_err(cannot_write)?;
        if have == wanted.size {
            return Ok(());
        }
        let descriptor = OciDescriptor {
            digest: wanted.digest.to_string(),
            size: i64::try_from(wanted.size).unwrap_or(i64::MAX),
            ..OciDescriptor::default()
        };
        let reference = self.reference(None);
        let response = match have {
            0 => self
                .client
                .pull_blob_stream(&reference, &descriptor)
                .await
                .map(BlobResponse::Full),
            have => {
                self.client
                    .pull_blob_stream_partial(&reference, &descriptor, have, None)
                    .await
            }
        };
        let response = response.map_err(|error| Broken::Connection(self.failed(&error)))?;
        let SizedStream { mut stream, .. } = match response {
            BlobResponse::Partial(stream) => stream,
            // From the beginning: the registry does not continue downloads.
            BlobResponse::Full(stream) => {
                file.set_len(0).map_err(cannot_write)?;
                file.rewind().map_err(cannot_write)?;
                have = 0;
                stream
            }
        };
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(|error| Broken::Connection(self.failed(&error)))?;
            have += bytes.len() as u64;
            if have > wanted.size {
                file.set_len(0).map_err(cannot_write)?;
                return Err(Broken::Final(CliError::new(format!(
                    "cannot pull {}: the registry sends more than the {} bytes that the manifest names",
                    self.source, wanted.size
                ))));
            }
            file.write_all(&bytes).map_err(cannot_write)?;
            progress.layer(number, count, have, wanted.size);
        }
        match have == wanted.size {
            true => Ok(()),
            false => Err(Broken::Connection(CliError::new(format!(
                "cannot pull {}: the connection ended after {have} of {} bytes",
                self.source, wanted.size
            )))),
        }
    }
}

/// What failed, as far as a hint depends on it.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// The registry did not answer.
    Connection,
    /// It answered that it does not give the image. Some say of a private one that they do not have it.
    Refused,
    Other,
}

impl Failure {
    fn of(error: &(dyn std::error::Error + 'static)) -> Failure {
        if error.is::<std::io::Error>() {
            return Failure::Connection;
        }
        match error.downcast_ref::<OciDistributionError>() {
            Some(OciDistributionError::IoError(_)) => Failure::Connection,
            Some(OciDistributionError::RequestError(error)) => match error.status() {
                Some(_) => Failure::Refused,
                None if error.is_connect() || error.is_timeout() || error.is_request() => {
                    Failure::Connection
                }
                None => Failure::Other,
            },
            Some(
                OciDistributionError::AuthenticationFailure(_)
                | OciDistributionError::UnauthorizedError { .. }
                | OciDistributionError::ImageManifestNotFoundError(_)
                | OciDistributionError::RegistryError { .. }
                | OciDistributionError::ServerError {
                    code: 401 | 403 | 404,
                    ..
                },
            ) => Failure::Refused,
            _ => Failure::Other,
        }
    }
}

/// Why an attempt failed.
enum Broken {
    /// Another one may succeed.
    Connection(CliError),
    /// No other will.
    Final(CliError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_offered_where_the_registry_answered_and_not_where_nobody_did() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path());
        // Nobody listens on that port.
        let image = "127.0.0.1:1/some".parse().unwrap();
        let error = pull(&store, &image, true, true).unwrap_err();
        let shown = error.document().to_string();
        assert!(shown.contains("check the name `127.0.0.1:1`"), "{shown}");
        assert!(!shown.contains("login"), "{shown}");

        let refused = OciDistributionError::UnauthorizedError { url: "u".into() };
        assert_eq!(Failure::of(&refused), Failure::Refused);
        let broken = std::io::Error::other("reset");
        assert_eq!(Failure::of(&broken), Failure::Connection);
        let other = OciDistributionError::RegistryNoDigestError;
        assert_eq!(Failure::of(&other), Failure::Other);
    }
}
