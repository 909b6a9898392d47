use ferroute_source::Resource;

use crate::kinds::{group, plural};

/// What a role has to allow, so that requests are answered; see `deploy/kubernetes/rbac.yaml`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural of the kind.
    pub resource: &'static str,
    /// What is done with it.
    pub verb: &'static str,
}

impl Permission {
    /// All that this crate asks for. Objects are not asked for one by one, so nothing is to be got (`get`).
    pub fn all() -> impl Iterator<Item = Self> {
        let verbs = |resource| ["list", "watch"].map(|verb| (resource, verb));
        let asked = Resource::ALL.into_iter().flat_map(verbs);
        asked.map(|(resource, verb)| Self { group: group(resource), resource: plural(resource), verb })
    }
}
