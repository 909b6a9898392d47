//! ipsets of any program, as rules of iptables match packets with them.

use std::{collections::BTreeMap, net::IpAddr};

use ferroute_core::{IpFamily, Protocol};
use ferroute_iptables::SetSide;
use ipnet::IpNet;

use crate::{PacketState, changes::EntryChange, iptables::value_and_mask};

/// The ipsets of a network namespace, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipsets(BTreeMap<String, Ipset>);

/// An ipset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipset {
    /// The type: `hash:ip,port`, `bitmap:ip`, `list:set`, …
    pub kind: String,
    /// Family of its addresses; `None` if it has no addresses.
    pub family: Option<IpFamily>,
    /// The prefix length to which addresses of packets are shortened (`netmask`).
    pub netmask: Option<u8>,
    /// The bits of marks of packets that count (`markmask`).
    pub markmask: u32,
    /// The first and the last address or port that a bitmap can have.
    pub range: Option<(u32, u32)>,
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
    /// The mark that target SET gives to packets, and its mask (`skbmark`).
    pub packet_mark: Option<(u32, u32)>,
    /// Packets do not match (`nomatch`).
    pub nomatch: bool,
    /// A set, in a set of sets.
    pub set: Option<String>,
}

/// A set in the output of `ipset list`.
#[derive(Default)]
struct Listed {
    name: String,
    kind: String,
    /// Number of entries that have not been read; `None` if it is not printed.
    missing: Option<usize>,
    has_members: bool,
}

/// Maximum depth of sets within sets. The kernel allows one level.
const MAX_DEPTH: usize = 4;

impl Ipsets {
    /// Adds entries to a set, which is created on the first call.
    pub fn add(&mut self, name: &str, set: Ipset) {
        match self.0.get_mut(name) {
            Some(known) => known.entries.extend(set.entries),
            None => drop(self.0.insert(name.to_owned(), set)),
        }
    }

    /// Adds the sets in the output of `ipset save` or `ipset list`. A set with entries in other forms, or of which entries
    /// are missing, is unknown.
    pub fn add_save(&mut self, text: &str) {
        let mut listed = Listed::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["create", name, kind, options @ ..] => self.add(name, Ipset::from_save(kind, options)),
                ["add", name, entry, options @ ..] => self.add_entry(name, entry, options),
                ["Name:", name] => {
                    self.end(&std::mem::take(&mut listed));
                    (*name).clone_into(&mut listed.name);
                }
                ["Type:", kind] => (*kind).clone_into(&mut listed.kind),
                ["Header:", options @ ..] => self.add(&listed.name, Ipset::from_save(&listed.kind, options)),
                ["Number", "of", "entries:", number] => listed.missing = number.parse().ok(),
                ["Members:"] => listed.has_members = true,
                [] => self.end(&std::mem::take(&mut listed)),
                [entry, options @ ..] if listed.has_members && listed.missing != Some(0) => {
                    listed.missing = listed.missing.map(|missing| missing - 1);
                    self.add_entry(&listed.name, entry, options);
                }
                _ => {}
            }
        }
        self.end(&listed);
    }

    /// Returns the entries of all sets.
    pub fn entries(&self) -> impl Iterator<Item = &IpsetEntry> {
        self.0.values().flat_map(|set| &set.entries)
    }

    fn add_entry(&mut self, name: &str, entry: &str, options: &[&str]) {
        let Some(set) = self.0.get_mut(name) else { return };
        match IpsetEntry::from_save(&set.kind, entry, options) {
            Some(entry) => set.entries.push(entry),
            // It is unknown whether a packet belongs to a set of an unknown type.
            None => set.kind.clear(),
        }
    }

    /// Ends a set in the output of `ipset list`, whose entries `-terse` leaves out.
    fn end(&mut self, listed: &Listed) {
        if let Some(set) = self.0.get_mut(&listed.name)
            && (!listed.has_members || listed.missing.is_some_and(|missing| missing > 0))
        {
            set.kind.clear();
        }
    }

    /// Returns the entry of a packet in a set, `Some(None)` if there is none; `None` if unknown.
    fn entry(
        &self,
        name: &str,
        sides: &[SetSide],
        packet: &PacketState<'_>,
        depth: usize,
    ) -> Option<Option<IpsetEntry>> {
        let set = self.0.get(name)?;
        let dimensions = set.dimensions()?;
        if set.kind == "list:set" {
            if depth == MAX_DEPTH {
                return None;
            }
            let mut is_unknown = false;
            for member in set.entries.iter().filter_map(|entry| entry.set.as_deref()) {
                match self.entry(member, sides, packet, depth + 1) {
                    Some(Some(entry)) => return Some(Some(entry)),
                    Some(None) => {}
                    None => is_unknown = true,
                }
            }
            return (!is_unknown).then_some(None);
        }
        let changed = set.changed(name, packet)?;
        let entries = changed.as_deref().unwrap_or(&set.entries);
        // The kernel matches no packet with fewer sides than dimensions.
        if sides.len() < dimensions.len() || set.is_of_other_family(packet) || entries.is_empty() {
            return Some(None);
        }
        // Bitmaps match sources only.
        if set.kind == "bitmap:ip,mac" && sides[1] != SetSide::Source {
            return Some(None);
        }
        if dimensions.contains(&"mac") {
            let is_excluded = |entry: &IpsetEntry| !entry.matches(set, &dimensions, sides, packet);
            return entries.iter().all(is_excluded).then_some(None);
        }
        let matching = entries.iter().filter(|entry| entry.matches(set, &dimensions, sides, packet));
        // The most specific network decides.
        let best = matching.max_by_key(|entry| entry.networks.iter().map(IpNet::prefix_len).collect::<Vec<_>>());
        Some(best.filter(|entry| !entry.nomatch).cloned())
    }

    /// Returns the set to which entries are added through a set: for a set of sets, its first one.
    fn adds_to<'s>(&'s self, name: &'s str) -> &'s str {
        match self.0.get(name) {
            Some(set) if set.kind == "list:set" => {
                set.entries.iter().find_map(|entry| entry.set.as_deref()).unwrap_or(name)
            }
            _ => name,
        }
    }
}

impl PacketState<'_> {
    /// Reports whether the packet is in a set; `None` if unknown.
    pub(crate) fn is_in_ipset(&self, name: &str, sides: &[SetSide]) -> Option<bool> {
        if let Some(sets) = self.ipsets.filter(|sets| sets.0.contains_key(name)) {
            return sets.entry(name, sides, self, 0).map(|entry| entry.is_some());
        }
        // If the set was not read, only the changes on this packet's path are known.
        let ends = (self.source, self.destination);
        let mut changes = self.changes.entries.iter().rev().filter(|change| *change.set == *name);
        changes.find(|change| *change.sides == *sides && change.ends == ends).map(|change| change.is_added)
    }

    /// Returns the mark that the packet's entry in a set assigns to it, with its mask, `Some(None)` if there is none;
    /// `None` if unknown.
    pub(crate) fn mark_in_ipset(&self, name: &str, sides: &[SetSide]) -> Option<Option<(u32, u32)>> {
        let entry = self.ipsets?.entry(name, sides, self, 0)?;
        Some(entry.map(|entry| entry.packet_mark.unwrap_or((0, u32::MAX))))
    }

    /// Adds an entry for the packet to a set, or deletes it.
    pub(crate) fn change_ipset(&mut self, name: &str, sides: &[SetSide], is_added: bool) {
        let name = self.ipsets.map_or(name, |sets| sets.adds_to(name));
        let set = self.ipsets.and_then(|sets| sets.0.get(name));
        let entry = match set {
            Some(set) if set.dimensions().is_some_and(|dimensions| dimensions.len() > sides.len()) => return,
            Some(set) if set.is_of_other_family(self) => return,
            Some(set) => match IpsetEntry::of_packet(set, sides, self).map(|entry| (set.takes(&entry, self), entry)) {
                Some((Some(false), _)) => return,
                Some((Some(true), entry)) => Some(entry),
                Some((None, _)) | None => None,
            },
            None => None,
        };
        let ends = (self.source, self.destination);
        self.changes.entries.push(EntryChange { set: name.into(), sides: sides.into(), ends, entry, is_added });
    }
}

impl Ipset {
    /// Returns the dimensions of the entries; `None` if the type is unknown.
    fn dimensions(&self) -> Option<Vec<&str>> {
        Some(self.kind.split_once(':')?.1.split(',').collect())
    }

    fn is_of_other_family(&self, packet: &PacketState<'_>) -> bool {
        self.family.is_some_and(|family| family != packet.family())
    }

    /// Reports whether the set can contain the entry: bitmaps have limits. `None` if unknown.
    fn takes(&self, entry: &IpsetEntry, packet: &PacketState<'_>) -> Option<bool> {
        if !self.kind.starts_with("bitmap:") {
            return Some(true);
        }
        let number = match (entry.networks.first(), entry.port) {
            (Some(IpNet::V4(net)), _) => net.addr().into(),
            (None, Some(port)) if has_bit_in_bitmaps(packet.protocol()) => port.into(),
            _ => return Some(false),
        };
        self.range.map(|(first, last)| (first..=last).contains(&number))
    }

    /// Returns the entries after the changes on a packet's path, `Some(None)` if there are none; `None` if they are
    /// unknown.
    fn changed(&self, name: &str, packet: &PacketState<'_>) -> Option<Option<Vec<IpsetEntry>>> {
        let mut changes = packet.changes.entries.iter().filter(|change| *change.set == *name).peekable();
        if changes.peek().is_none() {
            return Some(None);
        }
        let mut entries = self.entries.clone();
        for change in changes {
            let entry = change.entry.as_ref()?;
            entries.retain(|other| !other.is_same(entry));
            if change.is_added {
                entries.push(entry.clone());
            }
        }
        Some(Some(entries))
    }

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
        let limit = |text: &str| {
            let address = text.parse::<std::net::Ipv4Addr>();
            address.map(u32::from).ok().or_else(|| text.parse().ok())
        };
        let range = option("range").and_then(|range| {
            let (first, last) = range.split_once('-')?;
            Some((limit(first)?, limit(last)?))
        });
        let markmask = option("markmask").and_then(|mask| u32::from_str_radix(mask.trim_start_matches("0x"), 16).ok());
        // It is unknown whether a packet belongs to a set of an unknown type.
        let kind = if options.contains(&"bitmask") { "" } else { kind };
        Self {
            kind: kind.to_owned(),
            family,
            netmask: option("netmask").and_then(|length| length.parse().ok()),
            markmask: markmask.unwrap_or(u32::MAX),
            range,
            entries: Vec::new(),
        }
    }
}

impl IpsetEntry {
    /// Reads an entry of a set of a type; `None` for other forms.
    fn from_save(kind: &str, text: &str, options: &[&str]) -> Option<Self> {
        let after = |name: &str| {
            let at = options.iter().position(|option| *option == name)?;
            options.get(at + 1).copied()
        };
        let packet_mark = after("skbmark").and_then(value_and_mask);
        let mut entry = Self { nomatch: options.contains(&"nomatch"), packet_mark, ..Self::default() };
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

    /// Returns the entry that rules add for a packet; `None` if the set may not accept it, or if its form is unknown.
    fn of_packet(set: &Ipset, sides: &[SetSide], packet: &PacketState<'_>) -> Option<Self> {
        let mut entry = Self::default();
        for (dimension, side) in set.dimensions()?.into_iter().zip(sides) {
            let (end, interface) = match side {
                SetSide::Source => (packet.source, &packet.in_interface),
                SetSide::Destination => (packet.destination, &packet.out_interface),
            };
            match dimension {
                "ip" => {
                    let length = set.netmask.unwrap_or(if end.is_ipv4() { 32 } else { 128 });
                    entry.networks.push(IpNet::new(end.ip(), length).ok()?.trunc());
                }
                // The kernel adds networks of the largest prefix length in the set.
                "net" => {
                    let nth = entry.networks.len();
                    let lengths = set.entries.iter().filter_map(|entry| entry.networks.get(nth)).map(IpNet::prefix_len);
                    let length = lengths.max().unwrap_or(if end.is_ipv4() { 32 } else { 128 });
                    entry.networks.push(IpNet::new(end.ip(), length).ok()?.trunc());
                }
                "port" => {
                    entry.protocol = (set.kind != "bitmap:port").then_some(packet.protocol().number());
                    entry.port = Some(end.port());
                }
                "mark" => entry.mark = Some(packet.mark & set.markmask),
                "iface" => entry.interface = Some(interface.as_deref()?.to_owned()),
                _ => return None,
            }
        }
        Some(entry)
    }

    /// Reports whether two entries have the same key.
    fn is_same(&self, other: &Self) -> bool {
        let key = |entry: &Self| (entry.protocol, entry.port, entry.mark, entry.wildcard, entry.physdev);
        self.networks == other.networks && key(self) == key(other) && self.interface == other.interface
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
                    let protocol = packet.protocol();
                    let is_protocol = match self.protocol {
                        Some(number) => number == protocol.number(),
                        None => has_bit_in_bitmaps(protocol),
                    };
                    is_protocol && self.port == Some(end.port())
                }
                "mark" => self.mark == Some(packet.mark & set.markmask),
                // The MAC address is unknown, so it may match.
                "mac" => true,
                "iface" => {
                    let interface = match side {
                        SetSide::Source => packet.in_interface.as_deref(),
                        SetSide::Destination => packet.out_interface.as_deref(),
                    };
                    // Packets are assumed to be routed.
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

/// Reports whether bitmaps have the ports of a protocol.
fn has_bit_in_bitmaps(protocol: Protocol) -> bool {
    [Protocol::Tcp, Protocol::Udp].contains(&protocol)
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
