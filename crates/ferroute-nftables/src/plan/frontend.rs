//! Frontends as keys of maps: `daddr . l4proto . dport` in map `services`, `l4proto . dport` in map `node-ports`.

use ferroute_core::{Frontend, Protocol};

use super::SetId;
use crate::model::{Field, Key, Value};

/// Returns the map that contains a frontend.
pub fn frontend_map(frontend: Frontend) -> SetId {
    if frontend.address.is_some() { SetId::Services } else { SetId::NodePorts }
}

/// Returns the key of a frontend in [`frontend_map`].
pub fn frontend_key(frontend: Frontend) -> Key {
    let address = frontend.address.map(Value::Address);
    address.into_iter().chain([Value::protocol(frontend.protocol), Value::Port(frontend.port)]).collect()
}

/// Returns the frontend of a key; `None` for a key of another form. The inverse of [`frontend_key`].
pub fn frontend_from_key(key: &[Value]) -> Option<Frontend> {
    let (address, number, port) = match *key {
        [Value::Address(address), Value::Protocol(number), Value::Port(port)] => (Some(address), number, port),
        [Value::Protocol(number), Value::Port(port)] => (None, number, port),
        _ => return None,
    };
    let protocol = PROTOCOLS.into_iter().find(|protocol| protocol.number() == number)?;
    Some(Frontend { address, protocol, port })
}

/// The protocols of service ports, the most frequent one first.
pub(super) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// The packet fields that map `services` is looked up by.
pub(super) const FRONTEND: [Field; 3] = [Field::Daddr, Field::L4proto, Field::Dport];
/// The packet fields that map `node-ports` is looked up by.
pub(super) const NODE_PORT: [Field; 2] = [Field::L4proto, Field::Dport];
