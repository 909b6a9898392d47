use ferroute_api::{self as api, EndpointAddress, MirrorSkipReason, mirror};

use super::{
    Errors, FieldError, InvalidObject, check_destination,
    name::{check_dns_subdomain, parse_name},
    parse_ip,
    slice::parse_ports,
};

/// `Endpoints` as the EndpointSliceMirroring controller of a cluster handles them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirroredEndpoints {
    /// The slices; see [`mirror`].
    pub slices: Vec<api::EndpointSlice>,
    /// The addresses that are in no slice.
    pub ignored: Vec<FieldError>,
}

/// Parses `Endpoints`. Like the controller, it ignores single addresses that cannot belong to an endpoint.
pub fn parse_endpoints(endpoints: &api::Endpoints) -> Result<MirroredEndpoints, InvalidObject> {
    if MirrorSkipReason::for_endpoints(endpoints).is_some() {
        return Ok(MirroredEndpoints::default());
    }
    let mut errors = Errors::default();
    parse_name(&mut errors, &endpoints.metadata, check_dns_subdomain);
    let mut usable = endpoints.clone();
    for (i, subset) in usable.subsets.iter_mut().enumerate() {
        parse_ports(&mut errors, &format!("subsets[{i}].ports"), &subset.ports);
        retain_usable(&mut errors, &format!("subsets[{i}].addresses"), &mut subset.addresses);
        retain_usable(&mut errors, &format!("subsets[{i}].notReadyAddresses"), &mut subset.not_ready_addresses);
    }
    let mirrored = MirroredEndpoints { slices: mirror(&usable), ignored: std::mem::take(&mut errors.ignored) };
    errors.finish("Endpoints", &endpoints.metadata, mirrored)
}

fn retain_usable(errors: &mut Errors, list: &str, addresses: &mut Vec<EndpointAddress>) {
    let mut position = 0;
    addresses.retain(|address| {
        let usable = parse_ip(&address.ip).and_then(check_destination);
        let field = format!("{list}[{position}].ip");
        position += 1;
        errors.keep_or_ignore(field, usable).is_some()
    });
}
