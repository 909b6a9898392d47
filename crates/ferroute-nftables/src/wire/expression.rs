//! Rules as the kernel's expressions: little programs on sixteen registers of 32 bits.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ferroute_netlink::Writer;
use ipnet::IpNet;

use super::{
    constants::{LIST_ELEMENT, element::VALUE, rule},
    element,
};
use crate::model::{Field, InterfaceName, Match, Name, Statement};

/// Writes the expressions of a rule into their list.
pub(super) struct Expressions<'a, 'b> {
    pub(super) list: &'a mut Writer<'b>,
    pub(super) family: IpFamily,
}

/// The first of a row of registers, counted in 32-bit words.
#[derive(Clone, Copy)]
struct Register(u32);

impl Register {
    const FIRST: Self = Self(0);

    /// As the kernel counts: registers of 16 bytes from 1, those of 4 bytes from 8, the former where both would do.
    fn number(self) -> u32 {
        if self.0.is_multiple_of(4) { 1 + self.0 / 4 } else { 8 + self.0 }
    }

    fn behind(self, bytes: usize) -> Self {
        Self(self.0 + u32::try_from(bytes.div_ceil(4)).expect("bug: keys have at most 64 bytes"))
    }
}

impl Expressions<'_, '_> {
    pub(super) fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Match(condition) => self.condition(condition),
            Statement::PriorityFromMap { key, map } => {
                self.load_key(key);
                self.lookup(map, Some(Register::FIRST), false);
                self.set_meta(META_PRIORITY);
            }
            Statement::PriorityAtRandom { count, first } => {
                self.expression("numgen", |data| {
                    data.put_u32_be(1, Register::FIRST.number());
                    data.put_u32_be(2, *count);
                    data.put_u32_be(3, NUMGEN_RANDOM);
                    data.put_u32_be(4, first.0);
                });
                self.set_meta(META_PRIORITY);
            }
            Statement::ClearPriority => {
                self.immediate(&0_u32.to_ne_bytes());
                self.set_meta(META_PRIORITY);
            }
            Statement::SetMark(bits) => self.change_mark(!bits, *bits),
            Statement::FlipMark(bits) => self.change_mark(u32::MAX, *bits),
            Statement::Learn { key, map, timeout } => {
                let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                self.dynset(key, map, DYNSET_UPDATE, Some(milliseconds));
            }
            Statement::Forget { key, map } => self.dynset(key, map, DYNSET_DELETE, None),
            Statement::Translate { key, map } => {
                self.load_key(key);
                self.lookup(map, Some(Register::FIRST), false);
                let port = Register::FIRST.behind(self.address_length());
                let family = self.protocol_family();
                self.expression("nat", |data| {
                    data.put_u32_be(1, NAT_DESTINATION);
                    data.put_u32_be(2, family);
                    data.put_u32_be(3, Register::FIRST.number());
                    data.put_u32_be(5, port.number());
                });
            }
            Statement::Masquerade => self.expression("masq", |data| data.put_u32_be(1, NAT_FULLY_RANDOM)),
            Statement::Reject => {
                let code = match self.family {
                    IpFamily::V4 => ICMP_PORT_UNREACHABLE,
                    IpFamily::V6 => ICMPV6_PORT_UNREACHABLE,
                };
                self.expression("reject", |data| {
                    data.put_u32_be(1, REJECT_UNREACHABLE);
                    data.put_u8(2, code);
                });
            }
            Statement::Verdict(verdict) => self.expression("immediate", |data| {
                data.put_u32_be(1, REGISTER_VERDICT);
                element::put_verdict(&mut data.nest(2), verdict);
            }),
            Statement::Dispatch(map) => {
                self.load_key(&[Field::Priority]);
                self.lookup_to(map, Some(REGISTER_VERDICT), false);
            }
        }
    }

    fn condition(&mut self, condition: &Match) {
        match condition {
            Match::Member { key, set, is } => {
                self.load_key(key);
                self.lookup(set, None, !is);
            }
            Match::Source { net, is } => self.in_network(self.source_offset(), *net, *is),
            Match::Destination { net, is } => self.in_network(self.destination_offset(), *net, *is),
            Match::Interface { name, is } => {
                self.load_meta(META_INPUT_INTERFACE, Register::FIRST);
                match name {
                    InterfaceName::Prefix(prefix) => self.compare(prefix.as_bytes(), *is),
                    InterfaceName::Exact(name) => {
                        // Names are padded with zeros; one that is too long has no zero behind it and equals none.
                        let mut padded = [0; INTERFACE_NAME];
                        padded.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
                        self.compare(&padded, *is);
                    }
                }
            }
            Match::SourceIsLocal => self.is_local(FIB_SOURCE),
            Match::DestinationIsLocal => self.is_local(FIB_DESTINATION),
            Match::New => self.has_bits("ct", CT_STATE, CT_STATE_NEW),
            Match::Translated => self.has_bits("ct", CT_STATUS, CT_STATUS_DNAT),
            Match::Marked(bits) => self.has_bits("meta", META_MARK, *bits),
        }
    }

    fn load_key(&mut self, key: &[Field]) {
        let mut register = Register::FIRST;
        for field in key {
            register = self.load(*field, register);
        }
    }

    /// Loads a field and returns the register behind it.
    fn load(&mut self, field: Field, to: Register) -> Register {
        let address = self.address_length();
        match field {
            Field::Source => self.load_payload(PAYLOAD_NETWORK, self.source_offset(), address, to),
            Field::Destination => self.load_payload(PAYLOAD_NETWORK, self.destination_offset(), address, to),
            Field::NoDestination => {
                self.load_payload(PAYLOAD_NETWORK, self.destination_offset(), address, to);
                self.bitwise(to, &vec![0; address], &vec![0; address]);
            }
            Field::Protocol => self.load_meta(META_PROTOCOL, to),
            Field::Port => self.load_payload(PAYLOAD_TRANSPORT, DESTINATION_PORT, 2, to),
            Field::Priority => self.load_meta(META_PRIORITY, to),
        }
        match field {
            Field::Source | Field::Destination | Field::NoDestination => to.behind(address),
            Field::Protocol | Field::Port | Field::Priority => to.behind(4),
        }
    }

    fn in_network(&mut self, offset: u32, net: IpNet, is: bool) {
        let network = octets(net.network());
        let whole_bytes = usize::from(net.prefix_len()) / 8;
        if net.prefix_len().is_multiple_of(8) && whole_bytes > 0 {
            // The form that `nft` writes: compare just the bytes that matter.
            self.load_payload(PAYLOAD_NETWORK, offset, whole_bytes, Register::FIRST);
            self.compare(&network[..whole_bytes], is);
        } else {
            self.load_payload(PAYLOAD_NETWORK, offset, network.len(), Register::FIRST);
            self.bitwise(Register::FIRST, &octets(net.netmask()), &vec![0; network.len()]);
            self.compare(&network, is);
        }
    }

    fn is_local(&mut self, side: u32) {
        self.expression("fib", |data| {
            data.put_u32_be(1, Register::FIRST.number());
            data.put_u32_be(2, FIB_ADDRESS_TYPE);
            data.put_u32_be(3, side);
        });
        self.compare(&ADDRESS_TYPE_LOCAL.to_ne_bytes(), true);
    }

    fn has_bits(&mut self, source: &str, key: u32, bits: u32) {
        self.expression(source, |data| {
            data.put_u32_be(1, Register::FIRST.number());
            data.put_u32_be(2, key);
        });
        self.bitwise(Register::FIRST, &bits.to_ne_bytes(), &[0; 4]);
        self.compare(&[0; 4], false);
    }

    fn change_mark(&mut self, keep: u32, flip: u32) {
        self.load_meta(META_MARK, Register::FIRST);
        self.bitwise(Register::FIRST, &keep.to_ne_bytes(), &flip.to_ne_bytes());
        self.set_meta(META_MARK);
    }

    fn dynset(&mut self, key: &[Field], map: &Name, operation: u32, timeout: Option<u64>) {
        self.load_key(key);
        let length: usize = key
            .iter()
            .map(|field| match field {
                Field::Source | Field::Destination | Field::NoDestination => self.address_length(),
                Field::Protocol | Field::Port | Field::Priority => 4,
            })
            .sum();
        // Behind the key, where the next register of 16 bytes starts.
        let datum = Register::FIRST.behind(length.next_multiple_of(16));
        self.load(Field::Priority, datum);
        self.expression("dynset", |data| {
            data.put_str(1, map.as_str());
            data.put_u32_be(3, operation);
            data.put_u32_be(4, Register::FIRST.number());
            data.put_u32_be(5, datum.number());
            if let Some(milliseconds) = timeout {
                data.put_u64_be(6, milliseconds);
            }
        });
    }

    fn load_payload(&mut self, base: u32, offset: u32, length: usize, to: Register) {
        let length = u32::try_from(length).expect("bug: addresses have at most 16 bytes");
        self.expression("payload", |data| {
            data.put_u32_be(1, to.number());
            data.put_u32_be(2, base);
            data.put_u32_be(3, offset);
            data.put_u32_be(4, length);
        });
    }

    fn load_meta(&mut self, key: u32, to: Register) {
        self.expression("meta", |data| {
            data.put_u32_be(1, to.number());
            data.put_u32_be(2, key);
        });
    }

    fn set_meta(&mut self, key: u32) {
        self.expression("meta", |data| {
            data.put_u32_be(2, key);
            data.put_u32_be(3, Register::FIRST.number());
        });
    }

    fn immediate(&mut self, value: &[u8]) {
        self.expression("immediate", |data| {
            data.put_u32_be(1, Register::FIRST.number());
            data.nest(2).put_bytes(VALUE, value);
        });
    }

    fn bitwise(&mut self, register: Register, mask: &[u8], xor: &[u8]) {
        let length = u32::try_from(mask.len()).expect("bug: addresses have at most 16 bytes");
        self.expression("bitwise", |data| {
            data.put_u32_be(1, register.number());
            data.put_u32_be(2, register.number());
            data.put_u32_be(3, length);
            data.nest(4).put_bytes(VALUE, mask);
            data.nest(5).put_bytes(VALUE, xor);
        });
    }

    fn compare(&mut self, with: &[u8], is: bool) {
        self.expression("cmp", |data| {
            data.put_u32_be(1, Register::FIRST.number());
            data.put_u32_be(2, u32::from(!is));
            data.nest(3).put_bytes(VALUE, with);
        });
    }

    fn lookup(&mut self, set: &Name, to: Option<Register>, inverted: bool) {
        self.lookup_to(set, to.map(Register::number), inverted);
    }

    fn lookup_to(&mut self, set: &Name, to: Option<u32>, inverted: bool) {
        self.expression("lookup", |data| {
            data.put_str(1, set.as_str());
            data.put_u32_be(2, Register::FIRST.number());
            if let Some(to) = to {
                data.put_u32_be(3, to);
            }
            if inverted {
                data.put_u32_be(5, LOOKUP_INVERTED);
            }
        });
    }

    fn expression(&mut self, name: &str, attributes: impl FnOnce(&mut Writer<'_>)) {
        let mut entry = self.list.nest(LIST_ELEMENT);
        entry.put_str(rule::EXPRESSION_NAME, name);
        attributes(&mut entry.nest(rule::EXPRESSION_DATA));
    }

    fn address_length(&self) -> usize {
        crate::model::DataType::address(self.family).length()
    }

    /// Where `struct iphdr` and `struct ipv6hdr` have the addresses.
    fn source_offset(&self) -> u32 {
        match self.family {
            IpFamily::V4 => 12,
            IpFamily::V6 => 8,
        }
    }

    fn destination_offset(&self) -> u32 {
        match self.family {
            IpFamily::V4 => 16,
            IpFamily::V6 => 24,
        }
    }

    fn protocol_family(&self) -> u32 {
        super::object::protocol_family(self.family).into()
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// `NFT_REG_VERDICT`.
const REGISTER_VERDICT: u32 = 0;
/// `NFT_META_*`.
const META_PRIORITY: u32 = 2;
const META_MARK: u32 = 3;
const META_INPUT_INTERFACE: u32 = 6;
const META_PROTOCOL: u32 = 16;
/// `NFT_PAYLOAD_*_HEADER`.
const PAYLOAD_NETWORK: u32 = 1;
const PAYLOAD_TRANSPORT: u32 = 2;
/// Where all transport protocols that have ports have the destination's.
const DESTINATION_PORT: u32 = 2;
/// `NFT_CT_*` and the bits behind: `NF_CT_STATE_BIT(IP_CT_NEW)`, `IPS_DST_NAT`.
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
const CT_STATE_NEW: u32 = 8;
const CT_STATUS_DNAT: u32 = 0x20;
/// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_*`, `RTN_LOCAL`.
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;
const ADDRESS_TYPE_LOCAL: u32 = 2;
/// `NFT_NG_RANDOM`.
const NUMGEN_RANDOM: u32 = 1;
/// `NFT_DYNSET_OP_*`.
const DYNSET_UPDATE: u32 = 1;
const DYNSET_DELETE: u32 = 2;
/// `NFT_NAT_DNAT`, `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
const NAT_DESTINATION: u32 = 1;
const NAT_FULLY_RANDOM: u32 = 0x10;
/// `NFT_REJECT_ICMP_UNREACH`, `ICMP_PORT_UNREACH`, `ICMPV6_PORT_UNREACH`.
const REJECT_UNREACHABLE: u32 = 0;
const ICMP_PORT_UNREACHABLE: u8 = 3;
const ICMPV6_PORT_UNREACHABLE: u8 = 4;
/// `NFT_LOOKUP_F_INV`.
const LOOKUP_INVERTED: u32 = 1;
/// `IFNAMSIZ`.
const INTERFACE_NAME: usize = 16;
