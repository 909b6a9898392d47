//! Virtual servers. The kernel schedules a connection when its first packet is delivered to the host or sent by it, and
//! forwards the packet to a real server from the output hook.

use std::net::SocketAddr;

use ferroute_ipvs::{IpvsObjects, plan::ServerKey};

use crate::{BaseChain, ChainVerdict, Effect, Event, Forks, Hook, Verdict, Walker};

/// The virtual servers at one hook.
pub(crate) struct Scheduler<'a> {
    objects: &'a dyn IpvsObjects,
    hook: Hook,
}

impl<'a> Scheduler<'a> {
    /// Returns the hooks at which connections are scheduled.
    pub(crate) fn chains(objects: &'a dyn IpvsObjects) -> impl Iterator<Item = Self> {
        [Hook::Input, Hook::Output].into_iter().map(move |hook| Self { objects, hook })
    }
}

impl BaseChain for Scheduler<'_> {
    fn hook(&self) -> Hook {
        self.hook
    }

    fn priority(&self) -> i32 {
        // `ip_vs_ops4` (`net/netfilter/ipvs/ip_vs_core.c`): before source NAT, and after destination NAT.
        match self.hook {
            Hook::Input => 99,
            _ => -98,
        }
    }

    fn walk<'a>(&'a self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        let (destination, protocol) = (walker.packet.destination(), walker.packet.protocol());
        let key = ServerKey { address: destination.ip(), port: destination.port(), protocol };
        if walker.packet.is_resent() {
            return ChainVerdict::Continue;
        }
        let Some(servers) = self.objects.real_servers(key) else { return ChainVerdict::Continue };
        let hook = self.hook;
        walker.record(|| Event::Hook { hook, table: TABLE.into(), chain: key.to_string() });
        let total: f64 = servers.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut chosen = servers.into_iter().filter(|(_, weight)| *weight > 0);
        let Some((first, weight)) = chosen.next() else {
            let with = if destination.is_ipv4() { "icmp-port-unreachable" } else { "icmp6-port-unreachable" };
            walker.record_effect(TABLE, &[&key.to_string()], Effect::Reject { with: with.to_owned() });
            return ChainVerdict::End(Verdict::Rejected { with: with.to_owned() });
        };
        // The branch that was added last is evaluated first.
        let others: Vec<_> = chosen.collect();
        for (real, weight) in others.into_iter().rev() {
            let mut other = walker.clone();
            other.multiply_share(f64::from(weight) / total);
            forks.push(other, move |walker, _| forward(walker, key, real.socket()));
        }
        walker.multiply_share(f64::from(weight) / total);
        forward(walker, key, first.socket())
    }
}

/// Translates the destination and sends the packet to it.
fn forward(walker: &mut Walker<'_>, key: ServerKey, real: SocketAddr) -> ChainVerdict {
    let effect = walker.packet.dnat(real);
    walker.record_effect(TABLE, &[&key.to_string(), &real.to_string()], effect);
    if walker.packet.is_local(real.ip()) {
        // A process of the host: the packet continues at this hook, with the kernel's `skb->ipvs_property` as well.
        walker.packet.resent = true;
        return ChainVerdict::Continue;
    }
    ChainVerdict::Resend
}

/// The name that traces show in place of a table's where a virtual server translates a packet.
pub const TABLE: &str = "ipvs";
