//! Reading answers that are not cut into objects.

use std::time::Duration;

use ferroute_config::MediaType;
use http::{Response, header};
use http_body_util::BodyExt;
use kube_client::client::Body;
use tokio::time::timeout;

use crate::{
    decode::{self, Status},
    trouble::{Cause, Trouble},
};

/// In which form an answer comes. What does not say so, or comes in another, is read as JSON, which it most likely is, or
/// at least is text that can be shown.
pub(crate) fn media_type<B>(answer: &Response<B>) -> MediaType {
    let text = answer.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    text.and_then(MediaType::of).unwrap_or(MediaType::Json)
}

/// How long the server asks to wait, as seconds only: the API server sends no dates.
pub(crate) fn retry_after<B>(answer: &Response<B>) -> Option<Duration> {
    let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// What the body says went wrong; the start of its text where it is not the API server's form.
pub(crate) async fn status_of(answer: Response<Body>, patience: Duration) -> Status {
    let media_type = media_type(&answer);
    let mut body = answer.into_body();
    let mut text = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if text.len() > LONGEST_STATUS {
                break;
            }
        }
    };
    // What has come by then must do.
    let _ = timeout(patience, read).await;
    let status = decode::status(media_type, &text).ok().filter(|status| !status.message.is_empty());
    status.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it says nothing more");
        Status { message: line.chars().take(LONGEST_LINE).collect(), code: 0 }
    })
}

/// The whole body of an answer that is one object.
///
/// # Errors
///
/// It breaks off, does not go on, or is longer than any object.
pub(crate) async fn body_of(answer: Response<Body>, url: &str, patience: Duration) -> Result<Vec<u8>, Trouble> {
    let mut body = answer.into_body();
    let mut text = Vec::new();
    let read = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Some(Cause::innermost(&error)))?;
            text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if text.len() > LONGEST_OBJECT {
                return Err(Some(Cause::text("the object is longer than any that the API server keeps".to_owned())));
            }
        }
        Ok(())
    };
    match timeout(patience, read).await {
        Ok(Ok(())) => Ok(text),
        Ok(Err(cause)) => Err(Trouble::Broken { url: url.to_owned(), cause }),
        Err(_) => Err(Trouble::Silent { url: url.to_owned(), waited: patience }),
    }
}

/// Bytes of an object. The API server's store takes 1.5 MiB of a denser form.
const LONGEST_OBJECT: usize = 8 << 20;

/// Bytes of an answer without success that are read.
const LONGEST_STATUS: usize = 64 << 10;

/// Characters of a message that is not the API server's.
const LONGEST_LINE: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wish_to_wait_is_read_as_seconds() {
        let asked = |value| {
            let answer = Response::builder().header("Retry-After", value).body(()).unwrap();
            retry_after(&answer).map(|wait| wait.as_secs())
        };
        assert_eq!([asked("7"), asked(" 0 ")], [Some(7), Some(0)]);
        assert_eq!([asked("-1"), asked("Wed, 21 Oct 2015 07:28:00 GMT"), asked("")], [None; 3]);
        assert_eq!(retry_after(&Response::new(())), None);
    }
}
