//! Connections by service port and endpoint. Who reads them bounds how many are told apart.

use std::net::SocketAddr;

use ferroute_core::IpFamily;
use prometheus::IntCounterVec;

use crate::make::Maker;

/// Connections of one family since somebody has begun to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// The family.
    pub family: IpFamily,
    /// To service ports, by name (`shop/web:http`).
    pub services: Vec<(String, u64)>,
    /// To all other service ports.
    pub other_services: u64,
    /// To endpoints of the service ports of these names.
    pub endpoints: Vec<(String, SocketAddr, u64)>,
    /// To all their other endpoints.
    pub other_endpoints: u64,
}

/// See the module's text.
pub(crate) struct ConnectionCounters {
    services: IntCounterVec,
    endpoints: IntCounterVec,
}

impl ConnectionCounters {
    pub(crate) fn new(make: &Maker<'_>) -> Self {
        Self {
            services: make.counters(
                "ferroute_connections_total",
                "New connections to a service port; those to service ports that are not told apart have no name.",
                &["service_port", "ip_family"],
            ),
            endpoints: make.counters(
                "ferroute_endpoint_connections_total",
                "New connections that an endpoint of a service port has got.",
                &["service_port", "endpoint", "ip_family"],
            ),
        }
    }

    /// Shows these totals and no others: a Service that is gone is not to be seen for ever.
    pub(crate) fn set(&self, all: &[Connections]) {
        self.services.reset();
        self.endpoints.reset();
        for of in all {
            let family = of.family.as_str();
            for (name, count) in
                of.services.iter().map(|(name, count)| (&**name, *count)).chain([("", of.other_services)])
            {
                self.services.with_label_values(&[name, family]).inc_by(count);
            }
            for (name, endpoint, count) in &of.endpoints {
                self.endpoints.with_label_values(&[name, &*endpoint.to_string(), family]).inc_by(*count);
            }
            self.endpoints.with_label_values(&["", "", family]).inc_by(of.other_endpoints);
        }
    }
}
