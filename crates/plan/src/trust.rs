//! Where programs look for certificate authorities: in a cage with TLS interception they find the
//! host's and the cage's own there.

use crate::plan::{Item, Variable, ViewOp};
use crate::{PlanError, Request};
use ironcage_host::{HostFiles, NodeType};
use std::path::{Path, PathBuf};

/// Bundles of authorities, in the order in which they are looked for: Debian, Fedora, SUSE,
/// Alpine and others.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The same for Java, which reads no such bundle.
const JAVA: [&str; 2] = [
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
];
/// In the cage: all authorities, those of the cage alone, and all of them for Java.
const ALL: &str = "/run/ironcage/authorities.pem";
const OWN: &str = "/run/ironcage/authority.pem";
const ALL_JAVA: &str = "/run/ironcage/authorities.jks";
/// Variables that name a file with all authorities a program is to trust.
const NAME_ALL: [&str; 8] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
];
/// Variables that name a file with authorities besides those that a program has itself.
const NAME_OWN: [&str; 1] = ["NODE_EXTRA_CA_CERTS"];
const ORIGIN: &str = "built in: TLS interception for request rules, secrets or models";

fn real_file(path: &Path, files: &dyn HostFiles) -> Option<PathBuf> {
    let real = files.real(path).ok()?;
    (files.node(&real)?.kind == NodeType::File).then_some(real)
}

/// The host's authorities: the system's, and those that the caller's `SSL_CERT_FILE` names.
pub(crate) fn authorities(
    request: &Request,
    files: &dyn HostFiles,
) -> Result<Vec<PathBuf>, PlanError> {
    let mut found: Vec<PathBuf> = BUNDLES
        .iter()
        .find_map(|path| real_file(Path::new(path), files))
        .into_iter()
        .collect();
    let configured = request.env.iter().find(|(name, _)| name == "SSL_CERT_FILE");
    if let Some(real) = configured.and_then(|(_, path)| real_file(Path::new(path), files))
        && !found.contains(&real)
    {
        found.push(real);
    }
    if found.is_empty() {
        return Err(PlanError::NoAuthorities);
    }
    Ok(found)
}

/// Files that are made in the view.
pub(crate) fn files(bundles: &[PathBuf]) -> Vec<Item<ViewOp>> {
    let file = |target: &str, bundles: &[PathBuf], java: bool| Item {
        what: ViewOp::Authorities {
            target: target.into(),
            bundles: bundles.to_vec(),
            java,
        },
        origin: ORIGIN.to_owned(),
    };
    vec![
        file(ALL, bundles, false),
        file(OWN, &[], false),
        file(ALL_JAVA, bundles, true),
    ]
}

/// Places of the system at which those files are seen instead.
pub(crate) fn covers(host: &dyn HostFiles) -> Vec<Item<ViewOp>> {
    let mut targets: Vec<(PathBuf, &str)> = Vec::new();
    for (paths, with) in [(&BUNDLES[..], ALL), (&JAVA[..], ALL_JAVA)] {
        for path in paths {
            let Some(real) = real_file(Path::new(path), host) else {
                continue;
            };
            // Elsewhere it is no file of the system's view.
            let seen = real.starts_with("/etc") || real.starts_with("/usr");
            if seen && targets.iter().all(|(known, _)| *known != real) {
                targets.push((real, with));
            }
        }
    }
    let cover = |(target, with): (PathBuf, &str)| Item {
        what: ViewOp::Cover {
            target,
            with: with.into(),
        },
        origin: ORIGIN.to_owned(),
    };
    targets.into_iter().map(cover).collect()
}

/// Variables by which programs find them.
pub(crate) fn variables() -> Vec<Item<Variable>> {
    let all = NAME_ALL.iter().map(|name| (*name, ALL));
    let own = NAME_OWN.iter().map(|name| (*name, OWN));
    all.chain(own)
        .map(|(name, value)| Item {
            what: Variable {
                name: name.into(),
                value: value.into(),
            },
            origin: ORIGIN.to_owned(),
        })
        .collect()
}
