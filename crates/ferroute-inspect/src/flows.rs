//! Connections through Services: live, recent, or summed up.
//!
//! ```text
//!   running proxy ──┐
//!                   ├──► FlowStream ──► FlowEvent ──► Labels (pods, nodes) ──► filter ──► text, JSON
//!   kernel ─────────┘
//! ```
//!
//! The flows of a running proxy come from the proxy, which knows which Services are applied at the moment and remembers recent flows for
//! all its readers. Otherwise, the events of the kernel are read here.

mod labels;
mod print;
mod stream;

pub use ferroute_flows::{
    Counts, Edge, Flow, FlowEvent, FlowFilter, FlowRequest, FlowStart, FlowState, FlowSummary, Losses, Peer,
    PeerFilter, PeerKind, RecentEnd,
};

pub use self::{
    labels::Labels,
    print::{FlowTable, write_losses_into, write_start_into, write_summary_into},
    stream::FlowStream,
};
