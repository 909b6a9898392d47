use ferroute_source::Resource;

use crate::kinds::{group, plural};

/// What a role has to allow, so that requests are answered; see `deploy/kubernetes/rbac.yaml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural of the kind.
    pub resource: &'static str,
    /// What is done with it.
    pub verb: &'static str,
}

impl Permission {
    /// All that this crate asks for, but for [`Permission::of_startup_taint`].
    pub fn all() -> impl Iterator<Item = Self> {
        let verbs = |resource| ["list", "watch"].map(|verb| (resource, verb));
        let asked = Resource::ALL.into_iter().flat_map(verbs);
        let asked = asked.map(|(resource, verb)| Self { group: group(resource), resource: plural(resource), verb });
        asked.chain(["create", "patch"].map(Self::on_events))
    }

    /// What taking a taint from the Node needs beside.
    pub fn of_startup_taint() -> [Self; 2] {
        ["get", "patch"].map(Self::on_nodes)
    }

    /// For something done with Events.
    pub(crate) fn on_events(verb: &'static str) -> Self {
        Self { group: "events.k8s.io", resource: "events", verb }
    }

    /// For something done with Nodes one by one.
    pub(crate) fn on_nodes(verb: &'static str) -> Self {
        Self { group: group(Resource::Nodes), resource: plural(Resource::Nodes), verb }
    }
}
