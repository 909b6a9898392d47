use std::fmt;

use ferroute_core::{IpFamily, ServicePortName, TrafficPolicy};

/// The identity of a listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerKey {
    /// The IP family.
    pub family: IpFamily,
    /// The service port.
    pub service_port: ServicePortName,
    /// The policy of the traffic that it serves.
    pub policy: TrafficPolicy,
}

impl fmt::Display for ListenerKey {
    /// Writes `IPv4 shop/web:http/tcp` or `IPv4 shop/web:http/tcp local`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, service_port, policy } = self;
        write!(f, "{family} {service_port}/{}", service_port.protocol)?;
        match policy {
            TrafficPolicy::Cluster => Ok(()),
            TrafficPolicy::Local => f.write_str(" local"),
        }
    }
}
