//! Differences between virtual servers of the kernel and rules that translate addresses: see `docs/modes.md`.

use super::{Difference, Kind, Switch};

impl Switch<'_> {
    /// Returns the differences of a switch to or from virtual servers, which only modes that make Service addresses
    /// local have.
    pub(super) fn virtual_servers(&self) -> Vec<Difference> {
        let [before, after] = [self.from, self.to].map(|side| side.traits().binds_service_addresses);
        if before == after || self.to.table.entries.is_empty() {
            return Vec::new();
        }
        if before {
            let chains = "packets to Services pass FORWARD instead of INPUT: rules of firewalls for forwarded packets apply to them";
            return vec![self.difference(Kind::FirewallChains, chains)];
        }
        let chains = Difference {
            remedy: Some(
                "let firewalls with a table of their own, such as firewalld, accept packets to Services in input; those in the \
                 iptables tables do"
                    .to_owned(),
            ),
            ..self.difference(
                Kind::FirewallChains,
                "packets to Services pass INPUT instead of FORWARD: rules of firewalls for forwarded packets no longer apply to them, \
                 and those for packets to the host do",
            )
        };
        let deleted = "established connections to a Service that is deleted hang until the client gives up: the kernel drops their \
                       packets without a reset";
        let mut differences = vec![chains, self.difference(Kind::DeletedServices, deleted)];
        differences.extend(self.long_affinity());
        differences
    }

    /// Returns the Services whose session affinity lasts longer than they state.
    fn long_affinity(&self) -> Option<Difference> {
        let services = self.services(|entry| {
            entry.service.affinity.is_some_and(|affinity| affinity.timeout_seconds < CLOSED_CONNECTION)
        });
        let summary = format!(
            "session affinity lasts {CLOSED_CONNECTION} s after a client's last connection was closed, although its timeout is shorter"
        );
        (!services.is_empty()).then(|| Difference { services, ..self.difference(Kind::Affinity, summary) })
    }
}

/// Time for which the kernel keeps a closed TCP connection (`IP_VS_TCP_S_TIME_WAIT`,
/// `net/netfilter/ipvs/ip_vs_proto_tcp.c`), and with it the persistence of its client, in seconds.
const CLOSED_CONNECTION: u32 = 120;
