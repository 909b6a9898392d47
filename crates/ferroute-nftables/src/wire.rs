//! Encoding objects as netlink messages (`include/uapi/linux/netfilter/nf_tables.h`), and decoding the kernel's
//! listings.
//!
//! Integers in attributes are big-endian. Registers, keys and data have the packet's byte order for addresses and
//! ports, and the host's for marks and class ids.

mod batch;
mod constants;
mod decode;
mod element;
mod encoded_rule;
mod expression;
mod foreign_element;
mod layout;
mod listing;
mod object;
mod userdata;

pub use batch::EncodedTransaction;
pub(crate) use batch::encode;
pub(crate) use element::{changed_elements, parse_elements};
pub use encoded_rule::EncodedRule;
pub(crate) use foreign_element::AnyElements;
pub(crate) use layout::{destination_offset, protocol_offset, source_offset};
pub(crate) use listing::{
    is_bound_chain, is_escaped, is_table_changed, parse_any_set, parse_chain, parse_flowtable, parse_handle,
    parse_rule, parse_set, parse_table, parse_table_owner,
};
pub(crate) use object::{Listed, elements_request, list_request, nfproto, table_request, tables_request};
