//! Modules whose options are evaluated together.

use std::net::IpAddr;

use ferroute_core::Protocol;

use super::foreign::{Words, number};
use crate::{Origin, PacketState, jhash::jhash};

impl Words<'_> {
    /// Returns the share of packets that `-m statistic --mode nth` matches: a counter may be at any number.
    pub(super) fn nth(&self) -> Option<f64> {
        let (negated, ..) = self.options.iter().find(|(_, option, _)| *option == "--every")?;
        let every: u32 = self.argument("--every")?.parse().ok().filter(|every| *every > 0)?;
        let share = 1.0 / f64::from(every);
        Some(if *negated { 1.0 - share } else { share })
    }

    /// Reports whether `-m ipv6header` matches a packet without extension headers.
    pub(super) fn extension_headers(&self) -> Option<bool> {
        let (negated, _, arguments) = self.options.iter().find(|(_, option, _)| *option == "--header")?;
        let mut are_present = arguments.first()?.split(',').map(|header| ["prot", "protocol", "255"].contains(&header));
        Some(match self.has("--soft") {
            // All of these, and possibly others; negated, none of them.
            true => are_present.all(|is_present| is_present != *negated),
            false => are_present.all(|is_present| is_present) != *negated,
        })
    }

    /// Evaluates `-m connlimit` with a limit of 0: the packet's own connection is counted.
    pub(super) fn exceeds_no_connections(&self) -> Option<bool> {
        let mut limits = self.options.iter().filter(|(_, _, arguments)| arguments.first() == Some(&"0"));
        limits.find_map(|(negated, option, _)| match *option {
            "--connlimit-above" => Some(!negated),
            "--connlimit-upto" => Some(*negated),
            _ => None,
        })
    }

    fn is_negated(&self) -> bool {
        self.options.iter().any(|(negated, ..)| *negated)
    }
}

impl PacketState<'_> {
    /// Evaluates `-m connbytes`, which counts the packet itself; `None` if the result depends on its length.
    pub(super) fn matches_counters(&self, words: &Words<'_>) -> Option<bool> {
        let bound = |text: &str| text.parse::<u64>().ok();
        let (first, last) = match words.argument("--connbytes")?.split_once(':') {
            None => (bound(words.argument("--connbytes")?)?, u64::MAX),
            Some((first, "")) => (bound(first)?, u64::MAX),
            Some((first, last)) => (bound(first)?, bound(last)?),
        };
        let (least, most) = match (words.argument("--connbytes-dir")?, words.argument("--connbytes-mode")?) {
            ("reply", _) => (0, 0),
            (_, "packets") => (1, 1),
            (_, "bytes" | "avgpkt") => (SHORTEST, LONGEST),
            _ => return None,
        };
        let is_within = (first..=last).contains(&least) && (first..=last).contains(&most);
        let is_outside = most < first || last < least;
        (is_within || is_outside).then_some(is_within != words.is_negated())
    }

    /// Evaluates `-m cluster`, which hashes the source of the connection.
    pub(super) fn matches_cluster(&self, words: &Words<'_>) -> Option<bool> {
        let option = |name| number(words.argument(name)?);
        let mask = match option("--cluster-local-nodemask") {
            Some(mask) => mask,
            None => 1u32.checked_shl(option("--cluster-local-node")?.checked_sub(1)?)?,
        };
        let (seed, total) = (option("--cluster-hash-seed")?, option("--cluster-total-nodes")?);
        let node = match self.tracked.0.ip() {
            IpAddr::V4(source) => jhash(&source.octets(), seed, total),
            IpAddr::V6(source) => jhash(&source.octets(), seed, total),
        };
        let is_local = mask & 1u32.checked_shl(node)? != 0;
        Some(is_local != words.is_negated())
    }

    /// Evaluates an option of `-m physdev`; `None` if it is unknown which port of a bridge the packet passes. Rules see the ports if
    /// the bridge's packets pass netfilter: that of arrival at all hooks, also of routed packets, and that of departure if the bridge
    /// itself forwards the packet.
    pub(super) fn passes_port(&self, option: &str, name: Option<&str>) -> Option<bool> {
        let bridge = match &self.original.origin {
            Origin::Interface(name) if !self.looped && !self.resent => name.as_str(),
            _ => return Some(false),
        };
        let ports = self.host().ports_seen(bridge, self.family());
        let is_bridged = !ports.is_empty() && self.out_interface.as_deref() == Some(bridge);
        let is_one_of = |pattern: &str| {
            let is_it = |port: &&String| match pattern.strip_suffix('+') {
                Some(prefix) => port.starts_with(prefix),
                None => *port == pattern,
            };
            match ports.iter().filter(is_it).count() {
                0 => Some(false),
                count => (count == ports.len()).then_some(true),
            }
        };
        match (option, name) {
            ("--physdev-is-in", _) => Some(!ports.is_empty()),
            ("--physdev-is-out" | "--physdev-is-bridged", _) => Some(is_bridged),
            ("--physdev-out", Some(_)) if !is_bridged => Some(false),
            ("--physdev-in" | "--physdev-out", Some(pattern)) => is_one_of(pattern),
            _ => None,
        }
    }

    /// Evaluates `-m string` for the first packet of a TCP connection, which has no data. Text of a few characters is
    /// not in its headers, unless it is part of the addresses and ports.
    pub(super) fn matches_string(&self, words: &Words<'_>) -> Option<bool> {
        let text = words.argument("--string")?.trim_matches('"').as_bytes();
        if self.protocol() != Protocol::Tcp || text.len() < MIN_TEXT {
            return None;
        }
        let mut header = Vec::new();
        for address in [self.source.ip(), self.destination.ip()] {
            match address {
                IpAddr::V4(address) => header.extend(address.octets()),
                IpAddr::V6(address) => header.extend(address.octets()),
            }
        }
        header.extend([self.source.port(), self.destination.port()].into_iter().flat_map(u16::to_be_bytes));
        let is_contained = header.windows(text.len()).any(|part| part.eq_ignore_ascii_case(text));
        (!is_contained).then_some(words.is_negated())
    }
}

/// The length of an IPv4 header, and that of the longest packet.
const SHORTEST: u64 = 20;
const LONGEST: u64 = 65_575;
/// Shorter text may be in fields of headers that have random values.
const MIN_TEXT: usize = 3;
