//! From Deployments and Pods to single pods with a node, addresses and ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use ferroute_api::{Container, Deployment, ObjectMeta, Pod, PodSpec};
use ferroute_core::{
    Protocol,
    parse::{check_label, check_subdomain},
};

use super::{
    PlannedPod, PodPort, Workload,
    error::{ObjectName, PlanError, Problem, Resource},
    pool::Pool,
};
use crate::layout::{LAN, NodeId, OUTSIDE};

/// All pods of the workloads, in their order. Pods that were there in `previous` keep their addresses.
///
/// A pod that its YAML gives an address (`status.podIP`, of its node's pod network) has that one. Otherwise each
/// workload of a node has ten numbers to itself, the first one from .4 on, the next from .14 on, so that scaling one
/// does not move the others; pods beyond that take whatever is free.
pub(super) fn place(workloads: &[Workload], previous: &[PlannedPod], ipv6: bool) -> Result<Vec<PlannedPod>, PlanError> {
    let mut drafts = Vec::new();
    let mut blocks = BTreeMap::new();
    for workload in workloads {
        let template = Template::new(workload)?;
        // A Deployment that is scaled down to nothing keeps its numbers too.
        let block = (!template.host_network)
            .then(|| *blocks.entry(template.node).and_modify(|block| *block += 1).or_insert(0_usize));
        drafts.extend(template.drafts(block));
    }
    check_names(&drafts)?;
    assign_addresses(&mut drafts, previous)?;
    Ok(drafts.into_iter().map(|draft| draft.finish(ipv6)).collect())
}

/// What the pods of a workload have in common.
struct Template {
    owner: ObjectName,
    /// Their names.
    names: Vec<String>,
    node: NodeId,
    host_network: bool,
    labels: BTreeMap<String, String>,
    ports: Vec<PodPort>,
    /// The address that the YAML gives to the one pod.
    asked_for: Option<Ipv4Addr>,
}

/// A pod on its way to having an address.
struct Draft {
    owner: ObjectName,
    pod: PlannedPod,
    asked_for: Option<Ipv4Addr>,
    /// The last number of the address that it gets if nobody else has it.
    preferred: Option<u8>,
    address: Option<Ipv4Addr>,
}

impl Template {
    fn new(workload: &Workload) -> Result<Self, PlanError> {
        match workload {
            Workload::Pod(pod) => Self::of_pod(pod),
            Workload::Deployment(deployment) => Self::of_deployment(deployment),
        }
    }

    fn of_pod(pod: &Pod) -> Result<Self, PlanError> {
        let metadata = &pod.metadata;
        let owner = object_name("Pod", metadata);
        let mut template = Self::read(owner, vec![metadata.name.clone()], metadata, &pod.spec, "spec")?;
        let given = pod.status.pod_ip.as_deref().and_then(|ip| ip.parse::<Ipv4Addr>().ok());
        // An address of another network comes from another cluster and says nothing about this one.
        template.asked_for =
            given.filter(|ip| (2..=254).any(|host| template.node.pod_addresses(host, false).v4 == *ip));
        Ok(template)
    }

    fn of_deployment(deployment: &Deployment) -> Result<Self, PlanError> {
        let owner = object_name("Deployment", &deployment.metadata);
        let spec = &deployment.spec;
        let wanted = &spec.selector.match_labels;
        if wanted.is_empty() {
            return Err(owner.unfit("spec.selector.matchLabels", Problem::Missing));
        }
        if !super::selects(wanted, &spec.template.metadata.labels) {
            return Err(owner.unfit("spec.selector.matchLabels", Problem::SelectorMismatch));
        }
        let count = spec.replicas.unwrap_or(1);
        if !(0..=MAX_REPLICAS).contains(&count) {
            let problem = Problem::OutOfRange { got: count.into(), min: 0, max: MAX_REPLICAS.into() };
            return Err(owner.unfit("spec.replicas", problem));
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
                owner.unfit(format!("{field}.nodeName"), problem)
            })?,
        };
        let ports = ports(&owner, &spec.containers, field)?;
        let labels = metadata.labels.clone();
        Ok(Self { owner, names, node, host_network: spec.host_network, labels, ports, asked_for: None })
    }

    /// Its pods; `block` is its position among the workloads of its node.
    fn drafts(self, block: Option<usize>) -> impl Iterator<Item = Draft> {
        let Self { owner, names, node, host_network, labels, ports, asked_for } = self;
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
            asked_for,
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
                owner.unfit(field("containerPort"), problem)
            })?;
            let protocol: Protocol = port.protocol.as_deref().unwrap_or("TCP").parse().map_err(|_| {
                let got = port.protocol.clone().unwrap_or_default();
                owner.unfit(field("protocol"), Problem::Unsupported { got, want: "TCP, UDP or SCTP" })
            })?;
            if seen.insert((number, protocol)) {
                ports.push(PodPort { name: port.name.clone(), number, protocol });
            }
        }
    }
    Ok(ports)
}

/// Names become those of files, network namespaces and machines, so they have to be what Kubernetes allows.
fn check_names(drafts: &[Draft]) -> Result<(), PlanError> {
    let mut names = Pool::new();
    for Draft { owner, pod: PlannedPod { namespace, name, .. }, .. } in drafts {
        let is_machine = NodeId::from_name(name).is_some() || [LAN, OUTSIDE].contains(&name.as_str());
        let unique = if is_machine {
            Err(Problem::Reserved(name.clone()))
        } else {
            check_subdomain(name)
                .map_err(Problem::NotAName)
                .and_then(|()| names.reserve(format!("Pod {namespace}/{name}"), owner))
        };
        unique.map_err(|problem| owner.unfit("metadata.name", problem))?;
        let namespace = check_label(namespace).map_err(Problem::NotAName);
        namespace.map_err(|problem| owner.unfit("metadata.namespace", problem))?;
    }
    Ok(())
}

fn assign_addresses(drafts: &mut [Draft], previous: &[PlannedPod]) -> Result<(), PlanError> {
    let mut pool = Pool::new();
    for draft in drafts.iter_mut() {
        if let Some(ip) = draft.asked_for {
            pool.reserve(ip, &draft.owner).map_err(|problem| draft.owner.unfit("status.podIP", problem))?;
            draft.address = Some(ip);
        }
    }
    for round in [Round::Before, Round::Preferred, Round::Any] {
        for draft in drafts.iter_mut().filter(|draft| draft.lacks_address()) {
            draft.address = pool.assign(round.candidates(draft, previous), &draft.owner);
        }
    }
    let homeless = drafts.iter().find(|draft| draft.lacks_address());
    homeless.map_or(Ok(()), |draft| {
        Err(draft.owner.unfit("status.podIP", Problem::Exhausted { what: Resource::PodAddress }))
    })
}

/// Addresses are given out in rounds, so that no pod gets what another one has a better claim to.
#[derive(Clone, Copy)]
enum Round {
    /// What a pod had.
    Before,
    /// What a pod has in a fresh cluster.
    Preferred,
    /// What is left.
    Any,
}

impl Round {
    fn candidates(self, draft: &Draft, previous: &[PlannedPod]) -> Vec<Ipv4Addr> {
        let address = |host| draft.pod.node.pod_addresses(host, false).v4;
        match self {
            Self::Before => {
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

/// The number for a workload's pod: `block` is the workload's position on its node, `index` the pod's in it.
fn preferred(block: usize, index: usize) -> Option<u8> {
    let host = usize::from(*POD_HOSTS.start()) + block * BLOCK + index;
    u8::try_from(host).ok().filter(|host| index < BLOCK && POD_HOSTS.contains(host))
}

/// Numbers that a workload has to itself.
const BLOCK: usize = 10;

/// The numbers that pods' addresses end in; .1 is the bridge, and the first pod of a fresh cluster gets .4, as on a
/// small single-node cluster.
const POD_HOSTS: std::ops::RangeInclusive<u8> = 4..=254;

/// More than fit on a node, and few enough that a slip of the finger is told at once.
const MAX_REPLICAS: i32 = 300;
