//! The text form of rules: `iptables-save` prints it and `iptables-restore` reads it.
//!
//! Writing uses the form of `iptables-save`. Parsing also accepts the form that people and kube-proxy write (another
//! order of options, `--or-mark`, addresses without `/32`); both forms of a rule parse to the same value. No
//! information in rules of other programs is lost: unsupported matches and targets are kept verbatim.

mod parse_rule;
mod save;
mod write;

pub(crate) use parse_rule::Word;
pub use save::{ParseError, ParseErrorKind, RuleCounters, SaveItem, SaveParser, SavedRules, SavedRulesReader};
pub use write::Line;
pub(crate) use write::{RestoreWriter, write_quoted, write_rule, write_sense};

#[cfg(test)]
mod tests;
