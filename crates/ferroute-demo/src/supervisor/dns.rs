//! The cluster's DNS: answers for the names of Services, at the address of each node's bridge.
//!
//! ```text
//!   objects ──► Records ──► answer (pure: query ──► response) ◄── a thread per node, with a socket in its namespace
//! ```
//!
//! In a real cluster, CoreDNS runs in pods behind a Service. In the demo, names can be resolved before any Service
//! works, and even if none does.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, PoisonError, RwLock},
    thread,
};

use anyhow::Context;
use ferroute_api::Object;
use simple_dns::{
    CLASS, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE,
    rdata::{A, AAAA, RData},
};

use crate::{instance::Instance, layout::NodeId, net::Namespace};

/// The servers of all nodes.
pub(super) struct Dns {
    records: Arc<RwLock<Records>>,
}

impl Dns {
    /// Starts a server at the bridge of each node. They end with this process.
    pub(super) fn start(instance: &Instance) -> anyhow::Result<Self> {
        let records = Arc::<RwLock<Records>>::default();
        for node in NodeId::ALL {
            let address = SocketAddr::new(node.bridge_addresses(false).v4.into(), PORT);
            let bound = Namespace::named(instance.namespace(node.name())).run(|| UdpSocket::bind(address))?;
            let socket = bound.with_context(|| format!("cannot open the DNS port {address} on {node}"))?;
            let records = Arc::clone(&records);
            thread::Builder::new().name(format!("dns-{node}")).spawn(move || serve(&socket, &records))?;
        }
        Ok(Self { records })
    }

    /// Answers for these objects from now on.
    pub(super) fn update(&self, objects: &[Object]) {
        *self.records.write().unwrap_or_else(PoisonError::into_inner) = Records::new(objects);
    }
}

fn serve(socket: &UdpSocket, records: &RwLock<Records>) {
    let mut buffer = [0; 1500];
    loop {
        // An error is an ICMP error for an earlier response.
        let Ok((length, client)) = socket.recv_from(&mut buffer) else { continue };
        let response = records.read().unwrap_or_else(PoisonError::into_inner).answer(&buffer[..length]);
        if let Some(response) = response {
            // The client repeats the query if this response is lost.
            let _ = socket.send_to(&response, client);
        }
    }
}

/// The addresses of Services by name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Records(BTreeMap<String, Vec<IpAddr>>);

impl Records {
    fn new(objects: &[Object]) -> Self {
        let mut records = Self::default();
        for object in objects {
            let Object::Service(service) = object else { continue };
            let name = service_name(&service.metadata.namespace, &service.metadata.name);
            let addresses = service.spec.cluster_ips.iter().filter_map(|address| address.parse().ok()).collect();
            records.0.insert(name, addresses);
        }
        let headless: BTreeSet<String> =
            records.0.iter().filter(|(_, addresses)| addresses.is_empty()).map(|(name, _)| name.clone()).collect();
        for object in objects {
            let Object::EndpointSlice(slice) = object else { continue };
            let Some(service) = slice.service_name() else { continue };
            let name = service_name(&slice.metadata.namespace, service);
            // The names of a headless Service are those of its endpoints.
            if !headless.contains(&name) {
                continue;
            }
            let ready = slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false));
            let addresses =
                ready.flat_map(|endpoint| &endpoint.addresses).filter_map(|address| address.parse::<IpAddr>().ok());
            if let Some(known) = records.0.get_mut(&name) {
                known.extend(addresses);
            }
        }
        records
    }

    /// Answers a query; `None` if it is not a query.
    fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let query = Packet::parse(query).ok().filter(|packet| !packet.has_flags(PacketFlag::RESPONSE))?;
        let question = query.questions.first()?;
        let name = question.qname.to_string().to_lowercase();
        let mut response = Packet::new_reply(query.id());
        response.set_flags(PacketFlag::AUTHORITATIVE_ANSWER | PacketFlag::RECURSION_AVAILABLE);
        response.questions.push(question.clone());
        let record = |data| ResourceRecord::new(question.qname.clone(), CLASS::IN, TTL, data);
        match self.0.get(&name) {
            Some(addresses) => {
                let data = addresses.iter().filter_map(|address| match (address, question.qtype) {
                    (IpAddr::V4(address), QTYPE::TYPE(TYPE::A) | QTYPE::ANY) => Some(RData::A(A::from(*address))),
                    (IpAddr::V6(address), QTYPE::TYPE(TYPE::AAAA) | QTYPE::ANY) => {
                        Some(RData::AAAA(AAAA::from(*address)))
                    }
                    _ => None,
                });
                response.answers.extend(data.take(MAX_ANSWERS).map(record));
            }
            None if name.ends_with(DOMAIN) => *response.rcode_mut() = RCODE::NameError,
            // There are no names outside of the cluster.
            None => *response.rcode_mut() = RCODE::Refused,
        }
        response.build_bytes_vec_compressed().ok()
    }
}

fn service_name(namespace: &str, name: &str) -> String {
    format!("{name}.{namespace}.svc.{DOMAIN}")
}

/// Returns the resolver's configuration for a pod in this namespace, or for a node, whose pods have this gateway.
pub(crate) fn resolver_configuration(node: NodeId, namespace: &str) -> String {
    let server = node.bridge_addresses(false).v4;
    format!("nameserver {server}\nsearch {namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n")
}

/// The domain of the cluster.
const DOMAIN: &str = "cluster.local";

const PORT: u16 = 53;

/// Time for which clients may keep an answer: zero, because the demo shows changes.
const TTL: u32 = 0;

/// The answers that fit into a datagram of 512 bytes, which every client can receive.
const MAX_ANSWERS: usize = 15;

#[cfg(test)]
mod tests {
    use simple_dns::{Name, QCLASS, Question};

    use super::*;
    use crate::plan::{ClusterPlan, Objects};

    const CLUSTER: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.80, selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: all, namespace: shop}, spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, labels: {app: web}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: shop, labels: {app: web}}}
";

    /// Queries a name, and returns the response's code and its answers as text.
    fn ask(name: &str, kind: TYPE) -> (RCODE, Vec<String>) {
        let plan = ClusterPlan::new(&Objects::parse(CLUSTER).unwrap(), None, false).unwrap();
        let records = Records::new(&plan.objects(|pod| pod.name == "a"));
        let mut query = Packet::new_query(7);
        query.questions.push(Question::new(Name::new(name).unwrap(), kind.into(), QCLASS::CLASS(CLASS::IN), false));
        let response = records.answer(&query.build_bytes_vec().unwrap()).unwrap();
        let response = Packet::parse(&response).unwrap();
        assert!(response.id() == 7 && response.has_flags(PacketFlag::RESPONSE));
        let text = |record: &ResourceRecord<'_>| match &record.rdata {
            RData::A(address) => std::net::Ipv4Addr::from(address.clone()).to_string(),
            other => format!("{other:?}"),
        };
        (response.rcode(), response.answers.iter().map(text).collect())
    }

    #[test]
    fn services_have_their_addresses() {
        let ok = |answers: &[&str]| (RCODE::NoError, answers.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        assert_eq!(ask("web.default.svc.cluster.local", TYPE::A), ok(&["10.96.0.80"]));
        assert_eq!(ask("WEB.default.svc.Cluster.local", TYPE::A), ok(&["10.96.0.80"]));
        assert_eq!(ask("web.default.svc.cluster.local", TYPE::AAAA), ok(&[]));
        assert_eq!(ask("all.shop.svc.cluster.local", TYPE::A), ok(&["172.17.0.4"]), "only ready pods");
    }

    #[test]
    fn other_names_do_not_exist() {
        for name in ["all.default.svc.cluster.local", "web.cluster.local", "web.shop.svc.cluster.local"] {
            assert_eq!(ask(name, TYPE::A), (RCODE::NameError, Vec::new()), "{name}");
        }
        assert_eq!(ask("example.com", TYPE::A).0, RCODE::Refused);
    }

    #[test]
    fn what_is_no_query_is_not_answered() {
        let records = Records::default();
        assert_eq!(records.answer(b""), None);
        assert_eq!(records.answer(&[0; 12]), None);
        assert_eq!(records.answer(&Packet::new_reply(1).build_bytes_vec().unwrap()), None);
    }
}
