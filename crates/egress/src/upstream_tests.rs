use super::*;
use ironcage_plan::{Item, UpstreamProxy};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

fn name(text: &str) -> HostName {
    HostName::from_ascii(text.as_bytes()).unwrap()
}

fn named(text: &str) -> Target {
    Target::Name(name(text))
}

fn at(text: &str) -> Target {
    Target::Address(text.parse().unwrap())
}

fn upstream(server: &str, direct: &[&str], credentials: Option<ProxyCredentials>) -> Upstream {
    let proxy = Item {
        what: PlannedProxy {
            server: server.parse().unwrap(),
            credentials,
        },
        origin: "a test".into(),
    };
    let mut network = Network::denying();
    network.upstream = Some(UpstreamProxy {
        https: Some(proxy.clone()),
        http: Some(proxy),
        no_proxy: direct.iter().map(|rule| rule.parse().unwrap()).collect(),
    });
    Upstream::load(&network).unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn what_is_listed_or_local_goes_directly_and_the_rest_through_the_proxy() {
    let direct = ["**.corp.test:*", "10.0.0.0/8:*", "every host:22"];
    let upstream = upstream("proxy.corp.test:3128", &direct, None);
    let proxied = |target: &Target, port| upstream.is_for(target, port);
    assert!(proxied(&named("api.test"), 443) && proxied(&at("192.0.2.1"), 443));
    assert!(!proxied(&named("wiki.corp.test"), 443) && !proxied(&named("corp.test"), 80));
    assert!(!proxied(&at("10.1.2.3"), 443) && !proxied(&named("api.test"), 22));
    assert!(!proxied(&at("127.0.0.1"), 443) && !proxied(&Target::Host, 443));
    assert!(!Upstream::default().is_for(&named("api.test"), 443));
}

#[test]
fn the_proxy_itself_is_known_by_its_name_and_its_address() {
    let upstream = upstream("proxy.test:3128", &[], None);
    assert!(upstream.is_itself(&named("proxy.test"), 3128));
    assert!(!upstream.is_itself(&named("proxy.test"), 443));
    assert!(!upstream.is_itself(&named("other.test"), 3128));
    let resolver = Resolver::of_known([(name("proxy.test"), "10.0.0.1".parse().unwrap())]);
    let is_at = |text: &str| wait(upstream.is_at(&resolver, text.parse().unwrap(), 3128));
    assert!(is_at("10.0.0.1") && is_at("::ffff:10.0.0.1") && !is_at("10.0.0.2"));
}

#[test]
fn a_proxy_on_this_host_is_known_by_every_address_of_the_host() {
    let resolver = Resolver::of_known([]);
    let local = upstream("127.0.0.1:3128", &[], None);
    let is_at = |text: &str, port| wait(local.is_at(&resolver, text.parse().unwrap(), port));
    assert!(is_at("127.0.0.1", 3128) && is_at("::1", 3128) && is_at("127.0.0.2", 3128));
    assert!(!is_at("127.0.0.1", 443), "another service of this host");
    assert!(!is_at("192.0.2.1", 3128), "another host");
    let elsewhere = upstream("192.0.2.1:3128", &[], None);
    assert!(!wait(elsewhere.is_at(
        &resolver,
        "127.0.0.1".parse().unwrap(),
        3128
    )));
}

/// What a proxy hears, and what comes of its answer; and the first bytes behind it.
fn asked(
    answer: &'static [&'static [u8]],
    credentials: Option<ProxyCredentials>,
) -> (String, Result<Vec<u8>, NetworkReason>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = upstream(
        &listener.local_addr().unwrap().to_string(),
        &[],
        credentials,
    );
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = vec![0; 4096];
        let length = stream.read(&mut head).unwrap();
        head.truncate(length);
        for part in answer {
            stream.write_all(part).unwrap();
        }
        String::from_utf8(head).unwrap()
    });
    let resolver = Resolver::of_known([]);
    let target = name("api.test");
    let came = wait(async {
        let server = upstream.server(&named("api.test"), 443, false).unwrap();
        let end = TunnelEnd::Name(&target);
        let mut stream = server.tunnel(&resolver, end, 443).await?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        Ok(rest)
    });
    (served.join().unwrap(), came)
}

#[test]
fn a_tunnel_begins_behind_the_answer_and_carries_the_credentials_outside() {
    let file = std::env::temp_dir().join(format!("upstream-{}", std::process::id()));
    std::fs::write(&file, "ann:p@ss:word\n").unwrap();
    let from = ProxyCredentials::From(ironcage_model::SecretSource::File(file.clone()));
    let (head, rest) = asked(
        &[
            b"HTTP/1.1 200 Connection ",
            b"established\r\nVia: x\r\n\r",
            b"\nSSH-2.0-x\r\n",
        ],
        Some(from),
    );
    std::fs::remove_file(file).unwrap();
    assert!(
        head.starts_with("CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n"),
        "{head}"
    );
    let basic = base64::encode(b"ann:p@ss:word");
    assert!(
        head.contains(&format!("Proxy-Authorization: Basic {basic}\r\n")),
        "{head}"
    );
    assert_eq!(rest.unwrap(), b"SSH-2.0-x\r\n");
}

#[test]
fn each_way_to_fail_has_a_code_of_its_own() {
    let code = |answer| asked(answer, None).1.unwrap_err();
    let refused: &[&[u8]] = &[b"HTTP/1.1 403 no\r\n\r\n"];
    assert_eq!(
        code(refused),
        NetworkReason::UpstreamRefused { status: 403 }
    );
    let login: &[&[u8]] = &[b"HTTP/1.0 407 who\r\nProxy-Authenticate: Basic\r\n\r\n"];
    assert_eq!(code(login), NetworkReason::UpstreamCredentials);
    const ODD: [&[&[u8]]; 3] = [&[b"SSH-2.0-x\r\n\r\n"], &[b"HTTP/1.1 2000 x\r\n\r\n"], &[]];
    for odd in ODD {
        let reason = code(odd);
        assert!(
            matches!(reason, NetworkReason::UpstreamUnreachable { .. }),
            "{reason}"
        );
        assert!(reason.is_failure());
    }
    let (head, _) = asked(refused, None);
    assert!(!head.contains("Proxy-Authorization"), "{head}");
}
