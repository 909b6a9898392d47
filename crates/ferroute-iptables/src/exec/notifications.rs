//! Notifications of the kernel about chains that other programs changed.

use std::collections::BTreeSet;

use ferroute_core::IpFamily;
use ferroute_host::RuleNotifications;
use ferroute_netlink::{Error, Malformed, Message, nf_tables::*, nfnetlink};

use crate::{ChainName, TableName, native::nfproto};

/// Which chains of nf_tables were changed. Others may have changed as well: see [`RuleNotifications`].
#[derive(Debug)]
pub(super) struct ChainNotifications {
    notifications: RuleNotifications,
    /// The chains that have not been asked for.
    changed: BTreeSet<(IpFamily, TableName, ChainName)>,
}

impl ChainNotifications {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub(super) fn open() -> Result<Self, Error> {
        Ok(Self { notifications: RuleNotifications::open()?, changed: BTreeSet::new() })
    }

    /// Runs `write` without notifications of what it changes.
    pub(super) fn without<T>(&self, write: impl FnOnce() -> T) -> T {
        self.notifications.without(write)
    }

    /// Returns the chains of an IP family that were changed since the last call; none if there were more than
    /// [`MAX_CHAINS`].
    pub(super) fn take(&mut self, family: IpFamily) -> Vec<(TableName, ChainName)> {
        let Self { notifications, changed } = self;
        let is_complete = notifications.receive(|message| {
            // What cannot be read is not ours.
            if let Ok(Some(chain)) = changed_chain(message) {
                changed.insert(chain);
            }
        });
        if !is_complete || changed.len() > MAX_CHAINS {
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

/// Number of changed chains beyond which all chains are compared.
const MAX_CHAINS: usize = 1000;
