use std::{fmt, net::Ipv4Addr, str::FromStr};

use ferroute_api::{EndpointSlice, Service};
use ferroute_core::testing;

/// How large a cluster is: Services with one port each, and as many ready endpoints for each of them.
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
        let size = parsed().ok_or_else(|| format!("«{text}» is no size like 1000x10"))?;
        match size {
            Self { services: 1..=MOST_SERVICES, endpoints: 1..=MOST_ENDPOINTS } => Ok(size),
            _ => Err(format!("{size} is too small or too large: up to {MOST_SERVICES}x{MOST_ENDPOINTS}")),
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

/// The Service with this number.
pub(crate) fn service(number: u32) -> Service {
    service_at(number, PORT)
}

/// The Service with this number, on another port.
pub(crate) fn service_at(number: u32, port: u16) -> Service {
    testing::service(&format!("bench/svc-{number:06}"))
        .cluster_ip(&cluster_ip(number).to_string())
        .port("http", port)
        .with(|service| service.spec.type_ = Some("ClusterIP".to_owned()))
        .build()
}

/// The slice of the Service with this number.
pub(crate) fn slice(size: Size, number: u32) -> EndpointSlice {
    slice_of(number, (0..size.endpoints).map(|i| endpoint(size, number, i)))
}

/// The same with one endpoint replaced by another one, which differs with each `turn`.
pub(crate) fn changed_slice(size: Size, number: u32, turn: u32) -> EndpointSlice {
    let changed = turn % size.endpoints;
    let other = nth([172, 16, 0, 1], turn);
    slice_of(number, (0..size.endpoints).map(|i| if i == changed { other } else { endpoint(size, number, i) }))
}

/// A slice of the Service with this number, with these endpoints.
pub(crate) fn slice_of(number: u32, endpoints: impl Iterator<Item = Ipv4Addr>) -> EndpointSlice {
    let mut slice =
        testing::slice(&format!("bench/svc-{number:06}-x2x8f"), &format!("svc-{number:06}")).port("http", TARGET_PORT);
    for address in endpoints {
        // Other nodes' endpoints, as most are.
        let node = format!("node-{}", 2 + u32::from(address) % 500);
        slice = slice.pod(testing::pod(&address.to_string()).on(&node).conditions(true, true, false));
    }
    slice.build()
}

/// The cluster IP of the Service with this number.
pub(crate) fn cluster_ip(number: u32) -> Ipv4Addr {
    nth([10, 64, 0, 1], number)
}

/// A Service's number by the turn, so that changes that follow each other are far apart.
pub(crate) fn any_service(size: Size, turn: u32) -> u32 {
    // Prime, so that no Service comes twice before all have come.
    let step = 104_729_u64;
    u32::try_from(u64::from(turn) * step % u64::from(size.services)).unwrap()
}

/// One of the endpoints of the Service with this number.
pub(crate) fn endpoint(size: Size, number: u32, i: u32) -> Ipv4Addr {
    nth([10, 128, 0, 1], number * size.endpoints + i)
}

fn nth(first: [u8; 4], n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from_be_bytes(first) + n)
}

/// The node that the proxy runs on.
pub(crate) const NODE: &str = "node-1";
/// Its address.
pub(crate) const NODE_IP: &str = "192.168.0.1";
/// All endpoints.
pub(crate) const CLUSTER_CIDR: &str = "10.128.0.0/9";
/// Port of all Services.
pub(crate) const PORT: u16 = 80;
/// Port of all endpoints.
pub(crate) const TARGET_PORT: u16 = 8080;
/// As many as there are addresses for.
const MOST_SERVICES: u32 = 100_000;
/// As many as Kubernetes puts into one slice.
const MOST_ENDPOINTS: u32 = 80;
