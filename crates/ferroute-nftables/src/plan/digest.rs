use std::fmt::{self, Write};

use ferroute_core::RulesDigest;

use super::{
    Planner,
    kind::List,
    record::{Answer, Plan, Record},
};

impl Planner {
    /// Stands for what the Services come to: their frontends, how each is answered, and endpoints. Chains and addresses
    /// that are there without any Service are left out, for they depend on the host; so are the places of endpoints
    /// in a list and their slots, which depend on what came before and on which no packet's fate does.
    pub fn digest(&self) -> RulesDigest {
        let mut ports: Vec<_> = self.records().collect();
        ports.sort_unstable_by_key(|(name, _)| *name);
        RulesDigest::of(|mut out| {
            ports.iter().try_for_each(|(name, record)| {
                writeln!(out, "{name} {} at {}", name.protocol, record.cluster_ip)?;
                write_port(&mut out, record)?;
                record.frontends.iter().try_for_each(|plan| {
                    let owned = self.owner(plan.frontend) == Some(*name);
                    write_plan(&mut out, record, plan, owned)
                })
            })
        })
    }
}

fn write_port(out: &mut impl Write, record: &Record) -> fmt::Result {
    for (list, backends) in [("cluster", &record.cluster), ("local", &record.local), ("own", &record.own)] {
        let mut sockets: Vec<_> = backends.iter().collect();
        sockets.sort_unstable();
        out.write_str(list)?;
        sockets.iter().try_for_each(|socket| write!(out, " {socket}"))?;
        out.write_char('\n')?;
    }
    if let Some(affinity) = &record.affinity {
        writeln!(out, "affinity {}", affinity.seconds)?;
    }
    record.sources.iter().try_for_each(|net| writeln!(out, "source {net}"))
}

fn write_plan(out: &mut impl Write, record: &Record, plan: &Plan, owned: bool) -> fmt::Result {
    write!(out, "{}", plan.frontend)?;
    match plan.answer {
        Answer::Refuse => out.write_str(" refuse")?,
        Answer::Drop => out.write_str(" drop")?,
        Answer::Serve(way) => {
            let kind = record.kind(plan, way);
            write!(out, " {}", kind.chain_name(record.list(kind.list()).len()))?;
            if plan.uses(List::Local) {
                write!(out, " local {}", record.local.len())?;
            }
        }
    }
    let (restricted, lost) = (if plan.restricted { " restricted" } else { "" }, if owned { "" } else { " of another" });
    writeln!(out, "{restricted}{lost}")
}

#[cfg(test)]
mod tests {
    use ferroute_core::{
        IpFamily, NodePortAddresses, ServiceTable,
        testing::{Cluster, pod, service, slice},
    };

    use super::*;
    use crate::{
        model::{TableId, Transaction},
        plan::{Context, NftablesSettings, TABLE},
    };

    fn web(pods: &[&str], seconds: Option<u32>) -> ServiceTable {
        let slice = slice("shop/web-a", "web").port("http", 8080);
        let slice = pods.iter().fold(slice, |slice, address| slice.pod(pod(address)));
        let service = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let service = seconds.into_iter().fold(service, |service, seconds| service.affinity(seconds));
        Cluster::of_node("node-1").service(service).slice(slice).table(IpFamily::V4)
    }

    /// After the tables one after another, on a host with these addresses.
    fn digest(tables: &[ServiceTable], settings: &NftablesSettings, host: &[std::net::IpAddr]) -> RulesDigest {
        let mut planner = Planner::new(Context::new(&tables[0], settings, host));
        let mut transaction = Transaction::new(TableId { family: IpFamily::V4, name: TABLE });
        for table in tables {
            table.entries.keys().for_each(|name| planner.update(name, table, &mut transaction));
            planner.settle(&mut transaction);
        }
        planner.digest()
    }

    #[test]
    fn it_is_another_one_as_soon_as_one_endpoint_or_answer_is() {
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
    fn it_depends_neither_on_what_came_before_nor_on_the_host() {
        let (one, two) = (web(&["10.244.0.3"], None), web(&["10.244.0.2", "10.244.0.3"], None));
        let wanted = digest(std::slice::from_ref(&two), &NftablesSettings::default(), &[]);
        assert_eq!(digest(&[one, two.clone()], &NftablesSettings::default(), &[]), wanted);
        let mut settings = NftablesSettings::default();
        settings.proxy.node_port_addresses = NodePortAddresses::All;
        assert_eq!(digest(&[two], &settings, &["192.0.2.1".parse().unwrap()]), wanted);
    }
}
