//! Health checks of load balancers and the kubelet.

use std::net::SocketAddr;

use crate::{
    Case, Mode,
    http::{Response, get},
    in_each_mode,
    proxy::healthz,
    slices, wait, web,
};

in_each_mode!(healthz_follows_the_node, health_check_node_ports_follow_local_endpoints);

fn healthz_follows_the_node(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let status = |path| get(&case.cluster.node, healthz(), path).unwrap().status;
    assert_eq!([status("/healthz"), status("/livez"), status("/metricz")], [200, 200, 404]);
    case.files.apply_node("{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}");
    wait("unhealthy", || (status("/healthz") == 503).then_some(()));
    assert_eq!(status("/livez"), 200);
    case.files.apply_node("");
    wait("healthy", || (status("/healthz") == 200).then_some(()));
    let metrics = get(&case.cluster.node, "127.0.0.1:10249".parse().unwrap(), "/metrics").unwrap().body;
    for (probe, code) in [("healthz", 200), ("healthz", 503), ("livez", 200)] {
        let counter = format!("kubeproxy_proxy_{probe}_total{{code=\"{code}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&*counter));
        assert!(line.unwrap().parse::<u32>().unwrap() > 0, "{counter}");
    }
    assert!(metrics.contains("kubeproxy_proxy_livez_total{code=\"503\"} 0\n"), "{metrics}");
}

fn health_check_node_ports_follow_local_endpoints(mode: Mode) {
    let balanced = |pods: &[u8]| {
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: balanced}\n\
             spec: {type: LoadBalancer, clusterIP: 10.96.0.3, externalTrafficPolicy: Local, healthCheckNodePort: 30500,\
             ports: [{name: tcp, port: 80, nodePort: 30080}]}\n";
        format!("{service}{}", slices("balanced", pods))
    };
    let case = Case::new(mode, &balanced(&[0, 1]));
    let port: SocketAddr = "192.168.0.1:30500".parse().unwrap();
    let check = || get(&case.cluster.client, port, "/").ok();
    #[track_caller]
    fn wait_for(check: impl Fn() -> Option<Response>, status: u16, count: usize) {
        wait(&format!("{status} with {count} endpoints"), || {
            let response = check()?;
            let is_count = response.body.contains(&format!("\"localEndpoints\": {count},"));
            (response.status == status && is_count).then_some(())
        });
    }
    wait_for(check, 200, 2);
    case.files.apply(&balanced(&[0]));
    wait_for(check, 200, 1);
    case.files.apply(&balanced(&[0, 1]).replace("node-1", "node-2"));
    wait_for(check, 503, 0);
    case.files.apply(&balanced(&[0, 1, 2]));
    wait_for(check, 200, 3);
    case.files.apply(&web(&[0]));
    wait("the port to close", || check().is_none().then_some(()));
}
