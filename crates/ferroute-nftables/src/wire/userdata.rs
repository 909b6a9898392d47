//! What `nft` keeps beside objects in the kernel: comments, and how to print keys and data. The kernel does not read it.
//!
//! Entries are a type, a length and bytes, numbered as in libnftnl's `udata.h`.

use std::iter;

use crate::model::{Comment, DataType, Holds, Set};

/// The comment of a table, a chain, a rule or an element.
pub(super) fn comment(comment: &Comment) -> Vec<u8> {
    entry(COMMENT, &text(comment)).collect()
}

/// What `nft` wants to know of a set.
pub(super) fn set(set: &Set) -> Vec<u8> {
    let data_order = match &set.holds {
        Holds::Nothing => None,
        Holds::Values(types) => Some(byte_order(types)),
        Holds::Verdicts => Some(UNKNOWN_ORDER),
    };
    let map = data_order.into_iter().flat_map(|order| {
        entry(SET_DATA_ORDER, &order.to_ne_bytes())
            .chain(entry(SET_DATA_INTERVAL, &0_u32.to_ne_bytes()))
            .collect::<Vec<u8>>()
    });
    let comment = set.comment.iter().flat_map(|comment| entry(SET_COMMENT, &text(comment)).collect::<Vec<u8>>());
    entry(SET_KEY_ORDER, &byte_order(&set.key).to_ne_bytes()).chain(map).chain(comment).collect()
}

/// The comment of a table, a chain, a rule or an element.
pub(super) fn read_comment(userdata: &[u8]) -> Option<Comment> {
    read(userdata, COMMENT)
}

/// The comment of a set.
pub(super) fn read_set_comment(userdata: &[u8]) -> Option<Comment> {
    read(userdata, SET_COMMENT)
}

fn read(mut userdata: &[u8], wanted: u8) -> Option<Comment> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, rest) = rest.split_at_checked((*length).into())?;
        if *kind == wanted {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(Comment::new(&String::from_utf8_lossy(text)));
        }
        userdata = rest;
    }
    None
}

fn entry(kind: u8, value: &[u8]) -> impl Iterator<Item = u8> {
    let length = u8::try_from(value.len()).expect("bug: comments have at most 128 bytes");
    [kind, length].into_iter().chain(value.iter().copied())
}

fn text(comment: &Comment) -> Vec<u8> {
    comment.as_str().bytes().chain(iter::once(0)).collect()
}

/// In which byte order `nft` prints values; for several fields it knows from their types.
fn byte_order(types: &[DataType]) -> u32 {
    match types {
        [DataType::Class | DataType::Number | DataType::Interface] => HOST_ORDER,
        [_] => NETWORK_ORDER,
        _ => UNKNOWN_ORDER,
    }
}

const COMMENT: u8 = 0;
const SET_KEY_ORDER: u8 = 0;
const SET_DATA_ORDER: u8 = 1;
const SET_DATA_INTERVAL: u8 = 6;
const SET_COMMENT: u8 = 7;

const UNKNOWN_ORDER: u32 = 0;
const HOST_ORDER: u32 = 1;
const NETWORK_ORDER: u32 = 2;
