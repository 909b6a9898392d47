//! The userdata that `nft` stores with objects: comments, and the byte order of keys and data. The kernel does not
//! interpret it.
//!
//! Entries consist of a type, a length and bytes, numbered as in libnftnl's `udata.h`.

use std::iter;

use ferroute_core::Protocol;

use super::constants::{NFT_META_IIFNAME, NFT_META_L4PROTO, NFT_META_PRIORITY, NFT_NG_RANDOM};
use crate::model::{Comment, DataType, Set, SetData};

/// Returns the userdata of a table, chain, rule or element with a comment.
pub(super) fn comment(comment: &Comment) -> Vec<u8> {
    entry(NFTNL_UDATA_RULE_COMMENT, &text(comment)).collect()
}

/// Returns the userdata of a set.
pub(super) fn set(set: &Set) -> Vec<u8> {
    let data_order = match &set.data {
        SetData::None => None,
        SetData::Values(types) => Some(byte_order(types)),
        SetData::Verdict => Some(BYTEORDER_INVALID),
    };
    let map = data_order.into_iter().flat_map(|order| {
        entry(NFTNL_UDATA_SET_DATABYTEORDER, &order.to_ne_bytes())
            .chain(entry(NFTNL_UDATA_SET_DATA_INTERVAL, &0_u32.to_ne_bytes()))
            .collect::<Vec<u8>>()
    });
    let types = if set.has_typeof() {
        let data = match &set.data {
            SetData::Values(types) => &types[..],
            SetData::None | SetData::Verdict => &[],
        };
        let mut types: Vec<u8> = entry(NFTNL_UDATA_SET_KEY_TYPEOF, &examples(&set.key, set.protocol)).collect();
        if !data.is_empty() {
            types.extend(entry(NFTNL_UDATA_SET_DATA_TYPEOF, &examples(data, set.protocol)));
        }
        types
    } else {
        Vec::new()
    };
    let comment =
        set.comment.iter().flat_map(|comment| entry(NFTNL_UDATA_SET_COMMENT, &text(comment)).collect::<Vec<u8>>());
    entry(NFTNL_UDATA_SET_KEYBYTEORDER, &byte_order(&set.key).to_ne_bytes())
        .chain(map)
        .chain(types)
        .chain(comment)
        .collect()
}

/// Returns the comment in the userdata of a table, chain, rule or element.
pub(super) fn read_comment(userdata: &[u8]) -> Option<Comment> {
    read(userdata, NFTNL_UDATA_RULE_COMMENT)
}

/// Returns the comment in the userdata of a set.
pub(super) fn read_set_comment(userdata: &[u8]) -> Option<Comment> {
    read(userdata, NFTNL_UDATA_SET_COMMENT)
}

/// Returns the protocol of the ports in a set's data of these types, see [`Set::protocol`].
pub(super) fn read_protocol(userdata: &[u8], types: &[DataType]) -> Option<Protocol> {
    let stored = find(userdata, NFTNL_UDATA_SET_DATA_TYPEOF).filter(|_| types.contains(&DataType::InetService))?;
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    protocols.into_iter().find(|protocol| stored == examples(types, Some(*protocol)))
}

/// Reports whether the numbers of a key with one field are in network byte order, like numbers in headers.
pub(super) fn has_big_endian_key(userdata: &[u8]) -> bool {
    find(userdata, NFTNL_UDATA_SET_KEYBYTEORDER) == Some(&BYTEORDER_BIG_ENDIAN.to_ne_bytes())
}

fn read(userdata: &[u8], entry_type: u8) -> Option<Comment> {
    let value = find(userdata, entry_type)?;
    let text = value.strip_suffix(&[0]).unwrap_or(value);
    Some(Comment::new(&String::from_utf8_lossy(text)))
}

fn find(mut userdata: &[u8], entry_type: u8) -> Option<&[u8]> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, rest) = rest.split_at_checked((*length).into())?;
        if *kind == entry_type {
            return Some(value);
        }
        userdata = rest;
    }
    None
}

/// Returns an entry. Comments and the expressions of a type are shorter than the maximum of 255 bytes.
fn entry(kind: u8, value: &[u8]) -> impl Iterator<Item = u8> {
    let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
    [kind, length].into_iter().chain(value.iter().copied().take(length.into()))
}

fn text(comment: &Comment) -> Vec<u8> {
    comment.as_str().bytes().chain(iter::once(0)).collect()
}

/// Returns the byte order in which `nft` prints values; for concatenations it follows from their types.
fn byte_order(types: &[DataType]) -> u32 {
    match types {
        [DataType::ClassId | DataType::Integer | DataType::IfName] => BYTEORDER_HOST_ENDIAN,
        [_] => BYTEORDER_BIG_ENDIAN,
        _ => BYTEORDER_INVALID,
    }
}

/// Returns the expressions of [`DataType::example`], as `nft` stores them for `typeof`.
fn examples(types: &[DataType], protocol: Option<Protocol>) -> Vec<u8> {
    match types {
        [single] => example(*single, protocol),
        several => {
            let fields = several.iter().zip(0..);
            let fields =
                fields.flat_map(|(data_type, i)| entry(i, &example(*data_type, protocol)).collect::<Vec<u8>>());
            expression(EXPR_CONCAT, &fields.collect::<Vec<u8>>())
        }
    }
}

fn example(data_type: DataType, protocol: Option<Protocol>) -> Vec<u8> {
    let numbers = |numbers: &[u32]| -> Vec<u8> {
        numbers.iter().zip(0..).flat_map(|(number, i)| entry(i, &number.to_ne_bytes()).collect::<Vec<u8>>()).collect()
    };
    let payload = |protocol, field| expression(EXPR_PAYLOAD, &numbers(&[protocol, field]));
    let meta = |key| expression(EXPR_META, &numbers(&[key]));
    match data_type {
        DataType::Ipv4Addr => payload(PROTO_DESC_IP, IPHDR_DADDR),
        DataType::Ipv6Addr => payload(PROTO_DESC_IP6, IP6HDR_DADDR),
        DataType::InetProto => meta(NFT_META_L4PROTO),
        DataType::InetService => match protocol {
            Some(Protocol::Tcp) => payload(PROTO_DESC_TCP, DPORT),
            Some(Protocol::Udp) => payload(PROTO_DESC_UDP, DPORT),
            Some(Protocol::Sctp) => payload(PROTO_DESC_SCTP, DPORT),
            None => payload(PROTO_DESC_TH, DPORT),
        },
        DataType::ClassId => meta(NFT_META_PRIORITY),
        // Sets of other programs are not written.
        DataType::Integer | DataType::IfIndex | DataType::Other { .. } => {
            expression(EXPR_NUMGEN, &numbers(&[NFT_NG_RANDOM, 65_536, 0]))
        }
        DataType::IfName => meta(NFT_META_IIFNAME),
    }
}

fn expression(kind: u32, body: &[u8]) -> Vec<u8> {
    entry(NFTNL_UDATA_SET_TYPEOF_EXPR, &kind.to_ne_bytes()).chain(entry(NFTNL_UDATA_SET_TYPEOF_DATA, body)).collect()
}

/// The same number as for tables, chains and elements.
const NFTNL_UDATA_RULE_COMMENT: u8 = 0;
const NFTNL_UDATA_SET_KEYBYTEORDER: u8 = 0;
const NFTNL_UDATA_SET_DATABYTEORDER: u8 = 1;
const NFTNL_UDATA_SET_KEY_TYPEOF: u8 = 3;
const NFTNL_UDATA_SET_DATA_TYPEOF: u8 = 4;
const NFTNL_UDATA_SET_TYPEOF_EXPR: u8 = 0;
const NFTNL_UDATA_SET_TYPEOF_DATA: u8 = 1;
const NFTNL_UDATA_SET_DATA_INTERVAL: u8 = 6;
const NFTNL_UDATA_SET_COMMENT: u8 = 7;

// enum expr_types of nft's include/expression.h
const EXPR_PAYLOAD: u32 = 7;
const EXPR_META: u32 = 9;
const EXPR_CONCAT: u32 = 13;
const EXPR_NUMGEN: u32 = 23;

// enum proto_desc_id and the fields of each protocol, of nft's include/proto.h
const PROTO_DESC_UDP: u32 = 6;
const PROTO_DESC_TCP: u32 = 8;
const PROTO_DESC_SCTP: u32 = 10;
const PROTO_DESC_TH: u32 = 11;
const PROTO_DESC_IP: u32 = 12;
const PROTO_DESC_IP6: u32 = 13;
/// `TCPHDR_DPORT`, and the same for the other protocols.
const DPORT: u32 = 2;
const IPHDR_DADDR: u32 = 12;
const IP6HDR_DADDR: u32 = 9;

// enum byteorder of nft's include/datatype.h
const BYTEORDER_INVALID: u32 = 0;
const BYTEORDER_HOST_ENDIAN: u32 = 1;
const BYTEORDER_BIG_ENDIAN: u32 = 2;
