use crate::model::{Chain, ChainWithRules, Class, Field, Match, Name, Rule, Statement, Verdict};

use super::{Context, Frontend, MapName};

/// How packets to a frontend are answered. With the number of endpoints it makes a [`Class`] and names a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// The frontend is a node port.
    pub node_port: bool,
    /// Clients keep their endpoint.
    pub sticky: bool,
    /// Which endpoints, and with which source.
    pub way: Way,
}

/// Which endpoints are used, and whether they see the true source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// The cluster's; true source.
    Pick,
    /// This node's; true source.
    PickLocal,
    /// The cluster's; masqueraded.
    External,
    /// The cluster's for pods and, masqueraded, for the node itself; for others this node's with their true source.
    ExternalLocal,
}

/// The lists of endpoints that a frontend can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// Those for policy Cluster.
    Cluster,
    /// Those for policy Local.
    Local,
}

impl List {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Local];

    /// The class under which the endpoint at `position` (from 0) is found.
    pub fn index(self, position: usize) -> Class {
        let minor = u16::try_from(position + 1).expect("bug: lists hold at most 65,535 endpoints");
        Class::new(self.major(), minor)
    }

    /// The opposite of [`List::index`]; `None` for what is no index.
    pub fn of_index(index: Class) -> Option<(Self, usize)> {
        let list = Self::ALL.into_iter().find(|list| list.major() == index.major())?;
        Some((list, usize::from(index.minor()).checked_sub(1)?))
    }

    fn major(self) -> u16 {
        match self {
            Self::Cluster => 1,
            Self::Local => 2,
        }
    }
}

impl Kind {
    /// The class of this kind for a number of endpoints.
    pub fn class(self, endpoints: usize) -> Class {
        let way = match self.way {
            Way::Pick => 1,
            Way::PickLocal => 2,
            Way::External => 3,
            Way::ExternalLocal => 4,
        };
        let endpoints = u16::try_from(endpoints).expect("bug: lists hold at most 65,535 endpoints");
        Class::new(way + STICKY * u16::from(self.sticky) + NODE_PORT * u16::from(self.node_port), endpoints)
    }

    /// The opposite of [`Kind::class`]; `None` for a class that no frontend has.
    pub fn of_class(class: Class) -> Option<(Self, usize)> {
        let (node_port, rest) = (class.major() & NODE_PORT != 0, class.major() & !NODE_PORT);
        let (sticky, rest) = (rest > STICKY, if rest > STICKY { rest - STICKY } else { rest });
        let way = match rest {
            1 => Way::Pick,
            2 => Way::PickLocal,
            3 => Way::External,
            4 => Way::ExternalLocal,
            _ => return None,
        };
        Some((Self { node_port, sticky, way }, class.minor().into()))
    }

    /// The chain for a number of endpoints.
    pub fn chain_name(self, endpoints: usize) -> Name {
        let way = match self.way {
            Way::Pick => "pick",
            Way::PickLocal => "pick-local",
            Way::External => "external",
            Way::ExternalLocal => "external-local",
        };
        let node_port = if self.node_port { "node-port-" } else { "" };
        let sticky = if self.sticky { "-sticky" } else { "" };
        format!("{node_port}{way}{sticky}-{endpoints}").into()
    }

    /// The list that the number of endpoints is of.
    pub fn list(self) -> List {
        match self.way {
            Way::Pick | Way::External | Way::ExternalLocal => List::Cluster,
            Way::PickLocal => List::Local,
        }
    }

    /// The kind whose chain this one's leads to, with the same number of endpoints.
    pub fn leads_to(self) -> Option<Self> {
        match self.way {
            Way::Pick | Way::PickLocal => None,
            Way::External | Way::ExternalLocal => Some(Self { way: Way::Pick, ..self }),
        }
    }

    /// The chain for a number of endpoints, with its rules.
    pub(super) fn chain(self, endpoints: usize, context: &Context) -> ChainWithRules {
        let chain = Chain::new(self.chain_name(endpoints));
        match self.way {
            Way::Pick | Way::PickLocal => chain.rules(self.pick(endpoints)),
            Way::External => {
                chain.rules([Rule::new([Statement::SetMark(context.masquerade_mark), self.goto_pick(endpoints)])])
            }
            Way::ExternalLocal => chain.rules(self.external_local(endpoints, context)),
        }
    }

    fn pick(self, endpoints: usize) -> Vec<Rule> {
        let count = u32::try_from(endpoints).expect("bug: lists hold at most 65,535 endpoints");
        let any = self.send_to_one_of(count);
        // A packet can meet a change between two lookups and ask for an endpoint behind the end of a list that has just
        // become shorter. The first one is there as long as there is any.
        let first = (count > 1).then(|| self.send_to_one_of(1).comment("the list has just become shorter"));
        let known = self.sticky.then(|| {
            // Any of the list's slots tells the owner.
            let slot = self.slot_of_one_of(1);
            let known = Statement::PriorityFromMap { key: CLIENT.to_vec(), map: MapName::AFFINITY };
            let remember = Verdict::Jump(remember_chain(self.node_port));
            Rule::new(slot.into_iter().chain([known, remember.into()]).collect::<Vec<_>>())
                .comment("the endpoint that the client had last, if it is still there")
        });
        known.into_iter().chain([any]).chain(first).collect()
    }

    fn send_to_one_of(self, count: u32) -> Rule {
        if self.sticky {
            let remember = Verdict::Jump(remember_chain(self.node_port));
            Rule::new(self.slot_of_one_of(count).into_iter().chain([remember.into()]).collect::<Vec<_>>())
        } else {
            Rule::new([
                self.one_of(count),
                Statement::Translate { key: index_key(self.node_port), map: MapName::ENDPOINTS },
            ])
        }
    }

    fn one_of(self, count: u32) -> Statement {
        Statement::PriorityAtRandom { count, first: self.list().index(0) }
    }

    fn slot_of_one_of(self, count: u32) -> [Statement; 2] {
        let slot = Statement::PriorityFromMap { key: index_key(self.node_port), map: MapName::SLOTS };
        [self.one_of(count), slot]
    }

    fn external_local(self, endpoints: usize, context: &Context) -> Vec<Rule> {
        let pods = context.match_local_pods(true).map(|pods| {
            Rule::new([pods.into(), self.goto_pick(endpoints)]).comment("pods are served as by a load balancer")
        });
        let node = Rule::new([
            Match::SourceIsLocal.into(),
            Statement::SetMark(context.masquerade_mark),
            self.goto_pick(endpoints),
        ])
        .comment("so is the node itself");
        let key = Frontend::fields(self.node_port).to_vec();
        let local = Rule::new([
            Statement::PriorityFromMap { key, map: MapName::LOCAL_SERVICES },
            Statement::Dispatch { key: vec![Field::Priority], map: MapName::LOCAL_DISPATCH },
        ])
        .comment("others stay on this node");
        pods.into_iter().chain([node, local]).collect()
    }

    fn goto_pick(self, endpoints: usize) -> Statement {
        Verdict::Goto(Self { way: Way::Pick, ..self }.chain_name(endpoints)).into()
    }
}

/// The chain that sends a client to the endpoint whose slot is the packet's priority, and remembers it.
pub(super) fn remember_chain(node_port: bool) -> Name {
    Name::fixed(if node_port { "node-port-remember" } else { "remember" })
}

/// The key of an index or slot of a frontend.
pub(super) fn index_key(node_port: bool) -> Vec<Field> {
    Frontend::fields(node_port).into_iter().chain([Field::Priority]).collect()
}

/// The key of a client that is remembered, while the priority is one of the slots that it may have. `nft` can read what
/// has lost some bits only in the first place.
pub(super) const CLIENT: [Field; 2] = [Field::SlotOwner, Field::Source];

/// Added to a kind's number for Services with affinity.
const STICKY: u16 = 4;
/// Added to a kind's number for node ports: the first hexadecimal digit tells.
const NODE_PORT: u16 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_class_and_a_chain_of_its_own() {
        let (mut classes, mut names) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        for node_port in [false, true] {
            for sticky in [false, true] {
                for way in [Way::Pick, Way::PickLocal, Way::External, Way::ExternalLocal] {
                    let kind = Kind { node_port, sticky, way };
                    assert_eq!(Kind::of_class(kind.class(300)), Some((kind, 300)));
                    assert!(classes.insert(kind.class(300)) && names.insert(kind.chain_name(300)));
                }
            }
        }
        assert_eq!(Kind::of_class(Class::new(9, 1)), None);
        assert_eq!(Kind::of_class(Class::new(0x10, 1)), None);
    }

    #[test]
    fn an_index_tells_list_and_position() {
        for list in List::ALL {
            assert_eq!(List::of_index(list.index(0)), Some((list, 0)));
            assert_eq!(List::of_index(list.index(65_534)), Some((list, 65_534)));
        }
        assert_eq!(List::of_index(Class::new(1, 0)), None);
        assert_eq!(List::of_index(Class::new(0x8a3f, 1)), None);
    }
}
