//! Connections through Services: who talks to which Service, which endpoint answers, and how it ends.
//!
//! ```text
//!   ServiceTable ──► Frontends ─┐
//!                               ├──► FlowTracker ──► Flow ─┬──► readers (JSON, one line per change)
//!   conntrack events ───────────┘    (open ones)           ├──► recent flows (bounded)
//!                                                          └──► Summary (last five minutes, bounded)
//! ```
//!
//! The kernel's connection tracking knows every connection in any mode and with any network plugin: the address that the client
//! used, and the endpoint that a rule selected. The [`Hub`] subscribes to its events only while a reader exists. Memory is bounded:
//! connections beyond a limit, events that arrive faster than they are read, and lines that a reader is too slow for are counted,
//! and the counts are part of what readers get.
//!
//! The tracker and the summary are pure: events and the time are their input. What is *not* here: the names of pods, which
//! readers add, and where the frontends come from.

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
    summary::{Counts, Edge, FlowSummary, Summary},
    tracker::{Change, FlowTracker, Listing, Services},
    traffic::{TrafficLimits, TrafficTotals, Usage},
};
