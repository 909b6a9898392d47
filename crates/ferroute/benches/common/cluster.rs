use std::{fmt, net::Ipv4Addr, str::FromStr};

use ferroute_api::{EndpointSlice, Service};
use ferroute_core::testing;

/// The size of a cluster: the number of Services with one port each, and of ready endpoints per Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
}

impl Size {
    pub(crate) const fn new(services: u32, endpoints: u32) -> Self {
        Self { services, endpoints }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (services, endpoints) = text.split_once('x')?;
            Some(Self { services: services.parse().ok()?, endpoints: endpoints.parse().ok()? })
        };
        let size = parsed().ok_or_else(|| format!("invalid size {text:?}, expected a size such as 1000x10"))?;
        match size {
            Self { services: 1..=MAX_SERVICES, endpoints: 1..=MAX_ENDPOINTS } => Ok(size),
            _ => Err(format!("invalid size {size}, expected at most {MAX_SERVICES}x{MAX_ENDPOINTS}")),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.services / 1000, self.services % 1000) {
            (0, rest) => write!(f, "{rest}")?,
            (thousands, rest) => write!(f, "{thousands},{rest:03}")?,
        }
        write!(f, "×{}", self.endpoints)
    }
}

/// Returns a Service by number.
pub(crate) fn service(number: u32) -> Service {
    service_at(number, PORT)
}

/// Returns a Service by number, with another port.
pub(crate) fn service_at(number: u32, port: u16) -> Service {
    testing::service(&format!("bench/svc-{number:06}"))
        .cluster_ip(&cluster_ip(number).to_string())
        .port("http", port)
        .with(|service| service.spec.type_ = Some("ClusterIP".to_owned()))
        .build()
}

/// Returns the slice of a Service by number.
pub(crate) fn slice(size: Size, number: u32) -> EndpointSlice {
    slice_with(number, (0..size.endpoints).map(|i| endpoint(size, number, i)))
}

/// Like [`slice`], with one endpoint replaced by another one, which is different in each `round`.
pub(crate) fn changed_slice(size: Size, number: u32, round: u32) -> EndpointSlice {
    let changed = round % size.endpoints;
    let other = nth([172, 16, 0, 1], round);
    slice_with(number, (0..size.endpoints).map(|i| if i == changed { other } else { endpoint(size, number, i) }))
}

/// Returns the slice of a Service by number, with these endpoints.
pub(crate) fn slice_with(number: u32, endpoints: impl Iterator<Item = Ipv4Addr>) -> EndpointSlice {
    let mut slice =
        testing::slice(&format!("bench/svc-{number:06}-x2x8f"), &format!("svc-{number:06}")).port("http", TARGET_PORT);
    for address in endpoints {
        // Most endpoints are on other nodes.
        let node = format!("node-{}", 2 + u32::from(address) % 500);
        slice = slice.pod(testing::pod(&address.to_string()).on(&node).conditions(true, true, false));
    }
    slice.build()
}

/// Returns the cluster IP of a Service by number.
pub(crate) fn cluster_ip(number: u32) -> Ipv4Addr {
    nth([10, 64, 0, 1], number)
}

/// Returns the number of the Service to change in a round. Services of consecutive rounds are far apart.
pub(crate) fn service_of_round(size: Size, round: u32) -> u32 {
    // A prime, so each Service is selected once before any is selected again.
    let step = 104_729_u64;
    u32::try_from(u64::from(round) * step % u64::from(size.services)).unwrap()
}

/// Returns an endpoint of a Service by number.
pub(crate) fn endpoint(size: Size, number: u32, i: u32) -> Ipv4Addr {
    nth([10, 128, 0, 1], number * size.endpoints + i)
}

fn nth(first: [u8; 4], n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from_be_bytes(first) + n)
}

/// The node that the proxy runs on.
pub(crate) const NODE: &str = "node-1";
/// The node's address.
pub(crate) const NODE_IP: &str = "192.168.0.1";
/// The CIDR of all endpoints.
pub(crate) const CLUSTER_CIDR: &str = "10.128.0.0/9";
/// The port of all Services.
pub(crate) const PORT: u16 = 80;
/// The port of all endpoints.
pub(crate) const TARGET_PORT: u16 = 8080;
/// The number of available addresses.
const MAX_SERVICES: u32 = 100_000;
/// Less than the limit of Kubernetes for one slice.
const MAX_ENDPOINTS: u32 = 80;
