use std::sync::Arc;

use ferroute_core::{
    IpFamily,
    testing::{endpoint, entry, node, port_name, service_port, table},
};

use super::*;
use crate::plan::NftablesSettings;

#[test]
fn service_port_without_a_number_is_reported_until_it_has_one() {
    let entries = [1, 2].map(|i| {
        let service = service_port(&format!("10.96.0.{i}:80"));
        (port_name(&format!("shop/web-{i}:http")), entry(service, [endpoint("10.244.0.2:8080")]))
    });
    let [first, second] = entries.each_ref().map(|(name, _)| name.clone());
    let mut services = table(IpFamily::V4, node("node-1"), entries);
    let mut planner = Planner::new(Context::new(&services, &NftablesSettings::default(), &[]));
    let mut steps = Steps::new(TableId { family: IpFamily::V4, name: TABLE });
    // All numbers except one are in use.
    let mut number = planner.numbers.choose(None);
    while let Some(taken) = number {
        planner.numbers.take(taken);
        number = planner.numbers.choose(None);
    }
    planner.numbers.release(ListNumber::from_class_id(crate::model::ClassId::new(1, 1)).unwrap().0);
    for name in [&first, &second] {
        planner.update(name, &services, &mut steps).unwrap();
    }
    assert_eq!(planner.unnumbered(), &BTreeSet::from([second.clone()]));
    let removed = services.entries.remove(&first);
    assert!(removed.is_some());
    planner.update(&first, &services, &mut steps).unwrap();
    // The number is free once its elements are deleted.
    planner.finish_transaction(&mut steps);
    let entry = services.entries.get_mut(&second).unwrap();
    entry.service = Arc::new(service_port("10.96.0.3:80"));
    planner.update(&second, &services, &mut steps).unwrap();
    assert!(planner.unnumbered().is_empty());
    assert!(planner.service_ports().any(|name| *name == second));
}
