//! The setting `parentProxy` of srt: the proxy of the network. Its password is not written into a
//! policy.

use super::Kind;
use crate::network;
use ironcage_model::{ProxyServer, ProxyUrl};
use serde_json::Value;

pub(super) const SHAPE: &str = "an object with http, https and noProxy";

/// A proxy of the network, and hosts that are reached without it.
#[derive(Debug, Clone)]
pub(super) struct ImportedProxy {
    pub(super) server: ProxyServer,
    pub(super) no_proxy: Vec<String>,
}

/// What became of a part of the setting.
type Note = (Kind, &'static str, String);

/// Reads the setting; `None` where it has another shape.
pub(super) fn read(value: &Value) -> Option<(Option<ImportedProxy>, Vec<Note>)> {
    let section = value.as_object()?;
    let text = |name: &str| section.get(name).and_then(Value::as_str);
    let (https, http) = (text("https"), text("http"));
    let Ok(url) = ProxyUrl::read(https.or(http)?) else {
        // Not with its text: it may hold a password.
        let note = "network.upstream takes HTTP proxies without TLS only".to_owned();
        return Some((None, vec![(Kind::NoEqual, "", note)]));
    };
    let note = match url.user_info {
        Some(_) => "network.upstream, without its password: set credentials there",
        None => "network.upstream",
    };
    let mut notes = vec![(Kind::Kept, "", note.to_owned())];
    if http.is_some() && https.is_some() && http != https {
        let note = "network.upstream has one proxy: that of https".to_owned();
        notes.push((Kind::NoEqual, ".http", note));
    }
    let mut no_proxy = Vec::new();
    let listed = text("noProxy").unwrap_or_default();
    for entry in listed.split([',', ' ']).filter(|entry| !entry.is_empty()) {
        match network::no_proxy(entry) {
            Ok(_) => no_proxy.push(entry.to_owned()),
            Err(error) => notes.push((Kind::NoEqual, ".noProxy", error.remedy)),
        }
    }
    let server = url.server;
    Some((Some(ImportedProxy { server, no_proxy }), notes))
}
