//! Logins of agents: what the cage has in the place of the user's own file.
//!
//! The user's file is read by the egress proxy alone, which is not part of the plan; what stands
//! here for it holds nothing of it.

use crate::Request;
use crate::plan::Item;
use ironcage_model::{LoginFormat, LoginRule, SecretPlace, base64};
use ironcage_policy::{Sourced, logins};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// When placeholders expire, as agents see it: never in the life of a cage, so that they do not
/// try to renew them. The year 2100, in seconds.
const NEVER: u64 = 4_102_444_800;

/// A login, and what the cage has in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedLogin {
    /// Which, for whom and renewed by whom.
    #[serde(flatten)]
    pub rule: LoginRule,
    /// The user's own file.
    #[serde(serialize_with = "crate::bytes::path")]
    pub source: PathBuf,
    /// Where the agent looks for it.
    #[serde(serialize_with = "crate::bytes::path")]
    pub target: PathBuf,
    /// What stands there.
    pub content: String,
    /// What stands for the access token, and for the name of the account where there is one.
    pub access: String,
    /// The same for the name of the account; `null` where the file has none.
    pub account: Option<String>,
}

impl PlannedLogin {
    /// Where the access token may stand in a request.
    pub fn access_places() -> Vec<SecretPlace> {
        vec![SecretPlace::Header("authorization".into())]
    }

    /// Where the name of the account may.
    pub fn account_places() -> Vec<SecretPlace> {
        vec![SecretPlace::Header("chatgpt-account-id".into())]
    }

    /// A file of the cage's own that is seen at the agent's place.
    pub(crate) fn made_at(&self) -> PathBuf {
        Path::new("/run/ironcage/logins").join(&self.rule.name)
    }
}

pub(crate) fn plan(rule: &Sourced<LoginRule>, request: &Request) -> Item<PlannedLogin> {
    let login = &rule.value;
    let usual = logins::find(&login.name).map_or("", |known| known.file);
    let target = request.home.join(usual);
    let (access, account, content) = placeholders(login.format, request.nonce);
    Item {
        what: PlannedLogin {
            source: login.file.clone().unwrap_or_else(|| target.clone()),
            target,
            content,
            access,
            account,
            rule: login.clone(),
        },
        origin: rule.origin.to_string(),
    }
}

fn placeholders(format: LoginFormat, nonce: u64) -> (String, Option<String>, String) {
    match format {
        LoginFormat::Claude => {
            let access = format!("sk-ant-oat01-ironcage-{nonce:016x}");
            let content = serde_json::json!({ "claudeAiOauth": {
                "accessToken": access,
                "refreshToken": format!("sk-ant-ort01-ironcage-{nonce:016x}"),
                "expiresAt": NEVER * 1000,
                "scopes": ["user:inference", "user:profile"],
                "subscriptionType": null,
            }});
            (access, None, format!("{content}\n"))
        }
        LoginFormat::Codex => {
            let account = format!("ironcage-account-{nonce:016x}");
            // Codex reads what tokens say of themselves.
            let token = |kind: &str| {
                let head = base64::encode_for_names(br#"{"alg":"none","typ":"JWT"}"#);
                let claims = serde_json::json!({
                    "exp": NEVER,
                    "https://api.openai.com/auth": { "chatgpt_account_id": account },
                });
                let claims = base64::encode_for_names(claims.to_string().as_bytes());
                format!("{head}.{claims}.ironcage-{kind}-{nonce:016x}")
            };
            let access = token("access");
            let content = serde_json::json!({
                "OPENAI_API_KEY": null,
                "tokens": {
                    "id_token": token("id"),
                    "access_token": access,
                    "refresh_token": format!("ironcage-refresh-{nonce:016x}"),
                    "account_id": account,
                },
                "last_refresh": "2099-01-01T00:00:00Z",
            });
            (access, Some(account), format!("{content}\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_that_agents_read_and_hold_placeholders() {
        let (access, account, content) = placeholders(LoginFormat::Claude, 7);
        let file: serde_json::Value = serde_json::from_str(&content).unwrap();
        assert_eq!(file["claudeAiOauth"]["accessToken"], access);
        assert_eq!(account, None);
        let (access, account, content) = placeholders(LoginFormat::Codex, 7);
        let file: serde_json::Value = serde_json::from_str(&content).unwrap();
        assert_eq!(file["tokens"]["access_token"], access);
        assert_eq!(file["tokens"]["account_id"], account.unwrap());
        assert!(
            access.ends_with(".ironcage-access-0000000000000007"),
            "{access}"
        );
        assert_eq!(access.split('.').count(), 3);
    }
}
