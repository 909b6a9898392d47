use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_core::{IpFamily, Protocol};

use crate::model::{Field, Value};

/// Where clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The address; `None` for a node port, which is on all addresses that answer on node ports.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl Frontend {
    /// As a part of keys. Node ports have the address of which all bits are zero.
    pub fn key(&self, family: IpFamily) -> [Value; 3] {
        let address = self.address.unwrap_or(match family {
            IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
            IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
        });
        [address.into(), Value::protocol(self.protocol), Value::Port(self.port)]
    }

    /// The opposite of [`Frontend::key`]; `None` for a key of another shape.
    pub fn from_key(key: &[Value]) -> Option<Self> {
        let &[Value::Address(address), Value::Protocol(number), Value::Port(port), ..] = key else { return None };
        let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == number)?;
        Some(Self { address: Some(address).filter(|address| !address.is_unspecified()), protocol, port })
    }

    /// The fields of a packet that this is compared with.
    pub(super) fn fields(node_port: bool) -> [Field; 3] {
        let address = if node_port { Field::NoDestination } else { Field::Destination };
        [address, Field::Protocol, Field::Port]
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{}/{}", std::net::SocketAddr::new(address, self.port), self.protocol),
            None => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}
