//! Reading responses that are not split into objects.

use std::time::Duration;

use ferroute_config::MediaType;
use http::{Response, header};
use kube_client::client::Body;
use tokio::time::timeout;

use crate::{
    body::Contents,
    decode::{self, Status},
    error::{ApiError, Cause},
    split::MAX_OBJECT_BYTES,
};

/// Returns the media type of a response. Unknown types count as JSON, or at least as text that can be shown.
pub(crate) fn media_type<B>(response: &Response<B>) -> MediaType {
    let text = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    text.and_then(MediaType::parse).unwrap_or(MediaType::Json)
}

/// Returns the header `retry-after`, in seconds only: API servers send no dates.
pub(crate) fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Reads the status in the body of an error response. If it is not from an API server, the message is the start of its
/// text.
pub(crate) async fn read_status(response: Response<Body>, limit: Duration) -> Status {
    let media_type = media_type(&response);
    let mut contents = Contents::of(response);
    let mut text = Vec::new();
    let read = async {
        while let Some(Ok(part)) = contents.next().await {
            text.extend_from_slice(&part);
            if text.len() > MAX_STATUS_BYTES {
                break;
            }
        }
    };
    // After this time, the data received so far is used.
    let _ = timeout(limit, read).await;
    let status = decode::status(media_type, &text).ok().filter(|status| !status.message.is_empty());
    status.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no message");
        Status { message: line.chars().take(MAX_LINE_CHARS).collect(), code: 0 }
    })
}

/// Reads the body of a response that is one object.
///
/// # Errors
///
/// The body ends early, does not continue, or is too long.
pub(crate) async fn read_body(response: Response<Body>, url: &str, limit: Duration) -> Result<Vec<u8>, ApiError> {
    let mut contents = Contents::of(response);
    let mut text = Vec::new();
    let read = async {
        while let Some(part) = contents.next().await {
            text.extend_from_slice(&part.map_err(|error| Some(Cause::whole(&error)))?);
            if text.len() > MAX_OBJECT_BYTES {
                return Err(Some(Cause::text(format!("the object is longer than {MAX_OBJECT_BYTES} bytes"))));
            }
        }
        Ok(())
    };
    match timeout(limit, read).await {
        Ok(Ok(())) => Ok(text),
        Ok(Err(cause)) => Err(ApiError::ConnectionLost { url: url.to_owned(), cause }),
        Err(_) => Err(ApiError::Timeout { url: url.to_owned(), waited: limit }),
    }
}

const MAX_STATUS_BYTES: usize = 64 << 10;

/// Characters of a message that is not from an API server.
const MAX_LINE_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_in_seconds() {
        let parsed = |value| {
            let response = Response::builder().header("Retry-After", value).body(()).unwrap();
            retry_after(&response).map(|delay| delay.as_secs())
        };
        assert_eq!([parsed("7"), parsed(" 0 ")], [Some(7), Some(0)]);
        assert_eq!([parsed("-1"), parsed("Wed, 21 Oct 2015 07:28:00 GMT"), parsed("")], [None; 3]);
        assert_eq!(retry_after(&Response::new(())), None);
    }
}
