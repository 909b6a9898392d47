//! Field numbers and types of Kubernetes' `generated.proto` files.

use ferroute_source::Resource;

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    /// Name in JSON.
    pub(super) name: &'static str,
    /// Number in protobuf.
    pub(super) number: u32,
    /// The type of its value or values.
    pub(super) shape: Shape,
    /// Whether it is omitted if unset: it is a pointer, a slice or a map in Go.
    pub(super) is_pointer: bool,
}

/// The type of a field.
#[derive(Debug)]
pub(super) enum Shape {
    Text,
    Number,
    Bool,
    Message(&'static [Field]),
    /// A map of texts.
    Texts,
    /// RFC 3339 in JSON, seconds in protobuf.
    Time,
    /// `IntOrString`.
    NumberOrText,
}

/// Returns the fields of a kind.
pub(super) fn fields(resource: Resource) -> &'static [Field] {
    match resource {
        Resource::Services => SERVICE,
        Resource::EndpointSlices => ENDPOINT_SLICE,
        Resource::Nodes => NODE,
        Resource::ServiceCidrs => SERVICE_CIDR,
    }
}

const fn value(name: &'static str, number: u32, shape: Shape) -> Field {
    Field { name, number, shape, is_pointer: false }
}

const fn pointer(name: &'static str, number: u32, shape: Shape) -> Field {
    Field { name, number, shape, is_pointer: true }
}

use Shape::{Bool, Message, Number, NumberOrText, Text, Texts, Time};

pub(super) const LIST_META: &[Field] = &[value("resourceVersion", 2, Text), value("continue", 3, Text)];

pub(super) const STATUS: &[Field] = &[
    value("metadata", 1, Message(LIST_META)),
    value("status", 2, Text),
    value("message", 3, Text),
    value("reason", 4, Text),
    value("code", 6, Number),
];

const OBJECT_META: &[Field] = &[
    value("name", 1, Text),
    value("generateName", 2, Text),
    value("namespace", 3, Text),
    value("uid", 5, Text),
    value("resourceVersion", 6, Text),
    value("generation", 7, Number),
    pointer("creationTimestamp", 8, Time),
    pointer("deletionTimestamp", 9, Time),
    pointer("labels", 11, Texts),
    pointer("annotations", 12, Texts),
    pointer(
        "managedFields",
        17,
        Message(&[
            value("manager", 1, Text),
            value("operation", 2, Text),
            value("apiVersion", 3, Text),
            pointer("time", 4, Time),
            value("fieldsType", 6, Text),
            // Its one field is JSON.
            pointer("fieldsV1", 7, Message(&[])),
        ]),
    ),
];

const SERVICE: &[Field] = &[
    value("metadata", 1, Message(OBJECT_META)),
    value("spec", 2, Message(SERVICE_SPEC)),
    value("status", 3, Message(&[value("loadBalancer", 1, Message(&[pointer("ingress", 1, Message(INGRESS))]))])),
];

const SERVICE_SPEC: &[Field] = &[
    pointer("ports", 1, Message(SERVICE_PORT)),
    pointer("selector", 2, Texts),
    value("clusterIP", 3, Text),
    value("type", 4, Text),
    pointer("externalIPs", 5, Text),
    value("sessionAffinity", 7, Text),
    value("loadBalancerIP", 8, Text),
    pointer("loadBalancerSourceRanges", 9, Text),
    value("externalName", 10, Text),
    value("externalTrafficPolicy", 11, Text),
    value("healthCheckNodePort", 12, Number),
    value("publishNotReadyAddresses", 13, Bool),
    pointer("sessionAffinityConfig", 14, Message(&[pointer("clientIP", 1, Message(CLIENT_IP))])),
    pointer("ipFamilyPolicy", 17, Text),
    pointer("clusterIPs", 18, Text),
    pointer("ipFamilies", 19, Text),
    pointer("internalTrafficPolicy", 22, Text),
    pointer("trafficDistribution", 23, Text),
];

const SERVICE_PORT: &[Field] = &[
    value("name", 1, Text),
    value("protocol", 2, Text),
    value("port", 3, Number),
    value("targetPort", 4, NumberOrText),
    value("nodePort", 5, Number),
];

const CLIENT_IP: &[Field] = &[pointer("timeoutSeconds", 1, Number)];

const INGRESS: &[Field] = &[value("ip", 1, Text), value("hostname", 2, Text), pointer("ipMode", 3, Text)];

const ENDPOINT_SLICE: &[Field] = &[
    value("metadata", 1, Message(OBJECT_META)),
    pointer("endpoints", 2, Message(ENDPOINT)),
    pointer("ports", 3, Message(&[pointer("name", 1, Text), pointer("protocol", 2, Text), pointer("port", 3, Number)])),
    value("addressType", 4, Text),
];

const ENDPOINT: &[Field] = &[
    pointer("addresses", 1, Text),
    value(
        "conditions",
        2,
        Message(&[pointer("ready", 1, Bool), pointer("serving", 2, Bool), pointer("terminating", 3, Bool)]),
    ),
    pointer("hostname", 3, Text),
    pointer(
        "targetRef",
        4,
        Message(&[value("kind", 1, Text), value("namespace", 2, Text), value("name", 3, Text), value("uid", 4, Text)]),
    ),
    pointer("nodeName", 6, Text),
    pointer("zone", 7, Text),
    pointer(
        "hints",
        8,
        Message(&[
            pointer("forZones", 1, Message(&[value("name", 1, Text)])),
            pointer("forNodes", 2, Message(&[value("name", 1, Text)])),
        ]),
    ),
];

const NODE: &[Field] = &[
    value("metadata", 1, Message(OBJECT_META)),
    value(
        "spec",
        2,
        Message(&[
            value("podCIDR", 1, Text),
            value("providerID", 3, Text),
            value("unschedulable", 4, Bool),
            pointer("taints", 5, Message(&[value("key", 1, Text), value("value", 2, Text), value("effect", 3, Text)])),
            pointer("podCIDRs", 7, Text),
        ]),
    ),
    value(
        "status",
        3,
        Message(&[pointer("addresses", 5, Message(&[value("type", 1, Text), value("address", 2, Text)]))]),
    ),
];

const SERVICE_CIDR: &[Field] =
    &[value("metadata", 1, Message(OBJECT_META)), value("spec", 2, Message(&[pointer("cidrs", 1, Text)]))];
