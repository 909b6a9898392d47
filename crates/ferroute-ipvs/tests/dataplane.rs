//! Writes of the dataplane to the kernel, and their times.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{net::IpAddr, time::Duration};

use common::{Rules, dataplane, host_addresses};
use ferroute_core::{
    Dataplane, IpFamily, NodePortAddresses, Protocol, Tracker,
    testing::{Cluster, Edit, SliceBuilder, namespaced_name, pod, service, slice},
};
use ferroute_ipvs::{
    IpvsDataplane,
    kernel::{Kernel, KernelServer, KernelState, MemoryKernel, Operation},
    plan::{Entry, IpvsSettings, ServerConfig, ServerKey, SetKind},
};

type TestDataplane = IpvsDataplane<MemoryKernel, Rules>;

/// A Service with endpoints on another node, and the dataplane that serves it.
struct Lab {
    tracker: Tracker,
    dataplane: TestDataplane,
}

impl Lab {
    fn new(settings: &IpvsSettings, pods: &[&str]) -> Self {
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).udp("dns", 53);
        let tracker = Cluster::new("node-1").service(web).slice(endpoints(pods)).tracker();
        let mut dataplane = dataplane(IpFamily::V4, settings, &host_addresses());
        dataplane.resync(tracker.table(IpFamily::V4)).unwrap();
        dataplane.kernel_mut().take_text();
        Self { tracker, dataplane }
    }

    /// Replaces the endpoints. Returns the changes that the dataplane makes.
    fn set_endpoints(&mut self, pods: &[&str]) -> String {
        Edit::SetSlice(endpoints(pods).build()).apply_to(&mut self.tracker);
        let changes = self.tracker.update(IpFamily::V4);
        self.dataplane.sync(self.tracker.table(IpFamily::V4), &changes).unwrap();
        self.dataplane.kernel_mut().take_text()
    }

    fn resync(&mut self) -> String {
        self.dataplane.resync(self.tracker.table(IpFamily::V4)).unwrap();
        self.dataplane.kernel_mut().take_text()
    }

    fn server(&mut self) -> &mut KernelServer {
        self.dataplane.kernel_mut().state.servers.get_mut(&key("10.96.0.1:80")).unwrap()
    }
}

fn endpoints(pods: &[&str]) -> SliceBuilder {
    let slice = slice("shop/web-1", "web").port("http", 8080).udp("dns", 5353);
    pods.iter().fold(slice, |slice, address| slice.pod(pod(address).on("node-2")))
}

fn key(socket: &str) -> ServerKey {
    let socket: std::net::SocketAddr = socket.parse().unwrap();
    ServerKey { address: socket.ip(), port: socket.port(), protocol: ferroute_core::Protocol::Tcp }
}

#[test]
fn one_endpoint_costs_one_change_for_each_virtual_server() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1"]);
    insta::assert_snapshot!(lab.set_endpoints(&["10.244.2.1", "10.244.2.2"]), @r"
    ipvsadm -a -u 10.96.0.1:53 -r 10.244.2.2:5353 -m -w 1
    ipvsadm -a -t 10.96.0.1:80 -r 10.244.2.2:8080 -m -w 1
    ");
}

#[test]
fn tcp_endpoint_with_connections_stays_with_weight_0_and_udp_endpoint_does_not() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1", "10.244.2.2"]);
    lab.server().real_servers[1].connections = 3;
    insta::assert_snapshot!(lab.set_endpoints(&["10.244.2.1"]), @r"
    ipvsadm -d -u 10.96.0.1:53 -r 10.244.2.2:5353
    ipvsadm -e -t 10.96.0.1:80 -r 10.244.2.2:8080 -m -w 0
    ");
    assert_eq!(lab.dataplane.terminating(), 1);
    // It does not count as a modification by another program, and after a restart the wait continues.
    assert!(!lab.dataplane.was_modified_externally().unwrap());
    lab.resync();
    assert_eq!((lab.server().real_servers[1].weight, lab.dataplane.terminating()), (0, 1));
    // Back again, it keeps its connections.
    insta::assert_snapshot!(lab.set_endpoints(&["10.244.2.1", "10.244.2.2"]), @r"
    ipvsadm -a -u 10.96.0.1:53 -r 10.244.2.2:5353 -m -w 1
    ipvsadm -e -t 10.96.0.1:80 -r 10.244.2.2:8080 -m -w 1
    ");
    assert_eq!(lab.dataplane.terminating(), 0);
}

#[test]
fn tcp_endpoint_without_connections_gets_no_new_one_before_its_removal() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1", "10.244.2.2"]);
    insta::assert_snapshot!(lab.set_endpoints(&["10.244.2.1"]), @r"
    ipvsadm -d -u 10.96.0.1:53 -r 10.244.2.2:5353
    ipvsadm -e -t 10.96.0.1:80 -r 10.244.2.2:8080 -m -w 0
    ipvsadm -d -t 10.96.0.1:80 -r 10.244.2.2:8080
    ");
}

#[test]
fn a_resync_repairs_what_other_programs_changed() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1", "10.244.2.2"]);
    assert!(!lab.dataplane.was_modified_externally().unwrap());
    lab.server().config.scheduler = "wlc".into();
    lab.server().real_servers[0].weight = 7;
    lab.server().real_servers.remove(1);
    let state = &mut lab.dataplane.kernel_mut().state;
    state.addresses.clear();
    state.entries[SetKind::ClusterIp.index()].insert(Entry::Service(key("10.96.0.9:80")));
    insta::assert_snapshot!(lab.resync(), @r"
    ipvsadm -E -t 10.96.0.1:80 -s rr
    ipvsadm -a -t 10.96.0.1:80 -r 10.244.2.2:8080 -m -w 1
    ipvsadm -e -t 10.96.0.1:80 -r 10.244.2.1:8080 -m -w 1
    ip address add 10.96.0.1/32 dev kube-ipvs0
    ipset del KUBE-CLUSTER-IP 10.96.0.9,tcp:80
    ");
}

#[test]
fn a_resync_removes_limits_masks_and_exceptions_of_other_programs() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1"]);
    lab.server().config.netmask = Some(24);
    lab.server().real_servers[0].has_limits = true;
    assert!(lab.dataplane.was_modified_externally().unwrap());
    insta::assert_snapshot!(lab.resync(), @r"
    ipvsadm -E -t 10.96.0.1:80 -s rr
    ipvsadm -e -t 10.96.0.1:80 -r 10.244.2.1:8080 -m -w 1
    ");
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).load_balancer("203.0.113.1");
    Edit::SetService(Box::new(web.source_range("192.0.2.0/24").build())).apply_to(&mut lab.tracker);
    lab.tracker.update(IpFamily::V4);
    lab.resync();
    let vip = key("203.0.113.1:80");
    let (planned, other) = ("192.0.2.0/24".parse().unwrap(), "192.0.2.128/25".parse().unwrap());
    let entries = &mut lab.dataplane.kernel_mut().state.entries[SetKind::LoadBalancerSourceCidr.index()];
    assert!(entries.remove(&Entry::ServiceAndNetwork(vip, planned)));
    entries.extend([planned, other].map(|net| Entry::ServiceExceptNetwork(vip, net)));
    insta::assert_snapshot!(lab.resync(), @r"
    ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,192.0.2.0/24
    ipset del KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,192.0.2.128/25 nomatch
    ");
    assert!(!lab.dataplane.was_modified_externally().unwrap());
}

#[test]
fn addresses_without_a_local_route_are_assigned_again() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1"]);
    let address = key("10.96.0.1:80").address;
    lab.dataplane.kernel_mut().state.unrouted.insert(address);
    assert!(lab.dataplane.was_modified_externally().unwrap());
    insta::assert_snapshot!(lab.resync(), @r"
    ip address del 10.96.0.1/32 dev kube-ipvs0
    ip address add 10.96.0.1/32 dev kube-ipvs0
    ");
    assert_eq!(lab.resync(), "");
    assert!(lab.dataplane.kernel_mut().state.addresses.contains(&address));
}

#[test]
fn node_ports_stay_for_a_while_at_an_address_that_leaves() {
    let moving = "198.51.100.7";
    let addresses = [host_addresses(), vec![moving.parse().unwrap()]].concat();
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080);
    let tracker = Cluster::new("node-1").service(web).tracker();
    let table = tracker.table(IpFamily::V4);
    for (period, expected) in [(Duration::from_secs(3600), true), (Duration::ZERO, false)] {
        let mut dataplane = dataplane(IpFamily::V4, &IpvsSettings::default(), &addresses).keep_node_ports(period);
        dataplane.resync(table).unwrap();
        dataplane.kernel_mut().take_text();
        dataplane.set_host_addresses(&host_addresses());
        dataplane.resync(table).unwrap();
        let is_served = dataplane.kernel_mut().state.servers.contains_key(&key("198.51.100.7:30080"));
        assert_eq!((is_served, dataplane.is_resync_due()), (expected, false));
        dataplane.set_host_addresses(&addresses);
        dataplane.resync(table).unwrap();
        assert_eq!(dataplane.kernel_mut().take_text().is_empty(), expected);
    }
}

#[test]
fn timeouts_that_another_program_sets_are_a_modification() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1"]);
    lab.dataplane.kernel_mut().state.has_other_timeouts = true;
    assert!(lab.dataplane.was_modified_externally().unwrap());
    assert_eq!(lab.resync(), "");
    assert!(!lab.dataplane.was_modified_externally().unwrap());
}

#[test]
fn a_resync_reports_the_udp_servers_that_it_deletes() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1"]);
    Edit::RemoveService(ferroute_core::testing::namespaced_name("shop/web")).apply_to(&mut lab.tracker);
    lab.tracker.update(IpFamily::V4);
    let report = lab.dataplane.resync(lab.tracker.table(IpFamily::V4)).unwrap();
    let before: Vec<String> = report.udp_frontends_before.iter().map(ToString::to_string).collect();
    assert_eq!(before, ["10.96.0.1:53/udp"]);
}

#[test]
fn a_changed_virtual_server_is_detected() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1"]);
    lab.server().real_servers.clear();
    assert!(lab.dataplane.was_modified_externally().unwrap());
}

#[test]
fn virtual_servers_of_other_programs_and_in_excluded_networks_are_kept() {
    let settings = IpvsSettings { exclude_cidrs: vec!["203.0.113.0/24".parse().unwrap()], ..IpvsSettings::default() };
    let mut lab = Lab::new(&settings, &["10.244.2.1"]);
    let config = ServerConfig { scheduler: "rr".into(), flags: 0, timeout: 0, netmask: None };
    let state = &mut lab.dataplane.kernel_mut().state;
    for theirs in ["192.168.0.1:8080", "198.51.100.1:30080", "203.0.113.1:80"] {
        state.servers.insert(key(theirs), KernelServer { config: config.clone(), real_servers: Vec::new() });
    }
    for ours in ["10.96.0.7:80", "198.51.100.2:443", "192.168.0.1:30080"] {
        state.servers.insert(key(ours), KernelServer { config: config.clone(), real_servers: Vec::new() });
    }
    state.addresses.extend([key("10.96.0.7:80").address, key("203.0.113.1:80").address]);
    state.entries[SetKind::LoadBalancer.index()].insert(Entry::Service(key("198.51.100.2:443")));
    state.entries[SetKind::NodePortTcp.index()].insert(Entry::Port(30080));
    let text = lab.resync();
    let deleted: Vec<&str> = text.lines().filter(|line| line.starts_with("ipvsadm")).collect();
    assert_eq!(
        deleted,
        ["ipvsadm -D -t 10.96.0.7:80", "ipvsadm -D -t 192.168.0.1:30080", "ipvsadm -D -t 198.51.100.2:443"]
    );
}

/// Not the addresses of the host but those at which node ports were written decide, with `excludeCIDRs` as well.
#[test]
fn node_ports_at_addresses_without_node_ports_are_of_other_programs() {
    let [primary, virtual_ip] = ["192.168.0.1", "203.0.113.5"].map(|text| text.parse::<IpAddr>().unwrap());
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let web = service("shop/web").cluster_ip("10.96.0.1").port_over(protocol, "http", 80).node_port(30080);
        let mut tracker = Cluster::new("node-1").service(web).tracker();
        let mut settings =
            IpvsSettings { exclude_cidrs: vec!["203.0.113.0/24".parse().unwrap()], ..IpvsSettings::default() };
        let host = [host_addresses(), vec![virtual_ip]].concat();
        let at = |address| ServerKey { protocol, ..ServerKey { address, ..key("192.0.2.1:30080") } };
        let after = |kernel, settings: &IpvsSettings, tracker: &Tracker| {
            let mut dataplane = dataplane(IpFamily::V4, settings, &host);
            dataplane.kernel_mut().state = kernel;
            dataplane.resync(tracker.table(IpFamily::V4)).unwrap();
            std::mem::take(&mut dataplane.kernel_mut().state)
        };
        let everywhere = after(KernelState::default(), &settings, &tracker);
        assert!(everywhere.servers.contains_key(&at(virtual_ip)), "{protocol}");

        settings.proxy.node_port_addresses = NodePortAddresses::Within(vec!["192.168.0.0/24".parse().unwrap()]);
        let mut restricted = after(everywhere.clone(), &settings, &tracker);
        assert!(restricted.servers.contains_key(&at(primary)), "{protocol}");
        assert!(!restricted.servers.contains_key(&at(virtual_ip)), "{protocol}: ours, although excluded");

        let config = ServerConfig { scheduler: "rr".into(), flags: 0, timeout: 0, netmask: None };
        restricted.servers.insert(at(virtual_ip), KernelServer { config, real_servers: Vec::new() });
        settings.exclude_cidrs.clear();
        let restricted = after(restricted, &settings, &tracker);
        assert!(restricted.servers.contains_key(&at(virtual_ip)), "{protocol}: of another program");
        Edit::RemoveService(namespaced_name("shop/web")).apply_to(&mut tracker);
        tracker.update(IpFamily::V4);
        let deleted = after(restricted, &settings, &tracker);
        assert_eq!(deleted.servers.into_keys().collect::<Vec<_>>(), [at(virtual_ip)], "{protocol}");
    }
}

#[test]
fn a_refused_change_names_its_service_port_and_does_not_stop_the_others() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.2.1"]);
    // The real server exists already when it is to be added.
    let kernel = lab.dataplane.kernel_mut();
    let real = "10.244.2.2:8080".parse::<std::net::SocketAddr>().unwrap().into();
    kernel.write(Operation::AddRealServer(key("10.96.0.1:80"), real, 1)).unwrap();
    kernel.take_text();
    Edit::SetSlice(endpoints(&["10.244.2.1", "10.244.2.2"]).build()).apply_to(&mut lab.tracker);
    let changes = lab.tracker.update(IpFamily::V4);
    let error = lab.dataplane.sync(lab.tracker.table(IpFamily::V4), &changes).unwrap_err();
    let ferroute_core::DataplaneError::Rejected { service_port, .. } = error else { panic!("{error:?}") };
    assert_eq!(service_port.to_string(), "shop/web:http");
    assert!(lab.dataplane.kernel_mut().take_text().contains("-u 10.96.0.1:53 -r 10.244.2.2:5353"));
    assert_eq!(lab.resync(), "");
}

#[test]
fn set_that_would_be_full_is_enlarged_first() {
    let mut lab = Lab::new(&IpvsSettings::default(), &["10.244.1.1"]);
    // Deleted only after the new entries have been added.
    let stale = (0..=u16::MAX).map(|port| Entry::Service(ServerKey { port, ..key("198.51.100.1:80") }));
    lab.dataplane.kernel_mut().state.entries[SetKind::ClusterIp.index()].extend(stale);
    let web = Entry::Service(key("10.96.0.1:80"));
    lab.dataplane.kernel_mut().state.entries[SetKind::ClusterIp.index()].remove(&web);
    lab.resync();
    let entries = &lab.dataplane.kernel_mut().state.entries[SetKind::ClusterIp.index()];
    assert!(entries.contains(&web) && entries.len() == 2, "{}", entries.len());
}

#[test]
fn virtual_servers_of_node_ports_do_not_outlive_the_address_of_the_host() {
    let virtual_ip = key("203.0.113.5:30080");
    let service = |protocol| {
        let web = service("shop/web").cluster_ip("10.96.0.1");
        match protocol {
            Protocol::Udp => web.udp("http", 80),
            _ => web.port("http", 80),
        }
    };
    for (protocol, is_deleted) in [(Protocol::Tcp, false), (Protocol::Tcp, true), (Protocol::Udp, false)] {
        let web = service(protocol).node_port(30080);
        let mut tracker = Cluster::new("node-1").service(web).tracker();
        let settings = IpvsSettings::default();
        let mut before = dataplane(IpFamily::V4, &settings, &[host_addresses(), vec![virtual_ip.address]].concat());
        before.resync(tracker.table(IpFamily::V4)).unwrap();
        let ours = ServerKey { protocol, ..virtual_ip };
        let kernel = std::mem::take(&mut before.kernel_mut().state);
        assert!(kernel.servers.contains_key(&ours));
        // The proxy starts again on a host without the address.
        let mut after = dataplane(IpFamily::V4, &settings, &host_addresses());
        let other = key("198.51.100.1:30080");
        let config = ServerConfig { scheduler: "rr".into(), flags: 0, timeout: 0, netmask: None };
        after.kernel_mut().state = kernel;
        after.kernel_mut().state.servers.insert(other, KernelServer { config, real_servers: Vec::new() });
        if is_deleted {
            Edit::RemoveService(namespaced_name("shop/web")).apply_to(&mut tracker);
            tracker.update(IpFamily::V4);
        }
        after.resync(tracker.table(IpFamily::V4)).unwrap();
        let state = &after.kernel_mut().state;
        assert!(!state.servers.contains_key(&ours) && state.servers.contains_key(&other), "{protocol}");
        assert_eq!(
            state.servers.contains_key(&ServerKey { address: "192.168.0.1".parse().unwrap(), ..ours }),
            !is_deleted
        );
        let recorded = &state.entries[SetKind::NodePortIps.index()];
        assert!(!recorded.contains(&Entry::Address(virtual_ip.address)), "{protocol}");
    }
}
