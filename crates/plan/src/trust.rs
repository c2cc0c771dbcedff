//! Where programs look for certificate authorities: in a cage with TLS interception they find the
//! host's and the cage's own there, and wherever the user has authorities besides the system's,
//! those too.

use crate::plan::{Item, Variable, ViewOp};
use crate::{PlanError, Request};
use ironcage_host::{HostFiles, NodeType};
use ironcage_policy::Policy;
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
/// Why a cage that intercepts TLS has them, and one that does not.
pub(crate) const INTERCEPTION: &str =
    "built in: TLS interception for request rules, secrets or models";
pub(crate) const EXTRA: &str = "built in: certificate authorities besides the system's";

fn real_file(path: &Path, files: &dyn HostFiles) -> Option<PathBuf> {
    let real = files.real(path).ok()?;
    (files.node(&real)?.kind == NodeType::File).then_some(real)
}

/// Variables by which the caller names authorities besides the system's.
const CALLERS: [&str; 4] = [
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

fn system(files: &dyn HostFiles) -> Option<PathBuf> {
    BUNDLES
        .iter()
        .find_map(|path| real_file(Path::new(path), files))
}

/// Files of authorities besides the system's: those that the caller's variables name, and those of
/// the policy.
pub(crate) fn extra(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
) -> Result<Vec<PathBuf>, PlanError> {
    let system = system(files);
    let node = (request.env.iter()).find(|(name, _)| name == "NODE_EXTRA_CA_CERTS");
    let node = node.and_then(|(_, path)| real_file(Path::new(path), files));
    let named = CALLERS.iter().filter_map(|name| {
        let (_, path) = request.env.iter().find(|(known, _)| known == name)?;
        let path = Path::new(path);
        // As programs do: one that is not there is not used.
        path.is_absolute().then(|| real_file(path, files)).flatten()
    });
    let mut found: Vec<PathBuf> = Vec::new();
    let mut add = |real: PathBuf| {
        // Node has authorities of its own, and takes even the system's only where it is told to.
        let known = system.as_ref() == Some(&real) && node.as_ref() != Some(&real);
        if !known && !found.contains(&real) {
            found.push(real);
        }
    };
    named.for_each(&mut add);
    for file in &policy.network.authorities {
        let real = real_file(&file.value, files).ok_or_else(|| PlanError::MissingPath {
            path: file.value.clone(),
            origin: file.origin.to_string(),
        })?;
        add(real);
    }
    Ok(found)
}

/// The host's authorities: the system's, then others.
pub(crate) fn authorities(
    extra: &[PathBuf],
    files: &dyn HostFiles,
) -> Result<Vec<PathBuf>, PlanError> {
    let mut found: Vec<PathBuf> = system(files).into_iter().collect();
    for path in extra {
        if !found.contains(path) {
            found.push(path.clone());
        }
    }
    if found.is_empty() {
        return Err(PlanError::NoAuthorities);
    }
    Ok(found)
}

/// Files that are made in the view. The cage's own authority is in each of them, where it has one.
pub(crate) fn files(bundles: &[PathBuf], extra: &[PathBuf], why: &str) -> Vec<Item<ViewOp>> {
    let file = |target: &str, bundles: &[PathBuf], java: bool| Item {
        what: ViewOp::Authorities {
            target: target.into(),
            bundles: bundles.to_vec(),
            java,
        },
        origin: why.to_owned(),
    };
    vec![
        file(ALL, bundles, false),
        file(OWN, extra, false),
        file(ALL_JAVA, bundles, true),
    ]
}

/// Places of the system at which those files are seen instead.
pub(crate) fn covers(host: &dyn HostFiles, why: &str) -> Vec<Item<ViewOp>> {
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
        origin: why.to_owned(),
    };
    targets.into_iter().map(cover).collect()
}

/// Variables by which programs find them.
pub(crate) fn variables(why: &str) -> Vec<Item<Variable>> {
    let all = NAME_ALL.iter().map(|name| (*name, ALL));
    let own = NAME_OWN.iter().map(|name| (*name, OWN));
    all.chain(own)
        .map(|(name, value)| Item {
            what: Variable {
                name: name.into(),
                value: value.into(),
            },
            origin: why.to_owned(),
        })
        .collect()
}
