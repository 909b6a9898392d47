//! Rules as the kernel's expressions: little programs on sixteen registers of 32 bits.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ferroute_netlink::{Writer, attribute_flags};
use ipnet::IpNet;

use super::{
    constants::{
        LIST_ELEMENT,
        element::VALUE,
        expr::{
            ADDRESS_TYPE_LOCAL, CT_STATE, CT_STATE_NEW, CT_STATUS, CT_STATUS_DNAT, DESTINATION_PORT, DYNSET_DELETE,
            DYNSET_UPDATE, FIB_ADDRESS_TYPE, FIB_DESTINATION, FIB_SOURCE, ICMP_PORT_UNREACHABLE,
            ICMPV6_PORT_UNREACHABLE, INTERFACE_NAME, LOOKUP_INVERTED, META_FAMILY, META_INPUT_INTERFACE, META_MARK,
            META_OUTPUT_INTERFACE, META_PRIORITY, META_PROTOCOL, NAT_DESTINATION, NAT_FULLY_RANDOM, NAT_SOURCE,
            NUMGEN_RANDOM, PAYLOAD_NETWORK, PAYLOAD_TRANSPORT, REGISTER_VERDICT, REJECT_ICMPX, REJECT_TCP_RESET,
            REJECT_UNREACHABLE, SOURCE_PORT,
        },
        rule,
    },
    element,
    layout::{Register, destination_offset, relation_number, source_offset},
};
use crate::model::{Class, Field, InterfaceName, Match, Name, RejectWith, Relation, Statement, Value};

/// Writes the expressions of a rule into their list.
pub(super) struct Expressions<'a, 'b> {
    pub(super) list: &'a mut Writer<'b>,
    pub(super) family: IpFamily,
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
                self.immediate(Register::FIRST, &0_u32.to_ne_bytes());
                self.set_meta(META_PRIORITY);
            }
            Statement::SetMark(bits) => self.change_mark(!bits, *bits),
            Statement::FlipMark(bits) => self.change_mark(u32::MAX, *bits),
            Statement::ChangeMark { keep, flip } => self.change_mark(*keep, *flip),
            Statement::Learn { key, map, timeout } => {
                let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                self.dynset(key, map, DYNSET_UPDATE, Some(milliseconds));
            }
            Statement::Forget { key, map } => self.dynset(key, map, DYNSET_DELETE, None),
            Statement::Note { key, set } => {
                self.load_key(key);
                self.expression("dynset", |data| {
                    data.put_str(1, set.as_str());
                    data.put_u32_be(3, DYNSET_UPDATE);
                    data.put_u32_be(4, Register::FIRST.number());
                });
            }
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
            Statement::TranslateTo { address, port } => self.nat(NAT_DESTINATION, *address, *port),
            Statement::SourceFrom(address) => self.nat(NAT_SOURCE, *address, None),
            Statement::Masquerade { fully_random } => self.expression("masq", |data| {
                if *fully_random {
                    data.put_u32_be(1, NAT_FULLY_RANDOM);
                }
            }),
            Statement::Reject(with) => {
                let (kind, code) = match (with, self.family) {
                    (RejectWith::PortUnreachable, IpFamily::V4) => (REJECT_UNREACHABLE, ICMP_PORT_UNREACHABLE),
                    (RejectWith::PortUnreachable, IpFamily::V6) => (REJECT_UNREACHABLE, ICMPV6_PORT_UNREACHABLE),
                    (RejectWith::TcpReset, _) => (REJECT_TCP_RESET, 0),
                    (RejectWith::Icmp(code), _) => (REJECT_UNREACHABLE, *code),
                    (RejectWith::Icmpx(code), _) => (REJECT_ICMPX, *code),
                };
                self.expression("reject", |data| {
                    data.put_u32_be(1, kind);
                    data.put_u8(2, code);
                });
            }
            Statement::NoTrack => self.expression("notrack", |_| {}),
            Statement::Verdict(verdict) => self.expression("immediate", |data| {
                data.put_u32_be(1, REGISTER_VERDICT);
                element::put_verdict(&mut data.nest(2), verdict);
            }),
            Statement::Dispatch { key, map } => {
                self.load_key(key);
                self.lookup_to(map, Some(REGISTER_VERDICT), false);
            }
            Statement::Opaque(opaque) => {
                for expression in &opaque.expressions {
                    let mut entry = self.list.nest(LIST_ELEMENT);
                    entry.put_str(rule::EXPRESSION_NAME, &expression.name);
                    entry.put_bytes(rule::EXPRESSION_DATA | attribute_flags::NESTED, &expression.data);
                }
            }
        }
    }

    fn condition(&mut self, condition: &Match) {
        match condition {
            Match::Member { key, set, is } => {
                self.load_key(key);
                self.lookup(set, None, !is);
            }
            Match::Source { net, is } => self.in_network(source_offset(self.family), *net, *is),
            Match::Destination { net, is } => self.in_network(destination_offset(self.family), *net, *is),
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
            Match::Family(family) => {
                self.load_meta(META_FAMILY, Register::FIRST);
                self.compare(&[super::object::protocol_family(*family)], true);
            }
            Match::Compare { field, mask, relation, value } => {
                self.load(*field, Register::FIRST);
                if *mask != u32::MAX {
                    self.bitwise(Register::FIRST, &mask.to_ne_bytes(), &[0; 4]);
                }
                match value {
                    Value::Interfaces(prefix) => self.compare_as(*relation, prefix.text()),
                    value => self.compare_as(*relation, &element::bytes([*value].into_iter())),
                }
            }
            Match::Within { field, first, last, is } => {
                self.load(*field, Register::FIRST);
                let [from, to] = [first, last].map(|value: &Value| element::bytes([*value].into_iter()));
                self.expression("range", |data| {
                    data.put_u32_be(1, Register::FIRST.number());
                    data.put_u32_be(2, u32::from(!is));
                    data.nest(3).put_bytes(VALUE, &from);
                    data.nest(4).put_bytes(VALUE, &to);
                });
            }
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
            Field::Source => self.load_payload(PAYLOAD_NETWORK, source_offset(self.family), address, to),
            Field::Destination => self.load_payload(PAYLOAD_NETWORK, destination_offset(self.family), address, to),
            Field::NoDestination => {
                self.load_payload(PAYLOAD_NETWORK, destination_offset(self.family), address, to);
                self.bitwise(to, &vec![0; address], &vec![0; address]);
            }
            Field::Protocol => self.load_meta(META_PROTOCOL, to),
            Field::Port => self.load_payload(PAYLOAD_TRANSPORT, DESTINATION_PORT, 2, to),
            Field::Priority => self.load_meta(META_PRIORITY, to),
            Field::SlotOwner => {
                self.load_meta(META_PRIORITY, to);
                self.bitwise(to, &Class::OWNER.0.to_ne_bytes(), &[0; 4]);
            }
            Field::SourcePort => self.load_payload(PAYLOAD_TRANSPORT, SOURCE_PORT, 2, to),
            Field::Mark => self.load_meta(META_MARK, to),
            Field::InputInterface => self.load_meta(META_INPUT_INTERFACE, to),
            Field::OutputInterface => self.load_meta(META_OUTPUT_INTERFACE, to),
            Field::ConnectionState => self.load_connection(CT_STATE, to),
            Field::ConnectionStatus => self.load_connection(CT_STATUS, to),
            Field::SourceKind => self.load_kind(FIB_SOURCE, to),
            Field::DestinationKind => self.load_kind(FIB_DESTINATION, to),
            Field::Random { count, first } => self.expression("numgen", |data| {
                data.put_u32_be(1, to.number());
                data.put_u32_be(2, count);
                data.put_u32_be(3, NUMGEN_RANDOM);
                data.put_u32_be(4, first);
            }),
        }
        to.behind(field.data_type(self.family).room())
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
        self.load_kind(side, Register::FIRST);
        self.compare(&ADDRESS_TYPE_LOCAL.to_ne_bytes(), true);
    }

    fn load_kind(&mut self, side: u32, to: Register) {
        self.expression("fib", |data| {
            data.put_u32_be(1, to.number());
            data.put_u32_be(2, FIB_ADDRESS_TYPE);
            data.put_u32_be(3, side);
        });
    }

    fn load_connection(&mut self, key: u32, to: Register) {
        self.expression("ct", |data| {
            data.put_u32_be(1, to.number());
            data.put_u32_be(2, key);
        });
    }

    fn has_bits(&mut self, source: &str, key: u32, bits: u32) {
        self.expression(source, |data| {
            data.put_u32_be(1, Register::FIRST.number());
            data.put_u32_be(2, key);
        });
        self.bitwise(Register::FIRST, &bits.to_ne_bytes(), &[0; 4]);
        self.compare(&[0; 4], false);
    }

    fn nat(&mut self, kind: u32, address: IpAddr, port: Option<u16>) {
        let behind = Register::FIRST.behind(16);
        self.immediate(Register::FIRST, &octets(address));
        if let Some(port) = port {
            self.immediate(behind, &port.to_be_bytes());
        }
        let family = self.protocol_family();
        self.expression("nat", |data| {
            data.put_u32_be(1, kind);
            data.put_u32_be(2, family);
            data.put_u32_be(3, Register::FIRST.number());
            if port.is_some() {
                data.put_u32_be(5, behind.number());
            }
        });
    }

    fn change_mark(&mut self, keep: u32, flip: u32) {
        self.load_meta(META_MARK, Register::FIRST);
        self.bitwise(Register::FIRST, &keep.to_ne_bytes(), &flip.to_ne_bytes());
        self.set_meta(META_MARK);
    }

    fn dynset(&mut self, key: &[Field], map: &Name, operation: u32, timeout: Option<u64>) {
        self.load_key(key);
        let length: usize = key.iter().map(|field| field.data_type(self.family).room()).sum();
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

    fn immediate(&mut self, to: Register, value: &[u8]) {
        self.expression("immediate", |data| {
            data.put_u32_be(1, to.number());
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
        self.compare_as(if is { Relation::Equal } else { Relation::NotEqual }, with);
    }

    fn compare_as(&mut self, relation: Relation, with: &[u8]) {
        self.expression("cmp", |data| {
            data.put_u32_be(1, Register::FIRST.number());
            data.put_u32_be(2, relation_number(relation));
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
