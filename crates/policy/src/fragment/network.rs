//! The network section of a policy file: checked, with the position of every value.

use super::Check;
use crate::file::{
    AwsSection, LoginSection, NetworkLimitsSection, NetworkSection, SecretSection, UpstreamSection,
};
use crate::network::{
    self, InvalidHostRule, NetworkFragment, NetworkLimit, NetworkLimitName, NetworkMode,
    UpstreamChoice, UpstreamRule, requests_to,
};
use crate::{Diagnostic, Sourced, bundles, logins};
use ironcage_model::{AwsRule, HostRule, InvalidPublish, LoginRule, SecretRule, SecretSource};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;

impl Check<'_> {
    pub(super) fn network(&self, section: &NetworkSection) -> Result<NetworkFragment, Diagnostic> {
        let wrong = |text: &Spanned<String>, error: InvalidHostRule| {
            let title = format!("cannot parse `{}`", error.text);
            self.wrong(text, title, "not understood")
                .remedy(error.remedy)
        };
        let mode = self.one(&section.mode, |this, text| {
            this.name_of(
                text,
                "network mode",
                &NetworkMode::ALL.map(NetworkMode::name),
            )?
            .parse()
            .map_err(|error: crate::InvalidNetworkMode| {
                this.wrong(text, error.to_string(), "unknown")
            })
        })?;
        let off = mode
            .as_ref()
            .is_some_and(|mode| mode.value == NetworkMode::Off);
        if let (true, Some(first)) = (off, section.allow.first()) {
            return Err(self
                .wrong(
                    first,
                    "the network is off, but a host is allowed",
                    "allowed",
                )
                .remedy("remove mode = \"off\", or the allowed hosts"));
        }
        let mut resolve = Vec::new();
        for (name, address) in &section.resolve {
            let rule = format!("{}={}", name.get_ref(), address.get_ref())
                .parse()
                .map_err(|error| wrong(address, error))?;
            resolve.push(self.sourced(rule, name.span()));
        }
        Ok(NetworkFragment {
            mode,
            allow: self.each(&section.allow, |_, text| {
                network::allowed(text.get_ref()).map_err(|error| wrong(text, error))
            })?,
            deny: self.each(&section.deny, |_, text| {
                network::denied(text.get_ref()).map_err(|error| wrong(text, error))
            })?,
            http: self.each(&section.http, |_, text| {
                network::requests(text.get_ref()).map_err(|error| wrong(text, error))
            })?,
            models: self.each(&section.models, |_, text| {
                network::model_host(text.get_ref()).map_err(|error| wrong(text, error))
            })?,
            secrets: self.secrets(&section.secrets)?,
            aws: self.aws(section.aws.as_ref())?,
            logins: self.logins(&section.logins)?,
            bundles: self.each(&section.bundles, |this, text| {
                this.name_of(text, "bundle", &bundles::names())
            })?,
            host_ports: section
                .host_ports
                .iter()
                .map(|port| self.sourced(*port.get_ref(), port.span()))
                .collect(),
            resolve,
            never_open: self.one(&section.never_open, |_, value| Ok(*value.get_ref()))?,
            sockets: self.each(&section.sockets, Self::path)?,
            publish: self.each(&section.publish, |this, text| {
                text.get_ref().parse().map_err(|error: InvalidPublish| {
                    this.wrong(text, error.to_string(), "not understood")
                })
            })?,
            limits: self.network_limits(&section.limits)?,
            upstream: self.upstream(section.upstream.as_ref())?,
            authorities: self.each(&section.authorities, Self::path)?,
        })
    }

    fn upstream(
        &self,
        section: Option<&UpstreamSection>,
    ) -> Result<Option<Sourced<UpstreamRule>>, Diagnostic> {
        let Some(said) = section else {
            return Ok(None);
        };
        let first = (said.proxy.as_ref())
            .or(said.credentials.as_ref())
            .or(said.no_proxy.first());
        let Some(first) = first else {
            return Ok(None);
        };
        let read = |text: &Spanned<String>| {
            network::upstream(text.get_ref()).map_err(|error| self.not_understood(text, error))
        };
        let proxy = said.proxy.as_ref().map(read).transpose()?;
        if let (Some(from), false) = (
            &said.credentials,
            matches!(proxy, Some(UpstreamChoice::Server(_))),
        ) {
            return Err(self
                .wrong(from, "the credentials have no proxy", "these")
                .remedy("add proxy = \"http://HOST:PORT\""));
        }
        let rule = UpstreamRule {
            proxy: proxy.unwrap_or(UpstreamChoice::Env),
            credentials: (said.credentials.as_ref())
                .map(|from| {
                    let read = network::secret_source(from.get_ref());
                    read.map_err(|error| self.not_understood(from, error))
                })
                .transpose()?,
            no_proxy: (said.no_proxy.iter())
                .map(|host| {
                    let read = network::no_proxy(host.get_ref());
                    read.map_err(|error| self.not_understood(host, error))
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Some(self.sourced(rule, first.span())))
    }

    fn network_limits(
        &self,
        section: &NetworkLimitsSection,
    ) -> Result<Vec<Sourced<NetworkLimit>>, Diagnostic> {
        use NetworkLimitName as Name;
        let read = |name: Name, text: &str, at: std::ops::Range<usize>| {
            let limit = name.read(text).map_err(|error| {
                let spanned = Spanned::new(at.clone(), ());
                self.wrong(&spanned, error.to_string(), "not understood")
                    .remedy(error.remedy)
            })?;
            Ok(self.sourced(limit, at))
        };
        let numbers = [
            (Name::Connections, &section.connections),
            (Name::RequestsPerSecond, &section.requests_per_second),
            (Name::NewHostsPerMinute, &section.new_hosts_per_minute),
        ];
        let sizes = [
            (Name::BytesOutPerHost, &section.bytes_out_per_host),
            (Name::BytesOut, &section.bytes_out),
            (Name::Body, &section.body),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(read(name, &value.get_ref().to_string(), value.span()))
        });
        let sizes = sizes.into_iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(read(name, value.get_ref(), value.span()))
        });
        numbers.chain(sizes).collect()
    }

    pub(super) fn secrets(
        &self,
        section: &BTreeMap<Spanned<String>, SecretSection>,
    ) -> Result<Vec<Sourced<SecretRule>>, Diagnostic> {
        let wrong = |text: &Spanned<String>, error: InvalidHostRule| {
            let title = format!("cannot parse `{}`", error.text);
            self.wrong(text, title, "here").remedy(error.remedy)
        };
        let mut secrets = Vec::new();
        for (name, said) in section {
            let own = network::secret_name(name.get_ref()).map_err(|error| wrong(name, error))?;
            if said.hosts.is_empty() {
                return Err(self
                    .wrong(name, "the secret has no hosts", "this one")
                    .remedy("add hosts = [\"api.example.com\"]"));
            }
            let hosts = said.hosts.iter().map(|host| {
                network::secret_host(host.get_ref()).map_err(|error| wrong(host, error))
            });
            let places = said.places.iter().map(|place| {
                network::secret_place(place.get_ref()).map_err(|error| wrong(place, error))
            });
            let places: Vec<_> = places.collect::<Result<_, _>>()?;
            let rule = SecretRule {
                from: match &said.from {
                    Some(from) => network::secret_source(from.get_ref())
                        .map_err(|error| wrong(from, error))?,
                    None => SecretSource::Env(own.clone()),
                },
                name: own,
                hosts: hosts.collect::<Result<_, _>>()?,
                places: match places.is_empty() {
                    true => SecretRule::usual_places(),
                    false => places,
                },
                leased: false,
            };
            secrets.push(self.sourced(rule, name.span()));
        }
        Ok(secrets)
    }

    fn not_understood(&self, text: &Spanned<String>, error: InvalidHostRule) -> Diagnostic {
        let title = format!("cannot parse `{}`", error.text);
        self.wrong(text, title, "here").remedy(error.remedy)
    }

    fn proved_hosts(&self, hosts: &[Spanned<String>]) -> Result<Vec<HostRule>, Diagnostic> {
        let read = |host: &Spanned<String>| {
            network::proved_host(host.get_ref()).map_err(|error| self.not_understood(host, error))
        };
        hosts.iter().map(read).collect()
    }

    fn aws(&self, section: Option<&AwsSection>) -> Result<Option<Sourced<AwsRule>>, Diagnostic> {
        let Some(said) = section else {
            return Ok(None);
        };
        let Some(first) = said.hosts.first() else {
            return match &said.from {
                Some(from) => Err(self
                    .wrong(from, "the AWS keys have no hosts", "these")
                    .remedy("add hosts = [\"**.amazonaws.com\"]")),
                None => Ok(None),
            };
        };
        let from = said.from.as_ref();
        let rule = AwsRule {
            from: network::aws_source(from.map(|from| from.get_ref().as_str()))
                .map_err(|error| self.not_understood(from.unwrap_or(first), error))?,
            hosts: self.proved_hosts(&said.hosts)?,
            credentials: (said.credentials.iter())
                .map(|name| {
                    let read = network::aws_credentials(name.get_ref());
                    read.map_err(|error| self.not_understood(name, error))
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Some(self.sourced(rule, first.span())))
    }

    fn logins(
        &self,
        section: &BTreeMap<Spanned<String>, LoginSection>,
    ) -> Result<Vec<Sourced<LoginRule>>, Diagnostic> {
        let mut found = Vec::new();
        for (name, said) in section {
            let mut rule =
                logins::login(name.get_ref()).map_err(|error| self.not_understood(name, error))?;
            if let Some(file) = &said.file {
                let path = PathBuf::from(file.get_ref());
                if !path.is_absolute() {
                    return Err(self
                        .wrong(
                            file,
                            "the path of a login file is not absolute",
                            "not absolute",
                        )
                        .remedy("use an absolute path"));
                }
                rule.file = Some(path);
            }
            if !said.hosts.is_empty() {
                rule.hosts = self.proved_hosts(&said.hosts)?;
                rule.requests = logins::shipped_requests(&rule.name, &rule.hosts)
                    .map_err(|error| self.not_understood(name, error))?;
            }
            if !said.requests.is_empty() {
                rule.requests.clear();
                for text in &said.requests {
                    let rules = requests_to(&rule.hosts, text.get_ref())
                        .map_err(|error| self.not_understood(text, error))?;
                    rule.requests.extend(rules);
                }
            }
            if let Some(url) = &said.token_url {
                rule.token_server = logins::token_server(url.get_ref())
                    .map_err(|error| self.not_understood(url, error))?;
            }
            found.push(self.sourced(rule, name.span()));
        }
        Ok(found)
    }
}
