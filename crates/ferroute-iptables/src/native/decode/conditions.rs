//! Conditions from expressions that load a part of the packet into a register and compare it.

use std::net::IpAddr;

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{Attribute, Attributes, Malformed, nf_tables::*};

use super::{Decoder, parts, set};
use crate::{
    AddressMatch, InterfaceMatch, MarkMatch, Match, PortRange, ProtocolMatch, Sense,
    native::{encode::offsets, protocols},
};

/// Content of a register.
#[derive(Clone, Debug)]
pub(super) struct Loaded<'a> {
    source: Source,
    /// Bits that remain; `None` for all.
    mask: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Network { offset: u32, length: u32 },
    Transport { offset: u32, length: u32 },
    Meta(u32),
}

impl<'a> Decoder<'a> {
    pub(super) fn meta(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let [key, to] = numbers(data, [NFTA_META_KEY, NFTA_META_DREG])?;
        let (Some(key), Some(to)) = (key, to) else { return Ok(None) };
        Ok(self.load(to, Source::Meta(key)))
    }

    pub(super) fn payload(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let wanted = [NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN];
        let [Some(to), Some(base), Some(offset), Some(length)] = numbers(data, wanted)? else { return Ok(None) };
        let source = match base {
            NFT_PAYLOAD_NETWORK_HEADER => Source::Network { offset, length },
            NFT_PAYLOAD_TRANSPORT_HEADER => Source::Transport { offset, length },
            _ => return Ok(None),
        };
        Ok(self.load(to, source))
    }

    pub(super) fn bitwise(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let wanted = [NFTA_BITWISE_SREG, NFTA_BITWISE_DREG, NFTA_BITWISE_MASK, NFTA_BITWISE_XOR, NFTA_BITWISE_OP];
        let [Some(from), Some(to), Some(mask), Some(xor), operation] = parts(data, wanted)? else { return Ok(None) };
        let (mask, xor) = (value(&mask)?, value(&xor)?);
        let is_mask = match operation {
            Some(operation) => operation.u32_be()? == NFT_BITWISE_BOOL,
            None => true,
        };
        let loaded = register(from.u32_be()?).and_then(|from| self.loaded[from].clone());
        let (Some(mut loaded), Some(to), true) = (loaded, register(to.u32_be()?), is_mask) else { return Ok(None) };
        if loaded.mask.is_some() || xor.iter().any(|byte| *byte != 0) {
            return Ok(None);
        }
        loaded.mask = Some(mask);
        self.loaded[to] = Some(loaded);
        Ok(Some(()))
    }

    pub(super) fn compare(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let [Some(from), Some(operation), Some(data)] = parts(data, [NFTA_CMP_SREG, NFTA_CMP_OP, NFTA_CMP_DATA])?
        else {
            return Ok(None);
        };
        let negated = match operation.u32_be()? {
            NFT_CMP_EQ => false,
            NFT_CMP_NEQ => true,
            _ => return Ok(None),
        };
        let loaded = register(from.u32_be()?).and_then(|from| self.loaded[from].clone());
        let bytes = value(&data)?;
        Ok(loaded.and_then(|loaded| self.condition(&loaded, negated, bytes)))
    }

    fn condition(&mut self, loaded: &Loaded<'_>, negated: bool, bytes: &[u8]) -> Option<()> {
        let (source, destination) = offsets(self.family);
        match loaded.source {
            Source::Meta(NFT_META_L4PROTO) => self.protocol(loaded, negated, bytes),
            Source::Meta(NFT_META_IIFNAME) if loaded.mask.is_none() => {
                set(&mut self.found.rule.in_interface, Sense::new(negated, interface(bytes)?))
            }
            Source::Meta(NFT_META_OIFNAME) if loaded.mask.is_none() => {
                set(&mut self.found.rule.out_interface, Sense::new(negated, interface(bytes)?))
            }
            Source::Meta(NFT_META_MARK) => {
                let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
                let mask = match loaded.mask {
                    Some(mask) => number(mask)?,
                    None => u32::MAX,
                };
                let mark = MarkMatch { value: number(bytes)?, mask };
                self.found.rule.matches.push(Match::Mark(Sense::new(negated, mark)));
                Some(())
            }
            Source::Network { offset, length: 1 } if offset == protocol_offset(self.family) => {
                self.protocol(loaded, negated, bytes)
            }
            Source::Network { offset, length } if offset == source || offset == destination => {
                let address = Sense::new(negated, address(self.family, length, loaded.mask, bytes)?);
                let side =
                    if offset == source { &mut self.found.rule.source } else { &mut self.found.rule.destination };
                set(side, address)
            }
            Source::Transport { offset: TCP_FLAGS_OFFSET, length: 1 } => {
                let mask = loaded.mask.map_or(Some(u8::MAX), |mask| mask.first().copied())?;
                self.tcp_flags(negated, mask, *bytes.first()?)
            }
            Source::Transport { offset, length: 2 } if loaded.mask.is_none() => {
                let port = u16::from_be_bytes(bytes.try_into().ok()?);
                self.ports(offset, Sense::new(negated, PortRange::one(port)))
            }
            _ => None,
        }
    }

    fn protocol(&mut self, loaded: &Loaded<'_>, negated: bool, bytes: &[u8]) -> Option<()> {
        let [number] = bytes else { return None };
        loaded
            .mask
            .is_none()
            .then(|| set(&mut self.found.rule.protocol, Sense::new(negated, protocols::from_number(*number))))?
    }

    pub(super) fn range(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let wanted = [NFTA_RANGE_SREG, NFTA_RANGE_OP, NFTA_RANGE_FROM_DATA, NFTA_RANGE_TO_DATA];
        let [Some(from), Some(operation), Some(first), Some(last)] = parts(data, wanted)? else { return Ok(None) };
        let negated = operation.u32_be()? != NFT_RANGE_EQ;
        let loaded = register(from.u32_be()?).and_then(|from| self.loaded[from].clone());
        let Some(Loaded { source: Source::Transport { offset, length: 2 }, mask: None }) = loaded else {
            return Ok(None);
        };
        let port = |bytes: &[u8]| bytes.try_into().ok().map(u16::from_be_bytes);
        let (Some(first), Some(last)) = (port(value(&first)?), port(value(&last)?)) else { return Ok(None) };
        Ok(self.ports(offset, Sense::new(negated, PortRange { first, last })))
    }

    /// Adds a condition on a port, which `iptables-nft` 1.8.8 and later write as two expressions of nf_tables. The
    /// conditions of one module are adjacent.
    fn ports(&mut self, offset: u32, ports: Sense<PortRange>) -> Option<()> {
        let Some(Sense::Is(ProtocolMatch::Transport(wanted))) = self.found.rule.protocol else { return None };
        let is_destination = match offset {
            0 => false,
            2 => true,
            _ => return None,
        };
        if let (true, Some(Match::Transport { protocol, destination: side @ None, .. })) =
            (is_destination, self.found.rule.matches.last_mut())
            && *protocol == wanted
        {
            *side = Some(ports);
            return Some(());
        }
        let (source, destination) = if is_destination { (None, Some(ports)) } else { (Some(ports), None) };
        self.found.rule.matches.push(Match::Transport { protocol: wanted, source, destination });
        Some(())
    }

    /// A condition on flags, which `iptables-nft` 1.8.8 and later write as an expression of nf_tables.
    fn tcp_flags(&mut self, negated: bool, mask: u8, wanted: u8) -> Option<()> {
        let names = |bits: u8| {
            let set = TCP_FLAGS.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0);
            let names: Vec<&str> = set.map(|(_, name)| *name).collect();
            match (names.is_empty(), names.len() == TCP_FLAGS.len()) {
                (true, _) => "NONE".to_owned(),
                (_, true) => "ALL".to_owned(),
                _ => names.join(","),
            }
        };
        let tcp = Some(Sense::Is(ProtocolMatch::Transport(Protocol::Tcp)));
        if self.found.rule.protocol != tcp || (mask | wanted) >> TCP_FLAGS.len() != 0 {
            return None;
        }
        let not = if negated { "! " } else { "" };
        let text = format!("-m tcp {not}--tcp-flags {} {}", names(mask), names(wanted));
        self.found.rule.matches.push(Match::Other(text.into()));
        Some(())
    }

    fn load(&mut self, to: u32, source: Source) -> Option<()> {
        self.loaded[register(to)?] = Some(Loaded { source, mask: None });
        Some(())
    }
}

/// Returns the number of the first 4-byte register of a register; `None` for the verdict.
fn register(number: u32) -> Option<usize> {
    let index = match number {
        NFT_REG_1..=NFT_REG_4 => (number - NFT_REG_1) * 4,
        NFT_REG32_00..=NFT_REG32_15 => number - NFT_REG32_00,
        _ => return None,
    };
    usize::try_from(index).ok()
}

fn numbers<const N: usize>(attributes: Attributes<'_>, kinds: [u16; N]) -> Result<[Option<u32>; N], Malformed> {
    let mut numbers = [None; N];
    for (number, part) in numbers.iter_mut().zip(parts(attributes, kinds)?) {
        *number = part.map(|part| part.u32_be()).transpose()?;
    }
    Ok(numbers)
}

/// Returns the bytes of a nested `NFTA_DATA_VALUE`; none if it is missing.
fn value<'a>(data: &Attribute<'a>) -> Result<&'a [u8], Malformed> {
    let [value] = parts(data.nested(), [NFTA_DATA_VALUE])?;
    Ok(value.map_or(&[], |value| value.payload))
}

/// Returns an interface name, which ends with a zero, or a prefix, which does not.
fn interface(bytes: &[u8]) -> Option<InterfaceMatch> {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => Some(InterfaceMatch::Name(str::from_utf8(&bytes[..end]).ok()?.into())),
        None => Some(InterfaceMatch::Prefix(str::from_utf8(bytes).ok()?.into())),
    }
}

/// Returns a match on the first `length` bytes of an address.
fn address(family: IpFamily, length: u32, mask: Option<&[u8]>, bytes: &[u8]) -> Option<AddressMatch> {
    let length = usize::try_from(length).ok()?;
    let complete = |bytes: &[u8]| -> Option<[u8; 16]> {
        let mut octets = [0; 16];
        octets.get_mut(..length)?.copy_from_slice(bytes.get(..length)?);
        Some(octets)
    };
    let octets = complete(bytes)?;
    let mask = match mask {
        Some(mask) => complete(mask)?,
        None => complete(&[u8::MAX; 16])?,
    };
    let (address, mask) = match family {
        IpFamily::V4 if length <= 4 => {
            (IpAddr::from(*octets.first_chunk::<4>()?), IpAddr::from(*mask.first_chunk::<4>()?))
        }
        IpFamily::V4 => return None,
        IpFamily::V6 => (IpAddr::from(octets), IpAddr::from(mask)),
    };
    // The kernel compares all bits: a network with host bits matches no packet.
    AddressMatch::with_mask(address, mask)
        .filter(|found| !matches!(found, AddressMatch::Net(net) if net.addr() != address))
}

/// The offset of the protocol in the network header, where older versions of `iptables-nft` match it.
fn protocol_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 9,
        IpFamily::V6 => 6,
    }
}

/// The number of 4-byte registers.
pub(super) const REGISTERS: usize = 16;
/// The offset of the flags in the header of TCP.
const TCP_FLAGS_OFFSET: u32 = 13;
/// The flags by their bits, as `iptables` names them.
const TCP_FLAGS: [&str; 6] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
