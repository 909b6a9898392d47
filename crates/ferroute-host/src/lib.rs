//! What a proxy asks of its host: addresses, routes, sysctls, packet counters, the generation of the rules, its name,
//! what the process uses.
//!
//! Each of them stands behind a narrow seam, so that the sync loop can be tested without a kernel: a trait of one or two
//! methods, or a value that is told where its files are. What the answers mean for Services is not known here.
//!
//! Everything belongs to the network namespace of the thread that calls `open`; sysctls to that of the thread that reads
//! or writes them.

mod address_watch;
mod addresses;
mod bus;
pub mod conntrack;
mod counters;
mod firewalld;
mod generation;
mod listeners;
mod node_name;
mod process;
mod routes;
mod sysctl;

pub use address_watch::AddressWatch;
pub use addresses::{AddressError, HostAddresses, KernelAddresses};
pub use counters::{Counter, CounterError, KernelCounters, PacketCounters};
pub use firewalld::{FirewalldError, FirewalldWatch};
pub use generation::{GenerationError, KernelGeneration, RuleGeneration};
pub use listeners::{Listener, ListenerError, Transport, listeners};
pub use node_name::{NodeNameError, node_name};
pub use process::{ProcessError, ProcessUsage};
pub use routes::{HostRoute, RouteError, routes};
pub use sysctl::{Ensured, SysctlError, Sysctls};
