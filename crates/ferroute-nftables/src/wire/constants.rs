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
    pub(in crate::wire) const USERDATA: u16 = 6;
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
    /// `NF_ACCEPT`.
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
    pub(in crate::wire) const USERDATA: u16 = 6;
    pub(in crate::wire) const EXPRESSION: u16 = 7;
    pub(in crate::wire) const KEY_END: u16 = 10;
    pub(in crate::wire) const VALUE: u16 = 1;
    pub(in crate::wire) const VERDICT: u16 = 2;
    pub(in crate::wire) const CODE: u16 = 1;
    pub(in crate::wire) const CHAIN: u16 = 2;
    /// `NFTA_COUNTER_*`.
    pub(in crate::wire) const COUNTER_BYTES: u16 = 1;
    pub(in crate::wire) const COUNTER_PACKETS: u16 = 2;
}

/// Verdict codes: `NF_*` and `NFT_*`, the latter negative.
pub(super) mod verdict {
    pub(in crate::wire) const DROP: i32 = 0;
    pub(in crate::wire) const ACCEPT: i32 = 1;
    pub(in crate::wire) const JUMP: i32 = -3;
    pub(in crate::wire) const GOTO: i32 = -4;
    pub(in crate::wire) const RETURN: i32 = -5;
}
