//! The body of a fuzz target.

use ferroute_core::IpFamily;
use ferroute_netlink::Messages;

use crate::{device, plan::SetKind, servers::message as servers, sets::message as sets};

/// Parses the messages of a datagram as answers of every kind, which must not panic.
pub fn parse_messages(datagram: &[u8]) {
    for message in Messages::new(datagram) {
        let Ok(message) = message else { break };
        let _ = servers::parse_family(message);
        let _ = servers::parse_server(message);
        let _ = device::parse_device(message, crate::DUMMY_DEVICE);
        let _ = device::parse_address(message, 1);
        for family in IpFamily::BOTH {
            let _ = servers::parse_real_server(message, family == IpFamily::V4);
            for kind in SetKind::ALL {
                let _ = sets::parse_header(message);
                let _ = sets::parse_entries(message, kind, family);
            }
        }
    }
}
