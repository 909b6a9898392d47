//! Properties with names and no further meaning here.

use crate::model::words::{DSCP, PROTOCOL_NAMES, PROTOCOLS, Words};

/// A property with a name and no further meaning here.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// In `nft` syntax.
    pub text: &'static str,
    /// The syntax of its values.
    pub words: Words,
    /// Whether the kernel has the value in the host's byte order.
    pub host_order: bool,
    /// Whether first packets of connections through Services never have the property: an extension header, an option of
    /// IPv4, or another chunk of SCTP.
    pub absent: bool,
}

impl Named {
    /// Returns the protocol of the header that contains the property.
    pub fn protocol(&self) -> Option<u8> {
        protocol_of(self.text.split(' ').next()?)
    }
}

/// Returns the protocol of a header, by its name in `nft` syntax; [`None`] for headers that do not depend on the
/// protocol.
pub(crate) fn protocol_of(header: &str) -> Option<u8> {
    let is_header = PROTOCOL_HEADERS.contains(&header);
    let (number, _) = PROTOCOL_NAMES.iter().find(|(_, name)| is_header && *name == header)?;
    u8::try_from(*number).ok()
}

/// The headers of the names in [`PROTOCOL_NAMES`] that rules match.
const PROTOCOL_HEADERS: [&str; 11] =
    ["ah", "comp", "dccp", "esp", "icmp", "icmpv6", "igmp", "sctp", "tcp", "udp", "udplite"];

const fn named(text: &'static str, words: Words) -> Named {
    Named { text, words, host_order: false, absent: false }
}

const fn host(text: &'static str, words: Words) -> Named {
    Named { text, words, host_order: true, absent: false }
}

const fn absent(text: &'static str, words: Words) -> Named {
    Named { text, words, host_order: false, absent: true }
}

const GROUPS: Words = Words::Names(&[(0, "default")]);
const REALMS: Words = Words::Names(&[(0, "\"cosmos\"")]);
const HARDWARE: Words = Words::Names(&[
    (1, "ether"),
    (512, "ppp"),
    (768, "ipip"),
    (769, "ipip6"),
    (772, "loopback"),
    (776, "sit"),
    (778, "ipgre"),
]);
pub(super) const ETHER_TYPES: Words =
    Words::Names(&[(0x800, "ip"), (0x806, "arp"), (0x86dd, "ip6"), (0x8100, "8021q"), (0x88a8, "8021ad")]);
const ECN: Words = Words::Names(&[(0, "not-ect"), (1, "ect1"), (2, "ect0"), (3, "ce")]);
const DAYS: Words = Words::Names(&[
    (0, "\"Sunday\""),
    (1, "\"Monday\""),
    (2, "\"Tuesday\""),
    (3, "\"Wednesday\""),
    (4, "\"Thursday\""),
    (5, "\"Friday\""),
    (6, "\"Saturday\""),
]);

/// All properties with a name and no further meaning.
pub(super) static NAMED: &[Named] = &[
    host("meta length", Words::Number),
    host("iifgroup", GROUPS),
    host("oifgroup", GROUPS),
    host("iiftype", HARDWARE),
    host("oiftype", HARDWARE),
    named("meta iifkind", Words::Text),
    named("meta oifkind", Words::Text),
    named("meta ibrname", Words::Text),
    named("meta obrname", Words::Text),
    named("meta sdifname", Words::Text),
    host("meta sdif", Words::Number),
    host("meta nftrace", Words::Number),
    host("meta rtclassid", REALMS),
    host("meta secmark", Words::Number),
    host("meta cpu", Words::Number),
    named("meta random", Words::Number),
    named("meta ipsec", Words::Existence),
    host("meta ibrpvid", Words::Number),
    named("meta ibrvproto", ETHER_TYPES),
    host("meta time", Words::Date),
    host("meta day", DAYS),
    host("meta hour", Words::Hour),
    host("ct secmark", Words::Number),
    host("ct expiration", Words::Duration),
    host("ct label", Words::Label),
    host("ct packets", Words::Number),
    host("ct bytes", Words::Number),
    host("ct avgpkt", Words::Number),
    host("ct original packets", Words::Number),
    host("ct original bytes", Words::Number),
    host("ct original avgpkt", Words::Number),
    host("ct reply packets", Words::Number),
    host("ct reply bytes", Words::Number),
    host("ct reply avgpkt", Words::Number),
    host("ct event", Words::Hexadecimal(8)),
    named("ct id", Words::Number),
    host("rt classid", REALMS),
    named("rt ip nexthop", Words::Ipv4),
    named("rt ip6 nexthop", Words::Ipv6),
    host("rt mtu", Words::Number),
    named("rt ipsec", Words::Existence),
    named("socket transparent", Words::Number),
    host("socket mark", Words::Hexadecimal(8)),
    named("socket wildcard", Words::Number),
    host("socket cgroupv2", Words::Number),
    named("osf name", Words::Text),
    named("ip dscp", DSCP),
    named("ip ecn", ECN),
    named("ip length", Words::Number),
    named("ip id", Words::Number),
    named("ip ttl", Words::Number),
    named("ip checksum", Words::Number),
    named("ip6 dscp", DSCP),
    named("ip6 ecn", ECN),
    named("ip6 flowlabel", Words::Number),
    named("ip6 length", Words::Number),
    named("ip6 hoplimit", Words::Number),
    named("tcp sequence", Words::Number),
    named("tcp ackseq", Words::Number),
    named("tcp doff", Words::Number),
    named("tcp reserved", Words::Number),
    named("tcp window", Words::Number),
    named("tcp checksum", Words::Number),
    named("tcp urgptr", Words::Number),
    named("udp length", Words::Number),
    named("udp checksum", Words::Number),
    named("sctp vtag", Words::Number),
    named("sctp checksum", Words::Number),
    named("icmp type", ICMP_TYPES),
    named("icmp code", Words::Number),
    named("icmpv6 type", ICMPV6_TYPES),
    named("icmpv6 code", Words::Number),
    named("ether saddr", Words::Ether),
    named("ether daddr", Words::Ether),
    named("ether type", ETHER_TYPES),
    named("vlan id", Words::Number),
    named("vlan pcp", Words::Number),
    named("vlan type", ETHER_TYPES),
    named("tcp option maxseg size", Words::Number),
    named("tcp option maxseg", Words::Existence),
    named("tcp option window count", Words::Number),
    named("tcp option window", Words::Existence),
    named("tcp option maxseg length", Words::Number),
    named("tcp option window length", Words::Number),
    named("tcp option sack-perm length", Words::Number),
    named("tcp option sack-perm", Words::Existence),
    named("tcp option sack length", Words::Number),
    named("tcp option sack left", Words::Number),
    named("tcp option sack right", Words::Number),
    named("tcp option sack", Words::Existence),
    named("tcp option timestamp length", Words::Number),
    named("tcp option eol", Words::Existence),
    named("tcp option nop", Words::Existence),
    named("tcp option timestamp tsval", Words::Number),
    named("tcp option timestamp tsecr", Words::Number),
    named("tcp option timestamp", Words::Existence),
    named("tcp option mptcp subtype", Words::Number),
    named("tcp option mptcp", Words::Existence),
    named("tcp option fastopen", Words::Existence),
    named("tcp option md5sig", Words::Existence),
    named("tcp option", Words::Number),
    absent("exthdr frag", Words::Existence),
    absent("exthdr hbh", Words::Existence),
    absent("exthdr rt", Words::Existence),
    absent("exthdr dst", Words::Existence),
    absent("exthdr mh", Words::Existence),
    absent("hbh nexthdr", PROTOCOLS),
    absent("hbh hdrlength", Words::Number),
    absent("dst nexthdr", PROTOCOLS),
    absent("dst hdrlength", Words::Number),
    absent("rt nexthdr", PROTOCOLS),
    absent("rt hdrlength", Words::Number),
    absent("rt type", Words::Number),
    absent("rt seg-left", Words::Number),
    absent("srh last-entry", Words::Number),
    absent("srh flags", Words::Number),
    absent("srh tag", Words::Number),
    absent("frag nexthdr", PROTOCOLS),
    absent("frag reserved", Words::Number),
    absent("frag frag-off", Words::Number),
    absent("frag more-fragments", Words::Number),
    absent("frag reserved2", Words::Number),
    absent("frag id", Words::Number),
    absent("mh nexthdr", PROTOCOLS),
    absent("mh hdrlength", Words::Number),
    absent("mh type", MOBILITY_TYPES),
    absent("mh reserved", Words::Number),
    absent("mh checksum", Words::Number),
    absent("exthdr", Words::Number),
    absent("ip option lsrr", Words::Existence),
    absent("ip option rr", Words::Existence),
    absent("ip option ssrr", Words::Existence),
    absent("ip option ra", Words::Existence),
    absent("ip option ra value", Words::Number),
    absent("ip option", Words::Number),
    named("sctp chunk init", Words::Existence),
    absent("sctp chunk data", Words::Existence),
    absent("sctp chunk abort", Words::Existence),
    absent("sctp chunk shutdown", Words::Existence),
    absent("sctp chunk init-ack", Words::Existence),
    absent("sctp chunk sack", Words::Existence),
    absent("sctp chunk heartbeat", Words::Existence),
    absent("sctp chunk heartbeat-ack", Words::Existence),
    absent("sctp chunk shutdown-ack", Words::Existence),
    absent("sctp chunk error", Words::Existence),
    absent("sctp chunk cookie-echo", Words::Existence),
    absent("sctp chunk cookie-ack", Words::Existence),
    absent("sctp chunk ecne", Words::Existence),
    absent("sctp chunk cwr", Words::Existence),
    absent("sctp chunk shutdown-complete", Words::Existence),
    absent("sctp chunk asconf-ack", Words::Existence),
    absent("sctp chunk forward-tsn", Words::Existence),
    absent("sctp chunk asconf", Words::Existence),
    named("sctp chunk init type", Words::Number),
    named("sctp chunk init flags", Words::Number),
    named("sctp chunk init length", Words::Number),
    named("sctp chunk init init-tag", Words::Number),
    named("sctp chunk init a-rwnd", Words::Number),
    named("sctp chunk init num-outbound-streams", Words::Number),
    named("sctp chunk init num-inbound-streams", Words::Number),
    named("sctp chunk init initial-tsn", Words::Number),
    absent("sctp chunk data type", Words::Number),
    absent("sctp chunk data flags", Words::Number),
    absent("sctp chunk data length", Words::Number),
    absent("sctp chunk data tsn", Words::Number),
    absent("sctp chunk data stream", Words::Number),
    absent("sctp chunk data ssn", Words::Number),
    absent("sctp chunk data ppid", Words::Number),
    absent("sctp chunk", Words::Number),
    named("ah nexthdr", PROTOCOLS),
    named("ah spi", Words::Number),
    named("ah sequence", Words::Number),
    named("esp spi", Words::Number),
    named("esp sequence", Words::Number),
    named("comp nexthdr", PROTOCOLS),
    named("comp cpi", Words::Number),
    named("igmp type", IGMP_TYPES),
    named("igmp group", Words::Ipv4),
    named("dccp type", DCCP_TYPES),
    host("ipsec in reqid", Words::Number),
    named("ipsec in spi", Words::Number),
    host("ipsec out reqid", Words::Number),
    named("ipsec out spi", Words::Number),
    named("ipsec", Words::Number),
    named("tunnel", Words::Number),
];

const MOBILITY_TYPES: Words = Words::Names(&[
    (0, "binding-refresh-request"),
    (1, "home-test-init"),
    (2, "careof-test-init"),
    (3, "home-test"),
    (4, "careof-test"),
    (5, "binding-update"),
    (6, "binding-acknowledgement"),
    (7, "binding-error"),
    (8, "fast-binding-update"),
    (9, "fast-binding-acknowledgement"),
    (10, "fast-binding-advertisement"),
    (11, "experimental-mobility-header"),
    (12, "home-agent-switch-message"),
]);
const IGMP_TYPES: Words = Words::Names(&[
    (0x11, "membership-query"),
    (0x12, "membership-report-v1"),
    (0x16, "membership-report-v2"),
    (0x17, "leave-group"),
    (0x22, "membership-report-v3"),
]);
const DCCP_TYPES: Words = Words::Names(&[
    (0, "request"),
    (1, "response"),
    (2, "data"),
    (3, "ack"),
    (4, "dataack"),
    (5, "closereq"),
    (6, "close"),
    (7, "reset"),
    (8, "sync"),
    (9, "syncack"),
]);
const ICMP_TYPES: Words = Words::Names(&[
    (0, "echo-reply"),
    (3, "destination-unreachable"),
    (5, "redirect"),
    (8, "echo-request"),
    (11, "time-exceeded"),
    (12, "parameter-problem"),
]);
const ICMPV6_TYPES: Words = Words::Names(&[
    (1, "destination-unreachable"),
    (2, "packet-too-big"),
    (3, "time-exceeded"),
    (4, "parameter-problem"),
    (128, "echo-request"),
    (129, "echo-reply"),
    (130, "mld-listener-query"),
    (133, "nd-router-solicit"),
    (134, "nd-router-advert"),
    (135, "nd-neighbor-solicit"),
    (136, "nd-neighbor-advert"),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (n, one) in NAMED.iter().enumerate() {
            assert!(NAMED[n + 1..].iter().all(|other| other.text != one.text), "{}", one.text);
        }
    }
}
