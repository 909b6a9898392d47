//! Where a packet is traced: the node, with what should be true there and its place among networks.

use std::net::IpAddr;

use anyhow::Context;
use ferroute_core::{IpFamily, NodeView};
use ferroute_host::{HostAddresses, KernelAddresses, Sysctls};
use ferroute_trace::{Host, Route};
use ipnet::IpNet;

use super::Question;
use crate::desired::Desired;

/// See the module's text.
pub struct Scene {
    pub desired: Desired,
    /// The node's place among networks.
    pub host: Host,
    /// What is known of the host was asked of this machine's kernel.
    pub here: bool,
}

impl Scene {
    pub fn load(args: &Question, verbosity: Option<u32>) -> anyhow::Result<Self> {
        // The kernel's rules need no Services, so nobody has to say where they are told.
        let desired = if args.kernel && args.desired.source.is_empty() {
            Desired::without_services(&args.desired.settings, verbosity)?
        } else {
            Desired::load(&args.desired, verbosity)?
        };
        let here = args.kernel || (!desired.is_demo && is_this_machine(desired.node()));
        let host = if here { from_kernel()? } else { desired.host.clone() };
        Ok(Self { desired, host, here })
    }
}

/// Whether one of the machine's interfaces has the node's address.
fn is_this_machine(node: &NodeView) -> bool {
    let own = KernelAddresses::open().and_then(|mut addresses| addresses.list()).unwrap_or_default();
    IpFamily::BOTH.into_iter().filter_map(|family| node.primary_address(family)).any(|address| own.contains(&address))
}

fn from_kernel() -> anyhow::Result<Host> {
    let addresses: Vec<IpAddr> = KernelAddresses::open()?.list()?;
    let mut routes = ferroute_host::routes()?;
    // Of those to one network the last counts.
    routes.sort_by_key(|route| std::cmp::Reverse(route.metric));
    let routes = routes.into_iter().filter_map(|route| {
        let to = IpNet::new(route.destination, route.prefix_len).ok()?;
        Some(Route { to, interface: route.interface, source: route.source })
    });
    let localnet = Sysctls::from_kernel().read("net/ipv4/conf/all/route_localnet");
    let localnet = localnet.context("cannot tell whether packets to localhost may come in")?;
    Ok(Host { addresses, routes: routes.collect(), route_localnet: localnet == "1" })
}
