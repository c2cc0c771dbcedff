use super::*;
use ironcage_model::{Destination, Ports, SecretRule};

fn name(text: &str) -> HostName {
    HostName::from_ascii(text.as_bytes()).unwrap()
}

fn injector(host: &str, more: &[SecretPlace]) -> SecretInjector {
    let secret = |own: &str, host: &str| {
        let hosts = vec![HostRule {
            to: Destination::Name(name(host)),
            ports: Ports::Web,
        }];
        let places = SecretRule::usual_places().into_iter();
        let places = places.chain(more.iter().cloned()).collect();
        let (placeholder, value) = (format!("ironcage-{own}"), format!("value-of-{own}-in-full"));
        Secret::new(own.into(), placeholder, &value, hosts, places)
    };
    let store = Rc::new(SecretStore {
        secrets: vec![secret("a", "a.com"), secret("b", "b.com")],
        ..SecretStore::default()
    });
    SecretInjector::of(&store, &name(host), 443, ServerTrust::Proved).unwrap()
}

fn head(injector: &SecretInjector, target: &str, field: (&str, &str)) -> Result<String, Refused> {
    let parts = injector.inject(RequestParts {
        method: "GET".to_owned(),
        target: target.to_owned(),
        fields: vec![(field.0.to_owned(), field.1.as_bytes().to_vec())],
    })?;
    let said = String::from_utf8(parts.fields[0].1.clone()).unwrap();
    Ok(format!("{} {said}", parts.target))
}

#[test]
fn a_value_stands_where_it_may_and_only_there() {
    let a = injector("a.com", &[SecretPlace::Query("key".into())]);
    let bearer = ("authorization", "Bearer ironcage-a");
    assert_eq!(
        head(&a, "/", bearer).unwrap(),
        "/ Bearer value-of-a-in-full"
    );
    let basic = head(&a, "/", ("authorization", "Basic eDppcm9uY2FnZS1h")).unwrap();
    assert_eq!(basic, "/ Basic eDp2YWx1ZS1vZi1hLWluLWZ1bGw=");
    let query = head(&a, "/x?key=ironcage-a&y=1", ("x", "y")).unwrap();
    assert_eq!(query, "/x?key=value-of-a-in-full&y=1 y");
    for (target, field) in [
        ("/", ("user-agent", "ironcage-a")),
        ("/?other=ironcage-a", ("x", "y")),
        ("/?ironcage-a=1", ("x", "y")),
        ("/ironcage-a", ("x", "y")),
        ("/", ("authorization", "Bearer ironcage-b")),
        ("/", ("authorization", "Basic eDppcm9uY2FnZS1i")),
        ("/ironcage%2Db", ("x", "y")),
        ("/", ("x-other", "Basic eDppcm9uY2FnZS1h")),
    ] {
        assert_eq!(
            head(&a, target, field).unwrap_err().status,
            403,
            "{target} {field:?}"
        );
    }
}

#[test]
fn bodies_are_looked_at_and_answers_covered() {
    let a = injector("a.com", &[SecretPlace::Body("token".into())]);
    let of = |kind: &str| vec![("content-type".to_owned(), kind.as_bytes().to_vec())];
    let (json, form) = (
        of("application/json"),
        of("application/x-www-form-urlencoded"),
    );
    let injected = |fields: &Fields, body: &str| {
        let body = a.inject_body(fields, body.as_bytes());
        body.map(|body| body.map(|body| String::from_utf8(body).unwrap()))
            .map_err(|refused| refused.status)
    };
    let with = |text: &str| Ok(Some(text.to_owned()));
    let body = r#"{"token":"ironcage-a"}"#;
    assert_eq!(
        injected(&json, body),
        with(r#"{"token":"value-of-a-in-full"}"#)
    );
    let body = "token=ironcage-a&x=1";
    assert_eq!(injected(&form, body), with("token=value-of-a-in-full&x=1"));
    assert_eq!(injected(&form, "token=x"), Ok(None));
    assert_eq!(injected(&form, "token=ironcage-a&x=ironcage-a"), Err(403));
    let twice = r#"{"token":"\u0069roncage-a","issue":"ironcage-a"}"#;
    assert_eq!(injected(&json, twice), Err(403));
    assert_eq!(injected(&form, "text with ironcage-b in it"), Err(403));
    assert!(a.watch().unwrap().pass(b"x ironcage-b").is_err());
    assert!(a.watch().unwrap().pass(b"x ironcage-a").is_ok());
    let answered = |fields: &[(&str, &str)]| {
        let field = |(name, value): &(&str, &str)| ((*name).into(), value.as_bytes().to_vec());
        let mut fields: Fields = fields.iter().map(field).collect();
        a.answer(&mut fields).map(|()| fields)
    };
    let located = answered(&[("location", "/?t=value-of-a-in-full")]).unwrap();
    assert_eq!(located[0].1, b"/?t=******************");
    let named = answered(&[("x-value-of-a-in-full", "1"), ("x-other", "1")]).unwrap();
    assert_eq!(named.len(), 1);
    assert!(answered(&[("content-encoding", "gzip")]).is_err());
    // An error says what the server said, but no value.
    for (field, said) in [
        ("content-encoding", "value-of-a-in-full"),
        ("grpc-encoding", "x; value-of-a-in-full"),
        ("content-type", "text/plain; charset=value-of-a-in-full"),
        (
            "content-type",
            "text/plain; charset=dmFsdWUtb2YtYS1pbi1mdWxs",
        ),
    ] {
        let reason = answered(&[(field, said)]).unwrap_err().reason.to_string();
        assert!(
            reason.contains("****") && !reason.contains("in-full"),
            "{reason}"
        );
    }
    // The value of b did not go there, whatever the policy says of it.
    let other = answered(&[("location", "value-of-b-in-full")]).unwrap();
    assert_eq!(other[0].1, b"value-of-b-in-full");
    let request = RequestParts {
        method: "POST".into(),
        target: "/".into(),
        fields: json,
    };
    let holds = |length| {
        let room = a.holds_body(&request, "a.com", Some(length));
        room.unwrap().is_some()
    };
    assert!(holds(100) && !holds(1 << 30) && !holds(0));
    // A value that it had before is covered still; another, only once it went there.
    a.store.secrets[0].renew("another-value-of-a");
    let both = [("x", "value-of-a-in-full another-value-of-a")];
    assert_eq!(
        answered(&both).unwrap()[0].1,
        b"****************** another-value-of-a"
    );
    let bearer = ("authorization", "Bearer ironcage-a");
    head(&a, "/", bearer).unwrap();
    let covered = answered(&both).unwrap();
    assert!(covered[0].1.iter().all(|byte| b"* ".contains(byte)));
}

#[test]
fn without_tls_a_value_goes_to_a_named_port_of_the_host_and_nowhere_else() {
    let to = |rules: &[&str], host: &str, port: u16, trust: ServerTrust| {
        let secret = Secret::new(
            "K".into(),
            "ironcage-K".into(),
            "value-of-K-in-full",
            rules.iter().map(|rule| rule.parse().unwrap()).collect(),
            SecretRule::usual_places(),
        );
        let store = Rc::new(SecretStore {
            secrets: vec![secret],
            ..SecretStore::default()
        });
        let injector = SecretInjector::of(&store, &name(host), port, trust).unwrap();
        let bearer = ("authorization", "Bearer ironcage-K");
        head(&injector, "/", bearer).map_err(|refused| refused.reason)
    };
    let own = &["host.ironcage:4000", "a.com:4000"];
    assert!(to(own, "host.ironcage", 4000, ServerTrust::OwnHost).is_ok());
    assert!(to(own, "a.com", 4000, ServerTrust::Proved).is_ok());
    let refused = to(own, "host.ironcage", 4001, ServerTrust::OwnHost).unwrap_err();
    assert_eq!(refused.code(), "secret-wrong-host");
    let refused = to(own, "a.com", 4000, ServerTrust::Untrusted).unwrap_err();
    assert_eq!(refused.code(), "secret-tls-only");
    let refused = to(own, "host.ironcage", 4000, ServerTrust::Untrusted).unwrap_err();
    assert_eq!(refused.code(), "secret-own-port");
    let wide = &["**.ironcage:4000"];
    assert!(to(wide, "host.ironcage", 4000, ServerTrust::OwnHost).is_err());
}
