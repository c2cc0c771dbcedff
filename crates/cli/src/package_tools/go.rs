//! Go modules.

use super::{ToolAnswer, UserDirectories, ask};

/// Settings that name no server, passed as they are.
const PLAIN: [&str; 4] = ["GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOINSECURE"];

pub(super) fn go(dirs: &UserDirectories<'_>) -> ToolAnswer {
    let wanted: Vec<&str> = ["env", "-json", "GOPROXY", "GOSUMDB"]
        .into_iter()
        .chain(PLAIN)
        .collect();
    answer(&ask(dirs, "go", &wanted).unwrap_or_default())
}

fn answer(text: &str) -> ToolAnswer {
    let mut answer = ToolAnswer::default();
    let settings: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let text = |name: &str| {
        let value = settings.get(name).and_then(|value| value.as_str());
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    if let Some(list) = text("GOPROXY") {
        let proxies = list.split_inclusive([',', '|']).map(|part| {
            let url = part.trim_end_matches([',', '|']);
            let separator = part.get(url.len()..).unwrap_or_default();
            match url.contains("://") {
                true => answer.take("go's GOPROXY", url) + separator,
                false => part.to_owned(),
            }
        });
        let proxies: String = proxies.collect();
        answer.set("GOPROXY", proxies);
    }
    if let Some(database) = text("GOSUMDB") {
        // NAME, NAME+KEY, or either with a URL of its own.
        let mut words = database.split_whitespace();
        let name = words.next().unwrap_or_default();
        let bare = match words.next() {
            Some(url) => format!("{name} {}", answer.take("go's GOSUMDB", url)),
            None => {
                let host = name.split('+').next().unwrap_or_default();
                if host != "off" {
                    answer.take("go's GOSUMDB", &format!("https://{host}"));
                }
                name.to_owned()
            }
        };
        answer.set("GOSUMDB", bare);
    }
    for name in PLAIN {
        if let Some(value) = text(name) {
            answer.set(name, value);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_and_the_checksum_database_are_passed_without_passwords() {
        let said = answer(
            r#"{"GOPROXY": "https://a:b@mirror.test/go|http://two.test,direct", "GOSUMDB": "sum.test+key", "GOPRIVATE": "corp.test"}"#,
        );
        let variable = |name: &str| {
            let mut all = said.variables.iter();
            all.find(|(known, _)| known == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(
            variable("GOPROXY"),
            Some("https://mirror.test/go|http://two.test,direct")
        );
        assert_eq!(variable("GOSUMDB"), Some("sum.test+key"));
        assert_eq!(variable("GOPRIVATE"), Some("corp.test"));
        let urls: Vec<&str> = said.urls.iter().map(|(_, url)| url.as_str()).collect();
        assert_eq!(
            urls,
            [
                "https://mirror.test/go",
                "http://two.test",
                "https://sum.test"
            ]
        );
        assert_eq!(said.notes.len(), 1);
        let off = answer(r#"{"GOPROXY": "off", "GOSUMDB": "off"}"#);
        assert!(off.urls.is_empty());
    }
}
