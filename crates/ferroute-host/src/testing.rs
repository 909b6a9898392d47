//! The body of a fuzz target.

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::Messages;

use crate::{addresses, conntrack, counters, generation, listeners, routes};

/// Parses the messages of a datagram as answers of every kind.
///
/// # Panics
///
/// A conntrack entry was parsed without the tuple that identifies it: deleting such an entry would flush the table.
pub fn parse_messages(datagram: &[u8]) {
    for message in Messages::new(datagram) {
        let Ok(message) = message else { break };
        let _ = addresses::parse(message);
        let _ = counters::parse(message);
        let _ = generation::parse(message);
        let _ = listeners::parse(message);
        let _ = routes::parse_link(message);
        let _ = routes::parse_route(message);
        for family in IpFamily::BOTH {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                conntrack::check_deletion(message, family, protocol);
            }
        }
    }
}
