//! The network of a plan: what the egress proxy allows, with the origin of each rule.

use crate::filter;
use crate::login::{self, PlannedLogin};
use crate::plan::{Command, Item};
use crate::request::AskedHost;
use crate::seccomp::Instruction;
use crate::sockets::{self, AllowedSocket};
use crate::upstream::{self, UpstreamProxy};
use crate::{NoBundle, PlanError, Request};
use ironcage_host::HostFiles;
use ironcage_model::{
    AwsRule, Destination, Extent, HostName, HostRule, HttpRule, Isolation, NetworkLimits, Ports,
    Publish, SecretRule,
};
use ironcage_policy::{CeilingWhat, Policy, Resolve, Sourced, allowed, bundles, network_limits};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// One rule over hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    /// Which hosts and ports.
    pub rule: HostRule,
    /// The bundle that it came with; `null` for one that stands for itself.
    pub bundle: Option<String>,
}

/// One rule over requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRule {
    /// Which requests.
    pub rule: HttpRule,
}

/// A secret, and what the cage has in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSecret {
    /// Which, from where and for whom.
    #[serde(flatten)]
    pub rule: SecretRule,
    /// What stands for it in the cage.
    pub placeholder: String,
}

/// Keys of Amazon's, and what the cage has in their place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedAws {
    /// From where and for whom.
    #[serde(flatten)]
    pub rule: AwsRule,
    /// What stands for the key's name in the cage.
    pub id: String,
    /// What stands for the key itself: the cage signs with it.
    pub key: String,
}

/// What stands for a secret in a cage: text that goes through every encoding as it is.
pub(crate) fn placeholder(name: &str, nonce: u64) -> String {
    format!("ironcage-{name}-{nonce:016x}")
}

/// What stands for the name of a key of Amazon's: it goes through a request's head as it is.
pub(crate) fn aws_id(nonce: u64) -> String {
    placeholder("AWS", nonce)
}

/// What stands for the key itself. It never goes out.
pub(crate) fn aws_key(nonce: u64) -> String {
    placeholder("AWS-KEY", nonce)
}

/// A port of the host's own loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// The port.
    pub port: u16,
}

/// A name with an address of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedAddress {
    /// The name.
    pub name: HostName,
    /// Its address.
    pub address: IpAddr,
}

/// A model whose answers are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelHost {
    /// Where it answers.
    pub rule: HostRule,
}

/// Models whose answers are read as they pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Models {
    /// Where they answer; TLS is opened there. In a scope none is read.
    pub hosts: Vec<Item<ModelHost>>,
    /// Where the agent's commands run.
    #[serde(serialize_with = "crate::bytes::path")]
    pub cwd: std::path::PathBuf,
    /// The agent's home, where it has one.
    pub home: Option<String>,
    /// The reader's own system call filter.
    #[serde(skip)]
    pub reader_filter: Vec<Instruction>,
    /// The rules that calls are held to, as the plan has them.
    #[serde(skip)]
    pub tools: ironcage_tools::ToolPolicy,
}

/// What the egress proxy lets through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// What goes out.
    pub allow: Vec<Item<NetworkRule>>,
    /// What does not, even where it is allowed.
    pub deny: Vec<Item<NetworkRule>>,
    /// Requests that go out, to hosts that get no others.
    pub http: Vec<Item<RequestRule>>,
    /// Models whose answers prepare leases; `null` where none is read.
    pub models: Option<Models>,
    /// Secrets that are put on requests to their hosts.
    pub secrets: Vec<Item<PlannedSecret>>,
    /// Keys with which requests are signed anew.
    pub aws: Option<Item<PlannedAws>>,
    /// Logins of agents.
    pub logins: Vec<Item<PlannedLogin>>,
    /// Files with the certificate authorities by which servers are known where TLS is opened;
    /// empty where none is.
    #[serde(serialize_with = "crate::bytes::path_list")]
    pub authorities: Vec<std::path::PathBuf>,
    /// Those among them that the user added to the system's; programs in the cage trust them even
    /// where no TLS is opened.
    #[serde(
        default,
        serialize_with = "crate::bytes::path_list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub extra_authorities: Vec<std::path::PathBuf>,
    /// Ports of the host's loopback.
    pub host_ports: Vec<Item<HostPort>>,
    /// Names that no resolver is asked for.
    pub resolve: Vec<Item<FixedAddress>>,
    /// Whether rules about any port may come while the cage runs; else they are about the
    /// ports of the rules above.
    pub live: bool,
    /// Whether leases may be about single requests, for which TLS has to be opened.
    pub leases_requests: bool,
    /// What leases may open: the proxy keeps the ports of it.
    pub leasable: Vec<HostRule>,
    /// Unix sockets of the host's that are reached from inside.
    pub sockets: Vec<Item<AllowedSocket>>,
    /// Ports inside that are reached at the host's loopback.
    pub publish: Vec<Item<Publish>>,
    /// Bounds on what goes out.
    pub limits: NetworkLimits,
    /// The proxies of the user's network through which connections go out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<UpstreamProxy>,
    /// The proxy's own system call filter.
    #[serde(skip)]
    pub proxy_filter: Vec<Instruction>,
}

impl Network {
    /// Whether the proxy holds something that the cage does not.
    pub fn has_secrets(&self) -> bool {
        !(self.secrets.is_empty() && self.logins.is_empty()) || self.aws.is_some()
    }

    /// Whether TLS of some host is opened, for which the cage has an authority of its own.
    pub fn opens_tls(&self) -> bool {
        self.needs_authority()
            || (self.live || self.models.is_some()) && !self.authorities.is_empty()
    }

    /// Whether a rule or a secret of the plan needs TLS to be opened; rules that come later may
    /// need it too.
    pub(crate) fn needs_authority(&self) -> bool {
        !(self.http.is_empty() && self.secrets.is_empty() && self.logins.is_empty())
            || self.aws.is_some()
            || self.leases_requests
    }

    /// The single ports that can be reached at all; `None` where a rule is about every one.
    pub fn ports(&self) -> Option<Vec<u16>> {
        if self.live {
            return None;
        }
        let mut ports: Vec<u16> = self.host_ports.iter().map(|item| item.what.port).collect();
        let allowed = self.allow.iter().map(|item| item.what.rule.ports);
        let requests = self.http.iter().map(|item| item.what.rule.host.ports);
        let leasable = self.leasable.iter().map(|rule| rule.ports);
        for allowed in allowed.chain(requests).chain(leasable) {
            match allowed {
                Ports::Any => return None,
                Ports::Web => ports.extend([80, 443]),
                Ports::One(port) => ports.push(port),
            }
        }
        ports.sort_unstable();
        ports.dedup();
        Some(ports)
    }
}

impl Network {
    /// The network that lets nothing through: of the proxy that answers for the resolver of a cage
    /// without a network.
    pub fn denying() -> Network {
        Network {
            allow: Vec::new(),
            deny: Vec::new(),
            http: Vec::new(),
            models: None,
            secrets: Vec::new(),
            aws: None,
            logins: Vec::new(),
            authorities: Vec::new(),
            extra_authorities: Vec::new(),
            host_ports: Vec::new(),
            resolve: Vec::new(),
            live: false,
            leases_requests: false,
            leasable: Vec::new(),
            sockets: Vec::new(),
            publish: Vec::new(),
            limits: NetworkLimits::default(),
            upstream: None,
            proxy_filter: filter::proxy(),
        }
    }
}

/// The network of a plan, with notes about its settings, or `None` where the policy gives none:
/// then there is no egress proxy.
pub(crate) fn make(
    policy: &Policy,
    request: &Request,
    files: &dyn HostFiles,
) -> Result<Option<(Network, Vec<String>)>, PlanError> {
    let network = &policy.network;
    let mut allow: Vec<Item<NetworkRule>> = network.allow.iter().map(own).collect();
    for bundle in &network.bundles {
        allow.extend(hosts_of(bundle, &request.asked_hosts)?);
    }
    if network.open.value {
        allow.push(Item {
            what: NetworkRule {
                rule: HostRule {
                    to: Destination::Any,
                    ports: Ports::Any,
                },
                bundle: None,
            },
            origin: network.open.origin.to_string(),
        });
    }
    let nothing = allow.is_empty()
        && network.http.is_empty()
        && network.host_ports.is_empty()
        && network.publish.is_empty()
        && network.sockets.is_empty();
    if nothing && !network.live.value && !policy.has_proxy() {
        return Ok(None);
    }
    let (upstream, notes) = upstream::make(policy, request)?;
    let mut made = Network {
        allow,
        deny: network.deny.iter().map(own).collect(),
        http: network
            .http
            .iter()
            .map(|rule| Item {
                what: RequestRule {
                    rule: rule.value.clone(),
                },
                origin: rule.origin.to_string(),
            })
            .collect(),
        models: None,
        secrets: network
            .secrets
            .iter()
            .map(|secret| Item {
                what: PlannedSecret {
                    placeholder: placeholder(&secret.value.name, request.nonce),
                    rule: secret.value.clone(),
                },
                origin: secret.origin.to_string(),
            })
            .collect(),
        aws: network.aws.as_ref().map(|keys| Item {
            what: PlannedAws {
                id: aws_id(request.nonce),
                key: aws_key(request.nonce),
                rule: keys.value.clone(),
            },
            origin: keys.origin.to_string(),
        }),
        logins: network
            .logins
            .iter()
            .map(|rule| login::plan(rule, request))
            .collect(),
        authorities: Vec::new(),
        extra_authorities: Vec::new(),
        host_ports: network
            .host_ports
            .iter()
            .map(|port| Item {
                what: HostPort { port: port.value },
                origin: port.origin.to_string(),
            })
            .collect(),
        resolve: network
            .resolve
            .iter()
            .map(|Sourced { value, origin }| {
                let Resolve { name, address } = value.clone();
                Item {
                    what: FixedAddress { name, address },
                    origin: origin.to_string(),
                }
            })
            .collect(),
        live: network.live.value,
        leases_requests: (policy.ceiling.others.iter()).any(|part| {
            part.value.mark.gives()
                && matches!(part.value.what, CeilingWhat::Extent(Extent::Http(_)))
        }),
        leasable: leasable(policy, request)?,
        sockets: sockets::make(policy, request, files)?,
        publish: network
            .publish
            .iter()
            .map(|port| Item {
                what: port.value,
                origin: port.origin.to_string(),
            })
            .collect(),
        limits: network_limits(&network.limits),
        upstream,
        proxy_filter: filter::proxy(),
    };
    made.models = models(policy, &made);
    Ok(Some((made, notes)))
}

/// The models whose answers are read: those that the rules let the cage reach, where what they say
/// can prepare anything.
fn models(policy: &Policy, network: &Network) -> Option<Models> {
    if !matches!(
        policy.isolation.value,
        Isolation::Namespace | Isolation::Wasm
    ) || !policy.ceiling.is_given()
    {
        return None;
    }
    let allowed = network.allow.iter().map(|item| &item.what.rule);
    let requests = network.http.iter().map(|item| &item.what.rule.host);
    let rules: Vec<&HostRule> = allowed.chain(requests).collect();
    let reached = |model: &HostRule| {
        let name = match &model.to {
            Destination::Name(name)
            | Destination::Below(name)
            | Destination::NameAndBelow(name) => name,
            Destination::Any | Destination::Net { .. } => return false,
        };
        network.live
            || rules
                .iter()
                .any(|rule| rule.knows(name) || rule.to == model.to)
    };
    let hosts: Vec<Item<ModelHost>> = (policy.network.models.iter())
        .filter(|model| reached(&model.value))
        .map(|model| Item {
            what: ModelHost {
                rule: model.value.clone(),
            },
            origin: model.origin.to_string(),
        })
        .collect();
    (!hosts.is_empty()).then(|| Models {
        hosts,
        cwd: std::path::PathBuf::new(),
        home: None,
        reader_filter: filter::reader(),
        tools: policy.tools.clone(),
    })
}

impl Models {
    /// What the words of the answers are about: where the command runs.
    pub(crate) fn belong_to(&mut self, command: &Command) {
        self.cwd.clone_from(&command.cwd);
        let home = command.env.iter().find(|item| item.what.name == "HOME");
        let home = home.and_then(|item| item.what.value.to_str());
        self.home = home.map(str::to_owned);
    }
}

/// Hosts that leases may open, requests and secrets included.
fn leasable(policy: &Policy, request: &Request) -> Result<Vec<HostRule>, PlanError> {
    let mut rules = Vec::new();
    for part in &policy.ceiling.others {
        match &part.value.what {
            _ if !part.value.mark.gives() => {}
            CeilingWhat::Extent(Extent::Host(rule)) => rules.push(rule.clone()),
            CeilingWhat::Extent(Extent::Http(rule)) => rules.push(rule.host.clone()),
            CeilingWhat::Bundle(name) => {
                let name = Sourced::new(name.clone(), part.origin.clone());
                let hosts = hosts_of(&name, &request.asked_hosts)?;
                rules.extend(hosts.into_iter().map(|host| host.what.rule));
            }
            _ => {}
        }
    }
    Ok(rules)
}

fn own(rule: &Sourced<HostRule>) -> Item<NetworkRule> {
    Item {
        what: NetworkRule {
            rule: rule.value.clone(),
            bundle: None,
        },
        origin: rule.origin.to_string(),
    }
}

/// The hosts of a bundle.
pub(crate) fn hosts_of(
    name: &Sourced<String>,
    asked: &[AskedHost],
) -> Result<Vec<Item<NetworkRule>>, PlanError> {
    let refused = |why: NoBundle| PlanError::Bundle {
        name: name.value.clone(),
        origin: name.origin.to_string(),
        why,
    };
    let bundle = bundles::find(&name.value).ok_or_else(|| refused(NoBundle::Unknown))?;
    let item = |rule: HostRule, said_by: Option<&str>| Item {
        what: NetworkRule {
            rule,
            bundle: Some(bundle.name.to_owned()),
        },
        origin: match said_by {
            Some(by) => format!("{}, bundle {}: {by}", name.origin, bundle.name),
            None => format!("{}, bundle {}", name.origin, bundle.name),
        },
    };
    if !bundle.asked {
        return bundle
            .hosts
            .iter()
            .map(|host| {
                let rule = allowed(host).map_err(|error| refused(NoBundle::InvalidHost(error)))?;
                Ok(item(rule, None))
            })
            .collect();
    }
    let hosts: Vec<_> = asked
        .iter()
        .filter(|host| host.bundle == bundle.name)
        .map(|host| item(host.rule.clone(), Some(&host.said_by)))
        .collect();
    if hosts.is_empty() {
        return Err(refused(NoBundle::NoHosts(bundle.name)));
    }
    Ok(hosts)
}
