//! The bytes of headers.

use ferroute_core::IpFamily;

use super::{
    super::{
        constants::*,
        layout::{destination_offset, protocol_offset, source_offset},
    },
    Loaded,
};
use crate::model::{DataType, Field, PayloadBase, Property};

/// The headers of the packets that a rule matches, as far as it compares them itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) family: IpFamily,
    /// The protocol number, if the rule compares it.
    pub(super) protocol: Option<u8>,
}

impl Headers {
    /// Returns the content of some bytes with its length; unknown bytes become an unnamed property. `None` if there are
    /// too many bytes.
    pub(super) fn field(self, base: u32, offset: u32, bytes: usize) -> Option<(Loaded, usize)> {
        let property = Loaded::property;
        let loaded = match (base, offset, bytes) {
            (NFT_PAYLOAD_NETWORK_HEADER, at, 1) if at == protocol_offset(self.family) => Loaded::Field(Field::L4proto),
            (NFT_PAYLOAD_TRANSPORT_HEADER, SOURCE_PORT_OFFSET, 2) if self.has_ports() => Loaded::Field(Field::Sport),
            (NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT_OFFSET, 2) if self.has_ports() => {
                Loaded::Field(Field::Dport)
            }
            (NFT_PAYLOAD_TRANSPORT_HEADER, TCP_FLAGS_OFFSET, 1) => property(Property::TcpFlags),
            (NFT_PAYLOAD_NETWORK_HEADER, 6, 2) if self.family == IpFamily::V4 => property(Property::IpFragment),
            _ => match self.name(base, offset, bytes).and_then(Property::named) {
                Some(named) => property(named),
                None => property(self.bytes(base, offset, bytes)?),
            },
        };
        Some((loaded, bytes))
    }

    /// Returns bytes as an unnamed property; `None` if there are too many.
    pub(super) fn bytes(self, base: u32, offset: u32, bytes: usize) -> Option<Property> {
        raw(base, offset.checked_mul(8)?, bytes.checked_mul(8)?)
    }

    /// Returns the content of some bytes; unknown bytes become an unnamed property. `None` if there are too many bytes.
    pub(super) fn load(self, base: u32, offset: u32, bytes: usize) -> Option<Loaded> {
        let address = DataType::address(self.family).length();
        let at = |start: u32| base == NFT_PAYLOAD_NETWORK_HEADER && offset == start && bytes == address;
        if at(source_offset(self.family)) {
            return Some(Loaded::Field(Field::Saddr));
        }
        if at(destination_offset(self.family)) {
            return Some(Loaded::Field(Field::Daddr));
        }
        self.field(base, offset, bytes).map(|(loaded, _)| loaded)
    }

    /// Splits bytes into fields, each with its offset and length: `nft` compares adjacent fields together. `None` if
    /// the bytes do not begin and end at the boundary of a field.
    pub(super) fn split(self, base: u32, offset: u32, bytes: usize) -> Option<Vec<(u32, usize)>> {
        let lengths: &[usize] = match (base, self.family, self.protocol.map(i32::from)) {
            (NFT_PAYLOAD_NETWORK_HEADER, IpFamily::V4, _) => &[1, 1, 2, 2, 2, 1, 1, 2, 4, 4],
            (NFT_PAYLOAD_NETWORK_HEADER, IpFamily::V6, _) => &[4, 2, 1, 1, 16, 16],
            (NFT_PAYLOAD_LL_HEADER, ..) => &[6, 6, 2, 2, 2],
            (NFT_PAYLOAD_TRANSPORT_HEADER, _, Some(libc::IPPROTO_TCP)) => &[2, 2, 4, 4, 1, 1, 2, 2, 2],
            (NFT_PAYLOAD_TRANSPORT_HEADER, _, Some(libc::IPPROTO_UDP)) => &[2, 2, 2, 2],
            (NFT_PAYLOAD_TRANSPORT_HEADER, ..) if self.is_icmp() => &[1, 1, 2, 2, 2],
            (NFT_PAYLOAD_TRANSPORT_HEADER, ..) if self.has_ports() => &[2, 2],
            _ => return None,
        };
        let (mut at, end) = (0, usize::try_from(offset).ok()? + bytes);
        let mut fields = Vec::new();
        for length in lengths {
            if at >= usize::try_from(offset).ok()? && at < end {
                fields.push((u32::try_from(at).ok()?, *length));
            }
            at += length;
            if at == end {
                let starts = fields.first().is_some_and(|(start, _)| *start == offset);
                return starts.then_some(fields);
            }
        }
        None
    }

    /// Returns the bytes of a header on which rules and routes depend: protocol, addresses, ports and TCP flags.
    pub(super) fn deciding(self, base: u32) -> &'static [std::ops::Range<u32>] {
        const ALL: &[std::ops::Range<u32>] = std::slice::from_ref(&(0..u32::MAX));
        match (base, self.family) {
            (NFT_PAYLOAD_LL_HEADER, _) => &[],
            (NFT_PAYLOAD_NETWORK_HEADER, IpFamily::V4) => &[9..10, 12..20],
            (NFT_PAYLOAD_NETWORK_HEADER, IpFamily::V6) => &[6..7, 8..40],
            (NFT_PAYLOAD_TRANSPORT_HEADER, _) => &[0..4, 13..14],
            _ => ALL,
        }
    }

    /// Returns the property in some bits of bytes.
    pub(super) fn part(self, base: u32, offset: u32, bytes: usize, mask: u128) -> Option<Property> {
        use IpFamily::{V4, V6};
        let name = match (base, self.family, offset, bytes, mask) {
            (NFT_PAYLOAD_NETWORK_HEADER, _, 0, 1, 0xf0) => return Some(Property::IpVersion),
            (NFT_PAYLOAD_NETWORK_HEADER, V4, 0, 1, 0x0f) => return Some(Property::IpHeaderLength),
            (NFT_PAYLOAD_NETWORK_HEADER, V4, 1, 1, 0xfc) => "ip dscp",
            (NFT_PAYLOAD_NETWORK_HEADER, V4, 1, 1, 0x03) => "ip ecn",
            (NFT_PAYLOAD_NETWORK_HEADER, V6, 0, 2, 0x0fc0) => "ip6 dscp",
            (NFT_PAYLOAD_NETWORK_HEADER, V6, 1, 1, 0x30) => "ip6 ecn",
            (NFT_PAYLOAD_NETWORK_HEADER, V6, 1, 3, 0x0f_ffff) => "ip6 flowlabel",
            (NFT_PAYLOAD_TRANSPORT_HEADER, _, 12, 1, 0xf0) => "tcp doff",
            (NFT_PAYLOAD_TRANSPORT_HEADER, _, 12, 1, 0x0f) => "tcp reserved",
            (NFT_PAYLOAD_LL_HEADER, _, 14, 2, 0x0fff) => "vlan id",
            (NFT_PAYLOAD_LL_HEADER, _, 14, 1, 0xe0) => "vlan pcp",
            _ => return None,
        };
        Property::named(name)
    }

    fn name(self, base: u32, offset: u32, bytes: usize) -> Option<&'static str> {
        use IpFamily::{V4, V6};
        Some(match (base, self.family, offset, bytes) {
            (NFT_PAYLOAD_NETWORK_HEADER, V4, 2, 2) => "ip length",
            (NFT_PAYLOAD_NETWORK_HEADER, V4, 4, 2) => "ip id",
            (NFT_PAYLOAD_NETWORK_HEADER, V4, 8, 1) => "ip ttl",
            (NFT_PAYLOAD_NETWORK_HEADER, V4, 10, 2) => "ip checksum",
            (NFT_PAYLOAD_NETWORK_HEADER, V6, 4, 2) => "ip6 length",
            (NFT_PAYLOAD_NETWORK_HEADER, V6, 7, 1) => "ip6 hoplimit",
            (NFT_PAYLOAD_LL_HEADER, _, 0, 6) => "ether daddr",
            (NFT_PAYLOAD_LL_HEADER, _, 6, 6) => "ether saddr",
            (NFT_PAYLOAD_LL_HEADER, _, 12, 2) => "ether type",
            (NFT_PAYLOAD_LL_HEADER, _, 16, 2) => "vlan type",
            (NFT_PAYLOAD_TRANSPORT_HEADER, ..) => match (self.protocol.map(i32::from)?, offset, bytes) {
                (libc::IPPROTO_TCP, 4, 4) => "tcp sequence",
                (libc::IPPROTO_TCP, 8, 4) => "tcp ackseq",
                (libc::IPPROTO_TCP, 14, 2) => "tcp window",
                (libc::IPPROTO_TCP, 16, 2) => "tcp checksum",
                (libc::IPPROTO_TCP, 18, 2) => "tcp urgptr",
                (libc::IPPROTO_UDP, 4, 2) => "udp length",
                (libc::IPPROTO_UDP, 6, 2) => "udp checksum",
                (libc::IPPROTO_SCTP, 4, 4) => "sctp vtag",
                (libc::IPPROTO_SCTP, 8, 4) => "sctp checksum",
                (libc::IPPROTO_ICMP, 0, 1) => "icmp type",
                (libc::IPPROTO_ICMP, 1, 1) => "icmp code",
                (libc::IPPROTO_ICMPV6, 0, 1) => "icmpv6 type",
                (libc::IPPROTO_ICMPV6, 1, 1) => "icmpv6 code",
                _ => return None,
            },
            _ => return None,
        })
    }

    fn has_ports(self) -> bool {
        let with_ports =
            [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP, libc::IPPROTO_DCCP, libc::IPPROTO_UDPLITE];
        self.protocol.is_none_or(|number| with_ports.contains(&number.into()))
    }

    fn is_icmp(self) -> bool {
        self.protocol.is_some_and(|number| [libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6].contains(&number.into()))
    }
}

/// Returns bits of a header as a property.
fn raw(base: u32, offset: u32, bits: usize) -> Option<Property> {
    let base = match base {
        NFT_PAYLOAD_LL_HEADER => PayloadBase::Link,
        NFT_PAYLOAD_NETWORK_HEADER => PayloadBase::Network,
        NFT_PAYLOAD_TRANSPORT_HEADER => PayloadBase::Transport,
        _ => PayloadBase::Inner,
    };
    (bits <= 128).then(|| Property::Payload { base, offset, length: u32::try_from(bits).unwrap_or(0) })
}

/// The offset of the flags in a TCP header.
const TCP_FLAGS_OFFSET: u32 = 13;
// `include/uapi/linux/netfilter/nf_tables.h`.
const NFT_PAYLOAD_LL_HEADER: u32 = 0;
