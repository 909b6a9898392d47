//! The proxy's interface to its host: addresses, devices, routes, sysctls, listening sockets, packet counters, connection tracking,
//! the generation of the nf_tables ruleset, the node name, firewalld, child programs, and the resource usage and limits of
//! the process.
//!
//! Each of them can be replaced in tests of the sync loop: by another implementation of a small trait, or by a value
//! with another root directory. This crate does not interpret the values for Services.
//!
//! All values belong to the network namespace of the thread that calls `open`; sysctls belong to that of the thread
//! that reads or writes them.
//!
//! ```
//! use ferroute_host::{HostAddresses, KernelAddresses, Sysctls};
//!
//! let addresses = KernelAddresses::open()?.list()?;
//! let forwarding = Sysctls::from_kernel().read("net/ipv4/ip_forward")?;
//! println!("{addresses:?}, ip_forward = {forwarding}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod addresses;
mod blocking;
mod bridges;
mod bus;
pub mod conntrack;
mod counters;
mod descriptors;
mod devices;
mod firewalld;
mod generation;
mod held_port;
mod ipsec;
mod listeners;
mod local_peer;
mod localhost_routes;
mod moment;
mod node_name;
mod packet_log;
mod process;
pub mod program;
mod routes;
mod rule_notifications;
mod sysctl;
#[cfg(feature = "testing")]
pub mod testing;

pub use addresses::{AddressError, AddressWatch, HostAddresses, KernelAddresses, SERVICE_DEVICE};
pub use blocking::run_blocking;
pub use bridges::{Bridge, BridgePort, bridge_nf_call, bridges};
pub use counters::{Counter, CounterError, KernelCounters, PacketCounters};
pub use descriptors::{DescriptorLimitError, raise_descriptor_limit};
pub use devices::{Device, DeviceError, HostDevices, KernelDevices};
pub use firewalld::watch_firewalld;
pub use generation::{GenerationError, KernelGeneration, RuleGeneration, has_net_admin, read_generation};
pub use held_port::{HeldPort, HoldError};
pub use ipsec::uses_ipsec;
pub use listeners::{Listener, ListenerError, listeners, own_sockets};
pub use local_peer::{
    LocalPeer, LocalPeers, connect_now, is_trusted_user, listen_locally, listen_locally_beside, local_peers,
};
pub use localhost_routes::LocalhostRoutes;
pub use moment::Moment;
pub use node_name::{NodeNameError, node_name};
pub use packet_log::{LoggedPacket, PacketLog, PacketLogError};
pub use process::{ProcessError, ProcessUsage, processor_time};
pub use routes::{
    FoundRoute, HostInterface, HostRoute, InterfaceAddress, KernelRoutes, RouteError, RouteQuery, RouteReply,
};
pub use rule_notifications::RuleNotifications;
pub use sysctl::{Ensured, SysctlError, Sysctls};
