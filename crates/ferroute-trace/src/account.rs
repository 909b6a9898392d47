use serde::Serialize;

use crate::{Ending, Event, Group, Story, Verdict};

/// All stories of a walk, rule by rule: of those that differ only in the endpoint that chance chose, the first is told in
/// full, and where the others end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// What can happen, in the order of the rules; never empty for a walk's account.
    pub ways: Vec<Told>,
}

/// A way that is told in full.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    /// What happens, how likely, and where it can end.
    #[serde(flatten)]
    pub group: Group,
    /// Everything that happens, in order; where chance chooses among endpoints, with the first of them.
    pub events: Vec<Event>,
}

/// What becomes of a packet, all in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Whatever chance decides, it comes to an endpoint that rules chose.
    Delivered,
    /// Not in every case: it may be rejected or dropped, find no way, or be no Service's.
    NotDelivered,
    /// It depends on what cannot be known.
    Unknown,
}

impl Account {
    /// What becomes of the packet.
    pub fn outcome(&self) -> Outcome {
        let unknown = |way: &Told| matches!(way.group.verdict, Verdict::Unknown { .. });
        let delivered = |way: &Told| matches!(way.group.verdict, Verdict::Delivered { translated: true, .. });
        let sure = self.ways.iter().all(|way| way.group.assuming.is_empty());
        if self.ways.is_empty() || self.ways.iter().any(unknown) {
            Outcome::Unknown
        } else if self.ways.iter().all(delivered) {
            Outcome::Delivered
        } else if sure || !self.ways.iter().any(delivered) {
            Outcome::NotDelivered
        } else {
            Outcome::Unknown
        }
    }

    /// Takes one more way: its end, what changed or decided something, and everything that happened, which is asked for
    /// only if the way is of a new kind.
    pub(crate) fn take(&mut self, ending: Ending, effects: Vec<Event>, events: impl FnOnce() -> Vec<Event>) {
        let group = Group::of(Story { events: effects, ending });
        match self.ways.iter_mut().find(|known| known.group.is_like(&group)) {
            Some(known) => known.group.take(group),
            None => self.ways.push(Told { group, events: events() }),
        }
    }
}

impl Event {
    /// Something changes or is decided.
    pub(crate) fn is_effect(&self) -> bool {
        matches!(self, Self::Effect { .. } | Self::Discarded { .. })
    }
}
