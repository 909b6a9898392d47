//! Requests and responses without connections, for unit tests.

use hyper::body::Body as _;

use super::{Request, Response};

/// Returns the head of a GET request.
pub(crate) fn request(uri: &str) -> Request {
    hyper::Request::builder().uri(uri).body(()).unwrap().into_parts().0
}

/// Returns a response's body as text.
pub(crate) fn body(response: Response) -> String {
    String::from_utf8(bytes(response)).unwrap()
}

/// Returns a response's body.
pub(crate) fn bytes(response: Response) -> Vec<u8> {
    let mut body = Box::pin(response.into_body());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut bytes = Vec::new();
    loop {
        match body.as_mut().poll_frame(&mut context) {
            std::task::Poll::Ready(Some(Ok(frame))) => {
                bytes.extend_from_slice(&frame.into_data().unwrap());
            }
            std::task::Poll::Ready(None) => return bytes,
            other => panic!("body in memory is not ready: {other:?}"),
        }
    }
}
