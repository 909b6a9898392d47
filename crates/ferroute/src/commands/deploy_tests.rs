//! What is in `deploy/` fits the program. There is nothing here but tests.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::Parser;
use ferroute_kube::Permission;
use serde_json::Value;

use ferroute_config::{
    flags::{KubeProxy, RunArgs, RawArgs},
    settings::{self, Settings},
};
use ferroute_proxy::modes::REGISTRY;

use super::{Cli, Command};

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents of a YAML file.
fn documents(path: &Path) -> Vec<Value> {
    let text = read(path);
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn texts(value: &Value) -> Vec<&str> {
    let list = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    list.iter().map(|item| item.as_str().expect("a text")).collect()
}

/// The arguments of `ferroute run …`.
#[track_caller]
fn run_args(line: &[&str]) -> RawArgs<RunArgs> {
    match Cli::try_parse_from([&["ferroute"], line].concat()).expect("a command line").command {
        Command::Run(args) => *args,
        other => panic!("not run: {other:?}"),
    }
}

/// What the proxy makes of a configuration file of ours, when called like this.
#[track_caller]
fn settings(args: &RawArgs<RunArgs>, file: &str) -> Settings {
    let path = deploy(file);
    settings::from_file(args, &path, &read(&path)).expect("a good configuration")
}

/// Files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn every_yaml_file_can_be_read() {
    let yaml: Vec<PathBuf> = files(&deploy(""))
        .into_iter()
        .filter(|path| {
            path.extension().is_some_and(|extension| ["yaml", "conf"].iter().any(|known| extension == *known))
        })
        .collect();
    assert!(yaml.len() >= 8, "{yaml:?}");
    for path in yaml {
        for document in documents(&path) {
            let named = document["kind"].is_string() && document["apiVersion"].is_string();
            assert!(named, "{}: {document}", path.display());
        }
    }
}

#[test]
fn a_kustomization_names_only_what_is_there() {
    for directory in ["kubernetes", "kubeadm"] {
        let kustomization = documents(&deploy(&format!("{directory}/kustomization.yaml"))).remove(0);
        let patches = kustomization["patches"].as_array().into_iter().flatten().map(|patch| &patch["path"]);
        let maps = kustomization["configMapGenerator"].as_array().into_iter().flatten();
        let of_maps = maps.flat_map(|map| map["files"].as_array().expect("files"));
        let resources = kustomization["resources"].as_array().expect("resources");
        for file in resources.iter().chain(patches).chain(of_maps) {
            let file = file.as_str().expect("a text");
            // The one that a person gets from the cluster.
            if file != "kube-proxy.yaml" {
                assert!(deploy(directory).join(file).is_file(), "{directory}/{file}");
            }
        }
    }
}

#[test]
fn the_roles_allow_what_is_asked_for_and_no_more() {
    assert_eq!(allowed("kubernetes/rbac.yaml", 1), asked(Permission::required()));
    assert_eq!(allowed("kubernetes/startup-taint.yaml", 0), asked(Permission::startup_taint()));
}

type Asked = BTreeSet<(String, String, String)>;

fn asked(permissions: impl IntoIterator<Item = Permission>) -> Asked {
    let tuple = |Permission { group, resource, verb }| (group.to_owned(), resource.to_owned(), verb.to_owned());
    permissions.into_iter().map(tuple).collect()
}

/// What the role in a document of a file allows.
fn allowed(file: &str, document: usize) -> Asked {
    let role = documents(&deploy(file)).remove(document);
    assert_eq!(role["kind"], "ClusterRole");
    let mut allowed = BTreeSet::new();
    for rule in role["rules"].as_array().expect("rules") {
        assert_eq!(rule.as_object().expect("a rule").len(), 3, "{rule}");
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let verbs = texts(&rule["verbs"]).into_iter();
                allowed.extend(verbs.map(|verb| (group.to_owned(), resource.to_owned(), verb.to_owned())));
            }
        }
    }
    allowed
}

#[test]
fn the_daemonset_calls_the_program_as_it_can_be_called() {
    let daemonset = documents(&deploy("kubernetes/daemonset.yaml")).remove(0);
    let pod = &daemonset["spec"]["template"]["spec"];
    let init = run_args(&texts(&pod["initContainers"][0]["args"]));
    assert!(init.args.proxy.general.init_only.0);
    let main = run_args(&texts(&pod["containers"][0]["args"]));
    for args in [&init, &main] {
        let settings = settings(args, "kubernetes/config.conf");
        assert_eq!(settings.warnings, Vec::<String>::new());
        // Both files are where the configuration map is mounted.
        let map = Path::new(pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str().expect("a path"));
        assert_eq!(args.args.proxy.general.config_file(), Some(map.join("config.conf").as_path()));
        assert_eq!(Path::new(&settings.config.client_connection.kubeconfig), map.join("kubeconfig.conf"));
        // Probes ask where it answers.
        let port = settings.resolved.healthz.expect("an address").port();
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(pod["containers"][0][probe]["httpGet"]["port"], port, "{probe}");
        }
    }
}

#[test]
fn the_unit_calls_the_program_as_it_can_be_called() {
    let unit = read(&deploy("systemd/ferroute.service"));
    let lines: Vec<Vec<&str>> = unit
        .lines()
        .filter(|line| line.starts_with("ExecStart"))
        .map(|line| line.split_once("/usr/local/bin/ferroute ").expect("our program").1.split(' ').collect())
        .collect();
    let [init, main] = lines.as_slice() else { panic!("not two commands: {lines:?}") };
    assert!(run_args(init).args.proxy.general.init_only.0);
    let args = run_args(main);
    assert!(args.args.manifests.is_some());
    let settings = settings(&args, "systemd/config.yaml");
    assert_eq!(settings.warnings, Vec::<String>::new());
    let score = settings.resolved.oom_score_adj.expect("a score");
    assert!(unit.contains(&format!("OOMScoreAdjust={score}\n")), "{unit}");
}

#[test]
fn the_image_has_the_name_that_manifests_of_kube_proxy_call() {
    let image = read(&deploy("Dockerfile"));
    // It is gathered in a folder that becomes the image.
    for part in ["ln -s ferroute /image/usr/local/bin/kube-proxy ", "\nFROM scratch\nCOPY --from=gather /image /\n"] {
        assert!(image.contains(part), "{image}");
    }
    // As kubeadm calls it, and as others do.
    for line in [
        "/usr/local/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)",
        "kube-proxy --v=2 --kubeconfig=/var/lib/kube-proxy/kubeconfig --cluster-cidr=10.244.0.0/16 \
         --conntrack-max-per-core=131072 --oom-score-adj=-998 --proxy-mode=iptables --feature-gates=A=true",
    ] {
        KubeProxy::try_parse_from(line.split(' ')).expect(line);
    }
}

#[test]
fn images_have_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let kustomization = documents(&deploy("kubernetes/kustomization.yaml")).remove(0);
    assert_eq!(kustomization["images"][0]["newTag"], version);
    let patch = documents(&deploy("kubeadm/patch.yaml")).remove(0);
    let image = format!("registry.example.org/ferroute:{version}");
    assert_eq!(patch["spec"]["template"]["spec"]["containers"][0]["image"], image.as_str());
    assert!(read(&deploy("Dockerfile")).contains(&image));
}
