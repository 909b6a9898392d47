//! Netlink sockets, batches, acks and dumps, without knowing what the messages mean.
//!
//! ```text
//!   Request, Batch ──► Socket ──► kernel          bytes written with Writer: attributes, nests
//!   Message, Attribute ◄── Socket ◄── kernel      bytes read without copying
//!   Subscription ◄── kernel                       what others change
//! ```
//!
//! nf_tables, connection tracking, packet accounting, ipsets, IPVS and addresses all speak netlink; what they say lives
//! with those who say it. Here is only what they share: how bytes are framed and how an exchange ends. The formats are
//! the kernel's, described in `include/uapi/linux/netlink.h` and `nfnetlink.h`.
//!
//! A socket belongs to the network namespace of the thread that opened it. All calls return at once: the kernel works
//! on a request within the `send` call, so its answer is there before the first `receive`.
//!
//! This is the one crate with `unsafe` code. The system calls are in `sys.rs`; beside them there are only the
//! registration with an event loop and the settings of the C library's allocator.

#[cfg(feature = "tokio")]
mod async_subscription;
mod error;
mod memory;
pub mod nfnetlink;
mod read;
mod reply;
mod socket;
mod subscription;
mod sys;
mod write;

#[cfg(feature = "tokio")]
pub use async_subscription::AsyncSubscription;
pub use error::{Error, Refusal, Refusals};
pub use memory::keep_little_memory;
pub use read::{Attribute, Attributes, Malformed, Message, Messages};
pub use socket::{Consistency, Socket};
pub use subscription::{Subscription, Wake};
pub use write::{Batch, Oversize, Request, Writer};

use std::fmt;

/// The parts of the kernel that a netlink socket can talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Addresses, links, routes.
    Route,
    /// Everything of netfilter: nf_tables, connection tracking, ipsets, packet accounting.
    Netfilter,
    /// Families that register by name, such as IPVS.
    Generic,
    /// Sockets of any kind and their states (`sock_diag`).
    SocketDiagnosis,
}

impl Protocol {
    fn number(self) -> libc::c_int {
        match self {
            Self::Route => libc::NETLINK_ROUTE,
            Self::Netfilter => libc::NETLINK_NETFILTER,
            Self::Generic => libc::NETLINK_GENERIC,
            Self::SocketDiagnosis => libc::NETLINK_SOCK_DIAG,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Route => "route",
            Self::Netfilter => "netfilter",
            Self::Generic => "generic",
            Self::SocketDiagnosis => "sock_diag",
        })
    }
}

/// Flags of a message (`NLM_F_*`). The socket adds «request», and «ack» or «dump», by itself where that is its business.
pub mod flags {
    /// Answer when done, also when nothing went wrong. In a [`Batch`](crate::Batch) without it the last message gets it.
    pub const ACK: u16 = libc::NLM_F_ACK as u16;
    /// Make the object if there is none.
    pub const CREATE: u16 = libc::NLM_F_CREATE as u16;
    /// Together with [`CREATE`]: fail if there is one already.
    pub const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
    /// Put it behind the others, where there is an order.
    pub const APPEND: u16 = libc::NLM_F_APPEND as u16;
    /// Put the new object in the place of the old one.
    pub const REPLACE: u16 = libc::NLM_F_REPLACE as u16;
}

/// Bits that may be set in the kind of an attribute that is written. Reading takes them off.
pub mod attribute_flags {
    /// The content is attributes again. [`Writer::nest`](crate::Writer::nest) sets it.
    pub const NESTED: u16 = libc::NLA_F_NESTED as u16;
    /// The content is in network byte order; ipsets ask for it.
    pub const NET_BYTE_ORDER: u16 = libc::NLA_F_NET_BYTEORDER as u16;
}
