//! Frontends as keys of sets and maps: `daddr . l4proto . dport`. The address of a node port is unspecified (`0.0.0.0`,
//! `::`).

use std::net::{Ipv4Addr, Ipv6Addr};

use ferroute_core::{Frontend, IpFamily, Protocol};

use crate::model::{Field, Value};

/// Returns the key of a frontend.
pub fn frontend_key(frontend: Frontend, family: IpFamily) -> [Value; 3] {
    let address = frontend.address.unwrap_or(match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    });
    [address.into(), Value::protocol(frontend.protocol), Value::Port(frontend.port)]
}

/// Returns the frontend that a key starts with; `None` for a key of another shape. The inverse of [`frontend_key`].
pub fn frontend_from_key(key: &[Value]) -> Option<Frontend> {
    let &[Value::Address(address), Value::Protocol(number), Value::Port(port), ..] = key else { return None };
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == number)?;
    Some(Frontend { address: Some(address).filter(|address| !address.is_unspecified()), protocol, port })
}

/// Returns the packet fields that are looked up by frontend.
pub(super) fn frontend_fields(node_port: bool) -> [Field; 3] {
    let address = if node_port { Field::ZeroDaddr } else { Field::Daddr };
    [address, Field::L4proto, Field::Dport]
}
