//! Network namespaces for tests that need a kernel: packets, rules, addresses and sysctls of their own.
//!
//! A [`NetNs`] has no name. It lives as long as its file descriptor (or a process inside), so nothing is left behind
//! when a test fails or is killed, and two tests can never meet in the same one. Only for tests: everything here panics
//! with the reason instead of returning an error.

mod net_ns;

pub use net_ns::NetNs;
