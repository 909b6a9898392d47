//! Node ports that a process of the host listens on already: its connections go to the Service from then on.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
};

use ferroute_core::{Protocol, ServicePortName};
use ferroute_host::{Listener, ListenerError, listeners};

/// A service port that has a node port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) service: ServicePortName,
    pub(super) port: NonZeroU16,
}

/// A claim on a port that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) claim: Claim,
    pub(super) listener: Listener,
}

impl Conflict {
    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { claim: Claim { service, port }, listener } = self;
        format!(
            "node port {port} ({}) of {service} is listened on by a process of user {} at {}: connections go to the \
             Service and not to the process",
            service.protocol, listener.user, listener.address
        )
    }
}

/// Which of the claims are on ports that are in use, as the kernel tells. It blocks for a moment.
pub(super) fn conflicts(claims: Vec<Claim>) -> Result<Vec<Conflict>, ListenerError> {
    let protocols: BTreeSet<Protocol> = claims.iter().map(|claim| claim.service.protocol).collect();
    let mut used = BTreeMap::new();
    for protocol in protocols {
        used.insert(protocol, listeners(protocol)?);
    }
    Ok(among(claims, &used))
}

/// Sockets on loopback addresses are left alone by node ports, but for those on localhost in iptables mode, which hardly
/// anybody uses.
fn among(claims: Vec<Claim>, used: &BTreeMap<Protocol, Vec<Listener>>) -> Vec<Conflict> {
    let conflict = |claim: Claim| {
        let listeners = used.get(&claim.service.protocol)?;
        let is_it = |listener: &&Listener| {
            listener.address.port() == claim.port.get() && !listener.address.ip().to_canonical().is_loopback()
        };
        let listener = *listeners.iter().find(is_it)?;
        Some(Conflict { claim, listener })
    };
    claims.into_iter().filter_map(conflict).collect()
}

#[cfg(test)]
mod tests {
    use ferroute_core::testing::{port_name, udp_port_name};

    use super::*;

    #[test]
    fn a_port_is_in_use_only_in_its_protocol_and_not_on_loopback() {
        let claim = |service, port| Claim { service, port: NonZeroU16::new(port).unwrap() };
        let listener = |address: &str| Listener { address: address.parse().unwrap(), user: 1000, inode: 0 };
        let tcp = vec![listener("0.0.0.0:30080"), listener("127.0.0.1:30081"), listener("[::1]:30081")];
        let used = BTreeMap::from([(Protocol::Tcp, tcp), (Protocol::Udp, vec![])]);
        let claims = vec![
            claim(port_name("shop/web:http"), 30080),
            claim(udp_port_name("shop/web:dns"), 30080),
            claim(port_name("shop/web:local"), 30081),
            claim(port_name("shop/web:free"), 30082),
        ];
        let told: Vec<String> = among(claims, &used).iter().map(Conflict::text).collect();
        assert_eq!(
            told,
            ["node port 30080 (tcp) of shop/web:http is listened on by a process of user 1000 at 0.0.0.0:30080: \
              connections go to the Service and not to the process"]
        );
    }
}
