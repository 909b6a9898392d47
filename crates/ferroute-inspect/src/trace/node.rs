//! The node on which a packet is traced: its desired state, addresses and routes.

use std::{net::IpAddr, sync::Arc};

use ferroute_host::{HostAddresses, KernelAddresses, Sysctls};
use ferroute_trace::{Host, Route};
use ipnet::IpNet;

use super::Request;
use crate::desired::Desired;

/// The node on which a packet is traced.
pub struct TraceNode {
    /// The desired state of the node.
    pub desired: Arc<Desired>,
    /// The node's addresses and routes.
    pub host: Host,
    /// Whether the node is this machine, and `host` was read from the kernel.
    pub here: bool,
}

impl TraceNode {
    /// Loads the desired state, and reads addresses and routes if the node is this machine.
    ///
    /// # Errors
    /// If the configuration, the objects or the host cannot be read.
    pub fn load(args: &Request, verbosity: Option<u32>) -> anyhow::Result<Self> {
        // The kernel's rules can be traced without Services.
        let desired = match args.kernel {
            true => Desired::load_for_host(&args.desired, verbosity)?,
            false => Desired::load(&args.desired, verbosity)?,
        };
        Self::new(Arc::new(desired), args.kernel)
    }

    /// Reads addresses and routes if the node is this machine, as it always is for the rules in the kernel.
    ///
    /// # Errors
    /// If the host cannot be read.
    pub fn new(desired: Arc<Desired>, kernel: bool) -> anyhow::Result<Self> {
        let here = kernel || desired.is_this_host;
        let host = if here { from_kernel()? } else { desired.host.clone() };
        Ok(Self { desired, host, here })
    }
}

fn from_kernel() -> anyhow::Result<Host> {
    let addresses: Vec<IpAddr> = KernelAddresses::open()?.list()?;
    let mut routes = ferroute_host::routes()?;
    // Of routes to the same network, the last one is used.
    routes.sort_by_key(|route| std::cmp::Reverse(route.metric));
    let routes = routes.into_iter().filter_map(|route| {
        let to = IpNet::new(route.destination, route.prefix_len).ok()?;
        Some(Route { to, interface: route.interface, source: route.source })
    });
    let route_localnet = Sysctls::from_kernel().read("net/ipv4/conf/all/route_localnet")?;
    Ok(Host { addresses, routes: routes.collect(), route_localnet: route_localnet == "1" })
}
