//! nf_tables objects as typed values: printed in `nft` syntax, encoded for netlink, and evaluated by `ferroute trace`.
//!
//! The model covers all objects that the planner writes. `nft` 1.0.6 lists these objects as they are printed here and
//! loads them again; forms that make it abort are not representable. The model also covers common forms of rules of
//! other proxies and network plugins, so that their tables can be evaluated. Other forms are [`Opaque`].

mod chain;
mod flowtable;
mod foreign;
mod name;
mod nat;
mod property;
mod rule;
mod set;
mod text;
mod transaction;
mod value;
mod words;

pub use chain::{BaseChain, Chain, ChainType, ChainWithRules, Hook, Policy, Verdict};
pub use ferroute_core::InterfacePattern;
pub use flowtable::Flowtable;
pub use foreign::{ElementOp, Elements, Foreign, Operand, Source, fields_text, key_text};
pub(crate) use foreign::{fib_existence, hash_inputs, network, set_text};
pub(crate) use name::Printable;
pub use name::{Comment, Name};
pub use nat::{NAT_FLAGS, NatKind, NatPart, NatTarget};
pub(crate) use property::protocol_of;
pub use property::{
    End, FibInterface, FibResult, HASH_INPUTS, Hashed, Named, NumberSource, PayloadBase, Property, Sender,
};
pub use rule::{
    CmpOp, Expression, Field, HashInput, Match, Opaque, Outcome, PriorityBits, RejectWith, Rule, Statement,
};
pub(crate) use set::length;
pub use set::{Data, Element, KeyText, Limit, Set, SetData, SetKind};
pub(crate) use text::join;
pub use text::{family_name, netmask};
pub use transaction::{Change, SetOrMap, TableId, Transaction};
pub(crate) use value::KEY_FIELDS;
pub use value::{ClassId, DataType, IfName, Key, Value, Values};
pub(crate) use words::parse_duration;
pub use words::{Words, named_port};
