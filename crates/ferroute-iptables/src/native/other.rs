//! Text of match modules and targets that planned rules never have, as `iptables-save` prints it. The structures are
//! those of `include/uapi/linux/netfilter/xt_*.h`.

use std::{fmt::Write, net::IpAddr};

use ferroute_core::IpFamily;

use crate::extension::Structure;

/// Returns the text of a match module; `None` if its options are unknown.
pub(super) fn match_text(structure: &Structure<'_>, family: IpFamily) -> Option<String> {
    let bytes = structure.as_bytes();
    let mut text = format!("-m {}", structure.name);
    let mut option = |inverted: bool, words: String| {
        let not = if inverted { " !" } else { "" };
        write!(text, "{not} --{words}").is_ok().then_some(())
    };
    match (&*structure.name, structure.revision) {
        ("tcp", 0) => {
            let inverted = u8_at(bytes, 11)?;
            for (name, at, bit) in [("sport", 0, 1), ("dport", 4, 2)] {
                let (first, last) = (u16_at(bytes, at)?, u16_at(bytes, at + 2)?);
                if (first, last) != (0, u16::MAX) || inverted & bit != 0 {
                    option(inverted & bit != 0, format!("{name} {first}:{last}"))?;
                }
            }
            let (mask, flags) = (u8_at(bytes, 9)?, u8_at(bytes, 10)?);
            if mask != 0 || inverted & 4 != 0 {
                option(inverted & 4 != 0, format!("tcp-flags {} {}", tcp_flags(mask), tcp_flags(flags)))?;
            }
            if u8_at(bytes, 8)? != 0 {
                option(inverted & 8 != 0, format!("tcp-option {}", u8_at(bytes, 8)?))?;
            }
        }
        ("iprange", 1) => {
            let flags = u8_at(bytes, 64)?;
            for (name, at, bit) in [("src-range", 0, 1), ("dst-range", 32, 2)] {
                if flags & bit != 0 {
                    let (first, last) = (address(bytes, at, family)?, address(bytes, at + 16, family)?);
                    option(flags & bit << 4 != 0, format!("{name} {first}-{last}"))?;
                }
            }
        }
        ("connmark", 1) => {
            let (mark, mask) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
            option(u8_at(bytes, 8)? != 0, format!("mark {mark:#x}/{mask:#x}"))?;
        }
        ("pkttype", 0) => {
            let name = ["unicast", "broadcast", "multicast"].get(usize::try_from(u32_at(bytes, 0)?).ok()?)?;
            option(u32_at(bytes, 4)? != 0, format!("pkt-type {name}"))?;
        }
        ("rpfilter", 0) => {
            let flags = u8_at(bytes, 0)?;
            for (bit, name) in [(1, "loose"), (2, "validmark"), (4, "accept-local"), (8, "invert")] {
                if flags & bit != 0 {
                    option(false, name.to_owned())?;
                }
            }
        }
        ("limit", 0) => option(false, format!("limit {}", rate(u32_at(bytes, 0)?.into(), 10_000)?))?,
        ("hashlimit", 3) => {
            let name = text_at(bytes, 0, 255)?;
            let (average, burst, mode) = (u64_at(bytes, 256)?, u64_at(bytes, 264)?, u32_at(bytes, 272)?);
            // Rates of bytes, and those that are matched by rate.
            (mode & (32 | 64) == 0).then_some(())?;
            let above = if mode & 16 != 0 { "above" } else { "upto" };
            option(false, format!("hashlimit-{above} {}", rate(average, 1_000_000)?))?;
            option(false, format!("hashlimit-burst {burst}"))?;
            let keys = [(4, "srcip"), (8, "srcport"), (1, "dstip"), (2, "dstport")];
            let keys: Vec<&str> = keys.iter().filter(|(bit, _)| mode & bit != 0).map(|(_, key)| *key).collect();
            if !keys.is_empty() {
                option(false, format!("hashlimit-mode {}", keys.join(",")))?;
            }
            option(false, format!("hashlimit-name {name}"))?;
        }
        ("physdev", 0) => {
            let (inverted, wanted) = (u8_at(bytes, 64)?, u8_at(bytes, 65)?);
            for (bit, name, at) in [
                (8, "is-in", None),
                (1, "in", Some(0)),
                (16, "is-out", None),
                (2, "out", Some(32)),
                (4, "is-bridged", None),
            ] {
                if wanted & bit != 0 {
                    let interface =
                        at.map_or(Some(String::new()), |at| Some(format!(" {}", text_at(bytes, at, 16)?)))?;
                    option(inverted & bit != 0, format!("physdev-{name}{interface}"))?;
                }
            }
        }
        ("helper", 0) => option(u32_at(bytes, 0)? != 0, format!("helper {}", text_at(bytes, 4, 30)?))?,
        ("connlabel", 0) => {
            let options = u16_at(bytes, 2)?;
            option(options & 1 != 0, format!("label {}", u16_at(bytes, 0)?))?;
            if options & 2 != 0 {
                option(false, "set".to_owned())?;
            }
        }
        ("tcpmss", 0) => {
            let (first, last) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?);
            let range = if first == last { first.to_string() } else { format!("{first}:{last}") };
            option(u8_at(bytes, 4)? != 0, format!("mss {range}"))?;
        }
        ("tos", 1) => {
            let (mask, value) = (u8_at(bytes, 0)?, u8_at(bytes, 1)?);
            option(u8_at(bytes, 2)? != 0, format!("tos {value:#04x}/{mask:#04x}"))?;
        }
        ("quota", 0) => option(u32_at(bytes, 0)? & 1 != 0, format!("quota {}", u64_at(bytes, 8)?))?,
        ("owner", 1) => {
            let (wanted, inverted) = (u8_at(bytes, 16)?, u8_at(bytes, 17)?);
            for (bit, name, at) in [(1, "uid-owner", 0), (2, "gid-owner", 8)] {
                if wanted & bit != 0 {
                    let (first, last) = (u32_at(bytes, at)?, u32_at(bytes, at + 4)?);
                    let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
                    option(inverted & bit != 0, format!("{name} {range}"))?;
                }
            }
            if wanted & 4 != 0 {
                option(inverted & 4 != 0, "socket-exists".to_owned())?;
            }
        }
        ("dscp", 0) => option(u8_at(bytes, 1)? != 0, format!("dscp {:#04x}", u8_at(bytes, 0)?))?,
        ("ttl" | "hl", 0) => {
            let comparisons = [(false, "eq"), (true, "eq"), (false, "lt"), (false, "gt")];
            let (inverted, comparison) = *comparisons.get(usize::from(u8_at(bytes, 0)?))?;
            option(inverted, format!("{}-{comparison} {}", structure.name, u8_at(bytes, 1)?))?;
        }
        ("length", 0) => {
            option(u8_at(bytes, 4)? != 0, format!("length {}:{}", u16_at(bytes, 0)?, u16_at(bytes, 2)?))?;
        }
        ("mac", 0) => {
            let address: Vec<String> = bytes.get(..6)?.iter().map(|byte| format!("{byte:02x}")).collect();
            option(u32_at(bytes, 8)? != 0, format!("mac-source {}", address.join(":")))?;
        }
        ("icmp" | "icmp6", 0) => {
            let name = if structure.name == "icmp" { "icmp-type" } else { "icmpv6-type" };
            let kind = u8_at(bytes, 0)?;
            option(
                u8_at(bytes, 3)? != 0,
                if kind == u8::MAX { format!("{name} any") } else { format!("{name} {kind}") },
            )?;
        }
        ("rt", 0) => {
            let (flags, inverted) = (u8_at(bytes, 16)?, u8_at(bytes, 17)?);
            if flags & 1 != 0 {
                option(inverted & 1 != 0, format!("rt-type {}", u32_at(bytes, 0)?))?;
            }
            if flags & 2 != 0 {
                option(inverted & 2 != 0, format!("rt-segsleft {}:{}", u32_at(bytes, 4)?, u32_at(bytes, 8)?))?;
            }
            // The other flags are for its addresses.
            (flags & !3 == 0).then_some(())?;
        }
        ("frag", 0) => {
            let (flags, inverted) = (u8_at(bytes, 12)?, u8_at(bytes, 13)?);
            if flags & 1 != 0 {
                option(inverted & 1 != 0, format!("fragid {}:{}", u32_at(bytes, 0)?, u32_at(bytes, 4)?))?;
            }
            for (bit, name) in [(4, "fragres"), (8, "fragfirst"), (16, "fragmore"), (32, "fraglast")] {
                if flags & bit != 0 {
                    option(false, name.to_owned())?;
                }
            }
        }
        ("hbh" | "dst", 0) => {
            let (flags, inverted) = (u8_at(bytes, 4)?, u8_at(bytes, 5)?);
            if flags & 1 != 0 {
                option(inverted & 1 != 0, format!("{}-len {}", structure.name, u32_at(bytes, 0)?))?;
            }
            // The other flags are for its options.
            (flags & !1 == 0).then_some(())?;
        }
        ("ipv6header", 0) => {
            let headers = u8_at(bytes, 0)?;
            let names = EXTENSION_HEADERS.iter().enumerate();
            let names: Vec<&str> = names.filter(|(bit, _)| headers & 128 >> bit != 0).map(|(_, name)| *name).collect();
            option(u8_at(bytes, 1)? != 0, format!("header {}", names.join(",")))?;
            if u8_at(bytes, 2)? != 0 {
                option(false, "soft".to_owned())?;
            }
        }
        ("eui64", 0) => {}
        ("connlimit", 1) => {
            let above = if u32_at(bytes, 20)? & 1 == 0 { "above" } else { "upto" };
            option(false, format!("connlimit-{above} {}", u32_at(bytes, 16)?))?;
        }
        ("socket", 1..=3) => {
            let flags = u8_at(bytes, 0)?;
            for (bit, name) in [(1, "transparent"), (2, "nowildcard"), (4, "restore-skmark")] {
                if flags & bit != 0 {
                    option(false, name.to_owned())?;
                }
            }
        }
        ("addrtype", 1) => {
            let flags = u32_at(bytes, 4)?;
            for (name, at, bit) in [("src-type", 0, 1), ("dst-type", 2, 2)] {
                let types = u16_at(bytes, at)?;
                if types != 0 {
                    option(flags & bit != 0, format!("{name} {}", crate::AddressType::names(types)))?;
                }
            }
            for (bit, name) in [(4, "limit-iface-in"), (8, "limit-iface-out")] {
                if flags & bit != 0 {
                    option(false, name.to_owned())?;
                }
            }
        }
        ("statistic", 0) if u16_at(bytes, 0)? == 1 => {
            let every = u32_at(bytes, 4)?.checked_add(1)?;
            option(false, "mode nth".to_owned())?;
            option(u16_at(bytes, 2)? != 0, format!("every {every}"))?;
            option(false, format!("packet {}", u32_at(bytes, 8)?))?;
        }
        ("conntrack", 3) => conntrack(bytes, family, &mut option)?,
        ("recent", 0 | 1) => {
            let (seconds, hits, checks) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u8_at(bytes, 8)?);
            let actions = [(0x1, "rcheck"), (0x2, "set"), (0x4, "update"), (0x8, "remove")];
            let (_, action) = actions.into_iter().find(|(bit, _)| checks & bit != 0)?;
            option(u8_at(bytes, 9)? != 0, action.to_owned())?;
            for (number, name) in [(seconds, "seconds"), (hits, "hitcount")] {
                if number != 0 {
                    option(false, format!("{name} {number}"))?;
                }
            }
            for (bit, name) in [(0x20, "reap"), (0x10, "rttl")] {
                if checks & bit != 0 {
                    option(false, name.to_owned())?;
                }
            }
            option(false, format!("name {}", text_at(bytes, 10, 200)?))?;
            if structure.revision == 1 {
                option(false, format!("mask {}", address(bytes, 212, family)?))?;
            }
            option(false, if u8_at(bytes, 210)? == 0 { "rsource" } else { "rdest" }.to_owned())?;
        }
        _ => return None,
    }
    Some(text)
}

fn conntrack(bytes: &[u8], family: IpFamily, option: &mut dyn FnMut(bool, String) -> Option<()>) -> Option<()> {
    let (wanted, inverted) = (u16_at(bytes, 146)?, u16_at(bytes, 148)?);
    let names = |bits: u16, names: &[(u16, &str)]| {
        let set = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name);
        set.collect::<Vec<_>>().join(",")
    };
    if wanted & 0x1 != 0 {
        option(inverted & 0x1 != 0, format!("ctstate {}", names(u16_at(bytes, 150)?, &STATES)))?;
    }
    if wanted & 0x2 != 0 {
        option(inverted & 0x2 != 0, format!("ctproto {}", u16_at(bytes, 136)?))?;
    }
    let sides = [(0x4, "ctorigsrc", 0), (0x8, "ctorigdst", 32), (0x10, "ctreplsrc", 64), (0x20, "ctrepldst", 96)];
    for (bit, name, at) in sides {
        if wanted & bit != 0 {
            let prefix = ipnet::ip_mask_to_prefix(address(bytes, at + 16, family)?).ok()?;
            option(inverted & bit != 0, format!("{name} {}/{prefix}", address(bytes, at, family)?))?;
        }
    }
    let ports = [
        (0x100, "ctorigsrcport", 138),
        (0x200, "ctorigdstport", 140),
        (0x400, "ctreplsrcport", 142),
        (0x800, "ctrepldstport", 144),
    ];
    for (bit, name, at) in ports {
        if wanted & bit != 0 {
            let (first, last) = (u16_at(bytes, at)?, u16_at(bytes, at + 16)?);
            let range = if first == last { first.to_string() } else { format!("{first}:{last}") };
            option(inverted & bit != 0, format!("{name} {range}"))?;
        }
    }
    if wanted & 0x40 != 0 {
        let status = u16_at(bytes, 152)?;
        let text = if status == 0 { "NONE".to_owned() } else { names(status, &STATUSES) };
        option(inverted & 0x40 != 0, format!("ctstatus {text}"))?;
    }
    if wanted & 0x80 != 0 {
        option(inverted & 0x80 != 0, format!("ctexpire {}:{}", u32_at(bytes, 128)?, u32_at(bytes, 132)?))?;
    }
    if wanted & 0x1000 != 0 {
        option(false, format!("ctdir {}", if inverted & 0x1000 != 0 { "REPLY" } else { "ORIGINAL" }))?;
    }
    Some(())
}

/// Returns the text of a target; `None` if its options are unknown.
pub(super) fn target_text(structure: &Structure<'_>, family: IpFamily) -> Option<String> {
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
        _ => return None,
    })
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
pub(super) fn target_sets(structure: &Structure<'_>) -> impl Iterator<Item = u16> + use<> {
    let sets = (structure.name == "SET" && structure.revision > 0).then(|| set_options(structure.as_bytes())).flatten();
    sets.unwrap_or_default().into_iter().map(|(_, number, _)| number)
}

/// Returns the placeholder of a set in the text of a target until its name is known.
pub(super) fn numbered_set(number: u16) -> String {
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

/// Returns a rate of which `scale` is one per second, in the largest number of packets that is exact.
fn rate(period: u64, scale: u64) -> Option<String> {
    let units = [("sec", 1), ("min", 60), ("hour", 3_600), ("day", 86_400)].map(|(name, s)| (name, s * scale));
    let exact = units.into_iter().find(|(_, length)| *length >= period && length.checked_rem(period) == Some(0));
    let (unit, length) = exact.or_else(|| units.into_iter().find(|(_, length)| *length >= period))?;
    Some(format!("{}/{unit}", length.checked_div(period)?))
}

/// Returns the text in a field of this length.
fn text_at(bytes: &[u8], at: usize, length: usize) -> Option<&str> {
    str::from_utf8(bytes.get(at..at + length)?.split(|byte| *byte == 0).next()?).ok()
}

fn dashed<T: ToString + PartialEq>((first, last): (T, T)) -> String {
    if first == last { first.to_string() } else { format!("{}-{}", first.to_string(), last.to_string()) }
}

fn tcp_flags(bits: u8) -> String {
    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let set = names.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0).map(|(_, name)| *name);
    let text = set.collect::<Vec<_>>().join(",");
    if text.is_empty() { "NONE".to_owned() } else { text }
}

fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn address(bytes: &[u8], at: usize, family: IpFamily) -> Option<IpAddr> {
    let bytes = bytes.get(at..)?;
    Some(match family {
        IpFamily::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        IpFamily::V6 => IpAddr::from(*bytes.first_chunk::<16>()?),
    })
}

/// `XT_CONNTRACK_STATE_*`.
const STATES: [(u16, &str); 7] = [
    (1, "INVALID"),
    (1 << 1, "ESTABLISHED"),
    (1 << 2, "RELATED"),
    (1 << 3, "NEW"),
    (1 << 6, "SNAT"),
    (1 << 7, "DNAT"),
    (1 << 8, "UNTRACKED"),
];
/// `IPS_*`.
const STATUSES: [(u16, &str); 4] = [(1, "EXPECTED"), (2, "SEEN_REPLY"), (4, "ASSURED"), (8, "CONFIRMED")];
/// The names of headers in `-m ipv6header`, from the highest bit on.
const EXTENSION_HEADERS: [&str; 8] =
    ["hop-by-hop", "ipv6-opts", "ipv6-route", "ipv6-frag", "ah", "esp", "ipv6-nonxt", "protocol"];
/// No set (`IPSET_INVALID_ID`).
const IPSET_INVALID: u16 = 65535;
/// The length of `struct xt_set_info_target_v3`, the first with `map_set`.
const MAPPING: usize = 20;
