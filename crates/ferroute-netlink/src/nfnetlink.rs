//! The header of all netfilter messages (`include/uapi/linux/netfilter/nfnetlink.h`).

use crate::Error;

/// The length of `struct nfgenmsg`, which follows the netlink header.
pub const HEADER_LENGTH: usize = 4;

/// Begins a transaction, of which the kernel applies all messages or none. The header's resource id is the subsystem.
pub const NFNL_MSG_BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
/// Commits the transaction that [`NFNL_MSG_BATCH_BEGIN`] began. Without it, the kernel drops the transaction without an
/// error.
pub const NFNL_MSG_BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;

/// The generation in [`NFNL_MSG_BATCH_BEGIN`] that the transaction requires.
pub const NFNL_BATCH_GENID: u16 = libc::NFNL_BATCH_GENID as u16;

/// Connection tracking.
pub const NFNL_SUBSYS_CTNETLINK: u8 = libc::NFNL_SUBSYS_CTNETLINK as u8;
/// ipset.
pub const NFNL_SUBSYS_IPSET: u8 = libc::NFNL_SUBSYS_IPSET as u8;
/// nfacct: named packet and byte counters.
pub const NFNL_SUBSYS_ACCT: u8 = libc::NFNL_SUBSYS_ACCT as u8;
/// Modules of iptables in rules of nf_tables.
pub const NFNL_SUBSYS_NFT_COMPAT: u8 = libc::NFNL_SUBSYS_NFT_COMPAT as u8;
/// Packets that rules log for a program.
pub const NFNL_SUBSYS_ULOG: u8 = libc::NFNL_SUBSYS_ULOG as u8;
/// nf_tables.
pub const NFNL_SUBSYS_NFTABLES: u8 = libc::NFNL_SUBSYS_NFTABLES as u8;

/// Returns the message type of a subsystem's command.
pub const fn kind(subsystem: u8, command: u8) -> u16 {
    u16::from_be_bytes([subsystem, command])
}

/// Returns the header: an address family (`AF_*`), a version, which is 0 except for a few commands, and a resource id,
/// whose meaning depends on the message.
pub const fn header(family: u8, version: u8, resource: u16) -> [u8; HEADER_LENGTH] {
    let [high, low] = resource.to_be_bytes();
    [family, version, high, low]
}

/// Reports whether a request failed because the kernel does not have its subsystem. The kernel then replies with
/// `EINVAL` to any request, so the result is conclusive only for valid requests.
pub fn is_subsystem_missing(error: &Error) -> bool {
    error.refusal().is_some_and(|refusal| matches!(refusal.errno, libc::EINVAL | libc::EOPNOTSUPP))
}
