//! What kube-proxy's ipvs mode leaves in the kernel besides iptables rules: virtual servers, the device that holds their
//! addresses, and ipsets.
//!
//! ```text
//!   kube-ipvs0 ──► its addresses ──┐
//!                                  ├──► virtual servers at them go ──► the device goes ──► the ipsets go,
//!   KUBE-* ──► addresses and ports ┘                                                      once no rule looks into them
//! ```
//!
//! The device is the sign that the mode was here: without it no virtual server is touched, and with it only those at its
//! addresses and those that the ipsets name: node ports, and external addresses that another device of the host has.
//! kube-proxy takes all virtual servers for its own; but other programs, such as those that move a virtual address between
//! machines, have theirs in the same table.
//!
//! Everything is asked of the kernel by netlink, no program is run. What is *not* here: iptables chains of the mode, which
//! `ferroute-iptables` removes, and the mode itself.

mod device;
mod servers;
mod sets;

pub use device::{Device, DeviceError, Devices};
pub use servers::{ServerError, VirtualServer, VirtualServers};
pub use sets::{IpSets, SetError, kube_proxy_sets};

/// The dummy device that holds the addresses of all Services in ipvs mode.
pub const DEVICE: &str = "kube-ipvs0";
/// The kind of device that it is; another one of this name is not kube-proxy's.
pub const DEVICE_KIND: &str = "dummy";
