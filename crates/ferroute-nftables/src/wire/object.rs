use ferroute_core::IpFamily;
use ferroute_netlink::{Batch, Request, Writer, flags, nfnetlink};

use super::{
    constants::{LIST_ELEMENT, chain, element, message, rule, set, table},
    element::put_key,
    expression::Expressions,
    userdata,
};
use crate::kernel::TableFamily;
use crate::model::{Base, Chain, Comment, DataType, Holds, Hook, Key, Name, Policy, Rule, Set, SetKind, TableId};

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
pub(crate) fn protocol_family(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

/// Asks for a table.
pub(crate) fn table_request(id: &TableId) -> Request {
    let mut request = request_of(message::GET_TABLE, protocol_family(id.family));
    request.attributes().put_str(table::NAME, id.name.as_str());
    request
}

/// What can be listed of a table.
#[derive(Clone, Copy)]
pub(crate) enum Listed {
    Chains,
    Rules,
    Sets,
}

/// Asks for all tables of all families.
pub(crate) fn tables_request() -> Request {
    request_of(message::GET_TABLE, 0)
}

/// Asks for all chains, rules or sets of a table. The kernel lists chains of other tables, too.
pub(crate) fn list_request(family: TableFamily, name: &Name, what: Listed) -> Request {
    let (kind, attribute) = match what {
        Listed::Chains => (message::GET_CHAIN, chain::TABLE),
        Listed::Rules => (message::GET_RULE, rule::TABLE),
        Listed::Sets => (message::GET_SET, set::TABLE),
    };
    let mut request = request_of(kind, family.number());
    request.attributes().put_str(attribute, name.as_str());
    request
}

/// Asks for the elements of a set that have these keys, or for all if no key is given.
pub(crate) fn elements_request(family: TableFamily, table: &Name, name: &Name, keys: &[Key]) -> Request {
    let mut request = request_of(message::GET_SET_ELEMENT, family.number());
    let mut attributes = request.attributes();
    attributes.put_str(element::TABLE, table.as_str());
    attributes.put_str(element::SET, name.as_str());
    if !keys.is_empty() {
        let mut list = attributes.nest(element::ELEMENTS);
        keys.iter().for_each(|key| put_key(&mut list.nest(LIST_ELEMENT), key));
    }
    drop(attributes);
    request
}

/// Writes messages that change a table.
pub(super) struct Objects<'a> {
    pub(super) batch: &'a mut Batch,
    pub(super) id: &'a TableId,
}

impl Objects<'_> {
    pub(super) fn message(&mut self, kind: u8, flags: u16) -> Writer<'_> {
        let header = nfnetlink::header(protocol_family(self.id.family), 0, 0);
        let mut writer = self.batch.message(nfnetlink::kind(nfnetlink::NFTABLES, kind), flags, &header);
        // The table's name is the first attribute of all kinds of objects.
        writer.put_str(table::NAME, self.id.name.as_str());
        writer
    }

    pub(super) fn add_table(&mut self, comment: Option<&Comment>) {
        let mut message = self.message(message::NEW_TABLE, flags::CREATE);
        if let Some(comment) = comment {
            message.put_bytes(table::USERDATA, &userdata::comment(comment));
        }
    }

    pub(super) fn delete_table(&mut self) {
        self.message(message::DEL_TABLE, 0);
    }

    pub(super) fn add_chain(&mut self, item: &Chain) {
        let mut message = self.message(message::NEW_CHAIN, flags::CREATE);
        message.put_str(chain::NAME, item.name.as_str());
        if let Some(Base { kind, hook, priority, policy }) = item.base {
            let mut nest = message.nest(chain::HOOK);
            nest.put_u32_be(chain::HOOK_NUMBER, hook_number(hook));
            nest.put_u32_be(chain::HOOK_PRIORITY, priority.cast_unsigned());
            drop(nest);
            message.put_u32_be(
                chain::POLICY,
                match policy {
                    Policy::Accept => chain::ACCEPT,
                    Policy::Drop => chain::DROP,
                },
            );
            message.put_str(chain::TYPE, kind.name());
        }
        if let Some(comment) = &item.comment {
            message.put_bytes(chain::USERDATA, &userdata::comment(comment));
        }
    }

    pub(super) fn delete_chain(&mut self, name: &Name) {
        self.message(message::DEL_CHAIN, 0).put_str(chain::NAME, name.as_str());
    }

    pub(super) fn flush_chain(&mut self, name: &Name) {
        self.message(message::DEL_RULE, 0).put_str(rule::CHAIN, name.as_str());
    }

    pub(super) fn add_rule(&mut self, chain: &Name, item: &Rule) {
        let family = self.id.family;
        let mut message = self.message(message::NEW_RULE, flags::CREATE | flags::APPEND);
        message.put_str(rule::CHAIN, chain.as_str());
        let mut list = message.nest(rule::EXPRESSIONS);
        let mut expressions = Expressions { list: &mut list, family };
        item.statements.iter().for_each(|statement| expressions.statement(statement));
        drop(list);
        if let Some(comment) = &item.comment {
            message.put_bytes(rule::USERDATA, &userdata::comment(comment));
        }
    }

    /// `number` must be another one for each set in the batch; the kernel wants one but we go by names.
    pub(super) fn add_set(&mut self, item: &Set, number: u32) {
        let mut message = self.message(message::NEW_SET, flags::CREATE);
        message.put_str(set::NAME, item.name.as_str());
        message.put_u32_be(set::FLAGS, set_flags(item));
        message.put_u32_be(set::KEY_TYPE, type_number(&item.key));
        message.put_u32_be(set::KEY_LENGTH, length(&item.key));
        match &item.holds {
            Holds::Nothing => {}
            Holds::Values(types) => {
                message.put_u32_be(set::DATA_TYPE, type_number(types));
                message.put_u32_be(set::DATA_LENGTH, length(types));
            }
            Holds::Verdicts => {
                message.put_u32_be(set::DATA_TYPE, set::VERDICT);
                message.put_u32_be(set::DATA_LENGTH, 0);
            }
        }
        match item.kind {
            SetKind::Exact => {}
            SetKind::Learned { capacity } => {
                message.nest(set::DESCRIPTION).put_u32_be(set::DESCRIPTION_SIZE, capacity);
            }
            SetKind::Interval => {
                let mut description = message.nest(set::DESCRIPTION);
                let mut fields = description.nest(set::DESCRIPTION_CONCAT);
                for field in &item.key {
                    fields.nest(LIST_ELEMENT).put_u32_be(set::FIELD_LENGTH, length(&[*field]));
                }
            }
        }
        message.put_u32_be(set::ID, number);
        message.put_bytes(set::USERDATA, &userdata::set(item));
        if item.counter {
            let mut expression = message.nest(set::EXPRESSION);
            expression.put_str(rule::EXPRESSION_NAME, COUNTER);
            expression.nest(rule::EXPRESSION_DATA);
        }
    }

    pub(super) fn delete_set(&mut self, name: &Name) {
        self.message(message::DEL_SET, 0).put_str(set::NAME, name.as_str());
    }
}

/// `NFT_SET_*`.
pub(super) fn set_flags(item: &Set) -> u32 {
    let map = if item.holds == Holds::Nothing { 0 } else { set::MAP };
    map | match item.kind {
        SetKind::Exact => 0,
        SetKind::Interval => set::INTERVAL | set::CONCATENATED,
        SetKind::Learned { .. } => set::TIMEOUT | set::EVALUATED,
    }
}

/// The number by which `nft` knows a type; several are put together with 6 bits each, the first one highest.
pub(super) fn type_number(types: &[DataType]) -> u32 {
    types.iter().fold(0, |number, data_type| number << TYPE_BITS | type_of(*data_type))
}

/// The opposite of [`type_number`].
pub(super) fn types_of(number: u32) -> Option<Vec<DataType>> {
    let count = (u32::BITS - number.leading_zeros()).div_ceil(TYPE_BITS);
    let one = |i| ALL_TYPES.into_iter().find(|data_type| type_of(*data_type) == number >> (TYPE_BITS * i) & TYPE_MASK);
    (0..count).rev().map(one).collect()
}

/// `NF_INET_*`.
pub(super) fn hook_number(hook: Hook) -> u32 {
    match hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    }
}

fn request_of(kind: u8, family: u8) -> Request {
    Request::new(nfnetlink::kind(nfnetlink::NFTABLES, kind), 0, &nfnetlink::header(family, 0, 0))
}

fn length(types: &[DataType]) -> u32 {
    u32::try_from(crate::model::length(types)).expect("bug: keys have at most 64 bytes")
}

/// `TYPE_*` of `nft`.
fn type_of(data_type: DataType) -> u32 {
    match data_type {
        DataType::Ipv4Address => 7,
        DataType::Ipv6Address => 8,
        DataType::Protocol => 12,
        DataType::Port => 13,
        DataType::Class => 23,
        DataType::Number => 4,
        DataType::Interface => 41,
    }
}

const ALL_TYPES: [DataType; 7] = [
    DataType::Ipv4Address,
    DataType::Ipv6Address,
    DataType::Protocol,
    DataType::Port,
    DataType::Class,
    DataType::Number,
    DataType::Interface,
];
const TYPE_BITS: u32 = 6;
const TYPE_MASK: u32 = (1 << TYPE_BITS) - 1;
/// The expression that counts packets.
pub(super) const COUNTER: &str = "counter";
