use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::{
    StatusCode,
    body::{Bytes, Frame, SizeHint},
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

/// The head of a request: method, path, headers. Of bodies, only the start of those of PUT requests is read.
pub type Request = hyper::http::request::Parts;

/// The start of the body of a PUT request, an extension of its head.
#[derive(Clone, Debug)]
pub(crate) struct PutBody(pub(crate) Vec<u8>);

/// A response.
pub type Response = hyper::Response<Body>;

/// The body of a response.
pub struct Body(Content);

enum Content {
    /// The text, until it has been sent.
    Whole(Option<Bytes>),
    /// Parts that are rendered when the client is ready to receive them.
    Chunks(Box<dyn Iterator<Item = Bytes> + Send>),
}

impl Body {
    fn whole(text: Bytes) -> Self {
        Self(Content::Whole(Some(text).filter(|text| !text.is_empty())))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Content::Whole(text) => f.debug_tuple("Whole").field(text).finish(),
            Content::Chunks(_) => f.write_str("Chunks"),
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut self.0 {
            Content::Whole(text) => text.take(),
            Content::Chunks(chunks) => chunks.next(),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Content::Chunks(_) => SizeHint::default(),
        }
    }
}

/// Returns a JSON response with kube-proxy's headers.
pub fn json(status: StatusCode, body: String) -> Response {
    response(status, "application/json", body)
}

/// Returns a JSON response with kube-proxy's headers whose body is rendered while it is sent. If it has only one part,
/// its length is sent before it.
pub(crate) fn json_chunks(mut chunks: impl Iterator<Item = Bytes> + Send + 'static) -> Response {
    let first = chunks.next().unwrap_or_default();
    let body = match chunks.next() {
        None => Body::whole(first),
        Some(second) => Body(Content::Chunks(Box::new([first, second].into_iter().chain(chunks)))),
    };
    with_headers(StatusCode::OK, "application/json", body)
}

/// Returns a plain-text response with kube-proxy's headers.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    response(status, "text/plain; charset=utf-8", body)
}

/// Returns the response of Go's HTTP server for an unknown path.
pub fn not_found() -> Response {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    with_headers(status, content_type, Body::whole(body.into()))
}

fn with_headers(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
