//! TLS of the listener: a certificate and its key, loaded again when the files change.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot read {}: expected PEM", path.display())]
    Pem { path: PathBuf, source: pem::Error },
    #[error("{} has no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("every user of this host can read the key {}", path.display())]
    OpenKey { path: PathBuf },
    #[error("the certificate and the key do not fit")]
    Pair(#[from] rustls::Error),
}

/// What tells one state of the files from another.
type TlsStamp = [(u64, i64, i64, u64); 2];

/// The certificate of the service.
#[derive(Debug)]
pub(crate) struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    stamp: TlsStamp,
    looked: Instant,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").finish_non_exhaustive()
    }
}

fn stamp(certificate: &Path, key: &Path) -> Result<TlsStamp, TlsError> {
    let of = |path: &Path| {
        let found = fs::metadata(path).map_err(|source| TlsError::File {
            path: path.to_owned(),
            source,
        })?;
        let stamp = (found.ino(), found.mtime(), found.mtime_nsec(), found.size());
        Ok::<_, TlsError>((stamp, found.permissions().mode()))
    };
    let (first, _) = of(certificate)?;
    let (second, mode) = of(key)?;
    match mode & 0o007 {
        0 => Ok([first, second]),
        _ => Err(TlsError::OpenKey {
            path: key.to_owned(),
        }),
    }
}

fn config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(failed(certificate))?;
    let chain: Result<Vec<_>, _> = chain.collect();
    let chain = chain.map_err(failed(certificate))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate {
            path: certificate.to_owned(),
        });
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(failed(key))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl Tls {
    pub(crate) fn load(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        // Before the files: what changes in between is noticed.
        let stamp = stamp(certificate, key)?;
        let config = config(certificate, key)?;
        Ok(Tls {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            loaded: Mutex::new(Loaded {
                config,
                stamp,
                looked: Instant::now(),
            }),
        })
    }

    /// What accepts the next connection. Files that changed and cannot be used leave the last ones in
    /// force, and are named once.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.looked.elapsed() >= LOOK {
            loaded.looked = Instant::now();
            if let Err(error) = self.renew(&mut loaded) {
                anstream::eprintln!(
                    "ironcage serve: the last certificate stays in use: {}",
                    ironcage_model::in_full(&error)
                );
            }
        }
        TlsAcceptor::from(Arc::clone(&loaded.config))
    }

    fn renew(&self, loaded: &mut Loaded) -> Result<(), TlsError> {
        let Ok(stamp) = stamp(&self.certificate, &self.key) else {
            // Perhaps between two steps of a renewal.
            return Ok(());
        };
        if stamp != loaded.stamp {
            loaded.stamp = stamp;
            loaded.config = config(&self.certificate, &self.key)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_pair_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str, mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let empty = path("empty.pem", "", 0o644);
        let key = path("key.pem", "nothing", 0o600);
        let open = path("open.pem", "nothing", 0o644);
        let absent = directory.path().join("absent.pem");
        let refused = |certificate: &Path, key: &Path| Tls::load(certificate, key).unwrap_err();
        assert!(matches!(refused(&absent, &key), TlsError::File { path, .. } if path == absent));
        assert!(matches!(refused(&empty, &absent), TlsError::File { path, .. } if path == absent));
        assert!(matches!(refused(&empty, &open), TlsError::OpenKey { path } if path == open));
        assert!(matches!(refused(&empty, &key), TlsError::NoCertificate { path } if path == empty));
    }
}
