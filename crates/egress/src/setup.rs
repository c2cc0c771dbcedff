//! The setup that the supervisor hands to a new egress proxy: the network of the plan.
//!
//! It holds no secret: the proxy reads those itself, from where the network says.

use crate::confine::ProxyIds;
use ironcage_model::SecretSource;
use ironcage_plan::seccomp::Instruction;
use ironcage_plan::{Network, ProxyCredentials};
use ironcage_sys::rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use ironcage_tools::ToolPolicy;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Longest setup that is read: a network of many thousand rules is far below it.
const LONGEST: u64 = 64 << 20;

/// Everything that a proxy needs to know before it begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) network: Network,
    /// Ids to become, where root starts it.
    pub(crate) ids: Option<ProxyIds>,
    /// The supervisor, with which it ends.
    pub(crate) supervisor: i32,
}

#[derive(Serialize, Deserialize)]
struct Message {
    /// Of the program that wrote it; another one may mean something else by the same words.
    version: String,
    network: Network,
    /// The paths of the network, in the order of [`paths`]: as text they could lose bytes.
    paths: Vec<Vec<u8>>,
    proxy_filter: Vec<Instruction>,
    reader_filter: Vec<Instruction>,
    #[serde(default, skip_serializing_if = "ToolPolicy::is_empty")]
    tools: ToolPolicy,
    id: Option<u32>,
    supervisor: i32,
}

impl Setup {
    /// Puts it into a sealed memory file.
    pub(crate) fn send(mut self) -> io::Result<OwnedFd> {
        let paths = paths(&mut self.network);
        let paths = paths.into_iter().map(std::mem::take);
        let paths = paths.map(|path| path.into_os_string().into_vec()).collect();
        let (reader_filter, tools) = match &mut self.network.models {
            Some(models) => (
                std::mem::take(&mut models.reader_filter),
                std::mem::take(&mut models.tools),
            ),
            None => Default::default(),
        };
        let message = Message {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            paths,
            proxy_filter: std::mem::take(&mut self.network.proxy_filter),
            reader_filter,
            tools,
            network: self.network,
            id: self.ids.map(|ids| ids.id),
            supervisor: self.supervisor,
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("ironcage-egress", flags)?);
        file.write_all(&serde_json::to_vec(&message)?)?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, seals)?;
        Ok(file.into())
    }

    /// Reads it from there.
    pub(crate) fn receive(file: OwnedFd) -> io::Result<Setup> {
        let mut file = File::from(file);
        file.rewind()?;
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text)?;
        let message: Message = serde_json::from_slice(&text)?;
        if message.version != env!("CARGO_PKG_VERSION") {
            return Err(io::Error::other(format!(
                "ironcage is version {} and ironcage-egress is version {}; install both from one package",
                message.version,
                env!("CARGO_PKG_VERSION")
            )));
        }
        let mut network = message.network;
        network.proxy_filter = message.proxy_filter;
        if let Some(models) = &mut network.models {
            models.reader_filter = message.reader_filter;
            models.tools = message.tools;
        }
        let places = paths(&mut network);
        if places.len() != message.paths.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        for (place, path) in places.into_iter().zip(message.paths) {
            *place = PathBuf::from(OsString::from_vec(path));
        }
        Ok(Setup {
            network,
            ids: message.id.map(|id| ProxyIds { id }),
            supervisor: message.supervisor,
        })
    }
}

/// Every path that a network holds.
fn paths(network: &mut Network) -> Vec<&mut PathBuf> {
    fn file(source: &mut SecretSource) -> Option<&mut PathBuf> {
        match source {
            SecretSource::File(path) => Some(path),
            SecretSource::Env(_) | SecretSource::Command(_) | SecretSource::Keyring { .. } => None,
        }
    }
    let mut paths: Vec<&mut PathBuf> = network.authorities.iter_mut().collect();
    paths.extend(&mut network.extra_authorities);
    if let Some(upstream) = &mut network.upstream {
        let proxies = upstream.https.iter_mut().chain(&mut upstream.http);
        paths.extend(
            proxies.filter_map(|proxy| match &mut proxy.what.credentials {
                Some(ProxyCredentials::From(from)) => file(from),
                Some(ProxyCredentials::UrlIn(_)) | None => None,
            }),
        );
    }
    paths.extend(network.models.iter_mut().map(|models| &mut models.cwd));
    paths.extend(network.sockets.iter_mut().map(|item| &mut item.what.path));
    let secrets = network.secrets.iter_mut();
    paths.extend(secrets.filter_map(|item| file(&mut item.what.rule.from)));
    let aws = network.aws.iter_mut();
    paths.extend(aws.filter_map(|item| file(&mut item.what.rule.from)));
    for login in &mut network.logins {
        let login = &mut login.what;
        paths.extend(login.rule.file.as_mut());
        paths.extend([&mut login.source, &mut login.target]);
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{
        AwsRule, HostName, LoginFormat, LoginRule, NetworkLimits, Publish, SecretPlace, SecretRule,
        TokenServer,
    };
    use ironcage_plan::{
        AllowedSocket, FixedAddress, HostPort, Item, ModelHost, Models, NetworkRule, PlannedAws,
        PlannedLogin, PlannedProxy, PlannedSecret, RequestRule, UpstreamProxy,
    };

    fn item<T>(what: T) -> Item<T> {
        Item {
            what,
            origin: "a test".into(),
        }
    }

    /// Not valid as text.
    fn path(name: &str) -> PathBuf {
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0xff);
        PathBuf::from(OsString::from_vec(bytes))
    }

    fn instruction(k: u32) -> Instruction {
        Instruction {
            code: 6,
            jt: 1,
            jf: 2,
            k,
        }
    }

    /// With something in every field.
    fn network() -> Network {
        let host = |text: &str| text.parse().unwrap();
        let places = ["header:x-key", "basic", "query:key", "body:a.b"];
        let source = |text: &str| text.parse::<SecretSource>().unwrap();
        let secret = |from| {
            item(PlannedSecret {
                rule: SecretRule {
                    name: "TOKEN".into(),
                    from,
                    hosts: vec![host("a.example"), host("host.ironcage:80")],
                    places: places.map(|place| place.parse().unwrap()).to_vec(),
                    leased: true,
                },
                placeholder: "ironcage-TOKEN".into(),
            })
        };
        Network {
            allow: vec![item(NetworkRule {
                rule: host("**.a.example:*"),
                bundle: Some("npm".into()),
            })],
            deny: vec![item(NetworkRule {
                rule: host("[fd00::/8]:22"),
                bundle: None,
            })],
            http: vec![item(RequestRule {
                rule: "GET,HEAD b.example/v1/**".parse().unwrap(),
            })],
            models: Some(Models {
                hosts: vec![item(ModelHost {
                    rule: host("m.example"),
                })],
                cwd: path("/work"),
                home: Some("/home/ann".into()),
                reader_filter: vec![instruction(2)],
                tools: serde_json::from_str(r#"{"rules":{"tools":{"deny":["x"]}}}"#).unwrap(),
            }),
            secrets: vec![
                secret(source("env:TOKEN")),
                secret(source("command:pass show a:b")),
                secret(source("keyring:git hub/an/n")),
                secret(SecretSource::File(path("/secret"))),
            ],
            aws: Some(item(PlannedAws {
                rule: AwsRule {
                    from: SecretSource::File(path("/aws")),
                    hosts: vec![host("**.amazonaws.com")],
                    credentials: vec!["sts".into()],
                },
                id: "id".into(),
                key: "key".into(),
            })),
            logins: vec![item(PlannedLogin {
                rule: LoginRule {
                    name: "claude".into(),
                    format: LoginFormat::Claude,
                    file: Some(path("/login")),
                    token_server: TokenServer {
                        name: HostName::from_ascii(b"t.example").unwrap(),
                        port: 8443,
                        path: "/v1/token".into(),
                    },
                    client: "client".into(),
                    hosts: vec![host("api.example")],
                    requests: vec!["POST api.example/v1/messages/**".parse().unwrap()],
                },
                source: path("/source"),
                target: path("/target"),
                content: "{}".into(),
                access: "access".into(),
                account: None,
            })],
            authorities: vec![path("/etc/ssl")],
            extra_authorities: vec![path("/corp.pem")],
            upstream: Some(UpstreamProxy {
                https: Some(item(PlannedProxy {
                    server: "proxy.example:3128".parse().unwrap(),
                    credentials: Some(ProxyCredentials::From(SecretSource::File(path("/login")))),
                })),
                http: Some(item(PlannedProxy {
                    server: "[::1]:3128".parse().unwrap(),
                    credentials: Some(ProxyCredentials::UrlIn("HTTP_PROXY".into())),
                })),
                no_proxy: vec![host("**.corp.example:*"), host("every host:22")],
            }),
            host_ports: vec![item(HostPort { port: 11434 })],
            resolve: vec![item(FixedAddress {
                name: HostName::from_ascii(b"a.example").unwrap(),
                address: "127.0.0.1".parse().unwrap(),
            })],
            live: true,
            leases_requests: true,
            leasable: vec![host("every host"), host("every host:22")],
            sockets: vec![item(AllowedSocket {
                path: path("/run/socket"),
                commands: Some("Docker".into()),
                leased: true,
            })],
            publish: vec![item(Publish {
                outer: 8080,
                inner: 3000,
            })],
            limits: NetworkLimits {
                connections: Some(3),
                ..NetworkLimits::default()
            },
            proxy_filter: vec![instruction(1)],
        }
    }

    fn sent(network: Network) -> Setup {
        Setup {
            network,
            ids: Some(ProxyIds { id: 7 }),
            supervisor: 42,
        }
    }

    #[test]
    fn what_is_sent_is_received_to_the_last_byte_of_a_path() {
        let received = Setup::receive(sent(network()).send().unwrap()).unwrap();
        assert_eq!(received, sent(network()));
        assert!(received.network.secrets[0].what.rule.places.len() == 4);
        assert!(matches!(
            received.network.secrets[0].what.rule.places[1],
            SecretPlace::Basic
        ));
    }

    #[test]
    fn the_setup_cannot_be_changed_and_garbage_is_an_error() {
        let file = sent(network()).send().unwrap();
        assert!(File::from(file).write_all(b"x").is_err());
        let flags = MemfdFlags::CLOEXEC;
        let mut file = File::from(memfd_create("garbage", flags).unwrap());
        file.write_all(b"{\"version\":1}").unwrap();
        assert!(Setup::receive(file.into()).is_err());
    }
}
