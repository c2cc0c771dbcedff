//! npm, whose settings pnpm reads too.

use super::{ToolAnswer, UserDirectories, ask};

/// In the cage: read as npm's global settings, so that those of a project win as they do outside.
const FILE: &str = "/run/ironcage/npmrc";

/// Whether a cage sees a file at the same path: authorities of the system are, others are not.
fn is_seen(path: &str) -> bool {
    ["/etc/", "/usr/"].iter().any(|top| path.starts_with(top)) && !path.contains('\n')
}

pub(super) fn npm(dirs: &UserDirectories<'_>) -> ToolAnswer {
    let text = ask(dirs, "npm", &["config", "list", "--json"]).unwrap_or_default();
    let mut answer = ToolAnswer::default();
    let Ok(serde_json::Value::Object(settings)) = serde_json::from_str(&text) else {
        return answer;
    };
    let mut file = String::new();
    for (key, value) in &settings {
        let is_registry = key == "registry" || key.starts_with('@') && key.ends_with(":registry");
        let Some(url) = value.as_str() else {
            continue;
        };
        if key == "cafile" && is_seen(url) {
            file.push_str(&format!("cafile={url}\n"));
        }
        if !is_registry {
            continue;
        }
        // One line each, whatever is in it.
        if key.contains(['\n', '=']) || url.contains('\n') {
            continue;
        }
        let url = answer.take(&format!("npm's {key}"), url);
        file.push_str(&format!("{key}={url}\n"));
    }
    answer.set("npm_config_globalconfig", FILE);
    answer.files.push((FILE.into(), file));
    answer
}
