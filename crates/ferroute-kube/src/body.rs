//! The body of a response, decompressed as it arrives.
//!
//! API servers compress large lists and, from Kubernetes 1.37 on, streaming lists: one gzip member for each flush, so
//! for each object (`WatchListCompression`, kubernetes/kubernetes#139925 and #140140). The decoders of HTTP libraries
//! stop after the first member (kube-rs/kube#2079), and pull decoders wait for further input before they return
//! available output.

use std::io::{self, Write as _};

use flate2::write::MultiGzDecoder;
use http::{HeaderMap, Response, header};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube_client::client::Body;

use crate::error::{ApiError, Cause};

/// The contents of a response.
#[derive(Debug)]
pub(crate) struct Contents {
    body: Body,
    decoder: Option<Decoder>,
}

/// The contents cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentsError {
    /// The connection was lost.
    #[error("{0}")]
    Lost(Cause),
    /// The contents do not match the header `content-encoding`.
    #[error("invalid gzip: {0}")]
    Invalid(io::Error),
}

impl Contents {
    /// Returns the contents of a response with these headers.
    pub(crate) fn new(headers: &HeaderMap, body: Body) -> Self {
        let encoding = headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        let is_gzip = encoding.is_some_and(|encoding| encoding.trim().eq_ignore_ascii_case("gzip"));
        Self { body, decoder: is_gzip.then(Decoder::default) }
    }

    /// Returns the contents of a response.
    pub(crate) fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        Self::new(&parts.headers, body)
    }

    /// Waits for the next part; `None` at the end. A part may be empty. No data is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the contents cannot be decompressed.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, ContentsError>> {
        if let Some(decoder) = self.decoder.as_mut().filter(|decoder| decoder.has_input()) {
            return Some(decoder.next().map_err(ContentsError::Invalid));
        }
        let frame = match self.body.frame().await? {
            Ok(frame) => frame,
            Err(error) => return Some(Err(ContentsError::Lost(Cause::innermost(&error)))),
        };
        let bytes = frame.into_data().unwrap_or_default();
        Some(match &mut self.decoder {
            None => Ok(bytes),
            Some(decoder) => {
                decoder.input = bytes;
                decoder.next().map_err(ContentsError::Invalid)
            }
        })
    }
}

impl ContentsError {
    /// Returns the error for a response of this server to a request for these objects.
    pub(crate) fn into_api_error(self, url: &str, resource: &'static str) -> ApiError {
        match self {
            Self::Lost(cause) => ApiError::ConnectionLost { url: url.to_owned(), cause: Some(cause) },
            Self::Invalid(_) => ApiError::InvalidResponse { url: url.to_owned(), resource, cause: Cause::whole(&self) },
        }
    }
}

/// A decoder of a series of gzip members.
#[derive(Debug)]
struct Decoder {
    gzip: MultiGzDecoder<Vec<u8>>,
    /// Input that has been received but not decompressed.
    input: Bytes,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { gzip: MultiGzDecoder::new(Vec::new()), input: Bytes::new() }
    }
}

impl Decoder {
    fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Decompresses a part of the input. Its contents are at most some megabytes, for any input.
    fn next(&mut self) -> io::Result<Bytes> {
        let part = self.input.split_to(self.input.len().min(MAX_INPUT));
        self.gzip.write_all(&part)?;
        // Output that is available so far, including within a member.
        self.gzip.flush()?;
        Ok(std::mem::take(self.gzip.get_mut()).into())
    }
}

/// Bytes that are decompressed at a time. Deflate expands them to at most 1,032 times as much: 4 MB.
const MAX_INPUT: usize = 4 << 10;

#[cfg(test)]
mod tests;
