//! Encodes rules like `iptables-nft`, in forms that all its versions since 1.8.2 can read: where newer versions use
//! expressions of nf_tables that older ones do not support, this module uses the match module.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ferroute_netlink::{Writer, nf_tables::*};

use super::{protocols, sets::SetNumbers};
use crate::{AddressMatch, ChainName, InterfaceMatch, Rule, Sense, Target, extension::Structure};

/// Error for a rule with a match or target that cannot be encoded, or with an ipset whose number is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsupported;

/// Writes the attributes of a rule into its message, after those of its table and chain.
pub(super) fn put_rule(
    message: &mut Writer<'_>,
    family: IpFamily,
    rule: &Rule,
    sets: &SetNumbers,
) -> Result<(), Unsupported> {
    let Rule { source, destination, in_interface, out_interface, protocol, matches, target } = rule;
    let (number, inverted) = match protocol {
        None => (0, false),
        Some(protocol) => (protocols::number(protocol.value()).ok_or(Unsupported)?, protocol.is_negated()),
    };
    let mut list = Expressions { list: message.nest(NFTA_RULE_EXPRESSIONS), family };
    // The order of iptables-nft since 1.8.10. Most rules that a packet passes are for other addresses, so these come
    // first.
    list.address(offsets(family).0, source.as_ref());
    list.address(offsets(family).1, destination.as_ref());
    list.interface(NFT_META_IIFNAME, in_interface.as_ref());
    list.interface(NFT_META_OIFNAME, out_interface.as_ref());
    if protocol.is_some() {
        list.load_meta(NFT_META_L4PROTO);
        list.compare(inverted, &[number]);
    }
    for module in matches {
        let extension = module.encode(family, sets).ok_or(Unsupported)?;
        list.extension("match", [NFTA_MATCH_NAME, NFTA_MATCH_REV, NFTA_MATCH_INFO], &extension);
    }
    list.expression("counter", |data| {
        data.put_u64_be(NFTA_COUNTER_BYTES, 0);
        data.put_u64_be(NFTA_COUNTER_PACKETS, 0);
    });
    if let Some(target) = target {
        list.target(target, sets)?;
    }
    drop(list);
    // Modules of a protocol check that their rule matches it.
    let mut compat = message.nest(NFTA_RULE_COMPAT);
    compat.put_u32_be(NFTA_RULE_COMPAT_PROTO, number.into());
    compat.put_u32_be(NFTA_RULE_COMPAT_FLAGS, if inverted { NFT_RULE_COMPAT_F_INV } else { 0 });
    Ok(())
}

/// The offsets of the source and destination address in the network header.
pub(super) fn offsets(family: IpFamily) -> (u32, u32) {
    match family {
        IpFamily::V4 => (12, 16),
        IpFamily::V6 => (8, 24),
    }
}

struct Expressions<'a> {
    list: Writer<'a>,
    family: IpFamily,
}

impl Expressions<'_> {
    fn interface(&mut self, key: u32, interface: Option<&Sense<InterfaceMatch>>) {
        let Some(interface) = interface else { return };
        self.load_meta(key);
        match interface.value() {
            InterfaceMatch::Prefix(prefix) => self.compare(interface.is_negated(), prefix.as_bytes()),
            InterfaceMatch::Name(name) => {
                let mut terminated = name.as_bytes().to_vec();
                terminated.push(0);
                self.compare(interface.is_negated(), &terminated);
            }
        }
    }

    fn address(&mut self, offset: u32, address: Option<&Sense<AddressMatch>>) {
        let Some(address) = address else { return };
        let (bits, mask) = match address.value() {
            AddressMatch::Net(net) => (net.network(), net.netmask()),
            AddressMatch::Masked { address, mask } => (*address, *mask),
        };
        let (bits, mask) = (Octets::new(bits), Octets::new(mask));
        self.expression("payload", |data| {
            data.put_u32_be(NFTA_PAYLOAD_DREG, NFT_REG_1);
            data.put_u32_be(NFTA_PAYLOAD_BASE, NFT_PAYLOAD_NETWORK_HEADER);
            data.put_u32_be(NFTA_PAYLOAD_OFFSET, offset);
            data.put_u32_be(NFTA_PAYLOAD_LEN, bits.length());
        });
        if mask.as_slice().iter().any(|byte| *byte != u8::MAX) {
            self.expression("bitwise", |data| {
                data.put_u32_be(NFTA_BITWISE_SREG, NFT_REG_1);
                data.put_u32_be(NFTA_BITWISE_DREG, NFT_REG_1);
                data.put_u32_be(NFTA_BITWISE_LEN, bits.length());
                data.nest(NFTA_BITWISE_MASK).put_bytes(NFTA_DATA_VALUE, mask.as_slice());
                data.nest(NFTA_BITWISE_XOR).put_bytes(NFTA_DATA_VALUE, &[0; 16][..bits.as_slice().len()]);
            });
        }
        self.compare(address.is_negated(), bits.as_slice());
    }

    fn target(&mut self, target: &Target, sets: &SetNumbers) -> Result<(), Unsupported> {
        match target {
            Target::Jump(chain) => self.verdict(NFT_JUMP, Some(*chain)),
            Target::Goto(chain) => self.verdict(NFT_GOTO, Some(*chain)),
            Target::Accept => self.verdict(NF_ACCEPT, None),
            Target::Drop => self.verdict(NF_DROP, None),
            Target::Return => self.verdict(NFT_RETURN, None),
            target => {
                let extension = target.encode(self.family, sets).ok_or(Unsupported)?;
                self.extension("target", [NFTA_TARGET_NAME, NFTA_TARGET_REV, NFTA_TARGET_INFO], &extension);
            }
        }
        Ok(())
    }

    fn verdict(&mut self, code: i32, chain: Option<ChainName>) {
        self.expression("immediate", |data| {
            data.put_u32_be(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
            let mut value = data.nest(NFTA_IMMEDIATE_DATA);
            let mut verdict = value.nest(NFTA_DATA_VERDICT);
            verdict.put_u32_be(NFTA_VERDICT_CODE, code.cast_unsigned());
            if let Some(chain) = chain {
                verdict.put_str(NFTA_VERDICT_CHAIN, chain.as_str());
            }
        });
    }

    fn extension(&mut self, kind: &str, [name, revision, info]: [u16; 3], extension: &Structure<'_>) {
        self.expression(kind, |data| {
            data.put_str(name, &extension.name);
            data.put_u32_be(revision, extension.revision);
            data.put_bytes(info, extension.as_bytes());
        });
    }

    fn load_meta(&mut self, key: u32) {
        self.expression("meta", |data| {
            data.put_u32_be(NFTA_META_KEY, key);
            data.put_u32_be(NFTA_META_DREG, NFT_REG_1);
        });
    }

    fn compare(&mut self, negated: bool, bytes: &[u8]) {
        self.expression("cmp", |data| {
            data.put_u32_be(NFTA_CMP_SREG, NFT_REG_1);
            data.put_u32_be(NFTA_CMP_OP, if negated { NFT_CMP_NEQ } else { NFT_CMP_EQ });
            data.nest(NFTA_CMP_DATA).put_bytes(NFTA_DATA_VALUE, bytes);
        });
    }

    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Writer<'_>)) {
        let mut entry = self.list.nest(NFTA_LIST_ELEM);
        entry.put_str(NFTA_EXPR_NAME, name);
        data(&mut entry.nest(NFTA_EXPR_DATA));
    }
}

/// The bytes of an address.
struct Octets {
    bytes: [u8; 16],
    length: usize,
}

impl Octets {
    fn new(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&address.octets());
                Self { bytes, length: 4 }
            }
            IpAddr::V6(address) => Self { bytes: address.octets(), length: 16 },
        }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn length(&self) -> u32 {
        if self.length == 4 { 4 } else { 16 }
    }
}
