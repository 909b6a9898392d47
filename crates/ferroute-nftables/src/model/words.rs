//! Values of properties in the words of `nft`.

use std::{
    fmt::Write,
    net::{Ipv4Addr, Ipv6Addr},
    time::{Duration, SystemTime},
};

use ferroute_core::rfc3339;

use super::{ClassId, IfName, name::Printable};

/// Notation of the values of a property in `nft`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Words {
    /// A decimal number.
    Number,
    /// A port.
    Port,
    /// A hexadecimal number with this many digits.
    Hexadecimal(u8),
    /// A class id.
    ClassId,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// One name per bit, from the lowest one.
    Flags(&'static [&'static str]),
    /// A set of numbers, one per bit.
    Label,
    /// Names of some numbers.
    Names(&'static [(u32, &'static str)]),
    /// A string of up to 16 characters, in quotes.
    Text,
    /// A hardware address.
    Ether,
    /// Existence of an option or header.
    Existence,
    /// Milliseconds.
    Duration,
    /// Nanoseconds since 1970.
    Date,
    /// Seconds since midnight.
    Hour,
}

impl Words {
    /// Returns a value in `nft` syntax.
    pub fn text(self, value: u128) -> String {
        let number = u32::try_from(value);
        match self {
            Self::Number | Self::Port => value.to_string(),
            Self::Hexadecimal(digits) => format!("{value:#0width$x}", width = usize::from(digits) + 2),
            Self::ClassId if value == 0 => "none".to_owned(),
            Self::ClassId => number.map_or_else(|_| value.to_string(), |number| ClassId(number).to_string()),
            Self::Ipv4 => number.map_or_else(|_| value.to_string(), |address| Ipv4Addr::from(address).to_string()),
            Self::Ipv6 => Ipv6Addr::from(value).to_string(),
            Self::Flags(_) => self.flags(value, " | "),
            Self::Label => {
                let bits: Vec<String> =
                    (0..128).filter(|bit| value & 1 << bit != 0).map(|bit: u32| bit.to_string()).collect();
                if bits.is_empty() { "0x0".to_owned() } else { bits.join(",") }
            }
            Self::Names(names) => {
                let named = names.iter().find(|(known, _)| Ok(*known) == number);
                named.map_or_else(|| value.to_string(), |(_, name)| (*name).to_owned())
            }
            Self::Text => {
                let name = IfName::from_bytes(value.to_be_bytes());
                format!("\"{}\"", Printable(&String::from_utf8_lossy(name.text())))
            }
            Self::Ether => {
                let bytes = value.to_be_bytes();
                let pairs: Vec<String> = bytes[10..].iter().map(|byte| format!("{byte:02x}")).collect();
                pairs.join(":")
            }
            Self::Existence => if value == 0 { "missing" } else { "exists" }.to_owned(),
            Self::Duration => duration(u64::try_from(value / 1000).unwrap_or(u64::MAX)),
            Self::Date => {
                let time = u64::try_from(value).ok().map(Duration::from_nanos);
                let time = time.and_then(|time| SystemTime::UNIX_EPOCH.checked_add(time));
                let text = time.and_then(|time| rfc3339::format(time, 0));
                text.map_or_else(
                    || value.to_string(),
                    |text| format!("\"{}\"", text.replace('T', " ").replace('Z', "")),
                )
            }
            Self::Hour => format!("\"{:02}:{:02}\"", value / 3600 % 24, value / 60 % 60),
        }
    }

    /// Returns the names of the bits of a value, or the number if some bits have no name.
    pub(super) fn flags(self, value: u128, separator: &str) -> String {
        let Self::Flags(names) = self else { return self.text(value) };
        let (mut text, mut rest) = (String::new(), value);
        for (bit, name) in names.iter().enumerate().filter(|(bit, _)| value & 1 << bit != 0) {
            let between = if text.is_empty() { "" } else { separator };
            write!(text, "{between}{name}").expect("writing to a string cannot fail");
            rest &= !(1 << bit);
        }
        if rest != 0 || text.is_empty() { format!("{value:#x}") } else { text }
    }

    /// Parses a value of the property in `nft` syntax; `None` if it is not valid.
    pub fn parse(self, text: &str) -> Option<u128> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let unquoted = text.trim_matches('"');
        match self {
            Self::Number | Self::Hexadecimal(_) => number(text),
            // Scripts and `nft -S` have names.
            Self::Port => {
                let named = named_port(unquoted).map(u128::from);
                named.or_else(|| number(text).filter(|port| *port <= u16::MAX.into()))
            }
            Self::ClassId if text == "none" => Some(0),
            Self::ClassId if text == "root" => Some(u32::MAX.into()),
            Self::ClassId => {
                let (major, minor) = text.split_once(':')?;
                let half = |text| u16::from_str_radix(text, 16).ok();
                Some(ClassId::new(half(major)?, half(minor)?).0.into())
            }
            // `nft` prints values of unnamed bytes of a header as numbers.
            Self::Ipv4 | Self::Ipv6 if text.starts_with("0x") => number(text),
            Self::Ipv4 => Some(u32::from(text.parse::<Ipv4Addr>().ok()?).into()),
            Self::Ipv6 => Some(text.parse::<Ipv6Addr>().ok()?.into()),
            Self::Flags(names) => {
                let bit = names.iter().position(|name| *name == text);
                bit.map(|bit| 1 << bit).or_else(|| number(text))
            }
            Self::Label => text.parse::<u32>().ok().filter(|bit| *bit < 128).map(|bit| 1 << bit),
            Self::Names(names) => {
                let named = names.iter().find(|(_, name)| name.trim_matches('"') == unquoted);
                named.map(|(known, _)| (*known).into()).or_else(|| number(text))
            }
            Self::Text => Some(u128::from_be_bytes(IfName::new(unquoted).bytes())),
            Self::Ether => {
                let bytes: Vec<u8> =
                    text.split(':').map(|pair| u8::from_str_radix(pair, 16)).collect::<Result<_, _>>().ok()?;
                (bytes.len() == 6).then(|| bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
            }
            Self::Existence => match text {
                "exists" => Some(1),
                "missing" => Some(0),
                _ => number(text),
            },
            Self::Hour => {
                let (hours, minutes) = unquoted.split_once(':')?;
                Some(hours.parse::<u128>().ok()? * 3600 + minutes.get(..2)?.parse::<u128>().ok()? * 60)
            }
            Self::Date => {
                let text = unquoted.replacen(' ', "T", 1);
                let time =
                    rfc3339::parse(&format!("{text}Z")).or_else(|| rfc3339::parse(&format!("{text}T00:00:00Z")))?;
                Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos())
            }
            Self::Duration => parse_duration(text).map(|seconds| u128::from(seconds) * 1000),
        }
    }
}

/// Returns a duration in whole seconds: `1d2h3m4s`.
pub(super) fn duration(seconds: u64) -> String {
    let mut left = seconds;
    if left == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, seconds) in UNITS {
        if left >= seconds {
            write!(text, "{}{unit}", left / seconds).expect("writing to a string cannot fail");
            left %= seconds;
        }
    }
    text
}

/// Parses `1d2h3m4s`; returns seconds.
pub(crate) fn parse_duration(text: &str) -> Option<u64> {
    let (mut total, mut number) = (0_u64, None::<u64>);
    for c in text.chars() {
        if let Some(digit) = c.to_digit(10) {
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit.into())?);
        } else {
            let (_, seconds) = UNITS.into_iter().find(|(unit, _)| *unit == c)?;
            total = total.checked_add(number.take()?.checked_mul(seconds)?)?;
        }
    }
    total.checked_add(number.unwrap_or(0))
}

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Returns the port of a common service, by its name in `/etc/services`.
pub fn named_port(name: &str) -> Option<u16> {
    PORTS.iter().find(|(_, known)| *known == name).map(|(port, _)| *port)
}

/// Names of ports in `/etc/services`, from which scripts and `nft -S` take them.
const PORTS: &[(u16, &str)] = &[
    (20, "ftp-data"),
    (21, "ftp"),
    (22, "ssh"),
    (23, "telnet"),
    (25, "smtp"),
    (53, "domain"),
    (67, "bootps"),
    (68, "bootpc"),
    (69, "tftp"),
    (80, "http"),
    (80, "www"),
    (88, "kerberos"),
    (110, "pop3"),
    (111, "sunrpc"),
    (123, "ntp"),
    (137, "netbios-ns"),
    (138, "netbios-dgm"),
    (139, "netbios-ssn"),
    (143, "imap2"),
    (143, "imap"),
    (161, "snmp"),
    (162, "snmp-trap"),
    (179, "bgp"),
    (389, "ldap"),
    (443, "https"),
    (445, "microsoft-ds"),
    (465, "submissions"),
    (500, "isakmp"),
    (514, "syslog"),
    (514, "shell"),
    (546, "dhcpv6-client"),
    (547, "dhcpv6-server"),
    (587, "submission"),
    (631, "ipp"),
    (636, "ldaps"),
    (853, "domain-s"),
    (873, "rsync"),
    (993, "imaps"),
    (995, "pop3s"),
    (1194, "openvpn"),
    (1433, "ms-sql-s"),
    (1812, "radius"),
    (2049, "nfs"),
    (2379, "etcd-client"),
    (2380, "etcd-server"),
    (3306, "mysql"),
    (3389, "ms-wbt-server"),
    (4500, "ipsec-nat-t"),
    (5060, "sip"),
    (5353, "mdns"),
    (5432, "postgresql"),
    (5671, "amqps"),
    (5672, "amqp"),
    (6379, "redis"),
    (8080, "http-alt"),
    (8081, "tproxy"),
    (10050, "zabbix-agent"),
    (10051, "zabbix-trapper"),
];

/// The states of connections, by bit (`NF_CT_STATE_BIT`).
pub(super) const CT_STATES: Words = Words::Flags(&["invalid", "established", "related", "new", "4", "5", "untracked"]);
/// `IPS_*`.
pub(super) const CT_STATUSES: Words = Words::Flags(&[
    "expected",
    "seen-reply",
    "assured",
    "confirmed",
    "snat",
    "dnat",
    "seq-adjust",
    "snat-done",
    "dnat-done",
    "dying",
]);
/// `RTN_*`.
pub(super) const ADDRESS_TYPES: Words = Words::Names(&[
    (0, "unspec"),
    (1, "unicast"),
    (2, "local"),
    (3, "broadcast"),
    (4, "anycast"),
    (5, "multicast"),
    (6, "blackhole"),
    (7, "unreachable"),
    (8, "prohibit"),
]);
/// IANA protocol numbers.
pub(super) const PROTOCOLS: Words = Words::Names(PROTOCOL_NAMES);
pub(super) const PROTOCOL_NAMES: &[(u32, &str)] = &[
    (0, "ip"),
    (1, "icmp"),
    (2, "igmp"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (41, "ipv6"),
    (44, "ipv6-frag"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "ipv6-icmp"),
    (94, "ipip"),
    (103, "pim"),
    (108, "comp"),
    (112, "vrrp"),
    (132, "sctp"),
    (136, "udplite"),
    // More protocols of `/etc/protocols`, from which `nft` takes the names.
    (3, "ggp"),
    (4, "ipencap"),
    (5, "st"),
    (8, "egp"),
    (9, "igp"),
    (12, "pup"),
    (20, "hmp"),
    (22, "xns-idp"),
    (27, "rdp"),
    (29, "iso-tp4"),
    (36, "xtp"),
    (37, "ddp"),
    (38, "idpr-cmtp"),
    (43, "ipv6-route"),
    (45, "idrp"),
    (46, "rsvp"),
    (57, "skip"),
    (58, "icmpv6"),
    (59, "ipv6-nonxt"),
    (60, "ipv6-opts"),
    (73, "rspf"),
    (81, "vmtp"),
    (88, "eigrp"),
    (89, "ospf"),
    (93, "ax.25"),
    (97, "etherip"),
    (98, "encap"),
    (108, "ipcomp"),
    (115, "l2tp"),
    (124, "isis"),
    (133, "fc"),
    (135, "mobility-header"),
    (137, "mpls-in-ip"),
    (138, "manet"),
    (139, "hip"),
    (140, "shim6"),
    (141, "wesp"),
    (142, "rohc"),
    (143, "ethernet"),
];
/// Differentiated services code points.
pub(super) const DSCP: Words = Words::Names(&[
    (0, "cs0"),
    (8, "cs1"),
    (16, "cs2"),
    (24, "cs3"),
    (32, "cs4"),
    (40, "cs5"),
    (48, "cs6"),
    (56, "cs7"),
    (1, "lephb"),
    (10, "af11"),
    (12, "af12"),
    (14, "af13"),
    (18, "af21"),
    (20, "af22"),
    (22, "af23"),
    (26, "af31"),
    (28, "af32"),
    (30, "af33"),
    (34, "af41"),
    (36, "af42"),
    (38, "af43"),
    (46, "ef"),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_and_parsed_in_nfts_words() {
        for (words, value, text) in [
            (CT_STATES, 6, "established | related"),
            (CT_STATES, 0x80, "0x80"),
            (ADDRESS_TYPES, 2, "local"),
            (DSCP, 46, "ef"),
            (Words::Ether, 0x0011_2233_4455, "00:11:22:33:44:55"),
            (Words::Hour, 28_800, "\"08:00\""),
            (Words::Duration, 3_605_000, "1h5s"),
            (Words::Date, 1_704_067_200_000_000_000, "\"2024-01-01 00:00:00\""),
            (Words::Hexadecimal(8), 0x10, "0x00000010"),
            (Words::Existence, 0, "missing"),
            (PROTOCOLS, 132, "sctp"),
            (Words::Ipv4, 0x0a00_0001, "10.0.0.1"),
            (Words::Text, u128::from_be_bytes(IfName::new("eth0").bytes()), "\"eth0\""),
        ] {
            assert_eq!(words.text(value), text);
            if !text.contains('|') {
                assert_eq!(words.parse(text), Some(value), "{text}");
            }
        }
    }
}
