//! The fields and kinds of Kubernetes, to find names that nothing reads: most are spelling mistakes.
//!
//! Complete for the kinds whose fields a proxy uses. Of Pods, Deployments and the status of Nodes, only the first level is known.

use super::value::{Node, Value};
use crate::Kind;

/// The fields of a mapping, or of the mappings in a list.
type Fields = &'static [(&'static str, Content)];

/// The content of a field.
#[derive(Clone, Copy)]
enum Content {
    /// Anything, such as a scalar, a list of scalars or a map with arbitrary keys.
    Any,
    /// A mapping, or a list of mappings, with these fields.
    Fields(Fields),
}

use Content::{Any, Fields as Of};

const METADATA: Fields = &[
    ("annotations", Any),
    ("creationTimestamp", Any),
    ("deletionGracePeriodSeconds", Any),
    ("deletionTimestamp", Any),
    ("finalizers", Any),
    ("generateName", Any),
    ("generation", Any),
    ("labels", Any),
    ("managedFields", Any),
    ("name", Any),
    ("namespace", Any),
    ("ownerReferences", Any),
    ("resourceVersion", Any),
    ("selfLink", Any),
    ("uid", Any),
];

const SERVICE_PORT: Fields =
    &[("appProtocol", Any), ("name", Any), ("nodePort", Any), ("port", Any), ("protocol", Any), ("targetPort", Any)];

const SERVICE_SPEC: Fields = &[
    ("allocateLoadBalancerNodePorts", Any),
    ("clusterIP", Any),
    ("clusterIPs", Any),
    ("externalIPs", Any),
    ("externalName", Any),
    ("externalTrafficPolicy", Any),
    ("healthCheckNodePort", Any),
    ("internalTrafficPolicy", Any),
    ("ipFamilies", Any),
    ("ipFamilyPolicy", Any),
    ("loadBalancerClass", Any),
    ("loadBalancerIP", Any),
    ("loadBalancerSourceRanges", Any),
    ("ports", Of(SERVICE_PORT)),
    ("publishNotReadyAddresses", Any),
    ("selector", Any),
    ("sessionAffinity", Any),
    ("sessionAffinityConfig", Of(&[("clientIP", Of(&[("timeoutSeconds", Any)]))])),
    ("trafficDistribution", Any),
    ("type", Any),
];

const INGRESS: Fields = &[
    ("hostname", Any),
    ("ip", Any),
    ("ipMode", Any),
    ("ports", Of(&[("error", Any), ("port", Any), ("protocol", Any)])),
];

const SERVICE: Fields = &[
    ("apiVersion", Any),
    ("kind", Any),
    ("metadata", Of(METADATA)),
    ("spec", Of(SERVICE_SPEC)),
    ("status", Of(&[("conditions", Any), ("loadBalancer", Of(&[("ingress", Of(INGRESS))]))])),
];

const REFERENCE: Fields = &[
    ("apiVersion", Any),
    ("fieldPath", Any),
    ("kind", Any),
    ("name", Any),
    ("namespace", Any),
    ("resourceVersion", Any),
    ("uid", Any),
];

const ENDPOINT_PORT: Fields = &[("appProtocol", Any), ("name", Any), ("port", Any), ("protocol", Any)];

const NAME: Fields = &[("name", Any)];

const SLICE_ENDPOINT: Fields = &[
    ("addresses", Any),
    ("conditions", Of(&[("ready", Any), ("serving", Any), ("terminating", Any)])),
    ("deprecatedTopology", Any),
    ("hints", Of(&[("forNodes", Of(NAME)), ("forZones", Of(NAME))])),
    ("hostname", Any),
    ("nodeName", Any),
    ("targetRef", Of(REFERENCE)),
    ("zone", Any),
];

const ENDPOINT_SLICE: Fields = &[
    ("addressType", Any),
    ("apiVersion", Any),
    ("endpoints", Of(SLICE_ENDPOINT)),
    ("kind", Any),
    ("metadata", Of(METADATA)),
    ("ports", Of(ENDPOINT_PORT)),
];

const ENDPOINT_ADDRESS: Fields = &[("hostname", Any), ("ip", Any), ("nodeName", Any), ("targetRef", Of(REFERENCE))];

const SUBSET: Fields =
    &[("addresses", Of(ENDPOINT_ADDRESS)), ("notReadyAddresses", Of(ENDPOINT_ADDRESS)), ("ports", Of(ENDPOINT_PORT))];

const ENDPOINTS: Fields = &[("apiVersion", Any), ("kind", Any), ("metadata", Of(METADATA)), ("subsets", Of(SUBSET))];

const NODE_SPEC: Fields = &[
    ("configSource", Any),
    ("externalID", Any),
    ("podCIDR", Any),
    ("podCIDRs", Any),
    ("providerID", Any),
    ("taints", Of(&[("effect", Any), ("key", Any), ("timeAdded", Any), ("value", Any)])),
    ("unschedulable", Any),
];

const NODE: Fields =
    &[("apiVersion", Any), ("kind", Any), ("metadata", Of(METADATA)), ("spec", Of(NODE_SPEC)), ("status", Any)];

const SERVICE_CIDR: Fields =
    &[("apiVersion", Any), ("kind", Any), ("metadata", Of(METADATA)), ("spec", Of(&[("cidrs", Any)])), ("status", Any)];

const WORKLOAD: Fields =
    &[("apiVersion", Any), ("kind", Any), ("metadata", Of(METADATA)), ("spec", Any), ("status", Any)];

fn fields(kind: Kind) -> Fields {
    match kind {
        Kind::Service => SERVICE,
        Kind::EndpointSlice => ENDPOINT_SLICE,
        Kind::Endpoints => ENDPOINTS,
        Kind::Node => NODE,
        Kind::ServiceCidr => SERVICE_CIDR,
        Kind::Pod | Kind::Deployment => WORKLOAD,
    }
}

/// Passes line, path and the most similar name of each unknown field of an object to `unknown`.
pub(super) fn unknown_fields(kind: Kind, node: &Node<'_>, unknown: &mut dyn FnMut(u32, &str, Option<&'static str>)) {
    visit(fields(kind), node, &mut String::new(), unknown);
}

fn visit(known: Fields, node: &Node<'_>, path: &mut String, unknown: &mut dyn FnMut(u32, &str, Option<&'static str>)) {
    let length = path.len();
    match &node.value {
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                visit(known, item, path, unknown);
                path.truncate(length);
            }
        }
        Value::Map(entries) => {
            for (key, value) in entries {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
                match known.iter().find(|(name, _)| name == key) {
                    Some((_, Of(known))) => visit(known, value, path, unknown),
                    Some((_, Any)) => {}
                    None => unknown(value.line, path, similar(key, known.iter().map(|(name, _)| *name))),
                }
                path.truncate(length);
            }
        }
        // Of the wrong type, which decoding reports.
        _ => {}
    }
}

/// Reports whether a kind is that of lists of any objects, or of objects that are read.
pub(super) fn is_list(kind: &str) -> bool {
    kind.strip_suffix("List").is_some_and(|item| item.is_empty() || Kind::ALL.iter().any(|kind| kind.as_str() == item))
}

/// Returns whether no object of a kind is known: [`None`] if it is known, otherwise the kind that may be meant.
pub(super) fn unknown_kind(api_version: &str, kind: &str) -> Option<Option<&'static str>> {
    let is_extension = api_version.split_once('/').is_some_and(|(group, _)| group.contains('.'));
    let is_known = KINDS.contains(&kind) || is_extension;
    (!is_known).then(|| similar(kind, Kind::ALL.into_iter().map(Kind::as_str).chain(KINDS.iter().copied())))
}

/// Returns the most similar name, if one is similar enough to be meant.
fn similar(name: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let distance = |candidate: &str| strsim::osa_distance(&lower, &candidate.to_lowercase());
    let near = candidates.map(|candidate| (distance(candidate), candidate)).min()?;
    (near.0 * 3 <= name.len().max(3)).then_some(near.1)
}

/// Kinds of Kubernetes that manifests often have beside Services, and that a proxy does not read.
const KINDS: &[&str] = &[
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "ControllerRevision",
    "CronJob",
    "CSIDriver",
    "CustomResourceDefinition",
    "DaemonSet",
    "Event",
    "HorizontalPodAutoscaler",
    "Ingress",
    "IngressClass",
    "IPAddress",
    "Job",
    "Lease",
    "LimitRange",
    "MutatingWebhookConfiguration",
    "Namespace",
    "NetworkPolicy",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PodTemplate",
    "PriorityClass",
    "ReplicaSet",
    "ReplicationController",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "RuntimeClass",
    "Secret",
    "ServiceAccount",
    "StatefulSet",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

#[cfg(test)]
mod tests {
    use crate::manifest::documents;

    fn unknown(text: &str) -> Vec<String> {
        let errors = documents(text).flat_map(|document| document.check().1);
        errors.map(|error| format!("{error}: {}", error.cause)).collect()
    }

    #[test]
    fn unknown_fields_have_their_line_and_a_similar_name() {
        let text = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop, label: {a: b}}\nspec:\n  \
                    clusterIp: 10.0.0.1\n  selector: {anything: goes}\n  ports:\n  - port: 80\n    porto: 1\n    \
                    completelyDifferent: 2\n";
        assert_eq!(
            unknown(text),
            [
                "document 1, line 3: Service shop/web: metadata.label: unknown field (did you mean \"labels\"?)",
                "document 1, line 5: Service shop/web: spec.clusterIp: unknown field (did you mean \"clusterIP\"?)",
                "document 1, line 9: Service shop/web: spec.ports[0].porto: unknown field (did you mean \"port\"?)",
                "document 1, line 10: Service shop/web: spec.ports[0].completelyDifferent: unknown field",
            ]
        );
    }

    #[test]
    fn unknown_kinds_and_lists_without_items_are_reported() {
        let text = "apiVersion: v1\nkind: Servce\nmetadata: {name: web}\n---\napiVersion: v1\nkind: List\nitems:\n- \
                    apiVersion: v1\n  kind: ServiceList\n  item: []\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n\
                    ---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\n";
        assert_eq!(
            unknown(text),
            [
                "document 1, line 1: Servce web: unknown kind \"Servce\" of \"v1\" (did you mean \"Service\"?)",
                "document 2, line 8: ServiceList: items[0].items: missing",
            ]
        );
    }
}
