//! Parsing the kernel's listings of tables, chains, rules and sets.

use ferroute_core::Protocol;
use ferroute_netlink::{Attribute, Attributes, Error, Malformed, Message, nfnetlink};

use super::{
    EncodedRule,
    constants::*,
    object::{
        CONNLIMIT, COUNTER, DAY, FLOWTABLE_PRIORITY, LIMIT, Listed, TYPE_BITS, TYPE_IFINDEX, TYPE_MASK, hook_number,
        set_flags, types_of,
    },
    userdata,
};
use crate::{
    kernel::{ListedChain, ListedFlowtable, ListedRule, ListedSet, ListedTable, TableFamily},
    model::{
        BaseChain, Chain, ChainType, Comment, DataType, Flowtable, Hook, Limit, Name, Policy, Set, SetData, SetKind,
    },
};

/// Parses a chain; `None` if it belongs to another table.
pub(crate) fn parse_chain(message: &Message<'_>, table: &Name) -> Result<Option<ListedChain>, Error> {
    let (mut is_in_table, mut name, mut base, mut kind, mut comment) = (false, None, None, None, None);
    let mut policy = Policy::Accept;
    for attribute in attributes(message)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => is_in_table = name_of(&attribute) == *table,
            NFTA_CHAIN_NAME => name = Some(name_of(&attribute)),
            NFTA_CHAIN_HOOK => base = Some(parse_hook(&attribute)?),
            NFTA_CHAIN_TYPE => kind = attribute.text(),
            NFTA_CHAIN_POLICY if attribute.u32_be()? == NF_DROP as u32 => policy = Policy::Drop,
            NFTA_CHAIN_USERDATA => comment = userdata::read_comment(attribute.payload),
            _ => {}
        }
    }
    let name = name.ok_or_else(|| message.missing(NFTA_CHAIN_NAME))?;
    let kind = [ChainType::Filter, ChainType::Nat, ChainType::Route]
        .into_iter()
        .find(|chain_type| Some(chain_type.name()) == kind);
    let base = match (base, kind) {
        (None, _) => Some(None),
        (Some((Some(hook), priority)), Some(kind)) => Some(Some(BaseChain { kind, hook, priority, policy })),
        _ => None,
    };
    let chain = base.map(|base| Chain { name: name.clone(), base, comment });
    Ok(is_in_table.then_some(ListedChain { name, chain, rules: Vec::new() }))
}

/// Returns the handle of a chain or rule. In a table, handles increase in the order of creation.
pub(crate) fn parse_handle(message: &Message<'_>, listed: Listed) -> Result<u64, Error> {
    let kind = if matches!(listed, Listed::Chains) { NFTA_CHAIN_HANDLE } else { NFTA_RULE_HANDLE };
    for attribute in attributes(message)? {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(attribute.u64_be()?);
        }
    }
    Err(message.missing(kind).into())
}

/// Attribute of a chain (`enum nft_chain_attributes`).
const NFTA_CHAIN_HANDLE: u16 = 2;

/// Reports whether a chain belongs to a rule, with which the kernel deletes it.
pub(crate) fn is_bound_chain(message: &Message<'_>) -> Result<bool, Error> {
    Ok(first_u32(attributes(message)?, NFTA_CHAIN_FLAGS)?.is_some_and(|flags| flags & NFT_CHAIN_BINDING != 0))
}

/// Parses a rule with the name of its chain.
pub(crate) fn parse_rule(message: &Message<'_>) -> Result<(Name, ListedRule), Error> {
    let mut chain = None;
    for attribute in attributes(message)? {
        let attribute = attribute?;
        if attribute.kind == NFTA_RULE_CHAIN {
            chain = Some(name_of(&attribute));
        }
    }
    let chain = chain.ok_or_else(|| message.missing(NFTA_RULE_CHAIN))?;
    Ok((chain, ListedRule::Encoded(EncodedRule::parse(attributes(message)?)?)))
}

/// Parses a flowtable.
pub(crate) fn parse_flowtable(message: &Message<'_>) -> Result<ListedFlowtable, Error> {
    let (mut name, mut devices, mut is_like_own) = (None, Vec::new(), true);
    for attribute in attributes(message)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_FLOWTABLE_NAME => name = Some(name_of(&attribute)),
            NFTA_FLOWTABLE_HOOK => {
                for part in attribute.nested() {
                    let part = part?;
                    match part.kind {
                        NFTA_FLOWTABLE_HOOK_PRIORITY => is_like_own &= part.u32_be()? == FLOWTABLE_PRIORITY,
                        NFTA_FLOWTABLE_HOOK_DEVS => {
                            for device in part.nested() {
                                let device = device?;
                                // Newer kernels also support prefixes of names.
                                is_like_own &= device.kind == NFTA_DEVICE_NAME;
                                devices.push(device.escaped_text().into());
                            }
                        }
                        _ => {}
                    }
                }
            }
            NFTA_FLOWTABLE_FLAGS => is_like_own &= attribute.u32_be()? == NFT_FLOWTABLE_COUNTER,
            _ => {}
        }
    }
    let name = name.ok_or_else(|| message.missing(NFTA_FLOWTABLE_NAME))?;
    Ok(ListedFlowtable { flowtable: is_like_own.then(|| Flowtable { name: name.clone(), devices }), name })
}

/// Parses a set; `None` if it belongs to a rule, with which the kernel deletes it.
pub(crate) fn parse_set(message: &Message<'_>) -> Result<Option<ListedSet>, Error> {
    let mut parts = SetParts::default();
    for attribute in attributes(message)? {
        parts.take(&attribute?)?;
    }
    let name = parts.name.clone().ok_or_else(|| message.missing(NFTA_SET_NAME))?;
    Ok((parts.flags & NFT_SET_ANONYMOUS == 0).then(|| ListedSet {
        is_map: parts.flags & NFT_SET_MAP != 0,
        element_count: parts.count,
        set: parts.declaration(&name),
        name,
    }))
}

/// Parses a set of any program, with the properties that matter to lookups; `None` for the declaration if the model
/// cannot represent its keys or data.
pub(crate) fn parse_any_set(message: &Message<'_>) -> Result<(Name, Option<Set>), Error> {
    let mut parts = SetParts::default();
    for attribute in attributes(message)? {
        parts.take(&attribute?)?;
    }
    let name = parts.name.clone().ok_or_else(|| message.missing(NFTA_SET_NAME))?;
    let set = parts.lookup_properties(&name);
    Ok((name, set))
}

/// Parses a table; `None` if its family sees no IP packets.
pub(crate) fn parse_table(message: &Message<'_>) -> Result<Option<ListedTable>, Error> {
    let (header, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let (mut name, mut handle, mut is_dormant) = (None, 0, false);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_TABLE_NAME => name = Some(name_of(&attribute)),
            NFTA_TABLE_FLAGS => is_dormant = attribute.u32_be()? & NFT_TABLE_F_DORMANT != 0,
            NFTA_TABLE_HANDLE => handle = attribute.u64_be()?,
            _ => {}
        }
    }
    let name = name.ok_or_else(|| message.missing(NFTA_TABLE_NAME))?;
    let [family, ..] = *header;
    Ok(TableFamily::from_number(family).map(|family| ListedTable { family, name, handle, is_dormant }))
}

/// Reports whether a table has flags, `NFT_TABLE_F_*`, or another comment. Without one, the kernel may not store comments.
pub(crate) fn is_table_changed(message: &Message<'_>) -> Result<bool, Error> {
    let mut is_changed = false;
    for attribute in attributes(message)? {
        let attribute = attribute?;
        is_changed |= match attribute.kind {
            NFTA_TABLE_FLAGS => attribute.u32_be()? != 0,
            NFTA_TABLE_USERDATA => userdata::read_comment(attribute.payload) != Some(Comment::TABLE),
            _ => false,
        };
    }
    Ok(is_changed)
}

/// Parses the netlink port of the process that owns a table; `None` without an owner.
pub(crate) fn parse_table_owner(message: &Message<'_>) -> Result<Option<u32>, Error> {
    Ok(first_u32(attributes(message)?, NFTA_TABLE_OWNER)?)
}

#[derive(Default)]
struct SetParts {
    name: Option<Name>,
    flags: u32,
    key: u32,
    key_length: u32,
    data: Option<u32>,
    data_length: u32,
    size: Option<u32>,
    count: Option<usize>,
    counter: bool,
    limit: Option<Limit>,
    userdata: Vec<u8>,
    /// Whether it has a property that no set of the proxy has: another policy, a default timeout, an interval of
    /// garbage collection, or other expressions.
    is_special: bool,
}

impl SetParts {
    fn take(&mut self, attribute: &Attribute<'_>) -> Result<(), Malformed> {
        match attribute.kind {
            NFTA_SET_NAME => self.name = Some(name_of(attribute)),
            NFTA_SET_FLAGS => self.flags = attribute.u32_be()?,
            NFTA_SET_KEY_TYPE => self.key = attribute.u32_be()?,
            NFTA_SET_KEY_LEN => self.key_length = attribute.u32_be()?,
            NFTA_SET_DATA_LEN => self.data_length = attribute.u32_be()?,
            NFTA_SET_DATA_TYPE => self.data = Some(attribute.u32_be()?),
            NFTA_SET_DESC => self.size = first_u32(attribute.nested(), NFTA_SET_DESC_SIZE)?,
            NFTA_SET_COUNT => self.count = usize::try_from(attribute.u32_be()?).ok(),
            NFTA_SET_USERDATA => self.userdata = attribute.payload.to_vec(),
            NFTA_SET_EXPR => {
                let Some(name) = attribute.nested().first(NFTA_EXPR_NAME)? else { return Ok(()) };
                match name.text().unwrap_or_default() {
                    COUNTER => self.counter = true,
                    LIMIT | CONNLIMIT => self.limit = limit_in(attribute)?,
                    _ => self.is_special = true,
                }
            }
            // The kernel reports these only if they differ from its defaults.
            NFTA_SET_POLICY | NFTA_SET_TIMEOUT | NFTA_SET_GC_INTERVAL | NFTA_SET_EXPRESSIONS => self.is_special = true,
            _ => {}
        }
        Ok(())
    }

    /// Returns the set's keys and data, regardless of its other properties.
    fn lookup_properties(&self, name: &Name) -> Option<Set> {
        let kind = match (self.flags & NFT_SET_INTERVAL, self.flags & (NFT_SET_TIMEOUT | NFT_SET_EVAL)) {
            (0, 0) => SetKind::Exact,
            (0, _) => SetKind::Dynamic { size: self.size.unwrap_or_default(), expires: self.expires() },
            _ => SetKind::Interval,
        };
        let data = match self.data {
            None => SetData::None,
            Some(NFT_DATA_VERDICT) => SetData::Verdict,
            Some(number) => {
                // If data are ranges, each element has the first and the last value.
                let range = || any_types_of(number, self.data_length / 2, kind).map(|types| types.repeat(2));
                SetData::Values(any_types_of(number, self.data_length, SetKind::Exact).or_else(range)?)
            }
        };
        let mut key = any_types_of(self.key, self.key_length, kind)?;
        if let [single @ (DataType::Integer | DataType::Other { .. })] = &mut key[..]
            && userdata::has_big_endian_key(&self.userdata)
        {
            let length = u8::try_from(single.length()).ok()?;
            *single = DataType::Other { length, host_order: false };
        }
        let (protocol, comment) = (self.protocol(&data), userdata::read_set_comment(&self.userdata));
        Some(Set { name: name.clone(), key, data, kind, counter: self.counter, limit: self.limit, protocol, comment })
    }

    fn expires(&self) -> bool {
        self.flags & NFT_SET_TIMEOUT != 0
    }

    fn protocol(&self, data: &SetData) -> Option<Protocol> {
        match data {
            SetData::Values(types) => userdata::read_protocol(&self.userdata, types),
            SetData::None | SetData::Verdict => None,
        }
    }

    /// Returns the set's declaration, if the model can represent it exactly.
    fn declaration(&self, name: &Name) -> Option<Set> {
        let kind = match self.flags & (NFT_SET_INTERVAL | NFT_SET_TIMEOUT | NFT_SET_EVAL) {
            0 if self.size.is_none() => SetKind::Exact,
            NFT_SET_INTERVAL if self.size.is_none() => SetKind::Interval,
            0 | NFT_SET_INTERVAL => return None,
            _ => SetKind::Dynamic { size: self.size?, expires: self.expires() },
        };
        let data = match self.data {
            None => SetData::None,
            Some(NFT_DATA_VERDICT) => SetData::Verdict,
            Some(number) => SetData::Values(types_of(number)?),
        };
        let (protocol, comment) = (self.protocol(&data), userdata::read_set_comment(&self.userdata));
        let key = types_of(self.key)?;
        let declared =
            Set { name: name.clone(), key, data, kind, counter: self.counter, limit: self.limit, protocol, comment };
        (set_flags(&declared) == self.flags && !self.is_special).then_some(declared)
    }
}

/// Returns the limit in an expression of a set or an element; `None` for other expressions, and for limits that the
/// proxy does not use.
pub(super) fn limit_in(expression: &Attribute<'_>) -> Result<Option<Limit>, Malformed> {
    let name = expression.nested().first(NFTA_EXPR_NAME)?;
    let read = match name.as_ref().and_then(|name| name.text()) {
        Some(LIMIT) => limit,
        Some(CONNLIMIT) => connection_limit,
        _ => return Ok(None),
    };
    Ok(expression.nested().first(NFTA_EXPR_DATA)?.and_then(|data| read(&data).ok().flatten()))
}

/// Returns a limit; `None` if the model cannot represent it.
fn limit(data: &Attribute<'_>) -> Result<Option<Limit>, Malformed> {
    let (rate, unit, burst) = (
        data.nested().first(NFTA_LIMIT_RATE)?,
        data.nested().first(NFTA_LIMIT_UNIT)?,
        data.nested().first(NFTA_LIMIT_BURST)?,
    );
    let Some(((rate, unit), burst)) = rate.zip(unit).zip(burst) else { return Ok(None) };
    let flags = data.nested().first(NFTA_LIMIT_FLAGS)?.map_or(Ok(0), |flags| flags.u32_be())?;
    let over = flags & NFT_LIMIT_F_INV != 0;
    let limit = Limit::Rate { per_day: rate.u64_be()?, burst: burst.u32_be()?, over };
    Ok((unit.u64_be()? == DAY).then_some(limit))
}

/// Returns a limit of open connections; `None` if the model cannot represent it.
fn connection_limit(data: &Attribute<'_>) -> Result<Option<Limit>, Malformed> {
    let Some(count) = data.nested().first(NFTA_CONNLIMIT_COUNT)? else { return Ok(None) };
    let flags = data.nested().first(NFTA_CONNLIMIT_FLAGS)?.map_or(Ok(0), |flags| flags.u32_be())?;
    let limit = Limit::ConnectionsOver(count.u32_be()?);
    Ok((flags & NFT_CONNLIMIT_F_INV != 0).then_some(limit))
}

/// Returns the types of a key or of data of this length; `None` if they are unknown.
fn any_types_of(number: u32, length: u32, kind: SetKind) -> Option<Vec<DataType>> {
    let count = (u32::BITS - number.leading_zeros()).div_ceil(TYPE_BITS);
    let numbers: Vec<u32> = (0..count).rev().map(|i| number >> (TYPE_BITS * i) & TYPE_MASK).collect();
    let length = usize::try_from(length).ok()?;
    let types: Vec<DataType> = match numbers[..] {
        // The length of integers is that of the key.
        [single] => vec![any_type_of(single, Some(length), kind == SetKind::Interval)?],
        _ => {
            let is_range = kind == SetKind::Interval;
            numbers.iter().map(|number| any_type_of(*number, None, is_range)).collect::<Option<_>>()?
        }
    };
    (crate::model::length(&types) == length).then_some(types)
}

/// Returns the type with a number. In ranges, `nft` stores all numbers in network byte order.
fn any_type_of(number: u32, length: Option<usize>, is_range: bool) -> Option<DataType> {
    let known = types_of(number).and_then(|types| <[DataType; 1]>::try_from(types).ok()).map(|[known]| known);
    let fits = |data_type: &DataType| length.is_none_or(|length| length == data_type.length());
    match known.filter(fits) {
        Some(DataType::Integer) | None => {}
        known => return known,
    }
    let (_, bytes, host_order) = OTHER_TYPES.iter().find(|(other, ..)| *other == number)?;
    let length = u8::try_from(length.unwrap_or(usize::from(*bytes))).ok().filter(|length| *length <= 16)?;
    Some(match (number, length) {
        (TYPE_IFINDEX, _) => DataType::IfIndex,
        (_, 4) if *host_order && !is_range => DataType::Integer,
        _ => DataType::Other { length, host_order: *host_order && !is_range },
    })
}

/// The types that planned sets do not have, as numbered in `nft`: the number of bytes, and whether they are in the host's byte
/// order.
const OTHER_TYPES: [(u32, u8, bool); 38] = [
    (2, 1, false),
    (3, 4, true),
    (4, 4, true),
    (5, 16, false),
    (6, 6, false),
    (9, 6, false),
    (10, 2, false),
    (11, 2, false),
    (14, 1, false),
    (15, 1, false),
    (16, 1, false),
    (17, 1, false),
    (18, 8, true),
    (19, 4, true),
    (TYPE_IFINDEX, 4, true),
    (21, 2, true),
    (22, 4, true),
    (24, 4, true),
    (25, 4, true),
    (26, 4, true),
    (27, 1, false),
    (28, 4, true),
    (29, 1, false),
    (30, 16, true),
    (31, 1, false),
    (32, 1, false),
    (33, 1, false),
    (34, 1, false),
    (35, 4, true),
    (36, 1, false),
    (37, 1, false),
    (38, 4, true),
    (39, 1, false),
    (40, 4, true),
    (42, 1, false),
    (43, 8, true),
    (44, 4, true),
    (45, 1, false),
];

fn parse_hook(attribute: &Attribute<'_>) -> Result<(Option<Hook>, i32), Malformed> {
    let number = first_u32(attribute.nested(), NFTA_HOOK_HOOKNUM)?;
    let priority = first_u32(attribute.nested(), NFTA_HOOK_PRIORITY)?.unwrap_or_default();
    let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
    let hook = hooks.into_iter().find(|hook| Some(hook_number(*hook)) == number);
    Ok((hook, priority.cast_signed()))
}

fn first_u32(attributes: Attributes<'_>, kind: u16) -> Result<Option<u32>, Malformed> {
    attributes.first(kind)?.map(|number| number.u32_be()).transpose()
}

fn attributes<'a>(message: &Message<'a>) -> Result<Attributes<'a>, Malformed> {
    message.split_header::<{ nfnetlink::HEADER_LENGTH }>().map(|(_, attributes)| attributes)
}

/// Returns the name in an attribute. Bytes that are not text are escaped, so that the name is not one of Ferroute's.
pub(super) fn name_of(attribute: &Attribute<'_>) -> Name {
    attribute.escaped_text().into_owned().into()
}

/// Reports whether a name may differ from that in the kernel, so that the object cannot be requested by it.
pub(crate) fn is_escaped(name: &Name) -> bool {
    name.as_str().contains('\\')
}

#[cfg(test)]
mod tests {
    use ferroute_netlink::{Batch, Messages};

    use super::*;

    /// Returns the result of reading a listed flowtable with these attributes.
    fn flowtable(priority: u32, device: u16, flags: u32) -> ListedFlowtable {
        let mut batch = Batch::new();
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWFLOWTABLE);
        let mut message = batch.message(kind, 0, &nfnetlink::header(2, 0, 0));
        message.put_str(NFTA_FLOWTABLE_NAME, "established");
        let mut hook = message.nest(NFTA_FLOWTABLE_HOOK);
        hook.put_u32_be(NFTA_FLOWTABLE_HOOK_NUM, 0);
        hook.put_u32_be(NFTA_FLOWTABLE_HOOK_PRIORITY, priority);
        hook.nest(NFTA_FLOWTABLE_HOOK_DEVS).put_str(device, "eth0");
        drop(hook);
        message.put_u32_be(NFTA_FLOWTABLE_FLAGS, flags);
        drop(message);
        let bytes = batch.as_bytes().unwrap();
        parse_flowtable(&Messages::new(bytes).next().unwrap().unwrap()).unwrap()
    }

    #[test]
    fn flowtables_are_own_only_with_all_that_defines_them() {
        const OFFLOAD: u32 = 1;
        let own = Flowtable { name: Name::fixed("established"), devices: vec!["eth0".into()] };
        let counter = NFT_FLOWTABLE_COUNTER;
        assert_eq!(flowtable(FLOWTABLE_PRIORITY, NFTA_DEVICE_NAME, counter).flowtable, Some(own));
        let prefix = NFTA_DEVICE_NAME + 1;
        let others = [
            flowtable(5, NFTA_DEVICE_NAME, counter),
            flowtable(FLOWTABLE_PRIORITY, prefix, counter),
            flowtable(FLOWTABLE_PRIORITY, NFTA_DEVICE_NAME, counter | OFFLOAD),
            flowtable(FLOWTABLE_PRIORITY, NFTA_DEVICE_NAME, 0),
        ];
        assert_eq!(
            others.map(|listed| (listed.name.to_string(), listed.flowtable)),
            [(); 4].map(|()| ("established".to_owned(), None))
        );
    }
}
