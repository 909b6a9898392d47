//! Listeners of userspace mode. A connection to a listener ends there; the process opens another connection to an
//! endpoint.

use std::net::SocketAddr;

use ferroute_userspace::Listeners;

use crate::{BaseChain, ChainVerdict, Effect, Forks, Hook, Verdict, Walker};

/// The process that accepts packets after all rules of the input hook.
pub(crate) struct Process<'a>(pub(crate) &'a dyn Listeners);

impl BaseChain for Process<'_> {
    fn hook(&self) -> Hook {
        Hook::Input
    }

    fn priority(&self) -> i32 {
        // After every chain.
        i32::MAX
    }

    fn walk<'a>(&'a self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        let packet = &walker.packet;
        if packet.is_resent() {
            return ChainVerdict::Continue;
        }
        let (family, protocol, port) = (packet.family(), packet.protocol(), packet.destination().port());
        let Some(endpoints) = self.0.endpoints(family, protocol, port) else { return ChainVerdict::Continue };
        let listener = format!("listener {port}/{}", protocol.as_str());
        let Some((first, others)) = endpoints.split_first() else {
            let with = "tcp-reset".to_owned();
            walker.record_effect(NAME, &[&listener], Effect::Reject { with: with.clone() });
            return ChainVerdict::End(Verdict::Rejected { with });
        };
        // Without a loss, as endpoints are tried in turns.
        let chance = 1.0 / (endpoints.len() as f64);
        // The branch that was added last is evaluated first.
        for endpoint in others.iter().rev().copied() {
            let mut other = walker.clone();
            other.multiply_share(chance);
            let listener = listener.clone();
            forks.push(other, move |walker, _| connect(walker, &listener, endpoint));
        }
        walker.multiply_share(chance);
        connect(walker, &listener, *first)
    }
}

/// Continues with the connection of the process to an endpoint.
fn connect(walker: &mut Walker<'_>, listener: &str, endpoint: SocketAddr) -> ChainVerdict {
    let effect = walker.packet.connect(endpoint);
    walker.record_effect(NAME, &[listener, &endpoint.to_string()], effect);
    ChainVerdict::Resend
}

/// The name that traces show in place of a table's.
const NAME: &str = "userspace proxy";
