//! Constants of `include/uapi/linux/netfilter/nf_tables.h` and related kernel headers, by the kernel's names, and the
//! frame of a transaction.
//!
//! Values come from `libc`, converted to the type of their attribute, where `libc` defines them.

use crate::{Batch, nfnetlink};

macro_rules! from_libc {
    ($type:ty: $($name:ident)+) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            pub const $name: $type = libc::$name as $type;
        )+
    };
}

macro_rules! attributes {
    ($($name:ident = $value:literal),+ $(,)?) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            pub const $name: u16 = $value;
        )+
    };
}

// enum nf_tables_msg_types
from_libc!(u8:
    NFT_MSG_NEWTABLE NFT_MSG_GETTABLE NFT_MSG_DELTABLE
    NFT_MSG_NEWCHAIN NFT_MSG_GETCHAIN NFT_MSG_DELCHAIN
    NFT_MSG_NEWRULE NFT_MSG_GETRULE NFT_MSG_DELRULE
    NFT_MSG_NEWSET NFT_MSG_GETSET NFT_MSG_DELSET
    NFT_MSG_NEWSETELEM NFT_MSG_GETSETELEM NFT_MSG_DELSETELEM
    NFT_MSG_GETOBJ
);
/// `NFT_MSG_NEWFLOWTABLE`
pub const NFT_MSG_NEWFLOWTABLE: u8 = 22;
/// `NFT_MSG_GETFLOWTABLE`
pub const NFT_MSG_GETFLOWTABLE: u8 = 23;
/// `NFT_MSG_DELFLOWTABLE`
pub const NFT_MSG_DELFLOWTABLE: u8 = 24;

// enum nft_list_attributes, nft_table_attributes, nft_hook_attributes, nft_chain_attributes, nft_rule_attributes
attributes! {
    NFTA_LIST_ELEM = 1,
    NFTA_TABLE_NAME = 1,
    NFTA_TABLE_FLAGS = 2,
    NFTA_TABLE_USE = 3,
    NFTA_TABLE_HANDLE = 4,
    NFTA_TABLE_USERDATA = 6,
    NFTA_TABLE_OWNER = 7,
    NFTA_HOOK_HOOKNUM = 1,
    NFTA_HOOK_PRIORITY = 2,
    NFTA_CHAIN_TABLE = 1,
    NFTA_CHAIN_NAME = 3,
    NFTA_CHAIN_HOOK = 4,
    NFTA_CHAIN_POLICY = 5,
    NFTA_CHAIN_USE = 6,
    NFTA_CHAIN_TYPE = 7,
    NFTA_CHAIN_COUNTERS = 8,
    NFTA_CHAIN_FLAGS = 10,
    NFTA_CHAIN_USERDATA = 12,
    NFTA_RULE_TABLE = 1,
    NFTA_RULE_CHAIN = 2,
    NFTA_RULE_HANDLE = 3,
    NFTA_RULE_EXPRESSIONS = 4,
    NFTA_RULE_COMPAT = 5,
    NFTA_RULE_USERDATA = 7,
    NFTA_RULE_COMPAT_PROTO = 1,
    NFTA_RULE_COMPAT_FLAGS = 2,
}

// enum nft_set_attributes, nft_set_desc_attributes, nft_set_field_attributes
attributes! {
    NFTA_SET_TABLE = 1,
    NFTA_SET_NAME = 2,
    NFTA_SET_FLAGS = 3,
    NFTA_SET_KEY_TYPE = 4,
    NFTA_SET_KEY_LEN = 5,
    NFTA_SET_DATA_TYPE = 6,
    NFTA_SET_DATA_LEN = 7,
    NFTA_SET_POLICY = 8,
    NFTA_SET_DESC = 9,
    NFTA_SET_ID = 10,
    NFTA_SET_TIMEOUT = 11,
    NFTA_SET_GC_INTERVAL = 12,
    NFTA_SET_USERDATA = 13,
    NFTA_SET_EXPR = 17,
    NFTA_SET_EXPRESSIONS = 18,
    // Linux 6.16 and later.
    NFTA_SET_COUNT = 20,
    NFTA_SET_DESC_SIZE = 1,
    NFTA_SET_DESC_CONCAT = 2,
    NFTA_SET_FIELD_LEN = 1,
}

// enum nft_set_elem_list_attributes, nft_set_elem_attributes, nft_data_attributes, nft_verdict_attributes
attributes! {
    NFTA_SET_ELEM_LIST_TABLE = 1,
    NFTA_SET_ELEM_LIST_SET = 2,
    NFTA_SET_ELEM_LIST_ELEMENTS = 3,
    NFTA_SET_ELEM_KEY = 1,
    NFTA_SET_ELEM_DATA = 2,
    NFTA_SET_ELEM_FLAGS = 3,
    NFTA_SET_ELEM_USERDATA = 6,
    NFTA_SET_ELEM_EXPR = 7,
    NFTA_SET_ELEM_KEY_END = 10,
    NFTA_SET_ELEM_EXPRESSIONS = 11,
    NFTA_DATA_VALUE = 1,
    NFTA_DATA_VERDICT = 2,
    NFTA_VERDICT_CODE = 1,
    NFTA_VERDICT_CHAIN = 2,
}

// enum nft_object_attributes
attributes! {
    NFTA_OBJ_TABLE = 1,
}

// enum nft_flowtable_attributes, nft_flowtable_hook_attributes, nft_devices_attributes, nft_offload_attributes
attributes! {
    NFTA_FLOWTABLE_TABLE = 1,
    NFTA_FLOWTABLE_NAME = 2,
    NFTA_FLOWTABLE_HOOK = 3,
    NFTA_FLOWTABLE_FLAGS = 7,
    NFTA_FLOWTABLE_HOOK_NUM = 1,
    NFTA_FLOWTABLE_HOOK_PRIORITY = 2,
    NFTA_FLOWTABLE_HOOK_DEVS = 3,
    NFTA_DEVICE_NAME = 1,
    NFTA_FLOW_TABLE_NAME = 1,
}
/// `NFT_FLOWTABLE_COUNTER`
pub const NFT_FLOWTABLE_COUNTER: u32 = 1 << 1;
/// `NF_NETDEV_INGRESS` of `include/uapi/linux/netfilter.h`.
pub const NF_NETDEV_INGRESS: u32 = 0;

// enum nft_expr_attributes and the attributes of each expression
attributes! {
    NFTA_EXPR_NAME = 1,
    NFTA_EXPR_DATA = 2,
    NFTA_IMMEDIATE_DREG = 1,
    NFTA_IMMEDIATE_DATA = 2,
    NFTA_BITWISE_SREG = 1,
    NFTA_BITWISE_DREG = 2,
    NFTA_BITWISE_LEN = 3,
    NFTA_BITWISE_MASK = 4,
    NFTA_BITWISE_XOR = 5,
    NFTA_BITWISE_OP = 6,
    NFTA_BYTEORDER_SREG = 1,
    NFTA_BYTEORDER_DREG = 2,
    NFTA_BYTEORDER_OP = 3,
    NFTA_BYTEORDER_LEN = 4,
    NFTA_BYTEORDER_SIZE = 5,
    NFTA_CMP_SREG = 1,
    NFTA_CMP_OP = 2,
    NFTA_CMP_DATA = 3,
    NFTA_RANGE_SREG = 1,
    NFTA_RANGE_OP = 2,
    NFTA_RANGE_FROM_DATA = 3,
    NFTA_RANGE_TO_DATA = 4,
    NFTA_LOOKUP_SET = 1,
    NFTA_LOOKUP_SREG = 2,
    NFTA_LOOKUP_DREG = 3,
    NFTA_LOOKUP_FLAGS = 5,
    NFTA_DYNSET_SET_NAME = 1,
    NFTA_DYNSET_OP = 3,
    NFTA_DYNSET_SREG_KEY = 4,
    NFTA_DYNSET_SREG_DATA = 5,
    NFTA_DYNSET_TIMEOUT = 6,
    NFTA_DYNSET_EXPR = 7,
    NFTA_DYNSET_EXPRESSIONS = 10,
    NFTA_PAYLOAD_DREG = 1,
    NFTA_PAYLOAD_BASE = 2,
    NFTA_PAYLOAD_OFFSET = 3,
    NFTA_PAYLOAD_LEN = 4,
    NFTA_META_DREG = 1,
    NFTA_META_KEY = 2,
    NFTA_META_SREG = 3,
    NFTA_CT_DREG = 1,
    NFTA_CT_KEY = 2,
    NFTA_CT_DIRECTION = 3,
    NFTA_CT_SREG = 4,
    NFTA_FIB_DREG = 1,
    NFTA_FIB_RESULT = 2,
    NFTA_FIB_FLAGS = 3,
    NFTA_NG_DREG = 1,
    NFTA_NG_MODULUS = 2,
    NFTA_NG_TYPE = 3,
    NFTA_NG_OFFSET = 4,
    NFTA_HASH_SREG = 1,
    NFTA_HASH_DREG = 2,
    NFTA_HASH_LEN = 3,
    NFTA_HASH_MODULUS = 4,
    NFTA_HASH_SEED = 5,
    NFTA_HASH_OFFSET = 6,
    NFTA_HASH_TYPE = 7,
    NFTA_NAT_TYPE = 1,
    NFTA_NAT_FAMILY = 2,
    NFTA_NAT_REG_ADDR_MIN = 3,
    NFTA_NAT_REG_ADDR_MAX = 4,
    NFTA_NAT_REG_PROTO_MIN = 5,
    NFTA_NAT_REG_PROTO_MAX = 6,
    NFTA_NAT_FLAGS = 7,
    NFTA_MASQ_FLAGS = 1,
    NFTA_REJECT_TYPE = 1,
    NFTA_REJECT_ICMP_CODE = 2,
    NFTA_COUNTER_BYTES = 1,
    NFTA_COUNTER_PACKETS = 2,
    NFTA_LIMIT_RATE = 1,
    NFTA_LIMIT_UNIT = 2,
    NFTA_LIMIT_BURST = 3,
    NFTA_LIMIT_TYPE = 4,
    NFTA_LIMIT_FLAGS = 5,
    NFTA_CONNLIMIT_COUNT = 1,
    NFTA_CONNLIMIT_FLAGS = 2,
    NFTA_LOG_GROUP = 1,
    NFTA_LOG_PREFIX = 2,
}

// nft_compat: enum nft_target_attributes, nft_match_attributes, nft_rule_compat_flags of
// include/uapi/linux/netfilter/nf_tables_compat.h
attributes! {
    NFTA_TARGET_NAME = 1,
    NFTA_TARGET_REV = 2,
    NFTA_TARGET_INFO = 3,
    NFTA_MATCH_NAME = 1,
    NFTA_MATCH_REV = 2,
    NFTA_MATCH_INFO = 3,
}
/// Command of `NFNL_SUBSYS_NFT_COMPAT` that queries a match module or target.
pub const NFNL_MSG_COMPAT_GET: u8 = 0;
/// The name of a match module or target.
pub const NFTA_COMPAT_NAME: u16 = 1;
/// Revision.
pub const NFTA_COMPAT_REV: u16 = 2;
/// 0 for a match module, 1 for a target.
pub const NFTA_COMPAT_TYPE: u16 = 3;
/// `NFT_RULE_COMPAT_F_INV`: the protocol is negated.
pub const NFT_RULE_COMPAT_F_INV: u32 = 1 << 1;

// Flags of tables, sets and elements, and the data type of verdicts.
from_libc!(u32: NFT_SET_ANONYMOUS NFT_SET_INTERVAL NFT_SET_MAP NFT_SET_TIMEOUT NFT_SET_EVAL NFT_SET_ELEM_INTERVAL_END NFT_DATA_VERDICT);
/// `NFT_TABLE_F_DORMANT`
pub const NFT_TABLE_F_DORMANT: u32 = 0x1;
/// `NFT_CHAIN_BINDING`: the chain belongs to a rule.
pub const NFT_CHAIN_BINDING: u32 = 0x4;
/// `NFT_TABLE_F_OWNER`: only the socket that created the table may change it, and the kernel deletes it with the socket (Linux 5.12).
pub const NFT_TABLE_F_OWNER: u32 = 0x2;
/// `NFT_SET_CONCAT`
pub const NFT_SET_CONCAT: u32 = 0x80;

// Hooks and verdicts: enum nf_inet_hooks, enum nft_verdicts.
from_libc!(u32: NF_INET_PRE_ROUTING NF_INET_LOCAL_IN NF_INET_FORWARD NF_INET_LOCAL_OUT NF_INET_POST_ROUTING);
from_libc!(i32: NF_DROP NF_ACCEPT NFT_JUMP NFT_GOTO NFT_RETURN);

// enum nft_registers
from_libc!(u32: NFT_REG_VERDICT NFT_REG_1 NFT_REG_4 NFT_REG32_00 NFT_REG32_15);

// enum nft_meta_keys, nft_payload_bases, nft_ct_keys, nft_ng_types
from_libc!(u32:
    NFT_META_PROTOCOL NFT_META_PRIORITY NFT_META_MARK NFT_META_IIFNAME NFT_META_OIFNAME NFT_META_NFPROTO
    NFT_META_L4PROTO
    NFT_PAYLOAD_NETWORK_HEADER NFT_PAYLOAD_TRANSPORT_HEADER
    NFT_CT_STATE NFT_CT_STATUS NFT_CT_PROTO_DST NFT_CT_PKTS
    NFT_NG_INCREMENTAL NFT_NG_RANDOM
);

/// `NFT_HASH_JENKINS` of `enum nft_hash_types`.
pub const NFT_HASH_JENKINS: u32 = 0;
/// `NFT_CT_DST_IP`
pub const NFT_CT_DST_IP: u32 = 20;
/// `NFT_CT_DST_IP6`
pub const NFT_CT_DST_IP6: u32 = 22;
/// `IP_CT_DIR_ORIGINAL` of `include/uapi/linux/netfilter/nf_conntrack_tuple_common.h`.
pub const IP_CT_DIR_ORIGINAL: u8 = 0;
/// `NFT_BYTEORDER_HTON`
pub const NFT_BYTEORDER_HTON: u32 = 1;

// enum nft_cmp_ops, nft_range_ops, nft_dynset_ops, nft_nat_types, nft_reject_types, nft_lookup_flags
from_libc!(u32:
    NFT_CMP_EQ NFT_CMP_NEQ NFT_CMP_LT NFT_CMP_LTE NFT_CMP_GT NFT_CMP_GTE
    NFT_RANGE_EQ NFT_RANGE_NEQ
    NFT_DYNSET_OP_ADD NFT_DYNSET_OP_UPDATE
    NFT_NAT_SNAT NFT_NAT_DNAT
    NFT_REJECT_ICMP_UNREACH NFT_REJECT_TCP_RST NFT_REJECT_ICMPX_UNREACH
    NFT_LOOKUP_F_INV
);
/// `NFT_DYNSET_OP_DELETE`
pub const NFT_DYNSET_OP_DELETE: u32 = 2;
/// Called `NFT_BITWISE_MASK_XOR` since Linux 6.13.
pub const NFT_BITWISE_BOOL: u32 = 0;

// enum nft_fib_result, nft_fib_flags; the address type of include/uapi/linux/rtnetlink.h
/// `NFT_FIB_RESULT_ADDRTYPE`
pub const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
/// `NFTA_FIB_F_SADDR`
pub const NFTA_FIB_F_SADDR: u32 = 1 << 0;
/// `NFTA_FIB_F_DADDR`
pub const NFTA_FIB_F_DADDR: u32 = 1 << 1;
from_libc!(u32: RTN_LOCAL);

/// `NF_CT_STATE_BIT(IP_CT_NEW)` of `include/uapi/linux/netfilter/nf_conntrack_common.h`.
pub const CT_STATE_NEW: u32 = 1 << 3;
/// `include/uapi/linux/netfilter/nf_conntrack_common.h`.
pub const IPS_DST_NAT: u32 = 1 << 5;
/// `include/uapi/linux/netfilter/nf_nat.h`.
pub const NF_NAT_RANGE_PROTO_RANDOM_FULLY: u32 = 1 << 4;
/// `enum nft_limit_flags`: the expression matches beyond the limit.
pub const NFT_LIMIT_F_INV: u32 = 1 << 0;
/// `enum nft_connlimit_flags`: the expression matches beyond the limit.
pub const NFT_CONNLIMIT_F_INV: u32 = 1 << 0;
/// `include/uapi/linux/icmp.h`.
pub const ICMP_PORT_UNREACH: u8 = 3;
/// `include/uapi/linux/icmpv6.h`.
pub const ICMPV6_PORT_UNREACH: u8 = 4;

/// The offset of the source port in the header of every transport protocol with ports.
pub const SOURCE_PORT_OFFSET: u32 = 0;
/// The offset of the destination port.
pub const DESTINATION_PORT_OFFSET: u32 = 2;

/// Begins a transaction of nf_tables. With a generation, the kernel refuses the transaction if it is not the current
/// one: see [`Refusal::is_outdated`](crate::Refusal::is_outdated).
pub fn begin(batch: &mut Batch, generation: Option<u32>) {
    let header = nfnetlink::header(0, 0, nfnetlink::NFNL_SUBSYS_NFTABLES.into());
    let mut message = batch.message(nfnetlink::NFNL_MSG_BATCH_BEGIN, 0, &header);
    if let Some(generation) = generation {
        message.put_u32_be(nfnetlink::NFNL_BATCH_GENID, generation);
    }
}

/// Commits the transaction that [`begin`] began, and requests an ack for its last change, which the kernel sends only
/// if it has not refused an earlier one. Before Linux 6.10, the kernel does not acknowledge the end of the batch
/// itself.
pub fn end(batch: &mut Batch) {
    batch.ack_last();
    batch.message(nfnetlink::NFNL_MSG_BATCH_END, 0, &nfnetlink::header(0, 0, nfnetlink::NFNL_SUBSYS_NFTABLES.into()));
}
