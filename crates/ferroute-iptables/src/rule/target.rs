use std::net::IpAddr;

use crate::{ChainName, extension::RejectWith};

/// Target of a rule: the action for a matching packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Traverses another chain, and returns if it has no verdict (`-j CHAIN`).
    Jump(ChainName),
    /// Traverses another chain and then continues in the caller of this chain (`-g CHAIN`).
    Goto(ChainName),
    /// `ACCEPT`.
    Accept,
    /// `DROP`.
    Drop,
    /// Returns to the calling chain; in a builtin chain, applies its policy.
    Return,
    /// Drops the packet and sends an error to its sender.
    Reject(RejectWith),
    /// Sets the packet's mark to `(mark & !mask) ^ value` and continues with the next rule (`--set-xmark`).
    Mark {
        /// Bits to flip after clearing.
        value: u32,
        /// Bits to clear first.
        mask: u32,
    },
    /// Translates the connection's source to the address of the outgoing interface.
    Masquerade {
        /// Chooses source ports at random, which avoids a race between connections.
        random_fully: bool,
    },
    /// Translates the connection's source. Not written by kube-proxy.
    Snat {
        /// The address.
        address: IpAddr,
        /// Chooses source ports at random.
        random_fully: bool,
    },
    /// Translates the connection's destination.
    Dnat {
        /// The new address.
        address: IpAddr,
        /// The new port; `None` keeps it.
        port: Option<u16>,
    },
    /// An unsupported target, verbatim without `-j`: `LOG --log-prefix "a b"`. Empty if the text of the rule cannot be
    /// parsed, so that it may have any target.
    Other(Box<str>),
}

impl Target {
    /// Sets the bits of `mark` (`--or-mark`).
    pub fn or_mark(mark: u32) -> Self {
        Self::Mark { value: mark, mask: mark }
    }

    /// Flips the bits of `mark` (`--xor-mark`).
    pub fn xor_mark(mark: u32) -> Self {
        Self::Mark { value: mark, mask: 0 }
    }

    /// Keeps only the bits of `mark` (`--and-mark`).
    pub fn and_mark(mark: u32) -> Self {
        Self::Mark { value: 0, mask: !mark }
    }
}
