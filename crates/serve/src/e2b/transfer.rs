//! `/files` of envd: downloads and uploads, by token or by signature.

use super::rpc::from_home;
use super::{E2bError, Unchecked, has_token, rpc};
use crate::api::{Query, content_of, write_stream};
use crate::clock;
use crate::engine::{Engine, Entry};
use crate::error::{ApiError, ApiResult, Code};
use crate::keys;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts of an upload.
const MOST_PARTS: usize = 1000;
/// Metadata of one file, and bytes of a key of it: what a name of an attribute can have.
const MOST_METADATA: usize = 64;
const LONGEST_KEY: usize = 240;
/// Bytes that are unpacked at a time: 8 KiB are at most some 8 MiB then.
const PACKED: usize = 8 * 1024;
/// Bytes of a form that are looked at at a time, and that may be held without a field coming of them.
const PIECE: usize = 64 * 1024;
const MOST_HELD: usize = 1 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct FilesQuery {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<u64>,
}

/// What a signature is for.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Read,
    Write,
}

fn signature(
    path: &str,
    operation: Operation,
    user: &str,
    token: &str,
    end: Option<u64>,
) -> String {
    let operation = match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(end) = end {
        text.push_str(&format!(":{end}"));
    }
    format!(
        "v1_{}",
        STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes()))
    )
}

/// Whether a request has the cage's token, or a signature that was made with it.
fn authorize(
    entry: &Entry,
    headers: &HeaderMap,
    query: &FilesQuery,
    operation: Operation,
) -> ApiResult<()> {
    let user = query.username.as_deref().unwrap_or_default();
    if rpc::allowed_user(user).is_err() || rpc::check_user(headers).is_err() {
        return Err(ApiError::new(
            Code::Forbidden,
            "a cage has one user, which is the default",
        ));
    }
    if has_token(headers, entry) {
        return Ok(());
    }
    let refused = |message: &str| ApiError::new(Code::Unauthorized, message);
    let given = query.signature.as_deref();
    let given =
        given.ok_or_else(|| refused("the access token or a signature is missing, or not valid"))?;
    let path = query.path.as_deref().unwrap_or_default();
    let end = query.signature_expiration;
    let expected = signature(path, operation, user, &entry.record().token, end);
    if !keys::same(given, &expected) {
        return Err(refused("the signature is not valid"));
    }
    match end {
        Some(end) if end < clock::now() / 1_000_000 => Err(refused("the signature has expired")),
        _ => Ok(()),
    }
}

pub(super) async fn download(
    Unchecked(entry): Unchecked,
    Query(query): Query<FilesQuery>,
    headers: HeaderMap,
) -> Result<Response, E2bError> {
    authorize(&entry, &headers, &query, Operation::Read)?;
    let path = from_home(query.path.as_deref().unwrap_or_default());
    let response = content_of(entry.running()?, path, &headers).await?;
    let whole = response.status() == StatusCode::OK;
    Ok(match whole && wants_gzip(&headers) {
        true => packed(response),
        false => response,
    })
}

/// Whether a client takes gzip, and would rather have it than the bytes as they are.
fn wants_gzip(headers: &HeaderMap) -> bool {
    let text = headers.get(header::ACCEPT_ENCODING);
    let text = text.and_then(|value| value.to_str().ok());
    text.is_some_and(|text| text.trim() == "gzip")
}

/// A download that is packed as it comes.
fn packed(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let gzip = HeaderValue::from_static("gzip");
    parts.headers.insert(header::CONTENT_ENCODING, gzip);
    parts.headers.remove(header::ACCEPT_RANGES);
    let state = Some((
        body.into_data_stream(),
        GzEncoder::new(Vec::new(), Compression::fast()),
    ));
    let stream = futures_util::stream::unfold(state, |state| async move {
        let (mut body, mut encoder) = state?;
        loop {
            let data = match body.next().await {
                None => return Some((encoder.finish().map(Bytes::from), None)),
                Some(Ok(data)) => data,
                // What breaks off is not ended: the client sees that it is not whole.
                Some(Err(error)) => return Some((Err(io::Error::other(error)), None)),
            };
            if let Err(error) = encoder.write_all(&data) {
                return Some((Err(error), None));
            }
            let came = std::mem::take(encoder.get_mut());
            if !came.is_empty() {
                return Some((Ok(Bytes::from(came)), Some((body, encoder))));
            }
        }
    });
    Response::from_parts(parts, Body::from_stream(stream))
}

pub(super) async fn upload(
    Unchecked(entry): Unchecked,
    State(_): State<Arc<Engine>>,
    Query(query): Query<FilesQuery>,
    request: Request,
) -> Result<Response, E2bError> {
    authorize(&entry, request.headers(), &query, Operation::Write)?;
    let metadata = metadata(request.headers())?;
    let packed = request
        .headers()
        .get(header::CONTENT_ENCODING)
        .is_some_and(|value| value == "gzip");
    let kind = request.headers().get(header::CONTENT_TYPE);
    let multipart = kind
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.starts_with("multipart/form-data"));
    let request = match packed {
        true => request.map(unpacked),
        false => request,
    };
    let written = match multipart {
        true => parts(&entry, query.path, &metadata, request).await?,
        false => {
            let path = query
                .path
                .ok_or_else(|| ApiError::invalid("the path is missing"))?;
            let data = request.into_body().into_data_stream();
            vec![one(&entry, &path, &metadata, data).await?]
        }
    };
    Ok(axum::Json(written).into_response())
}

/// Metadata of the files of a request, from its headers.
fn metadata(headers: &HeaderMap) -> ApiResult<BTreeMap<String, String>> {
    let named = headers.iter().filter_map(|(name, value)| {
        let key = name.as_str().strip_prefix("x-metadata-")?;
        Some((key, value))
    });
    let mut metadata = BTreeMap::new();
    for (key, value) in named {
        let value = value.to_str().map_err(|_| {
            ApiError::invalid(format!("the metadata `{key}` is not printable ASCII"))
        })?;
        if key.is_empty() || key.len() > LONGEST_KEY || metadata.len() == MOST_METADATA {
            return Err(ApiError::invalid(format!(
                "metadata has at most {MOST_METADATA} entries, and keys at most {LONGEST_KEY} bytes"
            )));
        }
        metadata.insert(key.to_owned(), value.to_owned());
    }
    Ok(metadata)
}

async fn one<E: std::fmt::Display>(
    entry: &Entry,
    path: &str,
    metadata: &BTreeMap<String, String>,
    data: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> ApiResult<Value> {
    let (daemon, path) = (entry.running()?, from_home(path));
    let written = write_stream(daemon, path, None, metadata.clone(), data).await?;
    let mut shown = json!({ "path": written.path, "name": written.name, "type": "file" });
    if let (false, Some(shown)) = (written.metadata.is_empty(), shown.as_object_mut()) {
        shown.insert("metadata".into(), json!(written.metadata));
    }
    Ok(shown)
}

async fn parts(
    entry: &Entry,
    path: Option<String>,
    metadata: &BTreeMap<String, String>,
    request: Request,
) -> ApiResult<Vec<Value>> {
    let wrong = |error: &dyn std::error::Error| {
        ApiError::invalid(format!("the form is not valid: {error}"))
    };
    let held = Arc::new(AtomicUsize::new(0));
    let request = request.map(|body| in_pieces(body, Arc::clone(&held)));
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|error| wrong(&error))?;
    let mut written = Vec::new();
    let mut parts = 0;
    while let Some(mut field) = form.next_field().await.map_err(|error| wrong(&error))? {
        held.store(0, Ordering::Relaxed);
        parts += 1;
        if parts > MOST_PARTS {
            return Err(ApiError::new(
                Code::TooLarge,
                format!("the form has more than {MOST_PARTS} parts"),
            ));
        }
        if field.name() != Some("file") {
            while let Some(bytes) = field.next().await {
                bytes.map_err(|error| wrong(&error))?;
                held.store(0, Ordering::Relaxed);
            }
            continue;
        }
        if path.is_some() && !written.is_empty() {
            return Err(ApiError::invalid(
                "the form has several files, and the query one path",
            ));
        }
        let named = path
            .clone()
            .or_else(|| field.file_name().map(str::to_owned));
        let named = named.ok_or_else(|| ApiError::invalid("a file of the form has no name"))?;
        let field = field.inspect(|_| held.store(0, Ordering::Relaxed));
        written.push(one(entry, &named, metadata, field).await?);
    }
    match written.is_empty() {
        true => Err(ApiError::invalid("the form has no part `file`")),
        false => Ok(written),
    }
}

/// A body in pieces, for a reader that takes what there is before it looks at it: after each piece it
/// has to look. `held` counts what it took, and is set back by who sees that something came of it.
fn in_pieces(body: Body, held: Arc<AtomicUsize>) -> Body {
    let state = Some((body.into_data_stream(), Bytes::new(), held));
    let stream = futures_util::stream::unfold(state, |state| async move {
        let (mut body, mut rest, held) = state?;
        tokio::task::yield_now().await;
        while rest.is_empty() {
            match body.next().await? {
                Ok(bytes) => rest = bytes,
                Err(error) => return Some((Err(io::Error::other(error)), None)),
            }
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        if held.fetch_add(piece.len(), Ordering::Relaxed) + piece.len() > MOST_HELD {
            let error = format!("no part begins or goes on within {MOST_HELD} bytes");
            return Some((Err(io::Error::other(error)), None));
        }
        Some((Ok(piece), Some((body, rest, held))))
    });
    Body::from_stream(stream)
}

/// A body that is unpacked as it comes.
fn unpacked(body: Body) -> Body {
    let state = (
        body.into_data_stream(),
        Some(MultiGzDecoder::new(Vec::new())),
        Bytes::new(),
    );
    let stream =
        futures_util::stream::unfold(state, |(mut body, mut decoder, mut rest)| async move {
            loop {
                let unpacker = decoder.as_mut()?;
                if rest.is_empty() {
                    match body.next().await {
                        Some(Ok(bytes)) => rest = bytes,
                        Some(Err(error)) => {
                            return Some((Err(io::Error::other(error)), (body, None, rest)));
                        }
                        None => {
                            let last = decoder.take()?.finish();
                            return Some((last.map(Bytes::from), (body, None, rest)));
                        }
                    }
                    continue;
                }
                let part = rest.split_to(rest.len().min(PACKED));
                if let Err(error) = unpacker.write_all(&part) {
                    return Some((Err(error), (body, None, rest)));
                }
                let came = std::mem::take(unpacker.get_mut());
                if !came.is_empty() {
                    return Some((Ok(Bytes::from(came)), (body, decoder, rest)));
                }
            }
        });
    Body::from_stream(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_sdks() {
        // As `e2b.sandbox.signature.get_signature("a.txt", "read", "", "tok")` says.
        let plain = signature("a.txt", Operation::Read, "", "tok", None);
        assert_eq!(plain, "v1_gDv73H8R9a10OdCSX0/JNMqMYLPpmCQAYJY+U68oQjM");
        assert_ne!(plain, signature("a.txt", Operation::Write, "", "tok", None));
        assert_ne!(
            plain,
            signature("a.txt", Operation::Read, "", "tok", Some(1))
        );
        assert_ne!(plain, signature("b.txt", Operation::Read, "", "tok", None));
    }

    /// How much a form has in its parts, or why it is refused.
    async fn read_form(body: Vec<u8>) -> Result<usize, String> {
        let held = Arc::new(AtomicUsize::new(0));
        let body = in_pieces(Body::from(body), Arc::clone(&held));
        let request = Request::builder()
            .header(header::CONTENT_TYPE, "multipart/form-data; boundary=b")
            .body(body)
            .unwrap();
        let mut form = Multipart::from_request(request, &()).await.unwrap();
        let mut length = 0;
        let wrong = |error: axum::extract::multipart::MultipartError| error.to_string();
        while let Some(mut field) = form.next_field().await.map_err(wrong)? {
            held.store(0, Ordering::Relaxed);
            while let Some(bytes) = field.next().await {
                length += bytes.map_err(wrong)?.len();
                held.store(0, Ordering::Relaxed);
            }
        }
        Ok(length)
    }

    #[tokio::test]
    async fn a_form_may_be_long_and_the_header_of_a_part_may_not() {
        let start = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n";
        let end = b"\r\n--b--\r\n";
        let data = vec![b'x'; 3 << 19];
        let whole = [start, b"\r\n".as_slice(), &data, end].concat();
        assert_eq!(read_form(whole).await, Ok(data.len()));
        let header = |long: &[u8]| [start.as_slice(), b"X-A: ", long, b"\r\n\r\nx", end].concat();
        assert_eq!(read_form(header(b"a")).await, Ok(1));
        assert!(read_form(header(&data)).await.is_err());
        let before = [&data, b"\r\n".as_slice(), &header(b"a")].concat();
        assert!(read_form(before).await.is_err());
    }

    #[tokio::test]
    async fn a_packed_body_is_unpacked_and_a_broken_one_is_an_error() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let text = vec![b'x'; 1 << 20];
        encoder.write_all(&text).unwrap();
        let packed = encoder.finish().unwrap();
        let whole = axum::body::to_bytes(unpacked(Body::from(packed.clone())), usize::MAX)
            .await
            .unwrap();
        assert_eq!(whole, text);
        let cut = packed[..packed.len() / 2].to_vec();
        assert!(
            axum::body::to_bytes(unpacked(Body::from(cut)), usize::MAX)
                .await
                .is_err()
        );
        assert!(
            axum::body::to_bytes(unpacked(Body::from("no")), usize::MAX)
                .await
                .is_err()
        );
    }
}
