//! What kube-proxy's ipvs mode leaves besides iptables rules.

use std::{net::IpAddr, thread, time::Duration};

use ferroute_ipvs::{DEVICE, DEVICE_KIND, Device, Devices, IpSets, SetError, VirtualServers, kube_proxy_sets};

use super::Report;

/// Removes virtual servers at addresses of kube-proxy's device, the device, and kube-proxy's ipsets. With `drain`, servers
/// through which connections are open stay, and the device with them, until these have ended.
pub(super) fn remove(drain: bool, report: &mut Report) {
    match Devices::open() {
        Ok(mut devices) => match devices.find(DEVICE) {
            Ok(Some(device)) if device.kind.as_deref() == Some(DEVICE_KIND) => {
                remove_device(&mut devices, &device, drain, report);
            }
            Ok(Some(device)) => {
                let kind = device.kind.as_deref().unwrap_or("hardware");
                tracing::warn!("device {DEVICE} is no {DEVICE_KIND} device but {kind}, so it is somebody else's");
            }
            Ok(None) => {}
            Err(error) => report.trouble(&error),
        },
        Err(error) => report.trouble(&error),
    }
    match IpSets::open() {
        Ok(mut sets) => kube_proxy_sets().for_each(|name| remove_set(&mut sets, &name, report)),
        Err(error) => report.trouble(&error),
    }
}

fn remove_device(devices: &mut Devices, device: &Device, drain: bool, report: &mut Report) {
    let addresses = match devices.addresses(device) {
        Ok(addresses) => addresses,
        // It is what tells kube-proxy's virtual servers from those of others, so it stays for the next try.
        Err(error) => return report.trouble(&error),
    };
    if !remove_servers(&addresses, drain, report) {
        return;
    }
    match devices.remove(device) {
        Ok(()) => report.removed(format!("device {DEVICE} with {} addresses", addresses.len())),
        Err(error) => report.trouble(&error),
    }
}

/// False if some may be left.
fn remove_servers(addresses: &[IpAddr], drain: bool, report: &mut Report) -> bool {
    let listed = VirtualServers::open().and_then(|servers| {
        let Some(mut servers) = servers else { return Ok(None) };
        let list = servers.list()?;
        Ok(Some((servers, list)))
    });
    let (mut servers, list) = match listed {
        Ok(Some(found)) => found,
        Ok(None) => return true,
        Err(error) => {
            report.trouble(&error);
            return false;
        }
    };
    let (ours, others): (Vec<_>, Vec<_>) =
        list.into_iter().partition(|server| addresses.contains(&server.address.ip()));
    let mut all_gone = true;
    for server in ours {
        let open = if drain { servers.open_connections(server) } else { Ok(0) };
        match open.and_then(|open| if open > 0 { Ok(Some(open)) } else { servers.remove(server).map(|()| None) }) {
            Ok(Some(open)) => {
                all_gone = false;
                report.troubles.push(format!("virtual server {server} stays while {open} connections are open"));
            }
            Ok(None) => report.removed(format!("virtual server {server}")),
            Err(error) => {
                all_gone = false;
                report.trouble(&error);
            }
        }
    }
    for server in others {
        tracing::warn!(
            "virtual server {server} is not at an address of {DEVICE} and stays; if it is one of a node port, remove it with ipvsadm"
        );
    }
    all_gone
}

/// The kernel lets go of a set a moment after the last rule that looked into it is gone.
fn remove_set(sets: &mut IpSets, name: &str, report: &mut Report) {
    let mut tries = 1;
    loop {
        match sets.remove(name) {
            Ok(true) => return report.removed(format!("ipset {name}")),
            Ok(false) => return,
            Err(SetError::InUse { .. }) if tries < TRIES => {
                tries += 1;
                thread::sleep(PAUSE);
            }
            Err(error) => return report.trouble(&error),
        }
    }
}

const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
