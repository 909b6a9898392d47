//! Rules of the nodes that connections and packets pass, and a check that the kernel has them: measurements without
//! rules would be meaningless.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ferroute_core::IpFamily;
use ferroute_nftables::{
    kernel::{Kernel, NetlinkKernel},
    model::TableId,
    plan::TABLE,
};
use ferroute_testing::NetNs;

use super::{
    arguments::Mode,
    cluster::{Size, service},
    pipeline::{Event, Pipeline},
};

/// Makes a namespace track connections, as the kernel does when a rule matches their state.
pub(crate) fn track(namespace: &NetNs) {
    let table = "table ip tracking { chain forward { type filter hook forward priority filter; ct state new; }; }";
    namespace.feed("nft", &["-f", "-"], table);
}

/// Writes and checks the proxy's rules for a cluster of this size.
pub(crate) fn write(namespace: &NetNs, mode: Mode, size: Size) {
    namespace.run(|| {
        let mut pipeline = Pipeline::open(mode);
        pipeline.load(size);
        pipeline.first_sync();
    });
    check(namespace, mode, size);
}

/// Like [`write`] for nftables mode, with annotations on the Service by this number.
pub(crate) fn write_with(namespace: &NetNs, size: Size, number: u32, annotations: &[(&str, &str)]) {
    namespace.run(|| {
        let mut pipeline = Pipeline::open(Mode::Nftables);
        pipeline.load(size);
        pipeline.first_sync();
        let mut service = service(number);
        let annotation = |(name, value): &(&str, &str)| (format!("ferroute.io/{name}"), (*value).to_owned());
        service.metadata.annotations.extend(annotations.iter().map(annotation));
        pipeline.sync(std::iter::once(Event::Service(Box::new(service))));
    });
}

/// Panics unless the namespace has rules for a cluster of this size.
pub(crate) fn check(namespace: &NetNs, mode: Mode, size: Size) {
    let (services, endpoints) = (size.services as usize, (size.services * size.endpoints) as usize);
    let counts = namespace.run(|| match mode {
        Mode::Iptables => chains(),
        Mode::Nftables => elements(),
    });
    assert_eq!(counts, (services, endpoints), "{mode} {size}: service ports and endpoints in the kernel");
}

/// Returns the numbers of chains of service ports and of endpoints.
fn chains() -> (usize, usize) {
    let mut child = Command::new("iptables-save").args(["-t", "nat"]).stdout(Stdio::piped()).spawn().unwrap();
    let (mut services, mut endpoints) = (0, 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        services += usize::from(line.starts_with(":KUBE-SVC-"));
        endpoints += usize::from(line.starts_with(":KUBE-SEP-"));
    }
    assert!(child.wait().unwrap().success(), "iptables-save failed");
    (services, endpoints)
}

/// Returns the numbers of elements of service ports and of endpoints, which the kernel counts. Listing a million elements would
/// take minutes.
fn elements() -> (usize, usize) {
    let table = TableId { family: IpFamily::V4, name: TABLE };
    let listing = NetlinkKernel::open().unwrap().list_table(&table).unwrap().expect("the table");
    let count = |set: &str| {
        let set = listing.sets.iter().find(|listed| listed.name.as_str() == set).expect("the map");
        set.element_count.expect("the number of elements")
    };
    (count("services"), count("tcp-endpoints"))
}
