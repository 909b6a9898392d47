//! Connections through Services: client, Service, endpoint and result of each connection.
//!
//! ```text
//!   ServiceTable ──► Frontends ─┐
//!                               ├──► FlowTracker ──► Flow ─┬──► readers (JSON, one line per change)
//!   conntrack events ───────────┘    (open ones)           ├──► recent flows (bounded)
//!                                                          └──► Summary (last five minutes, bounded)
//! ```
//!
//! The kernel's connection tracking has every connection, in any mode and with any network plugin: the address that the
//! client used, and the endpoint that a rule selected. The [`Hub`] subscribes to its events only while a reader exists.
//! Memory is bounded. Connections beyond a limit, events that arrive faster than they are read, and lines that a reader
//! is too slow for are counted, and readers receive the counts.
//!
//! The tracker and the summary are pure: events and the time are their input. This crate does not have the names of
//! pods, which readers add, and does not compute the frontends.

mod event;
mod filter;
mod flow;
mod frontends;
mod hub;
mod refusals;
mod summary;
mod tracker;
mod traffic;

pub use self::{
    event::{FlowEvent, FlowRequest, FlowStart, Losses, RecentEnd},
    filter::{FlowFilter, InvalidPeer, PeerFilter},
    flow::{Flow, FlowState, Peer, PeerKind},
    frontends::{FrontendOwner, Frontends, SharedFrontends},
    hub::{FlowReceiver, Hub, Limits, Reservation, SubscribeError},
    summary::{ACCURACY, Counts, Edge, FlowSummary, Summary},
    tracker::{Change, FlowTracker, Listing, Services},
    traffic::{TrafficLimits, TrafficTotals, Usage},
};
