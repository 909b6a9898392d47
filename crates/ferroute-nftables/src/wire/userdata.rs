//! The userdata that `nft` stores with objects: comments, and the byte order of keys and data. The kernel does not
//! interpret it.
//!
//! Entries consist of a type, a length and bytes, numbered as in libnftnl's `udata.h`.

use std::iter;

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
    let comment =
        set.comment.iter().flat_map(|comment| entry(NFTNL_UDATA_SET_COMMENT, &text(comment)).collect::<Vec<u8>>());
    entry(NFTNL_UDATA_SET_KEYBYTEORDER, &byte_order(&set.key).to_ne_bytes()).chain(map).chain(comment).collect()
}

/// Returns the comment in the userdata of a table, chain, rule or element.
pub(super) fn read_comment(userdata: &[u8]) -> Option<Comment> {
    read(userdata, NFTNL_UDATA_RULE_COMMENT)
}

/// Returns the comment in the userdata of a set.
pub(super) fn read_set_comment(userdata: &[u8]) -> Option<Comment> {
    read(userdata, NFTNL_UDATA_SET_COMMENT)
}

fn read(mut userdata: &[u8], entry_type: u8) -> Option<Comment> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, rest) = rest.split_at_checked((*length).into())?;
        if *kind == entry_type {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(Comment::new(&String::from_utf8_lossy(text)));
        }
        userdata = rest;
    }
    None
}

fn entry(kind: u8, value: &[u8]) -> impl Iterator<Item = u8> {
    let length = u8::try_from(value.len()).expect("bug: comment exceeds 128 bytes");
    [kind, length].into_iter().chain(value.iter().copied())
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

/// The same number as for tables, chains and elements.
const NFTNL_UDATA_RULE_COMMENT: u8 = 0;
const NFTNL_UDATA_SET_KEYBYTEORDER: u8 = 0;
const NFTNL_UDATA_SET_DATABYTEORDER: u8 = 1;
const NFTNL_UDATA_SET_DATA_INTERVAL: u8 = 6;
const NFTNL_UDATA_SET_COMMENT: u8 = 7;

// enum byteorder of nft's include/datatype.h
const BYTEORDER_INVALID: u32 = 0;
const BYTEORDER_HOST_ENDIAN: u32 = 1;
const BYTEORDER_BIG_ENDIAN: u32 = 2;
