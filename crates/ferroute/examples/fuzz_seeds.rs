//! Writes seeds of the fuzz targets: the inputs and outputs of the conformance tests, and the output of the encoders of
//! this workspace. See `make fuzz`.
//!
//! ```text
//! fuzz_seeds DIRECTORY
//! ```
//!
//! Seeds are written to `DIRECTORY/TARGET/`. It must be run in the root of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use ferroute_config::KubeProxyConfiguration;
use ferroute_core::{
    IpFamily,
    testing::{Cluster, pod, service, slice},
};
use ferroute_iptables::{RuleSet, native::testing::encode_rules};
use ferroute_netlink::Batch;
use ferroute_nftables::plan::{NftablesSettings, render};
use ferroute_proxy::recording::{Bundle, Limits, Recorder};
use serde_json::Value;

fn main() {
    let directory = std::env::args().nth(1).map(PathBuf::from).expect("usage: fuzz_seeds DIRECTORY");
    let seeds = Seeds { directory };
    for path in files(Path::new("conformance/scenarios")) {
        let text = fs::read(&path).expect("a readable file");
        match path.file_name().and_then(|name| name.to_str()) {
            Some("manifests.yaml") => seeds.write("manifests", &[&text]),
            Some(name) if name.starts_with("iptables-save") => seeds.write_rules(IpFamily::V4, &text),
            Some(name) if name.starts_with("ip6tables-save") => seeds.write_rules(IpFamily::V6, &text),
            _ => {}
        }
    }
    for path in files(Path::new("crates/ferroute/tests/dumps")) {
        seeds.write("rule_files", &[b"4", &fs::read(&path).expect("a readable file")]);
    }
    let cluster = cluster();
    let config = KubeProxyConfiguration::default().defaulted();
    seeds.write("configuration", &[config.to_yaml().as_bytes()]);
    seeds.write("configuration", &[&fs::read("crates/ferroute-config/src/decode/tests/kubeadm.yaml").expect("a file")]);
    seeds.write("flags", &[FLAGS.as_bytes()]);
    seeds.write_objects(&cluster);
    for family in IpFamily::BOTH {
        let addresses = ["127.0.0.1", "192.168.0.1", "::1", "fd00::1"].map(|address| address.parse().expect("valid"));
        let rendered = render(&cluster.table(family), &NftablesSettings::default(), &addresses);
        let messages = ferroute_nftables::testing::encode(&rendered);
        seeds.write("nftables_listing", &[&messages]);
        seeds.write("netlink", &[&messages[..messages.len().min(4096)]]);
    }
    seeds.write("host_messages", &[&address(), &conntrack_entry()]);
    seeds.write("ipvs_messages", &[&virtual_server(), &set_entry()]);
    for mode in ["iptables", "nftables"] {
        seeds.write("bundle", &[&bundle(&cluster, mode)]);
    }
}

struct Seeds {
    directory: PathBuf,
}

impl Seeds {
    fn write(&self, target: &str, parts: &[&[u8]]) {
        let directory = self.directory.join(target);
        fs::create_dir_all(&directory).expect("a directory");
        let number = fs::read_dir(&directory).expect("a directory").count();
        fs::write(directory.join(format!("seed-{number}")), parts.concat()).expect("a writable file");
    }

    /// Writes the output of `iptables-save`, and the netlink messages of its rules.
    fn write_rules(&self, family: IpFamily, text: &[u8]) {
        let selector = if family == IpFamily::V4 { b"4" } else { b"1" };
        self.write("iptables_save", &[selector, text]);
        let text = str::from_utf8(text).expect("recorded text");
        let rules = RuleSet::parse_save(family, text).expect("recorded rules");
        self.write("iptables_messages", &[&encode_rules(&rules)]);
    }

    /// Writes each object, and lists and watches of them in both encodings.
    fn write_objects(&self, cluster: &Cluster) {
        let services = cluster.services.iter().map(serde_json::to_value);
        let slices = cluster.slices.iter().map(serde_json::to_value);
        let kinds: [Vec<Value>; 2] = [services.flatten().collect(), slices.flatten().collect()];
        for (resource, objects) in (0u8..).zip(kinds) {
            for object in &objects {
                self.write("object_encodings", &[&[resource], object.to_string().as_bytes()]);
            }
            for selector in 0..4 {
                let response = ferroute_kube::testing::fuzz::response(selector | resource << 2, &objects);
                self.write("watch_stream", &[&[selector | resource << 2, 16], &response]);
            }
        }
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    entries.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn cluster() -> Cluster {
    Cluster::new("node-1")
        .service(
            service("shop/web")
                .cluster_ip("10.96.0.1")
                .cluster_ip("fd00:96::1")
                .port("http", 80)
                .node_port(30080)
                .load_balancer("198.51.100.1")
                .source_range("203.0.113.0/24")
                .affinity(600)
                .external_local(),
        )
        .service(service("shop/idle").cluster_ip("10.96.0.2").port("http", 80).external_ip("198.51.100.2"))
        .slice(
            slice("shop/web-a", "web")
                .port("http", 8080)
                .pod(pod("10.244.0.2").on("node-1"))
                .pod("10.244.1.2")
                .pod("10.244.1.3"),
        )
}

/// Returns `RTM_NEWADDR` for 10.0.0.1.
fn address() -> Vec<u8> {
    let mut batch = Batch::new();
    let mut message = batch.message(RTM_NEWADDR, 0, &[2, 24, 0, 0, 1, 0, 0, 0]);
    message.put_bytes(IFA_LOCAL, &[10, 0, 0, 1]);
    drop(message);
    batch.as_bytes().expect("a short message").to_vec()
}

/// Returns `IPCTNL_MSG_CT_NEW` for a UDP flow.
fn conntrack_entry() -> Vec<u8> {
    let mut batch = Batch::new();
    let mut message = batch.message(0x0100, 0, &[2, 0, 0, 0]);
    for kind in [1, 2] {
        let mut tuple = message.nest(kind);
        let mut addresses = tuple.nest(1);
        addresses.put_bytes(1, &[10, 0, 0, 1]);
        addresses.put_bytes(2, &[10, 96, 0, 1]);
        drop(addresses);
        let mut ports = tuple.nest(2);
        ports.put_bytes(1, &[17]);
        ports.put_bytes(2, &[0x9c, 0x40]);
        ports.put_bytes(3, &[0, 53]);
    }
    message.put_bytes(12, &[1, 2, 3, 4]);
    drop(message);
    batch.as_bytes().expect("a short message").to_vec()
}

/// Returns the message of a virtual server (`linux/ip_vs.h`), followed by that of a real server.
fn virtual_server() -> Vec<u8> {
    let mut batch = Batch::new();
    for (kind, ports) in [(1, 4), (2, 2)] {
        let mut message = batch.message(0x20, 0, &[1, 1, 0, 0]);
        let mut server = message.nest(kind);
        if kind == 1 {
            server.put_bytes(1, &2u16.to_ne_bytes());
            server.put_bytes(2, &6u16.to_ne_bytes());
            server.put_bytes(3, &[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            server.put_bytes(6, b"rr\0");
            server.put_bytes(7, &[0; 8]);
            server.put_bytes(8, &0u32.to_ne_bytes());
        } else {
            server.put_bytes(1, &[10, 244, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            server.put_bytes(3, &0u32.to_ne_bytes());
            server.put_bytes(4, &1u32.to_ne_bytes());
        }
        server.put_bytes(ports, &80u16.to_be_bytes());
    }
    batch.as_bytes().expect("short messages").to_vec()
}

/// Returns an entry in a list of an ipset (`linux/netfilter/ipset/ip_set.h`): two addresses, prefix length, port, protocol.
fn set_entry() -> Vec<u8> {
    let mut batch = Batch::new();
    let mut message = batch.message(0x0607, 0, &[2, 0, 0, 0]);
    let mut entries = message.nest(8);
    let mut entry = entries.nest(7);
    for (kind, address) in [(1, [10, 96, 0, 1]), (20, [10, 0, 0, 0])] {
        entry.nest(kind).put_bytes(1, &address);
    }
    entry.put_bytes(21, &[8]);
    entry.put_bytes(4, &80u16.to_be_bytes());
    entry.put_bytes(7, &[6]);
    drop(entry);
    drop(entries);
    drop(message);
    batch.as_bytes().expect("a short message").to_vec()
}

fn bundle(cluster: &Cluster, mode: &str) -> Vec<u8> {
    let mut tracker = cluster.tracker();
    let mut recorder = Recorder::new(Limits::default());
    for edit in cluster.edits() {
        let event = edit.event("node-1");
        recorder.record(&event, &tracker);
        tracker.apply(event);
    }
    let made = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
    let config = KubeProxyConfiguration::default().defaulted().to_yaml();
    let mut text = Vec::new();
    Bundle::new(recorder.snapshot(&tracker), "1.2.3", made, mode, config, Vec::new())
        .write(&mut text)
        .expect("writing to memory");
    text
}

// `linux/rtnetlink.h` and `linux/if_addr.h`.
const RTM_NEWADDR: u16 = 20;
const IFA_LOCAL: u16 = 2;

const FLAGS: &str = "--proxy-mode=nftables\n--cluster-cidr\n10.244.0.0/16,fd00::/48\n--hostname-override=node-1\n\
    --nodeport-addresses=primary\n--masquerade-all\n--conntrack-min=1\n--iptables-sync-period=30s\n\
    --feature-gates=A=true,B=false\n--bind-address=::\n--healthz-port=1\n-v=2\n--startup-taint=a/b";
