//! Traces a packet through planned rules or the rules in this machine's kernel.
//!
//! ```text
//!   Desired --> rules (planned, or the kernel's) --.
//!   Question --> Packet, how it arrives -----------+--> trace --> text, JSON
//!   Host (of the objects, or of this machine) -----'
//! ```
//!
//! Not here: the walk itself (`ferroute-trace`).

mod outline;
mod packet;
mod report;
mod rules;
mod scene;

use std::num::NonZeroU16;

use ferroute_config::flags::DesiredArgs;
use ferroute_core::Protocol;

pub use self::{
    outline::write_outline_into,
    packet::{Arrival, resolve},
    report::Report,
    rules::{Rules, load},
    scene::Scene,
};

/// Which packet to trace, and through which rules.
#[derive(Clone, Debug)]
pub struct Question {
    /// The sender: an address, or the name of a node or pod.
    pub from: Option<String>,
    /// The destination: `ADDRESS:PORT`, or a Service by its name.
    pub to: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The interface by which the packet arrives, in place of the one that leads to its sender.
    pub input: Option<String>,
    /// The node itself sends the packet.
    pub local: bool,
    /// The source port.
    pub source_port: NonZeroU16,
    /// The desired state of the node.
    pub desired: DesiredArgs,
    /// Use the rules in this machine's kernel.
    pub kernel: bool,
}
