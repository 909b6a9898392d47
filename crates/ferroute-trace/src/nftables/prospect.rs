use ferroute_nftables::{
    kernel::MemoryTable,
    model::{Field, Match, Opaque, Outcome, Statement},
};

use super::conditions::Finding;
use crate::state::State;

/// What follows in a rule from a condition that cannot be told.
pub(super) enum Prospect {
    /// Something may happen if it holds.
    Open,
    /// Another condition does not hold.
    Mismatch(String),
    /// Nothing happens whether it holds or not.
    Nothing,
}

/// Looks whether it matters if a condition holds, given what comes next in its rule.
pub(super) fn foresee(state: &State<'_>, next: &[Statement], table: &MemoryTable) -> Prospect {
    for statement in next {
        match statement {
            Statement::Match(condition) if range_of(statement).is_none() => {
                if let Finding::Mismatch(why) = state.meets(condition, table, None) {
                    return Prospect::Mismatch(why);
                }
            }
            Statement::Opaque(Opaque { outcome: Outcome::Nothing | Outcome::Condition, .. })
            | Statement::Learn { .. }
            | Statement::Forget { .. }
            | Statement::Note { .. } => {}
            _ => return Prospect::Open,
        }
    }
    Prospect::Nothing
}

/// The numbers among which chance decides in a statement: the first, and how many there are.
pub(super) fn range_of(statement: &Statement) -> Option<(u32, u32)> {
    let of_field = |field: &Field| match field {
        Field::Random { first, count } => Some((*first, *count)),
        _ => None,
    };
    match statement {
        Statement::PriorityAtRandom { count, first } => Some((first.0, *count)),
        Statement::Match(Match::Compare { field, .. } | Match::Within { field, .. }) => of_field(field),
        Statement::Match(Match::Member { key, .. })
        | Statement::PriorityFromMap { key, .. }
        | Statement::Translate { key, .. }
        | Statement::Dispatch { key, .. } => key.iter().find_map(of_field),
        _ => None,
    }
}
