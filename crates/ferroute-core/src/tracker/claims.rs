//! The owners of frontends that several service ports claim.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
};

use super::{NamedPort, is_api_server};
use crate::{
    Claim, Frontend, FrontendKind, FrontendOwner, LostFrontend, LostFrontends, NamespacedName, Protocol, Reservation,
    ServicePort, ServicePortName, reservation::Reservations,
};

/// The claims of all service ports of one IP family.
///
/// If a frontend has one claim, as almost every frontend does, only the frontend is stored, because large clusters have
/// many. The claim itself is looked up in the desired state when there is a second one.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Frontends with an address and a single claim.
    single: HashSet<Frontend>,
    /// The claims on all other frontends, which are node ports and those with several claims; the owner comes first.
    ranked: HashMap<Frontend, Vec<Claim>>,
    /// Frontends that were in `single` and got a competitor; [`Claims::collect`] moves them to `ranked`.
    uncollected: BTreeSet<Frontend>,
    /// Frontends that may be neither a load balancer IP nor an external IP.
    reservations: Reservations,
    /// The previous reservations, if they have changed since the last [`Claims::collect`].
    previous_reservations: Option<Reservations>,
    /// The node's addresses that accept connections to node ports, sorted.
    node_port_addresses: Vec<IpAddr>,
    /// The health-check node ports, with the number of service ports that have each. They are reserved at the same addresses
    /// as node ports, and as node ports.
    health_checks: BTreeMap<NonZeroU16, usize>,
    /// Service ports with a frontend whose owner changed.
    affected: BTreeSet<ServicePortName>,
}

impl Claims {
    /// Reports whether the owner of some frontend may have changed.
    pub(super) fn has_changes(&self) -> bool {
        !self.uncollected.is_empty() || !self.affected.is_empty() || self.previous_reservations.is_some()
    }

    /// Returns the frontends that may be neither a load balancer IP nor an external IP.
    pub(super) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Replaces the claims of a service port.
    pub(super) fn replace(&mut self, name: &ServicePortName, old: Option<&ServicePort>, new: Option<&ServicePort>) {
        let age = |port: Option<&ServicePort>| port.map(|port| port.created);
        let health_check = |port: Option<&ServicePort>| port.and_then(|port| port.health_check_node_port);
        self.replace_health_check(health_check(old), health_check(new));
        let is_same_age = age(old) == age(new);
        let claims = |port: Option<&ServicePort>| port.map(|port| port.ranked(name.protocol)).unwrap_or_default();
        let (old, new_claims) = (claims(old), claims(new));
        let is_kept = |others: &[(Frontend, FrontendKind)], claim| is_same_age && others.binary_search(claim).is_ok();
        for claim in old.iter().filter(|claim| !is_kept(&new_claims, claim)) {
            self.remove(name, claim.0);
        }
        let Some(new) = new else { return };
        for claim @ &(frontend, kind) in &new_claims {
            if !is_kept(&old, claim) {
                self.insert(frontend, Claim { kind, created: new.created, name: name.clone() });
            }
        }
    }

    /// Sets the frontends that may be neither a load balancer IP nor an external IP.
    pub(super) fn set_reservations(&mut self, reservations: Reservations) {
        if self.reservations != reservations {
            let previous = std::mem::replace(&mut self.reservations, reservations);
            self.previous_reservations.get_or_insert(previous);
        }
    }

    /// Sets the node's addresses that accept connections to node ports.
    pub(super) fn set_node_port_addresses(&mut self, mut addresses: Vec<IpAddr>) {
        addresses.sort_unstable();
        addresses.dedup();
        if self.node_port_addresses == addresses {
            return;
        }
        let old = std::mem::replace(&mut self.node_port_addresses, addresses);
        let new = &self.node_port_addresses;
        let removed = old.iter().filter(|address| new.binary_search(address).is_err());
        let added = new.iter().filter(|address| old.binary_search(address).is_err());
        let changed: Vec<IpAddr> = removed.chain(added).copied().collect();
        let mut node_ports: Vec<Frontend> = self.ranked.keys().filter(|key| key.address.is_none()).copied().collect();
        node_ports.extend(self.health_checks.keys().copied().map(health_check_frontend));
        for node_port in node_ports {
            self.node_port_changed(node_port, &changed);
        }
    }

    /// Completes a series of changes. `desired` has the ports of all desired Services. Returns the service ports with a
    /// frontend whose owner changed.
    pub(super) fn collect<'a>(
        &mut self,
        desired: impl Iterator<Item = (&'a NamespacedName, &'a [NamedPort])>,
    ) -> BTreeSet<ServicePortName> {
        let uncollected = std::mem::take(&mut self.uncollected);
        let previous = self.previous_reservations.take();
        if !uncollected.is_empty() || previous.is_some() {
            let is_changed =
                |frontend| previous.as_ref().is_some_and(|old| old.get(frontend) != self.reservations.get(frontend));
            for (service, port) in desired.flat_map(|(service, ports)| ports.iter().map(move |port| (service, port))) {
                let is_concerned =
                    |(_, frontend): (_, Frontend)| uncollected.contains(&frontend) || is_changed(frontend);
                if !port.port.frontends(port.protocol).any(is_concerned) {
                    continue;
                }
                let name =
                    ServicePortName { service: service.clone(), port: port.name.clone(), protocol: port.protocol };
                self.affected.insert(name.clone());
                for (frontend, kind) in port.port.ranked(port.protocol) {
                    if uncollected.contains(&frontend) {
                        let claim = Claim { kind, created: port.port.created, name: name.clone() };
                        self.ranked.entry(frontend).or_default().push(claim);
                    }
                }
            }
            for frontend in uncollected {
                self.ranked.entry(frontend).or_default().sort_unstable();
                self.remove_if_unclaimed(frontend);
            }
        }
        std::mem::take(&mut self.affected)
    }

    /// Returns a service port without the frontends that others own, and these frontends; the service port itself if it
    /// owns all of its frontends.
    pub(super) fn resolve(
        &self,
        name: &ServicePortName,
        claimed: &Arc<ServicePort>,
    ) -> (Arc<ServicePort>, Option<LostFrontends>) {
        if self.ranked.is_empty() && self.reservations.is_empty() && self.health_checks.is_empty() {
            return (claimed.clone(), None);
        }
        let is_assigned = |frontend| {
            let mut all = claimed.frontends(name.protocol);
            all.any(|(kind, other)| kind.is_assigned() && other == frontend)
        };
        let lost = claimed.frontends(name.protocol).filter_map(|(kind, frontend)| {
            let other = self.owner(frontend).filter(|owner| owner.name != *name);
            // Addresses of the API server's own Service are not an attack on it.
            let reservation = self.reservation(frontend).filter(|reservation| {
                let is_own = *reservation == Reservation::ApiServer && is_api_server(&name.service);
                !is_own && (frontend.address.is_none() || !is_assigned(frontend))
            });
            let owner = match (other, reservation) {
                (Some(claim), None) => FrontendOwner::ServicePort(claim.clone()),
                // A node port is reserved itself.
                (Some(claim), Some(_)) if claim.kind == FrontendKind::ClusterIp => {
                    FrontendOwner::ServicePort(claim.clone())
                }
                (_, Some(reservation)) => FrontendOwner::Reserved(reservation),
                (None, None) => return None,
            };
            Some(LostFrontend { kind, frontend, owner })
        });
        let mut frontends: Vec<LostFrontend> = lost.collect();
        if frontends.is_empty() {
            return (claimed.clone(), None);
        }
        let claims: HashSet<_> = claimed.claims(name.protocol).collect();
        frontends.retain(|lost| claims.contains(&(lost.kind, lost.frontend)));
        let lost: HashSet<Frontend> = frontends.iter().map(|lost| lost.frontend).collect();
        let mut owned = ServicePort::clone(claimed);
        owned.retain_frontends(name.protocol, |frontend| !lost.contains(&frontend));
        (Arc::new(owned), Some(LostFrontends { claimed: claimed.clone(), frontends }))
    }

    /// Returns the claim that owns a frontend; `None` if only one service port can own it.
    fn owner(&self, frontend: Frontend) -> Option<&Claim> {
        let owner = self.ranked.get(&frontend)?.first()?;
        if owner.is_assigned() || !self.is_node_port_address(frontend) {
            return Some(owner);
        }
        // Connections to this address of the node may be for a node port.
        let node_port = self.ranked.get(&Frontend { address: None, ..frontend });
        node_port.and_then(|claims| claims.first()).or(Some(owner))
    }

    /// Returns why a frontend is reserved.
    fn reservation(&self, frontend: Frontend) -> Option<Reservation> {
        let is_health_check = || {
            let port = NonZeroU16::new(frontend.port).filter(|_| frontend.protocol == Protocol::Tcp);
            port.is_some_and(|port| self.health_checks.contains_key(&port))
                && (frontend.address.is_none() || self.is_node_port_address(frontend))
        };
        self.reservations.get(frontend).or_else(|| is_health_check().then_some(Reservation::HealthCheck))
    }

    fn replace_health_check(&mut self, old: Option<NonZeroU16>, new: Option<NonZeroU16>) {
        if old == new {
            return;
        }
        if let Some(port) = old
            && let Some(number) = self.health_checks.get_mut(&port)
        {
            *number -= 1;
            if *number == 0 {
                self.health_checks.remove(&port);
                self.owner_changed(health_check_frontend(port));
            }
        }
        if let Some(port) = new {
            let number = self.health_checks.entry(port).or_default();
            *number += 1;
            if *number == 1 {
                self.owner_changed(health_check_frontend(port));
            }
        }
    }

    fn is_node_port_address(&self, frontend: Frontend) -> bool {
        frontend.address.is_some_and(|address| self.node_port_addresses.binary_search(&address).is_ok())
    }

    fn insert(&mut self, frontend: Frontend, claim: Claim) {
        if self.uncollected.contains(&frontend) {
            return;
        }
        if frontend.address.is_some() && !self.ranked.contains_key(&frontend) {
            let node_port = Frontend { address: None, ..frontend };
            let is_free = !self.is_node_port_address(frontend) || !self.ranked.contains_key(&node_port);
            if is_free && self.single.insert(frontend) {
                return;
            }
            if self.single.remove(&frontend) {
                self.uncollected.insert(frontend);
                return;
            }
        }
        self.affected.insert(claim.name.clone());
        let claims = self.ranked.entry(frontend).or_default();
        let at = claims.partition_point(|other| *other < claim);
        claims.insert(at, claim);
        if at == 0 {
            self.owner_changed(frontend);
        }
    }

    fn remove(&mut self, name: &ServicePortName, frontend: Frontend) {
        // The claim will be collected from the desired state, which no longer contains it.
        if self.uncollected.contains(&frontend) {
            return;
        }
        let Some(claims) = self.ranked.get_mut(&frontend) else {
            self.single.remove(&frontend);
            return;
        };
        let Some(at) = claims.iter().position(|claim| claim.name == *name) else { return };
        claims.remove(at);
        if at == 0 {
            self.owner_changed(frontend);
        }
        self.remove_if_unclaimed(frontend);
    }

    fn remove_if_unclaimed(&mut self, frontend: Frontend) {
        if self.ranked.get(&frontend).is_some_and(Vec::is_empty) {
            self.ranked.remove(&frontend);
        }
    }

    /// Marks all service ports that claim a frontend.
    fn owner_changed(&mut self, frontend: Frontend) {
        self.affected.extend(self.ranked.get(&frontend).into_iter().flatten().map(|claim| claim.name.clone()));
        if frontend.address.is_none() {
            let addresses = std::mem::take(&mut self.node_port_addresses);
            self.node_port_changed(frontend, &addresses);
            self.node_port_addresses = addresses;
        }
    }

    /// Marks all service ports that claim a node port's frontend by one of these addresses of the node.
    fn node_port_changed(&mut self, node_port: Frontend, addresses: &[IpAddr]) {
        for address in addresses {
            let frontend = Frontend { address: Some(*address), ..node_port };
            if self.single.remove(&frontend) {
                self.uncollected.insert(frontend);
            }
            self.affected.extend(self.ranked.get(&frontend).into_iter().flatten().map(|claim| claim.name.clone()));
        }
    }
}

/// Returns a health-check node port as the node port that it keeps Services from having.
fn health_check_frontend(port: NonZeroU16) -> Frontend {
    Frontend { address: None, protocol: Protocol::Tcp, port: port.get() }
}
