use std::sync::Arc;

use ferroute_core::Protocol;

use super::Sense;
use crate::extension::{
    AddressType, CtStates, MarkMatch, PortList, PortRange, PortSide, Probability, Recent, SetMatch, VirtualServerMatch,
};

/// A match module with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// A comment; matches every packet.
    Comment(Arc<str>),
    /// Ports of a transport protocol (`-m tcp`, `-m udp`, `-m sctp`).
    Transport {
        /// The protocol.
        protocol: Protocol,
        /// Source port.
        source: Option<Sense<PortRange>>,
        /// Destination port.
        destination: Option<Sense<PortRange>>,
    },
    /// Several ports of a transport protocol (`-m multiport`). kube-proxy does not write it.
    Multiport {
        /// Which of the packet's ports are compared.
        side: PortSide,
        /// The accepted ports.
        ports: Sense<PortList>,
    },
    /// Any of these connection tracking states (`--ctstate`).
    Conntrack(Sense<CtStates>),
    /// The same in the older module `state` (`--state`).
    State(Sense<CtStates>),
    /// The packet's mark.
    Mark(Sense<MarkMatch>),
    /// The types of the packet's addresses in the host's routing.
    AddrType {
        /// The source address's type.
        source: Option<Sense<AddressType>>,
        /// The destination address's type.
        destination: Option<Sense<AddressType>>,
    },
    /// Matches at random (`--mode random`).
    Statistic(Sense<Probability>),
    /// A list of recently seen addresses.
    Recent(Recent),
    /// Counts the packet in the nfacct counter of this name; matches every packet.
    Nfacct(Box<str>),
    /// The packet's addresses and ports are in an ipset (`--match-set`).
    Set(Sense<SetMatch>),
    /// The packet arrived through a port of a bridge (`--physdev-is-in`).
    PhysdevIsIn(Sense<()>),
    /// The packet belongs to a connection of this virtual server (`-m ipvs`).
    Ipvs(VirtualServerMatch),
    /// An unsupported module, or one with unsupported options, verbatim from `-m` on.
    Other(Box<str>),
}
