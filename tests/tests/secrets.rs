//! Secrets: the cage has a placeholder, the egress proxy puts the value on requests to its
//! host and to nobody else, and what comes back does not hold it.

use ironcage_tests::{Stage, TlsWeb, both};

const VALUE: &str = "real-value-of-the-token-0123456789";

fn flags(server: &TlsWeb, name: &str, secret: bool) -> Vec<String> {
    let mut flags = server.place(name);
    let host = format!("{name}:{}", server.port);
    flags.extend(["--allow-host".to_owned(), host.clone()]);
    if secret {
        flags.extend(["--secret".to_owned(), format!("TOKEN@{host}")]);
    }
    flags
}

/// Everything that Ironcage keeps or shows of the last cage.
fn kept(stage: &Stage, flags: &[String]) -> String {
    let mut all = String::new();
    let mut plan = vec!["plan", "--json"];
    plan.extend(flags.iter().map(String::as_str));
    plan.extend(["--", "true"]);
    for args in [
        vec!["net"],
        vec!["why"],
        vec!["audit", "show", "last"],
        plan,
    ] {
        let ran = stage
            .ironcage(args)
            .env("TOKEN", VALUE)
            .output()
            .expect("ironcage");
        all.push_str(&String::from_utf8_lossy(&ran.stdout));
        all.push_str(&String::from_utf8_lossy(&ran.stderr));
    }
    all
}

both! {
    fn the_proxy_puts_a_secret_on_and_the_cage_never_has_it(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let script = format!(
            "u=https://api.test:{port}/reflect; echo \"$TOKEN\"\n\
             for v in --http1.1 --http2; do\n\
             curl -sS -m 60 $v -H \"Authorization: Bearer $TOKEN\" $u; echo\n\
             curl -sS -m 60 $v -H \"X-Api-Key: $TOKEN\" --compressed $u; echo\n\
             curl -sS -m 60 $v -u \"me:$TOKEN\" $u; echo\n\
             curl -sS -m 60 $v -A \"$TOKEN\" $u\n\
             curl -sS -m 60 $v \"$u?key=$TOKEN\"\n\
             done\n\
             cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^TOKEN=ironcage-TOKEN-'\n\
             env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; cat /etc/gitconfig\n"
        );
        let given = flags(&server, "api.test", true);
        let ran = server.sh_env(stage, &given, &[("TOKEN", VALUE)], &script);
        let out = ran.stdout();
        assert!(out.starts_with("ironcage-TOKEN-"), "{ran:?}");
        assert!(!out.contains(VALUE), "{ran:?}");
        let covered = "*".repeat(VALUE.len());
        assert_eq!(out.matches(&format!("Bearer {covered}")).count(), 2, "{ran:?}");
        assert_eq!(out.matches(&format!("\"x-api-key\":\"{covered}\"")).count(), 2, "{ran:?}");
        assert_eq!(out.matches("the secret TOKEN is not for header:user-agent").count(), 2, "{ran:?}");
        assert_eq!(out.matches("is not for query:NAME").count(), 2, "{ran:?}");
        let log = server.log();
        assert_eq!(log.matches(&format!("Bearer {VALUE}")).count(), 2, "{log}");
        assert_eq!(log.matches(&format!("\"x-api-key\":\"{VALUE}\"")).count(), 2, "{log}");
        // me:VALUE
        let basic = "Basic bWU6cmVhbC12YWx1ZS1vZi10aGUtdG9rZW4tMDEyMzQ1Njc4OQ==";
        assert_eq!(log.matches(basic).count(), 2, "{log}");
        assert!(!out.contains("cmVhbC12YWx1ZS1vZi10aGUtdG9rZW4"), "{ran:?}");
        assert!(!log.contains("ironcage-TOKEN"), "{log}");
        assert_eq!(log.lines().count(), 6, "{log}");
        let kept = kept(stage, &given);
        assert!(kept.contains("TOKEN") && kept.contains("GET /reflect") && !kept.contains(VALUE), "{kept}");
    }

    fn a_placeholder_that_goes_elsewhere_is_stopped_and_recorded(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let Some(other) = TlsWeb::start(stage, "other.test") else { return };
        let mut given = flags(&server, "api.test", true);
        given.extend(other.place("other.test"));
        let rule = format!("other.test:{}", other.port);
        given.extend(["--http-allow".to_owned(), rule]);
        // Whom the launcher trusts: both servers' authorities.
        let both = stage.aside().join("both.pem");
        let of = |server: &TlsWeb| std::fs::read(&server.authority).expect("an authority");
        std::fs::write(&both, [of(&server), of(&other)].concat()).expect("a file");
        let script = format!(
            "u=https://other.test:{}/reflect; w='%{{http_code}}\\n'\n\
             for v in --http1.1 --http2; do\n\
             curl -sS -m 60 $v -o /dev/null -w \"$w\" $u\n\
             curl -sS -m 60 $v -o /dev/null -w \"$w\" -H \"Authorization: Bearer $TOKEN\" $u\n\
             curl -sS -m 60 $v -o /dev/null -w \"$w\" -u \"a:$TOKEN\" $u\n\
             curl -sS -m 60 $v -o /dev/null -w \"$w\" $u/$TOKEN\n\
             done\n\
             curl -sS -m 60 --http1.1 -o /dev/null -w \"$w\" -d \"x $TOKEN\" $u\n\
             (head -c 400000 /dev/zero; printf %s \"$TOKEN\"; head -c 400000 /dev/zero) > body\n\
             for v in --http1.1 --http2; do curl -sS -m 60 $v -o /dev/null -T body $u 2>/dev/null && echo went; done; echo over\n",
            other.port
        );
        let both = both.display().to_string();
        let env = [("TOKEN", VALUE), ("SSL_CERT_FILE", both.as_str())];
        let ran = server.sh_env(stage, &given, &env, &script);
        let one = "200\n403\n403\n403\n";
        assert_eq!(ran.stdout(), format!("{one}{one}403\nover\n"), "{ran:?}");
        let log = other.log();
        assert!(!log.contains("ironcage-TOKEN") && !log.contains(VALUE), "{log}");
        let kept = kept(stage, &given);
        assert!(kept.contains("the secret TOKEN is not for this host"), "{kept}");
    }

    fn places_and_sources_are_what_the_policy_names(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let value = stage.home().join("token");
        stage.write(&value, format!("{VALUE}\n"));
        let policy = stage.aside().join("policy.toml");
        let text = format!(
            "[network]\nallow = [\"api.test:{port}\", \"127.0.0.1:{port}\"]\nresolve = {{ \"api.test\" = \"127.0.0.1\" }}\n\
             [network.secrets.TOKEN]\nhosts = [\"api.test:{port}\"]\nfrom = \"file:{}\"\nin = [\"query:key\", \"body:auth.token\"]\n",
            value.display()
        );
        std::fs::write(&policy, text).expect("a policy");
        let given = ["--policy".to_owned(), policy.display().to_string()];
        let script = format!(
            "u=https://api.test:{port}/reflect\n\
             curl -sS -m 60 \"$u?a=1&key=$TOKEN\"; echo\n\
             curl -sS -m 60 -H 'Content-Type: application/json' -d \"{{\\\"auth\\\":{{\\\"token\\\":\\\"$TOKEN\\\"}}}}\" $u; echo\n\
             curl -sS -m 60 --http1.1 -d \"auth.token=$TOKEN\" $u; echo\n\
             hidden=\"\\\\u0069${{TOKEN#i}}\"\n\
             for v in --http1.1 --http2; do\n\
             curl -sS -m 60 $v -H 'Content-Type: application/json' -d \"{{\\\"auth\\\":{{\\\"token\\\":\\\"$hidden\\\"}},\\\"issue\\\":\\\"$TOKEN\\\"}}\" $u\n\
             curl -sS -m 60 $v -H 'Content-Type: application/json' -d \"{{\\\"auth.token\\\":\\\"$TOKEN\\\"}}\" $u\n\
             done\n\
             curl -sS -m 60 -H \"Authorization: Bearer $TOKEN\" $u\n"
        );
        let ran = server.sh(stage, &given, &script);
        let covered = "*".repeat(VALUE.len());
        let out = ran.stdout();
        assert!(out.contains(&format!("/reflect?a=1&key={covered}")), "{ran:?}");
        assert!(out.contains(&format!("{{\\\"auth\\\":{{\\\"token\\\":\\\"{covered}\\\"}}}}")), "{ran:?}");
        assert!(out.contains(&format!("auth.token={covered}")), "{ran:?}");
        assert!(out.contains("the secret TOKEN is not for header:authorization"), "{ran:?}");
        let elsewhere = "the secret TOKEN is not for body:FIELD";
        assert_eq!(out.matches(elsewhere).count(), 4, "{ran:?}");
        assert_eq!(server.log().lines().count(), 3, "{ran:?}");
        assert!(!out.contains(VALUE), "{ran:?}");
        // Without a network nothing of it is there, which is said.
        let alone = ["--secret".to_owned(), format!("TOKEN@api.test:{port}")];
        let ran = server.sh_env(stage, &alone, &[("TOKEN", VALUE)], "echo \"has=$TOKEN\"");
        assert_eq!(ran.stdout(), "has=\n", "{ran:?}");
        assert!(ran.stderr.contains("does not get the secret TOKEN"), "{ran:?}");
        // Without the value there is no cage.
        let missing = flags(&server, "api.test", true);
        let ran = server.sh(stage, &missing, "true");
        assert_eq!(ran.code(), 125, "{ran:?}");
        assert!(format!("{ran:?}").contains("the variable TOKEN is not set in your environment"), "{ran:?}");
    }

    fn a_secret_of_the_keyring_is_asked_for_by_its_tool(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        // Stands for the tool and the keyring behind it, which needs a session of a desktop.
        let tools = stage.home().join("tools");
        stage.write(tools.join("secret-tool"), format!(
            "#!/bin/sh\n[ \"$*\" = 'lookup service api username me' ] && echo {VALUE}\n"
        ));
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(tools.join("secret-tool"), executable).expect("a program");
        let run = |user: &str, path: &str| {
            let mut given = flags(&server, "api.test", false);
            given.extend(["--secret".to_owned(), format!("TOKEN=keyring:api/{user}@api.test:{port}")]);
            let script = format!("curl -sS -m 60 -H \"Authorization: Bearer $TOKEN\" https://api.test:{port}/reflect");
            server.sh_env(stage, &given, &[("PATH", path)], &script)
        };
        let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let with_tool = format!("{}:{system}", tools.display());
        let ran = run("me", &with_tool);
        assert!(ran.stdout().contains(&"*".repeat(VALUE.len())), "{ran:?}");
        assert!(server.log().contains(VALUE), "{}", server.log());
        let nothing = run("nobody", &with_tool);
        assert_eq!(nothing.code(), 125, "{nothing:?}");
        assert!(nothing.stderr.contains("secret-tool store --label=api service api username nobody"), "{nothing:?}");
        let none = run("me", "/nowhere");
        assert_eq!(none.code(), 125, "{none:?}");
        assert!(none.stderr.contains("libsecret-tools"), "{none:?}");
    }

    fn git_asks_and_gets_the_placeholder_which_becomes_the_secret(stage) {
        let Some(server) = TlsWeb::start(stage, "api.test") else { return };
        let port = server.port;
        let given = flags(&server, "api.test", true);
        let script = format!(
            "printf 'protocol=https\\nhost=api.test:{port}\\n\\n' | git credential fill | grep -c '^password=ironcage-TOKEN-'\n\
             GIT_TERMINAL_PROMPT=0 git ls-remote https://api.test:{port}/git/repo.git; true\n"
        );
        let ran = server.sh_env(stage, &given, &[("TOKEN", VALUE)], &script);
        assert_eq!(ran.stdout(), "1\n0123456789012345678901234567890123456789\trefs/heads/main\n", "{ran:?}");
        let log = server.log();
        // x-access-token:VALUE
        assert!(log.contains("Basic eC1hY2Nlc3MtdG9rZW46cmVhbC12YWx1ZS1vZi10aGUtdG9rZW4tMDEyMzQ1Njc4OQ=="), "{log}");
    }
}
