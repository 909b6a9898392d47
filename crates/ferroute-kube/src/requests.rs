use std::time::Duration;

use http::{Method, StatusCode};

/// A request to the API server that is over.
#[derive(Clone, Copy, Debug)]
pub struct RequestEnd<'a> {
    /// Host and port that it went to, as the configuration spells them.
    pub host: &'a str,
    /// Its method.
    pub method: &'a Method,
    /// The status of the answer; `None` if there was no answer.
    pub status: Option<StatusCode>,
    /// How long it took until the answer began; `None` for a watch, which the server answers when it likes to.
    pub took: Option<Duration>,
}

/// Somebody who counts requests. Is told of each, also of those that failed, so it must not block.
pub trait RequestCounter: std::fmt::Debug + Send + Sync {
    /// A request is over.
    fn ended(&self, request: &RequestEnd<'_>);
}

/// Counts nothing.
#[derive(Debug)]
pub(crate) struct Uncounted;

impl RequestCounter for Uncounted {
    fn ended(&self, _: &RequestEnd<'_>) {}
}
