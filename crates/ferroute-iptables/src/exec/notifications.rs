//! Notifications of the kernel about chains that other programs changed.

use std::collections::BTreeSet;

use ferroute_core::IpFamily;
use ferroute_netlink::{Drained, Error, Malformed, Message, Protocol, Subscription, nf_tables::*, nfnetlink};

use crate::{ChainName, TableName, native::nfproto};

/// Which chains of nf_tables were changed.
///
/// The kernel shows this only to who listens at that moment, and drops notifications beyond a buffer. They therefore say
/// which chains to compare first, and never that the others are unchanged.
#[derive(Debug)]
pub(super) struct ChainNotifications {
    subscription: Subscription,
    /// The chains that have not been asked for.
    changed: BTreeSet<(IpFamily, TableName, ChainName)>,
}

impl ChainNotifications {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub(super) fn open() -> Result<Self, Error> {
        let mut subscription = Subscription::open(Protocol::Netfilter, &[GROUP])?;
        subscription.set_receive_buffer(BUFFER)?;
        Ok(Self { subscription, changed: BTreeSet::new() })
    }

    /// Runs `write` without notifications of what it changes: there may be millions, which cost time and memory.
    pub(super) fn without<T>(&self, write: impl FnOnce() -> T) -> T {
        let log = |result: std::io::Result<()>| {
            if let Err(error) = result {
                tracing::debug!(%error, "cannot change the subscription to changes of rules");
            }
        };
        log(self.subscription.leave(GROUP));
        let written = write();
        log(self.subscription.join(GROUP));
        written
    }

    /// Returns the chains of an IP family that were changed since the last call; none if there were more than
    /// [`MAX_CHAINS`].
    pub(super) fn take(&mut self, family: IpFamily) -> Vec<(TableName, ChainName)> {
        let Self { subscription, changed } = self;
        let drained = subscription.receive(MAX_DATAGRAMS, |message| {
            // What cannot be read is not ours.
            if let Ok(Some(chain)) = changed_chain(message) {
                changed.insert(chain);
            }
        });
        if !matches!(drained, Ok(Drained::Nothing | Drained::Messages)) || changed.len() > MAX_CHAINS {
            tracing::debug!(?drained, chains = changed.len(), "too many changes of rules by other programs");
            changed.clear();
        }
        let of_family: BTreeSet<_>;
        (of_family, *changed) = std::mem::take(changed).into_iter().partition(|(of, ..)| *of == family);
        of_family.into_iter().map(|(_, table, chain)| (table, chain)).collect()
    }
}

/// Returns the chain that was changed, or a rule of which; `None` for other notifications and chains that `iptables`
/// cannot name.
fn changed_chain(message: Message<'_>) -> Result<Option<(IpFamily, TableName, ChainName)>, Malformed> {
    const fn kind(command: u8) -> u16 {
        nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, command)
    }
    const NEW_CHAIN: u16 = kind(NFT_MSG_NEWCHAIN);
    const DELETED_CHAIN: u16 = kind(NFT_MSG_DELCHAIN);
    const NEW_RULE: u16 = kind(NFT_MSG_NEWRULE);
    const DELETED_RULE: u16 = kind(NFT_MSG_DELRULE);
    let (table_attribute, chain_attribute) = match message.kind {
        NEW_CHAIN | DELETED_CHAIN => (NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME),
        NEW_RULE | DELETED_RULE => (NFTA_RULE_TABLE, NFTA_RULE_CHAIN),
        _ => return Ok(None),
    };
    let (header, _) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let Some(family) = IpFamily::BOTH.into_iter().find(|family| nfproto(*family) == header[0]) else { return Ok(None) };
    let attribute = |kind| message.attribute::<{ nfnetlink::HEADER_LENGTH }>(kind);
    let table = attribute(table_attribute)?.text().and_then(TableName::from_word);
    let chain = attribute(chain_attribute)?.text().and_then(|name| ChainName::new(name).ok());
    Ok(table.zip(chain).map(|(table, chain)| (family, table, chain)))
}

// include/uapi/linux/netfilter/nfnetlink.h
const GROUP: u32 = libc::NFNLGRP_NFTABLES as u32;
/// Bytes of notifications beyond which they are lost.
const BUFFER: usize = 1 << 20;
/// Number of changed chains beyond which all chains are compared.
const MAX_CHAINS: usize = 1000;
/// Number of datagrams that one call reads: a program that changes rules all the time must not occupy it.
const MAX_DATAGRAMS: usize = 1000;
