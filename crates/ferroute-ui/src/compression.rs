//! Compressed responses, for clients that accept gzip: lists of thousands of Services shrink to a tenth.

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use ferroute_admin::http::{accepts_gzip, gzip};

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
    let Ok(compressed) = gzip(&body) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(parts, Body::from(compressed))
}

/// Smaller responses fit into a packet as they are.
const LEAST_SIZE: usize = 1_000;
