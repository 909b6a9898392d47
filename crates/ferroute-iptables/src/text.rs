//! The text form of rules, as `iptables-save` prints it and `iptables-restore` reads it.
//!
//! There is one printed form, that of `iptables-save`; `iptables-restore` reads it as well. Reading also takes what
//! people and kube-proxy write (other order of options, `--or-mark`, addresses without `/32`): both forms of a rule
//! give the same value. Nothing that a foreign program wrote is lost: what we do not know is kept as it was written.

mod options;
mod print;
mod read_rule;
mod restore;
mod save;
mod saved;
mod words;

pub use print::{Line, write_head, write_rule};
pub use restore::RestoreWriter;
pub use save::{ParseError, ParseErrorKind, SaveItem, SaveParser};
pub use saved::{RuleCounters, Saved, SavedReader};

#[cfg(test)]
mod tests;
