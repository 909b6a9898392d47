use std::{sync::Arc, time::Duration};

use serde_json::Value;

/// How the double answers.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// What it does when asked for a streaming list.
    pub streaming: Streaming,
    /// It gives lists in pages when asked to. Servers that answer from memory give all at once.
    pub pages: bool,
    /// Most objects in a page, whatever the request says.
    pub most_in_page: usize,
    /// It answers in protobuf where it is asked for that, not only in JSON.
    pub protobuf: bool,
    /// Objects have fields that nobody knows.
    pub unknown_fields: bool,
    /// A version that is too old is answered with a message within a watch instead of a status.
    pub expires_in_watch: bool,
    /// Watches send old news again, in any order.
    pub repeats: bool,
    /// Lists for which any version will do show a state of the past, by this many changes.
    pub lag: usize,
    /// Bytes that are sent at once.
    pub piece: usize,
    /// Pause between them.
    pub pause: Duration,
    /// The status that questions for ServiceCIDRs are answered with: 200, or 404 as by servers before 1.33, or 403 where
    /// nobody has allowed to ask.
    pub service_cidrs: u16,
    /// The next attempts to write are answered with these statuses, one each.
    pub refused_writes: Vec<u16>,
    /// It is away: every connection breaks.
    pub away: bool,
    /// The header `authorization` that requests must have.
    pub authorization: Option<String>,
}

/// What the double does when asked for a streaming list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// It gives one.
    Yes,
    /// It says that it does not do that (1.27 to 1.31).
    Refused,
    /// It does not see what it is asked for.
    Ignored,
}

/// What a request meets with.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status.
    Status(u16),
    /// Status 429, with a wish to wait for this many seconds.
    Wait(u64),
    /// The connection breaks after this many bytes of the answer's body.
    Cut(usize),
    /// There is no answer.
    Silence,
    /// The answer is a page for people.
    Html,
}

impl Default for Behaviour {
    /// A good server of today.
    fn default() -> Self {
        Self {
            streaming: Streaming::Yes,
            pages: true,
            most_in_page: usize::MAX,
            protobuf: true,
            unknown_fields: false,
            expires_in_watch: false,
            repeats: false,
            lag: 0,
            piece: usize::MAX,
            pause: Duration::ZERO,
            service_cidrs: 200,
            refused_writes: Vec::new(),
            away: false,
            authorization: None,
        }
    }
}

/// What the watches look at when they are woken: how often each thing has happened so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    pub(super) changes: u64,
    pub(super) cuts: u64,
    pub(super) ends: u64,
    pub(super) errors: u64,
    /// The status of the last of the errors.
    pub(super) code: u16,
    pub(super) bookmarks: u64,
    pub(super) sent: u64,
    /// Type and object of the last message that was sent.
    pub(super) message: Arc<(String, Value)>,
}
