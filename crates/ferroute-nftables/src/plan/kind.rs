use ferroute_core::{ModeTraits, Outcome, Protocol, Route, Routes, SourceAddress, TrafficPolicy};

use super::{
    Context, MapName,
    choice::Choice,
    frontend::FRONTEND,
    list::{CLASS_SHIFT, LIST, LOCAL, NUMBER},
};
use crate::model::{
    Chain, ChainWithRules, ClassId, CmpOp, Field, Match, Name, PriorityBits, Rule, Statement, Value, Verdict,
};

/// Kind of forwarding of a frontend's traffic to a list of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kind {
    /// Whether the Service has session affinity.
    pub(crate) sticky: bool,
    /// Whether traffic is masqueraded, and whether it may go to another list.
    pub(crate) selection: Selection,
}

/// Whether traffic is masqueraded, and whether it may go to another list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Selection {
    /// No masquerading.
    Pick,
    /// Masquerading.
    External,
    /// As in the routes of external policy Local: the requested list for pods and the node itself, and the list of this
    /// node's endpoints for other clients.
    ExternalLocal,
}

/// Handling of the traffic of an empty list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Rejected.
    Reject,
    /// Dropped.
    Drop,
}

/// Current handling of the traffic of a list: the upper 12 bits of a class id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// Sent to an endpoint that is chosen in this way.
    Forward(Kind, Choice),
    /// Rejected.
    Reject,
    /// Dropped.
    Drop,
}

impl Refused {
    /// Returns the handling of traffic with this outcome while its list is empty.
    pub(super) fn new(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Drop(_) => Self::Drop,
            // The mode has a rule for every client, and forwards connections only to lists that are not empty.
            Outcome::Reject(_) | Outcome::NotOurs | Outcome::Forward(_) => Self::Reject,
        }
    }
}

impl From<Refused> for Class {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Reject => Self::Reject,
            Refused::Drop => Self::Drop,
        }
    }
}

impl Selection {
    /// Returns the selection for the routes of external traffic.
    pub(super) fn new(routes: &Routes) -> Self {
        match routes.outside.source {
            _ if routes.outside != routes.node => Self::ExternalLocal,
            SourceAddress::Node => Self::External,
            SourceAddress::Kept => Self::Pick,
        }
    }

    /// Returns the name of its chains.
    fn name(self) -> &'static str {
        match self {
            Self::Pick => "pick",
            Self::External => "external",
            Self::ExternalLocal => "external-local",
        }
    }
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 6] = {
        use Selection::{External, ExternalLocal, Pick};
        [
            Self { sticky: false, selection: Pick },
            Self { sticky: false, selection: External },
            Self { sticky: false, selection: ExternalLocal },
            Self { sticky: true, selection: Pick },
            Self { sticky: true, selection: External },
            Self { sticky: true, selection: ExternalLocal },
        ]
    };

    /// Returns the class id of a request for this kind of forwarding to a list, the key of map `lists`.
    pub(crate) fn request(self, list: ClassId) -> ClassId {
        with_class(self.number(), list)
    }

    /// Returns the class id of the same request of a service port with limits, the key of map `limited`.
    pub(crate) fn limited_request(self, list: ClassId) -> ClassId {
        with_class(KINDS + self.number(), list)
    }

    fn number(self) -> u32 {
        let selection = match self.selection {
            Selection::Pick => 1,
            Selection::External => 2,
            Selection::ExternalLocal => 3,
        };
        selection + if self.sticky { STICKY } else { 0 }
    }

    fn from_number(number: u32) -> Option<Self> {
        let sticky = number > STICKY;
        let selection = match number - if sticky { STICKY } else { 0 } {
            1 => Selection::Pick,
            2 => Selection::External,
            3 => Selection::ExternalLocal,
            _ => return None,
        };
        Some(Self { sticky, selection })
    }

    /// Returns the class whose chain the chain of this kind goes to.
    pub(crate) fn goto_target(self, choice: Choice) -> Option<Class> {
        let pick = Class::Forward(Self { selection: Selection::Pick, ..self }, choice);
        (self.selection != Selection::Pick).then_some(pick)
    }
}

impl Class {
    /// Returns the class id for the traffic of a list, which is the value in map `lists`.
    pub(crate) fn of_list(self, list: ClassId) -> ClassId {
        with_class(self.number(), list)
    }

    /// Returns the key of maps `dispatch` and `local-dispatch`.
    pub(crate) fn key(self) -> ClassId {
        with_class(self.number(), ClassId(1))
    }

    /// Returns the class of a value of map `lists`; `None` for other class ids. The inverse of [`Class::of_list`].
    pub(crate) fn from_class_id(id: ClassId) -> Option<Self> {
        let number = id.0 >> CLASS_SHIFT;
        match number {
            REJECT => Some(Self::Reject),
            DROP => Some(Self::Drop),
            _ => Some(Self::Forward(Kind::from_number(number % KINDS)?, Choice::from_step(number / KINDS)?)),
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Forward(kind, choice) => kind.number() + KINDS * choice.step(),
            Self::Reject => REJECT,
            Self::Drop => DROP,
        }
    }

    /// Returns a description.
    pub(super) fn text(self) -> String {
        match self {
            Self::Forward(..) => self.chain_name().to_string(),
            Self::Reject => "refuse".to_owned(),
            Self::Drop => "drop".to_owned(),
        }
    }

    /// Returns the verdict of maps `dispatch` and `local-dispatch`.
    pub(crate) fn verdict(self) -> Verdict {
        match self {
            Self::Drop => Verdict::Drop,
            _ => Verdict::Goto(self.chain_name()),
        }
    }

    /// Returns the name of the chain.
    pub(crate) fn chain_name(self) -> Name {
        match self {
            Self::Forward(Kind { sticky, selection }, choice) => {
                format!("{}{}-{choice}", selection.name(), if sticky { "-sticky" } else { "" }).into()
            }
            Self::Reject | Self::Drop => REFUSE,
        }
    }

    /// Returns the chain of the class; `None` for a chain that exists without any list.
    pub(super) fn chain(self, context: &Context) -> Option<ChainWithRules> {
        let Self::Forward(kind, choice) = self else { return None };
        let chain = Chain::new(self.chain_name());
        let goto_pick =
            || Verdict::Goto(Self::Forward(Kind { selection: Selection::Pick, ..kind }, choice).chain_name()).into();
        Some(match kind.selection {
            Selection::Pick => chain.rules(pick(kind.sticky, choice)),
            Selection::External => {
                chain.rules([Rule::new([Statement::MetaMarkOr(context.settings.masquerade_mark), goto_pick()])])
            }
            Selection::ExternalLocal => chain.rules(external_local(kind, &goto_pick, context)),
        })
    }
}

fn with_class(class: u32, list: ClassId) -> ClassId {
    ClassId(class << CLASS_SHIFT | list.0)
}

fn pick(sticky: bool, choice: Choice) -> Vec<Rule> {
    if !sticky {
        return choice
            .rules_by_protocol(|protocol, position| send(protocol, vec![Field::PriorityBits(LIST), position]));
    }
    let previous = Statement::MetaPriorityMap { key: CLIENT.to_vec(), map: MapName::AFFINITY };
    let affinity = Rule::new([previous, Verdict::Jump(REMEMBER).into()])
        .comment("the endpoint that the client had last, if it is still there");
    [affinity].into_iter().chain(choice.rules(send_by_slot)).collect()
}

/// Returns the rule that sends packets to the endpoint with this key. `nft` accepts no port without a protocol.
pub(super) fn send(protocol: Protocol, key: Vec<Field>) -> Rule {
    let value = Value::protocol(protocol);
    let protocol_matches = Match::Cmp { field: Field::L4proto, mask: u32::MAX, op: CmpOp::Eq, value };
    Rule::new([protocol_matches.into(), Statement::DnatMap { key, map: MapName::endpoints(protocol) }])
}

fn send_by_slot(position: Field) -> Rule {
    let slot = Statement::MetaPriorityMap { key: vec![Field::PriorityBits(LIST), position], map: MapName::SLOTS };
    Rule::new([slot, Verdict::Jump(ADMIT).into()])
}

fn external_local(kind: Kind, goto_pick: &dyn Fn() -> Statement, context: &Context) -> Vec<Rule> {
    let Routes { pod, node, outside } =
        Routes::external(TrafficPolicy::Local, &context.settings, &ModeTraits::NFTABLES);
    let mark = Statement::MetaMarkOr(context.settings.masquerade_mark);
    let requested = |clients: Match, route: Route| {
        let mark = (route.source == SourceAddress::Node).then(|| mark.clone());
        Rule::new([clients.into()].into_iter().chain(mark).chain([goto_pick()]).collect::<Vec<_>>())
    };
    let pods = context
        .match_local_pods(true)
        .filter(|_| pod != outside)
        .map(|pods| requested(pods, pod).comment("pods are served as by a load balancer"));
    let node = requested(Match::FibSaddrLocal, node).comment("so is the node itself");
    let pick = Kind { selection: Selection::Pick, ..kind };
    let this_node = Statement::MetaPriorityBits(PriorityBits::new(NUMBER, pick.request(LOCAL)));
    let local = Rule::new([vec![this_node], dispatch(MapName::LOCAL_DISPATCH).to_vec()].concat())
        .comment("others stay on this node");
    let lost = Rule::new([Verdict::Drop.into()]).comment("the service has just been changed");
    pods.into_iter().chain([node, local, lost]).collect()
}

/// Returns the statements that look up a request and go to the chain for it.
pub(super) fn dispatch(map: Name) -> [Statement; 2] {
    [
        Statement::MetaPriorityMap { key: vec![Field::MetaPriority], map: MapName::LISTS },
        Statement::Vmap { key: vec![Field::PriorityBits(CLASS)], map },
    ]
}

/// Returns the statements that look up a frontend and go to the chain for it.
pub(super) fn dispatch_frontend(key: &[Field], map: Name) -> Vec<Statement> {
    let request = Statement::MetaPriorityMap { key: key.to_vec(), map };
    [request].into_iter().chain(dispatch(MapName::DISPATCH)).collect()
}

/// Returns the statement that looks up whether source ranges apply to a frontend.
pub(super) fn restricted() -> Statement {
    Statement::MetaPriorityMap { key: FRONTEND.to_vec(), map: MapName::RESTRICTED }
}

/// The chain that rejects.
pub(super) const REFUSE: Name = Name::fixed("refuse");
/// The chain that forwards a client to the endpoint whose slot is the priority, and updates the affinity map.
pub(super) const REMEMBER: Name = Name::fixed("remember");
/// The chain that does the same for a client that is not in the affinity map, or no longer.
pub(super) const ADMIT: Name = Name::fixed("admit");
/// Key of the affinity map: the list and the client. `nft` parses a masked field only at the first position of a key.
pub(super) const CLIENT: [Field; 2] = [Field::PriorityBits(LIST), Field::Saddr];
/// Bits of the class, and the bit that is set in every list.
const CLASS: ClassId = ClassId::new(0xfff0, 1);
/// The difference of the numbers of kinds with and without session affinity.
const STICKY: u32 = 3;
/// Number of kinds in the lowest three bits of classes: kinds are 1 to 6.
const KINDS: u32 = 8;
const REJECT: u32 = 7;
const DROP: u32 = KINDS + 7;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ferroute_core::Method;

    use super::{super::capacity::Capacity, *};

    #[test]
    fn every_class_has_a_unique_number_and_chain() {
        let list = ClassId::new(1, 5);
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for kind in Kind::ALL {
            assert!(ids.insert(kind.request(list)));
            let by = |method| [1, 1_024, 32_768, 65_536].map(|positions| Choice::new(method, positions));
            let small = [Method::Random, Method::RoundRobin].map(|method| [2, 64].map(|len| Choice::new(method, len)));
            let methods = [Method::Random, Method::RoundRobin, Method::SourceHash, Method::SourcePortHash];
            let largest = Choice::new(Method::Random, Capacity::MAX as usize);
            let choices = methods.into_iter().flat_map(by).chain(small.into_iter().flatten()).chain([largest]);
            for choice in choices.collect::<BTreeSet<_>>() {
                let class = Class::Forward(kind, choice);
                assert_eq!(Class::from_class_id(class.of_list(list)), Some(class));
                assert!(ids.insert(class.of_list(list)) && names.insert(class.chain_name()));
                assert_eq!(class.of_list(list).masked(CLASS), class.key());
            }
        }
        for class in [Class::Reject, Class::Drop] {
            assert_eq!(Class::from_class_id(class.of_list(list)), Some(class));
            assert!(ids.insert(class.of_list(list)));
        }
        assert_eq!(Class::from_class_id(list), None);
    }
}
