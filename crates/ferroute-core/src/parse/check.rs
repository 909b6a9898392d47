//! What is wrong with objects, for those who take whole files or nothing.

use ferroute_api::{Object, mirror};

use super::{InvalidObject, parse_node, parse_service, parse_service_cidr, parse_slice};

/// Whether an object can be used by a proxy on some node. Kinds that proxies do not read are never at fault.
///
/// # Errors
///
/// As for the parse of its kind. For Endpoints the fault is told of the slice that they become.
pub fn check(object: &Object) -> Result<(), InvalidObject> {
    // No fault depends on the node that looks at a slice.
    let node = "";
    match object {
        Object::Service(service) => parse_service(service).map(drop),
        Object::EndpointSlice(slice) => parse_slice(slice, node).map(drop),
        Object::Endpoints(endpoints) => {
            mirror(endpoints).iter().try_for_each(|slice| parse_slice(slice, node).map(drop))
        }
        Object::Node(node) => parse_node(node).map(drop),
        Object::ServiceCidr(cidr) => parse_service_cidr(cidr).map(drop),
        Object::Pod(_) | Object::Deployment(_) => Ok(()),
    }
}
