//! Text of rules over requests: `[METHOD,... ]HOST[:PORT][/PATH]`.

use super::rule::{InvalidHostRule, allowed};
use ironcage_model::{Destination, HttpRule, PathPattern, Ports};

/// A rule that allows requests: without methods every one, without a path every one.
///
/// # Errors
/// Where it is none; the text says what to write.
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
            return Err(wrong("write the host after the methods"));
        }
        [place] => ("", *place),
        [methods, place] => (*methods, *place),
        _ => {
            return Err(wrong(
                "write METHODS HOST/PATH, such as 'GET,HEAD api.example.com/v1/**'",
            ));
        }
    };
    if place.contains("://") {
        return Err(wrong("write the host and the path, without a scheme"));
    }
    let (host, path) = match place.find('/') {
        Some(at) => place.split_at(at),
        None => (place, "/**"),
    };
    let host = allowed(host).map_err(|error| wrong(&error.remedy))?;
    if matches!(host.to, Destination::Net { .. }) {
        return Err(wrong(
            "requests are held to a name; an address is allowed as a whole, with --allow-host",
        ));
    }
    if host.ports == Ports::Any {
        return Err(wrong(
            "a rule over requests is about one port, or 80 and 443",
        ));
    }
    let mut known = Vec::new();
    for method in methods.split(',').filter(|_| !methods.is_empty()) {
        let plain = !method.is_empty()
            && method.len() <= 32
            && method
                .bytes()
                .all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
        if !plain {
            return Err(wrong("methods are words such as GET, with commas between"));
        }
        let method = method.to_ascii_uppercase();
        if method == "CONNECT" {
            return Err(wrong("CONNECT is never let through"));
        }
        if !known.contains(&method) {
            known.push(method);
        }
    }
    Ok(HttpRule {
        methods: known,
        host,
        path: PathPattern::parse(path).map_err(|error| wrong(error.0))?,
    })
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

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_taken_reads_back_the_same(text in "\\PC{0,40}|[A-Z,]{0,8} [a-z.]{1,9}\\.com[/a-z*]{0,12}") {
            if let Ok(rule) = requests(&text) {
                prop_assert_eq!(&requests(&rule.to_string()).unwrap(), &rule);
            }
        }
    }
}
