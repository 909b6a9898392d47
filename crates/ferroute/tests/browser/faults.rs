//! Use of the page without a mouse, on small screens, in another language, or with a large cluster.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::{NetNs, Running};
use serde_json::{Value, json};

use crate::{
    driver::{ARROW_DOWN, Browser, ENTER, ESCAPE, TAB},
    open_service,
    servers::{FERROUTE, Server, record, repository},
};

/// Views, and an element of each that appears once its data have arrived.
const VIEWS: [(&str, &str); 4] = [
    ("#/services", "#problems:not(.wrong-checking) .problem-state"),
    ("#/services/shop/web", ".graph .endpoint"),
    ("#/packet?from=outside&to=198.51.100.7:80", ".verdict"),
    ("#/changes", "#doctor .notice:not(.notice-loading), #doctor .finding"),
];

#[track_caller]
fn open_view(browser: &Browser<'_>, server: &Server, (fragment, content): (&str, &str)) {
    browser.open(&server.view(fragment));
    browser.wait_for(&format!("return document.querySelector({})", json!(content)));
}

/// A Service with endpoints on several nodes, and the Node.
fn service_with_endpoints(directory: &Path, endpoints: usize) -> PathBuf {
    let mut yaml = String::from(
        "{apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDR: 10.244.1.0/24}, \
         status: {addresses: [{type: InternalIP, address: 192.168.0.11}]}}\n---\n\
         {apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
         spec: {type: NodePort, clusterIP: 10.96.0.80, ports: [{port: 80, nodePort: 30080}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}\nports: [{port: 8080}]\nendpoints:\n",
    );
    for number in 0..endpoints {
        let (node, host) = (1 + number % 8, 2 + number / 8);
        let target = format!("targetRef: {{kind: Pod, namespace: shop, name: web-{number}}}");
        writeln!(yaml, "- {{addresses: [10.244.{node}.{host}], nodeName: node-{node}, {target}}}").unwrap();
    }
    let manifests = directory.join("service.yaml");
    fs::write(&manifests, yaml).unwrap();
    manifests
}

/// Writes many Services with one endpoint each.
fn many_services(directory: &Path, count: usize) -> PathBuf {
    let mut yaml = String::new();
    for number in 0..count {
        let address = format!("10.{}.{}.{}", 100 + number / 65_536, number / 256 % 256, number % 256);
        let metadata = format!("{{name: service-{number:05}, namespace: team-{}}}", number % 10);
        let spec = format!("{{clusterIP: {address}, ports: [{{port: 80}}]}}");
        writeln!(yaml, "---\n{{apiVersion: v1, kind: Service, metadata: {metadata}, spec: {spec}}}").unwrap();
    }
    let manifests = directory.join("services.yaml");
    fs::write(&manifests, yaml).unwrap();
    manifests
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn node_port_answers_a_click() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    open_service(&browser, &server, "shop/web");
    let hint = browser.wait_text(".graph-hint", "Click a client");
    browser.click("[data-frontend=nodePort]");
    assert_ne!(browser.run("return document.querySelector('.graph-hint').innerText"), json!(hint));
    browser.click(".graph .client[data-client=outside]");
    browser.click("[data-frontend=nodePort]");
    browser.wait_text(".verdict h2", "Delivered");
    let fragment = browser.run("return decodeURIComponent(location.hash)");
    assert!(fragment.as_str().unwrap().contains("to=192.168.0.11:30080"), "{fragment}");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn proxy_without_changes_has_applied_its_rules() {
    let namespace = NetNs::new();
    let mut command = Command::new(FERROUTE);
    command.args(["run", "--hostname-override", "node-1", "--proxy-mode", "nftables", "--manifests"]);
    command.arg(repository("examples/cluster.yaml"));
    let _proxy = Running(namespace.run(|| command.stderr(Stdio::null()).spawn()).unwrap());
    let end = Instant::now() + Duration::from_secs(120);
    let is_ready = || {
        let status = namespace.try_command(FERROUTE, &["status", "-o", "json"]);
        serde_json::from_slice::<Value>(&status.stdout).is_ok_and(|status| status["ready"] == true)
    };
    while !is_ready() {
        assert!(Instant::now() < end, "the proxy has applied no rules");
        thread::sleep(Duration::from_millis(100));
    }
    let server = Server::start(&namespace, &[]);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/changes"));
    browser.wait_text(".timeline-card", "Its rules have been applied");
    browser.assert_clean(&server.url, None);
}

/// Checks that the bars of the chart are where the labels of its axis say.
#[track_caller]
fn assert_bars_are_at_their_times(browser: &Browser<'_>) {
    let errors = browser.run(
        "const at = (node) => { const box = node.getBoundingClientRect(); return [Number(node.dataset.time), box.left + box.width / 2]; }; \
         const ticks = [...document.querySelectorAll('.chart .tick-time')].map(at); \
         const bars = [...document.querySelectorAll('.chart .bar')].map(at); \
         if (ticks.length < 2 || bars.length < 1) return `${ticks.length} times, ${bars.length} bars`; \
         const [[t1, x1], [t2, x2]] = [ticks[0], ticks.at(-1)]; \
         const place = (time) => x1 + ((time - t1) / (t2 - t1)) * (x2 - x1); \
         return [...ticks, ...bars].filter(([time, x]) => Math.abs(place(time) - x) > 3)",
    );
    assert_eq!(errors, json!([]));
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn chart_of_syncs_has_units_and_times() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let bundle = record(&namespace, directory.path());
    let server = Server::start(&namespace, &["--bundle", bundle.to_str().unwrap()]);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/changes"));
    browser.wait_for("return document.querySelectorAll('.chart .tick-time').length > 1");
    let values =
        browser.run("return [...document.querySelectorAll('.chart .tick-value')].map((one) => one.textContent)");
    let values: Vec<&str> = values.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect();
    assert!(values.len() >= 2 && values.iter().all(|value| value.ends_with('s')), "{values:?}");
    browser.wait_text(".chart-unit", "Duration");
    assert_bars_are_at_their_times(&browser);
    browser.resize(390, 780);
    browser.wait_for("return document.querySelector('.chart svg').getBoundingClientRect().right <= innerWidth");
    browser.wait_for("return document.querySelectorAll('.chart .tick-time').length > 1");
    assert_bars_are_at_their_times(&browser);
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn long_list_is_one_stop_of_the_tab_key() {
    const FOCUSED: &str = "return document.activeElement.closest('.vrow')?.dataset.key";
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let server = Server::with_manifests(&namespace, &many_services(directory.path(), 2000));
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/services"));
    browser.wait_text(".vspace", "service-00000");
    let stops = "return [...document.querySelectorAll('.vbody a, .vbody button, .vbody [tabindex]')].filter((one) => one.tabIndex >= 0).length";
    assert_eq!(browser.run(stops), 1);
    browser.run("document.querySelector('.vbody').scrollTop = 20_000");
    browser.wait_for("return !document.querySelector('.vspace').innerText.includes('service-00000')");
    assert_eq!(browser.run(stops), 1, "there is one in every part of the list");

    browser.type_into("body", "/");
    browser.wait_for("return document.activeElement.id === 'search'");
    browser.type_into("#search", "service-0001");
    browser.wait_for("return document.querySelectorAll('.vspace .vrow').length === 10");
    browser.type_into("#search", ARROW_DOWN);
    assert_eq!(browser.run(FOCUSED), "team-0/service-00010");
    browser.type_into(".vrow:focus-within a", ARROW_DOWN);
    assert_eq!(browser.run(FOCUSED), "team-1/service-00011");
    browser.type_into(".vrow:focus-within a", TAB);
    assert_eq!(browser.run(FOCUSED), Value::Null, "the next stop is after the list");
    // Enter moves the focus to the selected item, Escape back to the list.
    browser.run("document.querySelector('.vspace [tabindex=\"0\"]').focus()");
    browser.type_into(".vrow:focus-within a", ENTER);
    browser.wait_for("return document.activeElement.closest('.detail-pane')");
    browser.wait_text(".service-title", "service-00011");
    browser.type_into(".service-title h1", ESCAPE);
    assert_eq!(browser.run(FOCUSED), "team-1/service-00011");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn nothing_overlaps_or_is_cut_on_a_phone() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let server = Server::with_manifests(&namespace, &many_services(directory.path(), 10_000));
    for language in ["en-US", "zh-CN"] {
        let browser = Browser::start(&namespace, language);
        browser.resize(390, 780);
        browser.open(&server.view("#/services"));
        browser.wait_text(".figures", "10,000");
        browser.keep_picture(&format!("phone-{language}"));
        let faults = browser.run(
            "const box = (node) => node.getBoundingClientRect(); const faults = []; \
             const parts = [...document.querySelectorAll('.figure dd, .figure dt, .vhead .vcell, .vspace .vrow:first-child .vcell')] \
                 .filter((one) => one.offsetParent !== null); \
             for (const one of parts) { \
               if (one.scrollWidth > one.clientWidth + 1 || box(one).right > innerWidth || box(one).left < 0) faults.push(`cut: ${one.innerText}`); \
               for (const other of parts) { \
                 const [a, b] = [box(one), box(other)]; \
                 if (one !== other && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) \
                   faults.push(`${one.innerText} / ${other.innerText}`); \
               } \
             } \
             return faults",
        );
        assert_eq!(faults, json!([]), "{language}");
        browser.assert_clean(&server.url, None);
    }
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn list_is_as_high_as_its_rows_and_not_higher_than_the_screen() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    for services in [1, 3, 2000] {
        let server = Server::with_manifests(&namespace, &many_services(directory.path(), services));
        let browser = Browser::start(&namespace, "en-US");
        for (width, height) in [(390, 780), (1400, 900), (1920, 1080)] {
            browser.resize(width, height);
            browser.open(&server.view("#/services"));
            browser.wait_text(".vspace", "service-00000");
            browser.keep_picture(&format!("list-{services}-{width}"));
            // The page measures its rows once they are drawn.
            let is_long = services > 3;
            browser.wait_for(&format!(
                "const box = (one) => document.querySelector(one).getBoundingClientRect(); \
                 const rest = box('.vtable').bottom - box('.vspace .vrow:last-child').bottom; \
                 return box('.vtable').height < innerHeight && ({is_long} || rest >= 0 && rest < 3)"
            ));
        }
        browser.assert_clean(&server.url, None);
    }
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn wide_screens_are_used() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    browser.resize(2560, 1300);
    for view in VIEWS {
        open_view(&browser, &server, view);
        browser.keep_picture(&format!("very-wide-{}", view.0.split('/').nth(1).unwrap().split('?').next().unwrap()));
        let share = browser.run(
            "const boxes = [...document.querySelectorAll('.vtable, .wrong, .card, .question, .path-box, .verdict')] \
                 .filter((one) => one.offsetParent !== null).map((one) => one.getBoundingClientRect()); \
             return (Math.max(...boxes.map(({ right }) => right)) - Math.min(...boxes.map(({ left }) => left))) / innerWidth",
        );
        assert!(share.as_f64().unwrap() > 0.9, "{view:?}: {share}");
    }
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn service_with_many_endpoints_starts_with_its_graph() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let server = Server::with_manifests(&namespace, &service_with_endpoints(directory.path(), 200));
    let browser = Browser::start(&namespace, "en-US");
    open_service(&browser, &server, "shop/web");
    let tops = browser.run(
        "return ['.client', '.frontend', '.service-node', '.endpoint'].map((one) => document.querySelector(one).getBoundingClientRect().bottom)",
    );
    assert!(tops.as_array().unwrap().iter().all(|bottom| bottom.as_f64().unwrap() < 500.0), "{tops}");
    browser.assert_clean(&server.url, None);
}

/// Texts of the view that are in English, completely or in part. Rules, commands and names are not translated.
const ENGLISH: &str = "\
    const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT); const found = []; \
    for (let node = walker.nextNode(); node; node = walker.nextNode()) { \
      if (node.parentElement.closest('.mono, pre, code, kbd, .rule-place, .chip')) continue; \
      const isChinese = /[\\u4e00-\\u9fff]/.test(node.data); \
      const words = isChinese ? /(^|[\\s\\u4e00-\\u9fff，：])(is|are|not|the|of|by|to|and|which|that|has|have|uses|was|were)\\s/ : /[a-z]{2,}( [a-z]{1,}){3,}/i; \
      if (words.test(node.data)) found.push(node.data); \
    } \
    return found";

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn chinese_page_is_in_chinese() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let example = fs::read_to_string(repository("examples/cluster.yaml")).unwrap();
    let more = "---\n{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: shop}, spec: {clusterIP: None, ports: [{port: 80}]}}\n";
    let manifests = directory.path().join("cluster.yaml");
    fs::write(&manifests, format!("{example}{more}")).unwrap();
    let others = [
        ("#/services/shop/headless", ".service-body .notice:not(.notice-loading)"),
        ("#/packet?from=10.244.1.9&to=shop/cart:9000", ".verdict"),
        ("#/packet?from=10.244.1.5&to=10.96.0.80:80", ".verdict"),
        ("#/packet?from=nobody&to=shop/web:80", ".notice-error"),
        ("#/packet?from=fd00::9&to=shop/cart:9000", ".notice-error"),
        ("#/packet?from=outside&to=shop/headless:80", ".notice-error"),
        ("#/packet?from=outside&to=shop/none:80", ".notice-error"),
        ("#/packet?from=outside&to=shop/web:81", ".notice-error"),
        ("#/packet?from=outside&to=10.96.0.80", ".notice-error"),
        ("#/packet?from=outside&to=10.96.0.80:0", ".notice-error"),
    ];
    for mode in ["nftables", "iptables"] {
        let paths = ["--manifests", manifests.to_str().unwrap()];
        let server =
            Server::start(&namespace, &[&paths[..], &["--hostname-override", "node-1", "--proxy-mode", mode]].concat());
        let browser = Browser::start(&namespace, "zh-CN");
        for view in VIEWS.into_iter().chain(others) {
            open_view(&browser, &server, view);
            assert_eq!(browser.run(ENGLISH), json!([]), "{mode} {view:?}");
            let owners = "return document.querySelector('main').innerText.match(/\\((pod|node) .*\\)/)";
            assert_eq!(browser.run(owners), json!(null), "{mode} {view:?}");
        }
        browser.assert_clean(&server.url, Some("400"));
    }
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn each_sentence_of_the_server_has_its_own_translation() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    let browser = Browser::start(&namespace, "zh-CN");
    browser.open(&server.url);
    // A more general sentence before it would take its place.
    let hidden = browser.run(
        "return import('/web/texts.js').then(({ SENTENCES, translate }) => SENTENCES.filter(([english, chinese]) => { \
           const fill = (text, subject) => text.replace('{subject}', subject).replace(/\\{\\w+\\}/g, 'x7'); \
           return translate(fill(english, 'source')) !== fill(chinese, '源地址'); }))",
    );
    assert_eq!(hidden, json!([]));
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn times_after_midnight_begin_with_zero() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    for language in ["en-US", "zh-CN"] {
        let browser = Browser::start(&namespace, language);
        browser.open(&server.url);
        let times = browser.run(
            "const at = new Date(2026, 0, 1, 0, 5, 9).getTime(); \
             return import('/web/format.js').then(({ clock, dateTime }) => [clock(at), dateTime(at)])",
        );
        let times: Vec<String> = serde_json::from_value(times).unwrap();
        assert!(times.iter().all(|time| time.ends_with("00:05:09")), "{times:?}");
    }
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn graph_stays_within_its_card() {
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    for width in [390, 768, 800, 960, 1024, 1180, 1280, 1366, 1500, 1920] {
        browser.resize(width, 900);
        open_view(&browser, &server, VIEWS[1]);
        let outside = browser.run(
            "const { left, right } = document.querySelector('.graph').getBoundingClientRect(); \
             return [...document.querySelectorAll('.graph .gnode, .graph .gnode-group')].filter((one) => { \
               const box = one.getBoundingClientRect(); return box.left < left - 1 || box.right > right + 1; }).map((one) => one.innerText)",
        );
        assert_eq!(outside, json!([]), "{width}");
    }
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn changes_are_sent_as_differences() {
    const SERVICES: usize = 3000;
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let manifests = many_services(directory.path(), SERVICES);
    let server = Server::with_manifests(&namespace, &manifests);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/services"));
    browser.wait_text(".figures", "3,000");
    let size = |path: &str| {
        let script = "return performance.getEntriesByType('resource').filter(({ name }) => name.includes(PATH)).map(({ encodedBodySize, decodedBodySize }) => [encodedBodySize, decodedBodySize])";
        let sizes = browser.run(&script.replace("PATH", &json!(path).to_string()));
        serde_json::from_value::<Vec<[u64; 2]>>(sizes).unwrap()
    };
    let [[sent, whole]] = size("/api/v1/services")[..] else { panic!("the list was not sent once") };
    assert!(sent * 5 < whole, "{sent} of {whole} bytes");
    let yaml = fs::read_to_string(&manifests).unwrap();
    fs::write(&manifests, yaml.replace("name: service-01234,", "name: renamed,")).unwrap();
    browser.enter("#search", "renamed");
    browser.wait_text(".vspace", "renamed");
    browser.enter("#search", "service-01234");
    browser.wait_for("return document.querySelectorAll('.vspace .vrow').length === 0");
    assert_eq!(size("/api/v1/services").len(), 1);
    let changes = size("/api/v1/changes");
    assert!(!changes.is_empty() && changes.iter().all(|[_, whole]| *whole < 20_000), "{changes:?}");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn problems_come_first() {
    let namespace = NetNs::new();
    let directory = tempfile::tempdir().unwrap();
    let manifests = directory.path().join("cluster.yaml");
    let example = fs::read_to_string(repository("examples/cluster.yaml")).unwrap();
    fs::write(&manifests, &example).unwrap();
    let server = Server::with_manifests(&namespace, &manifests);
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.view("#/services"));
    browser.wait_text("[data-problem=noEndpoints]", "shop/search");
    // Problems come before all other parts of the view.
    let order = "const [problems, table] = ['#problems', '.vtable'].map((one) => document.querySelector(one)); \
                 return Boolean(problems.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING)";
    assert_eq!(browser.run(order), true);
    for (filter, services) in [
        ("endpoints:0", vec!["shop/search"]),
        ("endpoints:>0 type:loadbalancer", vec!["shop/web"]),
        ("namespace:shop port:9000", vec!["shop/cart"]),
        ("namespace:other", vec![]),
    ] {
        browser.enter("#search", filter);
        let keys = "return [...document.querySelectorAll('.vspace .vrow')].map((one) => one.dataset.key)";
        browser.wait_for(&format!(
            "return JSON.stringify((() => {{ {keys} }})()) === {}",
            json!(json!(services).to_string())
        ));
    }
    // Another Service claims the address of the load balancer, and no Service is left without endpoints.
    let claim = "---\n{apiVersion: v1, kind: Service, metadata: {name: thief, namespace: shop}, \
                 spec: {clusterIP: 10.96.0.99, externalIPs: [198.51.100.7], ports: [{port: 80}]}}\n";
    fs::write(&manifests, format!("{example}{claim}")).unwrap();
    browser.wait_text("[data-problem=conflicts]", "shop/thief");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn failed_connections_and_ejected_endpoints_are_problems() {
    let namespace = NetNs::new();
    let server = Server::demo_of(&namespace, "nftables", &repository("examples/ejection.yaml"));
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.url);
    browser.click("#keep-sending");
    browser.wait_for("return /[1-9]/.test(document.querySelector('.flow-answered')?.innerText)");
    // A server hangs, and the cluster does not notice it. Without its interface, the outcome would depend on how long the node
    // remembers its address.
    server.exec("web-2", &["ip", "rule", "add", "blackhole"]);
    browser.wait_text(".flow-stream .notice-error", "no reply");
    browser.click(".tabs a[href='#/services']");
    browser.wait_text("[data-problem=failing]", "default/web");
    browser.wait_text("[data-problem=ejected]", "default/web");
    browser.keep_picture("problems-failing");
    browser.click("[data-key='default/web'] a");
    browser.wait_text("main", "its connections failed");
    browser.assert_clean(&server.url, None);
}

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn stream_of_the_demo_shows_what_fails_and_why() {
    let namespace = NetNs::new();
    let server = Server::demo(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.url);
    browser.wait_for("return document.querySelector('#keep-sending')");
    // A pod that is not an endpoint comes first, and nodes have their own addresses.
    let clients = "return [...document.querySelectorAll('.client')].map((one) => one.innerText.split(/\\s+/))";
    let clients: Vec<Vec<String>> = serde_json::from_value(browser.run(clients)).unwrap();
    assert_eq!(clients[0][0], "web-server");
    assert!(clients.contains(&vec!["node".to_owned(), "192.168.49.2".to_owned()]), "{clients:?}");
    assert_eq!(browser.run("return document.querySelector('.demo-form select').value"), "web-server");

    browser.click("#keep-sending");
    browser.wait_for("return /[1-9]/.test(document.querySelector('.flow-answered')?.innerText)");
    assert_eq!(browser.count("#keep-sending[aria-pressed=true]"), 1);
    browser.unfold(".demo details");
    for left in (0..3).rev() {
        browser.click(".switch[aria-checked=true][aria-label^='default/nginx']");
        browser.wait_for(&format!(
            "return document.querySelectorAll('.switch[aria-checked=true][aria-label^=\"default/nginx\"]').length === {left}"
        ));
    }
    browser.wait_for("return [...document.querySelectorAll('.flow-stream .tick')].some((one) => one.textContent.includes('not ready'))");
    browser.wait_text(".flow-stream .notice-error", "refused");
    browser.keep_picture("demo-stream");
    // The overview reports it, and the stream continues in the meantime.
    browser.open(&server.view("#/services"));
    browser.wait_text("[data-problem=noEndpoints]", "nginx-service");
    browser.click("[data-key='default/nginx-service'] a");
    browser.wait_for("return document.querySelector('#keep-sending[aria-pressed=true]')");
    browser.click("#keep-sending");
    browser.wait_for("return document.querySelector('#keep-sending[aria-pressed=false]')");
    browser.assert_clean(&server.url, None);
}

/// The steps of a user who has not read the documentation: look, send connections, kill a pod, and see which of them failed.
#[test]
#[ignore = "requires Chromium: make test-ui"]
fn newcomer_sees_what_a_killed_pod_costs_and_why() {
    let namespace = NetNs::new();
    let server = Server::demo(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.url);
    browser.click("#keep-sending");
    browser.wait_for("return document.querySelectorAll('.flow-stream .chip').length === 3");
    let failed = "return Number(document.querySelector('.flow-failed').innerText.match(/\\d+/)[0])";
    assert_eq!(browser.run(failed), 0);
    // Connections to each endpoint, and to all of them together.
    browser.wait_for(
        "return ['all endpoints', 'nginx-deployment-1', 'kB'].every((text) => document.querySelector('#traffic')?.innerText.includes(text))",
    );
    browser.unfold(".demo details");
    browser.click(".demo-columns button[aria-label^='Kill '][aria-label*='nginx-deployment-1']");
    // The drawing shows the actions, and below it the failures with their durations and reasons.
    browser.wait_for("return [...document.querySelectorAll('.flow-stream .tick')].some((one) => /nginx-deployment-1/.test(one.textContent))");
    let why = browser.wait_text(".flow-stream .notice-error", ", during ");
    assert!(["refused: ", "reset: ", "no reply"].iter().any(|reason| why.contains(reason)), "{why}");
    // The pod comes back, and there are no more failures.
    for used in [2, 3] {
        browser.wait_for(&format!("return document.querySelectorAll('.endpoint-used').length === {used}"));
    }
    browser.wait_for(&format!(
        "const count = () => {{ {failed} }}; const before = count(); \
         return new Promise((resolve) => setTimeout(() => resolve(before > 0 && count() === before), 2000))"
    ));
    browser.keep_picture("demo-killed");
    // No label of the drawing is cut off.
    let cut = browser.run(
        "const { left, right } = document.querySelector('.flow-stream svg').getBoundingClientRect(); \
         return [...document.querySelectorAll('.flow-stream svg text')].filter((one) => { \
           const box = one.getBoundingClientRect(); return box.left < left || box.right > right; }).map((one) => one.textContent)",
    );
    assert_eq!(cut, json!([]));
    // The initial packet is the simplest one, not that of an endpoint to its own Service.
    browser.open(&server.view("#/packet"));
    browser.wait_text(".welcome li:first-child", "default/web-server");
    browser.wait_text(".welcome", "192.168.49.2:");
    browser.assert_clean(&server.url, None);
}

/// The checks of axe-core, at a pinned version, which `make deps-ui` downloads for tests.
fn axe() -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("axe").join("package/axe.min.js");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error} (make deps-ui)", path.display()))
}

#[track_caller]
fn assert_accessible(browser: &Browser<'_>, axe: &str, view: &str) {
    // The contrast of elements that fade in or out is not that of the view.
    browser.wait_for("return !document.querySelector('[inert]') && document.getAnimations().every((one) => !(one instanceof CSSTransition))");
    browser.run(axe);
    browser.run("window.violations = null; axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => { window.violations = \
                 violations.map(({ id, impact, nodes }) => [impact, id, nodes.map(({ html, failureSummary }) => [html, failureSummary])]); })");
    browser.wait_for("return window.violations !== null");
    let violations = browser.run("return window.violations");
    assert_eq!(violations, json!([]), "{view}");
}

#[test]
#[ignore = "requires Chromium and axe-core: make test-ui"]
fn axe_finds_nothing_in_any_view() {
    let axe = axe();
    let namespace = NetNs::new();
    let server = Server::with_example(&namespace, "nftables");
    for locale in ["en-US", "zh-CN"] {
        let browser = Browser::start(&namespace, locale);
        // Before any packet was traced.
        open_view(&browser, &server, ("#/packet", ".welcome"));
        assert_accessible(&browser, &axe, "the packet's view without a question");
        for theme in ["light", "dark"] {
            browser.prefer_dark(theme == "dark");
            for (width, height) in [(1400, 900), (390, 780)] {
                browser.resize(width, height);
                for view in VIEWS {
                    open_view(&browser, &server, view);
                    assert_accessible(&browser, &axe, &format!("{view:?} {locale} {theme} {width}"));
                }
            }
        }
    }
}

#[test]
#[ignore = "requires Chromium and axe-core: make test-ui"]
fn axe_finds_nothing_in_the_demo() {
    let axe = axe();
    let namespace = NetNs::new();
    let server = Server::demo(&namespace, "nftables");
    let browser = Browser::start(&namespace, "en-US");
    browser.open(&server.url);
    browser.click(".demo-form [type=submit]");
    browser.wait_for("return document.querySelector('.endpoint .received')");
    browser.unfold(".demo details");
    assert_accessible(&browser, &axe, "the demo");
    browser.open(&server.view("#/changes"));
    browser
        .wait_for("return document.querySelector('.timeline-card .sync, .timeline-card .notice:not(.notice-loading)')");
    assert_accessible(&browser, &axe, "the demo's syncs");
}
