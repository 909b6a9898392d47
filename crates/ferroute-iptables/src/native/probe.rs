//! Checks whether the kernel supports the rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::Error;

use super::{KernelSink, NativeRules, WriteError};
use crate::{
    AddressType, ChainName, CtStates, MarkMatch, Match, PortRange, Probability, Rule, Sense, TableName, Target,
    plan::chains, sink::RuleSink,
};

/// Checks whether the kernel in the calling thread's network namespace supports reading and writing the rules of an IP
/// family by netlink, with a transaction that is not committed.
///
/// # Errors
/// If it does not, or this process may not write rules.
pub fn probe(family: IpFamily) -> Result<(), ProbeError> {
    if cfg!(not(target_pointer_width = "64")) {
        return Err(ProbeError::Machine);
    }
    let rules = NativeRules::open(family)?;
    rules.has_chain(TableName::Nat, chains::SERVICES).map_err(|error| error.source)?;
    let mut sink = KernelSink::new(&rules);
    let written = sample(family, &mut sink).and_then(|()| sink.try_out());
    match (written, sink.into_error()) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(error)) => Err(error.into()),
        (Err(error), None) => unreachable!("bug: the sink has no error but reports {error}"),
    }
}

/// Why rules cannot be read and written by netlink.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The structures are those of machines with 64 bits.
    #[error("not supported on this machine, whose pointers do not have 64 bits")]
    Machine,
    /// The kernel cannot be asked.
    #[error("cannot read chains by netlink")]
    Netlink(#[from] Error),
    /// The kernel refuses a rule.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes rules with all modules that every cluster needs. Others, such as the one for session affinity, are in the kernel
/// or not, as with the iptables programs.
fn sample(family: IpFamily, sink: &mut KernelSink<'_>) -> std::io::Result<()> {
    let [chain, postrouting] = ["FERROUTE-PROBE", "FERROUTE-PROBE-POST"].map(ChainName::literal);
    let address: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
    let port =
        Match::Transport { protocol: Protocol::Tcp, source: None, destination: Some(Sense::Is(PortRange::one(80))) };
    let rule = Rule::new()
        .destination(address)
        .protocol(Protocol::Tcp)
        .and(port)
        .comment("probe")
        .and(to_host)
        .and(Match::Conntrack(Sense::Is(CtStates::NEW)))
        .and(Match::Mark(Sense::Not(MarkMatch::has(1))))
        .and(Match::Statistic(Sense::Is(Probability::one_in(2))));
    sink.begin(TableName::Nat)?;
    sink.declare(chain)?;
    sink.declare(postrouting)?;
    sink.append(chain, &rule.clone().then(Target::Dnat { address, port: Some(80) }))?;
    sink.append(chain, &Rule::new().then(Target::or_mark(1)))?;
    // The kernel refuses a path to it from another hook.
    sink.append(postrouting, &Rule::new().then(Target::Masquerade { random_fully: true }))?;
    sink.append(ChainName::PREROUTING, &rule.then(Target::Jump(chain)))
}
