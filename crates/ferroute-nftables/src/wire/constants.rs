//! Numbers of `include/uapi/linux/netfilter/nf_tables.h`, by the kernel's names.

/// Kinds of messages (`NFT_MSG_*`).
pub(super) mod message {
    pub(in crate::wire) const NEW_TABLE: u8 = 0;
    pub(in crate::wire) const GET_TABLE: u8 = 1;
    pub(in crate::wire) const DEL_TABLE: u8 = 2;
    pub(in crate::wire) const NEW_CHAIN: u8 = 3;
    pub(in crate::wire) const GET_CHAIN: u8 = 4;
    pub(in crate::wire) const DEL_CHAIN: u8 = 5;
    pub(in crate::wire) const NEW_RULE: u8 = 6;
    pub(in crate::wire) const GET_RULE: u8 = 7;
    pub(in crate::wire) const DEL_RULE: u8 = 8;
    pub(in crate::wire) const NEW_SET: u8 = 9;
    pub(in crate::wire) const GET_SET: u8 = 10;
    pub(in crate::wire) const DEL_SET: u8 = 11;
    pub(in crate::wire) const NEW_SET_ELEMENT: u8 = 12;
    pub(in crate::wire) const GET_SET_ELEMENT: u8 = 13;
    pub(in crate::wire) const DEL_SET_ELEMENT: u8 = 14;
}

/// `NFTA_LIST_ELEM`: an entry of any list.
pub(super) const LIST_ELEMENT: u16 = 1;

/// `NFTA_TABLE_*`.
pub(super) mod table {
    pub(in crate::wire) const NAME: u16 = 1;
    pub(in crate::wire) const FLAGS: u16 = 2;
    pub(in crate::wire) const HANDLE: u16 = 4;
    pub(in crate::wire) const USERDATA: u16 = 6;
    /// `NFT_TABLE_F_DORMANT`.
    pub(in crate::wire) const DORMANT: u32 = 1;
}

/// `NFTA_CHAIN_*` and `NFTA_HOOK_*`.
pub(super) mod chain {
    pub(in crate::wire) const TABLE: u16 = 1;
    pub(in crate::wire) const NAME: u16 = 3;
    pub(in crate::wire) const HOOK: u16 = 4;
    pub(in crate::wire) const POLICY: u16 = 5;
    pub(in crate::wire) const TYPE: u16 = 7;
    pub(in crate::wire) const USERDATA: u16 = 12;
    pub(in crate::wire) const HOOK_NUMBER: u16 = 1;
    pub(in crate::wire) const HOOK_PRIORITY: u16 = 2;
    /// `NF_DROP` and `NF_ACCEPT`.
    pub(in crate::wire) const DROP: u32 = 0;
    pub(in crate::wire) const ACCEPT: u32 = 1;
}

/// `NFTA_RULE_*` and `NFTA_EXPR_*`.
pub(super) mod rule {
    pub(in crate::wire) const TABLE: u16 = 1;
    pub(in crate::wire) const CHAIN: u16 = 2;
    pub(in crate::wire) const EXPRESSIONS: u16 = 4;
    pub(in crate::wire) const USERDATA: u16 = 7;
    pub(in crate::wire) const EXPRESSION_NAME: u16 = 1;
    pub(in crate::wire) const EXPRESSION_DATA: u16 = 2;
}

/// `NFTA_SET_*`, `NFT_SET_*` and the types of `nft`.
pub(super) mod set {
    pub(in crate::wire) const TABLE: u16 = 1;
    pub(in crate::wire) const NAME: u16 = 2;
    pub(in crate::wire) const FLAGS: u16 = 3;
    pub(in crate::wire) const KEY_TYPE: u16 = 4;
    pub(in crate::wire) const KEY_LENGTH: u16 = 5;
    pub(in crate::wire) const DATA_TYPE: u16 = 6;
    pub(in crate::wire) const DATA_LENGTH: u16 = 7;
    pub(in crate::wire) const DESCRIPTION: u16 = 9;
    pub(in crate::wire) const ID: u16 = 10;
    pub(in crate::wire) const USERDATA: u16 = 13;
    pub(in crate::wire) const EXPRESSION: u16 = 17;
    /// Number of elements; listed by Linux 6.16 and later.
    pub(in crate::wire) const COUNT: u16 = 20;
    pub(in crate::wire) const DESCRIPTION_SIZE: u16 = 1;
    pub(in crate::wire) const DESCRIPTION_CONCAT: u16 = 2;
    pub(in crate::wire) const FIELD_LENGTH: u16 = 1;
    pub(in crate::wire) const INTERVAL: u32 = 0x4;
    pub(in crate::wire) const MAP: u32 = 0x8;
    pub(in crate::wire) const TIMEOUT: u32 = 0x10;
    pub(in crate::wire) const EVALUATED: u32 = 0x20;
    pub(in crate::wire) const CONCATENATED: u32 = 0x80;
    /// `NFT_DATA_VERDICT`: the data type of verdicts.
    pub(in crate::wire) const VERDICT: u32 = 0xffff_ff00;
}

/// `NFTA_SET_ELEM_LIST_*`, `NFTA_SET_ELEM_*`, `NFTA_DATA_*` and `NFTA_VERDICT_*`.
pub(super) mod element {
    pub(in crate::wire) const TABLE: u16 = 1;
    pub(in crate::wire) const SET: u16 = 2;
    pub(in crate::wire) const ELEMENTS: u16 = 3;
    pub(in crate::wire) const KEY: u16 = 1;
    pub(in crate::wire) const DATA: u16 = 2;
    pub(in crate::wire) const FLAGS: u16 = 3;
    pub(in crate::wire) const USERDATA: u16 = 6;
    pub(in crate::wire) const EXPRESSION: u16 = 7;
    pub(in crate::wire) const KEY_END: u16 = 10;
    /// `NFT_SET_ELEM_INTERVAL_END`.
    pub(in crate::wire) const INTERVAL_END: u32 = 1;
    pub(in crate::wire) const VALUE: u16 = 1;
    pub(in crate::wire) const VERDICT: u16 = 2;
    pub(in crate::wire) const CODE: u16 = 1;
    pub(in crate::wire) const CHAIN: u16 = 2;
    /// `NFTA_COUNTER_*`.
    pub(in crate::wire) const COUNTER_BYTES: u16 = 1;
    pub(in crate::wire) const COUNTER_PACKETS: u16 = 2;
}

/// `NFTA_BYTEORDER_*`.
pub(super) mod byteorder {
    pub(in crate::wire) const SOURCE: u16 = 1;
    pub(in crate::wire) const DESTINATION: u16 = 2;
    pub(in crate::wire) const LENGTH: u16 = 4;
    pub(in crate::wire) const SIZE: u16 = 5;
}

/// Verdict codes: `NF_*` and `NFT_*`, the latter negative.
pub(super) mod verdict {
    pub(in crate::wire) const DROP: i32 = 0;
    pub(in crate::wire) const ACCEPT: i32 = 1;
    pub(in crate::wire) const JUMP: i32 = -3;
    pub(in crate::wire) const GOTO: i32 = -4;
    pub(in crate::wire) const RETURN: i32 = -5;
}

/// What expressions are made of, by the names in `nf_tables.h` and `nf_nat.h`.
pub(super) mod expr {
    /// `NFT_REG_VERDICT`.
    pub(in crate::wire) const REGISTER_VERDICT: u32 = 0;
    /// `NFT_META_*`.
    pub(in crate::wire) const META_PRIORITY: u32 = 2;
    pub(in crate::wire) const META_MARK: u32 = 3;
    pub(in crate::wire) const META_INPUT_INTERFACE: u32 = 6;
    pub(in crate::wire) const META_PROTOCOL: u32 = 16;
    /// `NFT_PAYLOAD_*_HEADER`.
    pub(in crate::wire) const PAYLOAD_NETWORK: u32 = 1;
    pub(in crate::wire) const PAYLOAD_TRANSPORT: u32 = 2;
    /// Where all transport protocols that have ports have the destination's.
    pub(in crate::wire) const DESTINATION_PORT: u32 = 2;
    /// `NFT_CT_*` and the bits behind: `NF_CT_STATE_BIT(IP_CT_NEW)`, `IPS_DST_NAT`.
    pub(in crate::wire) const CT_STATE: u32 = 0;
    pub(in crate::wire) const CT_STATUS: u32 = 2;
    pub(in crate::wire) const CT_STATE_NEW: u32 = 8;
    pub(in crate::wire) const CT_STATUS_DNAT: u32 = 0x20;
    /// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_*`, `RTN_LOCAL`.
    pub(in crate::wire) const FIB_ADDRESS_TYPE: u32 = 3;
    pub(in crate::wire) const FIB_SOURCE: u32 = 1;
    pub(in crate::wire) const FIB_DESTINATION: u32 = 2;
    pub(in crate::wire) const ADDRESS_TYPE_LOCAL: u32 = 2;
    /// `NFT_NG_RANDOM`.
    pub(in crate::wire) const NUMGEN_RANDOM: u32 = 1;
    /// `NFT_DYNSET_OP_*`.
    pub(in crate::wire) const DYNSET_UPDATE: u32 = 1;
    pub(in crate::wire) const DYNSET_DELETE: u32 = 2;
    /// `NFT_NAT_DNAT`, `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
    pub(in crate::wire) const NAT_DESTINATION: u32 = 1;
    pub(in crate::wire) const NAT_FULLY_RANDOM: u32 = 0x10;
    /// `NFT_REJECT_ICMP_UNREACH`, `ICMP_PORT_UNREACH`, `ICMPV6_PORT_UNREACH`.
    pub(in crate::wire) const REJECT_UNREACHABLE: u32 = 0;
    pub(in crate::wire) const ICMP_PORT_UNREACHABLE: u8 = 3;
    pub(in crate::wire) const ICMPV6_PORT_UNREACHABLE: u8 = 4;
    /// `NFT_LOOKUP_F_INV`.
    pub(in crate::wire) const LOOKUP_INVERTED: u32 = 1;
    /// `IFNAMSIZ`.
    pub(in crate::wire) const INTERFACE_NAME: usize = 16;
    /// More of `NFT_META_*`, `NFT_CT_*`, `NFT_NAT_*`, `NFT_REJECT_*` and `NFT_DYNSET_OP_*`, which the planner does not use.
    pub(in crate::wire) const META_ETHERNET_PROTOCOL: u32 = 1;
    pub(in crate::wire) const META_OUTPUT_INTERFACE: u32 = 7;
    pub(in crate::wire) const META_FAMILY: u32 = 15;
    pub(in crate::wire) const SOURCE_PORT: u32 = 0;
    pub(in crate::wire) const NAT_SOURCE: u32 = 0;
    pub(in crate::wire) const REJECT_TCP_RESET: u32 = 1;
    pub(in crate::wire) const REJECT_ICMPX: u32 = 2;
    pub(in crate::wire) const DYNSET_ADD: u32 = 0;
}
