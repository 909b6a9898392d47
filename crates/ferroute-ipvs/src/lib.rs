//! kube-proxy's ipvs mode: planning of virtual servers, ipsets, addresses and rules, and their programming into the
//! kernel.
//!
//! ```text
//!   ServiceTable ──► IpvsPlan ──► Difference ──► Operation ──► Kernel: netlink or memory
//!   Changes ───────► Delta ──►    ▲                           │
//!                                 └────── KernelState ◄───────┘
//! ```
//!
//! [`plan`] is pure. The dataplane compares plans with each other after a change, and with the kernel's objects after a
//! start, a failure or a modification by another program.
//!
//! The dummy device shows that the mode is, or was, active. Virtual servers are deleted only if the device has their
//! address, or if they are in the ipsets: node ports, and external addresses that another device of the host has. An
//! additional set of Ferroute has the addresses of node ports, which may leave the host while their virtual servers
//! exist. kube-proxy deletes all virtual servers, but other programs, such as those that move a virtual address between
//! machines, have virtual servers in the same table.
//!
//! Virtual servers, sets and addresses are accessed by netlink. The iptables rules are written by `ferroute-iptables`.
//!
//! # Examples
//!
//! ```no_run
//! use ferroute_ipvs::{DUMMY_DEVICE, Devices, VirtualServers};
//!
//! // Print the virtual servers of this network namespace and the addresses of the dummy device.
//! if let Some(mut servers) = VirtualServers::open()? {
//!     for (server, _) in servers.list()? {
//!         println!("{server}");
//!     }
//! }
//! let mut devices = Devices::open()?;
//! if let Some(device) = devices.find(DUMMY_DEVICE)? {
//!     println!("{:?}", devices.addresses(&device)?);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dataplane;
mod departed;
mod device;
mod difference;
pub mod kernel;
mod objects;
pub mod plan;
mod servers;
mod sets;
mod termination;
#[cfg(feature = "testing")]
pub mod testing;

pub use dataplane::IpvsDataplane;
pub use device::{ALIAS_SEPARATOR, Device, DeviceError, Devices};
pub use objects::IpvsObjects;
pub use servers::{ServerError, Timeouts, VirtualServers};
pub use sets::{IpSets, SetError, kube_proxy_set_names};

/// The dummy device that has the addresses of all Services in ipvs mode.
pub const DUMMY_DEVICE: &str = "kube-ipvs0";
/// The kind of [`DUMMY_DEVICE`]; a device of another kind with this name is not kube-proxy's.
pub const DUMMY_KIND: &str = "dummy";
