use std::{collections::BTreeMap, net::SocketAddr};

use ferroute_core::{DataplaneError, ServicePortName};

use super::NftablesDataplane;
use crate::{
    kernel::{Counter, Kernel, Reading},
    model::{Datum, Element, Value},
    plan::{Frontend, SetId},
};

/// How many connections there were, as far as elements have counted them.
///
/// An element counts from zero when it is added, and is replaced when the number of a Service's endpoints changes, or
/// when its endpoint takes another place in the list. So a number can become smaller, as that of a process that starts
/// again; who adds them up over time has to allow for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// To each frontend.
    pub frontends: BTreeMap<(ServicePortName, Frontend), u64>,
    /// To each endpoint, by whatever frontend of the service port.
    pub endpoints: BTreeMap<(ServicePortName, SocketAddr), u64>,
}

impl<K: Kernel> NftablesDataplane<K> {
    /// Reads what elements have counted. Without [`crate::plan::NftablesSettings::counters`], and before the first
    /// sync, there is nothing. Reading is quadratic in the kernel: 0.3 s for 100,000 endpoints.
    pub fn connections(&mut self) -> Result<Connections, DataplaneError> {
        self.read_connections().map_err(|error| self.error("read counters of", error))
    }

    fn read_connections(&mut self) -> Result<Connections, K::Error> {
        let mut connections = Connections::default();
        let Some(in_force) = &self.in_force else { return Ok(connections) };
        let (kernel, planner) = (&mut self.kernel, &in_force.planner);
        let service_of = |element: &Element| {
            let frontend = Frontend::from_key(&element.key)?;
            Some((planner.service_of(&frontend)?.clone(), frontend))
        };
        let services = SetId::Services.declare(planner.context());
        // A connection's first packet is the only one that nat chains see.
        let reading = kernel.counts(&self.table, &services, &mut |element, Counter { packets, .. }| {
            if let Some(at) = service_of(&element) {
                connections.frontends.insert(at, packets);
            }
        })?;
        let endpoints = SetId::Endpoints.declare(planner.context());
        let mut of_element = BTreeMap::new();
        let second = kernel.counts(&self.table, &endpoints, &mut |element, Counter { packets, .. }| {
            let target = target_of(element.datum.as_ref());
            if let Some(((service, _), socket)) = service_of(&element).zip(target) {
                of_element.insert(element.key, (service, socket, packets));
            }
        })?;
        for (service, socket, packets) in of_element.into_values() {
            *connections.endpoints.entry((service, socket)).or_default() += packets;
        }
        if reading == Reading::Interrupted || second == Reading::Interrupted {
            tracing::debug!(table = %self.table, "counters were read while rules changed: some may lack");
        }
        Ok(connections)
    }
}

fn target_of(datum: Option<&Datum>) -> Option<SocketAddr> {
    match datum {
        Some(Datum::Fields(fields)) => match fields[..] {
            [Value::Address(address), Value::Port(port)] => Some(SocketAddr::new(address, port)),
            _ => None,
        },
        _ => None,
    }
}
