//! ipsets of any program, as rules of iptables match packets with them.

use std::{collections::BTreeMap, net::IpAddr};

use ferroute_core::IpFamily;
use ferroute_iptables::{SetMatch, SetSide};
use ipnet::IpNet;

use crate::PacketState;

/// The ipsets of a network namespace, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipsets(BTreeMap<String, Ipset>);

/// An ipset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipset {
    /// The type: `hash:ip,port`, `bitmap:ip`, `list:set`, …
    pub kind: String,
    /// The family of its addresses; `None` if it has none.
    pub family: Option<IpFamily>,
    /// The prefix length to which addresses of packets are shortened (`netmask`).
    pub netmask: Option<u8>,
    /// The bits of marks of packets that count (`markmask`).
    pub markmask: u32,
    /// The entries. For `list:set`, each has the name of a set.
    pub entries: Vec<IpsetEntry>,
}

/// An entry of an ipset. Which fields there are depends on the set's type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpsetEntry {
    /// The addresses or networks, in the order of the type's dimensions.
    pub networks: Vec<IpNet>,
    /// The protocol number of `port`.
    pub protocol: Option<u8>,
    /// The port.
    pub port: Option<u16>,
    /// The mark.
    pub mark: Option<u32>,
    /// The interface; a prefix of its name if `wildcard`.
    pub interface: Option<String>,
    /// The interface is the beginning of a name.
    pub wildcard: bool,
    /// The interface is a port of a bridge.
    pub physdev: bool,
    /// Packets do not match (`nomatch`).
    pub nomatch: bool,
    /// A set, in a set of sets.
    pub set: Option<String>,
}

/// The longest chain of sets in sets that is followed. The kernel allows one level.
const MAX_DEPTH: usize = 4;

impl Ipsets {
    /// Adds entries to a set, which is created on the first call.
    pub fn add(&mut self, name: &str, set: Ipset) {
        match self.0.get_mut(name) {
            Some(known) => known.entries.extend(set.entries),
            None => drop(self.0.insert(name.to_owned(), set)),
        }
    }

    /// Adds the sets in the output of `ipset save`. Entries in other forms are left out, so that their set is unknown.
    pub fn add_save(&mut self, text: &str) {
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["create", name, kind, options @ ..] => self.add(name, Ipset::from_save(kind, options)),
                ["add", name, entry, options @ ..] => {
                    let Some(set) = self.0.get_mut(*name) else { continue };
                    match IpsetEntry::from_save(&set.kind, entry, options) {
                        Some(entry) => set.entries.push(entry),
                        // Of an unknown type, no packet's membership is known.
                        None => set.kind.clear(),
                    }
                }
                _ => {}
            }
        }
    }

    /// Reports whether a packet is in a set; `None` if that is unknown.
    pub(crate) fn matches(&self, wanted: &SetMatch, packet: &PacketState<'_>) -> Option<bool> {
        self.contains(&wanted.name, &wanted.sides, packet, 0)
    }

    fn contains(&self, name: &str, sides: &[SetSide], packet: &PacketState<'_>, depth: usize) -> Option<bool> {
        let set = self.0.get(name)?;
        let (_, dimensions) = set.kind.split_once(':')?;
        if set.kind == "list:set" {
            if depth == MAX_DEPTH {
                return None;
            }
            let members = set.entries.iter().filter_map(|entry| entry.set.as_deref());
            let mut results = members.map(|member| self.contains(member, sides, packet, depth + 1));
            let mut is_unknown = false;
            let is_member = results.any(|result| {
                is_unknown |= result.is_none();
                result == Some(true)
            });
            return (is_member || !is_unknown).then_some(is_member);
        }
        let dimensions: Vec<&str> = dimensions.split(',').collect();
        let is_other_family = set.family.is_some_and(|family| family != packet.family());
        // The kernel matches no packet with fewer sides than dimensions.
        if sides.len() < dimensions.len() || is_other_family || set.entries.is_empty() {
            return Some(false);
        }
        if dimensions.contains(&"mac") {
            return None;
        }
        let matching = set.entries.iter().filter(|entry| entry.matches(set, &dimensions, sides, packet));
        // The most specific network decides.
        let best = matching.max_by_key(|entry| entry.networks.iter().map(IpNet::prefix_len).collect::<Vec<_>>());
        Some(best.is_some_and(|entry| !entry.nomatch))
    }
}

impl Ipset {
    /// Reads the type and the options of a set.
    fn from_save(kind: &str, options: &[&str]) -> Self {
        let option = |name: &str| {
            let at = options.iter().position(|option| *option == name)?;
            options.get(at + 1).copied()
        };
        let family = match option("family") {
            Some("inet6") => Some(IpFamily::V6),
            Some(_) => Some(IpFamily::V4),
            None => (kind == "bitmap:ip" || kind == "bitmap:ip,mac").then_some(IpFamily::V4),
        };
        let markmask = option("markmask").and_then(|mask| u32::from_str_radix(mask.trim_start_matches("0x"), 16).ok());
        Self {
            kind: kind.to_owned(),
            family,
            netmask: option("netmask").and_then(|length| length.parse().ok()),
            markmask: markmask.unwrap_or(u32::MAX),
            entries: Vec::new(),
        }
    }
}

impl IpsetEntry {
    /// Reads an entry of a set of a type; `None` if it has another form.
    fn from_save(kind: &str, text: &str, options: &[&str]) -> Option<Self> {
        let mut entry = Self { nomatch: options.contains(&"nomatch"), ..Self::default() };
        let (_, dimensions) = kind.split_once(':')?;
        if kind == "list:set" {
            entry.set = Some(text.to_owned());
            return Some(entry);
        }
        let mut fields = text.split(',');
        for dimension in dimensions.split(',') {
            let field = fields.next()?;
            match dimension {
                "ip" | "net" => {
                    let net = field.parse::<IpNet>().or_else(|_| field.parse().map(|address: IpAddr| address.into()));
                    entry.networks.push(net.ok()?);
                }
                "port" => {
                    let (protocol, port) = match field.split_once(':') {
                        Some((name, port)) => (Some(protocol_number(name)?), port),
                        None => (None, field),
                    };
                    entry.protocol = protocol.or(if dimensions == "port" { None } else { Some(6) });
                    entry.port = Some(port.parse().ok()?);
                }
                "mark" => {
                    entry.mark = Some(u32::from_str_radix(field.trim_start_matches("0x"), 16).ok()?);
                }
                "iface" => {
                    entry.physdev = field.starts_with("physdev:");
                    entry.wildcard = options.contains(&"wildcard");
                    entry.interface = Some(field.trim_start_matches("physdev:").to_owned());
                }
                "mac" => {}
                _ => return None,
            }
        }
        Some(entry)
    }

    fn matches(&self, set: &Ipset, dimensions: &[&str], sides: &[SetSide], packet: &PacketState<'_>) -> bool {
        let mut networks = self.networks.iter();
        dimensions.iter().zip(sides).all(|(dimension, side)| {
            let end = match side {
                SetSide::Source => packet.source,
                SetSide::Destination => packet.destination,
            };
            match *dimension {
                "ip" | "net" => networks.next().is_some_and(|network| {
                    let address = match (set.netmask, *dimension) {
                        (Some(length), "ip") => IpNet::new(end.ip(), length).map_or(end.ip(), |net| net.network()),
                        _ => end.ip(),
                    };
                    network.contains(&address)
                }),
                "port" => {
                    let is_protocol = self.protocol.is_none_or(|number| number == packet.protocol().number());
                    is_protocol && self.port == Some(end.port())
                }
                "mark" => self.mark == Some(packet.mark & set.markmask),
                "iface" => {
                    let interface = match side {
                        SetSide::Source => packet.in_interface.as_deref(),
                        SetSide::Destination => packet.out_interface.as_deref(),
                    };
                    // Packets are taken for routed ones.
                    !self.physdev
                        && interface.zip(self.interface.as_deref()).is_some_and(|(actual, wanted)| {
                            match self.wildcard {
                                true => actual.starts_with(wanted),
                                false => actual == wanted,
                            }
                        })
                }
                _ => false,
            }
        })
    }
}

fn protocol_number(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(6),
        "udp" => Some(17),
        "sctp" => Some(132),
        "udplite" => Some(136),
        "icmp" => Some(1),
        "icmpv6" => Some(58),
        name => name.parse().ok(),
    }
}

#[cfg(test)]
mod tests;
