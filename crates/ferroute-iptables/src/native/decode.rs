//! Decoding rules that any version of `iptables-nft` may have written.
//!
//! Expressions that no version uses, such as those of rules that `nft` added, become a [`Match::Other`] or
//! [`Target::Other`], so that the rule equals no other.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{Attribute, Attributes, Malformed, nf_tables::*};

use super::{encode::offsets, other, protocols};
use crate::{
    AddressMatch, ChainName, Counters, InterfaceMatch, MarkMatch, Match, PortRange, ProtocolMatch, Rule, Sense, Target,
    extension::{Bytes, Structure, set_number},
};

/// A rule in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelRule<'a> {
    /// The table; empty if its name is not text.
    pub(super) table: &'a str,
    /// The chain; empty if its name is not text.
    pub(super) chain: &'a str,
    /// The number by which the kernel identifies the rule within its table.
    pub(super) handle: u64,
    /// The rule.
    pub(super) rule: Rule,
    /// Its counters.
    pub(super) counters: Counters,
    /// It has an expression that `iptables-nft` does not write.
    pub(super) is_foreign: bool,
    /// Its matches on ipsets, which lack the names: the position, and the set's number.
    pub(super) sets: Vec<(usize, u16)>,
}

/// Inserts the names of ipsets into a rule. `name_of` returns the name of the set with a number.
pub(super) fn name_sets<N: AsRef<str>>(rule: &mut Rule, sets: &[(usize, u16)], name_of: impl Fn(u16) -> Option<N>) {
    for (position, number) in sets {
        let Some(module) = rule.matches.get_mut(*position) else { continue };
        match (&mut *module, name_of(*number)) {
            (Match::Set(Sense::Is(set) | Sense::Not(set)), Some(name)) => set.name = name.as_ref().into(),
            _ => *module = Match::Other("-m set".into()),
        }
    }
}

/// Decodes the attributes of a rule.
pub(super) fn rule<'a>(family: IpFamily, attributes: Attributes<'a>) -> Result<KernelRule<'a>, Malformed> {
    let mut decoder = Decoder { family, found: KernelRule::default(), loaded: [const { None }; REGISTERS] };
    let mut userdata = None;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_RULE_TABLE => decoder.found.table = attribute.text().unwrap_or_default(),
            NFTA_RULE_CHAIN => decoder.found.chain = attribute.text().unwrap_or_default(),
            NFTA_RULE_HANDLE => decoder.found.handle = attribute.u64_be()?,
            NFTA_RULE_EXPRESSIONS => attribute.nested().try_for_each(|entry| decoder.expression(&entry?))?,
            NFTA_RULE_USERDATA => userdata = Some(attribute.payload),
            _ => {}
        }
    }
    let mut found = decoder.found;
    if let Some(comment) = userdata.and_then(comment) {
        found.rule.matches.push(Match::Comment(comment.into()));
    }
    Ok(found)
}

/// Returns the comment in the user data of a rule, where `iptables-nft` 1.8.2 and older stored it.
fn comment(mut userdata: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = userdata {
        let value = rest.get(..usize::from(*length))?;
        if *kind == USERDATA_COMMENT {
            return Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned());
        }
        userdata = &rest[value.len()..];
    }
    None
}

/// What a register holds.
#[derive(Clone, Debug)]
struct Loaded<'a> {
    source: Source,
    /// The bits that remain; `None` for all.
    mask: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Network { offset: u32, length: u32 },
    Transport { offset: u32, length: u32 },
    Meta(u32),
}

struct Decoder<'a> {
    family: IpFamily,
    found: KernelRule<'a>,
    /// By number of the 4-byte register.
    loaded: [Option<Loaded<'a>>; REGISTERS],
}

impl<'a> Decoder<'a> {
    fn expression(&mut self, entry: &Attribute<'a>) -> Result<(), Malformed> {
        let [name, data] = parts(entry.nested(), [NFTA_EXPR_NAME, NFTA_EXPR_DATA])?;
        let Some(name) = name else { return Ok(()) };
        let name = name.text().unwrap_or_default();
        let data = data.map_or(Attributes::new(&[]), |data| data.nested());
        let decoded = match name {
            "meta" => self.meta(data)?,
            "payload" => self.payload(data)?,
            "bitwise" => self.bitwise(data)?,
            "cmp" => self.compare(data)?,
            "range" => self.range(data)?,
            "match" => self.matching(data)?,
            "target" => self.target(data)?,
            "immediate" => self.immediate(data)?,
            "counter" => self.counter(data)?,
            "limit" => self.limit(data)?,
            "log" => self.log(data)?,
            _ => None,
        };
        if decoded.is_none() {
            self.found.is_foreign = true;
            self.found.rule.matches.push(Match::Other(format!("-m {name}").into()));
        }
        Ok(())
    }

    fn meta(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let [key, to] = numbers(data, [NFTA_META_KEY, NFTA_META_DREG])?;
        let (Some(key), Some(to)) = (key, to) else { return Ok(None) };
        Ok(self.load(to, Source::Meta(key)))
    }

    fn payload(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let wanted = [NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN];
        let [Some(to), Some(base), Some(offset), Some(length)] = numbers(data, wanted)? else { return Ok(None) };
        let source = match base {
            NFT_PAYLOAD_NETWORK_HEADER => Source::Network { offset, length },
            NFT_PAYLOAD_TRANSPORT_HEADER => Source::Transport { offset, length },
            _ => return Ok(None),
        };
        Ok(self.load(to, source))
    }

    fn bitwise(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
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

    fn compare(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
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

    fn range(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
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

    /// Adds a condition on a port, which `iptables-nft` 1.8.8 and later write in two expressions of nf_tables. Those of one
    /// module follow each other.
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

    fn matching(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let Some(structure) = structure(data, [NFTA_MATCH_NAME, NFTA_MATCH_REV, NFTA_MATCH_INFO])? else {
            return Ok(None);
        };
        let module = Match::decode(&structure, self.family);
        if let (Some(Match::Set(_)), Some(number)) = (&module, set_number(&structure)) {
            self.found.sets.push((self.found.rule.matches.len(), number));
        }
        let text = || other::match_text(&structure, self.family).unwrap_or_else(|| undecoded(&structure));
        let module = module.unwrap_or_else(|| Match::Other(text().into()));
        self.found.rule.matches.push(module);
        Ok(Some(()))
    }

    fn target(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let Some(structure) = structure(data, [NFTA_TARGET_NAME, NFTA_TARGET_REV, NFTA_TARGET_INFO])? else {
            return Ok(None);
        };
        let target = Target::decode(&structure, self.family);
        let text = || other::target_text(&structure, self.family).unwrap_or_else(|| other_target(&structure));
        Ok(set(&mut self.found.rule.target, target.unwrap_or_else(|| Target::Other(text().into()))))
    }

    fn immediate(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let [to, data] = parts(data, [NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA])?;
        let (Some(to), Some(data)) = (to, data) else { return Ok(None) };
        let [verdict] = parts(data.nested(), [NFTA_DATA_VERDICT])?;
        let (NFT_REG_VERDICT, Some(verdict)) = (to.u32_be()?, verdict) else { return Ok(None) };
        let [code, chain] = parts(verdict.nested(), [NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN])?;
        let Some(code) = code else { return Ok(None) };
        let name = chain.and_then(|chain| ChainName::new(chain.text()?).ok());
        let target = match (code.u32_be()?.cast_signed(), name) {
            (NF_ACCEPT, _) => Target::Accept,
            (NF_DROP, _) => Target::Drop,
            (NFT_RETURN, _) => Target::Return,
            (NFT_JUMP, Some(chain)) => Target::Jump(chain),
            (NFT_GOTO, Some(chain)) => Target::Goto(chain),
            // A chain that `iptables` cannot name.
            (NFT_JUMP | NFT_GOTO, None) => {
                Target::Other(chain.map(|chain| chain.escaped_text()).unwrap_or_default().into())
            }
            _ => return Ok(None),
        };
        Ok(set(&mut self.found.rule.target, target))
    }

    fn counter(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let [bytes, packets] = parts(data, [NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS])?;
        if let (Some(bytes), Some(packets)) = (bytes, packets) {
            self.found.counters = Counters { packets: packets.u64_be()?, bytes: bytes.u64_be()? };
        }
        Ok(Some(()))
    }

    /// The form of `-m limit` since `iptables-nft` 1.8.0.
    fn limit(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let wanted = [NFTA_LIMIT_RATE, NFTA_LIMIT_UNIT, NFTA_LIMIT_BURST, NFTA_LIMIT_TYPE, NFTA_LIMIT_FLAGS];
        let [Some(rate), Some(unit), burst, kind, flags] = parts(data, wanted)? else { return Ok(None) };
        let number = |part: Option<Attribute<'_>>| part.map_or(Ok(0), |part| part.u32_be());
        let (rate, burst) = (rate.u64_be()?, number(burst)?);
        let unit = match unit.u64_be()? {
            1 => "sec",
            60 => "min",
            3600 => "hour",
            86400 => "day",
            _ => return Ok(None),
        };
        // Of bytes, or for packets above it.
        if number(kind)? != 0 || number(flags)? != 0 {
            return Ok(None);
        }
        let mut text = format!("-m limit --limit {rate}/{unit}");
        if burst != DEFAULT_BURST {
            text += &format!(" --limit-burst {burst}");
        }
        self.found.rule.matches.push(Match::Other(text.into()));
        Ok(Some(()))
    }

    /// The form of target NFLOG since `iptables-nft` 1.8.8.
    fn log(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let [group] = parts(data, [NFTA_LOG_GROUP])?;
        let Some(group) = group else { return Ok(None) };
        let text = match group.u16_be()? {
            0 => "NFLOG".to_owned(),
            group => format!("NFLOG --nflog-group {group}"),
        };
        Ok(set(&mut self.found.rule.target, Target::Other(text.into())))
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

/// Sets a condition of which a rule has at most one.
fn set<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    if slot.is_some() {
        return None;
    }
    *slot = Some(value);
    Some(())
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

/// Returns the first attribute of each kind.
fn parts<'a, const N: usize>(
    attributes: Attributes<'a>,
    kinds: [u16; N],
) -> Result<[Option<Attribute<'a>>; N], Malformed> {
    let mut found = [None; N];
    for attribute in attributes {
        let attribute = attribute?;
        if let Some(at) = kinds.iter().position(|kind| *kind == attribute.kind) {
            found[at].get_or_insert(attribute);
        }
    }
    Ok(found)
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

fn structure<'a>(data: Attributes<'a>, kinds: [u16; 3]) -> Result<Option<Structure<'a>>, Malformed> {
    let [Some(name), Some(revision), Some(info)] = parts(data, kinds)? else { return Ok(None) };
    let bytes = Bytes::Borrowed(info.payload);
    Ok(Some(Structure { name: name.escaped_text(), revision: revision.u32_be()?, bytes }))
}

/// Returns the text of a match module whose options cannot be decoded. Other options lead to another text.
fn undecoded(structure: &Structure<'_>) -> String {
    let mut hasher = DefaultHasher::new();
    (structure.revision, structure.as_bytes()).hash(&mut hasher);
    // Enough to distinguish a few rules.
    format!("-m {} --undecoded {:08x}", structure.name, hasher.finish() >> 32)
}

/// Returns the text of a target without a variant, with the only option of such a one that changes the path of a packet.
fn other_target(structure: &Structure<'_>) -> String {
    // `struct xt_ct_target_info`, and the next revision of it.
    let flags = structure.as_bytes().first_chunk().map_or(0, |flags| u16::from_ne_bytes(*flags));
    let is_notrack = structure.name == "CT" && flags & XT_CT_NOTRACK != 0;
    format!("{}{}", structure.name, if is_notrack { " --notrack" } else { "" })
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
    // The kernel compares all bits: a network with others matches no packet.
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
const REGISTERS: usize = 16;
/// The burst of `-m limit` that `iptables-save` does not print.
const DEFAULT_BURST: u32 = 5;
/// The offset of the flags in the header of TCP.
const TCP_FLAGS_OFFSET: u32 = 13;
/// The flags by their bits, as `iptables` names them.
const TCP_FLAGS: [&str; 6] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
/// The packet is not tracked (`XT_CT_NOTRACK`).
const XT_CT_NOTRACK: u16 = 1;
/// `NFTNL_UDATA_RULE_COMMENT`.
const USERDATA_COMMENT: u8 = 0;
