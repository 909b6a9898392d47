use std::fmt;

use ferroute_core::{IpFamily, ServicePortName};

/// The identity of a listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerKey {
    /// The IP family.
    pub family: IpFamily,
    /// The service port.
    pub service_port: ServicePortName,
    /// Whether it serves traffic with policy Local: by endpoints on this node only.
    pub local: bool,
}

impl fmt::Display for ListenerKey {
    /// Writes `IPv4 shop/web:http/tcp` or `IPv4 shop/web:http/tcp local`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, service_port, local } = self;
        write!(f, "{family} {service_port}/{}", service_port.protocol)?;
        if *local { f.write_str(" local") } else { Ok(()) }
    }
}
