//! The recorded conformance cases.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ferroute_api::{EndpointSlice, Node, Service};
use ferroute_core::{
    HostState, IpFamily, LocalTrafficDetector, NfacctCounters, NodePortAddresses, ProxySettings, ServiceTable,
    testing::Cluster,
};

use serde_json::Value;

/// The directory of the cases.
const CONFORMANCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance");

/// The node on which the rules were recorded.
const NODE: &str = "lab-node";

/// The rules that kube-proxy wrote for one IP family in one step of a case.
pub(crate) struct Record {
    /// The directory of the case.
    pub(crate) case: PathBuf,
    /// The step, from 1.
    pub(crate) step: usize,
    pub(crate) family: IpFamily,
    pub(crate) text: String,
}

/// Returns all recorded rules. Panics if there are few, because a test without records proves nothing.
pub(crate) fn records() -> Vec<Record> {
    let scenarios = Path::new(CONFORMANCE).join("scenarios");
    let cases = fs::read_dir(&scenarios).expect("the recorded cases are part of the repository");
    let mut cases: Vec<PathBuf> = cases.map(|case| case.unwrap().path()).filter(|path| path.is_dir()).collect();
    cases.sort();
    let mut records = Vec::new();
    for case in &cases {
        let steps = (1..).take_while(|step| case.join(numbered("manifests", *step, "yaml")).exists());
        for step in steps {
            for (family, program) in [(IpFamily::V4, "iptables-save"), (IpFamily::V6, "ip6tables-save")] {
                let path = case.join("expected").join(numbered(program, step, "txt"));
                let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                records.push(Record { case: case.clone(), step, family, text });
            }
        }
    }
    assert!(cases.len() >= 50 && records.len() >= 100, "only {} recorded cases in {scenarios:?}", cases.len());
    records
}

impl Record {
    /// Returns a name for messages.
    pub(crate) fn name(&self) -> String {
        format!("{} step {} {}", self.case.file_name().unwrap().display(), self.step, self.family)
    }

    /// Returns the desired state in this step.
    pub(crate) fn table(&self) -> ServiceTable {
        let manifests = self.case.join(numbered("manifests", self.step, "yaml"));
        let mut objects = documents(&manifests);
        if objects.iter().all(|object| object["kind"] != "Node") {
            objects.extend(documents(&Path::new(CONFORMANCE).join("common/nodes.yaml")));
        }
        let mut cluster = Cluster::new(NODE);
        for object in objects {
            match object["kind"].as_str().unwrap() {
                "Service" => cluster.services.push(serde_json::from_value::<Service>(object).unwrap()),
                "EndpointSlice" => cluster.slices.push(serde_json::from_value::<EndpointSlice>(object).unwrap()),
                "Node" => {
                    let node: Node = serde_json::from_value(object).unwrap();
                    if node.metadata.name == NODE {
                        cluster.node = node;
                    }
                }
                other => panic!("{}: unexpected {other}", manifests.display()),
            }
        }
        cluster.table(self.family)
    }

    /// Returns the settings of the case's configuration.
    pub(crate) fn settings(&self) -> ProxySettings {
        let config = self.case.join("config.yaml");
        let config = if config.exists() { documents(&config).remove(0) } else { Value::Null };
        let networks = |text: &str| text.split(',').map(|net| net.parse().unwrap()).collect();
        // The defaults are the settings that the recording of all cases used.
        let detector = match config["detectLocalMode"].as_str().unwrap_or("ClusterCIDR") {
            "BridgeInterface" => {
                let bridge = config["detectLocal"]["bridgeInterface"].as_str().unwrap();
                LocalTrafficDetector::BridgeInterface(bridge.to_owned())
            }
            "ClusterCIDR" => match config["clusterCIDR"].as_str().unwrap_or("10.180.0.0/16,fd00:10:180::/48") {
                "" => LocalTrafficDetector::None,
                text => LocalTrafficDetector::ClusterCidr(networks(text)),
            },
            other => panic!("detectLocalMode {other}"),
        };
        let node_port_addresses = match config["nodePortAddresses"].as_array() {
            None => NodePortAddresses::All,
            Some(list) => {
                NodePortAddresses::Within(list.iter().map(|net| net.as_str().unwrap().parse().unwrap()).collect())
            }
        };
        let iptables = &config["iptables"];
        ProxySettings {
            masquerade_all: iptables["masqueradeAll"].as_bool().unwrap_or(false),
            localhost_node_ports: iptables["localhostNodePorts"].as_bool().unwrap_or(true),
            node_port_addresses,
            detector,
            ..ProxySettings::default()
        }
    }

    /// Returns the state of the host on which the rules were recorded.
    pub(crate) fn host(&self) -> HostState {
        let addresses = ["127.0.0.1", "::1", "10.77.1.2", "fd77::2", "10.180.1.1", "fd00:10:180:1::1"];
        HostState {
            addresses: addresses.map(|address| address.parse().unwrap()).into(),
            random_fully: true,
            counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
            conntrack_tcp_be_liberal: false,
        }
    }
}

pub(crate) fn numbered(stem: &str, step: usize, extension: &str) -> String {
    if step == 1 { format!("{stem}.{extension}") } else { format!("{stem}-{step}.{extension}") }
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
