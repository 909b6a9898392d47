use std::net::SocketAddr;

use ferroute_core::IpFamily;

use super::*;
use crate::{
    Effect, Event, Outcome, Verdict,
    testing::{from_node, from_pod, host, socket},
    write_leaf_into, write_summary_into,
};

/// Rules of a fictitious mode: one virtual server with round-robin destinations, as in ipvs.
struct VirtualServers {
    address: SocketAddr,
    destinations: Vec<SocketAddr>,
}

/// The virtual servers at one hook.
struct Scheduler<'a> {
    servers: &'a VirtualServers,
    hook: Hook,
}

impl Traceable for VirtualServers {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        for hook in [Hook::Input, Hook::Output] {
            ruleset.add_chain(Scheduler { servers: self, hook });
        }
    }
}

impl BaseChain for Scheduler<'_> {
    fn hook(&self) -> Hook {
        self.hook
    }

    fn priority(&self) -> i32 {
        match self.hook {
            Hook::Input => 99,
            _ => -98,
        }
    }

    fn walk<'a>(&'a self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        let VirtualServers { address, destinations } = self.servers;
        if walker.packet.destination() != *address || walker.packet.is_resent() {
            return ChainVerdict::Continue;
        }
        let [first, others @ ..] = &destinations[..] else {
            walker.record_effect("ipvs", &["server"], Effect::Drop);
            return ChainVerdict::End(Verdict::Dropped);
        };
        walker.multiply_share(1.0 / destinations.len() as f64);
        for destination in others.iter().rev() {
            forks.push(walker.clone(), |walker, _| schedule(walker, *destination));
        }
        schedule(walker, *first)
    }
}

fn schedule(walker: &mut Walker<'_>, destination: SocketAddr) -> ChainVerdict {
    let hook = walker.hook();
    walker.record(|| Event::Hook { hook, table: "ipvs".into(), chain: "server".to_owned() });
    let effect = walker.packet.dnat(destination);
    walker.record_effect("ipvs", &["server", &destination.to_string()], effect);
    ChainVerdict::Resend
}

fn servers(destinations: &[&str]) -> VirtualServers {
    let destinations = destinations.iter().map(|text| socket(text)).collect();
    VirtualServers { address: socket("192.168.49.2:80"), destinations }
}

fn iptables() -> RuleSet {
    let text = "*nat
-A PREROUTING -p udp -j ACCEPT
-A OUTPUT -o cni0 -j DNAT --to-destination 172.17.0.9
-A POSTROUTING -o cni0 -j MASQUERADE
COMMIT
*filter
-A FORWARD -j DROP
COMMIT
";
    RuleSet::parse_save(IpFamily::V4, text).unwrap()
}

/// The rules of a mode, as a command holds them without a case for each mode.
fn modes() -> Vec<Box<dyn Traceable>> {
    vec![Box::new(iptables()), Box::new(servers(&["172.17.0.4:8080", "172.17.0.5:8080"]))]
}

#[test]
fn packet_walks_through_rules_of_any_implementation() {
    let modes = modes();
    let mut ruleset = Ruleset::new();
    modes.iter().for_each(|mode| mode.add_to(&mut ruleset));
    let (host, packet) = (host(), from_pod("192.168.49.2:80"));
    let trace = ruleset.trace(&host, &packet);
    assert_eq!(trace.outcome(), Outcome::Delivered);
    let mut text = String::new();
    write_summary_into(&mut text, &trace).unwrap();
    insta::assert_snapshot!(text, @r"
    ipvs server: DNAT 192.168.49.2:80 to one of 2
          50.0 %  172.17.0.4:8080: 172.17.0.4:8080
          50.0 %  172.17.0.5:8080: 172.17.0.5:8080
    nat POSTROUTING: masquerade 172.17.0.14 as 172.17.0.1
    => delivered through cni0, with source 172.17.0.1
    ");
    let mut text = String::new();
    write_leaf_into(&mut text, &ruleset.leaves(&host, &packet).last().unwrap()).unwrap();
    insta::assert_snapshot!(text, @r"
    nat PREROUTING
      PREROUTING 1: -p udp -j ACCEPT
        no: protocol is tcp, not udp
      end of PREROUTING: policy ACCEPT
    routed to this host
    ipvs server
          => DNAT 192.168.49.2:80 to 172.17.0.5:8080
    routed through cni0
    routed through cni0
    nat POSTROUTING
      POSTROUTING 1: -o cni0 -j MASQUERADE
        yes
        => masquerade 172.17.0.14 as 172.17.0.1
    50.0 %: delivered to 172.17.0.5:8080 through cni0, with source 172.17.0.1
    ");
}

#[test]
fn resent_packet_starts_again_at_the_output_hook() {
    let servers = servers(&["172.17.0.4:8080"]);
    let ruleset = Ruleset::from_rules(&servers);
    let leaves = ruleset.verdicts(&host(), &from_node("192.168.49.2:80"));
    let [leaf] = &leaves[..] else { panic!("{leaves:?}") };
    assert!(matches!(leaf.verdict, Verdict::Delivered { to, .. } if to == socket("172.17.0.4:8080")));
}

#[test]
fn virtual_server_without_destinations_drops() {
    let servers = servers(&[]);
    let ruleset = Ruleset::from_rules(&servers);
    assert_eq!(ruleset.summary(&host(), &from_pod("192.168.49.2:80")).branches[0].verdict, Verdict::Dropped);
    assert_eq!(ruleset.summary(&host(), &from_pod("192.168.49.2:81")).outcome(), Outcome::NotDelivered);
}
