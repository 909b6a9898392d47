//! Objects that ipvs mode, of kube-proxy or Ferroute, leaves behind: virtual servers, their dummy device and ipsets.
//! Its iptables rules are removed as leftovers of iptables mode.

use std::{net::IpAddr, thread, time::Duration};

use ferroute_core::{IpFamily, Protocol};
use ferroute_host::{HostAddresses, KernelAddresses, Sysctls};
use ferroute_ipvs::{
    DUMMY_DEVICE, DUMMY_KIND, Device, Devices, IpSets, SetError, VirtualServers, kube_proxy_set_names, plan::SetKind,
};

use super::strict_arp;
use crate::cleanup::{Leftovers, RemovalReport};

/// All leftovers of ipvs mode except its iptables rules, which must be removed first. With `drain`, objects that open
/// connections need are kept.
#[derive(Debug)]
pub(super) struct VirtualServersAndSets {
    pub(super) drain: bool,
}

impl Leftovers for VirtualServersAndSets {
    fn remove(&mut self, report: &mut RemovalReport) {
        remove(self.drain, report);
    }
}

/// The virtual servers of IP families that ipvs mode no longer serves. The addresses on the device stay, so that connections to them
/// are refused.
#[derive(Debug)]
pub(super) struct ServersOf(pub(super) Vec<IpFamily>);

impl Leftovers for ServersOf {
    fn remove(&mut self, report: &mut RemovalReport) {
        if let Err(error) = remove_servers_of(&self.0, report) {
            report.failed(error.as_ref());
        }
    }
}

fn remove_servers_of(families: &[IpFamily], report: &mut RemovalReport) -> anyhow::Result<()> {
    if families.is_empty() {
        return Ok(());
    }
    let mut devices = Devices::open()?;
    let (_, addresses) = device_and_addresses(&mut devices)?;
    remove_servers(families, &addresses, &mut IpSets::open()?, false, report).map(drop)
}

/// Removes kube-proxy's virtual servers, its device and its ipsets.
///
/// With `drain`, virtual servers that have connections are kept, because the kernel would drop the packets of these
/// connections. The device and the ipsets are then kept as well: they identify kube-proxy's servers at the next attempt.
fn remove(drain: bool, report: &mut RemovalReport) {
    let mut sets = match IpSets::open() {
        Ok(sets) => sets,
        Err(error) => return report.failed(&error),
    };
    let all_removed = match remove_servers_and_device(&mut sets, drain, report) {
        Ok(all_removed) => all_removed,
        Err(error) => {
            report.failed(error.as_ref());
            false
        }
    };
    if all_removed {
        kube_proxy_set_names().for_each(|name| remove_set(&mut sets, name, report));
    }
}

/// Removes virtual servers, then the device. Returns false if a virtual server remains.
fn remove_servers_and_device(sets: &mut IpSets, drain: bool, report: &mut RemovalReport) -> anyhow::Result<bool> {
    let mut devices = Devices::open()?;
    let (device, addresses) = device_and_addresses(&mut devices)?;
    if !remove_servers(&IpFamily::BOTH, &addresses, sets, drain, report)? {
        return Ok(false);
    }
    let Some(device) = device else { return Ok(true) };
    // The device keeps the previous values, and strict ARP concerns its addresses.
    match strict_arp::restore(&Sysctls::from_kernel()) {
        Ok(restored) => restored.iter().for_each(|sysctl| report.removed(format!("strict ARP: {sysctl}"))),
        Err(error) => report.failed(&error),
    }
    match devices.delete(&device) {
        Ok(()) => report.removed(format!("device {DUMMY_DEVICE} with {} addresses", addresses.len())),
        Err(error) => report.failed(&error),
    }
    Ok(true)
}

/// Returns kube-proxy's device with its addresses. If another program has deleted it, sets still name the virtual servers.
fn device_and_addresses(devices: &mut Devices) -> anyhow::Result<(Option<Device>, Vec<IpAddr>)> {
    let Some(device) = devices.find(DUMMY_DEVICE)? else { return Ok((None, Vec::new())) };
    if device.kind.as_deref() != Some(DUMMY_KIND) {
        let kind = device.kind.as_deref().unwrap_or("hardware");
        tracing::warn!("keeping device {DUMMY_DEVICE}, which is not kube-proxy's (got kind {kind}, want {DUMMY_KIND})");
        return Ok((None, Vec::new()));
    }
    let addresses = devices.addresses(&device)?;
    Ok((Some(device), addresses))
}

/// Removes virtual servers of some IP families. Returns false if some may remain.
fn remove_servers(
    families: &[IpFamily],
    device_addresses: &[IpAddr],
    sets: &mut IpSets,
    drain: bool,
    report: &mut RemovalReport,
) -> anyhow::Result<bool> {
    // Opening the virtual servers may load the kernel's module.
    let has_sets =
        families.iter().try_fold(false, |found, family| Ok::<_, SetError>(found || sets.are_used(*family)?))?;
    if device_addresses.is_empty() && !has_sets {
        return Ok(true);
    }
    let Some(mut servers) = VirtualServers::open()? else { return Ok(true) };
    let host_addresses = KernelAddresses::open()?.list()?;
    let mut is_recorded = [false; IpFamily::BOTH.len()];
    for family in IpFamily::BOTH {
        is_recorded[family.index()] = !sets.entries(SetKind::NodePortIps, family)?.is_empty();
    }
    let mut all_removed = true;
    for (server, _) in servers.list()? {
        let address = server.address;
        if !families.contains(&IpFamily::of(address)) {
            continue;
        }
        // A node port has a server at each address that the node had, which only Ferroute records. The same port at other
        // addresses is not kube-proxy's.
        let had_node_ports = match is_recorded[IpFamily::of(address).index()] {
            true => sets.has_node_port_address(server)?,
            false => host_addresses.contains(&address),
        };
        let is_kube_proxys = device_addresses.contains(&address)
            || sets.has_service(server)?
            || had_node_ports && sets.has_node_port(server)?;
        if !is_kube_proxys {
            tracing::debug!("keeping virtual server {server}, which is not kube-proxy's");
            continue;
        }
        let in_use = if drain { servers.connections(server) } else { Ok(0) };
        match in_use.and_then(|count| if count > 0 { Ok(Some(count)) } else { servers.delete(server).map(|()| None) }) {
            Ok(Some(count)) => {
                all_removed = false;
                report.remains(format!("virtual server {server} has {count} connections"));
            }
            Ok(None) => {
                report.udp_frontends.extend(Some(server.frontend()).filter(|server| server.protocol == Protocol::Udp));
                report.removed(format!("virtual server {server}"));
            }
            Err(error) => {
                all_removed = false;
                report.failed(&error);
            }
        }
    }
    Ok(all_removed)
}

/// Removes an ipset, with retries: the kernel releases it some time after the last rule that refers to it was removed.
fn remove_set(sets: &mut IpSets, name: &str, report: &mut RemovalReport) {
    let mut attempt = 1;
    loop {
        match sets.destroy(name) {
            Ok(true) => return report.removed(format!("ipset {name}")),
            Ok(false) => return,
            Err(SetError::InUse { .. }) if attempt < ATTEMPTS => {
                attempt += 1;
                thread::sleep(RETRY_DELAY);
            }
            Err(error) => return report.failed(&error),
        }
    }
}

const ATTEMPTS: u32 = 20;
const RETRY_DELAY: Duration = Duration::from_millis(50);
