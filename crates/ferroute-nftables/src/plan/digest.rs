use std::fmt::{self, Write};

use ferroute_core::RulesDigest;

use super::{
    List, Planner,
    kind::Selection,
    port_plan::{FrontendPlan, PortElements, Request},
};

impl Planner {
    /// Returns a digest of the frontends of all service ports, the actions for them and their endpoints.
    ///
    /// Chains and addresses that exist without a Service are left out because they depend on the host. The order of
    /// endpoints in a list and their slots are also left out: they depend on earlier states and do not affect packets.
    pub(crate) fn digest(&self) -> RulesDigest {
        let mut ports: Vec<_> = self.ports().collect();
        ports.sort_unstable_by_key(|(name, _)| *name);
        RulesDigest::compute(|mut out| {
            ports.iter().try_for_each(|(name, port)| {
                write!(out, "{name} {} at ", name.protocol)?;
                port.exposure.service.cluster_ip.iter().try_for_each(|address| write!(out, "{address}"))?;
                out.write_char('\n')?;
                write_port(&mut out, port)?;
                port.exposure.frontends.iter().try_for_each(|plan| write_plan(&mut out, port, plan))
            })
        })
    }
}

fn write_port(out: &mut impl Write, port: &PortElements) -> fmt::Result {
    for (list, backends) in
        [("cluster", port.list(List::Cluster)), ("local", port.list(List::Local)), ("own", port.hairpins())]
    {
        let mut sockets: Vec<_> = backends.iter().collect();
        sockets.sort_unstable();
        out.write_str(list)?;
        sockets.iter().try_for_each(|socket| write!(out, " {socket}"))?;
        out.write_char('\n')?;
    }
    if let Some(seconds) = port.affinity() {
        writeln!(out, "affinity {seconds}")?;
    }
    port.exposure.source_ranges().iter().try_for_each(|net| writeln!(out, "source {net}"))
}

fn write_plan(out: &mut impl Write, port: &PortElements, plan: &FrontendPlan) -> fmt::Result {
    write!(out, "{} {}", plan.frontend, port.class(plan.request).text())?;
    if plan.request.selection == Selection::ExternalLocal {
        let local = Request { selection: Selection::Pick, list: List::Local };
        write!(out, " {}", port.class(local).text())?;
    }
    writeln!(out, "{}", if plan.restricted { " restricted" } else { "" })
}

#[cfg(test)]
mod tests {
    use ferroute_core::{
        IpFamily, NodePortAddresses, ServiceTable,
        testing::{Cluster, pod, service, slice},
    };

    use super::*;
    use crate::{
        model::TableId,
        plan::{Context, NftablesSettings, Steps, TABLE},
    };

    fn web(pods: &[&str], seconds: Option<u32>) -> ServiceTable {
        let slice = slice("shop/web-a", "web").port("http", 8080);
        let slice = pods.iter().fold(slice, |slice, address| slice.pod(pod(address)));
        let service = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let service = seconds.into_iter().fold(service, |service, seconds| service.affinity(seconds));
        Cluster::new("node-1").service(service).slice(slice).table(IpFamily::V4)
    }

    /// Returns the digest after syncing these tables one after another, on a host with these addresses.
    fn digest(tables: &[ServiceTable], settings: &NftablesSettings, host: &[std::net::IpAddr]) -> RulesDigest {
        let mut planner = Planner::new(Context::new(&tables[0], settings, host));
        let mut steps = Steps::new(TableId { family: IpFamily::V4, name: TABLE });
        for table in tables {
            table.entries.keys().for_each(|name| {
                planner.update(name, table, &mut steps).unwrap();
            });
            planner.finish_transaction(&mut steps);
        }
        planner.digest()
    }

    #[test]
    fn digest_depends_on_endpoints_and_actions() {
        let digests = [
            (&["10.244.0.2"][..], None),
            (&["10.244.0.3"], None),
            (&["10.244.0.2", "10.244.0.3"], None),
            (&["10.244.0.2"], Some(60)),
            (&["10.244.0.2"], Some(61)),
            (&[], None),
        ]
        .map(|(pods, seconds)| digest(&[web(pods, seconds)], &NftablesSettings::default(), &[]));
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest), "{digests:?}");
        }
    }

    #[test]
    fn digest_depends_neither_on_earlier_states_nor_on_the_host() {
        let (one, two) = (web(&["10.244.0.3"], None), web(&["10.244.0.2", "10.244.0.3"], None));
        let expected = digest(std::slice::from_ref(&two), &NftablesSettings::default(), &[]);
        assert_eq!(digest(&[one, two.clone()], &NftablesSettings::default(), &[]), expected);
        let mut settings = NftablesSettings::default();
        settings.proxy.node_port_addresses = NodePortAddresses::All;
        assert_eq!(digest(&[two], &settings, &["192.0.2.1".parse().unwrap()]), expected);
    }
}
