//! Text of match modules.

use std::{
    fmt::Write,
    time::{Duration, UNIX_EPOCH},
};

use ferroute_core::rfc3339;
use ipnet::IpNet;

use super::*;
use crate::{
    PortRange,
    native::{decode::DEFAULT_BURST, protocols},
};

/// Returns the text of a match module; `None` if its options are unknown.
pub(in crate::native) fn match_text(structure: &Structure<'_>, family: IpFamily) -> Option<String> {
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
                let ports = PortRange { first: u16_at(bytes, at)?, last: u16_at(bytes, at + 2)? };
                if ports != PortRange::ALL || inverted & bit != 0 {
                    option(inverted & bit != 0, format!("{name} {ports}"))?;
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
        ("limit", 0) => {
            option(false, format!("limit {}", rate(u32_at(bytes, 0)?.into(), 10_000)?))?;
            if u32_at(bytes, 4)? != DEFAULT_BURST {
                option(false, format!("limit-burst {}", u32_at(bytes, 4)?))?;
            }
        }
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
            option(options & 1 != 0, format!("label \"{}\"", u16_at(bytes, 0)?))?;
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
            let code = match (u8_at(bytes, 1)?, u8_at(bytes, 2)?) {
                _ if kind == u8::MAX && structure.name == "icmp" => String::new(),
                (0, u8::MAX) => String::new(),
                (first, last) if first == last => format!("/{first}"),
                (first, last) => format!("/{first}-{last}"),
            };
            let kind = if kind == u8::MAX && structure.name == "icmp" { "any".to_owned() } else { kind.to_string() };
            option(u8_at(bytes, 3)? != 0, format!("{name} {kind}{code}"))?;
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
            let flags = u32_at(bytes, 20)?;
            let above = if flags & 1 == 0 { "above" } else { "upto" };
            option(false, format!("connlimit-{above} {}", u32_at(bytes, 16)?))?;
            option(false, format!("connlimit-mask {}", ipnet::ip_mask_to_prefix(address(bytes, 0, family)?).ok()?))?;
            option(false, if flags & 2 == 0 { "connlimit-saddr" } else { "connlimit-daddr" }.to_owned())?;
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
        ("string", 1) => string(bytes, &mut option)?,
        ("time", 0) => time(bytes, &mut option)?,
        ("connbytes", 0) => {
            let (first, last) = (u64_at(bytes, 0)?, u64_at(bytes, 8)?);
            let mode = *["packets", "bytes", "avgpkt"].get(usize::from(u8_at(bytes, 16)?))?;
            let direction = *["original", "reply", "both"].get(usize::from(u8_at(bytes, 17)?))?;
            let (is_inverted, first, last) = (first > last, first.min(last), first.max(last));
            let last = if last == u64::MAX { String::new() } else { format!(":{last}") };
            option(is_inverted, format!("connbytes {first}{last}"))?;
            option(false, format!("connbytes-mode {mode}"))?;
            option(false, format!("connbytes-dir {direction}"))?;
        }
        ("policy", 0) => policy(bytes, family, &mut option)?,
        ("devgroup", 0) => {
            let flags = u32_at(bytes, 0)?;
            for (name, bit, at) in [("src-group", 1, 4), ("dst-group", 4, 12)] {
                if flags & bit != 0 {
                    let group = masked(u32_at(bytes, at)?, u32_at(bytes, at + 4)?);
                    option(flags & bit << 1 != 0, format!("{name} {group}"))?;
                }
            }
        }
        ("ecn", 0) => {
            let (wanted, inverted) = (u8_at(bytes, 0)?, u8_at(bytes, 1)?);
            let ip = format!("ecn-ip-ect {}", u8_at(bytes, 2)?);
            for (bit, name) in [(0x10, "ecn-tcp-ece"), (0x20, "ecn-tcp-cwr"), (1, &ip)] {
                if wanted & bit != 0 {
                    option(inverted & bit != 0, name.to_owned())?;
                }
            }
        }
        ("realm", 0) => {
            option(u8_at(bytes, 8)? != 0, format!("realm {}", masked(u32_at(bytes, 0)?, u32_at(bytes, 4)?)))?;
        }
        ("cluster", 0) => {
            let [total, mask, seed] = [u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)?];
            option(u32_at(bytes, 12)? & 1 != 0, format!("cluster-local-nodemask {mask:#010x}"))?;
            option(false, format!("cluster-total-nodes {total}"))?;
            option(false, format!("cluster-hash-seed {seed:#010x}"))?;
        }
        ("cpu", 0) => option(u32_at(bytes, 4)? != 0, format!("cpu {}", u32_at(bytes, 0)?))?,
        ("cgroup", revision @ 1..=2) => {
            let class = 4 + if revision == 1 { 4096 } else { 512 };
            if u8_at(bytes, 0)? != 0 {
                option(u8_at(bytes, 2)? != 0, format!("path {}", text_at(bytes, 4, class - 4)?))?;
            }
            if u8_at(bytes, 1)? != 0 {
                option(u8_at(bytes, 3)? != 0, format!("cgroup {}", u32_at(bytes, class)?))?;
            }
        }
        ("esp" | "ah", 0) => {
            let (first, last) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
            let range = if first == last { first.to_string() } else { format!("{first}:{last}") };
            let inverted = u8_at(bytes, if structure.name == "ah" && family == IpFamily::V6 { 13 } else { 8 })?;
            if (first, last) != (0, u32::MAX) || inverted & 1 != 0 {
                option(inverted & 1 != 0, format!("{}spi {range}", structure.name))?;
            }
        }
        ("osf", 0) => {
            let flags = u32_at(bytes, 36)?;
            option(flags & 8 != 0, format!("genre {}", text_at(bytes, 0, 32)?))?;
            for (bit, name, at) in [(2, "ttl", 44), (4, "log", 40)] {
                if flags & bit != 0 {
                    option(false, format!("{name} {}", u32_at(bytes, at)?))?;
                }
            }
        }
        ("sctp", 0) => rare::sctp(bytes, &mut option)?,
        ("dccp", 0) => rare::dccp(bytes, &mut option)?,
        ("ipcomp", 0) => rare::ipcomp(bytes, &mut option)?,
        ("rateest", 0) => rare::rateest(bytes, &mut option)?,
        ("u32", 0) => option(u8_at(bytes, 1981)? != 0, format!("u32 \"{}\"", u32_tests(bytes)?))?,
        ("bpf", 1) => match u16_at(bytes, 0)? {
            0 => option(false, format!("bytecode \"{}\"", bpf_program(bytes.get(8..)?, u16_at(bytes, 2)?)?))?,
            1 => option(false, format!("object-pinned {}", text_at(bytes, 8, 512)?))?,
            _ => return None,
        },
        _ => return None,
    }
    Some(text)
}

/// `struct xt_string_info`.
fn string(bytes: &[u8], option: &mut dyn FnMut(bool, String) -> Option<()>) -> Option<()> {
    let flags = u8_at(bytes, 149)?;
    let pattern = bytes.get(20..)?.get(..usize::from(u8_at(bytes, 148)?))?;
    let is_text = pattern.iter().all(|byte| matches!(byte, b' '..=b'~')) && pattern.last() != Some(&b'\\');
    let words = if is_text {
        let text: String = pattern.iter().map(|byte| char::from(*byte)).collect();
        format!("string \"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        let digits: String = pattern.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("hex-string \"|{digits}|\"")
    };
    option(flags & 1 != 0, words)?;
    option(false, format!("algo {}", text_at(bytes, 4, 16)?))?;
    for (name, at, default) in [("from", 0, 0), ("to", 2, u16::MAX)] {
        let offset = u16_at(bytes, at)?;
        if offset != default && offset != 0 {
            option(false, format!("{name} {offset}"))?;
        }
    }
    if flags & 2 != 0 {
        option(false, "icase".to_owned())?;
    }
    Some(())
}

/// `struct xt_time_info`.
fn time(bytes: &[u8], option: &mut dyn FnMut(bool, String) -> Option<()>) -> Option<()> {
    let (start, stop) = (u32_at(bytes, 8)?, u32_at(bytes, 12)?);
    if (start, stop) != (0, LAST_SECOND) {
        for (name, time) in [("timestart", start), ("timestop", stop)] {
            option(false, format!("{name} {:02}:{:02}:{:02}", time / 3600, time / 60 % 60, time % 60))?;
        }
    }
    let days = |mask: u32| (1..32).filter(move |day| mask >> day & 1 != 0);
    let (month, week) = (u32_at(bytes, 16)?, u8_at(bytes, 20)?);
    if month != u32::MAX - 1 {
        option(false, format!("monthdays {}", days(month).map(|day| day.to_string()).collect::<Vec<_>>().join(",")))?;
    }
    if week != u8::MAX - 1 {
        let names = days(week.into()).filter_map(|day| WEEKDAYS.get(usize::try_from(day).ok()? - 1).copied());
        option(false, format!("weekdays {}", names.collect::<Vec<_>>().join(",")))?;
    }
    for (name, at) in [("datestart", 0), ("datestop", 4)] {
        let seconds = u32_at(bytes, at)?;
        if seconds != 0 {
            let date = rfc3339::format(UNIX_EPOCH + Duration::from_secs(seconds.into()), 0)?;
            option(false, format!("{name} {}", date.trim_end_matches('Z')))?;
        }
    }
    for (bit, name) in [(1, "kerneltz"), (2, "contiguous")] {
        if u8_at(bytes, 21)? & bit != 0 {
            option(false, name.to_owned())?;
        }
    }
    Some(())
}

/// `struct xt_policy_info`.
fn policy(bytes: &[u8], family: IpFamily, option: &mut dyn FnMut(bool, String) -> Option<()>) -> Option<()> {
    const ELEMENT: usize = 76;
    let (flags, count) = (u16_at(bytes, 304)?, u16_at(bytes, 306)?);
    option(false, format!("dir {}", if flags & 1 != 0 { "in" } else { "out" }))?;
    option(false, format!("pol {}", if flags & 4 != 0 { "none" } else { "ipsec" }))?;
    if flags & 8 != 0 {
        option(false, "strict".to_owned())?;
    }
    for (n, element) in bytes.get(..304)?.chunks(ELEMENT).take(count.into()).enumerate() {
        if n > 0 {
            option(false, "next".to_owned())?;
        }
        let network = |at| {
            let net = IpNet::with_netmask(address(element, at, family)?, address(element, at + 16, family)?).ok()?;
            Some(if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() })
        };
        let (wanted, inverted) = (u8_at(element, 74)?, u8_at(element, 75)?);
        for (bit, name) in [(32, "reqid"), (16, "spi"), (4, "proto"), (8, "mode"), (2, "tunnel-dst"), (1, "tunnel-src")]
        {
            if wanted & bit == 0 {
                continue;
            }
            let value = match name {
                "reqid" => u32_at(element, 68)?.to_string(),
                "spi" => format!("{:#x}", u32_at(element, 64)?),
                "proto" => protocols::from_number(u8_at(element, 72)?).to_string(),
                "mode" => (*["transport", "tunnel"].get(usize::from(u8_at(element, 73)?))?).to_owned(),
                "tunnel-dst" => network(32)?,
                _ => network(0)?,
            };
            option(inverted & bit != 0, format!("{name} {value}"))?;
        }
    }
    Some(())
}

/// Returns the tests of `struct xt_u32`.
fn u32_tests(bytes: &[u8]) -> Option<String> {
    const TEST: usize = 180;
    let tests = bytes.get(..1980)?.chunks(TEST).take(u8_at(bytes, 1980)?.into()).map(|test| {
        let mut text = format!("{:#x}", u32_at(test, 0)?);
        for n in 1..usize::from(u8_at(test, 176)?) {
            let operator = *["&", "<<", ">>", "@"].get(usize::from(u8_at(test, 8 * n + 4)?))?;
            text += &format!("{operator}{:#x}", u32_at(test, 8 * n)?);
        }
        let values = (0..usize::from(u8_at(test, 177)?)).map(|n| {
            let (first, last) = (u32_at(test, 88 + 8 * n)?, u32_at(test, 92 + 8 * n)?);
            Some(if first == last { format!("{first:#x}") } else { format!("{first:#x}:{last:#x}") })
        });
        Some(format!("{text}={}", values.collect::<Option<Vec<_>>>()?.join(",")))
    });
    Some(tests.collect::<Option<Vec<_>>>()?.join("&&"))
}

/// Returns a program of instructions (`struct sock_filter`).
fn bpf_program(bytes: &[u8], count: u16) -> Option<String> {
    let mut text = count.to_string();
    for instruction in bytes.chunks(8).take(count.into()) {
        let [if_true, if_false] = [u8_at(instruction, 2)?, u8_at(instruction, 3)?];
        write!(text, ",{} {if_true} {if_false} {}", u16_at(instruction, 0)?, u32_at(instruction, 4)?).ok()?;
    }
    Some(text)
}

/// Returns a number with its mask unless that has all bits.
fn masked(value: u32, mask: u32) -> String {
    if mask == u32::MAX { format!("{value:#x}") } else { format!("{value:#x}/{mask:#x}") }
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
            let ports = PortRange { first: u16_at(bytes, at)?, last: u16_at(bytes, at + 16)? };
            option(inverted & bit != 0, format!("{name} {ports}"))?;
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

/// Returns a rate of which `scale` is one per second, in the largest number of packets that is exact.
fn rate(period: u64, scale: u64) -> Option<String> {
    let units = [("sec", 1), ("min", 60), ("hour", 3_600), ("day", 86_400)].map(|(name, s)| (name, s * scale));
    let exact = units.into_iter().find(|(_, length)| *length >= period && length.checked_rem(period) == Some(0));
    let (unit, length) = exact.or_else(|| units.into_iter().find(|(_, length)| *length >= period))?;
    Some(format!("{}/{unit}", length.checked_div(period)?))
}

fn tcp_flags(bits: u8) -> String {
    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let set = names.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0).map(|(_, name)| *name);
    let text = set.collect::<Vec<_>>().join(",");
    if text.is_empty() { "NONE".to_owned() } else { text }
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
const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// The last second of a day, where a range of times ends by default.
const LAST_SECOND: u32 = 24 * 60 * 60 - 1;
