//! Netlink sockets, batches, acks and dumps, independent of the meaning of messages.
//!
//! ```text
//!   Request, Batch ──► Socket ──► kernel          bytes written with Writer: attributes, nests
//!   Message, Attribute ◄── Socket ◄── kernel      bytes read without copying
//!   Subscription ◄── kernel                       notifications of changes
//! ```
//!
//! nf_tables, connection tracking, nfacct, ipset, IPVS and addresses all use netlink. The crates that use them encode
//! and decode the attributes; this crate does the framing and the request-reply exchange. The formats are the kernel's,
//! described in `include/uapi/linux/netlink.h`, `nfnetlink.h` and `Documentation/userspace-api/netlink/`.
//!
//! A socket belongs to the network namespace of the thread that opened it. No call blocks: the kernel processes a
//! request within the `send` call, so its reply is available to the first `receive`.
//!
//! This is the only crate with `unsafe` code: the system calls in `sys.rs`, the registration with an event loop, and
//! the settings of the C library's allocator. The filter of system calls is here for that reason.
//!
//! # Example
//!
//! Listing the addresses of all interfaces:
//!
//! ```
//! use ferroute_netlink::{Error, Protocol, Request, Socket};
//!
//! let mut socket = Socket::open(Protocol::Route)?;
//! // `struct ifaddrmsg` of zeros: all families and interfaces.
//! let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; 8]);
//! let addresses = socket.collect::<_, Error>(&mut request, |message| {
//!     let (_, attributes) = message.split_header::<8>()?;
//!     for attribute in attributes {
//!         let attribute = attribute?;
//!         if attribute.kind == libc::IFA_ADDRESS {
//!             return Ok(Some(attribute.ip()?));
//!         }
//!     }
//!     Ok(None)
//! })?;
//! println!("{addresses:?}");
//! # Ok::<(), Error>(())
//! ```

#[cfg(feature = "tokio")]
mod async_subscription;
mod confinement;
mod error;
pub mod ipset;
mod memory;
pub mod nf_tables;
pub mod nfnetlink;
mod read;
mod reply;
mod socket;
mod subscription;
mod sys;
#[cfg(feature = "testing")]
pub mod testing;
mod write;
mod x_tables;

#[cfg(feature = "tokio")]
pub use async_subscription::AsyncSubscription;
pub use confinement::confine_to_relaying;
pub use error::{Error, Refusal, Refusals};
pub use memory::tune_allocator;
pub use read::{Attribute, Attributes, Malformed, Message, Messages};
pub use socket::{Consistency, Socket};
pub use subscription::{Drained, Subscription};
pub use write::{Batch, Oversize, Request, Writer};
pub use x_tables::TableShape;

use std::fmt;

/// A netlink protocol (`NETLINK_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// rtnetlink: addresses, links, routes.
    Route,
    /// Netfilter: nf_tables, connection tracking, ipset, nfacct.
    Netfilter,
    /// Generic netlink: families that register by name, such as IPVS.
    Generic,
    /// `sock_diag`: sockets of all kinds and their states.
    SocketDiagnosis,
    /// XFRM: policies and keys of IPsec.
    Ipsec,
}

impl Protocol {
    fn number(self) -> libc::c_int {
        match self {
            Self::Route => libc::NETLINK_ROUTE,
            Self::Netfilter => libc::NETLINK_NETFILTER,
            Self::Generic => libc::NETLINK_GENERIC,
            Self::SocketDiagnosis => libc::NETLINK_SOCK_DIAG,
            Self::Ipsec => libc::NETLINK_XFRM,
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
            Self::Ipsec => "xfrm",
        })
    }
}

/// Message flags (`NLM_F_*`). The socket adds `NLM_F_REQUEST`, and `NLM_F_ACK` or `NLM_F_DUMP` where needed.
pub mod flags {
    /// Reply when done, also without an error. In a [`Batch`](crate::Batch) without this flag the last message gets it.
    pub const NLM_F_ACK: u16 = libc::NLM_F_ACK as u16;
    /// Create the object if it does not exist.
    pub const NLM_F_CREATE: u16 = libc::NLM_F_CREATE as u16;
    /// With [`NLM_F_CREATE`]: fail if the object exists.
    pub const NLM_F_EXCL: u16 = libc::NLM_F_EXCL as u16;
    /// Append to a list.
    pub const NLM_F_APPEND: u16 = libc::NLM_F_APPEND as u16;
    /// Replace the existing object.
    pub const NLM_F_REPLACE: u16 = libc::NLM_F_REPLACE as u16;
}

/// Flags in the type of an attribute that is written (`NLA_F_*`). They are removed when reading.
pub mod attribute_flags {
    /// The payload consists of attributes. [`Writer::nest`](crate::Writer::nest) sets it.
    pub const NLA_F_NESTED: u16 = libc::NLA_F_NESTED as u16;
    /// The payload is in network byte order, as ipset requires.
    pub const NLA_F_NET_BYTEORDER: u16 = libc::NLA_F_NET_BYTEORDER as u16;
}
