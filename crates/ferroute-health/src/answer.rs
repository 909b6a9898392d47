use http_body_util::Full;
use hyper::{
    StatusCode,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

/// The head of a request: method, path, headers. Bodies are not read.
pub type Request = hyper::http::request::Parts;

/// A whole answer.
pub type Response = hyper::Response<Full<Bytes>>;

/// An answer in JSON, with the headers that kube-proxy gives it.
pub fn json(status: StatusCode, body: String) -> Response {
    answer(status, "application/json", body)
}

/// An answer in plain text, with the headers that kube-proxy gives it.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    answer(status, "text/plain; charset=utf-8", body)
}

/// The answer of Go's HTTP server to a path that it does not know.
pub fn not_found() -> Response {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
