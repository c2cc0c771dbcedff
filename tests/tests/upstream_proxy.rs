//! Upstream proxies: connections to allowed hosts go through the proxy of the caller's network, the
//! cage sees neither it nor its password, and every way to fail has a code.

use ironcage_tests::web::Web;
use ironcage_tests::{Ran, Running, Screen, Stage, TlsWeb, UpstreamProxy, both, either};
use std::net::Ipv4Addr;

const PASSWORD: &str = "password-of-the-proxy-0123456789";
/// ann:PASSWORD
const BASIC: &str = "Basic YW5uOnBhc3N3b3JkLW9mLXRoZS1wcm94eS0wMTIzNDU2Nzg5";
const TOKEN: &str = "real-value-of-the-token-0123456789";

fn run(stage: &Stage, flags: &[&str], env: &[(&str, &str)], script: &str) -> Ran {
    let mut cage = stage.cage(flags, &["/bin/sh", "-c", script]);
    cage.envs(env.iter().copied());
    Running::start(&mut cage).finish(Screen::PATIENCE)
}

fn url(proxy: &UpstreamProxy) -> String {
    format!("http://ann:{PASSWORD}@{}", proxy.address)
}

/// The code of the answer to a request, with its status.
fn answered(stage: &Stage, env: &[(&str, &str)], host: &str) -> String {
    let script = format!(
        "curl -sS -m 60 -o body -w '%{{http_code}} ' http://{host}/; grep -o '\"code\":\"[a-z-]*\"' body"
    );
    let flags = ["--allow-host", "api.test", "--workspace-mode", "direct"];
    run(stage, &flags, env, &script).stdout()
}

both! {
    fn tls_goes_through_the_proxy_and_its_password_stays_outside(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let at = format!("127.0.0.1:{}", server.port).parse().expect("an address");
        let proxy = UpstreamProxy::start(&[("api.test:443", at)], Some(BASIC));
        let (url, authority) = (url(&proxy), server.authority.display().to_string());
        let env = [
            ("HTTPS_PROXY", url.as_str()),
            ("SSL_CERT_FILE", authority.as_str()),
            ("TOKEN", TOKEN),
        ];
        let script = format!(
            "curl -sS -m 60 -H \"Authorization: Bearer $TOKEN\" https://api.test/reflect; echo\n\
             curl -sS -m 60 https://other.test/ || echo other=$?\n\
             curl -sS -m 60 -x http://{0} http://api.test/ || echo proxy=$?\n\
             env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null",
            proxy.address
        );
        // With TLS as it is, and intercepted for a secret.
        for secret in [&[][..], &["--secret", "TOKEN@api.test"]] {
            let flags = [&["--allow-host", "api.test", "--env", "HTTPS_PROXY"], secret].concat();
            let ran = run(stage, &flags, &env, &script);
            let out = ran.stdout();
            assert!(out.contains("\"url\":\"/reflect\""), "{ran:?}");
            assert!(out.contains("other=6") && out.contains("proxy=7"), "{ran:?}");
            assert!(!out.contains(PASSWORD) && !ran.stderr.contains(PASSWORD), "{ran:?}");
        }
        assert!(server.log().contains(TOKEN), "{}", server.log());
        let heard = proxy.heard();
        assert_eq!(heard.matches("CONNECT api.test:443 ").count(), 2, "{heard}");
        assert!(!heard.contains("other.test") && !heard.contains(TOKEN), "{heard}");
        for shown in [&["plan", "--all", "--allow-host", "api.test", "--", "true"][..], &["audit", "show", "last"]] {
            let mut command = stage.ironcage(shown);
            let ran = Running::start(command.envs(env)).finish(Screen::PATIENCE).ok();
            let text = ran.stdout();
            assert!(!text.contains(PASSWORD), "{text}");
            assert!(shown[0] != "plan" || text.contains(&proxy.address.to_string()), "{text}");
        }
    }
}

either! {
    fn plain_http_goes_with_whole_urls_or_through_a_tunnel_with_a_password(stage) {
        let web = Web::start(0);
        let servers = [("api.test:80", web.address)];
        let script = "curl -sS -m 60 -D head http://api.test/x?y=1; cat head";
        let flags = ["--allow-host", "api.test", "--workspace-mode", "direct"];
        let plain = UpstreamProxy::start(&servers, None);
        let url_of = format!("http://{}", plain.address);
        let ran = run(stage, &flags, &[("http_proxy", url_of.as_str())], script);
        assert!(ran.stdout().contains("200"), "{ran:?}");
        let heard = plain.heard();
        assert!(heard.starts_with("GET http://api.test/x?y=1 HTTP/1.1\r\n"), "{heard}");
        let asks = UpstreamProxy::start(&servers, Some(BASIC));
        let ran = run(stage, &flags, &[("HTTP_PROXY", url(&asks).as_str())], script);
        assert!(ran.stdout().contains("200") && !ran.stdout().contains("the-proxy"), "{ran:?}");
        assert!(asks.heard().starts_with("CONNECT api.test:80 "), "{}", asks.heard());
        assert_eq!(web.heard().len(), 2, "{:?}", web.heard());
    }

    fn each_way_to_fail_is_502_with_a_code_and_told_to_the_person(stage) {
        let asks = UpstreamProxy::start(&[], Some(BASIC));
        let wrong = format!("http://ann:wrong@{}", asks.address);
        let knows = url(&asks);
        let closed = format!("http://127.0.0.1:{}", 1);
        for (proxy, code) in [
            (wrong.as_str(), "network-upstream-credentials"),
            (knows.as_str(), "network-upstream-refused"),
            (closed.as_str(), "network-upstream-unreachable"),
        ] {
            let said = answered(stage, &[("http_proxy", proxy)], "api.test");
            assert_eq!(said, format!("502 \"code\":\"{code}\"\n"));
        }
        // Reached without the proxy: the name has no address, and a denied port is another thing.
        let direct = [("http_proxy", knows.as_str()), ("no_proxy", "localhost,.test")];
        assert_eq!(answered(stage, &direct, "api.test"), "502 \"code\":\"network-name-not-found\"\n");
        let ran = run(stage, &["--allow-host", "api.test"], &[("http_proxy", wrong.as_str())], "curl -sS -m 60 http://api.test/");
        assert!(ran.stderr.contains("api.test not reached: the upstream proxy needs other credentials"), "{ran:?}");
        assert!(ran.stderr.contains("[network.upstream]"), "{ran:?}");
    }

    fn a_proxy_on_the_hosts_loopback_is_not_reached_by_an_allowed_port(stage) {
        let web = Web::start(0);
        let servers = [("api.test:80", web.address), ("secret.test:80", web.address)];
        let start = || UpstreamProxy::start_at(Ipv4Addr::LOCALHOST, &servers, None);
        let (proxy, other) = (start(), start());
        let (port, beside) = (proxy.address.port().to_string(), other.address.port().to_string());
        let url = format!("http://{}", proxy.address);
        let flags = ["--allow-host", "api.test", "--allow-host-port", &port, "--allow-host-port", &beside];
        // By the proxy itself, every host that it reaches would be reached.
        let script = format!(
            "curl -sS -m 60 -x http://host.ironcage:{port} http://secret.test/x; curl -sS -m 60 -x http://127.0.0.1:{port} http://secret.test/x; echo\n\
             curl -sS -m 60 http://host.ironcage:{beside}/beside; curl -sS -m 60 http://api.test/through"
        );
        let ran = run(stage, &flags, &[("http_proxy", url.as_str())], &script);
        assert!(!proxy.heard().contains("secret.test"), "{} {ran:?}", proxy.heard());
        let mut show = stage.ironcage(["audit", "show", "--json", "last"]);
        let log = Running::start(&mut show).finish(Screen::PATIENCE).ok().stdout();
        assert!(log.contains("network-upstream-itself"), "{log} {ran:?}");
        assert!(!ran.stderr.contains("--allow-host-port"), "no remedy that does not help: {ran:?}");
        assert!(other.heard().contains("/beside"), "another port of the host: {} {ran:?}", other.heard());
        assert_eq!(web.heard().len(), 1, "an allowed host, through the proxy: {ran:?}");
    }

    fn a_policy_names_the_proxy_and_where_its_password_is(stage) {
        let web = Web::start(0);
        let proxy = UpstreamProxy::start(&[("api.test:80", web.address)], Some(BASIC));
        let file = stage.base().join("config/proxy-password");
        stage.write(&file, format!("ann:{PASSWORD}\n"));
        let policy = format!(
            "[network]\nallow = [\"api.test\"]\n[network.upstream]\nproxy = \"http://{}\"\ncredentials = \"file:{}\"\n",
            proxy.address,
            file.display()
        );
        stage.write(stage.base().join("config/ironcage/config.toml"), policy);
        let fetch = "curl -sS -m 60 http://api.test/";
        let ran = run(stage, &[], &[("http_proxy", "http://127.0.0.1:1")], fetch);
        assert!(ran.stdout().contains("api.test"), "{ran:?}");
        // Off is off, and a password on the command line is refused without being shown.
        let ran = run(stage, &["--upstream-proxy", "off"], &[], fetch);
        assert!(ran.stdout().contains("network-name-not-found"), "{ran:?}");
        let given = url(&proxy);
        let ran = run(stage, &["--upstream-proxy", &given], &[], fetch);
        assert_ne!(ran.code(), 0, "{ran:?}");
        assert!(!ran.stderr.contains(PASSWORD) && ran.stderr.contains("HTTPS_PROXY"), "{ran:?}");
        let ran = run(stage, &["--upstream-proxy", "env"], &[("https_proxy", "socks5://127.0.0.1:1")], fetch);
        assert!(ran.stderr.contains("SOCKS proxies are not supported"), "{ran:?}");
        // A workspace's own file does not choose who carries the connections.
        stage.write(stage.project().join("ironcage.toml"), "[network.upstream]\nproxy = \"http://127.0.0.1:1\"\n");
        let ran = run(stage, &[], &[], fetch);
        assert!(ran.stdout().contains("api.test") && ran.stderr.contains("network.upstream"), "{ran:?}");
    }

    fn an_address_that_no_rule_names_is_refused_before_the_proxy_is_asked(stage) {
        let proxy = UpstreamProxy::start(&[], None);
        let url = format!("http://{}", proxy.address);
        let env = [("http_proxy", url.as_str()), ("https_proxy", url.as_str())];
        let script = format!(
            "for u in http://10.1.2.3/ http://169.254.169.254/ http://{}/; do\n\
             curl -sS -m 60 $u 2>/dev/null | grep -o '\"code\":\"[a-z-]*\"' || echo reset; done",
            proxy.address
        );
        let ran = run(stage, &["--network", "open"], &env, &script);
        let special = "\"code\":\"network-address-special\"\n";
        assert_eq!(ran.stdout(), format!("{special}{special}reset\n"), "{ran:?}");
        assert_eq!(proxy.heard(), "");
    }
}
