//! Writes a draft as a policy file, with the setting that each value came from.

use super::judge::{Draft, Line};
use super::settings::Rule;
use super::{ImportError, Place};
use crate::quoted;
use ironcage_model::Printable;
use std::fmt::Write as _;
use std::path::Path;

/// srt is made for coding agents, and sets no limits of its own.
const PROFILE: &str = "coding-agent";

pub(super) fn render(draft: &Draft, place: &Place) -> Result<String, ImportError> {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "# Written by `ironcage policy import srt` for the workspace\n# {}.\n\
         # Each comment names the setting that a value came from. All keys: docs/reference/policy.md\n\
         #\n# A policy file in a workspace can only narrow the policy until you review it and run `ironcage trust`.\n\n\
         # srt sets no limits on memory, processes or time; the profile does.\nextends = \"{PROFILE}\"\n\n\
         [workspace]\n# {}\nmode = \"{}\"\n",
        Printable::new(&place.workspace),
        Printable::new(&draft.mode_why),
        draft.mode.name(),
    );
    text.push_str("\n[files]\n");
    if draft.held {
        text.push_str(
            "# `read` makes these paths in the workspace read-only, once you trust this file.\n",
        );
    }
    list(&mut text, "read", &draft.read, place)?;
    list(&mut text, "write", &draft.write, place)?;
    list(&mut text, "hide", &draft.hide, place)?;
    if let Some(why) = &draft.no_toolchains {
        let _ = writeln!(
            text,
            "# {} may contain toolchains.\ntoolchains = false",
            Printable::new(why)
        );
    }
    if !(draft.allow_hosts.is_empty() && draft.deny_hosts.is_empty()) {
        text.push_str("\n[network]\n");
        hosts(&mut text, "allow", &draft.allow_hosts);
        hosts(&mut text, "deny", &draft.deny_hosts);
    }
    if let Some(proxy) = &draft.upstream {
        let _ = writeln!(
            text,
            "\n[network.upstream]\n# network.parentProxy\nproxy = \"http://{}\"",
            proxy.server
        );
        let direct: Vec<String> = proxy.no_proxy.iter().map(|host| quoted(host)).collect();
        if !direct.is_empty() {
            let _ = writeln!(text, "no-proxy = [{}]", direct.join(", "));
        }
    }
    if draft.no_identity {
        text.push_str(
            "\n[process]\n# filesystem.denyRead covers git's own settings.\ngit-identity = false\n",
        );
    }
    if !draft.empty_env.is_empty() {
        text.push_str("\n[env.set]\n# credentials.envVars: the defaults would pass these.\n");
        for name in &draft.empty_env {
            let _ = writeln!(text, "{} = \"\"", quoted(name));
        }
    }
    Ok(text)
}

fn list(text: &mut String, key: &str, lines: &[Line], place: &Place) -> Result<(), ImportError> {
    if lines.is_empty() {
        return Ok(());
    }
    let _ = writeln!(text, "{key} = [");
    for line in lines {
        let path = quoted(&written(&line.path, place)?);
        let _ = writeln!(text, "  # {}\n  {path},", Printable::new(&line.why));
    }
    text.push_str("]\n");
    Ok(())
}

fn hosts(text: &mut String, key: &str, rules: &[Rule]) {
    if rules.is_empty() {
        return;
    }
    let _ = writeln!(text, "{key} = [");
    for rule in rules {
        let (why, host) = (Printable::new(&rule.key), quoted(&rule.text));
        let _ = writeln!(text, "  # {why}\n  {host},");
    }
    text.push_str("]\n");
}

/// A path as it reads best: in the workspace relative to the file, at home with `~/`, else in full.
fn written(path: &Path, place: &Place) -> Result<String, ImportError> {
    let as_text = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| ImportError::NotText {
                path: path.to_owned(),
            })
    };
    if place.policy_dir == place.workspace
        && let Ok(rest) = path.strip_prefix(&place.workspace)
    {
        return Ok(format!("./{}", as_text(rest)?));
    }
    match path.strip_prefix(&place.home) {
        Ok(rest) if rest.as_os_str().is_empty() => Ok("~".to_owned()),
        Ok(rest) => Ok(format!("~/{}", as_text(rest)?)),
        Err(_) => as_text(path),
    }
}
