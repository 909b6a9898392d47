//! What all parts of netfilter have in front of their attributes (`include/uapi/linux/netfilter/nfnetlink.h`).

use crate::Error;

/// Bytes of the header that stands between a netfilter message's netlink header and its attributes.
pub const HEADER_LENGTH: usize = 4;

/// Opens a transaction of several messages; the kernel applies all of them or none. The header's resource is the
/// subsystem.
pub const BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
/// Commits what was opened by [`BATCH_BEGIN`]. Without it the kernel forgets the batch, and says nothing of it.
pub const BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;

/// Subsystem of connection tracking.
pub const CONNTRACK: u8 = libc::NFNL_SUBSYS_CTNETLINK as u8;
/// Subsystem of ipsets.
pub const IPSET: u8 = libc::NFNL_SUBSYS_IPSET as u8;
/// Subsystem of named packet and byte counters.
pub const ACCOUNTING: u8 = libc::NFNL_SUBSYS_ACCT as u8;
/// Subsystem of nf_tables.
pub const NFTABLES: u8 = libc::NFNL_SUBSYS_NFTABLES as u8;

/// The kind of message that carries `command` to a subsystem.
pub const fn kind(subsystem: u8, command: u8) -> u16 {
    u16::from_be_bytes([subsystem, command])
}

/// The header: an address family (`AF_*`), the version, which is 0 but for a few commands, and a resource id whose
/// meaning depends on the message.
pub const fn header(family: u8, version: u8, resource: u16) -> [u8; HEADER_LENGTH] {
    let [high, low] = resource.to_be_bytes();
    [family, version, high, low]
}

/// Whether a request failed because the kernel has not the subsystem that it went to: then it answers `EINVAL`, whatever
/// the request. Only of use for a request that cannot be wrong in itself.
pub fn is_subsystem_missing(error: &Error) -> bool {
    error.refusal().is_some_and(|refusal| matches!(refusal.errno, libc::EINVAL | libc::EOPNOTSUPP))
}
