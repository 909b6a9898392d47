//! The same objects as netlink messages (`include/uapi/linux/netfilter/nf_tables.h`), and back from what the kernel
//! lists.
//!
//! Integers are big-endian, but the content of registers, keys and data is as the kernel works with it: addresses and
//! ports in network byte order, marks and classes in the host's.

mod any_element;
mod batch;
mod compare;
mod constants;
mod decode;
mod element;
mod expression;
mod layout;
mod listing;
mod object;
mod userdata;

pub(crate) use any_element::AnyElements;
pub(crate) use batch::encode;
pub use compare::EncodedRule;
pub(crate) use element::parse_elements;
pub(crate) use listing::{parse_any_set, parse_chain, parse_rule, parse_set, parse_table};
pub(crate) use object::{Listed, elements_request, list_request, protocol_family, table_request, tables_request};
