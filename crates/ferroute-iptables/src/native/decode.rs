//! Decoding rules that any version of `iptables-nft` may have written.
//!
//! Expressions that no version uses, such as those of rules that `nft` added, become a [`Match::Other`] or
//! [`Target::Other`], so that the rule does not equal any other rule.

mod conditions;

use std::hash::{DefaultHasher, Hash, Hasher};

use ferroute_core::IpFamily;
use ferroute_netlink::{Attribute, Attributes, Malformed, nf_tables::*};

use self::conditions::{Loaded, REGISTERS};
use super::other;
use crate::{
    ChainName, Counters, Match, Rule, Sense, Target,
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
    /// Counters.
    pub(super) counters: Counters,
    /// Whether it has an expression that `iptables-nft` does not write.
    pub(super) is_foreign: bool,
    /// Matches on ipsets, which lack the names.
    pub(super) sets: NumberedSets,
}

/// The ipsets of a rule: the position of the match in the rule, or `None` for the target, and the number of the set.
pub(super) type NumberedSets = Vec<(Option<usize>, u16)>;

/// Inserts the names of ipsets into a rule. `name_of` returns the name of the set with a number.
pub(super) fn name_sets<N: AsRef<str>>(
    rule: &mut Rule,
    sets: &[(Option<usize>, u16)],
    name_of: impl Fn(u16) -> Option<N>,
) {
    for (position, number) in sets {
        let Some(position) = position else {
            if let (Some(Target::Other(text)), Some(name)) = (&mut rule.target, name_of(*number)) {
                *text = text
                    .replace(&format!(" {} ", other::numbered_set(*number)), &format!(" {} ", name.as_ref()))
                    .into();
            }
            continue;
        };
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
            NFTA_RULE_EXPRESSIONS => {
                for entry in attribute.nested() {
                    decoder.expression(&entry?);
                }
            }
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

/// Decodes a single expression for a module or target, as a rule that has only this module or target, with the numbers
/// of its ipsets. `None` for other expressions.
pub(super) fn extension<'a>(
    family: IpFamily,
    name: &str,
    data: Attributes<'a>,
) -> Result<Option<(Rule, NumberedSets)>, Malformed> {
    let mut decoder = Decoder { family, found: KernelRule::default(), loaded: [const { None }; REGISTERS] };
    let decoded = match name {
        "match" => decoder.matching(data)?,
        "target" => decoder.target(data)?,
        _ => None,
    };
    Ok(decoded.map(|()| (decoder.found.rule, decoder.found.sets)))
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

struct Decoder<'a> {
    family: IpFamily,
    found: KernelRule<'a>,
    /// By number of the 4-byte register.
    loaded: [Option<Loaded<'a>>; REGISTERS],
}

impl<'a> Decoder<'a> {
    /// Adds an expression. An expression that cannot be read belongs to another program, whose rules may be in the same
    /// chains.
    fn expression(&mut self, entry: &Attribute<'a>) {
        let [name, data] = parts(entry.nested(), [NFTA_EXPR_NAME, NFTA_EXPR_DATA]).unwrap_or_default();
        let name = name.and_then(|name| name.text()).unwrap_or_default();
        let data = data.map_or(Attributes::new(&[]), |data| data.nested());
        let decoded = match name {
            "meta" => self.meta(data),
            "payload" => self.payload(data),
            "bitwise" => self.bitwise(data),
            "cmp" => self.compare(data),
            "range" => self.range(data),
            "match" => self.matching(data),
            "target" => self.target(data),
            "immediate" => self.immediate(data),
            "counter" => self.counter(data),
            "limit" => self.limit(data),
            "log" => self.log(data),
            _ => Ok(None),
        };
        if !matches!(decoded, Ok(Some(()))) {
            self.found.is_foreign = true;
            self.found.rule.matches.push(Match::Other(format!("-m {name}").into()));
        }
    }

    fn matching(&mut self, data: Attributes<'a>) -> Result<Option<()>, Malformed> {
        let Some(structure) = structure(data, [NFTA_MATCH_NAME, NFTA_MATCH_REV, NFTA_MATCH_INFO])? else {
            return Ok(None);
        };
        let module = Match::decode(&structure, self.family);
        if let (Some(Match::Set(_)), Some(number)) = (&module, set_number(&structure)) {
            self.found.sets.push((Some(self.found.rule.matches.len()), number));
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
        self.found.sets.extend(other::target_sets(&structure).map(|number| (None, number)));
        let text = || other::target_text(&structure, self.family).unwrap_or_else(|| structure.name.to_string());
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
        let [Some(group), prefix] = parts(data, [NFTA_LOG_GROUP, NFTA_LOG_PREFIX])? else { return Ok(None) };
        let text = other::nflog_text(group.u16_be()?, prefix.and_then(|prefix| prefix.text()).unwrap_or_default());
        Ok(set(&mut self.found.rule.target, Target::Other(text.into())))
    }
}

/// Sets a condition that a rule can have only once.
fn set<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    if slot.is_some() {
        return None;
    }
    *slot = Some(value);
    Some(())
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

fn structure<'a>(data: Attributes<'a>, kinds: [u16; 3]) -> Result<Option<Structure<'a>>, Malformed> {
    let [Some(name), Some(revision), Some(info)] = parts(data, kinds)? else { return Ok(None) };
    let bytes = Bytes::Borrowed(info.payload);
    Ok(Some(Structure { name: name.escaped_text(), revision: revision.u32_be()?, bytes }))
}

/// Returns the text of a match module whose options cannot be decoded. Different options result in different text.
fn undecoded(structure: &Structure<'_>) -> String {
    let mut hasher = DefaultHasher::new();
    (structure.revision, structure.as_bytes()).hash(&mut hasher);
    // Enough to distinguish a few rules.
    format!("-m {} --undecoded {:08x}", structure.name, hasher.finish() >> 32)
}

/// The burst of `-m limit` that `iptables-save` does not print.
pub(super) const DEFAULT_BURST: u32 = 5;
/// `NFTNL_UDATA_RULE_COMMENT`.
const USERDATA_COMMENT: u8 = 0;
