use ferroute_core::IpFamily;
use ferroute_netlink::{Batch, Request, Writer, flags, nfnetlink};

use super::{constants::*, element::put_key, expression::Expressions, userdata};
use crate::kernel::TableFamily;
use crate::model::{
    BaseChain, Chain, Comment, DataType, Flowtable, Hook, Key, Limit, Name, Policy, Rule, Set, SetData, SetKind,
    TableId,
};

/// Returns the kernel's number of an IP family (`NFPROTO_*`).
pub(crate) fn nfproto(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => libc::NFPROTO_IPV4 as u8,
        IpFamily::V6 => libc::NFPROTO_IPV6 as u8,
    }
}

/// Returns a request for a table.
pub(crate) fn table_request(id: &TableId) -> Request {
    let mut request = request(NFT_MSG_GETTABLE, nfproto(id.family));
    request.attributes().put_str(NFTA_TABLE_NAME, id.name.as_str());
    request
}

/// The objects of a table that can be dumped.
#[derive(Clone, Copy)]
pub(crate) enum Listed {
    Chains,
    Rules,
    Sets,
    Flowtables,
    /// Named counters, quotas and other stateful objects.
    Objects,
}

/// Returns a request for all tables of all families.
pub(crate) fn tables_request() -> Request {
    request(NFT_MSG_GETTABLE, 0)
}

/// Returns a request for all objects of a kind in a table. The kernel's dump also contains chains of other tables.
pub(crate) fn list_request(family: TableFamily, name: &Name, objects: Listed) -> Request {
    let (kind, attribute) = match objects {
        Listed::Chains => (NFT_MSG_GETCHAIN, NFTA_CHAIN_TABLE),
        Listed::Rules => (NFT_MSG_GETRULE, NFTA_RULE_TABLE),
        Listed::Sets => (NFT_MSG_GETSET, NFTA_SET_TABLE),
        Listed::Flowtables => (NFT_MSG_GETFLOWTABLE, NFTA_FLOWTABLE_TABLE),
        Listed::Objects => (NFT_MSG_GETOBJ, NFTA_OBJ_TABLE),
    };
    let mut request = request(kind, family.number());
    request.attributes().put_str(attribute, name.as_str());
    request
}

/// Returns a request for the elements of a set with these keys, or for a dump if there are no keys.
pub(crate) fn elements_request(family: TableFamily, table: &Name, name: &Name, keys: &[Key]) -> Request {
    let mut request = request(NFT_MSG_GETSETELEM, family.number());
    let mut attributes = request.attributes();
    attributes.put_str(NFTA_SET_ELEM_LIST_TABLE, table.as_str());
    attributes.put_str(NFTA_SET_ELEM_LIST_SET, name.as_str());
    if !keys.is_empty() {
        let mut list = attributes.nest(NFTA_SET_ELEM_LIST_ELEMENTS);
        keys.iter().for_each(|key| put_key(&mut list.nest(NFTA_LIST_ELEM), key));
    }
    drop(attributes);
    request
}

/// Writes the messages of a transaction.
pub(super) struct Objects<'a> {
    pub(super) batch: &'a mut Batch,
    pub(super) id: &'a TableId,
}

impl Objects<'_> {
    pub(super) fn message(&mut self, kind: u8, flags: u16) -> Writer<'_> {
        let header = nfnetlink::header(nfproto(self.id.family), 0, 0);
        let mut writer = self.batch.message(nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, kind), flags, &header);
        // The table's name is attribute 1 of all kinds of objects.
        writer.put_str(NFTA_TABLE_NAME, self.id.name.as_str());
        writer
    }

    pub(super) fn add_table(&mut self, comment: Option<&Comment>, is_owned: bool) {
        let mut message = self.message(NFT_MSG_NEWTABLE, flags::NLM_F_CREATE);
        if is_owned {
            message.put_u32_be(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
        }
        if let Some(comment) = comment {
            message.put_bytes(NFTA_TABLE_USERDATA, &userdata::comment(comment));
        }
    }

    pub(super) fn delete_table(&mut self) {
        self.message(NFT_MSG_DELTABLE, 0);
    }

    pub(super) fn add_chain(&mut self, item: &Chain) {
        let mut message = self.message(NFT_MSG_NEWCHAIN, flags::NLM_F_CREATE);
        message.put_str(NFTA_CHAIN_NAME, item.name.as_str());
        if let Some(BaseChain { kind, hook, priority, policy }) = item.base {
            let mut nest = message.nest(NFTA_CHAIN_HOOK);
            nest.put_u32_be(NFTA_HOOK_HOOKNUM, hook_number(hook));
            nest.put_u32_be(NFTA_HOOK_PRIORITY, priority.cast_unsigned());
            drop(nest);
            message.put_u32_be(
                NFTA_CHAIN_POLICY,
                match policy {
                    Policy::Accept => NF_ACCEPT as u32,
                    Policy::Drop => NF_DROP as u32,
                },
            );
            message.put_str(NFTA_CHAIN_TYPE, kind.name());
        }
        if let Some(comment) = &item.comment {
            message.put_bytes(NFTA_CHAIN_USERDATA, &userdata::comment(comment));
        }
    }

    pub(super) fn delete_chain(&mut self, name: &Name) {
        self.message(NFT_MSG_DELCHAIN, 0).put_str(NFTA_CHAIN_NAME, name.as_str());
    }

    pub(super) fn flush_chain(&mut self, name: &Name) {
        self.message(NFT_MSG_DELRULE, 0).put_str(NFTA_RULE_CHAIN, name.as_str());
    }

    pub(super) fn add_rule(&mut self, chain: &Name, item: &Rule) {
        let family = self.id.family;
        let mut message = self.message(NFT_MSG_NEWRULE, flags::NLM_F_CREATE | flags::NLM_F_APPEND);
        message.put_str(NFTA_RULE_CHAIN, chain.as_str());
        let mut list = message.nest(NFTA_RULE_EXPRESSIONS);
        let mut expressions = Expressions { list: &mut list, family };
        item.statements.iter().for_each(|statement| expressions.statement(statement));
        drop(list);
        if let Some(comment) = &item.comment {
            message.put_bytes(NFTA_RULE_USERDATA, &userdata::comment(comment));
        }
    }

    /// Writes a set. `id` must be unique within the batch. The kernel requires it, but rules refer to sets by name.
    pub(super) fn add_set(&mut self, item: &Set, id: u32) {
        let mut message = self.message(NFT_MSG_NEWSET, flags::NLM_F_CREATE);
        message.put_str(NFTA_SET_NAME, item.name.as_str());
        message.put_u32_be(NFTA_SET_FLAGS, set_flags(item));
        message.put_u32_be(NFTA_SET_KEY_TYPE, type_number(&item.key));
        message.put_u32_be(NFTA_SET_KEY_LEN, length(&item.key));
        match &item.data {
            SetData::None => {}
            SetData::Values(types) => {
                message.put_u32_be(NFTA_SET_DATA_TYPE, type_number(types));
                message.put_u32_be(NFTA_SET_DATA_LEN, length(types));
            }
            SetData::Verdict => {
                message.put_u32_be(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT);
                message.put_u32_be(NFTA_SET_DATA_LEN, 0);
            }
        }
        match item.kind {
            SetKind::Exact => {}
            SetKind::Dynamic { size, expires: _ } => {
                message.nest(NFTA_SET_DESC).put_u32_be(NFTA_SET_DESC_SIZE, size);
            }
            SetKind::Interval => {
                let mut description = message.nest(NFTA_SET_DESC);
                let mut fields = description.nest(NFTA_SET_DESC_CONCAT);
                for field in &item.key {
                    fields.nest(NFTA_LIST_ELEM).put_u32_be(NFTA_SET_FIELD_LEN, length(&[*field]));
                }
            }
        }
        message.put_u32_be(NFTA_SET_ID, id);
        message.put_bytes(NFTA_SET_USERDATA, &userdata::set(item));
        if item.counter {
            let mut expression = message.nest(NFTA_SET_EXPR);
            expression.put_str(NFTA_EXPR_NAME, COUNTER);
            expression.nest(NFTA_EXPR_DATA);
        }
        match item.limit {
            None => {}
            Some(Limit::Rate { per_day, burst, over }) => {
                let mut expression = message.nest(NFTA_SET_EXPR);
                expression.put_str(NFTA_EXPR_NAME, LIMIT);
                // Without a type, packets are counted.
                let mut data = expression.nest(NFTA_EXPR_DATA);
                data.put_u64_be(NFTA_LIMIT_RATE, per_day);
                data.put_u64_be(NFTA_LIMIT_UNIT, DAY);
                data.put_u32_be(NFTA_LIMIT_BURST, burst);
                if over {
                    data.put_u32_be(NFTA_LIMIT_FLAGS, NFT_LIMIT_F_INV);
                }
            }
            Some(Limit::ConnectionsOver(connections)) => {
                let mut expression = message.nest(NFTA_SET_EXPR);
                expression.put_str(NFTA_EXPR_NAME, CONNLIMIT);
                let mut data = expression.nest(NFTA_EXPR_DATA);
                data.put_u32_be(NFTA_CONNLIMIT_COUNT, connections);
                data.put_u32_be(NFTA_CONNLIMIT_FLAGS, NFT_CONNLIMIT_F_INV);
            }
        }
    }

    pub(super) fn add_flowtable(&mut self, item: &Flowtable) {
        let mut message = self.message(NFT_MSG_NEWFLOWTABLE, flags::NLM_F_CREATE);
        message.put_str(NFTA_FLOWTABLE_NAME, item.name.as_str());
        let mut hook = message.nest(NFTA_FLOWTABLE_HOOK);
        hook.put_u32_be(NFTA_FLOWTABLE_HOOK_NUM, NF_NETDEV_INGRESS);
        hook.put_u32_be(NFTA_FLOWTABLE_HOOK_PRIORITY, FLOWTABLE_PRIORITY);
        put_devices(&mut hook, item);
        drop(hook);
        message.put_u32_be(NFTA_FLOWTABLE_FLAGS, NFT_FLOWTABLE_COUNTER);
    }

    pub(super) fn delete_devices(&mut self, item: &Flowtable) {
        let mut message = self.message(NFT_MSG_DELFLOWTABLE, 0);
        message.put_str(NFTA_FLOWTABLE_NAME, item.name.as_str());
        put_devices(&mut message.nest(NFTA_FLOWTABLE_HOOK), item);
    }

    pub(super) fn delete_flowtable(&mut self, name: &Name) {
        self.message(NFT_MSG_DELFLOWTABLE, 0).put_str(NFTA_FLOWTABLE_NAME, name.as_str());
    }

    pub(super) fn delete_set(&mut self, name: &Name) {
        self.message(NFT_MSG_DELSET, 0).put_str(NFTA_SET_NAME, name.as_str());
    }
}

/// Writes the devices of a flowtable. A flowtable without devices has no list of them: the kernel refuses an empty
/// list.
fn put_devices(hook: &mut Writer<'_>, item: &Flowtable) {
    if item.devices.is_empty() {
        return;
    }
    let mut devices = hook.nest(NFTA_FLOWTABLE_HOOK_DEVS);
    item.devices.iter().for_each(|device| devices.put_str(NFTA_DEVICE_NAME, device));
}

/// Returns the set's flags (`NFT_SET_*`).
pub(super) fn set_flags(item: &Set) -> u32 {
    let map = if item.data == SetData::None { 0 } else { NFT_SET_MAP };
    map | match item.kind {
        SetKind::Exact => 0,
        SetKind::Interval => NFT_SET_INTERVAL | NFT_SET_CONCAT,
        SetKind::Dynamic { expires: true, .. } => NFT_SET_TIMEOUT | NFT_SET_EVAL,
        SetKind::Dynamic { expires: false, .. } => NFT_SET_EVAL,
    }
}

/// Returns `nft`'s number of a type. In a concatenation each type has 6 bits, the first one in the highest.
pub(super) fn type_number(types: &[DataType]) -> u32 {
    types.iter().fold(0, |number, data_type| number << TYPE_BITS | type_of(*data_type))
}

/// Returns the types of a number, the inverse of [`type_number`].
pub(super) fn types_of(number: u32) -> Option<Vec<DataType>> {
    let count = (u32::BITS - number.leading_zeros()).div_ceil(TYPE_BITS);
    let one = |i| ALL_TYPES.into_iter().find(|data_type| type_of(*data_type) == number >> (TYPE_BITS * i) & TYPE_MASK);
    (0..count).rev().map(one).collect()
}

/// Returns the kernel's number of a hook (`NF_INET_*`).
pub(super) fn hook_number(hook: Hook) -> u32 {
    match hook {
        Hook::Prerouting => NF_INET_PRE_ROUTING,
        Hook::Input => NF_INET_LOCAL_IN,
        Hook::Forward => NF_INET_FORWARD,
        Hook::Output => NF_INET_LOCAL_OUT,
        Hook::Postrouting => NF_INET_POST_ROUTING,
    }
}

fn request(kind: u8, family: u8) -> Request {
    Request::new(nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, kind), 0, &nfnetlink::header(family, 0, 0))
}

fn length(types: &[DataType]) -> u32 {
    crate::model::length(types) as u32
}

/// Returns `nft`'s number of a type (`enum datatypes` in its `include/datatype.h`).
fn type_of(data_type: DataType) -> u32 {
    match data_type {
        DataType::Ipv4Addr => TYPE_IPADDR,
        DataType::Ipv6Addr => TYPE_IP6ADDR,
        DataType::InetProto => TYPE_INET_PROTOCOL,
        DataType::InetService => TYPE_INET_SERVICE,
        DataType::ClassId => TYPE_CLASSID,
        DataType::Integer => TYPE_INTEGER,
        DataType::IfName => TYPE_IFNAME,
        DataType::IfIndex => TYPE_IFINDEX,
        DataType::Other { .. } => TYPE_INTEGER,
    }
}

const ALL_TYPES: [DataType; 7] = [
    DataType::Ipv4Addr,
    DataType::Ipv6Addr,
    DataType::InetProto,
    DataType::InetService,
    DataType::ClassId,
    DataType::Integer,
    DataType::IfName,
];
const TYPE_INTEGER: u32 = 4;
const TYPE_IPADDR: u32 = 7;
const TYPE_IP6ADDR: u32 = 8;
const TYPE_INET_PROTOCOL: u32 = 12;
const TYPE_INET_SERVICE: u32 = 13;
const TYPE_CLASSID: u32 = 23;
pub(super) const TYPE_IFINDEX: u32 = 20;
const TYPE_IFNAME: u32 = 41;
pub(super) const TYPE_BITS: u32 = 6;
pub(super) const TYPE_MASK: u32 = (1 << TYPE_BITS) - 1;
/// `filter` in `nft`.
pub(super) const FLOWTABLE_PRIORITY: u32 = 0;
/// The expression type of counters.
pub(super) const COUNTER: &str = "counter";
pub(super) const LIMIT: &str = "limit";
pub(super) const CONNLIMIT: &str = "connlimit";
/// Seconds of an hour, the unit of limits.
pub(super) const DAY: u64 = 86_400;
