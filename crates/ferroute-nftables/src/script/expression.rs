//! Properties of packets: the left-hand sides of conditions.

use ferroute_core::IpFamily;
use ferroute_netlink::nf_tables::{DESTINATION_PORT_OFFSET, SOURCE_PORT_OFFSET};

use super::lexer::Cursor;
use crate::{
    model::{
        DataType, End, FibInterface, FibResult, Field, HashInput, Hashed, NumberSource, PayloadBase, Property, Sender,
        Words, hash_inputs, protocol_of,
    },
    wire::{destination_offset, protocol_offset, source_offset},
};

/// Requirements of a property for a packet: `tcp dport` requires a TCP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Requirements {
    pub(super) family: Option<IpFamily>,
    pub(super) protocol: Option<u8>,
}

/// Reads a property; `None` if it is not supported, in which case the position is undefined.
pub(super) fn property(cursor: &mut Cursor<'_>, family: IpFamily) -> Option<(Property, Requirements)> {
    let plain = |property: Property| Some((property, Requirements::default()));
    let of_family =
        |property: Property, family| Some((property, Requirements { family: Some(family), protocol: None }));
    let word = cursor.take();
    match word {
        "ip" | "ip6" => {
            let version = if word == "ip" { IpFamily::V4 } else { IpFamily::V6 };
            let field = cursor.take();
            of_family(
                match field {
                    "saddr" => Property::Field(Field::Saddr),
                    "daddr" => Property::Field(Field::Daddr),
                    "protocol" | "nexthdr" => Property::Field(Field::L4proto),
                    "version" => Property::IpVersion,
                    "hdrlength" => Property::IpHeaderLength,
                    "frag-off" => Property::IpFragment,
                    "option" => option("ip option", cursor)?,
                    field => Property::named(&format!("{word} {field}"))?,
                },
                version,
            )
        }
        "tcp" | "udp" | "sctp" | "dccp" | "udplite" | "th" => {
            let property = match cursor.take() {
                "option" if word == "tcp" => option("tcp option", cursor)?,
                "chunk" if word == "sctp" => option("sctp chunk", cursor)?,
                "sport" => Property::Field(Field::Sport),
                "dport" => Property::Field(Field::Dport),
                "flags" if word == "tcp" => Property::TcpFlags,
                field => Property::named(&format!("{word} {field}"))?,
            };
            // Packets of other protocols lack any option and chunk.
            let is_existence = property.words(family) == Words::Existence;
            Some((property, if is_existence { Requirements::default() } else { requirements(word) }))
        }
        "icmp" | "icmpv6" | "igmp" | "ah" | "esp" | "comp" | "hbh" | "dst" | "frag" | "mh" | "srh" | "exthdr" => {
            Some((Property::named(&format!("{word} {}", cursor.take()))?, requirements(word)))
        }
        "ether" | "vlan" => plain(Property::named(&format!("{word} {}", cursor.take()))?),
        "meta" => plain(meta(cursor.take())?),
        "ct" => plain(connection(cursor)?),
        "fib" => plain(fib(cursor)?),
        "numgen" | "jhash" | "symhash" => number(word, cursor, family),
        "osf" => {
            if cursor.accept("ttl") {
                cursor.at += 1;
            }
            // The version is a part of the name for the kernel.
            ["name", "version"].contains(&cursor.take()).then_some(())?;
            plain(Property::named("osf name")?)
        }
        "socket" | "rt" => {
            let mut text = format!("{word} {}", cursor.take());
            if Property::named(&text).is_none() {
                text += &format!(" {}", cursor.take());
            }
            if text == "socket cgroupv2" && cursor.accept("level") {
                cursor.at += 1;
            }
            plain(Property::named(&text)?)
        }
        "ipsec" => {
            let (direction, key) = (cursor.take(), cursor.take());
            plain(Property::named(&format!("ipsec {direction} {key}"))?)
        }
        raw if raw.starts_with('@') => plain(payload(raw, family)?),
        key => plain(meta(key)?),
    }
}

/// Reads the name of an option and, if present, one of its fields.
fn option(kind: &str, cursor: &mut Cursor<'_>) -> Option<Property> {
    let (name, field) = (cursor.take(), cursor.peek());
    let name = if name == "mss" { "maxseg" } else { name };
    let of_field = Property::named(&format!("{kind} {name} {field}"));
    cursor.at += usize::from(of_field.is_some());
    of_field.or_else(|| Property::named(&format!("{kind} {name}")))
}

fn meta(key: &str) -> Option<Property> {
    Some(match key {
        "mark" => Property::Field(Field::MetaMark),
        "priority" => Property::Field(Field::MetaPriority),
        "iifname" => Property::Field(Field::Iifname),
        "oifname" => Property::Field(Field::Oifname),
        "l4proto" => Property::Field(Field::L4proto),
        "iif" => Property::Interface { output: false },
        "oif" => Property::Interface { output: true },
        "pkttype" => Property::PacketType,
        "protocol" => Property::EtherType,
        "nfproto" => Property::Nfproto,
        "skuid" => Property::Sender(Sender::User),
        "skgid" => Property::Sender(Sender::Group),
        "cgroup" => Property::Sender(Sender::Cgroup),
        key => Property::named(&format!("meta {key}")).or_else(|| Property::named(key))?,
    })
}

fn connection(cursor: &mut Cursor<'_>) -> Option<Property> {
    let direction = match cursor.peek() {
        "original" => Some(false),
        "reply" => Some(true),
        _ => None,
    };
    if let Some(reply) = direction {
        cursor.at += 1;
        if ["ip", "ip6"].contains(&cursor.peek()) {
            cursor.at += 1;
        }
        let end = match cursor.take() {
            "saddr" => End::Saddr,
            "daddr" => End::Daddr,
            "proto-src" => End::Sport,
            "proto-dst" => End::Dport,
            "protocol" => return Some(Property::CtProtocol),
            "zone" => return Some(Property::CtZone),
            key => return Property::named(&format!("ct {} {key}", if reply { "reply" } else { "original" })),
        };
        return Some(Property::CtEnd { reply, end });
    }
    Some(match cursor.take() {
        "state" => Property::Field(Field::CtState),
        "status" => Property::Field(Field::CtStatus),
        "mark" => Property::CtMark,
        "direction" => Property::CtDirection,
        "zone" => Property::CtZone,
        "helper" => Property::CtHelper,
        "protocol" => Property::CtProtocol,
        "l3proto" => Property::CtFamily,
        key => Property::named(&format!("ct {key}"))?,
    })
}

fn fib(cursor: &mut Cursor<'_>) -> Option<Property> {
    let (mut source, mut mark, mut interface) = (None, false, FibInterface::Any);
    loop {
        match cursor.take() {
            "saddr" => source = Some(true),
            "daddr" => source = Some(false),
            "mark" => mark = true,
            "iif" => interface = FibInterface::Input,
            "oif" => interface = FibInterface::Output,
            _ => return None,
        }
        if !cursor.accept(".") {
            break;
        }
    }
    let (source, result) = (source?, cursor.take());
    Some(match (result, source, mark || interface != FibInterface::Any) {
        ("type", true, false) => Property::Field(Field::FibSaddrType),
        ("type", false, false) => Property::Field(Field::FibDaddrType),
        ("type", ..) => Property::Fib { source, mark, interface, result: FibResult::Type },
        ("oifname", ..) => Property::Fib { source, mark, interface, result: FibResult::InterfaceName },
        ("oif", ..) => {
            let is_existence = ["missing", "exists", "0"].contains(&cursor.peek())
                || (["!=", "=="].contains(&cursor.peek()) && cursor.peek_at(1) == "0");
            let result = if is_existence { FibResult::Existence } else { FibResult::Interface };
            Property::Fib { source, mark, interface, result }
        }
        _ => return None,
    })
}

fn number(word: &str, cursor: &mut Cursor<'_>, family: IpFamily) -> Option<(Property, Requirements)> {
    let (mut hashed, mut required) = (None, Requirements::default());
    let source = match word {
        "symhash" => NumberSource::SymmetricHash,
        "jhash" => {
            let mut inputs = Vec::new();
            loop {
                let (property, requirements) = property(cursor, family)?;
                inputs.push(Hashed::of(property)?);
                required.family = requirements.family.or(required.family);
                required.protocol = requirements.protocol.or(required.protocol);
                if !cursor.accept(".") {
                    break;
                }
            }
            hashed = match inputs.as_slice() {
                [Hashed::Field(Field::Saddr)] => Some(HashInput::Saddr),
                [Hashed::Field(Field::Saddr), Hashed::Field(Field::Sport)] => Some(HashInput::SaddrSport),
                _ => None,
            };
            NumberSource::Hash(hash_inputs(inputs))
        }
        _ if cursor.accept("inc") => NumberSource::Incremental,
        _ if cursor.accept("random") => NumberSource::Random,
        _ => return None,
    };
    if !cursor.accept("mod") {
        return None;
    }
    let count: u32 = cursor.take().parse().ok().filter(|count| *count > 0)?;
    // Without a seed, the kernel has chosen one.
    let seed = cursor.accept("seed").then(|| Words::Hexadecimal(8).parse(cursor.take()));
    let seed = seed.flatten().and_then(|seed| u32::try_from(seed).ok());
    let first = if cursor.accept("offset") { cursor.take().parse().ok()? } else { 0 };
    let property = match hashed.zip(seed) {
        Some((input, seed)) => Property::Field(Field::Jhash { input, count, seed, first }),
        None => Property::Number { source, count, first },
    };
    Some((property, required))
}

/// Returns bits of a header, as the field that they are.
fn payload(text: &str, family: IpFamily) -> Option<Property> {
    let mut parts = text.split(',');
    let base = match parts.next()? {
        "@ll" => PayloadBase::Link,
        "@nh" => PayloadBase::Network,
        "@th" => PayloadBase::Transport,
        _ => return None,
    };
    let (offset, length): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    // The offsets and lengths are in bytes.
    let at = |fields: &[(u32, usize, Field)]| {
        let found = fields.iter().find(|(start, bytes, _)| offset == 8 * start && length as usize == 8 * bytes);
        found.map(|(.., field)| *field)
    };
    let field = match base {
        PayloadBase::Link | PayloadBase::Inner => None,
        PayloadBase::Network => {
            let address = DataType::address(family).length();
            let fields = [
                (protocol_offset(family), 1, Field::L4proto),
                (source_offset(family), address, Field::Saddr),
                (destination_offset(family), address, Field::Daddr),
            ];
            at(&fields)
        }
        PayloadBase::Transport => {
            at(&[(SOURCE_PORT_OFFSET, 2, Field::Sport), (DESTINATION_PORT_OFFSET, 2, Field::Dport)])
        }
    };
    Some(field.map_or(Property::Payload { base, offset, length }, Property::Field))
}

/// Returns the requirements for a packet of the header with this name.
pub(super) fn requirements(header: &str) -> Requirements {
    let family = match header {
        "ip" | "icmp" | "igmp" => Some(IpFamily::V4),
        "ip6" | "icmpv6" | "hbh" | "dst" | "frag" | "mh" | "srh" | "exthdr" => Some(IpFamily::V6),
        _ => None,
    };
    Requirements { family, protocol: protocol_of(header) }
}
