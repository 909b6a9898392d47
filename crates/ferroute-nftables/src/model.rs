//! nf_tables objects as typed values: printed as `nft` writes them, encoded for netlink, evaluated by whoever explains
//! them.

mod value;

pub use value::{Class, DataType, Fields, Key, Value};
