//! Parses request rules: `[METHOD,... ]HOST[:PORT][/PATH]`.

use super::rule::{InvalidHostRule, allowed};
use ironcage_model::{Destination, HostRule, HttpRule, PathPattern, Ports};

/// A rule that allows requests: without methods every one, without a path every one.
///
/// # Errors
/// If the text is invalid; the message says what to write.
pub fn requests(text: &str) -> Result<HttpRule, InvalidHostRule> {
    let wrong = |remedy: &str| InvalidHostRule {
        text: text.to_owned(),
        remedy: remedy.to_owned(),
    };
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    let (methods, place) = match words.as_slice() {
        // A method without a host, not a host of that name.
        [word]
            if word
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b',') =>
        {
            return Err(wrong("the host is missing after the methods"));
        }
        [place] => ("", *place),
        [methods, place] => (*methods, *place),
        _ => {
            return Err(wrong(
                "expected METHODS HOST/PATH, such as 'GET,HEAD api.example.com/v1/**'",
            ));
        }
    };
    if place.contains("://") {
        return Err(wrong("expected the host and the path, without a scheme"));
    }
    let (host, path) = match place.find('/') {
        Some(at) => place.split_at(at),
        None => (place, "/**"),
    };
    let host = allowed(host).map_err(|error| wrong(&error.remedy))?;
    if matches!(host.to, Destination::Net { .. }) {
        return Err(wrong(
            "a request rule needs a host name; allow an address as a whole with --allow-host",
        ));
    }
    if host.ports == Ports::Any {
        return Err(wrong(
            "a request rule applies to one port, or to 80 and 443",
        ));
    }
    Ok(HttpRule {
        methods: parse_methods(methods).map_err(wrong)?,
        host,
        path: PathPattern::parse(path).map_err(|error| wrong(error.0))?,
    })
}

/// Requests without a host, for the hosts of a login: `[METHOD,... ]/PATH`.
///
/// # Errors
/// If the text is invalid; the message says what to write.
pub(crate) fn requests_to(
    hosts: &[HostRule],
    text: &str,
) -> Result<Vec<HttpRule>, InvalidHostRule> {
    let wrong = |remedy: &str| InvalidHostRule {
        text: text.to_owned(),
        remedy: remedy.to_owned(),
    };
    let (methods, path) = match text.split_once(' ') {
        Some((methods, path)) => (methods, path.trim()),
        None => ("", text),
    };
    let methods = parse_methods(methods).map_err(wrong)?;
    let path = PathPattern::parse(path).map_err(|error| wrong(error.0))?;
    let rule = |host: &HostRule| HttpRule {
        methods: methods.clone(),
        host: host.clone(),
        path: path.clone(),
    };
    Ok(hosts.iter().map(rule).collect())
}

/// Methods between commas; none in an empty text, which means every one.
fn parse_methods(methods: &str) -> Result<Vec<String>, &'static str> {
    let mut known = Vec::new();
    for method in methods.split(',').filter(|_| !methods.is_empty()) {
        let plain = !method.is_empty()
            && method.len() <= 32
            && method
                .bytes()
                .all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
        if !plain {
            return Err("expected methods such as GET, separated by commas");
        }
        let method = method.to_ascii_uppercase();
        if method == "CONNECT" {
            return Err("CONNECT is never allowed");
        }
        if !known.contains(&method) {
            known.push(method);
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_is_understood_and_has_one_spelling() {
        let shown = |text: &str| requests(text).unwrap().to_string();
        assert_eq!(
            shown("get,HEAD API.github.com/repos/**"),
            "GET,HEAD api.github.com/repos/**"
        );
        assert_eq!(shown("api.github.com"), "api.github.com/**");
        assert_eq!(shown("POST a.com:8443/x"), "POST a.com:8443/x");
        assert_eq!(shown("*.a.com/"), "*.a.com/");
        for wrong in [
            "",
            "GET",
            "GET a.com b",
            "GET, a.com",
            "CONNECT a.com",
            "GET https://a.com/",
            "GET 192.0.2.1/x",
            "GET a.com:*/x",
            "GET a.com/../x",
            "G\u{e4}T a.com",
            "GET */x",
        ] {
            assert!(requests(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn requests_of_a_login_are_for_each_of_its_hosts() {
        let hosts = [allowed("a.com").unwrap(), allowed("b.com:8443").unwrap()];
        let shown = |text: &str| -> Vec<String> {
            let rules = requests_to(&hosts, text).unwrap();
            rules.iter().map(HttpRule::to_string).collect()
        };
        assert_eq!(
            shown("get,POST /v1/**"),
            ["GET,POST a.com/v1/**", "GET,POST b.com:8443/v1/**"]
        );
        assert_eq!(shown("/x"), ["a.com/x", "b.com:8443/x"]);
        for wrong in [
            "",
            "GET",
            "GET a.com/x",
            "CONNECT /x",
            "GET /a/../b",
            "G T /x",
        ] {
            assert!(requests_to(&hosts, wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_taken_reads_back_the_same(text in "\\PC{0,40}|[A-Z,]{0,8} [a-z.]{1,9}\\.com[/a-z*]{0,12}") {
            if let Ok(rule) = requests(&text) {
                prop_assert_eq!(&requests(&rule.to_string()).unwrap(), &rule);
            }
        }
    }
}
