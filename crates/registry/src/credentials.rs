//! Credentials for registries, from where `docker login` and `podman login` put them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ironcage_command::error::CliError;
use ironcage_files::{Links, ReadError, read};
use ironcage_model::in_full;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

const MAX_FILE: u64 = 1024 * 1024;
/// The key of Docker's own registry in its configuration.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";
/// The user name that marks a token instead of a password.
const TOKEN: &str = "<token>";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, Login>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Login {
    auth: Option<String>,
    /// What some registries of cloud providers give instead of a password.
    #[serde(rename = "identitytoken")]
    identity_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Why credentials cannot be read. No variant holds a part of them.
#[derive(Debug, thiserror::Error)]
enum CredentialError {
    #[error(transparent)]
    File(ReadError),
    #[error(transparent)]
    Config(serde_json::Error),
    #[error("expected user:password in base64 in `auth`")]
    NotUserAndPassword,
    #[error("invalid credential helper `{}`", .0.escape_default())]
    HelperName(String),
    #[error("cannot run {program}")]
    Helper { program: String, source: io::Error },
    #[error("{program} ended with {status}")]
    HelperFailed { program: String, status: ExitStatus },
    #[error("{program} gave no user name and secret")]
    HelperAnswer { program: String },
    #[error(
        "{place} has an identity token, which is not supported; \
         log in with a password or access token"
    )]
    IdentityToken { place: String },
}

/// The files that may hold credentials, the first that has them wins.
fn files() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let docker = std::env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| Some(home.as_ref()?.join(".docker")));
    let podman = std::env::var_os("REGISTRY_AUTH_FILE")
        .map(PathBuf::from)
        .or_else(|| {
            let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)?;
            Some(run.join("containers/auth.json"))
        });
    let containers = home.map(|home| home.join(".config/containers/auth.json"));
    let docker = docker.map(|directory| directory.join("config.json"));
    [podman, containers, docker].into_iter().flatten().collect()
}

/// Finds the credentials for a registry; without any, it is asked anonymously.
pub(crate) fn find(registry: &str) -> Result<RegistryAuth, CliError> {
    for path in files() {
        if !path.exists() {
            continue;
        }
        let cannot = |why: CredentialError| {
            CliError::new(format!(
                "cannot read credentials from {}: {}",
                path.display(),
                in_full(&why)
            ))
            .hint("`docker login` writes that file; remove it to pull without credentials")
        };
        let bytes = read(&path, MAX_FILE, Links::Follow)
            .map_err(|error| cannot(CredentialError::File(error)))?;
        let config: DockerConfig = serde_json::from_slice(&bytes)
            .map_err(|error| cannot(CredentialError::Config(error)))?;
        if let Some(found) = from_config(&config, registry).map_err(cannot)? {
            return Ok(found);
        }
    }
    Ok(RegistryAuth::Anonymous)
}

fn from_config(
    config: &DockerConfig,
    registry: &str,
) -> Result<Option<RegistryAuth>, CredentialError> {
    let keys: Vec<String> = match registry {
        "docker.io" => vec![DOCKER_HUB.into(), "docker.io".into()],
        other => vec![
            other.into(),
            format!("https://{other}"),
            format!("https://{other}/v1/"),
        ],
    };
    for key in &keys {
        let helper = config.cred_helpers.get(key);
        let listed = config.auths.get(key);
        let token = listed.and_then(|login| login.identity_token.as_deref());
        if token.is_some_and(|token| !token.is_empty()) {
            let place = format!("the entry `{key}`");
            return Err(CredentialError::IdentityToken { place });
        }
        if let Some(auth) = listed
            .and_then(|login| login.auth.as_deref())
            .filter(|auth| !auth.is_empty())
        {
            return basic(auth).map(Some);
        }
        // Docker lists a registry in `auths` also where its store has the password.
        let store = config.creds_store.as_ref().filter(|_| listed.is_some());
        if let Some(helper) = helper.or(store) {
            return from_helper(helper, key).map(Some);
        }
    }
    Ok(None)
}

/// `user:password` in base64.
fn basic(auth: &str) -> Result<RegistryAuth, CredentialError> {
    // Not with the errors, which may hold a part of it.
    let decoded = STANDARD.decode(auth.trim()).ok();
    let decoded = decoded.and_then(|decoded| String::from_utf8(decoded).ok());
    let (user, password) = decoded
        .as_deref()
        .and_then(|decoded| decoded.split_once(':'))
        .ok_or(CredentialError::NotUserAndPassword)?;
    Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
}

/// Asks one of Docker's credential helpers.
fn from_helper(name: &str, key: &str) -> Result<RegistryAuth, CredentialError> {
    // The name becomes a part of a program's name.
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        return Err(CredentialError::HelperName(name.to_owned()));
    }
    let program = format!("docker-credential-{name}");
    let failed = |source: io::Error| CredentialError::Helper {
        program: program.clone(),
        source,
    };
    let mut helper = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = helper.stdin.take() {
        // One that ended early says why by its status.
        let _ = stdin.write_all(key.as_bytes());
    }
    let output = helper.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let status = output.status;
        return Err(CredentialError::HelperFailed { program, status });
    }
    let Ok(answer) = serde_json::from_slice::<HelperAnswer>(&output.stdout) else {
        return Err(CredentialError::HelperAnswer { program });
    };
    match answer.username == TOKEN {
        true => Err(CredentialError::IdentityToken { place: program }),
        false => Ok(RegistryAuth::Basic(answer.username, answer.secret)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> DockerConfig {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_login_is_found_for_its_registry_only() {
        let auth = STANDARD.encode("user:pass:word");
        let config = config(&format!(
            r#"{{"auths":{{"registry.example:5000":{{"auth":"{auth}"}},"https://index.docker.io/v1/":{{"auth":"{auth}"}}}}}}"#
        ));
        for registry in ["registry.example:5000", "docker.io"] {
            let found = from_config(&config, registry).unwrap();
            assert!(
                matches!(found, Some(RegistryAuth::Basic(user, password)) if user == "user" && password == "pass:word")
            );
        }
        for registry in ["registry.example", "ghcr.io"] {
            assert!(from_config(&config, registry).unwrap().is_none());
        }
    }

    #[test]
    fn what_is_not_a_login_is_an_error() {
        for auth in [
            "%%%",
            &STANDARD.encode("no colon"),
            &STANDARD.encode([0xff, b':']),
        ] {
            assert!(basic(auth).is_err(), "{auth}");
        }
        for text in [
            r#"{"credHelpers":{"ghcr.io":"../../bin/sh"}}"#,
            r#"{"auths":{"ghcr.io":{"auth":"MDA6","identitytoken":"secret"}}}"#,
        ] {
            let error = from_config(&config(text), "ghcr.io").unwrap_err();
            assert!(!in_full(&error).to_string().contains("secret"));
        }
    }
}
