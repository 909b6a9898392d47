use std::{net::IpAddr, path::PathBuf};

use ferroute_config::flags::{DesiredArgs, SettingsArgs};

use super::{
    objects::{Need, may_be_needed},
    *,
};
use crate::about::{Origin, Proxy};

fn example(name: &str) -> SourceArgs {
    let manifests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).join(name);
    SourceArgs { manifests: Some(manifests), ..SourceArgs::default() }
}

fn on(node: &str) -> SettingsArgs {
    SettingsArgs { hostname_override: Some(node.to_owned()), ..SettingsArgs::default() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn endpoints(desired: &Desired) -> Vec<(String, bool)> {
    let entries = desired.table(IpFamily::V4).entries.values();
    let endpoints = entries.flat_map(|entry| entry.endpoints.iter());
    endpoints.map(|endpoint| (endpoint.to_string(), endpoint.local)).collect()
}

/// Loads without starting logging, which is possible only once per process.
fn load(source: &SourceArgs, args: &SettingsArgs) -> anyhow::Result<Desired> {
    load_beside(Proxy::None, source, args)
}

fn load_beside(proxy: Proxy, source: &SourceArgs, args: &SettingsArgs) -> anyhow::Result<Desired> {
    let args = DesiredArgs { source: source.clone(), settings: args.clone() };
    let mut proxy = Some(proxy);
    Desired::load_with(&args, &mut || proxy.take().unwrap(), Need::Objects, |_| {})
}

/// Loads the state of manifests in these texts.
fn load_texts(texts: &[&str], args: &SettingsArgs) -> Desired {
    let directory = tempfile::tempdir().unwrap();
    for (number, text) in texts.iter().enumerate() {
        std::fs::write(directory.path().join(format!("{number}.yaml")), text).unwrap();
    }
    load(&SourceArgs { manifests: Some(directory.path().to_owned()), ..SourceArgs::default() }, args).unwrap()
}

fn is_demo(desired: &Desired) -> bool {
    desired.about.objects.as_ref().is_some_and(|objects| objects.from == Origin::Assumed)
}

#[test]
fn workloads_become_endpoints_as_in_demo() {
    let desired = load(&example("nginx.yaml"), &SettingsArgs::default()).unwrap();
    let expected = ["172.17.0.4:80", "172.17.0.5:80", "172.17.0.6:80"].map(|text| (text.to_owned(), true));
    assert_eq!(endpoints(&desired), expected);
    assert_eq!(desired.node().name, "node");
    assert_eq!(desired.names.owner(ip("172.17.0.5")).unwrap().to_string(), "pod default/nginx-deployment-2");
    assert_eq!(desired.names.owner(ip("192.168.49.3")).unwrap().to_string(), "node node2");
    assert_eq!(desired.names.owner(ip("192.168.49.100")).unwrap().to_string(), "outside");
    assert_eq!(desired.names.owner(ip("172.17.0.77")), None);
}

#[test]
fn other_nodes_of_demo_can_be_selected() {
    let desired = load(&example("nginx.yaml"), &on("node2")).unwrap();
    assert_eq!(endpoints(&desired).len(), 3);
    assert!(endpoints(&desired).iter().all(|(_, local)| !local));
}

const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n\
    spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}}}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
    spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 80}]}\n";
const BY_HAND: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: bare}\n\
    spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}\n";

fn slice_of(service: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: a, labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\n\
         ports: [{{port: 8080}}]\nendpoints: [{{addresses: [10.244.1.5]}}]\n"
    )
}

fn endpoints_of(service: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Endpoints\nmetadata: {{name: {service}}}\n\
         subsets: [{{addresses: [{{ip: 10.244.1.5}}], ports: [{{port: 8080}}]}}]\n"
    )
}

#[test]
fn workloads_beside_complete_objects_are_ignored() {
    for given in [slice_of("web"), endpoints_of("web")] {
        let desired = load_texts(&[DEPLOYMENT, SERVICE, &given], &SettingsArgs::default());
        assert_eq!(endpoints(&desired), [("10.244.1.5:8080".to_owned(), false)]);
        assert!(!is_demo(&desired));
    }
    // Another Service of this cluster has no endpoints at the moment.
    let other = SERVICE.replace("name: web", "name: other").replace("10.96.0.1", "10.96.0.3");
    assert!(!is_demo(&load_texts(&[DEPLOYMENT, SERVICE, &other, &slice_of("web")], &SettingsArgs::default())));
    // The name in the label is wrong, or is that of a Service in another file.
    assert!(!is_demo(&load_texts(&[DEPLOYMENT, SERVICE, &slice_of("wbe")], &SettingsArgs::default())));
    let on_node = slice_of("bare").replace("[10.244.1.5]", "[10.244.1.5], nodeName: node-1");
    assert!(!is_demo(&load_texts(&[DEPLOYMENT, SERVICE, BY_HAND, &on_node], &SettingsArgs::default())));
    assert!(!is_demo(&load_texts(&[DEPLOYMENT, BY_HAND], &SettingsArgs::default())));
    assert!(!is_demo(&load_texts(&[DEPLOYMENT, BY_HAND, &slice_of("bare")], &SettingsArgs::default())));
}

#[test]
fn services_without_selector_may_have_endpoints_in_demo() {
    for given in [slice_of("bare"), endpoints_of("bare")] {
        let desired = load_texts(&[DEPLOYMENT, SERVICE, BY_HAND, &given], &SettingsArgs::default());
        assert!(is_demo(&desired));
        assert_eq!(endpoints(&desired).len(), 2);
    }
}

#[test]
fn demo_is_not_assumed_where_another_node_is_meant() {
    let is_demo = |proxy, args: &SettingsArgs| {
        let desired = load_beside(proxy, &example("nginx.yaml"), args).unwrap();
        assert_eq!(endpoints(&desired).is_empty(), !is_demo(&desired));
        is_demo(&desired)
    };
    let config = tempfile::NamedTempFile::new().unwrap();
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node-1\n";
    std::fs::write(config.path(), text).unwrap();
    let configured = SettingsArgs { config: Some(config.path().to_owned()), ..SettingsArgs::default() };
    assert!(is_demo(Proxy::None, &SettingsArgs::default()));
    assert!(!is_demo(Proxy::None, &on("node-1")));
    assert!(!is_demo(Proxy::None, &configured));
    assert!(!is_demo(Proxy::Unavailable("permission denied".to_owned()), &SettingsArgs::default()));
}

#[test]
fn each_kind_of_frontend_is_found_by_address() {
    let desired = load(&example("nginx.yaml"), &SettingsArgs::default()).unwrap();
    let frontend = |to: &str, protocol| {
        desired.frontend(to.parse().unwrap(), protocol).map(|(name, kind)| (name.to_string(), kind.to_string()))
    };
    let nginx = |kind: &str| Some(("default/nginx-service".to_owned(), kind.to_owned()));
    assert_eq!(frontend("10.111.175.78:80", Protocol::Tcp), nginx("cluster IP"));
    assert_eq!(frontend("192.168.49.2:31628", Protocol::Tcp), nginx("node port"));
    assert_eq!(frontend("172.17.0.1:31628", Protocol::Tcp), nginx("node port"));
    assert_eq!(frontend("192.168.49.3:31628", Protocol::Tcp), None);
    assert_eq!(frontend("10.111.175.78:80", Protocol::Udp), None);
    assert_eq!(frontend("10.111.175.78:81", Protocol::Tcp), None);
}

#[test]
fn pods_are_found_by_name_with_or_without_namespace() {
    let directory = tempfile::tempdir().unwrap();
    let pod = |namespace: &str, ip: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: {namespace}}}\n\
             status: {{podIP: {ip}, podIPs: [{{ip: {ip}}}]}}\n"
        )
    };
    let text = pod("shop", "10.244.1.5") + &pod("test", "10.244.1.6");
    std::fs::write(directory.path().join("pods.yaml"), text).unwrap();
    let source = SourceArgs { manifests: Some(directory.path().to_owned()), ..SourceArgs::default() };
    let desired = load(&source, &on("node-1")).unwrap();
    let addresses = |name| desired.names.addresses(name).into_iter().map(|(ip, _)| ip.to_string()).collect::<Vec<_>>();
    assert_eq!(addresses("web"), ["10.244.1.5", "10.244.1.6"]);
    assert_eq!(addresses("test/web"), ["10.244.1.6"]);
    assert_eq!(addresses("shop"), [""; 0]);
}

#[test]
fn manifests_with_nodes_are_not_planned_as_demo() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["cluster.yaml", "nginx.yaml"] {
        std::fs::copy(example(name).manifests.unwrap(), directory.path().join(name)).unwrap();
    }
    let source = SourceArgs { manifests: Some(directory.path().to_owned()), ..SourceArgs::default() };
    let desired = load(&source, &on("node-1")).unwrap();
    assert_eq!(desired.node().name, "node-1");
    let ports: Vec<_> = desired.table(IpFamily::V4).entries.iter().collect();
    let (_, nginx) = ports.iter().find(|(name, _)| name.service.name() == "nginx-service").unwrap();
    assert!(nginx.endpoints.is_empty());
    assert!(desired.host.routes.iter().any(|route| route.interface == "cni0"));
}

/// In ipvs mode, a Service's address is an address of the node on all ports, so that the node could not reach the host
/// with this address.
#[test]
fn addresses_of_other_nodes_are_reserved_in_ipvs_mode() {
    let directory = tempfile::tempdir().unwrap();
    let node = |name: &str, address: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
             status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n"
        )
    };
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                   spec: {clusterIP: 10.96.0.1, externalIPs: [192.0.2.1, 192.0.2.2, 203.0.113.1], ports: [{port: 80}]}\n";
    let text = node("node-1", "192.0.2.1") + &node("node-2", "192.0.2.2") + service;
    std::fs::write(directory.path().join("cluster.yaml"), text).unwrap();
    let source = SourceArgs { manifests: Some(directory.path().to_owned()), ..SourceArgs::default() };
    for (mode, expected) in [("ipvs", &["192.0.2.2"][..]), ("iptables", &[]), ("nftables", &[])] {
        let settings = SettingsArgs { proxy_mode: Some(mode.to_owned()), ..on("node-1") };
        let desired = load(&source, &settings).unwrap();
        let lost = desired.table(IpFamily::V4).lost.values().flat_map(|lost| &lost.frontends);
        let lost: Vec<String> = lost.map(|lost| lost.frontend.address.unwrap().to_string()).collect();
        assert_eq!(lost, expected, "{mode}");
    }
}

#[test]
fn invalid_demo_manifests_are_reported_with_object_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.yaml");
    let text = std::fs::read_to_string(example("nginx.yaml").manifests.unwrap()).unwrap();
    std::fs::write(&file, text.replace("nodePort: 31628", "nodePort: 80")).unwrap();
    let source = SourceArgs { manifests: Some(file.clone()), ..SourceArgs::default() };
    let error = format!("{:#}", load(&source, &SettingsArgs::default()).err().unwrap());
    for part in [file.to_str().unwrap(), "Service default/nginx-service", "spec.ports[0].nodePort"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
}

#[test]
fn invalid_services_are_explained_with_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.yaml");
    let valid = BY_HAND.replace("spec:", "# first\nspec:");
    let invalid = SERVICE.replace("10.96.0.1", "10.96.0.300");
    std::fs::write(&file, format!("{valid}---\n{invalid}---\n{}", BY_HAND.replace("10.96.0.2", "10.96.0.400")))
        .unwrap();
    let source = SourceArgs { manifests: Some(directory.path().to_owned()), ..SourceArgs::default() };
    let desired = load(&source, &SettingsArgs::default()).unwrap();
    let place = FilePlace { file, line: Some(7) };
    assert_eq!(desired.invalid, [("default/web".to_owned(), place)].into());
    let explanation = crate::explain::explain_object(&desired, &desired.services["default/web"]);
    let crate::explain::Handling::Invalid { file, line, errors } = explanation.handling else {
        panic!("{explanation:?}")
    };
    assert_eq!((file, line), (Some(desired.invalid["default/web"].file.display().to_string()), Some(7)));
    assert_eq!(errors, ["spec.clusterIP: invalid IP address \"10.96.0.300\""]);
    assert!(crate::explain::not_served("default/web", &desired).is_some_and(|reason| reason.contains("10.96.0.300")));
    // The valid definition applies.
    assert_eq!(crate::explain::not_served("default/bare", &desired), None);
}

#[test]
fn node_ports_on_localhost_are_served_as_by_the_daemon() {
    for mode in ["iptables", "nftables"] {
        let mut config = ferroute_config::KubeProxyConfiguration::default().defaulted();
        config.mode = mode.to_owned();
        config.node_port_addresses = vec!["127.0.0.0/8".to_owned()];
        let resolved = config.resolve().unwrap();
        let node = ferroute_core::NodeView { addresses: vec![ip("192.168.0.1")], ..Default::default() };
        let hosts =
            [super::network::node_host(&node, &resolved), demo_host(ferroute_demo::layout::NodeId::ALL[0], &resolved)];
        for host in hosts {
            let served = resolved.settings.node_ports(IpFamily::V4, &node, &host.addresses);
            assert_eq!(served, ferroute_core::NodePortMatch::Addresses(vec![ip("127.0.0.1")]), "{mode}");
            assert!(host.route_localnet, "{mode}");
        }
    }
}

#[test]
fn slices_of_other_services_are_not_parsed() {
    let slice = |labels: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: a\n  labels:{labels}\naddressType: [\n"
        )
    };
    let is_needed = |text: &str| may_be_needed(text, "web");
    for owner in ["web", "kubernetes", "\"web\"", "'web'", "!!str other", "\"\\x77eb\"", "*alias"] {
        assert!(is_needed(&slice(&format!("\n    kubernetes.io/service-name: {owner}"))), "{owner}");
    }
    for owner in ["other", "\"other\"", "'other'", "web-2"] {
        assert!(!is_needed(&slice(&format!("\n    kubernetes.io/service-name: {owner}"))), "{owner}");
        assert!(!is_needed(&slice(&format!(" {{kubernetes.io/service-name: {owner}}}"))), "{owner}");
    }
    assert!(is_needed(&slice(" {kubernetes.io/service-name: web}")));
    assert!(is_needed(&slice("")));
    assert!(is_needed("kind: Service\nmetadata: {name: other}\n"));
}
