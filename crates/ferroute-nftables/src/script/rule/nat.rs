//! Translations of addresses and ports.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    super::{
        expression::Requirements,
        lexer::{Cursor, Token},
    },
    Reading, RuleReader,
};
use crate::model::{Foreign, NAT_FLAGS, Name, NatKind, NatPart, NatTarget, Words, network};

impl RuleReader {
    /// Reads `redirect`, `dnat` or `snat`.
    pub(super) fn nat(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        let kind = match cursor.take() {
            "redirect" => NatKind::Redirect,
            "dnat" => NatKind::Destination,
            _ => NatKind::Source,
        };
        for (word, family) in [("ip", IpFamily::V4), ("ip6", IpFamily::V6)] {
            if cursor.accept(word) {
                reading.require(Requirements { family: Some(family), protocol: None });
            }
        }
        // `dnat ip addr . port to …`
        while ["addr", ".", "port"].contains(&cursor.peek()) {
            cursor.at += 1;
        }
        let prefix = cursor.accept("prefix");
        let target = if !cursor.accept("to") {
            (kind == NatKind::Redirect).then_some(NatTarget::Constants { addresses: None, ports: None })?
        } else if let Some((addresses, ports)) = constants(cursor.peek()) {
            cursor.at += 1;
            match addresses {
                Some((first, last)) if prefix => NatTarget::Network(network(first, last)?),
                addresses => {
                    if let Some((first, _)) = addresses {
                        reading.require(Requirements { family: Some(IpFamily::of(first)), protocol: None });
                    }
                    NatTarget::Constants { addresses, ports }
                }
            }
        } else {
            self.nat_map(prefix, cursor, reading)?
        };
        reading.foreign(Foreign::Nat { kind, target, flags: nat_flags(cursor) });
        Some(())
    }
}

impl RuleReader {
    /// Reads a translation to data of a map, with a port or address outside of the map, if present.
    fn nat_map(&mut self, prefix: bool, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<NatTarget> {
        cursor.accept(":");
        let mut other = None;
        // `10.0.0.1:numgen inc mod 2 map {`.
        let word = cursor.peek();
        let split = word.rsplit_once(':').and_then(|(address, rest)| {
            let address = address.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
            Some((address, rest))
        });
        let mut own: Vec<Token>;
        let mut inner = match split {
            Some((address, rest)) => {
                reading.require(Requirements { family: Some(IpFamily::of(address)), protocol: None });
                other = Some(NatPart::Address(address));
                own = cursor.tokens[cursor.at..].to_vec();
                own[0].text = rest.to_owned();
                if rest.is_empty() {
                    own.remove(0);
                }
                Cursor::new(&own)
            }
            None => Cursor { tokens: cursor.tokens, at: cursor.at },
        };
        let key = self.key(&mut inner, reading)?;
        if !inner.accept("map") {
            return None;
        }
        // `map @backs:8080`.
        let named = inner.peek().strip_prefix('@').and_then(|word| word.split_once(':'));
        let map = match named {
            Some((name, port)) => {
                inner.at += 1;
                other = Some(NatPart::Port(ports(port)?.0));
                Name::from(name)
            }
            None => self.set(&mut inner, &key, true)?,
        };
        cursor.at = cursor.tokens.len() - (inner.tokens.len() - inner.at);
        // `map { … } : 8080`.
        if other.is_none() && cursor.peek().starts_with(':') {
            let word = cursor.take().trim_start_matches(':');
            let word = if word.is_empty() { cursor.peek() } else { word };
            other = Some(match ports(word) {
                Some((port, _)) => {
                    cursor.at += usize::from(cursor.peek() == word);
                    NatPart::Port(port)
                }
                // `map { … } : tcp dport map { … }`.
                None => {
                    let key = self.key(cursor, reading)?;
                    let map = if cursor.accept("map") { self.set(cursor, &key, true)? } else { return None };
                    NatPart::PortOf { key, map }
                }
            });
        }
        Some(NatTarget::Map { key, map, other, prefix })
    }
}

type Constants = (Option<(IpAddr, IpAddr)>, Option<(u16, u16)>);

/// Reads the new addresses and ports of a translation.
fn constants(text: &str) -> Option<Constants> {
    if let Some(text) = text.strip_prefix(':') {
        return Some((None, Some(ports(text)?)));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((Some((address.ip(), address.ip())), Some((address.port(), address.port()))));
    }
    if let Ok(net) = text.parse::<IpNet>() {
        return Some((Some((net.network(), net.broadcast())), None));
    }
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse::<IpAddr>().ok()?, last.parse::<IpAddr>().ok()?))
    };
    if let Some(addresses) = range(text) {
        return Some((Some(addresses), None));
    }
    let (addresses, rest) = match text.strip_prefix('[') {
        Some(text) => text.split_once("]:")?,
        None => text.rsplit_once(':')?,
    };
    Some((Some(range(addresses)?), Some(ports(rest)?)))
}

pub(super) fn ports(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| u16::try_from(Words::Port.parse(text)?).ok();
    // Names may have a hyphen, too.
    if let Some(port) = port(text) {
        return Some((port, port));
    }
    let (first, last) = text.split_once('-')?;
    Some((port(first)?, port(last)?))
}

/// Reads the flags of a translation.
pub(super) fn nat_flags(cursor: &mut Cursor<'_>) -> u32 {
    let mut flags = 0;
    loop {
        match NAT_FLAGS.iter().find(|(_, word)| cursor.peek() == *word) {
            Some((flag, _)) => flags |= flag,
            None if cursor.peek() == "," => {}
            None => return flags,
        }
        cursor.at += 1;
    }
}
