//! Tests of `ferroute render`.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    path::Path,
    process::{Command, Output},
};

fn example() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.yaml").to_owned()
}

fn render(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferroute")).arg("render").args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr_of_failure(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn iptables_rules_of_the_example_are_rendered() {
    let output = render(&["--hostname-override", "node-1", "--manifests", &example()]);
    let text = stdout(&output);
    for rule in [
        r#"-A KUBE-SERVICES -d 198.51.100.7/32 -p tcp -m comment --comment "shop/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-"#,
        r#"-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-"#,
        r#"-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http health check node port" -m tcp --dport 30500 -j ACCEPT"#,
        r#"-m recent --rcheck --seconds 600 --reap"#,
        r#"-A KUBE-SERVICES -d 10.96.0.82/32 -p tcp -m comment --comment "shop/search has no endpoints" -m tcp --dport 9200 -j REJECT"#,
    ] {
        assert!(text.contains(rule), "{rule}\nis missing in\n{text}");
    }
    let (first, text) = text.split_once('\n').unwrap();
    assert!(
        first.starts_with("# no Ferroute proxy runs here: node node-1 (given), iptables mode (assumed), objects of "),
        "{first}"
    );
    assert!(text.starts_with("# IPv4 rules of node node-1\n") && text.contains("\n# IPv6 rules of node node-1\n"));
}

#[test]
fn nft_loads_the_rendered_nftables_rules() {
    let arguments = ["--proxy-mode", "nftables", "--hostname-override", "node-1", "--manifests", &example()];
    let output = render(&arguments);
    let text = stdout(&output);
    for line in [
        r#"add element ip ferroute services { 198.51.100.7 . tcp . 80 comment "shop/web:http" : "#,
        r#"add element ip ferroute services { 10.96.0.82 . tcp . 9200 comment "shop/search" : "#,
        "add table ip6 ferroute ",
    ] {
        assert!(text.contains(line), "{line}\nis missing in\n{text}");
    }
    let namespace = ferroute_testing::NetNs::new();
    namespace.feed("nft", &["-f", "-"], text);
    assert!(namespace.command("nft", &["list", "table", "ip", "ferroute"]).contains("shop/web:http"));
}

#[test]
fn demo_manifests_are_rendered_with_the_endpoints_of_the_demo() {
    let nginx = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/nginx.yaml");
    let output = render(&["--manifests", nginx]);
    for rule in
        ["! -s 172.17.0.0/16 -d 10.111.175.78/32 -p tcp", r#"--comment "default/nginx-service -> 172.17.0.5:80""#]
    {
        assert!(stdout(&output).contains(rule), "{rule} is missing in {}", stdout(&output));
    }
}

#[test]
fn local_endpoints_depend_on_the_node() {
    let local = |node| {
        let output = render(&["--hostname-override", node, "--family", "ipv4", "--manifests", &example()]);
        let svl = stdout(&output).lines().filter(|line| line.starts_with("-A KUBE-SVL-")).map(str::to_owned);
        svl.collect::<Vec<_>>()
    };
    assert!(local("node-1")[0].contains("shop/web:http -> 10.244.1.5:8080"), "{:?}", local("node-1"));
    assert!(local("node-2")[0].contains("shop/web:http -> 10.244.2.7:8080"), "{:?}", local("node-2"));
    assert_eq!(local("node-3"), [""; 0]);
}

#[test]
fn configuration_is_applied() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node-1\n\
                iptables: {masqueradeBit: 7, masqueradeAll: true}\n";
    std::fs::write(&config, text).unwrap();
    let output = render(&["--config", config.to_str().unwrap(), "--family", "ipv4", "--manifests", &example()]);
    assert!(stdout(&output).contains("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x80/0x80"));
    assert!(stdout(&output).contains(r#"-d 10.96.0.81/32 -p tcp -m comment --comment "shop/cart:grpc cluster IP" -m tcp --dport 9000 -j KUBE-MARK-MASQ"#));
}

#[test]
fn invalid_configuration_and_missing_manifests_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    std::fs::write(&config, format!("{header}bindAddress: nowhere\n")).unwrap();
    let output = render(&["--config", config.to_str().unwrap(), "--manifests", &example()]);
    let text = stderr_of_failure(&output);
    assert!(text.contains("BindAddress: Invalid value: \"nowhere\""), "{text}");

    let missing = directory.path().join("none.yaml");
    let output = render(&["--manifests", missing.to_str().unwrap()]);
    let text = stderr_of_failure(&output);
    assert!(text.contains(missing.to_str().unwrap()) && text.contains("No such file"), "{text}");
}

#[test]
fn directory_without_manifests_is_an_error_of_every_command() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("manifests.txt"), "").unwrap();
    let path = directory.path().to_str().unwrap();
    for arguments in [
        &["render", "--manifests", path][..],
        &["explain", "web", "--manifests", path],
        &["diff", "--manifests", path],
        &["trace", "--local", "--to", "10.96.0.1:80", "--manifests", path],
        &["check", path],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(text.contains(&format!("no manifests in {path}")), "{arguments:?}: {text}");
    }
}

#[test]
fn files_without_objects_are_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    for (text, is_empty) in [
        ("", true),
        ("# kind: Service\n---\n", true),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", true),
        ("apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n", false),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = render(&["--hostname-override=node-1", "--manifests", file.to_str().unwrap()]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        assert_eq!(stderr.contains("has no objects that a proxy reads"), is_empty, "{text}: {stderr}");
    }
}

#[test]
fn invalid_objects_are_reported_and_the_others_rendered() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("all.yaml");
    let invalid = "---\napiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: shop}\n\
               spec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}\n";
    std::fs::write(&manifest, std::fs::read_to_string(example()).unwrap() + invalid).unwrap();
    let output = render(&["--hostname-override", "node-1", "--manifests", manifest.to_str().unwrap()]);
    assert!(stdout(&output).contains("shop/web:http cluster IP"));
    assert!(!stdout(&output).contains("shop/bad"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    for part in ["shop/bad", "spec.clusterIP", "10.96.0.300", manifest.to_str().unwrap()] {
        assert!(stderr.contains(part), "{part} is missing in {stderr}");
    }
}

#[test]
fn closed_pipe_is_not_an_error() {
    let command = format!("{} render --manifests {} | head -n 1", env!("CARGO_BIN_EXE_ferroute"), example());
    let output = Command::new("bash").args(["-o", "pipefail", "-c", &command]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(Path::new(&example()).exists());
}
