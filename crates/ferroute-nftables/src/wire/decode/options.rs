//! Extension headers and options: `exthdr`, `ip option`, `tcp option`, `sctp chunk`.

use super::{Decoder, Parts, registers::Loaded};
use crate::model::{Outcome, Property};

impl Decoder<'_, '_> {
    /// Loads an option of a header, or its existence.
    pub(super) fn exthdr(&mut self, parts: &Parts<'_>) -> Option<()> {
        let kind = parts.get(NFTA_EXTHDR_TYPE).and_then(|kind| kind.u8().ok());
        let operation = parts.u32(NFTA_EXTHDR_OP).unwrap_or(NFT_EXTHDR_OP_IPV6);
        let exists = parts.u32(NFTA_EXTHDR_FLAGS).is_some_and(|flags| flags & NFT_EXTHDR_F_PRESENT != 0);
        let offset = parts.u32(NFTA_EXTHDR_OFFSET).filter(|_| !exists);
        let known = OPTIONS
            .iter()
            .find(|option| (option.0, Some(option.1)) == (operation, kind) && option.2.map(u32::from) == offset);
        let name = known.map_or(
            match operation {
                NFT_EXTHDR_OP_TCPOPT => "tcp option",
                NFT_EXTHDR_OP_IPV4 => "ip option",
                NFT_EXTHDR_OP_SCTP => "sctp chunk",
                _ => "exthdr",
            },
            |option| option.3,
        );
        if let Some(from) = parts.register(NFTA_EXTHDR_SREG) {
            // No rule here compares it afterwards.
            let text = format!("{name} set {}", self.constant_text(&self.registers.at(from)));
            self.opaque(text, Outcome::Nothing);
            return Some(());
        }
        if parts.u32(NFTA_EXTHDR_DREG).is_none() {
            self.opaque("reset tcp option".to_owned(), Outcome::Nothing);
            return Some(());
        }
        let bytes = usize::try_from(parts.u32(NFTA_EXTHDR_LEN).unwrap_or(1)).unwrap_or(1);
        let loaded = Loaded::property(Property::named(name)?);
        self.load_to(parts, NFTA_EXTHDR_DREG, Some((loaded, if exists { 1 } else { bytes })))
    }
}

/// Operation, number of the header or option, offset of the field in it, or [`None`] for its existence, and name in
/// `nft` syntax.
const OPTIONS: &[(u32, u8, Option<u8>, &str)] = &[
    (NFT_EXTHDR_OP_IPV6, 0, None, "exthdr hbh"),
    (NFT_EXTHDR_OP_IPV6, 0, Some(0), "hbh nexthdr"),
    (NFT_EXTHDR_OP_IPV6, 0, Some(1), "hbh hdrlength"),
    (NFT_EXTHDR_OP_IPV6, 43, None, "exthdr rt"),
    (NFT_EXTHDR_OP_IPV6, 43, Some(0), "rt nexthdr"),
    (NFT_EXTHDR_OP_IPV6, 43, Some(1), "rt hdrlength"),
    (NFT_EXTHDR_OP_IPV6, 43, Some(2), "rt type"),
    (NFT_EXTHDR_OP_IPV6, 43, Some(3), "rt seg-left"),
    (NFT_EXTHDR_OP_IPV6, 43, Some(4), "srh last-entry"),
    (NFT_EXTHDR_OP_IPV6, 43, Some(5), "srh flags"),
    (NFT_EXTHDR_OP_IPV6, 43, Some(6), "srh tag"),
    (NFT_EXTHDR_OP_IPV6, 44, None, "exthdr frag"),
    (NFT_EXTHDR_OP_IPV6, 44, Some(0), "frag nexthdr"),
    (NFT_EXTHDR_OP_IPV6, 44, Some(1), "frag reserved"),
    (NFT_EXTHDR_OP_IPV6, 44, Some(2), "frag frag-off"),
    (NFT_EXTHDR_OP_IPV6, 44, Some(3), "frag more-fragments"),
    (NFT_EXTHDR_OP_IPV6, 44, Some(4), "frag id"),
    (NFT_EXTHDR_OP_IPV6, 60, None, "exthdr dst"),
    (NFT_EXTHDR_OP_IPV6, 60, Some(0), "dst nexthdr"),
    (NFT_EXTHDR_OP_IPV6, 60, Some(1), "dst hdrlength"),
    (NFT_EXTHDR_OP_IPV6, 135, None, "exthdr mh"),
    (NFT_EXTHDR_OP_IPV6, 135, Some(0), "mh nexthdr"),
    (NFT_EXTHDR_OP_IPV6, 135, Some(1), "mh hdrlength"),
    (NFT_EXTHDR_OP_IPV6, 135, Some(2), "mh type"),
    (NFT_EXTHDR_OP_IPV6, 135, Some(3), "mh reserved"),
    (NFT_EXTHDR_OP_IPV6, 135, Some(4), "mh checksum"),
    (NFT_EXTHDR_OP_TCPOPT, 0, None, "tcp option eol"),
    (NFT_EXTHDR_OP_TCPOPT, 1, None, "tcp option nop"),
    (NFT_EXTHDR_OP_TCPOPT, 2, Some(1), "tcp option maxseg length"),
    (NFT_EXTHDR_OP_TCPOPT, 3, Some(1), "tcp option window length"),
    (NFT_EXTHDR_OP_TCPOPT, 4, Some(1), "tcp option sack-perm length"),
    (NFT_EXTHDR_OP_TCPOPT, 5, None, "tcp option sack"),
    (NFT_EXTHDR_OP_TCPOPT, 5, Some(1), "tcp option sack length"),
    (NFT_EXTHDR_OP_TCPOPT, 5, Some(2), "tcp option sack left"),
    (NFT_EXTHDR_OP_TCPOPT, 5, Some(6), "tcp option sack right"),
    (NFT_EXTHDR_OP_TCPOPT, 8, Some(1), "tcp option timestamp length"),
    (NFT_EXTHDR_OP_TCPOPT, 2, None, "tcp option maxseg"),
    (NFT_EXTHDR_OP_TCPOPT, 2, Some(2), "tcp option maxseg size"),
    (NFT_EXTHDR_OP_TCPOPT, 3, None, "tcp option window"),
    (NFT_EXTHDR_OP_TCPOPT, 3, Some(2), "tcp option window count"),
    (NFT_EXTHDR_OP_TCPOPT, 4, None, "tcp option sack-perm"),
    (NFT_EXTHDR_OP_TCPOPT, 8, None, "tcp option timestamp"),
    (NFT_EXTHDR_OP_TCPOPT, 8, Some(2), "tcp option timestamp tsval"),
    (NFT_EXTHDR_OP_TCPOPT, 8, Some(6), "tcp option timestamp tsecr"),
    (NFT_EXTHDR_OP_TCPOPT, 19, None, "tcp option md5sig"),
    (NFT_EXTHDR_OP_TCPOPT, 30, None, "tcp option mptcp"),
    (NFT_EXTHDR_OP_TCPOPT, 30, Some(2), "tcp option mptcp subtype"),
    (NFT_EXTHDR_OP_TCPOPT, 34, None, "tcp option fastopen"),
    (NFT_EXTHDR_OP_IPV4, 7, None, "ip option rr"),
    (NFT_EXTHDR_OP_IPV4, 131, None, "ip option lsrr"),
    (NFT_EXTHDR_OP_IPV4, 137, None, "ip option ssrr"),
    (NFT_EXTHDR_OP_IPV4, 148, None, "ip option ra"),
    (NFT_EXTHDR_OP_IPV4, 148, Some(2), "ip option ra value"),
    (NFT_EXTHDR_OP_SCTP, 0, None, "sctp chunk data"),
    (NFT_EXTHDR_OP_SCTP, 0, Some(0), "sctp chunk data type"),
    (NFT_EXTHDR_OP_SCTP, 0, Some(1), "sctp chunk data flags"),
    (NFT_EXTHDR_OP_SCTP, 0, Some(2), "sctp chunk data length"),
    (NFT_EXTHDR_OP_SCTP, 0, Some(4), "sctp chunk data tsn"),
    (NFT_EXTHDR_OP_SCTP, 0, Some(8), "sctp chunk data stream"),
    (NFT_EXTHDR_OP_SCTP, 0, Some(10), "sctp chunk data ssn"),
    (NFT_EXTHDR_OP_SCTP, 0, Some(12), "sctp chunk data ppid"),
    (NFT_EXTHDR_OP_SCTP, 1, None, "sctp chunk init"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(0), "sctp chunk init type"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(1), "sctp chunk init flags"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(2), "sctp chunk init length"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(4), "sctp chunk init init-tag"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(8), "sctp chunk init a-rwnd"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(12), "sctp chunk init num-outbound-streams"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(14), "sctp chunk init num-inbound-streams"),
    (NFT_EXTHDR_OP_SCTP, 1, Some(16), "sctp chunk init initial-tsn"),
    (NFT_EXTHDR_OP_SCTP, 6, None, "sctp chunk abort"),
    (NFT_EXTHDR_OP_SCTP, 7, None, "sctp chunk shutdown"),
    (NFT_EXTHDR_OP_SCTP, 2, None, "sctp chunk init-ack"),
    (NFT_EXTHDR_OP_SCTP, 3, None, "sctp chunk sack"),
    (NFT_EXTHDR_OP_SCTP, 4, None, "sctp chunk heartbeat"),
    (NFT_EXTHDR_OP_SCTP, 5, None, "sctp chunk heartbeat-ack"),
    (NFT_EXTHDR_OP_SCTP, 8, None, "sctp chunk shutdown-ack"),
    (NFT_EXTHDR_OP_SCTP, 9, None, "sctp chunk error"),
    (NFT_EXTHDR_OP_SCTP, 10, None, "sctp chunk cookie-echo"),
    (NFT_EXTHDR_OP_SCTP, 11, None, "sctp chunk cookie-ack"),
    (NFT_EXTHDR_OP_SCTP, 12, None, "sctp chunk ecne"),
    (NFT_EXTHDR_OP_SCTP, 13, None, "sctp chunk cwr"),
    (NFT_EXTHDR_OP_SCTP, 14, None, "sctp chunk shutdown-complete"),
    (NFT_EXTHDR_OP_SCTP, 128, None, "sctp chunk asconf-ack"),
    (NFT_EXTHDR_OP_SCTP, 192, None, "sctp chunk forward-tsn"),
    (NFT_EXTHDR_OP_SCTP, 193, None, "sctp chunk asconf"),
];

// `include/uapi/linux/netfilter/nf_tables.h`.
const NFTA_EXTHDR_DREG: u16 = 1;
const NFTA_EXTHDR_TYPE: u16 = 2;
const NFTA_EXTHDR_OFFSET: u16 = 3;
const NFTA_EXTHDR_LEN: u16 = 4;
const NFTA_EXTHDR_FLAGS: u16 = 5;
const NFTA_EXTHDR_OP: u16 = 6;
const NFTA_EXTHDR_SREG: u16 = 7;
const NFT_EXTHDR_OP_IPV6: u32 = 0;
const NFT_EXTHDR_OP_TCPOPT: u32 = 1;
const NFT_EXTHDR_OP_IPV4: u32 = 2;
const NFT_EXTHDR_OP_SCTP: u32 = 3;
const NFT_EXTHDR_F_PRESENT: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_a_property() {
        for (.., name) in OPTIONS {
            assert!(Property::named(name).is_some(), "{name}");
        }
    }
}
