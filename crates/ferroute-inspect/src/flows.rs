//! Connections through Services: live, recent, or summed up.
//!
//! ```text
//!   running proxy ──┐
//!                   ├──► FlowStream ──► FlowEvent ──► Labels (pods, nodes) ──► filter ──► text, JSON
//!   kernel ─────────┘
//! ```
//!
//! If a proxy runs, it provides the flows: it has the currently applied Services, and remembers recent flows for all
//! its readers. Otherwise, this module reads the events of the kernel.

mod labels;
mod print;
mod stream;

pub use ferroute_flows::{
    Counts, Edge, Flow, FlowEvent, FlowFilter, FlowRequest, FlowStart, FlowState, FlowSummary, Losses, Peer,
    PeerFilter, PeerKind, RecentEnd,
};

pub use self::{
    labels::Labels,
    print::{FlowTable, write_losses_into, write_start_into},
    stream::FlowStream,
};
