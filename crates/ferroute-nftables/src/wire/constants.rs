//! The kernel's constants, by the kernel's names.

pub(super) use ferroute_netlink::nf_tables::*;
