use crate::model::{Chain, ChainWithRules, ClassId, Field, Match, Name, Rule, Statement, Verdict};

use super::{Context, MapName, frontend_fields};

/// How a frontend's traffic is forwarded. With the number of endpoints it determines a [`ClassId`] and a chain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kind {
    /// Whether the frontend is a node port.
    pub(crate) node_port: bool,
    /// Whether the Service has session affinity.
    pub(crate) sticky: bool,
    /// The endpoints and the source address.
    pub(crate) selection: Selection,
}

/// The endpoints that receive a frontend's traffic, and whether it is masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Selection {
    /// The cluster's endpoints, without masquerading.
    Pick,
    /// This node's endpoints, without masquerading.
    PickLocal,
    /// The cluster's endpoints, masqueraded.
    External,
    /// For pods the cluster's endpoints; for the node itself the cluster's endpoints, masqueraded; for other clients
    /// this node's endpoints, without masquerading.
    ExternalLocal,
}

/// A list of a frontend's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListId {
    /// The endpoints for traffic policy Cluster.
    Cluster,
    /// The endpoints for traffic policy Local.
    Local,
}

impl ListId {
    /// Both lists.
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Local];

    /// Returns the class id of the endpoint at `position` (from 0) in keys of map `endpoints` or `slots`.
    pub fn index(self, position: usize) -> ClassId {
        let minor = u16::try_from(position + 1).expect("bug: lists hold at most 65,535 endpoints");
        ClassId::new(self.major(), minor)
    }

    /// Returns the list and position of a class id; `None` if it is not an index. The inverse of [`ListId::index`].
    pub fn from_index(index: ClassId) -> Option<(Self, usize)> {
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
    /// Returns the class id of this kind for a number of endpoints.
    pub(crate) fn class(self, endpoints: usize) -> ClassId {
        let selection = match self.selection {
            Selection::Pick => 1,
            Selection::PickLocal => 2,
            Selection::External => 3,
            Selection::ExternalLocal => 4,
        };
        let endpoints = u16::try_from(endpoints).expect("bug: lists hold at most 65,535 endpoints");
        ClassId::new(selection + STICKY * u16::from(self.sticky) + NODE_PORT * u16::from(self.node_port), endpoints)
    }

    /// Returns the kind and the number of endpoints of a class id; `None` if it is not one of [`Kind::class`], whose
    /// inverse this is.
    pub(crate) fn from_class_id(class: ClassId) -> Option<(Self, usize)> {
        let (node_port, rest) = (class.major() & NODE_PORT != 0, class.major() & !NODE_PORT);
        let (sticky, rest) = (rest > STICKY, if rest > STICKY { rest - STICKY } else { rest });
        let selection = match rest {
            1 => Selection::Pick,
            2 => Selection::PickLocal,
            3 => Selection::External,
            4 => Selection::ExternalLocal,
            _ => return None,
        };
        Some((Self { node_port, sticky, selection }, class.minor().into()))
    }

    /// Returns the name of the chain for a number of endpoints.
    pub(crate) fn chain_name(self, endpoints: usize) -> Name {
        let selection = match self.selection {
            Selection::Pick => "pick",
            Selection::PickLocal => "pick-local",
            Selection::External => "external",
            Selection::ExternalLocal => "external-local",
        };
        let node_port = if self.node_port { "node-port-" } else { "" };
        let sticky = if self.sticky { "-sticky" } else { "" };
        format!("{node_port}{selection}{sticky}-{endpoints}").into()
    }

    /// Returns the list whose endpoints are counted.
    pub(crate) fn list(self) -> ListId {
        match self.selection {
            Selection::Pick | Selection::External | Selection::ExternalLocal => ListId::Cluster,
            Selection::PickLocal => ListId::Local,
        }
    }

    /// Returns the kind whose chain this kind's chain goes to, with the same number of endpoints.
    pub(crate) fn goto_target(self) -> Option<Self> {
        match self.selection {
            Selection::Pick | Selection::PickLocal => None,
            Selection::External | Selection::ExternalLocal => Some(Self { selection: Selection::Pick, ..self }),
        }
    }

    /// Returns the chain for a number of endpoints.
    pub(super) fn chain(self, endpoints: usize, context: &Context) -> ChainWithRules {
        let chain = Chain::new(self.chain_name(endpoints));
        match self.selection {
            Selection::Pick | Selection::PickLocal => chain.rules(self.pick(endpoints)),
            Selection::External => {
                chain.rules([Rule::new([Statement::MetaMarkOr(context.masquerade_mark), self.goto_pick(endpoints)])])
            }
            Selection::ExternalLocal => chain.rules(self.external_local(endpoints, context)),
        }
    }

    fn pick(self, endpoints: usize) -> Vec<Rule> {
        let count = u32::try_from(endpoints).expect("bug: lists hold at most 65,535 endpoints");
        let any = self.send_to_one_of(count);
        // A packet can see a transaction take effect between two lookups, and then request an endpoint past the end of
        // a list that has become shorter. The first endpoint exists as long as there is any.
        let first = (count > 1).then(|| self.send_to_one_of(1).comment("the list has just become shorter"));
        let affinity = self.sticky.then(|| {
            // All slots of the list have the same owner.
            let slot = self.slot_of_one_of(1);
            let previous = Statement::MetaPriorityMap { key: CLIENT.to_vec(), map: MapName::AFFINITY };
            let remember = Verdict::Jump(remember_chain(self.node_port));
            Rule::new(slot.into_iter().chain([previous, remember.into()]).collect::<Vec<_>>())
                .comment("the endpoint that the client had last, if it is still there")
        });
        affinity.into_iter().chain([any]).chain(first).collect()
    }

    fn send_to_one_of(self, count: u32) -> Rule {
        if self.sticky {
            let remember = Verdict::Jump(remember_chain(self.node_port));
            Rule::new(self.slot_of_one_of(count).into_iter().chain([remember.into()]).collect::<Vec<_>>())
        } else {
            Rule::new([
                self.one_of(count),
                Statement::DnatMap { key: index_key(self.node_port), map: MapName::ENDPOINTS },
            ])
        }
    }

    fn one_of(self, count: u32) -> Statement {
        Statement::MetaPriorityNumgen { count, first: self.list().index(0) }
    }

    fn slot_of_one_of(self, count: u32) -> [Statement; 2] {
        let slot = Statement::MetaPriorityMap { key: index_key(self.node_port), map: MapName::SLOTS };
        [self.one_of(count), slot]
    }

    fn external_local(self, endpoints: usize, context: &Context) -> Vec<Rule> {
        let pods = context.match_local_pods(true).map(|pods| {
            Rule::new([pods.into(), self.goto_pick(endpoints)]).comment("pods are served as by a load balancer")
        });
        let node = Rule::new([
            Match::FibSaddrLocal.into(),
            Statement::MetaMarkOr(context.masquerade_mark),
            self.goto_pick(endpoints),
        ])
        .comment("so is the node itself");
        let key = frontend_fields(self.node_port).to_vec();
        let local = Rule::new([
            Statement::MetaPriorityMap { key, map: MapName::LOCAL_SERVICES },
            Statement::Vmap { key: vec![Field::MetaPriority], map: MapName::LOCAL_DISPATCH },
        ])
        .comment("others stay on this node");
        pods.into_iter().chain([node, local]).collect()
    }

    fn goto_pick(self, endpoints: usize) -> Statement {
        Verdict::Goto(Self { selection: Selection::Pick, ..self }.chain_name(endpoints)).into()
    }
}

/// Returns the chain that forwards a client to the endpoint whose slot is the priority, and updates the affinity map.
pub(super) fn remember_chain(node_port: bool) -> Name {
    Name::fixed(if node_port { "node-port-remember" } else { "remember" })
}

/// Returns the key of an index or slot of a frontend.
pub(super) fn index_key(node_port: bool) -> Vec<Field> {
    frontend_fields(node_port).into_iter().chain([Field::MetaPriority]).collect()
}

/// The key of the affinity map, while the priority is one of the client's possible slots. `nft` parses a masked field
/// only at the first position of a key.
pub(super) const CLIENT: [Field; 2] = [Field::SlotOwner, Field::Saddr];

/// The difference of the class ids with and without session affinity.
const STICKY: u16 = 4;
/// The bit that distinguishes node ports: the first hexadecimal digit.
const NODE_PORT: u16 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_unique_class_id_and_chain() {
        let (mut classes, mut names) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        for node_port in [false, true] {
            for sticky in [false, true] {
                for selection in [Selection::Pick, Selection::PickLocal, Selection::External, Selection::ExternalLocal]
                {
                    let kind = Kind { node_port, sticky, selection };
                    assert_eq!(Kind::from_class_id(kind.class(300)), Some((kind, 300)));
                    assert!(classes.insert(kind.class(300)) && names.insert(kind.chain_name(300)));
                }
            }
        }
        assert_eq!(Kind::from_class_id(ClassId::new(9, 1)), None);
        assert_eq!(Kind::from_class_id(ClassId::new(0x10, 1)), None);
    }

    #[test]
    fn index_encodes_list_and_position() {
        for list in ListId::ALL {
            assert_eq!(ListId::from_index(list.index(0)), Some((list, 0)));
            assert_eq!(ListId::from_index(list.index(65_534)), Some((list, 65_534)));
        }
        assert_eq!(ListId::from_index(ClassId::new(1, 0)), None);
        assert_eq!(ListId::from_index(ClassId::new(0x8a3f, 1)), None);
    }
}
