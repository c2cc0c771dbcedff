//! The upstream proxy of a plan: that of the policy, or of the caller's environment.
//!
//! The plan has where it is, never its user and password: the egress proxy reads those itself.

use crate::plan::Item;
use crate::{PlanError, Request};
use ironcage_model::{
    HTTP_PROXY, HTTPS_PROXY, HostRule, NO_PROXY, Printable, ProxyServer, ProxyUrl, SecretSource,
};
use ironcage_policy::{Policy, UpstreamChoice, no_proxy};
use serde::{Deserialize, Serialize};

/// Where the user and password of a proxy are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyCredentials {
    /// In the URL that this variable of the caller's holds, where it has any.
    UrlIn(String),
    /// `USER:PASSWORD`, from there.
    From(SecretSource),
}

/// One upstream proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedProxy {
    /// Where it is.
    pub server: ProxyServer,
    /// Where its credentials are.
    pub credentials: Option<ProxyCredentials>,
}

/// The proxies through which connections go out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamProxy {
    /// For TLS and everything else that is not plain HTTP.
    pub https: Option<Item<PlannedProxy>>,
    /// For plain HTTP.
    pub http: Option<Item<PlannedProxy>>,
    /// Hosts that are reached without.
    pub no_proxy: Vec<HostRule>,
}

impl UpstreamProxy {
    /// Every proxy of it.
    pub fn proxies(&self) -> impl Iterator<Item = &Item<PlannedProxy>> {
        self.https.iter().chain(&self.http)
    }
}

/// The upstream proxy, and what has no effect in its settings.
pub(crate) fn make(
    policy: &Policy,
    request: &Request,
) -> Result<(Option<UpstreamProxy>, Vec<String>), PlanError> {
    let rule = policy.network.upstream.as_ref();
    let (https, http) = match rule.map(|rule| (&rule.value, rule.origin.to_string())) {
        Some((rule, origin)) => match &rule.proxy {
            UpstreamChoice::Off => return Ok((None, Vec::new())),
            UpstreamChoice::Env => from_environment(request)?,
            UpstreamChoice::Server(server) => {
                let credentials = rule.credentials.clone().map(ProxyCredentials::From);
                let proxy = Item {
                    what: PlannedProxy {
                        server: server.clone(),
                        credentials,
                    },
                    origin,
                };
                (Some(proxy.clone()), Some(proxy))
            }
        },
        None => from_environment(request)?,
    };
    if https.is_none() && http.is_none() {
        return Ok((None, Vec::new()));
    }
    let listed = rule.map(|rule| rule.value.no_proxy.clone());
    let mut direct = listed.unwrap_or_default();
    let mut notes = Vec::new();
    if let Some((variable, list)) = variable(request, NO_PROXY) {
        for entry in list.split([',', ' ']).filter(|entry| !entry.is_empty()) {
            match no_proxy(entry) {
                Ok(rule) if direct.contains(&rule) => {}
                Ok(rule) => direct.push(rule),
                Err(_) => notes.push(format!(
                    "{variable}: `{}` is not a host, an address or a network, and has no effect",
                    Printable::new(entry)
                )),
            }
        }
    }
    let made = UpstreamProxy {
        https,
        http,
        no_proxy: direct,
    };
    Ok((Some(made), notes))
}

type FromEnvironment = (Option<Item<PlannedProxy>>, Option<Item<PlannedProxy>>);

fn from_environment(request: &Request) -> Result<FromEnvironment, PlanError> {
    let read = |names| -> Result<Option<Item<PlannedProxy>>, PlanError> {
        let Some((name, url)) = variable(request, names) else {
            return Ok(None);
        };
        let url = ProxyUrl::read(url).map_err(|error| PlanError::UpstreamProxy {
            origin: name.to_owned(),
            why: error.0,
        })?;
        Ok(Some(Item {
            what: PlannedProxy {
                server: url.server,
                credentials: Some(ProxyCredentials::UrlIn(name.to_owned())),
            },
            origin: format!("{name} in your environment"),
        }))
    };
    Ok((read(HTTPS_PROXY)?, read(HTTP_PROXY)?))
}

/// The first of these variables that says something.
fn variable<'a>(request: &'a Request, names: [&'static str; 2]) -> Option<(&'static str, &'a str)> {
    names.into_iter().find_map(|name| {
        let (_, value) = request.env.iter().find(|(known, _)| known == name)?;
        let value = value.to_str()?.trim();
        (!value.is_empty()).then_some((name, value))
    })
}
