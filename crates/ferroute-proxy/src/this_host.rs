//! The description of this host that rules are planned from: for the daemon and for the commands that compare with it.

use std::net::{IpAddr, UdpSocket};

use anyhow::Context;
use ferroute_config::{Resolved, canonical_node_name};
use ferroute_core::{IpFamily, NodeView};
use ferroute_host::{HostAddresses, KernelAddresses};

/// This host: the name of its node and the addresses of its interfaces.
#[derive(Clone, Debug)]
pub struct ThisHost {
    /// The node until its Node is received, and on hosts without a Node: its name and the host's addresses. The first
    /// address of each family is the one for outgoing packets, not that of a bridge.
    pub node: NodeView,
    /// Addresses of all interfaces, sorted.
    pub addresses: Vec<IpAddr>,
}

impl ThisHost {
    /// Reads the host's addresses.
    ///
    /// # Errors
    /// If they cannot be read, or the host has no usable name.
    pub fn read(resolved: &Resolved) -> anyhow::Result<Self> {
        let is_usable = |address: &IpAddr| match address {
            IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        };
        let addresses = KernelAddresses::open()?.list()?;
        let mut usable: Vec<IpAddr> = addresses.iter().copied().filter(is_usable).collect();
        let outgoing = [source_address("192.0.2.1:9"), source_address("[2001:db8::1]:9")];
        usable.sort_by_key(|address| !outgoing.contains(&Some(*address)));
        let node = NodeView { name: node_name(resolved)?, addresses: usable, ..NodeView::default() };
        Ok(Self { node: resolved.effective_node(node), addresses })
    }

    /// Reports whether a node is this host: an interface has one of the node's primary addresses.
    pub fn is_node(&self, node: &NodeView) -> bool {
        let primary = IpFamily::BOTH.into_iter().filter_map(|family| node.primary_address(family));
        primary.into_iter().any(|address| self.addresses.contains(&address))
    }
}

/// Returns the name of this node: the configured one, or the host name.
///
/// # Errors
/// If no name is configured and the host name is not valid.
pub fn node_name(resolved: &Resolved) -> anyhow::Result<String> {
    match &resolved.node_name {
        Some(name) => Ok(name.clone()),
        None => {
            let host = ferroute_host::node_name("")?;
            canonical_node_name(&host).context("the host has no name; set one with --hostname-override")
        }
    }
}

/// Returns the source address of packets to `destination`, an address reserved for documentation. Connecting a UDP
/// socket only looks up a route and sends no packets.
fn source_address(destination: &str) -> Option<IpAddr> {
    let any = if destination.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(destination).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
