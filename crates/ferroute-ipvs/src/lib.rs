//! Access to the kernel objects of kube-proxy's ipvs mode, besides its iptables rules: virtual servers, the dummy device
//! that has their addresses, and ipsets.
//!
//! Ferroute does not implement the mode yet; this crate serves to remove what kube-proxy left behind:
//!
//! ```text
//!   kube-ipvs0 ──► its addresses ──┐
//!                                  ├──► delete virtual servers ──► delete the device ──► delete the ipsets,
//!   KUBE-* ──► addresses and ports ┘                                                     once no rule refers to them
//! ```
//!
//! The dummy device shows that the mode was active. Without it no virtual server is deleted; with it only those whose
//! addresses the device has and those in the ipsets: node ports, and external addresses that another device of the host
//! has. kube-proxy deletes all virtual servers, but other programs, such as those that move a virtual address between
//! machines, have theirs in the same table.
//!
//! All access is by netlink; no program is run. What is *not* here: the iptables chains of the mode, which
//! `ferroute-iptables` removes.
//!
//! # Examples
//!
//! ```no_run
//! use ferroute_ipvs::{DUMMY_DEVICE, Devices, VirtualServers};
//!
//! // Print the virtual servers of this network namespace and the addresses of the dummy device.
//! if let Some(mut servers) = VirtualServers::open()? {
//!     for server in servers.list()? {
//!         println!("{server}");
//!     }
//! }
//! let mut devices = Devices::open()?;
//! if let Some(device) = devices.find(DUMMY_DEVICE)? {
//!     println!("{:?}", devices.addresses(&device)?);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod device;
mod servers;
mod sets;

pub use device::{Device, DeviceError, Devices};
pub use servers::{ServerError, VirtualServer, VirtualServers};
pub use sets::{IpSets, SetError, kube_proxy_set_names};

/// The dummy device that has the addresses of all Services in ipvs mode.
pub const DUMMY_DEVICE: &str = "kube-ipvs0";
/// The kind of [`DUMMY_DEVICE`]; a device of another kind with this name is not kube-proxy's.
pub const DUMMY_KIND: &str = "dummy";
