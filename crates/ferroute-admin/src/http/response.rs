use http_body_util::Full;
use hyper::{
    StatusCode,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

/// The head of a request: method, path, headers. Bodies are not read.
pub type Request = hyper::http::request::Parts;

/// A complete response.
pub type Response = hyper::Response<Full<Bytes>>;

/// Returns a JSON response with kube-proxy's headers.
pub fn json(status: StatusCode, body: String) -> Response {
    response(status, "application/json", body)
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
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
