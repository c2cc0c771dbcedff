//! `ironcage serve webhook`: the operator's webhooks, and a look at everybody's.

use super::{HookUrl, NewWebhook, Webhook, WebhookError, Webhooks};
use crate::clock;
use crate::event_log::Kind;
use ironcage_command::error::{CliError, CommandResult};
use ironcage_command::json;
use ironcage_command::serve::WebhookAction;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// A webhook as it is listed.
#[derive(Serialize)]
struct ShownWebhook {
    id: String,
    project: String,
    url: String,
    events: BTreeSet<Kind>,
    created: String,
}

impl From<Webhook> for ShownWebhook {
    fn from(webhook: Webhook) -> ShownWebhook {
        ShownWebhook {
            id: webhook.id,
            project: webhook.project,
            url: webhook.url.to_string(),
            events: webhook.events,
            created: clock::rfc3339(webhook.created),
        }
    }
}

fn shown(error: WebhookError) -> CliError {
    let shown = CliError::from_error(&error);
    match error {
        WebhookError::NotFound { .. } => shown.hint("`ironcage serve webhook list` shows them"),
        WebhookError::TooMany { .. } => {
            shown.hint("delete one with `ironcage serve webhook delete ID`")
        }
        WebhookError::Invalid { .. } => shown.hint("remove the file; nothing else is lost"),
        _ => shown,
    }
}

fn all(webhooks: &Webhooks) -> Result<Vec<Webhook>, WebhookError> {
    let mut all = Vec::new();
    for project in webhooks.projects()? {
        all.extend(webhooks.list(&project)?);
    }
    Ok(all)
}

pub(crate) fn command(data: &Path, action: WebhookAction) -> CommandResult {
    let webhooks = Webhooks::in_data(data);
    match action {
        WebhookAction::Create {
            url,
            project,
            events,
        } => {
            let parsed = url.parse::<HookUrl>().map_err(|error| {
                CliError::new(format!(
                    "cannot use `{}` as a webhook: {error}",
                    url.escape_debug()
                ))
            })?;
            let events = Kind::ALL
                .into_iter()
                .filter(|kind| events.iter().any(|event| event == kind.name()));
            let made = webhooks.create(NewWebhook {
                project,
                url: parsed,
                events: events.collect(),
                any_address: true,
                operator: true,
            });
            let made = made.map_err(shown)?;
            anstream::println!("{}  {}", made.id, made.shown_secret());
        }
        WebhookAction::List { json: true } => {
            let all = all(&webhooks).map_err(shown)?.into_iter();
            let text = json::pretty(&all.map(ShownWebhook::from).collect::<Vec<_>>());
            let text =
                text.map_err(|error| CliError::new(format!("cannot print JSON: {error}")))?;
            anstream::println!("{text}");
        }
        WebhookAction::List { json: false } => {
            for webhook in all(&webhooks).map_err(shown)? {
                let events: Vec<&str> = webhook.events.iter().map(|kind| kind.name()).collect();
                let events = match events.is_empty() {
                    true => "all".to_owned(),
                    false => events.join(","),
                };
                anstream::println!(
                    "{}  {}  {}  {events}  {}",
                    webhook.id,
                    clock::rfc3339(webhook.created),
                    webhook.project,
                    ironcage_model::Printable::new(&webhook.url.to_string())
                );
            }
        }
        WebhookAction::Delete { id } => {
            let found = all(&webhooks).map_err(shown)?.into_iter();
            let mut found = found.map(|webhook| (webhook.project, webhook.id));
            let found = found.find(|(_, one)| *one == id);
            let (project, _) =
                found.ok_or_else(|| shown(WebhookError::NotFound { id: id.clone() }))?;
            webhooks.delete(&project, &id).map_err(shown)?;
            anstream::println!("{id}");
        }
    }
    Ok(0)
}
