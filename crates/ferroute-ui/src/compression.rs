//! Compressed responses, for clients that accept gzip: lists of thousands of Services shrink to a tenth.

use std::io::Write;

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};

/// Compresses a response that is large enough to benefit. Streams of events are not changed.
pub(crate) async fn compressed(request: Request, next: Next) -> Response {
    let is_accepted = accepts_gzip(request.headers());
    let response = next.run(request).await;
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !is_accepted || kind.is_none_or(|kind| kind.starts_with("text/event-stream")) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // All other responses are in memory already.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    if body.len() < LEAST_SIZE {
        return Response::from_parts(parts, Body::from(body));
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let (Ok(()), Ok(compressed)) = (encoder.write_all(&body), encoder.finish()) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(parts, Body::from(compressed))
}

/// Reports whether a request accepts gzip: `gzip`, `gzip;q=0.5`, but not `gzip;q=0`.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let encodings = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    encodings.flat_map(|list| list.split(',')).any(|encoding| {
        let (name, weight) = encoding.split_once(';').unwrap_or((encoding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_none_or(|weight| weight > 0.0)
    })
}

/// Smaller responses fit into a packet as they are.
const LEAST_SIZE: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_accepted_by_name_and_weight() {
        let accepts = |value| accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]));
        for value in ["gzip", "br, GZIP", "deflate,gzip;q=0.5"] {
            assert!(accepts(value), "{value}");
        }
        for value in ["", "br", "gzip;q=0", "gzip; q=0.0"] {
            assert!(!accepts(value), "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
