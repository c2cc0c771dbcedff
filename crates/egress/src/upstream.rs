//! Upstream proxies: through them connections go out where the user's network has one (ADR 36).
//!
//! A tunnel is asked for by `CONNECT`, for every protocol, so that no answer of the upstream proxy
//! itself ever reaches the cage: some repeat the credentials of a request in their error pages. One
//! without credentials gets plain HTTP as proxies expect it, with the whole URL.

use crate::decide::Target;
use crate::http::LONGEST_HEAD;
use crate::resolve::Resolver;
use crate::secret::{read_source, unescaped};
use ironcage_model::{
    HostName, HostRule, NetworkReason, ProxyHost, ProxyServer, ProxyUrl, Reason, StartCode, base64,
    in_full,
};
use ironcage_plan::{Network, PlannedProxy, ProxyCredentials};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// How long a proxy may take to be connected to, and to answer: it connects to the server meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

/// The upstream proxies of a cage.
#[derive(Default)]
pub(crate) struct Upstream {
    https: Option<UpstreamServer>,
    http: Option<UpstreamServer>,
    direct: Vec<HostRule>,
}

pub(crate) struct UpstreamServer {
    server: ProxyServer,
    /// The value of the field `Proxy-Authorization`.
    authorization: Option<Zeroizing<String>>,
}

/// What a tunnel leads to, as `CONNECT` writes it.
pub(crate) enum TunnelEnd<'a> {
    Name(&'a HostName),
    Address(IpAddr),
}

impl Upstream {
    /// Takes the proxies of a network, and reads their credentials.
    ///
    /// # Errors
    /// Where credentials that the policy names cannot be read. Never with a part of them.
    pub(crate) fn load(network: &Network) -> Result<Upstream, Reason> {
        let Some(upstream) = &network.upstream else {
            return Ok(Upstream::default());
        };
        let load = |proxy: Option<&ironcage_plan::Item<PlannedProxy>>| {
            proxy
                .map(|item| UpstreamServer::load(&item.what))
                .transpose()
        };
        Ok(Upstream {
            https: load(upstream.https.as_ref())?,
            http: load(upstream.http.as_ref())?,
            direct: upstream.no_proxy.clone(),
        })
    }

    /// The ports of the proxies.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let servers = self.https.iter().chain(&self.http);
        servers.map(|server| server.server.port).collect()
    }

    /// The proxy for a destination; `None` where it is reached directly.
    pub(crate) fn server(
        &self,
        target: &Target,
        port: u16,
        plain_http: bool,
    ) -> Option<&UpstreamServer> {
        let direct = match target {
            Target::Host => true,
            Target::Name(name) => self.direct.iter().any(|rule| rule.names(name, port)),
            Target::Address(address) => {
                address.is_loopback() || self.direct.iter().any(|rule| rule.covers(*address, port))
            }
        };
        let server = if plain_http { &self.http } else { &self.https };
        server.as_ref().filter(|_| !direct)
    }

    /// Whether any connection to this destination goes through a proxy.
    pub(crate) fn is_for(&self, target: &Target, port: u16) -> bool {
        self.server(target, port, false).is_some() || self.server(target, port, true).is_some()
    }

    /// Whether a destination is a proxy itself, by the name or address that the settings have.
    pub(crate) fn is_itself(&self, target: &Target, port: u16) -> bool {
        self.servers_at(port).any(|host| match (host, target) {
            (ProxyHost::Name(own), Target::Name(name)) => own == name,
            (ProxyHost::Address(own), Target::Address(address)) => *own == address.to_canonical(),
            _ => false,
        })
    }

    /// Whether an address is that of a proxy, whose name may be another than the one that led here.
    pub(crate) async fn is_at(&self, resolver: &Resolver, address: IpAddr, port: u16) -> bool {
        for host in self.servers_at(port) {
            let at = match host {
                ProxyHost::Address(own) => vec![*own],
                ProxyHost::Name(name) => resolver.addresses(name).await.unwrap_or_default(),
            };
            // A server on this host may listen at all of its addresses.
            let same = |at: &IpAddr| {
                at.to_canonical() == address.to_canonical() || is_local(*at) && is_local(address)
            };
            if at.iter().any(same) {
                return true;
            }
        }
        false
    }

    fn servers_at(&self, port: u16) -> impl Iterator<Item = &ProxyHost> {
        let servers = self.https.iter().chain(&self.http);
        let there = servers.filter(move |server| server.server.port == port);
        there.map(|server| &server.server.host)
    }
}

impl UpstreamServer {
    fn load(planned: &PlannedProxy) -> Result<UpstreamServer, Reason> {
        let failed = |text: String| Reason::Start {
            code: StartCode::UpstreamProxy,
            text: format!("the credentials of the upstream proxy: {text}"),
        };
        let plain: Option<Zeroizing<Vec<u8>>> = match &planned.credentials {
            None => None,
            Some(ProxyCredentials::From(from)) => {
                let value = read_source(from).map_err(|error| failed(in_full(&error)))?;
                let value = value.trim_ascii_end().to_vec();
                if !value.contains(&b':') {
                    return Err(failed("expected USER:PASSWORD".into()));
                }
                Some(Zeroizing::new(value))
            }
            Some(ProxyCredentials::UrlIn(variable)) => {
                let value = Zeroizing::new(std::env::var(variable).unwrap_or_default());
                let url = ProxyUrl::read(value.trim());
                let url = url.map_err(|error| failed(format!("{variable}: {error}")))?;
                if url.server != planned.server {
                    return Err(failed(format!("{variable} is another proxy by now")));
                }
                url.user_info
                    .map(|text| Zeroizing::new(unescaped(text.as_bytes())))
            }
        };
        let authorization = plain.map(|plain| {
            let plain = match plain.contains(&b':') {
                true => plain,
                false => Zeroizing::new([plain.as_slice(), b":"].concat()),
            };
            Zeroizing::new(format!("Basic {}", base64::encode(&plain)))
        });
        Ok(UpstreamServer {
            server: planned.server.clone(),
            authorization,
        })
    }

    /// Whether plain HTTP goes as it is, with whole URLs: then there is nothing in its requests
    /// that the proxy could repeat.
    pub(crate) fn takes_urls(&self) -> bool {
        self.authorization.is_none()
    }

    /// Connects to the proxy.
    pub(crate) async fn connect(&self, resolver: &Resolver) -> Result<TcpStream, NetworkReason> {
        let unreachable = |error: String| NetworkReason::UpstreamUnreachable { error };
        let addresses = match &self.server.host {
            ProxyHost::Address(address) => vec![*address],
            ProxyHost::Name(name) => (resolver.addresses(name).await)
                .map_err(|_| unreachable("its name has no address".into()))?,
        };
        let mut last = "its name has no address".to_owned();
        for address in addresses {
            let to = SocketAddr::new(address, self.server.port);
            match timeout(PATIENCE, TcpStream::connect(to)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = "no answer in time".into(),
            }
        }
        Err(unreachable(last))
    }

    /// Connects through the proxy. What comes from the stream afterwards is from the other end.
    pub(crate) async fn tunnel(
        &self,
        resolver: &Resolver,
        to: TunnelEnd<'_>,
        port: u16,
    ) -> Result<TcpStream, NetworkReason> {
        let mut stream = self.connect(resolver).await?;
        let to = match to {
            TunnelEnd::Name(name) => format!("{name}:{port}"),
            TunnelEnd::Address(address) => SocketAddr::new(address, port).to_string(),
        };
        let mut head = Zeroizing::new(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n"));
        if let Some(value) = &self.authorization {
            head.push_str("Proxy-Authorization: ");
            head.push_str(value);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        let asked = async {
            stream.write_all(head.as_bytes()).await?;
            answer(&mut stream).await
        };
        let status = match timeout(PATIENCE, asked).await {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => {
                let error = error.to_string();
                return Err(NetworkReason::UpstreamUnreachable { error });
            }
            Err(_) => {
                let error = "no answer in time".into();
                return Err(NetworkReason::UpstreamUnreachable { error });
            }
        };
        match status {
            200..300 => Ok(stream),
            407 => Err(NetworkReason::UpstreamCredentials),
            status => Err(NetworkReason::UpstreamRefused {
                status: u64::from(status),
            }),
        }
    }
}

/// Reads the head of an answer, and not a byte more: a server may speak first.
async fn answer(stream: &mut TcpStream) -> io::Result<u16> {
    const END: &[u8] = b"\r\n\r\n";
    let mut head: Vec<u8> = Vec::new();
    let mut part = [0; 1024];
    loop {
        let seen = stream.peek(&mut part).await?;
        if seen == 0 {
            return Err(io::Error::other("the proxy closed the connection"));
        }
        let before = head.len();
        head.extend(part.get(..seen).unwrap_or_default());
        let from = before.saturating_sub(END.len());
        let rest = head.get(from..).unwrap_or_default();
        let end =
            (rest.windows(END.len()).position(|four| four == END)).map(|at| from + at + END.len());
        let taken = end.unwrap_or(head.len()) - before;
        let taken = part.get_mut(..taken).unwrap_or_default();
        stream.read_exact(taken).await?;
        if end.is_some() {
            break;
        }
        if head.len() > LONGEST_HEAD {
            return Err(io::Error::other("the proxy's answer is too long"));
        }
    }
    status(&head).ok_or_else(|| io::Error::other("the proxy's answer is not HTTP"))
}

fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("HTTP/1.")?;
    let digits = rest.get(2..5)?;
    let ends = rest.as_bytes().get(5).is_none_or(|byte| *byte == b' ');
    let plain = ends && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// Whether an address is one of this host's: the kernel would connect to it from itself. Nothing is
/// sent.
fn is_local(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    // The port does not matter.
    let to = SocketAddr::new(address, 9);
    let from = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| connect(&socket, &to).map(|()| socket));
    let from = from.and_then(|socket| UdpSocket::from(socket).local_addr().map_err(|_| Errno::IO));
    from.is_ok_and(|from| from.ip().to_canonical() == address)
}

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
