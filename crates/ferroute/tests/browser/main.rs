//! The page of `ferroute ui` in a real browser. Each test has a separate server, browser and network namespace. They
//! require Chromium and are run by `make test-ui`.

#![expect(clippy::unwrap_used, reason = "helpers panic as tests do")]

mod cluster;
mod driver;
mod faults;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../rig/mod.rs"]
mod rig;
mod servers;

use std::{fmt::Write, fs};

use ferroute_testing::NetNs;
use serde_json::json;

use self::{
    driver::{ARROW_DOWN, ARROW_LEFT, ARROW_RIGHT, Browser, ENTER},
    servers::{Server, record, repository},
};

/// Opens the graph of a Service in the list, which answers the first question.
fn open_service(browser: &Browser<'_>, server: &Server, service: &str) {
    browser.open(&server.view("#/services"));
    browser.enter("#search", service);
    browser.click(&format!("[data-key={}] a", json!(service)));
    browser.wait_text(".service-title", service.split_once('/').unwrap().1);
    browser.wait_for("return document.querySelectorAll('.graph .client').length");
}

/// Traces a packet by two clicks in the graph, and walks through the result.
fn follow_packet(browser: &Browser<'_>, service: &str) {
    browser.click(".graph .client");
    assert_eq!(browser.count(".client[aria-pressed=true]"), 1);
    browser.click(".service-node");
    browser.wait_text(".verdict h2", "Delivered");
    let fragment = browser.run("return decodeURIComponent(location.hash)");
    assert!(fragment.as_str().unwrap().contains(&format!("to={service}")), "{fragment}");
    assert!(browser.count(".stage-visited") >= 4);
    assert!(browser.count(".header-field.changed") >= 1);

    browser.click("#next");
    browser.wait_text(".position", "1 /");
    browser.type_into("body", ARROW_RIGHT);
    browser.type_into("body", ARROW_RIGHT);
    browser.wait_text(".position", "3 /");
    browser.type_into("body", ARROW_LEFT);
    browser.wait_text(".position", "2 /");
    assert_eq!(browser.count("[aria-current=step]"), 1);
    // The address holds question and step.
    browser.reload();
    browser.wait_text(".position", "2 /");
    save_path(browser);
}

/// Saves the path as a file, which must be a whole SVG document.
fn save_path(browser: &Browser<'_>) {
    browser.run(
        "const create = URL.createObjectURL; \
         URL.createObjectURL = (blob) => { blob.text().then((text) => { window.savedPath = text; }); return create.call(URL, blob); };",
    );
    browser.click("#export");
    browser.wait_for("return window.savedPath");
    let root = browser.run(
        "const file = new DOMParser().parseFromString(window.savedPath, 'image/svg+xml'); \
         return file.querySelector('parsererror') ? 'invalid' : file.documentElement.tagName",
    );
    assert_eq!(root, "svg");
    assert_eq!(browser.run("return window.savedPath.includes('PREROUTING')"), true);
}

/// Opens the view of changes. Its content depends on the source.
fn open_changes(browser: &Browser<'_>) {
    browser.click(".tabs a[href='#/changes']");
    browser.wait_for("return document.querySelector('#doctor .notice:not(.notice-loading), #doctor .finding')");
    browser
        .wait_for("return document.querySelector('.timeline-card .sync, .timeline-card .notice:not(.notice-loading)')");
}

fn manifests_answer_the_questions(mode: &str) {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, mode);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.url);
    browser.wait_text(".context", mode);
    open_service(&browser, &server, "shop/web");
    assert_eq!(browser.count(".graph .endpoint"), 2);
    // The reason is in words, not only in the shape of a line.
    browser.wait_text(".endpoint-partly", "on another node");
    browser.wait_text(".gnode-group h3", "node-2");
    follow_packet(&browser, "shop/web:80");
    browser.open(&server.view("#/packet?from=outside&to=10.96.0.82:9200"));
    browser.wait_text(".verdict-bad", "shop/search has no usable endpoint");
    open_changes(&browser);
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn iptables_manifests_answer_the_questions() {
    manifests_answer_the_questions("iptables");
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn nftables_manifests_answer_the_questions() {
    manifests_answer_the_questions("nftables");
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn ipvs_manifests_answer_the_questions() {
    manifests_answer_the_questions("ipvs");
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn userspace_manifests_answer_the_questions() {
    manifests_answer_the_questions("userspace");
}

fn demo_acts_and_shows_it(mode: &str) {
    let namespace = NetNs::new();
    let server = Server::demo(&namespace, mode);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.url);
    // The first visit opens on the graph of the first Service, and the token is not in the address bar.
    browser.wait_text(".service-title", "nginx-service");
    assert_eq!(browser.run("return location.href.includes('token')"), false);
    browser.wait_text(".graph-hint", "Click a client");
    assert_eq!(browser.count(".endpoint-used"), 3);

    browser.click(".demo-form [type=submit]");
    browser.wait_for("return document.querySelector('.endpoint .received')");
    let received =
        "return [...document.querySelectorAll('.received')].reduce((sum, one) => sum + Number(one.textContent), 0)";
    assert_eq!(browser.run(received), 20);
    browser.keep_picture(&format!("demo-{mode}"));

    browser.unfold(".demo details");
    browser.click(".demo-columns .switch[aria-checked=true]");
    browser.wait_text(".endpoint-unused", "not ready");
    // The graph is drawn again, with what was received.
    assert_eq!(browser.run(received), 20);
    browser.click(".demo-columns button[aria-label^='One replica more']");
    browser.wait_for("return document.querySelectorAll('.graph .endpoint').length === 4");

    // A repair by a sync that also applies changes is not shown as a repair.
    browser.click(".tabs a[href='#/changes']");
    browser.wait_for("return document.querySelector('.sync')?.textContent.includes('3 of 4 ready')");
    open_service(&browser, &server, "default/nginx-service");
    browser.unfold(".demo details");
    browser.click("#break");
    browser.click(".demo-output a[href='#/changes']");
    browser.wait_for("return document.querySelector('.sync-repaired')");
    browser.click(".sync-repaired summary");
    browser.wait_text(".sync-repaired", "were restored");
    browser.keep_picture(&format!("demo-{mode}-repair"));
    browser.click("#language");
    browser.wait_text(".sync-repaired", "恢复");
    browser.keep_picture(&format!("demo-{mode}-repair-zh"));
    browser.click("#language");
    browser.wait_text(".sync-repaired", "restored");
    open_service(&browser, &server, "default/nginx-service");
    follow_packet(&browser, "default/nginx-service:80");
    browser.click("[data-value=kernel]");
    browser.wait_text(".verdict", "in the kernel");
    open_changes(&browser);
    browser.click("#diff button");
    browser.wait_text("#diff .notice", "have the planned effect");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn iptables_demo_acts_and_shows_it() {
    demo_acts_and_shows_it("iptables");
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn nftables_demo_acts_and_shows_it() {
    demo_acts_and_shows_it("nftables");
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn userspace_demo_acts_and_shows_it() {
    demo_acts_and_shows_it("userspace");
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn map_shows_connections_and_what_fails() {
    let namespace = NetNs::new();
    let server = Server::demo(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    let open_map = || browser.click(".tabs a[href='#/map']");
    browser.open(&server.url);
    browser.wait_text(".service-title", "nginx-service");
    browser.click("#keep-sending");
    browser.wait_text(".flow-answered", "answered");
    open_map();
    browser.wait_text(".map-service", "default/nginx-service");
    browser.wait_for("return document.querySelectorAll('.map-endpoint').length === 3");
    assert_eq!((browser.count(".map-client"), browser.count(".map-failed")), (1, 0));
    browser.keep_picture("map");

    // The stream continues, and the Service loses its endpoints.
    open_service(&browser, &server, "default/nginx-service");
    browser.unfold(".demo details");
    for replicas in (0..3).rev() {
        browser.click(".demo-columns button[aria-label^='One replica fewer']");
        browser.wait_for(&format!("return document.querySelectorAll('.graph .endpoint').length === {replicas}"));
    }
    browser.wait_text(".flow-failed", "failed");
    open_map();
    browser.wait_text(".map-failed .bad", "rejected");
    // The names of deleted pods stay with their flows.
    assert_eq!(browser.count(".map-endpoint"), 3);
    for pod in 1..=3 {
        browser.wait_for(&format!(
            "return document.querySelector('[data-map=\"endpoint default/nginx-deployment-{pod}\"]')"
        ));
    }
    browser.keep_picture("map-rejected");
    browser.click("#language");
    browser.wait_text(".map-failed .bad", "被规则拒绝");
    browser.keep_picture("map-rejected-zh");
    browser.click("#language");
    // The last minutes survive a reload.
    browser.reload();
    browser.wait_text(".map-failed .bad", "rejected");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn demo_without_token_cannot_act() {
    let namespace = NetNs::new();
    let server = Server::demo(&namespace, "iptables");
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view(""));
    browser.wait_text(".demo .notice", "token");
    assert_eq!(browser.count(".demo button:not(:disabled)"), 0);
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn bundle_answers_the_questions() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let bundle = record(&namespace, directory.path());
    let server = Server::start(&namespace, &["--bundle", bundle.to_str().unwrap()]);
    let browser = Browser::start(&namespace, "en-US");
    open_service(&browser, &server, "shop/cart");
    follow_packet(&browser, "shop/cart:9000");
    open_changes(&browser);
    browser.wait_text(".sync", "shop/cart-1");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn rules_of_kube_proxy_in_the_kernel_answer_the_questions() {
    let (namespace, peer) = (NetNs::new(), NetNs::new());
    let directory = tempfile::tempdir().unwrap();
    let case = repository("conformance/scenarios/nodeport-cluster");
    let read = |path| fs::read_to_string(path).unwrap();
    // Chromium cancels requests when an address appears, for example the link-local address of IPv6 after a while.
    namespace.command("sysctl", &["-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
    // The addresses of the node in the recording.
    namespace.link("eth0", &peer, "eth0");
    namespace.add_address("10.77.1.2/24", "eth0");
    namespace.add_address("10.180.1.1/24", "lo");
    namespace.command("ip", &["route", "add", "default", "via", "10.77.1.3"]);
    let rules = read(case.join("expected/iptables-save.txt"));
    // Packet counters of nfacct do not exist in the namespace.
    let rules: Vec<&str> = rules.lines().filter(|line| !line.contains("nfacct")).collect();
    namespace.feed("iptables-restore", &[], &(rules.join("\n") + "\n"));

    let manifests = directory.path().join("manifests.yaml");
    let nodes = read(repository("conformance/common/nodes.yaml"));
    fs::write(&manifests, format!("{}\n---\n{nodes}", read(case.join("manifests.yaml")))).unwrap();
    let config = directory.path().join("config.yaml");
    let kind = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration";
    fs::write(&config, format!("{kind}\nclusterCIDR: 10.180.0.0/16\n")).unwrap();
    let paths = ["--manifests", manifests.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let node = ["--hostname-override", "lab-node", "--proxy-mode", "iptables"];
    let server = Server::start(&namespace, &[&paths[..], &node[..]].concat());

    let browser = Browser::start(&namespace, "en-US");
    open_service(&browser, &server, "ns1/web");
    follow_packet(&browser, "ns1/web:80");
    browser.click("[data-value=kernel]");
    browser.wait_text(".verdict", "in the kernel");
    browser.wait_text(".rule-place", "KUBE-SERVICES");
    open_changes(&browser);
    browser.click("#diff button");
    browser.wait_text("#diff .notice", "have the planned effect");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn changes_of_the_cluster_appear_and_keep_what_is_typed() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let manifests = directory.path().join("cluster.yaml");
    let example = fs::read_to_string(repository("examples/cluster.yaml")).unwrap();
    fs::write(&manifests, &example).unwrap();
    let server = Server::with_manifests(&namespace, &manifests);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/packet?from=outside&to=shop/cart:9000"));
    browser.wait_text(".verdict h2", "10.244.1.6:9000");
    browser.click("#next");
    browser.enter("#from", "10.244.9.9");
    let changed = example.replace("conditions: {ready: false}", "conditions: {ready: true}");
    assert_ne!(changed, example);
    fs::write(&manifests, changed).unwrap();
    browser.wait_text(".verdict h2", "one of 2 endpoints");
    assert_eq!(browser.run("return document.querySelector('#from').value"), "10.244.9.9");
    browser.wait_text(".position", "1 /");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn names_are_shown_as_text() {
    const MARKUP: &str = "<img src=x onerror=window.isHostile=1>";
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let example = fs::read_to_string(repository("examples/cluster.yaml")).unwrap();
    let slice = "- {addresses: [10.244.1.5], nodeName: node-1}";
    let pod = format!(
        "- {{addresses: [10.244.1.5], nodeName: \"{MARKUP}\", targetRef: {{kind: Pod, namespace: shop, name: \"{MARKUP}\"}}}}"
    );
    // Names of Services are validated; names of pods, nodes and zones are not.
    let hostile = example.replace(slice, &pod).replace("zone-a", &format!("\"{MARKUP}\""));
    assert_eq!(hostile.matches(MARKUP).count(), 3, "{hostile}");
    let manifests = directory.path().join("cluster.yaml");
    fs::write(&manifests, hostile).unwrap();
    let server = Server::with_manifests(&namespace, &manifests);
    let browser = Browser::start(&namespace, "en-US");
    let check = || {
        assert_eq!(browser.run("return window.isHostile ?? null"), json!(null));
        assert_eq!(browser.count("main img"), 0);
    };

    open_service(&browser, &server, "shop/web");
    browser.wait_text(".endpoint", MARKUP);
    browser.wait_text(".gnode-group h3", MARKUP);
    browser.wait_text(".subtitle", MARKUP);
    check();
    browser.open(&server.view("#/packet?from=outside&to=10.96.0.80:80"));
    browser.wait_text(".stages", MARKUP);
    check();
    browser.click("#from");
    browser.wait_text(".suggestions", MARKUP);
    check();
    // The error contains the question.
    browser.enter("#to", &format!("{MARKUP}:1"));
    browser.type_into("#to", ENTER);
    browser.wait_text(".notice-error", MARKUP);
    check();
    browser.assert_clean(&server.url, Some("400"));
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn table_of_many_services_renders_few_rows() {
    const SERVICES: usize = 10_000;
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let mut yaml = String::new();
    for number in 0..SERVICES {
        let address = format!("10.{}.{}.{}", 100 + number / 65_536, number / 256 % 256, number % 256);
        let spec = format!("{{clusterIP: {address}, ports: [{{port: 80}}]}}");
        let metadata = format!("{{name: service-{number:05}, namespace: team-{}}}", number % 10);
        writeln!(yaml, "---\napiVersion: v1\nkind: Service\nmetadata: {metadata}\nspec: {spec}").unwrap();
    }
    let manifests = directory.path().join("services.yaml");
    fs::write(&manifests, yaml).unwrap();
    let server = Server::with_manifests(&namespace, &manifests);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/services"));
    browser.wait_text(".figures", "10,000");
    let count = browser.wait_for("return document.querySelector('.vtable').getAttribute('aria-rowcount')");
    assert_eq!(count, (SERVICES + 1).to_string());
    assert!(browser.count(".vspace .vrow") < 60);
    browser.run("document.querySelector('.vbody').scrollTop = 1e9");
    browser.wait_text(".vspace", "service-09999");
    assert!(browser.count(".vspace .vrow") < 60);

    browser.enter("#search", "10.100.30.57");
    browser.wait_for("return document.querySelectorAll('.vspace .vrow').length === 1");
    browser.wait_text(".vspace", "service-07737");
    browser.enter("#search", "service-0999 team-9");
    browser.wait_for("return document.querySelector('.vtable').getAttribute('aria-rowcount') === '2'");
    browser.enter("#search", "no such name");
    browser.wait_text(".empty", "no such name");
    browser.enter("#search", "service-00012");
    browser.click("[data-sort=rate]");
    assert_eq!(browser.count("[aria-sort=descending] [data-sort=rate]"), 1);
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn page_is_usable_by_keyboard() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/services"));
    browser.wait_text(".vspace", "web");
    browser.run("document.querySelector('.vspace a').focus()");
    browser.type_into(".vspace .vrow:focus-within a", ARROW_DOWN);
    browser.type_into(".vspace .vrow:focus-within a", ARROW_DOWN);
    browser.type_into(".vspace .vrow:focus-within a", ENTER);
    browser.wait_text(".service-title", "web");

    browser.open(&server.view("#/packet"));
    browser.type_into("#from", "outside");
    browser.type_into("#to", "shop/web");
    browser.wait_for("return document.querySelector('#to').getAttribute('aria-expanded') === 'true'");
    browser.type_into("#to", ARROW_DOWN);
    browser.wait_for("return document.querySelector('#to').getAttribute('aria-activedescendant')");
    browser.type_into("#to", ENTER);
    assert_eq!(browser.run("return document.querySelector('#to').value"), "shop/web:80");
    browser.type_into("#to", ENTER);
    browser.wait_text(".verdict h2", "Delivered");
    // Changes are announced.
    browser.wait_text("#status", "Delivered");
    // Every control has a name.
    let nameless = "return [...document.querySelectorAll('button, a, input, select')].filter((one) => !(one.innerText || \
                    one.getAttribute('aria-label') || one.labels?.length)).map((one) => one.outerHTML)";
    for view in ["#/services", "#/services/shop/web", "#/packet", "#/changes"] {
        browser.open(&server.view(view));
        browser.wait_for("return document.querySelector('main').innerText");
        assert_eq!(browser.run(nameless), json!([]), "{view}");
    }
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn all_views_exist_in_both_languages_and_themes() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    let views = [
        ("services", "#/services", ".vspace .vrow"),
        ("service", "#/services/shop/web", ".graph .endpoint"),
        ("packet", "#/packet?from=outside&to=198.51.100.7:80", ".verdict"),
        ("changes", "#/changes", "#doctor .notice:not(.notice-loading), #doctor .finding"),
    ];
    for (tag, locale, heading) in [("en", "en-US", "What is here?"), ("zh", "zh-CN", "这里有什么？")] {
        let browser = Browser::start(&namespace, locale);
        browser.open(&server.view("#/services"));
        browser.wait_text("h1", heading);
        for theme in ["light", "dark"] {
            browser.prefer_dark(theme == "dark");
            let mut papers = Vec::new();
            for (size, width, height) in [("wide", 1400, 900), ("phone", 380, 780)] {
                browser.resize(width, height);
                for (view, fragment, content) in views {
                    browser.open(&server.view(fragment));
                    browser.wait_for(&format!("return document.querySelector({})", json!(content)));
                    browser.keep_picture(&format!("{view}-{tag}-{theme}-{size}"));
                    // No element is wider than the screen.
                    let overflow = browser.run("return document.documentElement.scrollWidth - innerWidth");
                    assert!(overflow.as_i64().unwrap() <= 0, "{view} {tag} {size}: {overflow}");
                }
                papers.push(browser.run("return getComputedStyle(document.documentElement).backgroundColor"));
            }
            assert_eq!(papers[0], papers[1]);
            assert_eq!(papers[0] == "rgb(246, 247, 249)", theme == "light", "{papers:?}");
        }
        // The switch goes before the browser's settings.
        browser.resize(1400, 900);
        browser.open(&server.view("#/services"));
        browser.click("#language");
        let other = if tag == "en" { "这里有什么？" } else { "What is here?" };
        browser.wait_text("h1", other);
        browser.click("#theme");
        browser.wait_for("return document.documentElement.dataset.theme === 'light'");
        browser.reload();
        browser.wait_text("h1", other);
        assert_eq!(browser.run("return document.documentElement.dataset.theme"), "light");
        browser.assert_clean(&server.url, None);
    }
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn texts_have_the_same_parameters_in_both_languages() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view(""));
    browser.run("import('/web/i18n.js').then((module) => { window.texts = module.TEXTS; })");
    browser.wait_for("return Boolean(window.texts)");
    let unequal = browser.run(
        "const parameters = (text) => (text.match(/\\{\\w+\\}/g) ?? []).sort().join(); \
         return Object.entries(window.texts).filter(([, texts]) => texts.length !== 2 || !texts[0] || !texts[1] \
             || parameters(texts[0]) !== parameters(texts[1])).map(([key]) => key)",
    );
    assert_eq!(unequal, json!([]));
    assert!(browser.run("return Object.keys(window.texts).length").as_u64().unwrap() > 100);
}
