use std::sync::LazyLock;

use ferroute_api::{Object, manifest, manifest::Parsed};
use ferroute_config::{KubeProxyConfiguration, ModeName, Resolved};
use ferroute_core::{
    IpFamily, NodeView, Tracker,
    parse::{parse_endpoints, parse_node, parse_service_cidr},
    tracker::TrackerEvent,
};
use ferroute_modes::REGISTRY;
use serde_json::Value;

/// Reads a manifest, applies its objects to a tracker and plans the rules of every mode.
///
/// # Panics
///
/// Documents do not start where they claim to, an object that is written as JSON is read differently, or the rules of an
/// object that was accepted cannot be written.
pub fn manifests(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    check_positions(text);
    let mut tracker = Tracker::new(NodeView { name: "node-1".to_owned(), ..NodeView::default() });
    let mut is_used = false;
    for parsed in manifest::read(text) {
        let Ok(Parsed::Object(object)) = parsed else { continue };
        check_json(&object);
        if let Some(event) = event(&object) {
            tracker.apply(event);
            is_used = true;
        }
    }
    if is_used {
        plan(&mut tracker);
    }
}

fn check_positions(text: &str) {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rest = body;
    let mut lines = 1;
    for document in manifest::documents(text) {
        while lines < document.line {
            let end = rest.find('\n').expect("a line before the document") + 1;
            (rest, lines) = (&rest[end..], lines + 1);
        }
        assert!(rest.starts_with(document.text), "document {} is not at line {}", document.number, document.line);
    }
}

fn check_json(object: &Object) {
    let Some(mut value) = to_value(object) else { return };
    value["kind"] = object.kind().as_str().into();
    value["apiVersion"] = object.kind().api_version().into();
    let text = value.to_string();
    match &manifest::read(&text)[..] {
        [Ok(Parsed::Object(again))] => assert_eq!(**again, *object, "{text}"),
        other => panic!("{other:?} in {text}"),
    }
}

fn to_value(object: &Object) -> Option<Value> {
    let value = match object {
        Object::Service(object) => serde_json::to_value(object),
        Object::EndpointSlice(object) => serde_json::to_value(object),
        Object::Node(object) => serde_json::to_value(object),
        Object::ServiceCidr(object) => serde_json::to_value(object),
        _ => return None,
    };
    value.ok()
}

fn event(object: &Object) -> Option<TrackerEvent> {
    match object {
        Object::Service(service) => TrackerEvent::from_service(service).ok(),
        Object::EndpointSlice(slice) => TrackerEvent::from_slice(slice, "node-1").ok(),
        Object::Endpoints(endpoints) => {
            let slices = parse_endpoints(endpoints).ok()?.slices;
            slices.iter().filter_map(|slice| TrackerEvent::from_slice(slice, "node-1").ok()).next_back()
        }
        Object::Node(node) => parse_node(node).ok().map(TrackerEvent::NodeApplied),
        Object::ServiceCidr(cidr) => parse_service_cidr(cidr).ok().map(TrackerEvent::ServiceCidrsApplied),
        Object::Pod(_) | Object::Deployment(_) => None,
    }
}

/// The default configuration of each mode.
static MODES: LazyLock<Vec<Resolved>> = LazyLock::new(|| {
    let resolve = |mode: ModeName| {
        let config = KubeProxyConfiguration { mode: mode.to_string(), ..KubeProxyConfiguration::default().defaulted() };
        REGISTRY.resolve(&config).expect("a valid configuration")
    };
    [ModeName::IPTABLES, ModeName::NFTABLES].map(resolve).into()
});

fn plan(tracker: &mut Tracker) {
    for resolved in MODES.iter() {
        for family in IpFamily::BOTH {
            tracker.update_for_resync(family);
            let mut simulation = REGISTRY.active(resolved.mode).simulate(family, resolved, Vec::new());
            simulation.resync(tracker.table(family)).expect("rules that can be written");
        }
    }
}
