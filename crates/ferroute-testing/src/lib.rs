//! Network namespaces and processes for tests that exercise the kernel: packets, rules, addresses and sysctls.
//!
//! A [`NetNs`] has no name. It exists as long as its file descriptor or a process in it, so that a failed or killed test
//! leaves nothing behind, and concurrent tests never share a namespace. This crate is for tests only: its functions panic
//! instead of returning errors.
//!
//! # Examples
//!
//! ```
//! use ferroute_testing::NetNs;
//!
//! let (node, client) = (NetNs::new(), NetNs::new());
//! node.link("client", &client, "eth0");
//! node.add_address("192.0.2.1/24", "client");
//! client.add_address("192.0.2.2/24", "eth0");
//! let listener = node.run(|| std::net::TcpListener::bind("192.0.2.1:80"))?;
//! client.run(|| std::net::TcpStream::connect("192.0.2.1:80"))?;
//! assert_eq!(listener.accept()?.1.ip().to_string(), "192.0.2.2");
//! # Ok::<(), std::io::Error>(())
//! ```

mod memory;
mod net_ns;
mod process;
mod restart;

pub use memory::{MemoryPeak, anonymous_memory};
pub use net_ns::NetNs;
pub use process::{Running, wait};
pub use restart::restart;
