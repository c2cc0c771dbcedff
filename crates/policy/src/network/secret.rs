//! Parses secrets: `NAME[=SOURCE]@HOST[,HOST..]`.

use super::rule::{InvalidHostRule, allowed};
use ironcage_model::{
    AwsRule, Destination, HOST_NAME, HostRule, Ports, SecretPlace, SecretRule, SecretSource,
};

/// Longest name of a secret.
const LONGEST: usize = 64;

fn wrong(text: &str, remedy: &str) -> InvalidHostRule {
    InvalidHostRule {
        text: text.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// A secret as a flag names it.
///
/// # Errors
/// If the text is invalid; the message says what to write.
pub fn secret(text: &str) -> Result<SecretRule, InvalidHostRule> {
    // The source may hold an @ of its own; hosts do not.
    let (name, hosts) = text.rsplit_once('@').ok_or_else(|| {
        wrong(
            text,
            "expected NAME@HOST, such as GITHUB_TOKEN@api.github.com, or NAME=file:PATH@HOST",
        )
    })?;
    let (name, source) = match name.split_once('=') {
        Some((name, source)) => (name, Some(source)),
        None => (name, None),
    };
    let name = secret_name(name)?;
    Ok(SecretRule {
        from: match source {
            Some(source) => secret_source(source)?,
            None => SecretSource::Env(name.clone()),
        },
        name,
        hosts: hosts
            .split(',')
            .map(secret_host)
            .collect::<Result<_, _>>()?,
        places: SecretRule::usual_places(),
        leased: false,
    })
}

/// AWS keys as in a flag: `[SOURCE@]HOST[,HOST..]`. Without a source, they come from the caller's
/// environment variables.
///
/// # Errors
/// If the text is invalid; the message says what to write.
pub fn aws(text: &str) -> Result<AwsRule, InvalidHostRule> {
    let (source, hosts) = match text.rsplit_once('@') {
        Some((source, hosts)) => (Some(source), hosts),
        None => (None, text),
    };
    Ok(AwsRule {
        from: aws_source(source)?,
        hosts: hosts
            .split(',')
            .map(proved_host)
            .collect::<Result<_, _>>()?,
        credentials: Vec::new(),
    })
}

/// An AWS service, or one of its actions: `sts`, `ecr:GetAuthorizationToken`.
pub(crate) fn aws_credentials(text: &str) -> Result<String, InvalidHostRule> {
    let (service, action) = match text.split_once(':') {
        Some((service, action)) => (service, Some(action)),
        None => (text, None),
    };
    let is_service = !service.is_empty()
        && (service.bytes()).all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let is_action = |action: &str| {
        !action.is_empty() && action.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    (is_service && action.is_none_or(is_action))
        .then(|| text.to_owned())
        .ok_or_else(|| {
            wrong(
                text,
                "write a service such as sts, or an action such as ecr:GetAuthorizationToken",
            )
        })
}

/// The source of AWS keys: `env`, `file:/PATH` or `command:TEXT`.
pub(crate) fn aws_source(text: Option<&str>) -> Result<SecretSource, InvalidHostRule> {
    match text {
        None | Some("env") => Ok(SecretSource::Env(AwsRule::VARIABLES[1].to_owned())),
        Some(text) => match secret_source(text)? {
            SecretSource::Env(_) => Err(wrong(
                text,
                "expected env (the three AWS variables), file:/PATH or command:TEXT",
            )),
            other => Ok(other),
        },
    }
}

/// The name of a secret, which is that of a variable.
pub(crate) fn secret_name(text: &str) -> Result<String, InvalidHostRule> {
    let first = text.bytes().next().unwrap_or_default();
    let plain = text.len() <= LONGEST
        && (first.is_ascii_alphabetic() || first == b'_')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    plain.then(|| text.to_owned()).ok_or_else(|| {
        wrong(
            text,
            "the name of a secret is a variable name: letters, digits and underscores",
        )
    })
}

/// Where a secret comes from: `env:NAME`, `file:PATH`, `command:TEXT` or `keyring:SERVICE/USER`.
pub(crate) fn secret_source(text: &str) -> Result<SecretSource, InvalidHostRule> {
    const REMEDY: &str = "expected env:NAME, file:/PATH, command:TEXT or keyring:SERVICE/USER";
    let (kind, rest) = text.split_once(':').ok_or_else(|| wrong(text, REMEDY))?;
    if rest.is_empty() || rest.contains('\0') {
        return Err(wrong(text, REMEDY));
    }
    Ok(match kind {
        "env" => SecretSource::Env(secret_name(rest)?),
        "file" => {
            let path = std::path::PathBuf::from(rest);
            if !path.is_absolute() {
                return Err(wrong(text, "use an absolute path"));
            }
            SecretSource::File(path)
        }
        "command" => SecretSource::Command(rest.to_owned()),
        "keyring" => {
            let (service, user) = rest.split_once('/').ok_or_else(|| wrong(text, REMEDY))?;
            let plain = |text: &str| {
                !text.is_empty()
                    && text
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b".-_@:".contains(&byte))
            };
            if !(plain(service) && plain(user)) {
                return Err(wrong(text, REMEDY));
            }
            SecretSource::Keyring {
                service: service.to_owned(),
                user: user.to_owned(),
            }
        }
        _ => return Err(wrong(text, REMEDY)),
    })
}

/// A host that a secret is for: a name that the host can prove, or, without TLS and in so many
/// words, a port of this host's own loopback.
pub(crate) fn secret_host(text: &str) -> Result<HostRule, InvalidHostRule> {
    let Some(plain) = text.strip_prefix("http://") else {
        return proved_host(text);
    };
    let rule = allowed(plain)?;
    match (rule.to.is_name(HOST_NAME), rule.ports) {
        (true, Ports::One(_)) => Ok(rule),
        _ => Err(wrong(text, PLAIN)),
    }
}

const PLAIN: &str = "without TLS a secret goes to a port of this host's own loopback only: write http://host.ironcage:PORT";

/// A host that keys or a login are for: a name, never an address.
pub(crate) fn proved_host(text: &str) -> Result<HostRule, InvalidHostRule> {
    let rule = allowed(text)?;
    match &rule.to {
        Destination::Net { .. } | Destination::Any => Err(wrong(
            text,
            "a secret needs a host name, which TLS can verify",
        )),
        to if to.is_name(HOST_NAME) => Err(wrong(text, PLAIN)),
        _ => Ok(rule),
    }
}

/// The host of a model: a name that TLS can verify, because the proxy intercepts TLS to it.
pub(crate) fn model_host(text: &str) -> Result<HostRule, InvalidHostRule> {
    let rule = allowed(text)?;
    match rule.to {
        Destination::Net { .. } | Destination::Any => Err(wrong(
            text,
            "a model host needs a host name, which TLS can verify",
        )),
        _ => Ok(rule),
    }
}

/// A place of a request: `header:NAME`, `basic`, `query:NAME`, `body:FIELD`.
pub(crate) fn secret_place(text: &str) -> Result<SecretPlace, InvalidHostRule> {
    let remedy = "expected header:NAME, basic, query:NAME or body:FIELD";
    let plain = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    match (text, text.split_once(':')) {
        ("basic", _) => Ok(SecretPlace::Basic),
        (_, Some(("header", name))) if plain(name) => {
            Ok(SecretPlace::Header(name.to_ascii_lowercase()))
        }
        (_, Some(("query", name))) if plain(name) => Ok(SecretPlace::Query(name.to_owned())),
        (_, Some(("body", name))) if plain(name) => Ok(SecretPlace::Body(name.to_owned())),
        _ => Err(wrong(text, remedy)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        let token = secret("GITHUB_TOKEN@api.github.com,github.com").unwrap();
        assert_eq!(token.from, SecretSource::Env("GITHUB_TOKEN".into()));
        assert_eq!(token.hosts.len(), 2);
        assert!(token.places.contains(&SecretPlace::Basic));
        let command = secret("KEY=command:pass show me@home@a.com:8443").unwrap();
        assert_eq!(
            command.from,
            SecretSource::Command("pass show me@home".into())
        );
        assert_eq!(command.hosts[0].to_string(), "a.com:8443");
        let keyring = secret("KEY=keyring:api/me@a.com").unwrap();
        assert_eq!(keyring.from.to_string(), "keyring:api/me");
        for wrong in [
            "",
            "TOKEN",
            "TOKEN@",
            "@a.com",
            "TO-KEN@a.com",
            "1T@a.com",
            "T=file:relative@a.com",
            "T=odd:x@a.com",
            "T=keyring:a'b/c@a.com",
            "T@192.0.2.1",
            "T@*",
            "T@http://a.com:4000",
            "T@http://127.0.0.1:4000",
            "T@http://host.ironcage",
            "T@host.ironcage:4000",
        ] {
            assert!(secret(wrong).is_err(), "{wrong:?}");
        }
        let plain = secret("T@http://host.ironcage:4000,a.com").unwrap();
        assert_eq!(plain.host_texts(), ["http://host.ironcage:4000", "a.com"]);
        assert!(aws("http://host.ironcage:4000").is_err());
        for named in ["sts", "ecr:GetAuthorizationToken"] {
            assert_eq!(aws_credentials(named).unwrap(), named);
        }
        for wrong in ["", "STS", "sts:", "sts:*", "a b"] {
            assert!(aws_credentials(wrong).is_err(), "{wrong:?}");
        }
        let keys = aws("s3.amazonaws.com,sts.amazonaws.com").unwrap();
        assert_eq!(keys.from.to_string(), "env:AWS_SECRET_ACCESS_KEY");
        let keys = aws("command:aws configure export-credentials@**.amazonaws.com").unwrap();
        assert_eq!(keys.hosts[0].to_string(), "**.amazonaws.com");
        assert!(matches!(keys.from, SecretSource::Command(_)));
        for wrong in ["", "env:X@a.com", "odd:x@a.com", "env@192.0.2.1"] {
            assert!(aws(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(
            secret_place("header:X-Key").unwrap(),
            SecretPlace::Header("x-key".into())
        );
        for wrong in ["", "header:", "header:a b", "cookie", "query:a=b"] {
            assert!(secret_place(wrong).is_err(), "{wrong:?}");
        }
    }
}
