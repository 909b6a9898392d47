//! The owners of addresses: pods, nodes and other machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ferroute_api::Pod;
use ferroute_core::{FrontendKind, IpFamily, NamespacedName, Protocol, ServicePortName, ServiceTable};
use ferroute_demo::{
    layout::{NodeId, OUTSIDE, outside_addresses},
    plan::ClusterPlan,
};
use ferroute_proxy::recording::objects::OTHER_NODE;
use ferroute_source::Event;
use ferroute_trace::Host;

/// Parses the name of a Service: `NAME`, in the default namespace `namespace`, or `NAMESPACE/NAME`, each optionally after
/// `service/` or `svc/`, or a DNS name: `NAME.NAMESPACE`, `NAME.NAMESPACE.svc` or `NAME.NAMESPACE.svc.DOMAIN`.
///
/// # Errors
/// If the text has another form.
pub fn service_name(text: &str, namespace: &str) -> Result<NamespacedName, String> {
    let name = match text.split('/').collect::<Vec<_>>().as_slice() {
        // Names of Services and namespaces have no dots.
        [name] | ["service" | "services" | "svc", name] => match name.trim_end_matches('.').split_once('.') {
            Some((name, rest)) => match rest.split_once('.').unwrap_or((rest, "svc")) {
                (namespace, "svc") => NamespacedName::new(namespace, name),
                (namespace, domain) if domain.starts_with("svc.") => NamespacedName::new(namespace, name),
                _ if text.parse::<IpAddr>().is_ok() => {
                    return Err(format!("invalid Service {text:?}: it is an address, not a name"));
                }
                _ => return Err(format!("invalid Service {text:?}: a DNS name must be NAME.NAMESPACE.svc.DOMAIN")),
            },
            None => NamespacedName::new(namespace, name),
        },
        ["service" | "services" | "svc", namespace, name] | [namespace, name] => NamespacedName::new(namespace, name),
        _ => {
            return Err(format!(
                "invalid Service {text:?}: must be NAME, NAMESPACE/NAME, svc/NAME, svc/NAMESPACE/NAME or NAME.NAMESPACE.svc"
            ));
        }
    };
    if name.namespace().is_empty() || name.name().is_empty() {
        return Err(format!("invalid Service {text:?}: the name is empty"));
    }
    Ok(name)
}

/// Returns the name of a pod or node without its type, in the form that [`Names::addresses`] accepts: `pod/NAME` is a
/// pod in `namespace`, if one is given.
pub fn machine_name(text: &str, namespace: Option<&str>) -> String {
    let (kind, name) = match text.split_once('/') {
        Some((kind @ ("pod" | "pods" | "po" | "node" | "nodes" | "no"), name)) if !name.is_empty() => (kind, name),
        _ => ("", text),
    };
    match namespace {
        Some(namespace) if kind.starts_with('p') && !name.contains('/') => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    }
}

/// The owners of addresses, and the nodes on which they are.
#[derive(Debug, Default)]
pub struct Names {
    owners: BTreeMap<IpAddr, AddressOwner>,
    /// Addresses that do not identify their owner to other hosts, such as those of a node's bridge.
    secondary: BTreeSet<IpAddr>,
    /// Nodes of pods, as far as known.
    nodes: BTreeMap<IpAddr, Arc<str>>,
}

/// The owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressOwner {
    /// A pod.
    Pod {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// A node.
    Node(String),
    /// A machine that is not a node.
    Machine(&'static str),
}

impl Names {
    /// Returns the owner of an address.
    pub fn owner(&self, address: IpAddr) -> Option<&AddressOwner> {
        self.owners.get(&address)
    }

    /// Returns the node on which a pod with this address runs, if known.
    pub fn node(&self, address: IpAddr) -> Option<&str> {
        self.nodes.get(&address).map(AsRef::as_ref)
    }

    /// Returns the sorted names of all nodes that have an address or run a pod.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let own = self.owners.values().filter_map(|owner| match owner {
            AddressOwner::Node(name) => Some(name.as_str()),
            _ => None,
        });
        own.chain(self.nodes.values().map(AsRef::as_ref)).collect()
    }

    /// Returns all owners with their addresses, in the order of their names. Primary addresses come before secondary
    /// ones, each part sorted.
    pub fn owners(&self) -> BTreeMap<&AddressOwner, Vec<IpAddr>> {
        let mut owners: BTreeMap<&AddressOwner, Vec<IpAddr>> = BTreeMap::new();
        for (address, owner) in &self.owners {
            owners.entry(owner).or_default().push(*address);
        }
        owners.values_mut().for_each(|addresses| addresses.sort_by_key(|address| self.secondary.contains(address)));
        owners
    }

    /// Adds a machine outside of the cluster. Addresses that have an owner keep it.
    pub fn add_machine(&mut self, name: &'static str, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            self.owners.entry(address).or_insert(AddressOwner::Machine(name));
        }
    }

    /// Returns the sorted addresses of a pod or machine. A pod can be given as `NAME` or `NAMESPACE/NAME`; pods in several
    /// namespaces may have the same name, so the addresses may have different owners.
    pub fn addresses(&self, name: &str) -> Vec<(IpAddr, &AddressOwner)> {
        self.owners.iter().filter(|(_, owner)| owner.has_name(name)).map(|(address, owner)| (*address, owner)).collect()
    }

    pub(super) fn add_pod(&mut self, pod: &Pod) {
        // Its addresses are the node's.
        if pod.spec.host_network {
            return;
        }
        let addresses = pod.status.pod_ips.iter().map(|address| &address.ip).chain(&pod.status.pod_ip);
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        for address in addresses.filter_map(|text| text.parse().ok()) {
            self.owners.insert(address, AddressOwner::Pod { namespace: namespace.clone(), name: name.clone() });
            if let Some(node) = pod.spec.node_name.as_deref().filter(|node| !node.is_empty()) {
                self.nodes.insert(address, node.into());
            }
        }
    }

    /// Adds the pods and machines of a demo.
    pub fn add_demo(&mut self, plan: &ClusterPlan) {
        for pod in plan.pods.iter().filter(|pod| !pod.host_network) {
            let owner = || AddressOwner::Pod { namespace: pod.namespace.clone(), name: pod.name.clone() };
            self.owners.extend(pod.addresses.iter().map(|address| (address, owner())));
            self.nodes.extend(pod.addresses.iter().map(|address| (address, pod.node.name().into())));
        }
        for node in NodeId::ALL {
            let bridge = node.bridge_addresses(plan.ipv6);
            self.secondary.extend(bridge.iter());
            let addresses = node.addresses(plan.ipv6).iter().chain(bridge.iter());
            self.owners.extend(addresses.map(|address| (address, AddressOwner::Node(node.name().to_owned()))));
        }
        self.add_machine(OUTSIDE, outside_addresses(plan.ipv6).iter());
    }

    pub(super) fn add_event(&mut self, event: &Event) {
        match event {
            Event::NodeApplied(node) => {
                let addresses = node.status.addresses.iter().filter_map(|address| address.address.parse().ok());
                self.owners.extend(addresses.map(|address| (address, AddressOwner::Node(node.metadata.name.clone()))));
            }
            Event::SliceApplied(slice) => {
                for endpoint in &slice.endpoints {
                    let addresses = || endpoint.addresses.iter().filter_map(|text| text.parse().ok());
                    if let Some(node) = endpoint.node_name.as_deref().filter(|name| *name != OTHER_NODE) {
                        let node: Arc<str> = node.into();
                        self.nodes.extend(addresses().map(|address| (address, Arc::clone(&node))));
                    }
                    let Some(pod) = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod") else {
                        continue;
                    };
                    let (namespace, name) = (slice.metadata.namespace.clone(), pod.name.clone());
                    let owner = AddressOwner::Pod { namespace, name };
                    for address in addresses() {
                        // A pod in the host network has the node's address.
                        self.owners.entry(address).or_insert_with(|| owner.clone());
                    }
                }
            }
            _ => {}
        }
    }
}

impl AddressOwner {
    fn has_name(&self, text: &str) -> bool {
        match self {
            Self::Pod { namespace, name } => match text.split_once('/') {
                Some(namespaced) => namespaced == (namespace, name),
                None => text == name,
            },
            Self::Node(name) => text == name,
            Self::Machine(name) => text == *name,
        }
    }
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Machine(name) => f.write_str(name),
        }
    }
}

/// Returns the service port of which `address` is a frontend. Every address of the host is assumed to serve node ports.
pub(super) fn frontend<'a>(
    table: &'a ServiceTable,
    host: &Host,
    address: SocketAddr,
    protocol: Protocol,
) -> Option<(&'a ServicePortName, FrontendKind)> {
    debug_assert_eq!(table.family, IpFamily::of(address.ip()), "bug: the other family's table");
    let mut node_port = None;
    for (name, entry) in table.entries.iter().filter(|(name, _)| name.protocol == protocol) {
        let mut claims = entry.service.claims(protocol);
        match claims.find(|(_, frontend)| frontend.matches(address, |ip| host.owns(ip))) {
            Some((FrontendKind::NodePort, _)) => node_port = Some((name, FrontendKind::NodePort)),
            Some((kind, _)) => return Some((name, kind)),
            None => {}
        }
    }
    node_port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_one_grammar() {
        let parse = |text| service_name(text, "shop").map(|name| name.to_string()).ok();
        for text in ["web", "shop/web", "svc/web", "service/shop/web", "services/web"] {
            assert_eq!(parse(text).as_deref(), Some("shop/web"), "{text}");
        }
        assert_eq!(parse("svc/other/web").as_deref(), Some("other/web"));
        for text in ["web.other", "svc/web.other.svc", "web.other.svc.cluster.local", "web.other.svc.k8s.example."] {
            assert_eq!(parse(text).as_deref(), Some("other/web"), "{text}");
        }
        assert_eq!([parse("10.96.0.10"), parse("web.other.pod.cluster.local"), parse("web..svc")], [const { None }; 3]);
        assert_eq!([parse(""), parse("/web"), parse("shop/"), parse("a/b/c"), parse("svc/a/b/c")], [const { None }; 5]);
    }

    #[test]
    fn machines_can_be_named_with_their_kind() {
        assert_eq!(machine_name("pod/web-1", Some("shop")), "shop/web-1");
        assert_eq!(machine_name("pod/web-1", None), "web-1");
        assert_eq!(machine_name("po/other/web-1", Some("shop")), "other/web-1");
        assert_eq!(machine_name("node/node-1", Some("shop")), "node-1");
        assert_eq!(machine_name("shop/web-1", None), "shop/web-1");
    }
}
