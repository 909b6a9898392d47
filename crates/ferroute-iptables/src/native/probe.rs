//! Checks whether the kernel supports the rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{Error, Request, nf_tables::*, nfnetlink};

use super::{KernelSink, NativeRules, WriteError, sets, tables::nfproto};
use crate::{
    AddressType, ChainName, CtStates, MarkMatch, Match, Probability, Rule, Sense, TableName, Target, plan::chains,
    sink::RuleSink,
};

/// The match modules and targets in the rules of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modules {
    /// Modules of every mode.
    Common,
    /// Modules of every mode, and those for ipsets and virtual servers.
    Ipvs,
}

/// Checks whether the kernel in the calling thread's network namespace supports reading and writing rules of an IP
/// family with these modules by netlink. Common modules are checked in a transaction that is not committed.
///
/// # Errors
/// If the kernel does not support it, or if this process may not write rules.
pub fn probe(family: IpFamily, modules: Modules) -> Result<(), ProbeError> {
    if cfg!(not(target_pointer_width = "64")) {
        return Err(ProbeError::Machine);
    }
    let rules = NativeRules::open(family)?;
    rules.has_chain(TableName::Nat, chains::SERVICES).map_err(|error| error.source)?;
    let mut sink = KernelSink::for_trial(&rules);
    let written = sample(family, &mut sink).and_then(|()| sink.try_out());
    match (written, sink.into_error()) {
        (Ok(()), _) => {}
        (Err(_), Some(error)) => return Err(error.into()),
        (Err(error), None) => unreachable!("bug: the sink has no error but reports {error}"),
    }
    match modules {
        Modules::Common => Ok(()),
        Modules::Ipvs => probe_ipvs(&rules),
    }
}

/// Checks the modules of ipvs mode. Rules with these modules require a set, and should not be tested in hooks of
/// packets.
fn probe_ipvs(rules: &NativeRules) -> Result<(), ProbeError> {
    for (module, revision) in [("set", 4), ("ipvs", 0)] {
        let mut request = compat_request(rules.family(), module, revision);
        rules
            .with_socket(|socket| socket.request(&mut request, |_| Ok::<_, Error>(())))
            .map_err(|source| ProbeError::Module { module, revision, source })?;
    }
    // There need not be such a set.
    rules.with_socket(|socket| sets::number_of(socket, "FERROUTE-PROBE")).map_err(ProbeError::Sets)?;
    Ok(())
}

/// Returns the request for a match module, which loads it.
fn compat_request(family: IpFamily, module: &str, revision: u32) -> Request {
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFT_COMPAT, NFNL_MSG_COMPAT_GET);
    let mut request = Request::new(kind, 0, &nfnetlink::header(nfproto(family), 0, 0));
    let mut attributes = request.attributes();
    attributes.put_str(NFTA_COMPAT_NAME, module);
    attributes.put_u32_be(NFTA_COMPAT_REV, revision);
    attributes.put_u32_be(NFTA_COMPAT_TYPE, 0);
    drop(attributes);
    request
}

/// Reason why rules cannot be read and written by netlink.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The structures are for machines with 64 bits.
    #[error("not supported on this machine, whose pointers do not have 64 bits")]
    Machine,
    /// The request to the kernel failed.
    #[error("cannot read chains by netlink")]
    Netlink(#[from] Error),
    /// The kernel lacks a match module.
    #[error("the kernel lacks match module {module}, revision {revision}")]
    Module {
        /// The name of the module.
        module: &'static str,
        /// The revision of its structure.
        revision: u32,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The kernel does not return the numbers of ipsets.
    #[error("cannot find ipsets by netlink")]
    Sets(#[source] Error),
    /// The kernel refuses a rule.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes rules with all modules that every cluster needs. Other modules, such as the one for session affinity, are not
/// checked, as with the iptables programs.
fn sample(family: IpFamily, sink: &mut KernelSink<'_>) -> std::io::Result<()> {
    let [chain, postrouting] = ["FERROUTE-PROBE", "FERROUTE-PROBE-POST"].map(ChainName::literal);
    let address: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let rule = Rule::new()
        .destination(address)
        .port(Protocol::Tcp, 80)
        .comment("probe")
        .and(Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) })
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
