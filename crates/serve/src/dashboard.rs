//! The dashboard at `/`: its files, and what it asks beyond the native API.
//!
//! The files are built from `crates/serve/dashboard` and lie in the repository (ADR 35). They are the
//! same for everybody and need no key; every other route here does.

mod diff;
mod overview;
mod session;

pub(crate) use session::link;

use crate::engine::Engine;
use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What a page of the dashboard may do: run and show its own files, and ask its own service. Text of an
/// agent that became markup all the same would have nothing to load, to run or to send to.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const ICON: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file of the dashboard: its route, its type and its text.
type Asset = (&'static str, &'static str, &'static str);

const ASSETS: [Asset; 6] = [
    ("/", HTML, include_str!("../dashboard/built/index.html")),
    (
        "/dashboard/app.js",
        SCRIPT,
        include_str!("../dashboard/built/dashboard/app.js"),
    ),
    (
        "/dashboard/terminal.js",
        SCRIPT,
        include_str!("../dashboard/built/dashboard/terminal.js"),
    ),
    (
        "/dashboard/app.css",
        STYLE,
        include_str!("../dashboard/built/dashboard/app.css"),
    ),
    (
        "/dashboard/icon.svg",
        ICON,
        include_str!("../dashboard/built/dashboard/icon.svg"),
    ),
    (
        "/dashboard/licenses.txt",
        TEXT,
        include_str!("../dashboard/built/dashboard/licenses.txt"),
    ),
];

pub(crate) fn router() -> Router<Arc<Engine>> {
    let assets = ASSETS.into_iter().fold(Router::new(), |router, asset| {
        let etag = etag(asset.2);
        router.route(
            asset.0,
            get(move |headers: HeaderMap| async move { answer(asset, &etag, &headers) }),
        )
    });
    assets
        .route(
            "/dashboard/session",
            get(session::shown).post(session::open).delete(session::end),
        )
        .route("/dashboard/cages", get(overview::cages))
        .route("/dashboard/cages/{id}/diff", get(diff::diff))
}

/// A tag that changes with the file.
fn etag(text: &str) -> String {
    let digest = crate::keys::hex(&Sha256::digest(text.as_bytes()));
    format!("\"{}\"", digest.get(..32).unwrap_or(&digest))
}

fn answer((_, kind, text): Asset, etag: &str, headers: &HeaderMap) -> Response {
    let known = headers.get(header::IF_NONE_MATCH);
    let known = known.and_then(|value| value.to_str().ok());
    let same = known.is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == etag));
    let mut response = match same {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => text.into_response(),
    };
    let own = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // It may be kept, and is asked about each time: a new version of the service shows at once.
        (header::CACHE_CONTROL, "no-cache"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in fixed {
        own.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(value) = HeaderValue::from_str(etag) {
        own.insert(header::ETAG, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sent_once_and_with_a_policy() {
        let asset = ("/", HTML, "text");
        let tag = etag(asset.2);
        let sent = |known: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(known) = known {
                headers.insert(header::IF_NONE_MATCH, known.parse().unwrap());
            }
            answer(asset, &tag, &headers)
        };
        for (known, status) in [
            (None, StatusCode::OK),
            (Some("\"other\""), StatusCode::OK),
            (Some(tag.as_str()), StatusCode::NOT_MODIFIED),
        ] {
            let response = sent(known);
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
    }

    #[test]
    fn the_page_has_no_script_or_style_of_its_own() {
        // The policy would refuse them; the page would not work.
        let page = ASSETS[0].2;
        for part in page.split("<script").skip(1) {
            assert!(
                part.starts_with(" type=\"module\"") && part.contains("src=\"./dashboard/app.js\""),
                "{page}"
            );
        }
        assert!(
            !page.contains("<style") && !page.contains("style=") && !page.contains(" on"),
            "{page}"
        );
    }
}
