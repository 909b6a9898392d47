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
use crate::model::{Chain, ChainWithRules, ClassId, Comment, Element, Field, Name, Rule, Statement, Verdict};

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

/// Returns the rule that applies a limit of this kind; `None` if the set is not one of such lists.
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
    let exceeded = Statement::MetaPriorityBits { mask: NUMBER, bits: refusal(kind, ClassId(1)) };
    let statements = [Some(in_set(&[list], set, true)), client, Some(exceeded), Some(Verdict::Goto(OVER_LIMIT).into())];
    Some(Rule::new(statements.into_iter().flatten().collect::<Vec<_>>()))
}

/// Returns the key of map `refusals` for a limit of a list.
pub(crate) fn refusal(kind: LimitKind, list: ClassId) -> ClassId {
    let number = match kind {
        LimitKind::ClientRate => 1,
        LimitKind::ClientConnections => 2,
        LimitKind::Rate => 3,
        LimitKind::Connections => 4,
    };
    ClassId(number << CLASS_SHIFT | list.0)
}

/// Returns the kind of limit of a key of map `refusals`. The inverse of [`refusal`].
pub(crate) fn kind_of_refusal(key: ClassId) -> Option<LimitKind> {
    LimitKind::ALL.into_iter().find(|kind| refusal(*kind, ClassId(0)).0 >> CLASS_SHIFT == key.0 >> CLASS_SHIFT)
}

impl PortElements {
    /// Returns the elements of the limits. They depend on the Service alone.
    pub(super) fn limit_elements(&self, name: &ServicePortName) -> Vec<SetElement> {
        let Some(limits) = self.exposure.limits() else { return Vec::new() };
        let list = self.number.list(List::Cluster);
        let verdict = match limits.over_limit {
            OverLimit::Reject => Class::Reject,
            OverLimit::Drop => Class::Drop,
        }
        .verdict();
        let requests = self.exposure.requests.iter().map(|request| {
            let [limited, plain] = [true, false].map(|is_limited| self.request_id(*request, is_limited));
            (SetId::Limited, Element::new([limited.into()]).values([plain.into()]))
        });
        let limits = list_sets(limits).flat_map(|(kind, set)| {
            let refused = Element::new([refusal(kind, list).into()]).comment(Comment::new(&name.to_string()));
            [(set, Element::new([list.into()])), (SetId::Refusals, refused.verdict(verdict.clone()))]
        });
        requests.chain(limits).collect()
    }
}

/// The chain that applies limits.
pub(super) const LIMITS: Name = Name::fixed("limits");
const OVER_LIMIT: Name = Name::fixed("over-limit");
