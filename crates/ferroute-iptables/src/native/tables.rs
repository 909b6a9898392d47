//! The tables and base chains of `iptables`.

use ferroute_core::IpFamily;
use ferroute_netlink::{Request, Writer, nf_tables::*, nfnetlink};

use crate::{ChainName, TableName};

/// The builtin chains in the order in which a packet may traverse them.
pub(super) const BUILTIN_CHAINS: [ChainName; 5] =
    [ChainName::PREROUTING, ChainName::INPUT, ChainName::FORWARD, ChainName::OUTPUT, ChainName::POSTROUTING];

/// The properties of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BaseChain {
    /// `filter`, `nat` or `route`.
    pub(super) kind: &'static str,
    /// The hook (`NF_INET_*`).
    pub(super) hook: u32,
    /// The priority at the hook.
    pub(super) priority: i32,
}

/// Returns the base chain for a builtin chain of a table; `None` for other chains.
pub(super) fn base_chain(table: TableName, chain: ChainName) -> Option<BaseChain> {
    let hook = match chain {
        ChainName::PREROUTING => NF_INET_PRE_ROUTING,
        ChainName::INPUT => NF_INET_LOCAL_IN,
        ChainName::FORWARD => NF_INET_FORWARD,
        ChainName::OUTPUT => NF_INET_LOCAL_OUT,
        ChainName::POSTROUTING => NF_INET_POST_ROUTING,
        _ => return None,
    };
    let is_source = matches!(chain, ChainName::INPUT | ChainName::POSTROUTING);
    let is_inner = matches!(chain, ChainName::INPUT | ChainName::FORWARD | ChainName::OUTPUT);
    let (kind, priority) = match table {
        TableName::Filter if is_inner => ("filter", 0),
        TableName::Security if is_inner => ("filter", 50),
        TableName::Nat if chain != ChainName::FORWARD => ("nat", if is_source { 100 } else { -100 }),
        TableName::Mangle if chain == ChainName::OUTPUT => ("route", -150),
        TableName::Mangle => ("filter", -150),
        TableName::Raw if matches!(chain, ChainName::PREROUTING | ChainName::OUTPUT) => ("filter", -300),
        _ => return None,
    };
    Some(BaseChain { kind, hook, priority })
}

/// Returns the kernel's number of an IP family (`NFPROTO_*`).
pub(crate) fn nfproto(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => libc::NFPROTO_IPV4 as u8,
        IpFamily::V6 => libc::NFPROTO_IPV6 as u8,
    }
}

/// Returns a request for objects of all tables.
pub(super) fn dump_request(family: IpFamily, command: u8) -> Request {
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, command);
    Request::new(kind, 0, &nfnetlink::header(nfproto(family), 0, 0))
}

/// Returns a request for objects of a table, with the table's name, which is attribute 1 of all kinds of objects.
pub(super) fn request(family: IpFamily, command: u8, table: TableName) -> Request {
    let mut request = dump_request(family, command);
    request.attributes().put_str(NFTA_TABLE_NAME, table.as_str());
    request
}

/// Writes the attributes of a base chain. Its policy is that of the existing chain, or accept if there is none.
pub(super) fn put_base_chain(message: &mut Writer<'_>, base: BaseChain) {
    let BaseChain { kind, hook, priority } = base;
    let mut nest = message.nest(NFTA_CHAIN_HOOK);
    nest.put_u32_be(NFTA_HOOK_HOOKNUM, hook);
    nest.put_u32_be(NFTA_HOOK_PRIORITY, priority.cast_unsigned());
    drop(nest);
    message.put_str(NFTA_CHAIN_TYPE, kind);
}
