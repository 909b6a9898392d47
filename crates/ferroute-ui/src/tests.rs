//! The API as the page uses it, without a browser and without root.

use std::{fs, path::Path, sync::Arc, time::SystemTime};

use axum::{
    body::Body,
    http::{Request, Response, StatusCode},
};
use ferroute_admin::history::UnappliedPort;
use ferroute_api::{Object, ObjectMeta, Service, manifest};
use ferroute_config::{
    FlagSettings, KubeProxyConfiguration,
    flags::{DesiredArgs, SettingsArgs, SourceArgs},
};
use ferroute_core::{IpFamily, NamespacedName, OtherHosts, Protocol, ServicePortName};
use ferroute_proxy::recording::{
    Bundle, DesiredObjects, FORMAT, FamilyRecord, Outcome, RecordedChange, SyncRecord, UnusedServices,
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    api::Work,
    assets,
    server::{App, router},
    source::Source,
};

/// A Service whose names and texts are as hostile as the API server accepts, a skipped Service, and an invalid one.
const CLUSTER: &str = r#"
{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDR: 10.244.1.0/24},
 status: {addresses: [{type: InternalIP, address: 192.168.0.11}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop},
 spec: {type: NodePort, clusterIP: 10.96.0.80, trafficDistribution: "<img src=x onerror=alert(1)>", ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, ports: [{port: 8080}],
 endpoints: [{addresses: [10.244.1.5], nodeName: node-1, targetRef: {kind: Pod, name: web-a}},
             {addresses: [10.244.2.7], nodeName: node-2, conditions: {ready: false}}]}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: shop}, spec: {clusterIP: None, ports: [{port: 80}]}}
"#;

fn objects(manifests: &Path) -> DesiredArgs {
    DesiredArgs {
        source: SourceArgs { manifests: Some(manifests.to_owned()), ..SourceArgs::default() },
        settings: SettingsArgs { hostname_override: Some("node-1".to_owned()), ..SettingsArgs::default() },
    }
}

/// The page of a directory with these manifests.
struct Page {
    directory: tempfile::TempDir,
    app: Arc<App>,
}

impl Page {
    fn new(manifests: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("cluster.yaml"), manifests).unwrap();
        let app = App::load(Source::Objects(Box::new(objects(directory.path())))).unwrap();
        Self { directory, app }
    }

    fn rewrite(&self, manifests: &str) {
        fs::write(self.directory.path().join("cluster.yaml"), manifests).unwrap();
        self.app.reload().unwrap();
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        get(&self.app, path).await
    }

    async fn ok(&self, path: &str) -> Value {
        ok(&self.app, path).await
    }
}

async fn send(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    router(Arc::clone(app)).oneshot(request).await.unwrap()
}

async fn get(app: &Arc<App>, path: &str) -> (StatusCode, Value) {
    let request = Request::get(format!("/api/v1/{path}")).header("host", "localhost:8249").body(Body::empty()).unwrap();
    let response = send(app, request).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{path}: {status}: {error}: {body:?}")))
}

async fn ok(app: &Arc<App>, path: &str) -> Value {
    let (status, body) = get(app, path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {body}");
    body
}

#[tokio::test]
async fn services_are_listed_with_their_states() {
    let page = Page::new(CLUSTER);
    let overview = page.ok("overview").await;
    assert_eq!(
        (&overview["node"], &overview["source"], &overview["demo"]),
        (&json!("node-1"), &json!("manifests"), &Value::Null)
    );
    assert_eq!(overview["nodes"], json!(["node-1", "node-2"]));
    assert_eq!(
        overview["counts"],
        json!({ "services": 2, "servicePorts": 1, "endpoints": 2, "used": 1, "notServed": 1, "invalid": 0 })
    );
    let services = page.ok("services").await;
    let [headless, web] = services["services"].as_array().unwrap().as_slice() else { panic!("{services}") };
    assert_eq!((&headless["name"], &headless["state"]), (&json!("shop/headless"), &json!("notServed")));
    assert!(headless["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    assert_eq!((&web["state"], &web["endpoints"], &web["used"]), (&json!("served"), &json!(2), &json!(1)));
    assert_eq!(web["search"], json!(["10.244.1.5", "10.244.2.7", "web-a"]));
    let kinds: Vec<&Value> = web["frontends"].as_array().unwrap().iter().map(|frontend| &frontend["kind"]).collect();
    assert_eq!(kinds, ["clusterIp", "nodePort"]);
}

#[tokio::test]
async fn page_opens_while_slow_requests_wait() {
    let page = Page::new(CLUSTER);
    let all = async |kind| {
        let limit = page.app.limit(kind);
        limit.acquire_many(u32::try_from(limit.available_permits()).unwrap()).await.unwrap()
    };
    let _checks = all(Work::Check).await;
    page.ok("services/shop/web").await;
    let _kernel = all(Work::Kernel).await;
    for path in ["overview", "services", "history", "changes?since=0"] {
        page.ok(path).await;
    }
}

#[tokio::test]
async fn endpoints_have_their_nodes() {
    let page = Page::new(CLUSTER);
    let web = page.ok("services/shop/web").await;
    let endpoints = web["ports"][0]["endpoints"].as_array().unwrap();
    let nodes: Vec<(&Value, &Value)> = endpoints.iter().map(|endpoint| (&endpoint["pod"], &endpoint["node"])).collect();
    assert_eq!(nodes, [(&json!("web-a"), &json!("node-1")), (&Value::Null, &json!("node-2"))]);
    let (status, body) = page.get("services/shop/wep").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body["error"].as_str().is_some_and(|error| error.contains("shop/web")), "{body}");
}

#[tokio::test]
async fn packets_are_traced_in_all_modes() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("cluster.yaml"), CLUSTER).unwrap();
    for mode in ["iptables", "nftables", "ipvs", "userspace"] {
        let mut args = objects(directory.path());
        args.settings.proxy_mode = Some(mode.to_owned());
        let app = App::load(Source::Objects(Box::new(args))).unwrap();
        for to in ["shop/web", "10.96.0.80:80", "192.168.0.11:30080"] {
            let trace = ok(&app, &format!("trace?from=outside&to={to}")).await;
            assert_eq!((&trace["mode"], &trace["outcome"]), (&json!(mode), &json!("delivered")), "{to}: {trace}");
            assert!(trace.to_string().contains("10.244.1.5:8080"), "{trace}");
            assert!(!trace.to_string().contains("10.244.2.7"), "an endpoint that is not ready: {trace}");
        }
    }
}

#[tokio::test]
async fn wrong_questions_are_answered_with_a_sentence() {
    let page = Page::new(CLUSTER);
    for query in [
        "from=nobody&to=shop/web",
        "from=outside&to=shop/none",
        "from=outside&to=10.96.0.80",
        "from=outside&to=shop/web&proto=icmp",
        "from=outside&to=shop/web&proto=udp",
    ] {
        let (status, body) = page.get(&format!("trace?{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {body}");
        assert!(
            body["error"].as_str().is_some_and(|error| error.len() > 10 && !error.contains("--")),
            "{query}: {body}"
        );
    }
}

#[tokio::test]
async fn changed_manifests_are_another_revision() {
    let page = Page::new(CLUSTER);
    page.rewrite(CLUSTER);
    assert_eq!(page.ok("services").await["revision"], 1, "the same objects");
    page.rewrite(&CLUSTER.replace("{ready: false}", "{ready: true}"));
    let services = page.ok("services").await;
    assert_eq!((&services["revision"], &services["services"][1]["used"]), (&json!(2), &json!(2)));
    page.rewrite(&CLUSTER.replace("10.244.2.7", "10.244.2.8"));
    assert_eq!(page.ok("overview").await["revision"], 3, "the same numbers, another endpoint");
}

#[tokio::test]
async fn pages_get_what_changed_since_their_revision() {
    let page = Page::new(CLUSTER);
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let nothing = page.ok("changes?since=1").await;
    assert_eq!((&nothing["complete"], &nothing["revision"]), (&json!(false), &json!(1)));
    assert_eq!(nothing["services"], json!({ "changed": [], "removed": [] }));
    page.rewrite(&CLUSTER.replace("name: headless", "name: renamed"));
    let changes = page.ok("changes?since=1").await;
    assert_eq!(names(&changes["services"]["changed"]), ["shop/renamed"]);
    assert_eq!(changes["services"]["removed"], json!(["shop/headless"]));
    assert_eq!(changes["machines"], json!({ "changed": [], "removed": [] }));
    assert_eq!(changes["counts"]["services"], 2);
    // A page of an earlier server has a revision that this server has not reached yet.
    for since in [0, 7] {
        let all = page.ok(&format!("changes?since={since}")).await;
        assert_eq!((&all["complete"], names(&all["services"]["changed"]).len()), (&json!(true), 2), "{since}");
        assert!(names(&all["machines"]["changed"]).contains(&"node-1".to_owned()), "{all}");
    }
}

#[tokio::test]
async fn nodes_have_their_name_and_own_address() {
    let page = Page::new(CLUSTER);
    let overview = page.ok("overview").await;
    let node = overview["machines"].as_array().unwrap().iter().find(|machine| machine["kind"] == "node").unwrap();
    assert_eq!((&node["node"], &node["addresses"]), (&json!("node-1"), &json!(["192.168.0.11"])));
}

#[tokio::test]
async fn conflicts_and_reasons_are_in_the_list() {
    let claim = "---\n{apiVersion: v1, kind: Service, metadata: {name: thief, namespace: shop}, \
                 spec: {clusterIP: 10.96.0.99, externalIPs: [10.96.0.80], ports: [{port: 80}]}}\n";
    let page = Page::new(&format!("{CLUSTER}{claim}"));
    let services = page.ok("services").await;
    let of =
        |name: &str| services["services"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone();
    assert_eq!(of("shop/headless")["code"], "headless");
    let conflict = &of("shop/thief")["conflicts"][0];
    assert_eq!((&conflict["address"], &conflict["owner"]), (&json!("10.96.0.80"), &json!("shop/web")));
    assert_eq!(of("shop/web").get("conflicts"), None);
}

#[tokio::test]
async fn lists_are_compressed_for_those_who_accept_it() {
    let more =
        (0..50).map(|number| format!("---\n{}", CLUSTER.lines().nth(4).unwrap().replace("web", &format!("w{number}"))));
    let spec = " spec: {clusterIP: None, ports: [{port: 80}]}}\n";
    let page = Page::new(&format!("{CLUSTER}{}", more.map(|head| format!("{head}\n{spec}")).collect::<String>()));
    let get = async |encoding: &str| {
        let request = Request::get("/api/v1/services").header("host", "localhost").header("accept-encoding", encoding);
        let response = send(&page.app, request.body(Body::empty()).unwrap()).await;
        let kind = response.headers().get("content-encoding").cloned();
        (kind, response.into_body().collect().await.unwrap().to_bytes())
    };
    let (kind, plain) = get("identity").await;
    assert_eq!(kind, None);
    let (kind, packed) = get("gzip").await;
    assert_eq!(kind.unwrap(), "gzip");
    assert!(packed.len() * 3 < plain.len(), "{} of {}", packed.len(), plain.len());
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).unwrap();
    assert_eq!(unpacked, plain);
}

#[tokio::test]
async fn other_host_names_are_refused() {
    let page = Page::new(CLUSTER);
    for (host, status) in [("localhost", 200), ("127.0.0.1:8249", 200), ("[::1]:8249", 200), ("evil.example", 403)] {
        for path in ["/", "/api/v1/overview", "/web/index.html"] {
            let request = Request::get(path).header("host", host).body(Body::empty()).unwrap();
            let response = send(&page.app, request).await;
            assert_eq!(response.status(), status, "{host} {path}");
            let policy = response.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        }
    }
}

#[tokio::test]
async fn only_a_demo_acts() {
    let page = Page::new(CLUSTER);
    for action in ["connect", "scale", "ready", "kill", "break"] {
        let body =
            json!({ "from": "a", "to": "10.96.0.80:80", "deployment": "a", "replicas": 1, "pod": "a", "ready": true });
        let request = Request::post(format!("/api/v1/demo/{action}")).header("host", "localhost");
        let request = request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap();
        assert_eq!(send(&page.app, request).await.status(), StatusCode::FORBIDDEN, "{action}");
    }
}

#[tokio::test]
async fn page_has_no_dead_links() {
    let page = Page::new(CLUSTER);
    let (_, index) = assets::find("index.html").unwrap();
    let index = String::from_utf8_lossy(&index);
    let links: Vec<&str> = index.split('"').filter(|text| text.starts_with("/web/")).collect();
    assert!(!links.is_empty(), "{index}");
    for link in links {
        let request = Request::get(link).header("host", "localhost").body(Body::empty()).unwrap();
        assert_eq!(send(&page.app, request).await.status(), StatusCode::OK, "{link}");
    }
    assert!(!index.contains("//") || !index.contains("http"), "the page makes no external request");
}

/// A bundle of a Service whose endpoint changes, with a repair.
fn bundle() -> Bundle {
    let mut base = DesiredObjects::default();
    let mut changed = None;
    let texts = [CLUSTER, &CLUSTER.replace("{ready: false}", "{ready: true}")].map(ToOwned::to_owned);
    for object in texts.iter().flat_map(|text| manifest::read(text)) {
        let Ok(manifest::Parsed::Object(object)) = object else { panic!("not an object") };
        match *object {
            Object::Node(node) => base.node = node,
            Object::Service(service) if !base.services.contains(&service) => base.services.push(service),
            Object::EndpointSlice(slice) if base.endpoint_slices.is_empty() => base.endpoint_slices.push(slice),
            Object::EndpointSlice(slice) => changed = Some(slice),
            _ => {}
        }
    }
    base.services.retain(|service: &Service| service.metadata.name == "web");
    let synced = |full, written| FamilyRecord {
        family: IpFamily::V4,
        outcome: Outcome::Synced {
            services: 1,
            full,
            written,
            removed: 0,
            total: 9,
            conntrack_deleted: 0,
            took_us: 5,
            kernel_us: 3,
            rules: None,
        },
    };
    let change = RecordedChange::EndpointSlice(changed.expect("the second slice"));
    let sync = |changes, family| SyncRecord { at: SystemTime::UNIX_EPOCH, changes, families: vec![family] };
    Bundle {
        format: FORMAT.to_owned(),
        version: "0".to_owned(),
        made: SystemTime::UNIX_EPOCH,
        mode: "nftables".to_owned(),
        configuration: KubeProxyConfiguration::default().to_yaml(),
        flags: FlagSettings::default(),
        host_addresses: Vec::new(),
        other_hosts: OtherHosts::default(),
        unused: UnusedServices::default(),
        unapplied: Vec::new(),
        source_problems: Vec::new(),
        base,
        syncs: vec![
            sync(vec![change], synced(false, 2)),
            sync(Vec::new(), synced(true, 0)),
            sync(Vec::new(), synced(true, 4)),
            sync(Vec::new(), FamilyRecord::failed(IpFamily::V4, "no memory".to_owned())),
        ],
    }
}

#[tokio::test]
async fn recording_shows_services_that_the_proxy_does_not_serve() {
    let invalid = Service {
        metadata: ObjectMeta { namespace: "shop".into(), name: "bad".into(), ..ObjectMeta::default() },
        ..Service::default()
    };
    let unused = UnusedServices {
        not_served: [("shop/bad".to_owned(), invalid.clone()), ("shop/web".to_owned(), invalid)].into(),
        load_balancers: ["shop/web".to_owned(), "shop/gone".to_owned()].into(),
    };
    let source = Source::Bundle { bundle: Arc::new(bundle().with_unused(unused)), origin: "night.json".to_owned() };
    let app = App::load(source).unwrap();
    let services = ok(&app, "services").await;
    let row = |name: &str| {
        let rows = services["services"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).map(|row| [row["type"].clone(), row["state"].clone()])
    };
    assert_eq!(row("shop/bad"), Some([json!("ClusterIP"), json!("invalid")]));
    // The last valid version of a Service stays applied.
    assert_eq!(row("shop/web"), Some([json!("LoadBalancer"), json!("notApplied")]));
    assert_eq!((row("shop/gone"), &ok(&app, "overview").await["counts"]["invalid"]), (None, &json!(1)));
}

#[tokio::test]
async fn recording_shows_service_ports_that_the_proxy_has_not_applied() {
    let name =
        ServicePortName { service: NamespacedName::new("shop", "web"), port: "".into(), protocol: Protocol::Tcp };
    let unapplied = UnappliedPort::new(&name, IpFamily::V4, Some("exists".to_owned()), true);
    let bundle = Arc::new(bundle().with_unapplied(vec![unapplied]));
    let app = App::load(Source::Bundle { bundle, origin: "night.json".to_owned() }).unwrap();
    assert_eq!(ok(&app, "services").await["services"][0]["state"], "notApplied");
    let explanation = ok(&app, "services/shop/web").await;
    assert_eq!(explanation["ports"][0]["notApplied"], json!({"error": "exists", "keepsRules": true}));
    assert_eq!(ok(&app, "trace?from=outside&to=shop/web").await["notApplied"]["error"], "exists");
}

#[tokio::test]
async fn bundle_shows_the_last_state_and_all_syncs() {
    let source = Source::Bundle { bundle: Arc::new(bundle()), origin: "night.json".to_owned() };
    let app = App::load(source).unwrap();
    let overview = ok(&app, "overview").await;
    assert_eq!((&overview["mode"], &overview["kernel"]), (&json!("nftables"), &json!(false)));
    assert_eq!((&overview["origin"], &overview["counts"]["used"]), (&json!("night.json"), &json!(2)));
    let timeline = ok(&app, "timeline").await;
    let field =
        |field: &str| timeline["syncs"].as_array().unwrap().iter().map(|sync| sync[field].clone()).collect::<Vec<_>>();
    assert_eq!(field("cause"), ["changes", "resync", "resync", "resync"]);
    assert_eq!(field("repaired"), [0, 0, 4, 0]);
    let change = &timeline["syncs"][0]["changes"][0];
    assert_eq!((&change["service"], &change["ready"], &change["total"]), (&json!("shop/web"), &json!(2), &json!(2)));
    assert_eq!(timeline["syncs"][3]["families"][0]["error"], "no memory");
    assert_eq!(ok(&app, "trace?from=outside&to=shop/web").await["outcome"], "delivered");
    // The kernel of this machine is unrelated to it.
    for path in ["diff", "doctor"] {
        assert_eq!(ok(&app, path).await["available"], false, "{path}");
    }
    assert_eq!(get(&app, "trace?from=outside&to=shop/web&rules=kernel").await.0, StatusCode::BAD_REQUEST);
}
