//! Leftovers of kube-proxy's ipvs mode, which this program does not implement: virtual servers, their device and ipsets.
//! Its iptables rules are leftovers of iptables mode.

use std::{net::IpAddr, thread, time::Duration};

use ferroute_config::ModeName;
use ferroute_host::{HostAddresses, KernelAddresses};
use ferroute_ipvs::{DUMMY_DEVICE, DUMMY_KIND, Devices, IpSets, SetError, VirtualServers, kube_proxy_set_names};
use ferroute_iptables::exec::ChainMode;

use super::{Leaves, Removal, iptables::chain_modes};
use crate::cleanup::{Leftovers, Report};

/// ipvs mode.
pub(super) struct Ipvs;

impl Leaves for Ipvs {
    fn name(&self) -> ModeName {
        ModeName::IPVS
    }

    fn leftovers(&self, removal: Removal) -> Vec<Box<dyn Leftovers>> {
        vec![Box::new(VirtualServersAndSets { drain: removal == Removal::TakenOver })]
    }

    fn is_present(&self) -> bool {
        let device = Devices::open().and_then(|mut devices| devices.find(DUMMY_DEVICE));
        let has_device = matches!(device, Ok(Some(device)) if device.kind.as_deref() == Some(DUMMY_KIND));
        has_device || chain_modes().contains(&ChainMode::Ipvs)
    }
}

/// Everything of ipvs mode but its iptables rules, which must have been removed before. With `drain`, what open
/// connections need stays.
struct VirtualServersAndSets {
    drain: bool,
}

impl Leftovers for VirtualServersAndSets {
    fn remove(&mut self, report: &mut Report) {
        remove(self.drain, report);
    }
}

/// Removes kube-proxy's virtual servers, its device and its ipsets. With `drain`, servers stay for the connections that
/// they have, and with them what tells them from those of others: the device and the ipsets. Without their server the kernel
/// would drop the packets of connections, also of those that are just being made.
fn remove(drain: bool, report: &mut Report) {
    let mut sets = match IpSets::open() {
        Ok(sets) => sets,
        Err(error) => return report.failed(&error),
    };
    let all_gone = match remove_mode(&mut sets, drain, report) {
        Ok(all_gone) => all_gone,
        Err(error) => {
            report.failed(error.as_ref());
            false
        }
    };
    if all_gone {
        kube_proxy_set_names().for_each(|name| remove_set(&mut sets, &name, report));
    }
}

/// Removes virtual servers and then the device; false if a virtual server stays.
fn remove_mode(sets: &mut IpSets, drain: bool, report: &mut Report) -> anyhow::Result<bool> {
    let mut devices = Devices::open()?;
    let device = match devices.find(DUMMY_DEVICE)? {
        Some(device) if device.kind.as_deref() == Some(DUMMY_KIND) => device,
        Some(device) => {
            let kind = device.kind.as_deref().unwrap_or("hardware");
            tracing::warn!("device {DUMMY_DEVICE} is no {DUMMY_KIND} device but {kind}, so it is somebody else's");
            return Ok(true);
        }
        None => return Ok(true),
    };
    let addresses = devices.addresses(&device)?;
    if !remove_servers(&addresses, sets, drain, report)? {
        return Ok(false);
    }
    match devices.delete(&device) {
        Ok(()) => report.removed(format!("device {DUMMY_DEVICE} with {} addresses", addresses.len())),
        Err(error) => report.failed(&error),
    }
    Ok(true)
}

/// False if some may be left.
fn remove_servers(
    device_addresses: &[IpAddr],
    sets: &mut IpSets,
    drain: bool,
    report: &mut Report,
) -> anyhow::Result<bool> {
    let Some(mut servers) = VirtualServers::open()? else { return Ok(true) };
    let host_addresses = KernelAddresses::open()?.list()?;
    let mut all_gone = true;
    for server in servers.list()? {
        let address = server.address.ip();
        // A node port has a server at each address of the node; at other addresses the same port is not kube-proxy's.
        let is_ours = device_addresses.contains(&address)
            || sets.has_service(server)?
            || host_addresses.contains(&address) && sets.has_node_port(server)?;
        if !is_ours {
            tracing::info!("virtual server {server} is not kube-proxy's and stays");
            continue;
        }
        let in_use = if drain { servers.connections(server) } else { Ok(0) };
        match in_use.and_then(|count| if count > 0 { Ok(Some(count)) } else { servers.delete(server).map(|()| None) }) {
            Ok(Some(count)) => {
                all_gone = false;
                report.remains(format!("virtual server {server} stays for the {count} connections that it has"));
            }
            Ok(None) => report.removed(format!("virtual server {server}")),
            Err(error) => {
                all_gone = false;
                report.failed(&error);
            }
        }
    }
    Ok(all_gone)
}

/// The kernel lets go of a set a moment after the last rule that looked into it is gone.
fn remove_set(sets: &mut IpSets, name: &str, report: &mut Report) {
    let mut tries = 1;
    loop {
        match sets.destroy(name) {
            Ok(true) => return report.removed(format!("ipset {name}")),
            Ok(false) => return,
            Err(SetError::InUse { .. }) if tries < TRIES => {
                tries += 1;
                thread::sleep(PAUSE);
            }
            Err(error) => return report.failed(&error),
        }
    }
}

const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
