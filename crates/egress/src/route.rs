//! Where a connection goes: to addresses that the rules let it lead to, or through an upstream
//! proxy.

use crate::buffers;
use crate::connection::Connection;
use crate::decide::{Denied, Target};
use crate::resolve::Unresolved;
use crate::shared_address::not_bound;
use crate::upstream::{TunnelEnd, UpstreamServer};
use ironcage_model::{HOST_NAME, HostName, NetworkReason, Protocol};
use ironcage_sys::rustix::net::sockopt::set_socket_keepalive;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an address may take to answer.
const CONNECT: Duration = Duration::from_secs(15);

/// A server that was reached.
pub(crate) struct Reached {
    pub(crate) stream: TcpStream,
    /// Where; an upstream proxy alone knows it.
    pub(crate) address: Option<IpAddr>,
    /// Whether it is an upstream proxy, which takes requests with whole URLs.
    pub(crate) takes_urls: bool,
}

/// The way to a target.
enum Route<'a> {
    Direct(Vec<IpAddr>),
    Upstream(&'a UpstreamServer, TunnelEnd<'a>),
}

impl Connection<'_> {
    /// Connects, or records why not.
    pub(crate) async fn connect_recorded(&self, protocol: Protocol) -> Result<Reached, Denied> {
        let connected = self.connect(protocol).await;
        match &connected {
            // Allowed, but nobody was there.
            Err(denied) if denied.reason.is_failure() => {
                let reason = Some(denied.reason.clone());
                let kind = self.allowed(protocol, self.open.led_to(), reason);
                self.service.traffic_log.fail(self.open, kind);
            }
            Err(denied) => self.denied(protocol, denied),
            Ok(_) => {}
        }
        connected
    }

    async fn connect(&self, protocol: Protocol) -> Result<Reached, Denied> {
        let plain_http = protocol == Protocol::Http;
        let began = Instant::now();
        let (stream, address, takes_urls) = match self.route(plain_http).await? {
            Route::Direct(addresses) => {
                let (stream, address) = self.direct(addresses).await?;
                (stream, Some(address), false)
            }
            Route::Upstream(server, end) => {
                let resolver = &self.service.resolver;
                let takes_urls = plain_http && server.takes_urls();
                let connected = match takes_urls {
                    true => server.connect(resolver).await,
                    false => server.tunnel(resolver, end, self.port).await,
                };
                (connected.map_err(Denied::because)?, None, takes_urls)
            }
        };
        self.open.connected_in(began.elapsed());
        let _ = stream.set_nodelay(true);
        buffers::bound(&stream, self.service.connections());
        let _ = set_socket_keepalive(&stream, true);
        Ok(Reached {
            stream,
            address,
            takes_urls,
        })
    }

    async fn route(&self, plain_http: bool) -> Result<Route<'_>, Denied> {
        let (rules, upstream) = (&self.service.rules, &self.service.upstream);
        if upstream.is_itself(&self.target, self.port) {
            return Err(Denied::because(NetworkReason::UpstreamItself));
        }
        let server = upstream.server(&self.target, self.port, plain_http);
        match (&self.target, server) {
            (Target::Host, _) => Ok(Route::Direct(host_addresses())),
            (Target::Name(name), _) if name.as_str() == HOST_NAME => {
                Ok(Route::Direct(host_addresses()))
            }
            (Target::Address(address), None) => {
                not_bound(rules, &self.service.resolver, *address, self.port).await?;
                Ok(Route::Direct(vec![*address]))
            }
            (Target::Address(address), Some(server)) => {
                // Where a name leads is known beyond the proxy only.
                match rules.bound(self.port).first() {
                    Some(name) => Err(Denied::because(NetworkReason::AddressSharingUnknown {
                        name: name.to_string(),
                    })),
                    None => Ok(Route::Upstream(server, TunnelEnd::Address(*address))),
                }
            }
            (Target::Name(name), None) => Ok(Route::Direct(self.resolved(name).await?)),
            (Target::Name(name), Some(server)) => {
                let Some(fixed) = self.service.resolver.fixed(name) else {
                    return Ok(Route::Upstream(server, TunnelEnd::Name(name)));
                };
                // What is known here is checked here, and goes to the address that was checked.
                let allowed = self.may_lead_to(fixed.to_vec())?;
                let beyond = |address: &&IpAddr| {
                    let target = Target::Address(**address);
                    upstream.server(&target, self.port, plain_http).is_some()
                };
                match allowed.first().filter(beyond) {
                    Some(address) => Ok(Route::Upstream(server, TunnelEnd::Address(*address))),
                    None => Ok(Route::Direct(allowed)),
                }
            }
        }
    }

    /// The addresses of a name to which it may lead.
    async fn resolved(&self, name: &HostName) -> Result<Vec<IpAddr>, Denied> {
        let found = self.service.resolver.addresses(name).await;
        let found = found.map_err(|error| {
            Denied::because(match error {
                Unresolved::NoSuchName => NetworkReason::NameNotFound,
                Unresolved::NoAnswer => NetworkReason::NoResolver,
            })
        })?;
        self.may_lead_to(found)
    }

    fn may_lead_to(&self, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, Denied> {
        let mut refused = None;
        let allowed: Vec<IpAddr> = addresses
            .into_iter()
            .filter(
                |address| match self.service.rules.may_lead_to(*address, self.port) {
                    Ok(()) => true,
                    Err(denied) => {
                        refused.get_or_insert(denied);
                        false
                    }
                },
            )
            .collect();
        match (allowed.is_empty(), refused) {
            (true, Some(denied)) => Err(denied),
            _ => Ok(allowed),
        }
    }

    async fn direct(&self, addresses: Vec<IpAddr>) -> Result<(TcpStream, IpAddr), Denied> {
        let Connection { service, port, .. } = self;
        let own_host = addresses == host_addresses();
        let mut last = "it has no address".to_owned();
        for address in addresses {
            if service
                .upstream
                .is_at(&service.resolver, address, *port)
                .await
            {
                return Err(Denied::because(NetworkReason::UpstreamItself));
            }
            self.open.leads_to(address);
            let to = SocketAddr::new(address, *port);
            match timeout(CONNECT, TcpStream::connect(to)).await {
                Ok(Ok(stream)) => {
                    if !own_host
                        && !service.rules.names_address(address, *port)
                        && is_own(&stream, address)
                    {
                        return Err(Denied::because(NetworkReason::NameLeadsTo {
                            address: address.to_string(),
                            kind: "the host's own".into(),
                        }));
                    }
                    return Ok((stream, address));
                }
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = "no answer in time".to_owned(),
            }
        }
        Err(Denied::because(NetworkReason::CannotConnect {
            error: last,
        }))
    }
}

fn host_addresses() -> Vec<IpAddr> {
    vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
}

/// Whether a connection ends where it began: at an address of this host.
fn is_own(stream: &TcpStream, address: IpAddr) -> bool {
    stream
        .local_addr()
        .is_ok_and(|own| own.ip().to_canonical() == address.to_canonical())
}
