//! Plans the pods of Deployments and Pods: nodes, addresses and ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use ferroute_api::{Container, Deployment, ObjectMeta, Pod, PodSpec};
use ferroute_core::{
    Protocol,
    parse::{check_dns_label, check_dns_subdomain},
};

use super::{
    PlannedPod, PodPort, Workload,
    error::{ObjectName, PlanError, Problem, Resource},
    pool::Pool,
};
use crate::layout::{LAN, NodeId, OUTSIDE};

/// Plans all pods of the workloads, in their order. Pods in `previous` keep their addresses.
///
/// A pod gets the address in its YAML (`status.podIP`, if in its node's pod network). Otherwise each workload of a node has a
/// block of ten addresses, the first from .4, the next from .14, so that scaling one workload does not affect the others.
/// Pods beyond their block get any free address.
pub(super) fn place(workloads: &[Workload], previous: &[PlannedPod], ipv6: bool) -> Result<Vec<PlannedPod>, PlanError> {
    let mut drafts = Vec::new();
    let mut blocks = BTreeMap::new();
    for workload in workloads {
        let template = Template::new(workload)?;
        // A Deployment without replicas keeps its block, too.
        let block = (!template.host_network)
            .then(|| *blocks.entry(template.node).and_modify(|block| *block += 1).or_insert(0_usize));
        drafts.extend(template.drafts(block));
    }
    check_names(&drafts)?;
    assign_addresses(&mut drafts, previous)?;
    Ok(drafts.into_iter().map(|draft| draft.finish(ipv6)).collect())
}

/// The common properties of a workload's pods.
struct Template {
    owner: ObjectName,
    /// The names of the pods.
    names: Vec<String>,
    node: NodeId,
    host_network: bool,
    labels: BTreeMap<String, String>,
    ports: Vec<PodPort>,
    /// The address in the YAML of a single pod.
    requested: Option<Ipv4Addr>,
}

/// A pod whose address is to be assigned.
struct Draft {
    owner: ObjectName,
    pod: PlannedPod,
    requested: Option<Ipv4Addr>,
    /// The preferred host number, if it is free.
    preferred: Option<u8>,
    address: Option<Ipv4Addr>,
}

impl Template {
    fn new(workload: &Workload) -> Result<Self, PlanError> {
        match workload {
            Workload::Pod(pod) => Self::from_pod(pod),
            Workload::Deployment(deployment) => Self::from_deployment(deployment),
        }
    }

    fn from_pod(pod: &Pod) -> Result<Self, PlanError> {
        let metadata = &pod.metadata;
        let owner = object_name("Pod", metadata);
        let mut template = Self::read(owner, vec![metadata.name.clone()], metadata, &pod.spec, "spec")?;
        let address = pod.status.pod_ip.as_deref().and_then(|ip| ip.parse::<Ipv4Addr>().ok());
        // An address of another network belongs to the cluster that the YAML comes from.
        template.requested =
            address.filter(|ip| (2..=254).any(|host| template.node.pod_addresses(host, false).v4 == *ip));
        Ok(template)
    }

    fn from_deployment(deployment: &Deployment) -> Result<Self, PlanError> {
        let owner = object_name("Deployment", &deployment.metadata);
        let spec = &deployment.spec;
        let wanted = &spec.selector.match_labels;
        if wanted.is_empty() {
            return Err(owner.field_error("spec.selector.matchLabels", Problem::Missing));
        }
        if !super::selects(wanted, &spec.template.metadata.labels) {
            return Err(owner.field_error("spec.selector.matchLabels", Problem::SelectorMismatch));
        }
        let count = spec.replicas.unwrap_or(1);
        if !(0..=MAX_REPLICAS).contains(&count) {
            let problem = Problem::OutOfRange { got: count.into(), min: 0, max: MAX_REPLICAS.into() };
            return Err(owner.field_error("spec.replicas", problem));
        }
        let names = (1..=count).map(|n| format!("{}-{n}", owner.name)).collect();
        Self::read(owner, names, &spec.template.metadata, &spec.template.spec, "spec.template.spec")
    }

    fn read(
        owner: ObjectName,
        names: Vec<String>,
        metadata: &ObjectMeta,
        spec: &PodSpec,
        field: &str,
    ) -> Result<Self, PlanError> {
        let node = match spec.node_name.as_deref() {
            None | Some("") => NodeId::default(),
            Some(name) => NodeId::from_name(name).ok_or_else(|| {
                let problem = Problem::Unsupported { got: name.to_owned(), want: "node or node2" };
                owner.field_error(format!("{field}.nodeName"), problem)
            })?,
        };
        let ports = ports(&owner, &spec.containers, field)?;
        let labels = metadata.labels.clone();
        Ok(Self { owner, names, node, host_network: spec.host_network, labels, ports, requested: None })
    }

    /// Returns the pods; `block` is the index of the workload on its node.
    fn drafts(self, block: Option<usize>) -> impl Iterator<Item = Draft> {
        let Self { owner, names, node, host_network, labels, ports, requested } = self;
        names.into_iter().enumerate().map(move |(i, name)| Draft {
            pod: PlannedPod {
                namespace: owner.namespace.clone(),
                name,
                node,
                host_network,
                addresses: node.addresses(false),
                labels: labels.clone(),
                ports: ports.clone(),
            },
            owner: owner.clone(),
            requested,
            preferred: block.and_then(|block| preferred(block, i)),
            address: None,
        })
    }
}

impl Draft {
    fn lacks_address(&self) -> bool {
        !self.pod.host_network && self.address.is_none()
    }

    fn finish(self, ipv6: bool) -> PlannedPod {
        let node = self.pod.node;
        let addresses = match self.address {
            Some(address) => node.pod_addresses(address.octets()[3], ipv6),
            None => node.addresses(ipv6),
        };
        PlannedPod { addresses, ..self.pod }
    }
}

fn object_name(kind: &'static str, metadata: &ObjectMeta) -> ObjectName {
    ObjectName { kind, namespace: metadata.namespace.clone(), name: metadata.name.clone() }
}

fn ports(owner: &ObjectName, containers: &[Container], field: &str) -> Result<Vec<PodPort>, PlanError> {
    let mut ports = Vec::new();
    let mut seen = BTreeSet::new();
    for (c, container) in containers.iter().enumerate() {
        for (p, port) in container.ports.iter().enumerate() {
            let field = |name: &str| format!("{field}.containers[{c}].ports[{p}].{name}");
            let got = port.container_port;
            let number = u16::try_from(got).ok().filter(|number| *number != 0).ok_or_else(|| {
                let problem = Problem::OutOfRange { got: got.into(), min: 1, max: u16::MAX.into() };
                owner.field_error(field("containerPort"), problem)
            })?;
            let protocol: Protocol = port.protocol.as_deref().unwrap_or("TCP").parse().map_err(|_| {
                let got = port.protocol.clone().unwrap_or_default();
                owner.field_error(field("protocol"), Problem::Unsupported { got, want: "TCP, UDP or SCTP" })
            })?;
            if seen.insert((number, protocol)) {
                ports.push(PodPort { name: port.name.clone(), number, protocol });
            }
        }
    }
    Ok(ports)
}

/// Checks names: they become names of files, network namespaces and machines.
fn check_names(drafts: &[Draft]) -> Result<(), PlanError> {
    let mut names = Pool::new();
    for Draft { owner, pod: PlannedPod { namespace, name, .. }, .. } in drafts {
        let is_machine = NodeId::from_name(name).is_some() || [LAN, OUTSIDE].contains(&name.as_str());
        let unique = if is_machine {
            Err(Problem::Reserved(name.clone()))
        } else {
            check_dns_subdomain(name)
                .map_err(Problem::InvalidName)
                .and_then(|()| names.reserve(format!("Pod {namespace}/{name}"), owner))
        };
        unique.map_err(|problem| owner.field_error("metadata.name", problem))?;
        let namespace = check_dns_label(namespace).map_err(Problem::InvalidName);
        namespace.map_err(|problem| owner.field_error("metadata.namespace", problem))?;
    }
    Ok(())
}

fn assign_addresses(drafts: &mut [Draft], previous: &[PlannedPod]) -> Result<(), PlanError> {
    let mut pool = Pool::new();
    for draft in drafts.iter_mut() {
        if let Some(ip) = draft.requested {
            pool.reserve(ip, &draft.owner).map_err(|problem| draft.owner.field_error("status.podIP", problem))?;
            draft.address = Some(ip);
        }
    }
    for round in [Round::Previous, Round::Preferred, Round::Any] {
        for draft in drafts.iter_mut().filter(|draft| draft.lacks_address()) {
            draft.address = pool.assign(round.candidates(draft, previous), &draft.owner);
        }
    }
    let unassigned = drafts.iter().find(|draft| draft.lacks_address());
    unassigned.map_or(Ok(()), |draft| {
        Err(draft.owner.field_error("status.podIP", Problem::Exhausted { resource: Resource::PodAddress }))
    })
}

/// A round of address assignment. Earlier rounds have precedence for all pods.
#[derive(Clone, Copy)]
enum Round {
    /// Addresses of the previous plan.
    Previous,
    /// Preferred addresses.
    Preferred,
    /// Any free address.
    Any,
}

impl Round {
    fn candidates(self, draft: &Draft, previous: &[PlannedPod]) -> Vec<Ipv4Addr> {
        let address = |host| draft.pod.node.pod_addresses(host, false).v4;
        match self {
            Self::Previous => {
                let is_same = |old: &&PlannedPod| {
                    let key = |pod: &PlannedPod| (pod.short_name(), pod.node, pod.host_network);
                    key(old) == key(&draft.pod)
                };
                previous.iter().find(is_same).map(|old| old.addresses.v4).into_iter().collect()
            }
            Self::Preferred => draft.preferred.map(address).into_iter().collect(),
            Self::Any => POD_HOSTS.map(address).collect(),
        }
    }
}

/// Returns the preferred host number of a pod: `block` is the index of the workload on its node, `index` that of the pod.
fn preferred(block: usize, index: usize) -> Option<u8> {
    let host = usize::from(*POD_HOSTS.start()) + block * BLOCK_SIZE + index;
    u8::try_from(host).ok().filter(|host| index < BLOCK_SIZE && POD_HOSTS.contains(host))
}

/// The number of addresses in a workload's block.
const BLOCK_SIZE: usize = 10;

/// The host numbers of pods. The bridge is .1; starting from .4 is typical of small single-node clusters.
const POD_HOSTS: std::ops::RangeInclusive<u8> = 4..=254;

/// The maximum number of replicas, more than fit on a node.
const MAX_REPLICAS: i32 = 300;
