//! Text of targets.

use super::*;
use crate::text::write_quoted;

/// Returns the text of a target; `None` if its options are unknown.
pub(in crate::native) fn target_text(structure: &Structure<'_>, family: IpFamily) -> Option<String> {
    let bytes = structure.as_bytes();
    let name = &*structure.name;
    Some(match (name, structure.revision) {
        ("CONNMARK", revision @ (1 | 2)) => {
            let [mark, mask, packet] = [u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?];
            let mode = u8_at(bytes, if revision == 1 { 12 } else { 14 })?;
            if revision == 2 && u8_at(bytes, 13)? != 0 {
                return None;
            }
            match mode {
                0 => format!("CONNMARK --set-xmark {mark:#x}/{mask:#x}"),
                1 => format!("CONNMARK --save-mark --nfmask {packet:#x} --ctmask {mask:#x}"),
                2 => format!("CONNMARK --restore-mark --nfmask {packet:#x} --ctmask {mask:#x}"),
                _ => return None,
            }
        }
        ("REDIRECT" | "MASQUERADE", _) => {
            let range = Range::read(structure, family)?;
            let ports = range.ports.map(|ports| format!(" --to-ports {}", dashed(ports))).unwrap_or_default();
            format!("{name}{ports}{}", range.options())
        }
        ("CLASSIFY", 0) => {
            let class = u32_at(bytes, 0)?;
            format!("CLASSIFY --set-class {:x}:{:x}", class >> 16, class & 0xffff)
        }
        ("SET", 1..=3) => set_text(bytes)?,
        ("HMARK", 0) => hmark_text(bytes, family)?,
        ("NETMAP", _) => {
            let (first, last) = Range::read(structure, family)?.addresses?;
            let length = (0..=128).filter_map(|length| ipnet::IpNet::new(first, length).ok());
            let network = length.into_iter().find(|net| net.network() == first && net.broadcast() == last)?;
            format!("NETMAP --to {network}")
        }
        ("DNAT" | "SNAT", _) => {
            let range = Range::read(structure, family)?;
            let option = if name == "DNAT" { "--to-destination" } else { "--to-source" };
            let address = range.addresses.map(dashed).unwrap_or_default();
            let base = range.base.map(|base| format!("/{base}")).unwrap_or_default();
            let text = match (range.ports, family) {
                (None, _) => address,
                (Some(ports), IpFamily::V6) if !address.is_empty() => format!("[{address}]:{}{base}", dashed(ports)),
                (Some(ports), _) => format!("{address}:{}{base}", dashed(ports)),
            };
            format!("{name} {option} {text}{}", range.options())
        }
        ("TPROXY", revision @ 0..=1) => {
            let port = u16::from_be(u16_at(bytes, if revision == 0 { 12 } else { 24 })?);
            let (mask, value) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
            let address = address(bytes, 8, family)?;
            format!("TPROXY --on-port {port} --on-ip {address} --tproxy-mark {value:#x}/{mask:#x}")
        }
        ("NFQUEUE", 0..=3) => {
            let (first, count) = (u16_at(bytes, 0)?, u16_at(bytes, 2).unwrap_or(1));
            let queues = match count {
                0 | 1 => format!("num {first}"),
                count => format!("balance {first}:{}", first.checked_add(count - 1)?),
            };
            let flags = u16_at(bytes, 4).unwrap_or(0);
            let names = [(1, " --queue-bypass"), (2, " --queue-cpu-fanout")];
            let options: String = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
            format!("NFQUEUE --queue-{queues}{options}")
        }
        ("LOG", 0) => {
            let mut text = format!("LOG{}", prefix_option("log", text_at(bytes, 2, 30)?));
            if u8_at(bytes, 0)? != DEFAULT_LEVEL {
                text += &format!(" --log-level {}", u8_at(bytes, 0)?);
            }
            let names = [(1, "tcp-sequence"), (2, "tcp-options"), (4, "ip-options"), (8, "uid"), (32, "macdecode")];
            for (bit, name) in names {
                if u8_at(bytes, 1)? & bit != 0 {
                    text += &format!(" --log-{name}");
                }
            }
            text
        }
        ("NFLOG", 0) => nflog_text(u16_at(bytes, 4)?, text_at(bytes, 12, 64)?),
        ("TCPMSS", 0) => match u16_at(bytes, 0)? {
            u16::MAX => "TCPMSS --clamp-mss-to-pmtu".to_owned(),
            size => format!("TCPMSS --set-mss {size}"),
        },
        ("DSCP", 0) => format!("DSCP --set-dscp {:#04x}", u8_at(bytes, 0)?),
        ("TOS", 1) => format!("TOS --set-tos {:#04x}/{:#04x}", u8_at(bytes, 0)?, u8_at(bytes, 1)?),
        ("TTL" | "HL", 0) => {
            let change = *["set", "inc", "dec"].get(usize::from(u8_at(bytes, 0)?))?;
            format!("{name} --{}-{change} {}", name.to_ascii_lowercase(), u8_at(bytes, 1)?)
        }
        ("TEE", 1) => {
            let interface = Some(text_at(bytes, 16, 16)?).filter(|name| !name.is_empty());
            let interface = interface.map(|name| format!(" --oif {name}")).unwrap_or_default();
            format!("TEE --gateway {}{interface}", address(bytes, 0, family)?)
        }
        ("AUDIT", 0) => format!("AUDIT --type {}", ["accept", "drop", "reject"].get(usize::from(u8_at(bytes, 0)?))?),
        ("CHECKSUM", 0) => "CHECKSUM --checksum-fill".to_owned(),
        ("SYNPROXY", 0) => {
            let options = u8_at(bytes, 0)?;
            let (scale, size) = (format!("wscale {}", u8_at(bytes, 1)?), format!("mss {}", u16_at(bytes, 2)?));
            let names = [(4, "sack-perm"), (8, "timestamp"), (2, &scale), (1, &size), (16, "ecn")];
            let given = names.iter().filter(|(bit, _)| options & bit != 0);
            format!("SYNPROXY{}", given.map(|(_, name)| format!(" --{name}")).collect::<String>())
        }
        ("RATEEST", 0) => rare::rate_estimator(bytes)?,
        ("CT", 0..=2) => tracking_text(structure)?,
        _ => return None,
    })
}

/// Returns the text of target NFLOG.
pub(in crate::native) fn nflog_text(group: u16, prefix: &str) -> String {
    let group = if group == 0 { String::new() } else { format!(" --nflog-group {group}") };
    format!("NFLOG{}{group}", prefix_option("nflog", prefix))
}

/// Returns the option for the prefix of logged packets; empty without one.
fn prefix_option(name: &str, prefix: &str) -> String {
    if prefix.is_empty() {
        return String::new();
    }
    let mut text = format!(" --{name}-prefix ");
    write_quoted(&mut text, prefix).expect("writing to a String cannot fail");
    text
}

/// Returns the text of target CT: `struct xt_ct_target_info` and its next revision.
fn tracking_text(structure: &Structure<'_>) -> Option<String> {
    let bytes = structure.as_bytes();
    let (flags, zone) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?);
    let helper = text_at(bytes, 12, 16)?;
    let helper = if helper.is_empty() { String::new() } else { format!(" --helper {helper}") };
    let option = match flags & (XT_CT_ZONE_DIR_ORIG | XT_CT_ZONE_DIR_REPL) {
        XT_CT_ZONE_DIR_ORIG => "zone-orig",
        XT_CT_ZONE_DIR_REPL => "zone-reply",
        _ => "zone",
    };
    let zone = match zone {
        _ if flags & XT_CT_ZONE_MARK != 0 => format!(" --{option} mark"),
        0 => String::new(),
        zone => format!(" --{option} {zone}"),
    };
    Some(if flags & XT_CT_NOTRACK != 0 { "CT --notrack".to_owned() } else { format!("CT{helper}{zone}") })
}

/// Returns the text of target HMARK: `struct xt_hmark_info`.
fn hmark_text(bytes: &[u8], family: IpFamily) -> Option<String> {
    let flags = u32_at(bytes, 40)?;
    // Those of SPIs are not supported.
    if flags & (1 << 2 | 1 << 3) != 0 {
        return None;
    }
    let port = |at| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let prefix = |at| ipnet::ip_mask_to_prefix(address(bytes, at, family)?).ok();
    let options = [
        (0, "src-prefix", prefix(0)?.to_string()),
        (1, "dst-prefix", prefix(16)?.to_string()),
        (4, "sport", port(36)?.to_string()),
        (5, "dport", port(38)?.to_string()),
        (6, "sport-mask", format!("{:#06x}", port(32)?)),
        (7, "dport-mask", format!("{:#06x}", port(34)?)),
        (8, "proto-mask", format!("{:#x}", u16_at(bytes, 44)?)),
        (9, "rnd", format!("{:#010x}", u32_at(bytes, 48)?)),
        (10, "mod", u32_at(bytes, 52)?.to_string()),
        (11, "offset", u32_at(bytes, 56)?.to_string()),
        (12, "tuple", "ct".to_owned()),
    ];
    let given = options.iter().filter(|(bit, ..)| flags & 1 << bit != 0);
    let words: String = given.map(|(_, name, value)| format!(" --hmark-{name} {value}")).collect();
    Some(format!("HMARK{words}"))
}

/// Returns the text of target SET, with the numbers of sets instead of their names: `struct xt_set_info_target_v1` to
/// `v3`.
fn set_text(bytes: &[u8]) -> Option<String> {
    let mut text = "SET".to_owned();
    for (option, number, at) in set_options(bytes)? {
        let (dimensions, flags) = (u8_at(bytes, at + 2)?, u8_at(bytes, at + 3)?);
        let side = |n: u8| if flags & (1 << n) == 0 { "dst" } else { "src" };
        let sides = (1..=dimensions.min(6)).map(side).collect::<Vec<_>>().join(",");
        text += &format!(" --{option} {} {sides}", numbered_set(number));
    }
    if u16_at(bytes, 8).is_some_and(|number| bytes.len() >= MAPPING && number != IPSET_INVALID) {
        let flags = u32_at(bytes, 12)?;
        for (bit, name) in [(8, "map-mark"), (9, "map-prio"), (10, "map-queue")] {
            if flags & (1 << bit) != 0 {
                text += &format!(" --{name}");
            }
        }
    }
    Some(text)
}

/// Returns the sets of a target SET: the option, the number, and where it is in the structure.
fn set_options(bytes: &[u8]) -> Option<Vec<(&'static str, u16, usize)>> {
    let options = [("add-set", 0), ("del-set", 4), ("map-set", 8)];
    let options = options.into_iter().filter(|(_, at)| *at < 8 || bytes.len() >= MAPPING);
    let sets = options.map(|(option, at)| Some((option, u16_at(bytes, at)?, at))).collect::<Option<Vec<_>>>()?;
    Some(sets.into_iter().filter(|(_, number, _)| *number != IPSET_INVALID).collect())
}

/// Returns the numbers of the sets of a target.
pub(in crate::native) fn target_sets(structure: &Structure<'_>) -> impl Iterator<Item = u16> + use<> {
    let sets = (structure.name == "SET" && structure.revision > 0).then(|| set_options(structure.as_bytes())).flatten();
    sets.unwrap_or_default().into_iter().map(|(_, number, _)| number)
}

/// Returns the placeholder of a set in the text of a target until its name is known.
pub(in crate::native) fn numbered_set(number: u16) -> String {
    format!("#{number}")
}

/// `struct nf_nat_range`, or its form with IPv4 addresses alone.
struct Range {
    flags: u32,
    addresses: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
    /// Port from which ports are counted.
    base: Option<u16>,
}

impl Range {
    fn read(structure: &Structure<'_>, family: IpFamily) -> Option<Self> {
        let bytes = structure.as_bytes();
        let is_short = family == IpFamily::V4 && structure.revision == 0;
        let (flags, first, last, ports) = if is_short { (4, 8, 12, 16) } else { (0, 4, 20, 36) };
        let flags = u32_at(bytes, flags)?;
        let port = |at| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let addresses = match flags & 0x1 {
            0 => None,
            _ => Some((address(bytes, first, family)?, address(bytes, last, family)?)),
        };
        let base = if flags & 0x20 == 0 { None } else { Some(port(ports + 4)?) };
        let ports = if flags & 0x2 == 0 { None } else { Some((port(ports)?, port(ports + 2)?)) };
        Some(Self { flags, addresses, ports, base })
    }

    /// Returns the options that are flags (`NF_NAT_RANGE_*`).
    fn options(&self) -> String {
        let names = [(0x4, " --random"), (0x10, " --random-fully"), (0x8, " --persistent")];
        names.iter().filter(|(bit, _)| self.flags & bit != 0).map(|(_, name)| *name).collect()
    }
}

fn dashed<T: ToString + PartialEq>((first, last): (T, T)) -> String {
    if first == last { first.to_string() } else { format!("{}-{}", first.to_string(), last.to_string()) }
}

/// No set (`IPSET_INVALID_ID`).
const IPSET_INVALID: u16 = 65535;
/// The length of `struct xt_set_info_target_v3`, the first with `map_set`.
const MAPPING: usize = 20;
/// The level of target LOG that `iptables-save` does not print: a warning.
const DEFAULT_LEVEL: u8 = 4;
/// The packet is not tracked (`XT_CT_NOTRACK`).
const XT_CT_NOTRACK: u16 = 1;
/// The zone is that of packets of the client (`XT_CT_ZONE_DIR_ORIG`).
const XT_CT_ZONE_DIR_ORIG: u16 = 1 << 2;
/// The zone is that of replies (`XT_CT_ZONE_DIR_REPL`).
const XT_CT_ZONE_DIR_REPL: u16 = 1 << 3;
/// The zone is the mark of the packet (`XT_CT_ZONE_MARK`).
const XT_CT_ZONE_MARK: u16 = 1 << 4;
