//! Tests of `ferroute check`, and of commands that read files with errors.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
    time::{Duration, Instant},
};

use ferroute_api::labels;
use serde_json::Value;
use tempfile::TempDir;

fn ferroute(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// A directory with one file.
struct Manifest(TempDir);

impl Manifest {
    fn new(contents: impl AsRef<[u8]>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("shop.yaml"), contents).unwrap();
        Self(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shop.yaml")
    }

    /// Checks the file. Returns the exit status and the lines of problems, without the directory.
    fn check(&self, flags: &[&str]) -> (Option<i32>, Vec<String>) {
        let path = self.path();
        let output = ferroute(&[&["check", path.to_str().unwrap()], flags].concat());
        // On a busy machine, any check can take more than a second.
        let errors = text(&output.stderr).lines().find(|line| !line.ends_with(", which takes a while"));
        assert_eq!(errors, None);
        let lines = text(&output.stdout).replace(&format!("{}/", self.0.path().display()), "");
        let lines: Vec<String> = lines.lines().skip(1).map(str::to_owned).collect();
        (output.status.code(), lines)
    }
}

const WEB: &str = "apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.1
  ports:
  - {name: http, port: 80}
";

/// Returns the Service with an annotation, on line 4.
fn annotated(annotation: &str) -> String {
    let metadata = format!("metadata: {{name: web, namespace: shop,\n  annotations: {{{annotation}}}}}");
    WEB.replace("metadata: {name: web, namespace: shop}", &metadata)
}

const SLICE: &str = "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.2]}]
";

const ENDPOINTS: &str = "---
apiVersion: v1
kind: Endpoints
metadata: {name: web, namespace: shop}
subsets: [{addresses: [{ip: 10.244.0.2}], ports: [{name: http, port: 8080}]}]
";

/// Returns a list of these objects.
fn list(items: &[&str]) -> String {
    let item = |text: &&str| format!("- {}\n", text.trim_end().replace('\n', "\n  "));
    format!("apiVersion: v1\nkind: List\nitems:\n{}", items.iter().map(item).collect::<String>())
}

#[test]
fn endpoints_of_invalid_services_are_no_problem_of_their_own() {
    for invalid in [WEB.replace("10.96.0.1", "10.96.0.300"), WEB.replace("port: 80", "port: eighty")] {
        let (_, lines) = Manifest::new(format!("{invalid}{SLICE}")).check(&[]);
        assert!(lines.len() == 2 && lines[0].contains("Service shop/web: spec."), "{lines:#?}");
    }
}

#[test]
fn endpoints_are_counted_by_their_plural() {
    let other = WEB.replace("name: web", "name: cart").replace("10.96.0.1", "10.96.0.2");
    let more = ENDPOINTS.replace("name: web", "name: cart");
    let (_, lines) = Manifest::new(format!("{WEB}{ENDPOINTS}---\n{other}{more}")).check(&[]);
    assert_eq!(lines, ["no problems: 2 Endpoints, 2 Services in 1 file"]);
}

#[test]
fn entries_of_a_directory_that_are_not_read_are_problems() {
    let manifest = Manifest::new(WEB);
    let directory = manifest.0.path();
    fs::write(directory.join("upper.YAML"), WEB).unwrap();
    fs::create_dir(directory.join("directory.yaml")).unwrap();
    std::os::unix::fs::symlink("nowhere", directory.join("link.json")).unwrap();
    assert!(Command::new("mkfifo").arg(directory.join("pipe.yml")).status().unwrap().success());
    let output = ferroute(&["check", directory.to_str().unwrap()]);
    for name in ["upper.YAML", "directory.yaml", "link.json", "pipe.yml"] {
        let place = format!("{}: skipped: ", directory.join(name).display());
        assert!(text(&output.stdout).contains(&place), "{name}: {output:?}");
    }
    assert_eq!(output.status.code(), Some(1));
    let flags = ["--hostname-override", "n", "--manifests", directory.to_str().unwrap()];
    let output = ferroute(&[&["explain", "shop/web"], &flags[..]].concat());
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn valid_manifests_have_no_problems() {
    let config_map = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n";
    let (status, lines) = Manifest::new(format!("{WEB}{SLICE}{config_map}")).check(&[]);
    assert_eq!(lines, ["no problems: 1 EndpointSlice, 1 Service in 1 file"]);
    assert_eq!(status, Some(0));
}

#[test]
fn a_directory_without_manifests_is_a_problem() {
    let manifest = Manifest::new(WEB);
    fs::rename(manifest.path(), manifest.path().with_extension("yaml.bak")).unwrap();
    let directory = manifest.0.path().to_str().unwrap();
    let output = ferroute(&["check", directory]);
    assert!(output.status.code() == Some(1) && text(&output.stdout).contains(&format!("{directory}: ")), "{output:?}");
}

#[test]
fn everything_that_is_not_used_is_a_problem() {
    let ending = |lines: &[String]| lines.last().cloned().unwrap_or_default();
    let cases: [(String, &[&str], &str); 25] = [
        (
            WEB.replace("port: 80", "prot: 80"),
            &[],
            "shop.yaml:7: Service shop/web: spec.ports[0].prot: ignored: unknown field (did you mean \"port\"?)",
        ),
        (
            WEB.replace("kind: Service", "kind: Servce"),
            &[],
            "shop.yaml:1: Servce shop/web: ignored: unknown kind \"Servce\" of \"v1\" (did you mean \"Service\"?)",
        ),
        (
            annotated("ferroute.io/max-connections: many"),
            &[],
            "shop.yaml:4: Service shop/web: metadata.annotations[ferroute.io/max-connections]: ignored: invalid number of connections \
             \"many\" (want 1 to 100000)",
        ),
        (
            annotated("ferroute.io/load-balancing: fastest"),
            &[],
            "shop.yaml:4: Service shop/web: metadata.annotations[ferroute.io/load-balancing]: ignored: unsupported value ",
        ),
        (WEB.replace("  clusterIP: 10.96.0.1\n", ""), &[], "shop.yaml:1: Service shop/web: spec.clusterIP: rejected: "),
        (WEB.replace("10.96.0.1", "10.96.0.300"), &[], "shop.yaml:1: Service shop/web: spec.clusterIP: rejected: "),
        (WEB.replace("10.96.0.1", "None"), &[], "shop.yaml:1: Service shop/web: skipped: "),
        (WEB.replace("port: 80", "port: eighty"), &[], "shop.yaml:7: Service shop/web: spec.ports[0].port: rejected: "),
        (WEB.replace("spec:", "spec: ["), &[], "shop.yaml:"),
        (format!("{WEB}---\n{WEB}"), &[], "shop.yaml:9: Service shop/web: ignored: already defined in shop.yaml:1"),
        (
            format!("{WEB}---\n{}", WEB.replace("name: web", "name: cart")),
            &[],
            "shop.yaml:1: Service shop/web: ignored: port http (IPv4, tcp): cluster IP 10.96.0.1, port 80 belongs to shop/cart:http \
             (cluster IP)",
        ),
        (
            format!("{WEB}{}", SLICE.replace("name: http", "name: htpp")),
            &[],
            "shop.yaml:9: EndpointSlice shop/web-1: ignored: ",
        ),
        (
            format!("{WEB}{}", SLICE.replace("kubernetes.io/service-name", "other")),
            &[],
            "shop.yaml:9: EndpointSlice shop/web-1: skipped: ",
        ),
        (
            format!("{WEB}{SLICE}").replace("port: 80", "protocol: SCTP, port: 80"),
            &["--proxy-mode", "userspace"],
            "shop.yaml:1: Service shop/web: limited: port http (IPv4, sctp): ",
        ),
        (WEB.replace("port: 80", "port: 80, protocol: tcp"), &[], "shop.yaml:1: Service shop/web: spec.ports[0].protocol: rejected: "),
        (
            format!("{WEB}{}", SLICE.replace("port: 8080", "port: 8080, protocol: udp")),
            &[],
            "shop.yaml:9: EndpointSlice shop/web-1: ports[0].protocol: rejected: ",
        ),
        (
            format!("{WEB}{}", SLICE.replace("service-name: web", "service-name: cart")),
            &[],
            "shop.yaml:9: EndpointSlice shop/web-1: ignored: there is no Service shop/cart",
        ),
        (
            list(&[&WEB.replace("clusterIP: 10.96.0.1", "clusterIP: 10.96.0.1\n  externalIPs: [127.0.0.1]")]),
            &[],
            "shop.yaml:4: Service shop/web: items[0].spec.externalIPs[0]: ignored: ",
        ),
        (
            format!("{WEB}{}", ENDPOINTS.replace("10.244.0.2}", "10.244.0.2}, {ip: 127.0.0.1}")),
            &[],
            "shop.yaml:9: Endpoints shop/web: subsets[0].addresses[1].ip: ignored: ",
        ),
        (
            format!("{WEB}{}", ENDPOINTS.replace("namespace: shop", "namespace: shop, labels: {endpointslice.kubernetes.io/skip-mirror: \"true\"}")),
            &[],
            "shop.yaml:9: Endpoints shop/web: skipped: it has the label ",
        ),
        (
            format!("{WEB}{}", SLICE.replace("[10.244.0.2]", "[10.244.0.2, 10.244.0.3]")),
            &[],
            "shop.yaml:9: EndpointSlice shop/web-1: endpoints[0].addresses[1]: ignored: ",
        ),
        (
            format!("{WEB}{}", ENDPOINTS.replace("name: http", "name: htpp")),
            &[],
            "shop.yaml:9: Endpoints shop/web: ignored: it has no port http/tcp, only htpp/tcp",
        ),
        (
            format!("{WEB}{SLICE}{ENDPOINTS}"),
            &[],
            "shop.yaml:16: Endpoints shop/web: ignored: its Service has EndpointSlices, such as shop/web-1",
        ),
        (
            format!("{WEB}{}", ENDPOINTS.replace("name: web", "name: cart")),
            &[],
            "shop.yaml:9: Endpoints shop/cart: ignored: there is no Service shop/cart",
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items:\n  - {apiVersion: v1, kind: Servce}\n".to_owned(),
            &[],
            "shop.yaml:7: Servce: items[0].items[0]: ignored: unknown kind \"Servce\" of \"v1\"",
        ),
    ];
    for (manifest, flags, expected) in cases {
        let (status, lines) = Manifest::new(&manifest).check(flags);
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{expected}\nis missing in {lines:#?}");
        assert_eq!(status, Some(1), "{lines:?}");
        assert!(!ending(&lines).starts_with("no problems"), "{lines:?}");
    }
}

/// The time must not grow with the square of the number of annotations.
#[test]
fn any_number_of_annotations_is_checked() {
    let annotations = (0..5_000).map(|i| format!("example.com/a{i}: x,\n ferroute.io/unknown-{i:05}: x"));
    let manifest = Manifest::new(annotated(&annotations.collect::<Vec<_>>().join(",\n ")));
    let start = Instant::now();
    let (status, lines) = manifest.check(&[]);
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
    assert_eq!((status, lines.len()), (Some(1), 21), "as many as are kept of an object, and the sum");
    let first =
        "shop.yaml:5: Service shop/web: metadata.annotations[ferroute.io/unknown-00000]: ignored: unknown annotation";
    assert_eq!(lines[0], first);
}

#[test]
fn report_as_json_has_the_location() {
    let manifest = Manifest::new(WEB.replace("clusterIP:", "clusterIp:"));
    let path = manifest.path();
    let output = ferroute(&["check", path.to_str().unwrap(), "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = report["problems"].as_array().unwrap();
    let unknown = problems.iter().find(|problem| problem["line"] == 5).unwrap();
    assert_eq!((&unknown["field"], &unknown["effect"]), (&"spec.clusterIp".into(), &"ignored".into()), "{report:#}");
    assert_eq!(report["about"]["objects"]["value"], path.to_str().unwrap());
}

/// Files that cannot be read, by their description.
fn unreadable() -> [(&'static str, Vec<u8>); 4] {
    let utf16 = WEB.encode_utf16().flat_map(u16::to_le_bytes);
    [
        ("invalid YAML", b"apiVersion: v1\nkind: Service\nmetadata: [name: web\n".to_vec()),
        ("gzip", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b, 0x4c, 0x4a, 6, 0]),
        ("UTF-16", [0xff, 0xfe].into_iter().chain(utf16).collect()),
        (
            "a field of the wrong type beside a valid Service",
            format!("{WEB}---\n{}", WEB.replace("port: 80", "port: a")).into(),
        ),
    ]
}

#[test]
fn files_that_cannot_be_read_are_errors_of_every_command() {
    let commands: [&[&str]; 6] = [
        &["render"],
        &["explain", "service", "shop/web"],
        &["trace", "--local", "--to", "shop/web"],
        &["diff"],
        &["preflight", "--from", "iptables"],
        &["doctor", "--no-connect"],
    ];
    for (description, contents) in unreadable() {
        let manifest = Manifest::new(contents);
        let path = manifest.path();
        // Commands that convert files of other formats.
        let remedy = [("gzip", "gzip -dc"), ("UTF-16", "iconv")];
        let remedy = remedy.iter().find(|(format, _)| *format == description).map_or("", |(_, remedy)| remedy);
        for command in commands {
            let flags = ["--hostname-override", "node-1", "--manifests", path.to_str().unwrap()];
            let output = ferroute(&[command, &flags].concat());
            assert!(output.stdout.is_empty(), "{description}, {command:?}: {output:?}");
            assert_ne!(output.status.code(), Some(0), "{description}, {command:?}");
            let error = text(&output.stderr);
            assert!(error.contains("shop.yaml") && error.contains(remedy), "{description}, {command:?}: {output:?}");
        }
        let output = ferroute(&["check", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{description}: {output:?}");
    }
}

#[test]
fn rules_of_invalid_services_alone_are_an_error() {
    let manifest = Manifest::new(WEB.replace("  clusterIP: 10.96.0.1\n", ""));
    let output = ferroute(&["render", "--hostname-override", "n", "--manifests", manifest.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty() && text(&output.stderr).contains("spec.clusterIP: required"), "{output:?}");
}

#[test]
fn services_can_be_named_as_for_kubectl() {
    let manifest = Manifest::new(format!("{WEB}{SLICE}"));
    let path = manifest.path();
    let flags = ["--hostname-override", "node-1", "--manifests", path.to_str().unwrap()];
    let names: [&[&str]; 5] =
        [&["shop/web"], &["web", "-n", "shop"], &["svc/web", "-n", "shop"], &["svc/shop/web"], &["service/shop/web"]];
    for name in names {
        let output = ferroute(&[&["explain", "service"], name, &flags].concat());
        assert!(text(&output.stdout).contains("Service shop/web, type ClusterIP"), "{name:?}: {output:?}");
        let output = ferroute(&[&["trace", "--from", "10.244.0.9", "--in", "eth0", "--to"], name, &flags].concat());
        assert!(text(&output.stdout).contains("10.96.0.1:80 (shop/web:http, cluster IP)"), "{name:?}: {output:?}");
    }
}

#[test]
fn missing_node_is_named_with_those_of_the_file() {
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nspec: {podCIDR: 10.244.0.0/24, podCIDRs: \
                [10.244.0.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n";
    let manifest = Manifest::new(format!("{WEB}{SLICE}{node}"));
    let path = manifest.path();
    let flags = ["--manifests", path.to_str().unwrap(), "--hostname-override", "vm"];
    let output = ferroute(&[&["trace", "--from", "10.244.0.9", "--to", "shop/web"], &flags[..]].concat());
    let expected = format!("no Node vm in {}; it has node-a: use --hostname-override node-a", path.display());
    assert!(text(&output.stderr).contains(&expected), "{output:?}");
}

/// Returns the examples: names and contents.
fn examples() -> Vec<(String, String)> {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.display().to_string(), fs::read_to_string(file).unwrap())).collect()
}

#[test]
fn commands_in_examples_succeed() {
    let mut count = 0;
    for (file, contents) in examples() {
        let commands = contents.lines().filter_map(|line| line.strip_prefix("#   ferroute "));
        for command in commands.filter(|command| command.contains("--manifests")) {
            let arguments: Vec<&str> = command.split_whitespace().collect();
            let output = Command::new(env!("CARGO_BIN_EXE_ferroute"))
                .args(arguments)
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
                .output()
                .unwrap();
            assert!(output.status.success(), "{file}: {command}: {}", text(&output.stderr));
            assert!(!output.stdout.is_empty(), "{file}: {command}");
            count += 1;
        }
    }
    assert!(count > 12, "{count}");
}

#[test]
fn each_annotation_has_an_example_that_nothing_is_ignored_of() {
    let examples = examples();
    let annotations = [&labels::SERVICE_ANNOTATIONS[..], &labels::SLICE_ANNOTATIONS].concat();
    for annotation in annotations.iter().filter(|annotation| annotation.starts_with(labels::OWN_PREFIX)) {
        let setting = format!("    {annotation}: ");
        assert!(examples.iter().any(|(_, contents)| contents.contains(&setting)), "{annotation}");
    }
    for (file, _) in examples.iter().filter(|(_, contents)| contents.contains("    ferroute.io/")) {
        let output = ferroute(&["check", file, "--proxy-mode", "nftables"]);
        assert!(!text(&output.stdout).contains("annotations"), "{file}: {}", text(&output.stdout));
    }
}

#[test]
fn fields_without_effect_are_reported_with_their_lines() {
    let checked = |fields: &str| {
        let (status, lines) = Manifest::new(format!("{WEB}{fields}\n{SLICE}")).check(&[]);
        let problems: Vec<String> = lines.into_iter().filter(|line| line.contains("ignored: ")).collect();
        assert_eq!(status, Some(i32::from(!problems.is_empty())), "{fields}: {problems:?}");
        problems
    };
    for (fields, expected) in [
        (
            "  loadBalancerSourceRanges: [192.0.2.0/24]",
            Some("loadBalancerSourceRanges: ignored: only load balancer addresses"),
        ),
        ("  externalTrafficPolicy: Local", Some("externalTrafficPolicy: ignored: only Services with node ports")),
        ("  externalTrafficPolicy: Local\n  externalIPs: [203.0.113.1]", None),
        ("  externalTrafficPolicy: Local\n  type: NodePort", None),
        (
            "  sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}",
            Some("sessionAffinityConfig: ignored: sessionAffinity is not"),
        ),
        ("  sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}\n  sessionAffinity: ClientIP", None),
        ("  healthCheckNodePort: 30001\n  type: LoadBalancer", Some("healthCheckNodePort: ignored: only the type")),
        ("  healthCheckNodePort: 30001\n  externalTrafficPolicy: Local\n  type: LoadBalancer", None),
        ("  healthCheckNodePort: 0", None),
        ("  ipFamilies: [IPv6]", Some("ipFamilies: ignored: the cluster IP 10.96.0.1 is of the other family")),
        ("  ipFamilies: [IPv4, IPv6]\n  ipFamilyPolicy: PreferDualStack", None),
        ("  ipFamilyPolicy: Dual", Some("ipFamilyPolicy: ignored: unsupported value \"Dual\"")),
        (
            "  trafficDistribution: PreferCloser",
            Some("trafficDistribution: ignored: unsupported value \"PreferCloser\""),
        ),
        ("  trafficDistribution: PreferSameNode", None),
        ("  loadBalancerClass: example.com/x\n  type: NodePort", Some("loadBalancerClass: ignored: only the type")),
        ("  loadBalancerClass: null\n  loadBalancerIP: \"\"", None),
        ("  loadBalancerIP: 198.51.100.1", Some("loadBalancerIP: ignored: only the type LoadBalancer has it")),
        ("  loadBalancerClass: example.com/x\n  loadBalancerIP: 198.51.100.1\n  type: LoadBalancer", None),
    ] {
        let problems = checked(fields);
        let expected = expected.map(|text| format!("shop.yaml:8: Service shop/web: spec.{text}"));
        assert_eq!(problems.len(), usize::from(expected.is_some()), "{fields}: {problems:?}");
        assert!(problems.iter().zip(&expected).all(|(line, text)| line.starts_with(text)), "{fields}: {problems:?}");
    }
    // In a list.
    let items = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: web, namespace: shop}\n  \
                 spec:\n    clusterIP: 10.96.0.1\n    loadBalancerClass: x\n    ports: [{port: 80}]\n";
    let (_, lines) = Manifest::new(items).check(&[]);
    assert!(
        lines.iter().any(|line| line.starts_with("shop.yaml:9: Service shop/web: items[0].spec.loadBalancerClass")),
        "{lines:?}"
    );
}
