//! Checks that the files in `deploy/` match the program.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::Parser;
use ferroute_config::{
    flags::{KubeProxy, RawArgs, RunArgs},
    settings::{self, Settings},
};
use ferroute_kube::Permission;
use ferroute_modes::REGISTRY;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::DaemonSet,
    core::v1::{Pod, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Cli, Command};

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads the documents of a YAML file.
fn documents(path: &Path) -> Vec<Value> {
    let text = read(path);
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn strings(value: &Value) -> Vec<&str> {
    let list = value.as_array().unwrap_or_else(|| panic!("not a list: {value}"));
    list.iter().map(|item| item.as_str().expect("a string")).collect()
}

/// Parses the arguments of `ferroute run`.
#[track_caller]
fn run_args(line: &[&str]) -> RawArgs<RunArgs> {
    match Cli::try_parse_from([&["ferroute"], line].concat()).expect("a valid command line").command {
        Command::Run(args) => *args,
        command => panic!("not the command run: {command:?}"),
    }
}

/// Loads the settings from a configuration file in `deploy/` with these arguments.
#[track_caller]
fn settings(args: &RawArgs<RunArgs>, file: &str) -> Settings {
    let path = deploy(file);
    settings::from_file(args, &path, &read(&path), &REGISTRY.names()).expect("a valid configuration")
}

/// Returns all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn yaml_files_are_valid() {
    let yaml: Vec<PathBuf> = files(&deploy(""))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml" || extension == "conf"))
        .collect();
    assert!(yaml.len() >= 8, "{yaml:?}");
    // Files of Prometheus and Helm have no type, or are templates, and have separate tests.
    let others = [deploy("monitoring"), deploy("helm")];
    for path in yaml.into_iter().filter(|path| !others.iter().any(|other| path.starts_with(other))) {
        for document in documents(&path) {
            let has_type = document["kind"].is_string() && document["apiVersion"].is_string();
            assert!(has_type, "{}: {document}", path.display());
        }
    }
}

#[test]
fn manifests_have_the_fields_of_kubernetes() {
    for path in ["kubernetes", "kubeadm", "canary"].into_iter().flat_map(|directory| files(&deploy(directory))) {
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        for document in documents(&path) {
            let unknown = match document["kind"].as_str().expect("a kind") {
                "ClusterRole" => unknown_fields::<ClusterRole>(document),
                "ClusterRoleBinding" => unknown_fields::<ClusterRoleBinding>(document),
                "DaemonSet" => unknown_fields::<DaemonSet>(document),
                "Pod" => unknown_fields::<Pod>(document),
                "ServiceAccount" => unknown_fields::<ServiceAccount>(document),
                "ValidatingAdmissionPolicy" => unknown_fields::<ValidatingAdmissionPolicy>(document),
                "ValidatingAdmissionPolicyBinding" => unknown_fields::<ValidatingAdmissionPolicyBinding>(document),
                // Read by kustomize and by kubeadm.
                "Kustomization" | "UpgradeConfiguration" => Vec::new(),
                kind => panic!("{}: unexpected kind {kind}", path.display()),
            };
            assert_eq!(unknown, Vec::<String>::new(), "{}", path.display());
        }
    }
}

/// Returns the paths of fields that the type of a Kubernetes object does not have.
#[track_caller]
fn unknown_fields<T: DeserializeOwned>(document: Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let _: T = serde_ignored::deserialize(document, |path| unknown.push(path.to_string())).expect("a valid object");
    unknown
}

#[test]
fn files_of_kustomizations_exist() {
    for directory in ["kubernetes", "kubeadm", "canary"] {
        let kustomization = documents(&deploy(&format!("{directory}/kustomization.yaml"))).remove(0);
        let patches = kustomization["patches"].as_array().into_iter().flatten().map(|patch| &patch["path"]);
        let maps = kustomization["configMapGenerator"].as_array().into_iter().flatten();
        let map_files = maps.flat_map(|map| map["files"].as_array().expect("files"));
        let resources = kustomization["resources"].as_array().expect("resources");
        for file in resources.iter().chain(patches).chain(map_files) {
            let file = file.as_str().expect("a string");
            // The administrator exports this file from the cluster.
            if (directory, file) != ("kubeadm", "kube-proxy.yaml") {
                let path = deploy(directory).join(file);
                assert!(path.is_file() || path.join("kustomization.yaml").is_file(), "{directory}/{file}");
            }
        }
    }
}

#[test]
fn roles_grant_exactly_the_required_permissions() {
    assert_eq!(granted("kubernetes/rbac.yaml"), permissions(Permission::required()));
    assert_eq!(granted("kubernetes/startup-taint.yaml"), permissions(Permission::startup_taint()));
}

/// API group, resource and verb of each permission.
type Permissions = BTreeSet<(String, String, String)>;

fn permissions(permissions: impl IntoIterator<Item = Permission>) -> Permissions {
    let tuple = |Permission { group, resource, verb }| (group.to_owned(), resource.to_owned(), verb.to_owned());
    permissions.into_iter().map(tuple).collect()
}

/// Returns the document of this kind in a file.
fn document(file: &str, kind: &str) -> Value {
    let mut found = documents(&deploy(file)).into_iter().filter(|document| document["kind"] == kind);
    let (Some(document), None) = (found.next(), found.next()) else { panic!("{file}: expected one {kind}") };
    document
}

/// Returns the permissions of the role in a file.
fn granted(file: &str) -> Permissions {
    let role = document(file, "ClusterRole");
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().expect("rules") {
        assert_eq!(rule.as_object().expect("a rule").len(), 3, "{rule}");
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                let verbs = strings(&rule["verbs"]).into_iter();
                granted.extend(verbs.map(|verb| (group.to_owned(), resource.to_owned(), verb.to_owned())));
            }
        }
    }
    granted
}

/// RBAC grants the right to patch every Node; the policy must apply to the same account and be enforced.
#[test]
fn right_to_patch_nodes_is_limited_by_a_policy() {
    let file = "kubernetes/startup-taint.yaml";
    let policy = document(file, "ValidatingAdmissionPolicy");
    let binding = document(file, "ValidatingAdmissionPolicyBinding");
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    // Without selectors, the binding and the policy apply to all Nodes.
    assert_eq!(binding["spec"].as_object().expect("a spec").len(), 2);
    let constraints = policy["spec"]["matchConstraints"].as_object().expect("constraints");
    assert_eq!(constraints.len(), 1);
    let rule = &constraints["resourceRules"][0];
    assert_eq!([&rule["apiVersions"], &rule["operations"]], [&json!(["*"]), &json!(["*"])]);
    assert!(strings(&rule["resources"]).contains(&"nodes"));
    let subject = &document(file, "ClusterRoleBinding")["subjects"][0];
    let [namespace, name] = [&subject["namespace"], &subject["name"]].map(|value| value.as_str().expect("a string"));
    assert_eq!(
        policy["spec"]["matchConditions"],
        json!([{
            "name": "ferroute",
            "expression": format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'"),
        }])
    );
    // The taint is the one in the documentation, which sets it on the command line.
    let key = policy["spec"]["variables"][0]["expression"].as_str().expect("an expression").trim_matches('\'');
    let example = format!("--startup-taint {key} ");
    assert!(read(&deploy("../docs/deploy.md")).contains(&example), "{example}");
}

/// The test `net_admin_and_net_raw_suffice` runs the proxy with these capabilities.
#[test]
fn proxy_container_has_only_the_required_privileges() {
    let pod = &document("kubernetes/daemonset.yaml", "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"], json!({"seccompProfile": {"type": "RuntimeDefault"}}));
    let [proxy] = pod["containers"].as_array().expect("containers").as_slice() else { panic!("expected one: {pod}") };
    assert_eq!(
        proxy["securityContext"],
        json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]},
        })
    );
    let writable = |mount: &&Value| mount["readOnly"] != true;
    let mounts = proxy["volumeMounts"].as_array().expect("mounts");
    let writable: Vec<_> = mounts.iter().filter(writable).map(|mount| &mount["mountPath"]).collect();
    assert_eq!(writable, ["/run/xtables.lock"]);
    let [init] = pod["initContainers"].as_array().expect("containers").as_slice() else {
        panic!("expected one: {pod}")
    };
    assert!(strings(&init["args"]).contains(&"--init-only"), "the privileged container only sets kernel parameters");
    for container in [proxy, init] {
        assert!(container["resources"]["limits"]["memory"].is_string(), "{container}");
    }
}

#[test]
fn daemonset_has_valid_arguments_and_probes() {
    let daemonset = document("kubernetes/daemonset.yaml", "DaemonSet");
    let pod = &daemonset["spec"]["template"]["spec"];
    let init = run_args(&strings(&pod["initContainers"][0]["args"]));
    assert!(init.args.proxy.general.init_only.0);
    let main = run_args(&strings(&pod["containers"][0]["args"]));
    for args in [&init, &main] {
        let settings = settings(args, "kubernetes/config.conf");
        assert_eq!(settings.warnings, Vec::<String>::new());
        // Both files are in the mounted ConfigMap.
        let map = Path::new(pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str().expect("a path"));
        assert_eq!(args.args.proxy.general.config_file(), Some(map.join("config.conf").as_path()));
        assert_eq!(Path::new(&settings.config.client_connection.kubeconfig), map.join("kubeconfig.conf"));
        // Probes use the port that the configuration sets.
        let port = settings.resolved.healthz.expect("an address").port();
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(pod["containers"][0][probe]["httpGet"]["port"], port, "{probe}");
        }
    }
}

/// The chart passes them on, so a pod with a flag that the program refuses would never start.
#[test]
fn flags_in_values_of_the_chart_are_accepted() {
    let mut flags: Vec<String> = Vec::new();
    for file in files(&deploy("helm/test")) {
        if file.extension().is_some_and(|extension| extension == "yaml") {
            let values = documents(&file).remove(0);
            flags.extend(
                values["extraArgs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|flag| flag.as_str().expect("a string").to_owned()),
            );
        }
    }
    let comments = read(&deploy("helm/values.yaml"));
    let words = comments.split_whitespace().filter(|word| word.starts_with("--"));
    flags.extend(words.map(|word| word.trim_end_matches('.').to_owned()));
    assert!(flags.len() > 1, "{flags:?}");
    for flag in flags {
        run_args(&["run", &flag]);
    }
}

#[test]
fn systemd_unit_has_valid_arguments() {
    let unit = read(&deploy("systemd/ferroute.service"));
    let lines: Vec<Vec<&str>> = unit
        .lines()
        .filter(|line| line.starts_with("ExecStart"))
        .filter_map(|line| Some(line.split_once("/usr/local/bin/ferroute ")?.1.split(' ').collect()))
        .collect();
    let [init, main] = lines.as_slice() else { panic!("expected two commands: {lines:?}") };
    assert!(run_args(init).args.proxy.general.init_only.0);
    let args = run_args(main);
    assert!(args.args.manifests.is_some());
    let settings = settings(&args, "systemd/config.yaml");
    assert_eq!(settings.warnings, Vec::<String>::new());
    let score = settings.resolved.oom_score_adj.expect("a score");
    assert!(unit.contains(&format!("OOMScoreAdjust={score}\n")), "{unit}");
}

/// The worker of userspace mode is a child of the proxy and outlives it.
#[test]
fn systemd_unit_keeps_other_processes_than_the_proxy() {
    let unit = read(&deploy("systemd/ferroute.service"));
    assert!(unit.lines().any(|line| line == "KillMode=process"), "{unit}");
}

#[test]
fn systemd_unit_has_only_the_required_privileges() {
    let unit = read(&deploy("systemd/ferroute.service"));
    for line in [
        "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "SystemCallFilter=@system-service",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    let values = |key| unit.lines().filter_map(move |line| line.strip_prefix(key));
    assert_eq!(values("ReadWritePaths=").collect::<Vec<_>>(), ["/run/xtables.lock"]);
    // The unit would not start without the file.
    assert!(values("ExecStartPre=").any(|command| command.starts_with('+') && command.ends_with(" /run/xtables.lock")));
}

#[test]
fn image_runs_the_command_lines_of_kube_proxy_manifests() {
    let image = read(&deploy("Dockerfile"));
    // The build collects all files in a directory, which becomes the image.
    for part in ["ln -s ferroute /image/usr/local/bin/kube-proxy ", "\nFROM scratch\nCOPY --from=gather /image /\n"] {
        assert!(image.contains(part), "{image}");
    }
    // kubeadm's command line, and one with only flags.
    for line in [
        "/usr/local/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)",
        "kube-proxy --v=2 --kubeconfig=/var/lib/kube-proxy/kubeconfig --cluster-cidr=10.244.0.0/16 \
         --conntrack-max-per-core=131072 --oom-score-adj=-998 --proxy-mode=iptables --feature-gates=A=true",
    ] {
        KubeProxy::try_parse_from(line.split(' ')).expect(line);
    }
}

#[test]
fn images_have_the_version_of_the_crate() {
    let version = env!("CARGO_PKG_VERSION");
    let kustomization = documents(&deploy("kubernetes/kustomization.yaml")).remove(0);
    assert_eq!(kustomization["images"][0]["newTag"], version);
    let image = format!("registry.example.org/ferroute:{version}");
    let patch = document(KUBEADM_PATCH, "DaemonSet");
    let check = document("kubeadm/check.yaml", "Pod");
    let containers = [&patch["spec"]["template"]["spec"], &check["spec"]].map(|pod| pod["containers"].as_array());
    for container in containers.into_iter().flat_map(|containers| containers.expect("containers")) {
        assert_eq!(container["image"], image.as_str(), "{container}");
    }
    assert!(read(&deploy("Dockerfile")).contains(&image));
}

/// kubeadm 1.37 finds the patch of its DaemonSet by the file's name, and ignores other files.
const KUBEADM_PATCH: &str = "kubeadm/patches/kubeproxydaemonset.yaml";

#[test]
fn kubeadm_patch_changes_only_the_image() {
    let mut patch = document(KUBEADM_PATCH, "DaemonSet");
    patch["spec"]["template"]["spec"]["containers"][0].as_object_mut().expect("a container").remove("image");
    // A strategic merge finds the container by its name.
    let expected = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [{"name": "kube-proxy"}]}}},
    });
    assert_eq!(patch, expected);
    // kubeadm reads each file of the directory.
    assert_eq!(files(&deploy("kubeadm/patches")), [deploy(KUBEADM_PATCH)]);
}

/// The addon is upgraded with the last control plane node, whichever command upgrades that.
#[test]
fn kubeadm_skips_kube_proxy_in_both_commands() {
    let configuration = document("kubeadm/upgrade.yaml", "UpgradeConfiguration");
    let skip = json!({"skipPhases": ["addon/kube-proxy"]});
    assert_eq!([&configuration["apply"], &configuration["node"]], [&skip, &skip]);
    assert_eq!(configuration["apiVersion"], "kubeadm.k8s.io/v1beta4");
}

#[test]
fn check_of_a_node_runs_valid_commands_without_changes() {
    let pod = &document("kubeadm/check.yaml", "Pod")["spec"];
    let mut names = Vec::new();
    for container in pod["containers"].as_array().expect("containers") {
        let args = strings(&container["args"]);
        let command = Cli::try_parse_from([&["ferroute"], args.as_slice()].concat()).expect("a valid command line");
        names.push(match command.command {
            Command::Preflight(_) => "preflight",
            Command::Diff(_) => "diff",
            Command::Doctor(_) => "doctor",
            command => panic!("not a check: {command:?}"),
        });
        assert_eq!(container["name"], args[0]);
        // The default mode depends on the program's name, which is kube-proxy in the DaemonSet.
        assert!(args.contains(&"--proxy-mode=iptables"), "{args:?}");
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        let writable: Vec<_> = mounts.iter().filter(|mount| mount["readOnly"] != true).collect();
        assert_eq!(writable, [&json!({"name": "xtables-lock", "mountPath": "/run/xtables.lock"})]);
        let proxy = document("kubernetes/daemonset.yaml", "DaemonSet");
        assert_eq!(container["securityContext"], proxy["spec"]["template"]["spec"]["containers"][0]["securityContext"]);
    }
    assert_eq!(names, ["preflight", "diff", "doctor"]);
    // Without it, doctor would report rules of a proxy that does not run.
    assert_eq!(pod["hostPID"], true);
}

/// A node has one of the proxies: Ferroute if it has the label, otherwise kube-proxy.
#[test]
fn label_of_a_node_selects_its_proxy() {
    let ferroute = document("canary/ferroute.yaml", "DaemonSet");
    let kube_proxy = document("canary/kube-proxy.yaml", "DaemonSet");
    let selector = ferroute["spec"]["template"]["spec"]["nodeSelector"].as_object().expect("labels");
    let [(key, value)] = selector.iter().collect::<Vec<_>>()[..] else { panic!("expected one label: {selector:?}") };
    let affinity = &kube_proxy["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let expression = json!({"key": key, "operator": "NotIn", "values": [value]});
    assert_eq!(terms, &json!([{"matchExpressions": [expression]}]));
    // Otherwise the new affinity would replace all pods of kube-proxy.
    assert_eq!(kube_proxy["spec"]["updateStrategy"], json!({"type": "OnDelete", "rollingUpdate": null}));
    let label = format!("kubectl label node node-1 {key}={}", value.as_str().expect("a string"));
    for file in ["../docs/rollout.md", "canary/kustomization.yaml"] {
        assert!(read(&deploy(file)).contains(&label), "{file}: {label}");
    }
}

/// The workflow that creates releases runs elsewhere; this test runs its script.
#[test]
fn manifest_for_krew_names_the_files_of_a_release() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str| fs::write(directory.path().join(name), name).expect("a file");
    let finish = || {
        let mut command = std::process::Command::new(deploy("release/finish.sh"));
        let url = "https://example.org/v9.8.7";
        command.arg(directory.path()).args(["9.8.7", url, "https://example.org"]).output().expect("the script")
    };
    write("ferroute-9.8.7-linux-amd64.tar.gz");
    write("ferroute-9.8.7-linux-arm64.tar.gz");
    write("ferroute_9.8.7_arm64.deb");
    assert!(!finish().status.success(), "a package is missing");
    write("ferroute_9.8.7_amd64.deb");
    let output = finish();
    assert!(output.status.success(), "{output:?}");
    let sums = read(&directory.path().join("SHA256SUMS"));
    let manifest = &documents(&directory.path().join("krew-ferroute.yaml"))[0];
    assert_eq!(manifest["spec"]["version"], "v9.8.7");
    let platforms = manifest["spec"]["platforms"].as_array().expect("a list");
    for platform in platforms {
        let [uri, sum, architecture] =
            [&platform["uri"], &platform["sha256"], &platform["selector"]["matchLabels"]["arch"]]
                .map(|text| text.as_str().expect("a string"));
        let file = uri.strip_prefix("https://example.org/v9.8.7/").expect("the address of the release");
        assert!(file.contains(architecture) && sums.contains(&format!("{sum}  {file}\n")), "{sums}{platform}");
    }
    assert_eq!((platforms.len(), sums.lines().count()), (2, 5), "{sums}");
}
