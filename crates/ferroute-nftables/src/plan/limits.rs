//! Limits of connections, per service port and per client.
//!
//! ```text
//!   services ─► limits       a rule per distinct value: is the list in its set, and is the value exceeded?
//!                 │    └───► over-limit    the priority is limit:list; map refusals counts, and rejects or drops
//!                 └────────► dispatch      as for any other request
//! ```
//!
//! The request of a service port with limits is in map `limited` instead of map `lists`, so that others never pass these chains.
//! The kernel counts the connections whose first packet looked up the element of a set with `ct count`, until they are closed.

use ferroute_core::{ConnectionLimits, LimitKind, OverLimit, ServicePortName};

use super::{
    List, MapName, SetId,
    elements::SetElement,
    fixed::in_set,
    kind::{Class, dispatch},
    list::{CLASS_SHIFT, NUMBER},
    port_plan::PortElements,
};
use crate::model::{
    Chain, ChainWithRules, ClassId, Comment, Element, Field, Name, PriorityBits, Rule, Statement, Verdict,
};

/// Reasons why rules refuse a connection to a service port that has endpoints. They are keys of map `refusals`, which
/// counts the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefusalKind {
    /// Beyond a limit.
    Limit(LimitKind),
    /// The client is outside of the source ranges.
    SourceRanges,
}

impl RefusalKind {
    /// All kinds.
    pub(crate) const ALL: [Self; 5] = [
        Self::Limit(LimitKind::ClientRate),
        Self::Limit(LimitKind::ClientConnections),
        Self::Limit(LimitKind::Rate),
        Self::Limit(LimitKind::Connections),
        Self::SourceRanges,
    ];

    /// Returns the name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Limit(kind) => kind.as_str(),
            Self::SourceRanges => "source-ranges",
        }
    }

    /// Returns the key of a list in map `refusals`.
    pub(crate) fn key(self, list: ClassId) -> ClassId {
        let number = Self::ALL.iter().take_while(|kind| **kind != self).count() as u32 + 1;
        ClassId(number << CLASS_SHIFT | list.0)
    }

    /// Returns the kind of a key of map `refusals`. The inverse of [`RefusalKind::key`].
    pub(crate) fn from_key(key: ClassId) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.key(ClassId(0)).0 >> CLASS_SHIFT == key.0 >> CLASS_SHIFT)
    }

    /// Returns the statement that turns a list in the priority into its key.
    fn set_key(self) -> Statement {
        Statement::MetaPriorityBits(PriorityBits::new(NUMBER, self.key(ClassId(1))))
    }

    /// Returns the element of map `refusals` for a list.
    fn element(self, list: ClassId, name: &ServicePortName, refused: Class) -> SetElement {
        let element = Element::new([self.key(list).into()]).comment(Comment::new(&name.to_string()));
        (SetId::Refusals, element.verdict(refused.verdict()))
    }
}

/// Returns the statements that refuse and count a client outside of the source ranges of the list in the priority.
pub(super) fn outside_source_ranges() -> [Statement; 2] {
    [RefusalKind::SourceRanges.set_key(), Statement::Vmap { key: vec![Field::MetaPriority], map: MapName::REFUSALS }]
}

/// Returns the sets that a service port with these limits needs.
pub(super) fn limit_sets(limits: &ConnectionLimits) -> impl Iterator<Item = SetId> {
    let clients = [
        limits.client_rate.map(|rate| SetId::ClientRates(rate.into())),
        limits.client_connections.map(|max| SetId::ClientConnections(max.get())),
    ];
    SetId::OF_LIMITS.into_iter().chain(list_sets(limits).map(|(_, set)| set)).chain(clients.into_iter().flatten())
}

/// Returns the sets that contain the list of a service port with these limits.
fn list_sets(limits: &ConnectionLimits) -> impl Iterator<Item = (LimitKind, SetId)> {
    let limits = *limits;
    limits.kinds().filter_map(move |kind| {
        let set = match kind {
            LimitKind::ClientRate => SetId::ClientRateLists(limits.client_rate?.into()),
            LimitKind::ClientConnections => SetId::ClientConnectionLists(limits.client_connections?.get()),
            LimitKind::Rate => SetId::Rates(limits.rate?.into()),
            LimitKind::Connections => SetId::Connections(limits.connections?.get()),
        };
        Some((kind, set))
    })
}

/// Returns the chains that apply limits, targets of gotos first.
pub(super) fn limit_chains(sets: impl Iterator<Item = SetId>) -> [ChainWithRules; 2] {
    let sets: Vec<SetId> = sets.collect();
    let rules = LimitKind::ALL.into_iter().flat_map(|kind| sets.iter().filter_map(move |set| limit(kind, *set)));
    let served = Rule::new(dispatch(MapName::DISPATCH)).comment("within all limits");
    let refused = Statement::Vmap { key: vec![Field::MetaPriority], map: MapName::REFUSALS };
    let changed = Rule::new([Verdict::Drop.into()]).comment("the service has just been changed");
    [
        Chain::new(OVER_LIMIT).comment("the priority is limit:list").rules([Rule::new([refused]), changed.clone()]),
        Chain::new(LIMITS)
            .comment("limits of connections, those of the client first")
            .rules(rules.chain([served, changed]).collect::<Vec<_>>()),
    ]
}

/// Returns the rule that applies a limit of this kind; `None` if the set does not contain lists with such a limit.
fn limit(kind: LimitKind, set: SetId) -> Option<Rule> {
    let list = Field::PriorityBits(NUMBER);
    let update = |set: SetId, timeout| Statement::UpdateSet { key: vec![list, Field::Saddr], set: set.name(), timeout };
    let client = match (kind, set) {
        (LimitKind::ClientRate, SetId::ClientRateLists(bucket)) => {
            Some(update(SetId::ClientRates(bucket), Some(bucket.time_to_fill())))
        }
        (LimitKind::ClientConnections, SetId::ClientConnectionLists(max)) => {
            Some(update(SetId::ClientConnections(max), None))
        }
        (LimitKind::Rate, SetId::Rates(_)) | (LimitKind::Connections, SetId::Connections(_)) => None,
        _ => return None,
    };
    let exceeded = RefusalKind::Limit(kind).set_key();
    let statements = [Some(in_set(&[list], set, true)), client, Some(exceeded), Some(Verdict::Goto(OVER_LIMIT).into())];
    Some(Rule::new(statements.into_iter().flatten().collect::<Vec<_>>()))
}

impl PortElements {
    /// Returns the element that counts clients outside of the source ranges, if there are any.
    pub(super) fn source_range_elements(&self, name: &ServicePortName) -> Option<SetElement> {
        let is_restricted = !self.exposure.source_ranges().is_empty();
        is_restricted.then(|| RefusalKind::SourceRanges.element(self.number.list(List::Cluster), name, Class::Drop))
    }

    /// Returns the elements of the limits. They depend on the Service alone.
    pub(super) fn limit_elements(&self, name: &ServicePortName) -> Vec<SetElement> {
        let Some(limits) = self.exposure.limits() else { return Vec::new() };
        let list = self.number.list(List::Cluster);
        let refused = match limits.over_limit {
            OverLimit::Reject => Class::Reject,
            OverLimit::Drop => Class::Drop,
        };
        let requests = self.exposure.requests.iter().map(|request| {
            let [limited, plain] = [true, false].map(|is_limited| self.request_id(*request, is_limited));
            (SetId::Limited, Element::new([limited.into()]).values([plain.into()]))
        });
        let limits = list_sets(limits).flat_map(|(kind, set)| {
            [(set, Element::new([list.into()])), RefusalKind::Limit(kind).element(list, name, refused)]
        });
        requests.chain(limits).collect()
    }
}

/// The chain that applies limits.
pub(super) const LIMITS: Name = Name::fixed("limits");
const OVER_LIMIT: Name = Name::fixed("over-limit");
