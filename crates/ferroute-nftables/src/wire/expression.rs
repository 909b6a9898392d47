//! Encoding rules as the kernel's expressions, which operate on sixteen 32-bit registers.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ferroute_netlink::{Writer, attribute_flags};
use ipnet::IpNet;

use super::{
    constants::*,
    element,
    layout::{Register, cmp_op, destination_offset, source_offset},
};
use crate::model::{CmpOp, Field, HashInput, InterfacePattern, Match, Name, RejectWith, Statement, Value, netmask};

/// Writes the expressions of a rule into their list.
pub(super) struct Expressions<'a, 'b> {
    pub(super) list: &'a mut Writer<'b>,
    pub(super) family: IpFamily,
}

impl Expressions<'_, '_> {
    pub(super) fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Match(condition) => self.condition(condition),
            Statement::MetaPriorityMap { key, map } => {
                self.load_key(key);
                self.lookup(map, Some(Register::FIRST), false);
                self.set_meta(NFT_META_PRIORITY);
            }
            Statement::MetaPriorityBits(change) => {
                self.load_meta(NFT_META_PRIORITY, Register::FIRST);
                // To set a bit is to clear it and then to flip it.
                self.bitwise(Register::FIRST, &change.kept().0.to_ne_bytes(), &change.set().0.to_ne_bytes());
                self.set_meta(NFT_META_PRIORITY);
            }
            Statement::MetaPriorityNone => {
                self.immediate(Register::FIRST, &0_u32.to_ne_bytes());
                self.set_meta(NFT_META_PRIORITY);
            }
            Statement::MetaMarkOr(bits) => self.set_mark(!bits, *bits),
            Statement::MetaMarkXor(bits) => self.set_mark(u32::MAX, *bits),
            Statement::MetaMarkSet { mask, xor } => self.set_mark(*mask, *xor),
            Statement::UpdateMap { key, map, timeout } => {
                let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                self.dynset(key, map, NFT_DYNSET_OP_UPDATE, Some(milliseconds));
            }
            Statement::DeleteFromMap { key, map } => self.dynset(key, map, NFT_DYNSET_OP_DELETE, None),
            Statement::UpdateSet { key, set, timeout } => {
                self.load_key(key);
                self.expression("dynset", |data| {
                    data.put_str(NFTA_DYNSET_SET_NAME, set.as_str());
                    data.put_u32_be(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE);
                    data.put_u32_be(NFTA_DYNSET_SREG_KEY, Register::FIRST.number());
                    if let Some(timeout) = timeout {
                        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                        data.put_u64_be(NFTA_DYNSET_TIMEOUT, milliseconds);
                    }
                });
            }
            Statement::DnatMap { key, map } => {
                self.load_key(key);
                self.lookup(map, Some(Register::FIRST), false);
                let port = Register::FIRST.after(self.address_length());
                let family = self.nfproto();
                self.expression("nat", |data| {
                    data.put_u32_be(NFTA_NAT_TYPE, NFT_NAT_DNAT);
                    data.put_u32_be(NFTA_NAT_FAMILY, family);
                    data.put_u32_be(NFTA_NAT_REG_ADDR_MIN, Register::FIRST.number());
                    data.put_u32_be(NFTA_NAT_REG_PROTO_MIN, port.number());
                });
            }
            Statement::Dnat { address, port } => self.nat(NFT_NAT_DNAT, *address, *port),
            Statement::Snat(address) => self.nat(NFT_NAT_SNAT, *address, None),
            Statement::Masquerade { fully_random } => self.expression("masq", |data| {
                if *fully_random {
                    data.put_u32_be(NFTA_MASQ_FLAGS, NF_NAT_RANGE_PROTO_RANDOM_FULLY);
                }
            }),
            Statement::Reject(with) => {
                let (kind, code) = match (with, self.family) {
                    (RejectWith::PortUnreachable, IpFamily::V4) => (NFT_REJECT_ICMP_UNREACH, ICMP_PORT_UNREACH),
                    (RejectWith::PortUnreachable, IpFamily::V6) => (NFT_REJECT_ICMP_UNREACH, ICMPV6_PORT_UNREACH),
                    (RejectWith::TcpReset, _) => (NFT_REJECT_TCP_RST, 0),
                    (RejectWith::Icmp(code), _) => (NFT_REJECT_ICMP_UNREACH, *code),
                    (RejectWith::Icmpx(code), _) => (NFT_REJECT_ICMPX_UNREACH, *code),
                };
                self.expression("reject", |data| {
                    data.put_u32_be(NFTA_REJECT_TYPE, kind);
                    data.put_u8(NFTA_REJECT_ICMP_CODE, code);
                });
            }
            Statement::FlowAdd(flowtable) => self.expression("flow_offload", |data| {
                data.put_str(NFTA_FLOW_TABLE_NAME, flowtable.as_str());
            }),
            Statement::Log { prefix, group } => self.expression("log", |data| {
                data.put_u16_be(NFTA_LOG_GROUP, *group);
                data.put_str(NFTA_LOG_PREFIX, prefix);
            }),
            Statement::Notrack => self.expression("notrack", |_| {}),
            Statement::Verdict(verdict) => self.expression("immediate", |data| {
                data.put_u32_be(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
                element::put_verdict(&mut data.nest(NFTA_IMMEDIATE_DATA), verdict);
            }),
            Statement::Vmap { key, map } => {
                self.load_key(key);
                self.lookup_to(map, Some(NFT_REG_VERDICT), false);
            }
            Statement::Opaque(opaque) => {
                for expression in &opaque.expressions {
                    let mut entry = self.list.nest(NFTA_LIST_ELEM);
                    entry.put_str(NFTA_EXPR_NAME, &expression.name);
                    entry.put_bytes(NFTA_EXPR_DATA | attribute_flags::NLA_F_NESTED, &expression.data);
                }
            }
        }
    }

    fn condition(&mut self, condition: &Match) {
        match condition {
            Match::InSet { key, set, eq } => {
                self.load_key(key);
                self.lookup(set, None, !eq);
            }
            Match::Saddr { net, eq } => self.in_network(source_offset(self.family), *net, *eq),
            Match::Daddr { net, eq } => self.in_network(destination_offset(self.family), *net, *eq),
            Match::Iifname { name, eq } => {
                self.load_meta(NFT_META_IIFNAME, Register::FIRST);
                match name {
                    InterfacePattern::Prefix(prefix) => self.compare(prefix.as_bytes(), *eq),
                    InterfacePattern::Exact(name) => {
                        // Names are padded with zeros. A name that is too long has no zero at its end and matches
                        // nothing.
                        let mut padded = [0; libc::IFNAMSIZ];
                        padded.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
                        self.compare(&padded, *eq);
                    }
                }
            }
            Match::FibSaddrLocal => self.is_local(NFTA_FIB_F_SADDR),
            Match::FibDaddrLocal => self.is_local(NFTA_FIB_F_DADDR),
            Match::CtStateNew => {
                self.load_ct(NFT_CT_STATE, Register::FIRST);
                self.has_bits(CT_STATE_NEW);
            }
            Match::CtStatusDnat => {
                self.load_ct(NFT_CT_STATUS, Register::FIRST);
                self.has_bits(IPS_DST_NAT);
            }
            Match::CtPacketsAbove(packets) => {
                self.load_ct(NFT_CT_PKTS, Register::FIRST);
                // Bytes are compared, so the number needs the most significant one first.
                self.expression("byteorder", |data| {
                    data.put_u32_be(NFTA_BYTEORDER_SREG, Register::FIRST.number());
                    data.put_u32_be(NFTA_BYTEORDER_DREG, Register::FIRST.number());
                    data.put_u32_be(NFTA_BYTEORDER_OP, NFT_BYTEORDER_HTON);
                    data.put_u32_be(NFTA_BYTEORDER_LEN, 8);
                    data.put_u32_be(NFTA_BYTEORDER_SIZE, 8);
                });
                self.compare_with_op(CmpOp::Gt, &packets.to_be_bytes());
            }
            Match::MetaMark(bits) => {
                self.load_meta(NFT_META_MARK, Register::FIRST);
                self.has_bits(*bits);
            }
            Match::Nfproto(family) => {
                self.load_meta(NFT_META_NFPROTO, Register::FIRST);
                self.compare(&[super::object::nfproto(*family)], true);
            }
            Match::Cmp { field, mask, op, value } => {
                self.load(*field, Register::FIRST);
                if *mask != u32::MAX {
                    self.bitwise(Register::FIRST, &mask.to_ne_bytes(), &[0; 4]);
                }
                match value {
                    Value::IfNamePrefix(prefix) => self.compare_with_op(*op, prefix.text()),
                    value => self.compare_with_op(*op, &element::bytes([*value].into_iter())),
                }
            }
            Match::Range { field, first, last, eq } => {
                self.load(*field, Register::FIRST);
                let [from, to] = [first, last].map(|value: &Value| element::bytes([*value].into_iter()));
                self.expression("range", |data| {
                    data.put_u32_be(NFTA_RANGE_SREG, Register::FIRST.number());
                    data.put_u32_be(NFTA_RANGE_OP, if *eq { NFT_RANGE_EQ } else { NFT_RANGE_NEQ });
                    data.nest(NFTA_RANGE_FROM_DATA).put_bytes(NFTA_DATA_VALUE, &from);
                    data.nest(NFTA_RANGE_TO_DATA).put_bytes(NFTA_DATA_VALUE, &to);
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

    /// Loads a field and returns the next register.
    fn load(&mut self, field: Field, to: Register) -> Register {
        let address = self.address_length();
        match field {
            Field::Saddr => self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, source_offset(self.family), address, to),
            Field::Daddr => self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, destination_offset(self.family), address, to),
            Field::SaddrNetwork(length) => {
                self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, source_offset(self.family), address, to);
                self.bitwise(to, &octets(netmask(self.family, length)), &vec![0; address]);
            }
            Field::L4proto => self.load_meta(NFT_META_L4PROTO, to),
            Field::Dport => self.load_payload(NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT_OFFSET, 2, to),
            Field::MetaPriority => self.load_meta(NFT_META_PRIORITY, to),
            Field::PriorityBits(mask) => {
                self.load_meta(NFT_META_PRIORITY, to);
                self.bitwise(to, &mask.0.to_ne_bytes(), &[0; 4]);
            }
            Field::Sport => self.load_payload(NFT_PAYLOAD_TRANSPORT_HEADER, SOURCE_PORT_OFFSET, 2, to),
            Field::MetaMark => self.load_meta(NFT_META_MARK, to),
            Field::Iifname => self.load_meta(NFT_META_IIFNAME, to),
            Field::Oifname => self.load_meta(NFT_META_OIFNAME, to),
            Field::CtState => self.load_ct(NFT_CT_STATE, to),
            Field::CtStatus => self.load_ct(NFT_CT_STATUS, to),
            Field::CtOriginalDaddr => {
                let key = match self.family {
                    IpFamily::V4 => NFT_CT_DST_IP,
                    IpFamily::V6 => NFT_CT_DST_IP6,
                };
                self.load_ct_original(key, to);
            }
            Field::CtOriginalDport => self.load_ct_original(NFT_CT_PROTO_DST, to),
            Field::FibSaddrType => self.load_fib_type(NFTA_FIB_F_SADDR, to),
            Field::FibDaddrType => self.load_fib_type(NFTA_FIB_F_DADDR, to),
            Field::NumgenRandom { count, first } => self.expression("numgen", |data| {
                data.put_u32_be(NFTA_NG_DREG, to.number());
                data.put_u32_be(NFTA_NG_MODULUS, count);
                data.put_u32_be(NFTA_NG_TYPE, NFT_NG_RANDOM);
                data.put_u32_be(NFTA_NG_OFFSET, first);
            }),
            Field::NumgenInc { count, first } => self.expression("numgen", |data| {
                data.put_u32_be(NFTA_NG_DREG, to.number());
                data.put_u32_be(NFTA_NG_MODULUS, count);
                data.put_u32_be(NFTA_NG_TYPE, NFT_NG_INCREMENTAL);
                data.put_u32_be(NFTA_NG_OFFSET, first);
            }),
            Field::Jhash { input, count, seed, first } => {
                let end = match input {
                    HashInput::Saddr => self.load(Field::Saddr, to),
                    HashInput::SaddrSport => {
                        let port = self.load(Field::Saddr, to);
                        self.load(Field::Sport, port)
                    }
                };
                self.expression("hash", |data| {
                    data.put_u32_be(NFTA_HASH_SREG, to.number());
                    data.put_u32_be(NFTA_HASH_DREG, to.number());
                    data.put_u32_be(NFTA_HASH_LEN, (end.0 - to.0) * 4);
                    data.put_u32_be(NFTA_HASH_MODULUS, count);
                    data.put_u32_be(NFTA_HASH_SEED, seed);
                    data.put_u32_be(NFTA_HASH_OFFSET, first);
                    data.put_u32_be(NFTA_HASH_TYPE, NFT_HASH_JENKINS);
                });
            }
        }
        to.after(field.data_type(self.family).padded_length())
    }

    fn in_network(&mut self, offset: u32, net: IpNet, eq: bool) {
        let network = octets(net.network());
        let whole_bytes = usize::from(net.prefix_len()) / 8;
        if net.prefix_len().is_multiple_of(8) && whole_bytes > 0 {
            // As `nft` does: compare only the bytes of the prefix.
            self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, offset, whole_bytes, Register::FIRST);
            self.compare(&network[..whole_bytes], eq);
        } else {
            self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, offset, network.len(), Register::FIRST);
            self.bitwise(Register::FIRST, &octets(net.netmask()), &vec![0; network.len()]);
            self.compare(&network, eq);
        }
    }

    fn is_local(&mut self, side: u32) {
        self.load_fib_type(side, Register::FIRST);
        self.compare(&RTN_LOCAL.to_ne_bytes(), true);
    }

    fn load_fib_type(&mut self, side: u32, to: Register) {
        self.expression("fib", |data| {
            data.put_u32_be(NFTA_FIB_DREG, to.number());
            data.put_u32_be(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE);
            data.put_u32_be(NFTA_FIB_FLAGS, side);
        });
    }

    fn load_ct(&mut self, key: u32, to: Register) {
        self.expression("ct", |data| {
            data.put_u32_be(NFTA_CT_DREG, to.number());
            data.put_u32_be(NFTA_CT_KEY, key);
        });
    }

    /// Loads a property of the connection's direction from the client.
    fn load_ct_original(&mut self, key: u32, to: Register) {
        self.expression("ct", |data| {
            data.put_u32_be(NFTA_CT_DREG, to.number());
            data.put_u32_be(NFTA_CT_KEY, key);
            data.put_u8(NFTA_CT_DIRECTION, IP_CT_DIR_ORIGINAL);
        });
    }

    /// Matches if the first register has any of these bits.
    fn has_bits(&mut self, bits: u32) {
        self.bitwise(Register::FIRST, &bits.to_ne_bytes(), &[0; 4]);
        self.compare(&[0; 4], false);
    }

    fn nat(&mut self, nat_type: u32, address: IpAddr, port: Option<u16>) {
        let port_register = Register::FIRST.after(16);
        self.immediate(Register::FIRST, &octets(address));
        if let Some(port) = port {
            self.immediate(port_register, &port.to_be_bytes());
        }
        let family = self.nfproto();
        self.expression("nat", |data| {
            data.put_u32_be(NFTA_NAT_TYPE, nat_type);
            data.put_u32_be(NFTA_NAT_FAMILY, family);
            data.put_u32_be(NFTA_NAT_REG_ADDR_MIN, Register::FIRST.number());
            if port.is_some() {
                data.put_u32_be(NFTA_NAT_REG_PROTO_MIN, port_register.number());
            }
        });
    }

    fn set_mark(&mut self, mask: u32, xor: u32) {
        self.load_meta(NFT_META_MARK, Register::FIRST);
        self.bitwise(Register::FIRST, &mask.to_ne_bytes(), &xor.to_ne_bytes());
        self.set_meta(NFT_META_MARK);
    }

    fn dynset(&mut self, key: &[Field], map: &Name, operation: u32, timeout: Option<u64>) {
        self.load_key(key);
        let length: usize = key.iter().map(|field| field.data_type(self.family).padded_length()).sum();
        // The first 16-byte register after the key.
        let data_register = Register::FIRST.after(length.next_multiple_of(16));
        self.load(Field::MetaPriority, data_register);
        self.expression("dynset", |data| {
            data.put_str(NFTA_DYNSET_SET_NAME, map.as_str());
            data.put_u32_be(NFTA_DYNSET_OP, operation);
            data.put_u32_be(NFTA_DYNSET_SREG_KEY, Register::FIRST.number());
            data.put_u32_be(NFTA_DYNSET_SREG_DATA, data_register.number());
            if let Some(milliseconds) = timeout {
                data.put_u64_be(NFTA_DYNSET_TIMEOUT, milliseconds);
            }
        });
    }

    fn load_payload(&mut self, base: u32, offset: u32, length: usize, to: Register) {
        self.expression("payload", |data| {
            data.put_u32_be(NFTA_PAYLOAD_DREG, to.number());
            data.put_u32_be(NFTA_PAYLOAD_BASE, base);
            data.put_u32_be(NFTA_PAYLOAD_OFFSET, offset);
            data.put_u32_be(NFTA_PAYLOAD_LEN, length as u32);
        });
    }

    fn load_meta(&mut self, key: u32, to: Register) {
        self.expression("meta", |data| {
            data.put_u32_be(NFTA_META_DREG, to.number());
            data.put_u32_be(NFTA_META_KEY, key);
        });
    }

    fn set_meta(&mut self, key: u32) {
        self.expression("meta", |data| {
            data.put_u32_be(NFTA_META_KEY, key);
            data.put_u32_be(NFTA_META_SREG, Register::FIRST.number());
        });
    }

    fn immediate(&mut self, to: Register, value: &[u8]) {
        self.expression("immediate", |data| {
            data.put_u32_be(NFTA_IMMEDIATE_DREG, to.number());
            data.nest(NFTA_IMMEDIATE_DATA).put_bytes(NFTA_DATA_VALUE, value);
        });
    }

    fn bitwise(&mut self, register: Register, mask: &[u8], xor: &[u8]) {
        self.expression("bitwise", |data| {
            data.put_u32_be(NFTA_BITWISE_SREG, register.number());
            data.put_u32_be(NFTA_BITWISE_DREG, register.number());
            data.put_u32_be(NFTA_BITWISE_LEN, mask.len() as u32);
            data.nest(NFTA_BITWISE_MASK).put_bytes(NFTA_DATA_VALUE, mask);
            data.nest(NFTA_BITWISE_XOR).put_bytes(NFTA_DATA_VALUE, xor);
        });
    }

    fn compare(&mut self, with: &[u8], eq: bool) {
        self.compare_with_op(if eq { CmpOp::Eq } else { CmpOp::Neq }, with);
    }

    fn compare_with_op(&mut self, op: CmpOp, with: &[u8]) {
        self.expression("cmp", |data| {
            data.put_u32_be(NFTA_CMP_SREG, Register::FIRST.number());
            data.put_u32_be(NFTA_CMP_OP, cmp_op(op));
            data.nest(NFTA_CMP_DATA).put_bytes(NFTA_DATA_VALUE, with);
        });
    }

    fn lookup(&mut self, set: &Name, to: Option<Register>, inverted: bool) {
        self.lookup_to(set, to.map(Register::number), inverted);
    }

    fn lookup_to(&mut self, set: &Name, to: Option<u32>, inverted: bool) {
        self.expression("lookup", |data| {
            data.put_str(NFTA_LOOKUP_SET, set.as_str());
            data.put_u32_be(NFTA_LOOKUP_SREG, Register::FIRST.number());
            if let Some(to) = to {
                data.put_u32_be(NFTA_LOOKUP_DREG, to);
            }
            if inverted {
                data.put_u32_be(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
            }
        });
    }

    fn expression(&mut self, name: &str, attributes: impl FnOnce(&mut Writer<'_>)) {
        let mut entry = self.list.nest(NFTA_LIST_ELEM);
        entry.put_str(NFTA_EXPR_NAME, name);
        attributes(&mut entry.nest(NFTA_EXPR_DATA));
    }

    fn address_length(&self) -> usize {
        crate::model::DataType::address(self.family).length()
    }

    fn nfproto(&self) -> u32 {
        super::object::nfproto(self.family).into()
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
