//! The cage's certificate authority, and both sides' settings of TLS.

use ironcage_model::HostName;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Certificates that are kept; when there are more, all are made anew.
const CERTIFICATES: usize = 256;
/// Longest file of authorities.
const LONGEST: u64 = 8 << 20;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long the authority and its certificates hold: longer than any cage.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What is spoken inside of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Spoken {
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
}

impl Spoken {
    /// Its name where the two sides agree on one.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Spoken::One => b"http/1.1",
            Spoken::Two => b"h2",
        }
    }
}

/// What opens TLS.
pub(crate) struct TlsInterceptor {
    issuer: Issuer<'static, KeyPair>,
    /// One key for all certificates: making one takes longer than signing.
    key: KeyPair,
    provider: Arc<CryptoProvider>,
    certificates: RefCell<HashMap<(HostName, Spoken), Arc<ServerConfig>>>,
    client: Arc<ClientConfig>,
    pem: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + YEAR).into();
    params
}

impl TlsInterceptor {
    /// Makes an authority, and reads those of the host.
    ///
    /// # Errors
    /// Where there is no authority to know servers by, or none can be made.
    pub(crate) fn new(authorities: &[impl AsRef<Path>]) -> io::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let client = client(authorities)?;
        let key = || KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(io::Error::other);
        let mut own = params("Ironcage, for this cage only");
        own.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        own.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let signing = key()?;
        let certificate = own.self_signed(&signing).map_err(io::Error::other)?;
        Ok(TlsInterceptor {
            pem: certificate.pem(),
            issuer: Issuer::new(own, signing),
            key: key()?,
            provider,
            certificates: RefCell::default(),
            client,
        })
    }

    /// The authority's certificate, for those inside to trust.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// The settings with which the inside is spoken to in a server's name.
    pub(crate) fn server(&self, name: &HostName, spoken: Spoken) -> io::Result<Arc<ServerConfig>> {
        let place = (name.clone(), spoken);
        if let Some(known) = self.certificates.borrow().get(&place) {
            return Ok(Arc::clone(known));
        }
        let mut leaf = params(name.as_str().get(..64).unwrap_or(name.as_str()));
        leaf.subject_alt_names = vec![rcgen::SanType::DnsName(
            name.as_str().try_into().map_err(io::Error::other)?,
        )];
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let signed = leaf
            .signed_by(&self.key, &self.issuer)
            .map_err(io::Error::other)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let certified = CertifiedKey::from_der(vec![signed.der().clone()], key, &self.provider)
            .map_err(io::Error::other)?;
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![spoken.name().to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let config = Arc::new(config);
        let mut kept = self.certificates.borrow_mut();
        if kept.len() >= CERTIFICATES {
            kept.clear();
        }
        kept.insert(place, Arc::clone(&config));
        Ok(config)
    }

    /// Speaks TLS to a server, which has to prove its name.
    pub(crate) async fn connect(
        &self,
        name: &HostName,
        server: TcpStream,
        offered: &[Spoken],
    ) -> io::Result<(TlsStream<TcpStream>, Spoken)> {
        let to = ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?;
        let offered: Vec<Vec<u8>> = offered.iter().map(|one| one.name().to_vec()).collect();
        let stream = TlsConnector::from(Arc::clone(&self.client))
            .with_alpn(offered)
            .connect(to, server)
            .await?;
        let spoken = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Spoken::Two,
            _ => Spoken::One,
        };
        Ok((stream, spoken))
    }
}

/// The settings with which servers outside are spoken to: each has to prove its name.
///
/// # Errors
/// Where there is no authority to know servers by.
pub(crate) fn client(authorities: &[impl AsRef<Path>]) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for path in authorities {
        add(&mut roots, path.as_ref())?;
    }
    if roots.is_empty() {
        return Err(io::Error::other(
            "the host's certificate authorities could not be read",
        ));
    }
    let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // No early data, and no state of one connection in another.
    client.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(client))
}

/// Speaks TLS to a server that has to prove its name.
pub(crate) async fn prove(
    config: &Arc<ClientConfig>,
    name: &HostName,
    server: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let to = ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::clone(config));
    connector.connect(to, server).await
}

/// Adds the certificates of a file. What is no authority is left out, as other programs do.
fn add(roots: &mut RootCertStore, path: &Path) -> io::Result<()> {
    let bytes = ironcage_files::read(path, LONGEST, ironcage_files::Links::Follow)
        .map_err(io::Error::other)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok);
    roots.add_parsable_certificates(certificates);
    Ok(())
}
