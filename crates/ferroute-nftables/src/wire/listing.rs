//! Chains, sets and rules as the kernel lists them.

use ferroute_netlink::{Attribute, Attributes, Error, Malformed, Message, nfnetlink};

use super::{
    EncodedRule,
    constants::{chain, rule, set, table},
    object::{COUNTER, hook_number, set_flags, types_of},
    userdata,
};
use crate::{
    kernel::{ListedChain, ListedRule, ListedSet, TableFamily},
    model::{Base, BaseKind, Chain, DataType, Holds, Hook, Name, Policy, Set, SetKind},
};

/// A chain; `None` if it is another table's.
pub(crate) fn parse_chain(message: &Message<'_>, table: &Name) -> Result<Option<ListedChain>, Error> {
    let (mut is_ours, mut name, mut base, mut kind, mut comment) = (false, None, None, None, None);
    let mut policy = Policy::Accept;
    for attribute in attributes(message)? {
        let attribute = attribute?;
        match attribute.kind {
            chain::TABLE => is_ours = attribute.str()? == table.as_str(),
            chain::NAME => name = Some(Name::from(attribute.str()?)),
            chain::HOOK => base = Some(parse_hook(&attribute)?),
            chain::TYPE => kind = Some(attribute.str()?),
            chain::POLICY if attribute.u32_be()? == chain::DROP => policy = Policy::Drop,
            chain::USERDATA => comment = userdata::read_comment(attribute.payload),
            _ => {}
        }
    }
    let name = name.ok_or_else(|| message.missing(chain::NAME))?;
    let kind = [BaseKind::Filter, BaseKind::Nat, BaseKind::Route].into_iter().find(|known| Some(known.name()) == kind);
    let base = match (base, kind) {
        (None, _) => Some(None),
        (Some((Some(hook), priority)), Some(kind)) => Some(Some(Base { kind, hook, priority, policy })),
        _ => None,
    };
    let chain = base.map(|base| Chain { name: name.clone(), base, comment });
    Ok(is_ours.then_some(ListedChain { name, chain, rules: Vec::new() }))
}

/// A rule and the chain that it is in.
pub(crate) fn parse_rule(message: &Message<'_>) -> Result<(Name, ListedRule), Error> {
    let mut chain = None;
    for attribute in attributes(message)? {
        let attribute = attribute?;
        if attribute.kind == rule::CHAIN {
            chain = Some(Name::from(attribute.str()?));
        }
    }
    let chain = chain.ok_or_else(|| message.missing(rule::CHAIN))?;
    Ok((chain, ListedRule::Encoded(EncodedRule::parse(attributes(message)?)?)))
}

/// A set.
pub(crate) fn parse_set(message: &Message<'_>) -> Result<ListedSet, Error> {
    let mut parts = SetParts::default();
    for attribute in attributes(message)? {
        parts.take(&attribute?)?;
    }
    let name = parts.name.clone().ok_or_else(|| message.missing(set::NAME))?;
    Ok(ListedSet { is_map: parts.flags & set::MAP != 0, elements: parts.count, set: parts.declaration(&name), name })
}

/// A set of anybody's, as far as it matters to those who look something up; `None` instead of the declaration if its keys
/// or data cannot be said here.
pub(crate) fn parse_any_set(message: &Message<'_>) -> Result<(Name, Option<Set>), Error> {
    let mut parts = SetParts::default();
    for attribute in attributes(message)? {
        parts.take(&attribute?)?;
    }
    let name = parts.name.clone().ok_or_else(|| message.missing(set::NAME))?;
    let set = parts.meaning(&name);
    Ok((name, set))
}

/// A table's name, and its handle, which is greater the later it was made; `None` if it is switched off.
pub(crate) fn parse_table(message: &Message<'_>) -> Result<Option<(TableFamily, Name, u64)>, Error> {
    let (header, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let (mut name, mut handle, mut is_dormant) = (None, 0, false);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            table::NAME => name = Some(Name::from(attribute.str()?)),
            table::FLAGS => is_dormant = attribute.u32_be()? & table::DORMANT != 0,
            table::HANDLE => handle = attribute.u64_be()?,
            _ => {}
        }
    }
    let name = name.ok_or_else(|| message.missing(table::NAME))?;
    let [family, ..] = *header;
    Ok(TableFamily::from_number(family).filter(|_| !is_dormant).map(|family| (family, name, handle)))
}

#[derive(Default)]
struct SetParts {
    name: Option<Name>,
    flags: u32,
    key: u32,
    key_length: u32,
    datum: Option<u32>,
    datum_length: u32,
    capacity: Option<u32>,
    count: Option<usize>,
    counter: bool,
    userdata: Vec<u8>,
}

impl SetParts {
    fn take(&mut self, attribute: &Attribute<'_>) -> Result<(), Malformed> {
        match attribute.kind {
            set::NAME => self.name = Some(Name::from(attribute.str()?)),
            set::FLAGS => self.flags = attribute.u32_be()?,
            set::KEY_TYPE => self.key = attribute.u32_be()?,
            set::KEY_LENGTH => self.key_length = attribute.u32_be()?,
            set::DATA_LENGTH => self.datum_length = attribute.u32_be()?,
            set::DATA_TYPE => self.datum = Some(attribute.u32_be()?),
            set::DESCRIPTION => self.capacity = find_u32(attribute.nested(), set::DESCRIPTION_SIZE)?,
            set::COUNT => self.count = usize::try_from(attribute.u32_be()?).ok(),
            set::USERDATA => self.userdata = attribute.payload.to_vec(),
            set::EXPRESSION => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    self.counter |= attribute.kind == rule::EXPRESSION_NAME && attribute.str()? == COUNTER;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What keys the set has and what its elements hold, whatever else was said of it.
    fn meaning(&self, name: &Name) -> Option<Set> {
        let kind = match (self.flags & set::INTERVAL, self.flags & (set::TIMEOUT | set::EVALUATED)) {
            (0, 0) => SetKind::Exact,
            (0, _) => SetKind::Learned { capacity: self.capacity.unwrap_or_default() },
            _ => SetKind::Interval,
        };
        let holds = match self.datum {
            None => Holds::Nothing,
            Some(set::VERDICT) => Holds::Verdicts,
            Some(number) => Holds::Values(any_types_of(number, self.datum_length)?),
        };
        let key = any_types_of(self.key, self.key_length)?;
        let comment = userdata::read_set_comment(&self.userdata);
        Some(Set { name: name.clone(), key, holds, kind, counter: self.counter, comment })
    }

    /// How the set is declared, if it is one that could be declared here.
    fn declaration(&self, name: &Name) -> Option<Set> {
        let kind = match self.flags & (set::INTERVAL | set::TIMEOUT | set::EVALUATED) {
            0 => SetKind::Exact,
            set::INTERVAL => SetKind::Interval,
            _ => SetKind::Learned { capacity: self.capacity? },
        };
        let holds = match self.datum {
            None => Holds::Nothing,
            Some(set::VERDICT) => Holds::Verdicts,
            Some(number) => Holds::Values(types_of(number)?),
        };
        let comment = userdata::read_set_comment(&self.userdata);
        let declared =
            Set { name: name.clone(), key: types_of(self.key)?, holds, kind, counter: self.counter, comment };
        (set_flags(&declared) == self.flags).then_some(declared)
    }
}

/// The types of a key or datum of this length; types that are not known are numbers where they have their length.
fn any_types_of(number: u32, length: u32) -> Option<Vec<DataType>> {
    let known = types_of(number).or_else(|| (length == 4 && number < 1 << 6).then(|| vec![DataType::Number]))?;
    (crate::model::length(&known) == usize::try_from(length).ok()?).then_some(known)
}

fn parse_hook(attribute: &Attribute<'_>) -> Result<(Option<Hook>, i32), Malformed> {
    let number = find_u32(attribute.nested(), chain::HOOK_NUMBER)?;
    let priority = find_u32(attribute.nested(), chain::HOOK_PRIORITY)?.unwrap_or_default();
    let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
    let hook = hooks.into_iter().find(|hook| Some(hook_number(*hook)) == number);
    Ok((hook, priority.cast_signed()))
}

fn find_u32(attributes: Attributes<'_>, kind: u16) -> Result<Option<u32>, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind {
            return attribute.u32_be().map(Some);
        }
    }
    Ok(None)
}

fn attributes<'a>(message: &Message<'a>) -> Result<Attributes<'a>, Malformed> {
    message.split_header::<{ nfnetlink::HEADER_LENGTH }>().map(|(_, attributes)| attributes)
}
