use serde::{
    Deserialize,
    de::{Deserializer, Error, Visitor, value},
    forward_to_deserialize_any,
};

use crate::{
    ClientIpConfig, EndpointAddress, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, EndpointSubset,
    Endpoints, HintRef, LoadBalancerIngress, LoadBalancerStatus, Node, NodeSpec, Service, ServiceCidr, ServiceCidrSpec,
    ServicePort, ServiceSpec, ServiceStatus, SessionAffinityConfig, SliceEndpoint, Taint, TargetRef,
    manifest::documents,
};

/// Keeps the names of the fields that a type deserializes, and fails.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
        Err(Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, value::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

fn fields_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    assert!(T::deserialize(FieldNames(&mut names)).is_err());
    names
}

#[test]
fn fields_that_are_read_are_known() {
    let types = [
        ("Service", "", fields_of::<Service>()),
        ("Service", "spec", fields_of::<ServiceSpec>()),
        ("Service", "spec.ports", fields_of::<ServicePort>()),
        ("Service", "spec.sessionAffinityConfig", fields_of::<SessionAffinityConfig>()),
        ("Service", "spec.sessionAffinityConfig.clientIP", fields_of::<ClientIpConfig>()),
        ("Service", "status", fields_of::<ServiceStatus>()),
        ("Service", "status.loadBalancer", fields_of::<LoadBalancerStatus>()),
        ("Service", "status.loadBalancer.ingress", fields_of::<LoadBalancerIngress>()),
        ("EndpointSlice", "", fields_of::<EndpointSlice>()),
        ("EndpointSlice", "ports", fields_of::<EndpointPort>()),
        ("EndpointSlice", "endpoints", fields_of::<SliceEndpoint>()),
        ("EndpointSlice", "endpoints.conditions", fields_of::<EndpointConditions>()),
        ("EndpointSlice", "endpoints.targetRef", fields_of::<TargetRef>()),
        ("EndpointSlice", "endpoints.hints", fields_of::<EndpointHints>()),
        ("EndpointSlice", "endpoints.hints.forZones", fields_of::<HintRef>()),
        ("Endpoints", "", fields_of::<Endpoints>()),
        ("Endpoints", "subsets", fields_of::<EndpointSubset>()),
        ("Endpoints", "subsets.addresses", fields_of::<EndpointAddress>()),
        ("Node", "", fields_of::<Node>()),
        ("Node", "spec", fields_of::<NodeSpec>()),
        ("Node", "spec.taints", fields_of::<Taint>()),
        ("ServiceCIDR", "", fields_of::<ServiceCidr>()),
        ("ServiceCIDR", "spec", fields_of::<ServiceCidrSpec>()),
    ];
    for (kind, path, fields) in types {
        let version = match kind {
            "EndpointSlice" => "discovery.k8s.io/v1",
            "ServiceCIDR" => "networking.k8s.io/v1",
            _ => "v1",
        };
        assert!(!fields.is_empty(), "{kind} {path}");
        for field in fields {
            let path = path.split('.').filter(|part| !part.is_empty()).chain([*field]);
            let value = path.rev().fold("~".to_owned(), |value, field| format!("{{{field}: {value}}}"));
            let text = format!("{{apiVersion: {version}, kind: {kind}, {}", &value[1..]);
            let problems = documents(&text).flat_map(|document| document.check().unknown);
            let unknown: Vec<String> =
                problems.map(|problem| problem.cause.to_string()).filter(|cause| cause.contains("unknown")).collect();
            assert!(unknown.is_empty(), "{text}: {unknown:?}");
        }
    }
}
