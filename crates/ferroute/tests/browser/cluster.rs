//! The page of all nodes of a cluster, `kubectl ferroute ui`.

use serde_json::json;

use crate::{
    driver::Browser,
    rig::{Failure, Rig},
};

const PAGE: &str = "127.0.0.1:8249";

#[test]
#[ignore = "requires Chromium: make test-ui"]
fn page_of_a_cluster_shows_problems_and_connections_of_all_nodes() {
    let rig = Rig::start();
    assert_eq!(rig.text(&["wait", "service/web", "--timeout", "60s"]).0, 0);
    rig.fail(&[("node-3", Failure::Forbidden)]);
    let (_plugin, line) = rig.start_page(PAGE);
    let url = line.trim().strip_prefix("open ").unwrap().to_owned();
    let browser = Browser::start(&rig.hub, "en-US");

    // Problems of all nodes come first, regardless of the selected node.
    browser.open(&format!("{url}#/services"));
    browser.wait_text("[data-problem=node-silent]", "node-3");
    browser.wait_text(".context", "iptables");
    let nodes = browser.run("return [...document.querySelectorAll('#node option')].map((one) => one.textContent)");
    assert_eq!(nodes, json!(["node-1", "node-2", "node-3"]));
    browser.wait_text("[data-key='shop/web']", "10.96.0.80");

    // Another node, which is part of the address.
    browser.run(
        "const node = document.querySelector('#node'); node.value = 'node-2'; node.dispatchEvent(new Event('change'))",
    );
    browser.wait_text(".context", "nftables");
    assert_eq!(browser.run("return location.search"), "?node=node-2");
    browser.wait_text("[data-problem=node-silent]", "node-3");
    browser.reload();
    browser.wait_text(".context", "nftables");
    browser.click("[data-key='shop/web'] a");
    browser.wait_text(".endpoint", "10.244.2.9");
    // A packet of a pod of another node, through this node's rules.
    browser.open(&format!("{url}?node=node-2#/packet?from=10.244.1.5&to=10.96.0.80:80"));
    browser.wait_text(".verdict h2", "Delivered");

    // The map has the connections of all nodes together, and the names that the user may read.
    browser.open(&format!("{url}?node=node-2#/map"));
    browser.wait_for("return document.querySelector('.map-sum')");
    let connections =
        || browser.run("return Number(document.querySelector('.map-sum').innerText.match(/\\d+/)?.[0] ?? 0)").as_u64();
    let mut port = 1000;
    for node in [0, 1] {
        let before = connections();
        // The programs on the nodes start some time after the page.
        ferroute_testing::wait(&format!("a connection of node {node} in the map"), || {
            port += 1;
            rig.track(node, port);
            std::thread::sleep(std::time::Duration::from_millis(500));
            (connections() > before).then_some(())
        });
    }
    browser.wait_text(".map-client", "shop/client");
    browser.wait_text(".map-service", "shop/web");
    browser.wait_text(".map-endpoint", "10.244.2.9");
    browser.keep_picture("cluster-map");

    // In the other language, problems of nodes are translated as well.
    browser.open(&format!("{url}#/services"));
    browser.click("#language");
    browser.wait_text("[data-problem=node-silent]", "节点");
    browser.keep_picture("cluster-zh");
    browser.assert_clean(&url, Some("502"));
}
