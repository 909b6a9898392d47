//! Problems of the node and of its objects that the proxy cannot solve: `ferroute status`, `ferroute doctor` and a metric show them while
//! they last.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_config::Resolved;
use ferroute_core::{DataplaneError, IpFamily, LocalTrafficDetector, NodeView, error_chain};
use ipnet::IpNet;

use super::{FamilySynced, Observer};

/// The current problems, with a sentence for each. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems(Arc<Mutex<Current>>);

#[derive(Debug, Default)]
struct Current {
    of_node: BTreeMap<Problem, String>,
    /// Problems of the source and its objects, by what identifies each.
    of_source: BTreeMap<String, String>,
}

/// A kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    /// An IP family of the node is not served.
    DisabledFamily(IpFamily),
    /// The last sync of an IP family failed.
    FailedSync(IpFamily),
    /// Another service proxy runs on the node.
    OtherProxy,
    /// Another program changes the rules again and again.
    ContestedRules,
}

impl Problem {
    const ALL: [Self; 6] = [
        Self::DisabledFamily(IpFamily::V4),
        Self::DisabledFamily(IpFamily::V6),
        Self::FailedSync(IpFamily::V4),
        Self::FailedSync(IpFamily::V6),
        Self::OtherProxy,
        Self::ContestedRules,
    ];

    /// Returns the name in metrics.
    fn as_str(self) -> &'static str {
        match self {
            Self::DisabledFamily(IpFamily::V4) => "ipv4_disabled",
            Self::DisabledFamily(IpFamily::V6) => "ipv6_disabled",
            Self::FailedSync(IpFamily::V4) => "ipv4_sync_failed",
            Self::FailedSync(IpFamily::V6) => "ipv6_sync_failed",
            Self::OtherProxy => "other_proxy",
            Self::ContestedRules => "contested_rules",
        }
    }

    /// Reports whether Services do not work as long as the problem lasts.
    fn is_fatal(self) -> bool {
        matches!(self, Self::DisabledFamily(_))
    }
}

impl Problems {
    /// Sets or ends a problem. Returns whether that is a change.
    pub(crate) fn set(&self, problem: Problem, text: Option<String>) -> bool {
        let problems = &mut self.lock().of_node;
        match text {
            Some(text) => problems.insert(problem, text.clone()) != Some(text),
            None => problems.remove(&problem).is_some(),
        }
    }

    /// Sets a problem of the source or one of its objects.
    pub(crate) fn set_of_source(&self, key: &str, text: &str) {
        let problems = &mut self.lock().of_source;
        if problems.len() < MAX_OF_SOURCE || problems.contains_key(key) {
            problems.insert(key.to_owned(), text.to_owned());
        }
    }

    /// Ends a problem of the source or one of its objects, if there is one. Most changes are of valid objects, so the key is created only
    /// while there are problems.
    pub(crate) fn end_of_source(&self, key: impl FnOnce() -> String) {
        let problems = &mut self.lock().of_source;
        if !problems.is_empty() {
            problems.remove(&key());
        }
    }

    /// Reports whether there is a problem of this kind.
    pub(crate) fn has(&self, problem: Problem) -> bool {
        self.lock().of_node.contains_key(&problem)
    }

    /// Reports whether some Services do not work because of a problem.
    pub(crate) fn has_fatal(&self) -> bool {
        self.lock().of_node.keys().any(|problem| problem.is_fatal())
    }

    /// Returns the sentences, those of the source up to a number.
    pub(crate) fn texts(&self) -> Vec<String> {
        let current = self.lock();
        current.of_node.values().cloned().chain(current.texts_of_source()).collect()
    }

    /// Returns the sentences of the source, up to a number.
    pub(crate) fn texts_of_source(&self) -> Vec<String> {
        self.lock().texts_of_source().collect()
    }

    /// Returns the name of each kind, and whether there is such a problem.
    pub(crate) fn kinds(&self) -> Vec<(&'static str, bool)> {
        let Current { of_node, of_source } = &*self.lock();
        let kinds = Problem::ALL.iter().map(|problem| (problem.as_str(), of_node.contains_key(problem)));
        kinds.chain([(SOURCE, !of_source.is_empty())]).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn texts_of_source(&self) -> impl Iterator<Item = String> + '_ {
        let more = self.of_source.len().saturating_sub(MAX_TEXTS_OF_SOURCE);
        let more = (more > 0).then(|| format!("{more} more of the source of objects: see the log"));
        self.of_source.values().take(MAX_TEXTS_OF_SOURCE).cloned().chain(more)
    }
}

impl Observer for Problems {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        self.set(Problem::FailedSync(sync.table.family), None);
    }

    fn on_failure(&mut self, family: IpFamily, error: &DataplaneError) {
        let text = format!("{family} rules are not up to date, because the last sync failed: {}", error_chain(error));
        self.set(Problem::FailedSync(family), Some(text));
    }
}

/// The name of problems of the source in metrics.
const SOURCE: &str = "source";
/// Maximum number of problems of the source that are remembered, and of those that are shown.
const MAX_OF_SOURCE: usize = 1_000;
const MAX_TEXTS_OF_SOURCE: usize = 10;

/// Returns the IP families of the node or the configuration that are not served.
pub(crate) fn disabled_families(resolved: &Resolved, node: &NodeView, served: &[IpFamily]) -> Vec<IpFamily> {
    let configured: &[IpNet] = match &resolved.settings.detector {
        LocalTrafficDetector::ClusterCidr(networks) => networks,
        _ => &[],
    };
    let networks = configured.iter().chain(&node.pod_cidrs).map(IpNet::addr);
    let wanted: Vec<IpFamily> = node.addresses.iter().copied().chain(networks).map(IpFamily::of).collect();
    IpFamily::BOTH.into_iter().filter(|family| wanted.contains(family) && !served.contains(family)).collect()
}

#[cfg(test)]
mod tests {
    use ferroute_config::KubeProxyConfiguration;

    use super::*;

    #[test]
    fn only_families_of_the_node_or_the_configuration_can_be_missing() {
        let resolved = |cidr: &str| {
            let config = KubeProxyConfiguration { cluster_cidr: cidr.to_owned(), ..KubeProxyConfiguration::default() };
            config.defaulted().resolve().unwrap()
        };
        let node = |addresses: &[&str], networks: &[&str]| NodeView {
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            pod_cidrs: networks.iter().map(|network| network.parse().unwrap()).collect(),
            ..NodeView::default()
        };
        let ipv4 = node(&["192.0.2.1"], &["10.244.0.0/24"]);
        assert_eq!(disabled_families(&resolved(""), &ipv4, &[IpFamily::V4]), []);
        assert_eq!(disabled_families(&resolved("10.244.0.0/16,fd00::/48"), &ipv4, &[IpFamily::V4]), [IpFamily::V6]);
        let dual = node(&["192.0.2.1", "2001:db8::1"], &[]);
        assert_eq!(disabled_families(&resolved(""), &dual, &[IpFamily::V4]), [IpFamily::V6]);
        assert_eq!(disabled_families(&resolved(""), &dual, &[IpFamily::V6]), [IpFamily::V4]);
        assert_eq!(disabled_families(&resolved(""), &dual, &IpFamily::BOTH), []);
        let pods = node(&["192.0.2.1"], &["fd00::/64"]);
        assert_eq!(disabled_families(&resolved(""), &pods, &[IpFamily::V4]), [IpFamily::V6]);
    }

    #[test]
    fn problems_last_until_they_are_ended() {
        let problems = Problems::default();
        assert!(problems.set(Problem::OtherProxy, Some("another proxy".to_owned())));
        assert!(!problems.set(Problem::OtherProxy, Some("another proxy".to_owned())));
        assert!(problems.has(Problem::OtherProxy) && !problems.has_fatal());
        assert!(problems.set(Problem::DisabledFamily(IpFamily::V6), Some("no IPv6".to_owned())));
        assert!(problems.has_fatal());
        assert_eq!(problems.texts(), ["no IPv6", "another proxy"]);
        let present: Vec<_> = problems.kinds().into_iter().filter(|(_, is_present)| *is_present).collect();
        assert_eq!(present, [("ipv6_disabled", true), ("other_proxy", true)]);
        assert!(problems.set(Problem::OtherProxy, None) && !problems.set(Problem::OtherProxy, None));
    }

    #[test]
    fn problems_of_the_source_are_shown_up_to_a_number() {
        let problems = Problems::default();
        problems.set(Problem::OtherProxy, Some("another proxy".to_owned()));
        for number in 0..12 {
            problems.set_of_source(&format!("{number:02}"), &format!("problem {number}"));
        }
        let texts = problems.texts();
        assert_eq!(texts.len(), 12);
        assert_eq!([&texts[0], &texts[1]], ["another proxy", "problem 0"]);
        assert_eq!(texts[11], "2 more of the source of objects: see the log");
        assert!(!problems.has_fatal() && problems.kinds().contains(&("source", true)));
        (0..12).for_each(|number| problems.end_of_source(|| format!("{number:02}")));
        assert!(problems.texts().len() == 1 && problems.kinds().contains(&("source", false)));
    }
}
