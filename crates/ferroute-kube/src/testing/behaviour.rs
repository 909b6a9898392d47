use std::{sync::Arc, time::Duration};

use serde_json::Value;

/// The behaviour of a [`FakeApiServer`](super::FakeApiServer).
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// The response to requests for streaming lists.
    pub streaming: Streaming,
    /// Whether lists are in pages on request. Servers that respond from their cache return all objects at once.
    pub pages: bool,
    /// Maximum number of objects in a page, regardless of the request.
    pub max_page: usize,
    /// Whether protobuf is supported beside JSON.
    pub protobuf: bool,
    /// Whether lists and watches are compressed for clients that accept it, watches with one gzip member per event.
    pub gzip: bool,
    /// Whether objects have unknown fields.
    pub unknown_fields: bool,
    /// Whether a watch from an expired version ends with an error event instead of an error status.
    pub expires_in_watch: bool,
    /// Whether watches repeat old changes, in any order.
    pub repeats: bool,
    /// By how many changes lists of any version are behind.
    pub lag: usize,
    /// The number of bytes that are sent at once.
    pub chunk: usize,
    /// The pause between chunks.
    pub pause: Duration,
    /// The status of requests for ServiceCIDRs: 200, or 404 as in servers before 1.33, or 403 without the permission.
    pub service_cidrs: u16,
    /// The error statuses of the next writes, one each.
    pub failed_writes: Vec<u16>,
    /// Whether every connection breaks.
    pub down: bool,
    /// Whether no request gets a response, although connections are accepted.
    pub hung: bool,
    /// An error status of all responses, with the seconds of `retry-after` if it has one.
    pub status: Option<(u16, Option<u64>)>,
    /// The required header `authorization`.
    pub authorization: Option<String>,
}

/// The response to requests for streaming lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// A streaming list.
    Yes,
    /// Status 422, as in 1.27 to 1.31 without the feature gate.
    Rejected,
    /// A plain watch, as in servers that do not support the parameters.
    Ignored,
}

/// A fault of one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A response with this status.
    Status(u16),
    /// Status 429 with this many seconds in `retry-after`.
    RetryAfter(u64),
    /// The connection breaks after this many bytes of the body.
    Cut(usize),
    /// No response.
    NoResponse,
    /// The body stops after this many bytes, and the connection stays open.
    Stall(usize),
    /// An HTML page.
    Html,
    /// A body that is neither JSON nor protobuf.
    Garbage {
        /// Length.
        bytes: usize,
        /// The same seed leads to the same bytes.
        seed: u64,
    },
    /// A body whose first object begins properly and continues for this many bytes without an end.
    Endless(usize),
}

impl Default for Behaviour {
    /// The behaviour of a current server.
    fn default() -> Self {
        Self {
            streaming: Streaming::Yes,
            pages: true,
            max_page: usize::MAX,
            protobuf: true,
            gzip: false,
            unknown_fields: false,
            expires_in_watch: false,
            repeats: false,
            lag: 0,
            chunk: usize::MAX,
            pause: Duration::ZERO,
            service_cidrs: 200,
            failed_writes: Vec::new(),
            down: false,
            hung: false,
            status: None,
            authorization: None,
        }
    }
}

/// The number of times that each signal has been sent to the watches so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    pub(super) changes: u64,
    pub(super) cuts: u64,
    pub(super) ends: u64,
    pub(super) stalls: u64,
    pub(super) errors: u64,
    /// The status of the last error.
    pub(super) code: u16,
    pub(super) bookmarks: u64,
    pub(super) sent: u64,
    /// Type and object of the last event that was sent.
    pub(super) message: Arc<(String, Value)>,
}
