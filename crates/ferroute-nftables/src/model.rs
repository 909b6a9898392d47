//! nf_tables objects as typed values: printed as `nft` writes them, encoded for netlink, evaluated by whoever explains
//! them.
//!
//! There are the forms that the proxy needs. Every one of them is listed by `nft` 1.0.6 as it is printed here, and can be
//! loaded again; forms that make it abort cannot be written down. Beside them are those that other proxies and network
//! plugins write, so that their tables can be explained, too. What remains is [`Opaque`].

mod chain;
mod name;
mod rule;
mod set;
mod text;
mod transaction;
mod value;

pub use chain::{Base, BaseKind, Chain, ChainWithRules, Hook, Policy, Verdict};
pub use name::{Comment, Name};
pub use rule::{Expression, Field, InterfaceName, Match, Opaque, Outcome, RejectWith, Relation, Rule, Statement};
pub(crate) use set::length;
pub use set::{Datum, Element, Holds, Set, SetKind};
pub use text::family_name;
pub(crate) use text::join;
pub use transaction::{Change, SetWord, TableId, Transaction};
pub use value::{Class, DataType, Fields, Interface, Key, Value};
