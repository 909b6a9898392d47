//! Numbers of ipsets, by which rules refer to them.
//!
//! While a rule refers to a set, the kernel refuses to destroy or rename it, and its number and name stay the same when
//! it is swapped with another set.

use std::collections::BTreeMap;

use ferroute_netlink::{
    Error, Message, Request, Socket, Writer, attribute_flags::NLA_F_NET_BYTEORDER, ipset::*, nfnetlink,
};

use crate::{Match, Rule};

/// Known numbers of ipsets by name.
#[derive(Debug, Default)]
pub(crate) struct SetNumbers(BTreeMap<Box<str>, u16>);

impl SetNumbers {
    /// Returns the number of a set, if known.
    pub(crate) fn number(&self, name: &str) -> Option<u16> {
        self.0.get(name).copied()
    }

    /// Returns the name of a set, if known.
    pub(crate) fn name(&self, number: u16) -> Option<&str> {
        self.0.iter().find(|(_, known)| **known == number).map(|(name, _)| &**name)
    }

    /// Adds a set.
    pub(crate) fn insert(&mut self, name: &str, number: u16) {
        self.0.insert(name.into(), number);
    }

    /// Forgets all sets.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the names of the sets of a rule.
pub(super) fn names_in(rule: &Rule) -> impl Iterator<Item = &str> {
    rule.matches.iter().filter_map(|module| match module {
        Match::Set(set) => Some(&*set.value().name),
        _ => None,
    })
}

/// Returns the number of the set with a name; `None` if there is no such set.
pub(super) fn number_of(socket: &mut Socket, name: &str) -> Result<Option<u16>, Error> {
    ask(
        socket,
        IPSET_CMD_GET_BYNAME,
        |attributes| attributes.put_str(IPSET_ATTR_SETNAME, name),
        |message| Ok(message.attribute::<{ nfnetlink::HEADER_LENGTH }>(IPSET_ATTR_INDEX)?.u16_be()?),
    )
}

/// Returns the name of the set with a number; `None` if there is no such set, or if the kernel is too old to return it.
pub(super) fn name_of(socket: &mut Socket, number: u16) -> Result<Option<Box<str>>, Error> {
    let found = ask(
        socket,
        IPSET_CMD_GET_BYINDEX,
        |attributes| attributes.put_u16_be(IPSET_ATTR_INDEX | NLA_F_NET_BYTEORDER, number),
        |message| Ok(message.attribute::<{ nfnetlink::HEADER_LENGTH }>(IPSET_ATTR_SETNAME)?.escaped_text().into()),
    );
    match found {
        Err(Error::Refused(_)) => Ok(None),
        result => result,
    }
}

/// Queries a set; `None` if it does not exist.
fn ask<T>(
    socket: &mut Socket,
    kind: u8,
    put: impl FnOnce(&mut Writer<'_>),
    parse: impl Fn(Message<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let mut request = Request::new(command(kind), 0, &HEADER);
    let mut attributes = request.attributes();
    attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL);
    put(&mut attributes);
    drop(attributes);
    match socket.get(&mut request, parse) {
        Err(error) if error.is_not_found() => Ok(None),
        result => result,
    }
}
