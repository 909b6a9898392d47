//! Fields and kinds of Kubernetes, to find unknown names: most are spelling mistakes.
//!
//! They are complete for the fields that a proxy uses, and for most fields of Pods and Deployments. The content of all
//! other fields is not checked.

use super::value::{Node, Value};
use crate::{Kind, spelling::similar};

/// The fields of a mapping, or of the mappings in a list.
struct Fields {
    /// Fields that may have any content, such as scalars, lists of scalars and maps with arbitrary keys; separated by
    /// spaces.
    any: &'static str,
    /// Fields that are, or list, mappings with known fields.
    known: &'static [(&'static str, Fields)],
}

/// Returns fields that may have any content.
const fn flat(any: &'static str) -> Fields {
    Fields { any, known: &[] }
}

/// Returns fields; those in `known` have known fields themselves.
const fn object(any: &'static str, known: &'static [(&'static str, Fields)]) -> Fields {
    Fields { any, known }
}

const METADATA: Fields = flat(
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation labels \
     managedFields name namespace ownerReferences resourceVersion selfLink uid",
);

const SERVICE_SPEC: Fields = object(
    "allocateLoadBalancerNodePorts clusterIP clusterIPs externalIPs externalName externalTrafficPolicy healthCheckNodePort \
     internalTrafficPolicy ipFamilies ipFamilyPolicy loadBalancerClass loadBalancerIP loadBalancerSourceRanges \
     publishNotReadyAddresses selector sessionAffinity trafficDistribution type",
    &[
        ("ports", flat("appProtocol name nodePort port protocol targetPort")),
        ("sessionAffinityConfig", object("", &[("clientIP", flat("timeoutSeconds"))])),
    ],
);

const INGRESS: Fields = object("hostname ip ipMode", &[("ports", flat("error port protocol"))]);

const SERVICE: Fields = object(
    "apiVersion kind",
    &[
        ("metadata", METADATA),
        ("spec", SERVICE_SPEC),
        ("status", object("conditions", &[("loadBalancer", object("", &[("ingress", INGRESS)]))])),
    ],
);

const REFERENCE: Fields = flat("apiVersion fieldPath kind name namespace resourceVersion uid");

const ENDPOINT_PORT: Fields = flat("appProtocol name port protocol");

const NAME: Fields = flat("name");

const SLICE_ENDPOINT: Fields = object(
    "addresses deprecatedTopology hostname nodeName zone",
    &[
        ("conditions", flat("ready serving terminating")),
        ("hints", object("", &[("forNodes", NAME), ("forZones", NAME)])),
        ("targetRef", REFERENCE),
    ],
);

const ENDPOINT_SLICE: Fields = object(
    "addressType apiVersion kind",
    &[("endpoints", SLICE_ENDPOINT), ("metadata", METADATA), ("ports", ENDPOINT_PORT)],
);

const ENDPOINT_ADDRESS: Fields = object("hostname ip nodeName", &[("targetRef", REFERENCE)]);

const SUBSET: Fields =
    object("", &[("addresses", ENDPOINT_ADDRESS), ("notReadyAddresses", ENDPOINT_ADDRESS), ("ports", ENDPOINT_PORT)]);

const ENDPOINTS: Fields = object("apiVersion kind", &[("metadata", METADATA), ("subsets", SUBSET)]);

const NODE_SPEC: Fields = object(
    "configSource externalID podCIDR podCIDRs podPreemptionPolicy providerID unschedulable",
    &[("taints", flat("effect key timeAdded value"))],
);

const NODE_STATUS: Fields = object(
    "allocatable capacity conditions config daemonEndpoints declaredFeatures features images nodeInfo phase runtimeHandlers \
     volumesAttached volumesInUse",
    &[("addresses", flat("address type"))],
);

const NODE: Fields = object("apiVersion kind", &[("metadata", METADATA), ("spec", NODE_SPEC), ("status", NODE_STATUS)]);

const SERVICE_CIDR: Fields = object("apiVersion kind status", &[("metadata", METADATA), ("spec", flat("cidrs"))]);

const PROBE: Fields = object(
    "exec failureThreshold grpc initialDelaySeconds periodSeconds successThreshold terminationGracePeriodSeconds timeoutSeconds",
    &[("httpGet", flat("host httpHeaders path port scheme")), ("tcpSocket", flat("host port"))],
);

const CONTAINER: Fields = object(
    "args command envFrom image imagePullPolicy lifecycle name resizePolicy restartPolicy restartPolicyRules stdin stdinOnce \
     targetContainerName terminationMessagePath terminationMessagePolicy tty volumeDevices workingDir",
    &[
        ("env", flat("name value valueFrom")),
        ("livenessProbe", PROBE),
        ("ports", flat("containerPort hostIP hostPort name protocol")),
        ("readinessProbe", PROBE),
        ("resources", flat("claims limits requests")),
        (
            "securityContext",
            flat(
                "allowPrivilegeEscalation appArmorProfile capabilities privileged procMount readOnlyRootFilesystem runAsGroup \
                 runAsNonRoot runAsUser seLinuxOptions seccompProfile windowsOptions",
            ),
        ),
        ("startupProbe", PROBE),
        (
            "volumeMounts",
            flat("bindMountOptions mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr"),
        ),
    ],
);

const POD_SPEC: Fields = object(
    "activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks evictionResponders \
     hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets nodeName nodeSelector os overhead \
     preemptionPolicy priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName \
     schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN \
     shareProcessNamespace subdomain terminationGracePeriodSeconds topologySpreadConstraints volumes workloadRef",
    &[
        ("containers", CONTAINER),
        ("ephemeralContainers", CONTAINER),
        ("hostAliases", flat("hostnames ip")),
        ("initContainers", CONTAINER),
        ("tolerations", flat("effect key operator tolerationSeconds value")),
    ],
);

const POD_STATUS: Fields = object(
    "allocatedResources conditions containerStatuses ephemeralContainerStatuses extendedResourceClaimStatus hostIP \
     initContainerStatuses message nodeAllocatableResourceClaimStatuses nominatedNodeName observedGeneration phase podIP \
     qosClass reason resize resourceClaimStatuses resources startTime volumeHealth",
    &[("hostIPs", flat("ip")), ("podIPs", flat("ip"))],
);

const POD: Fields = object("apiVersion kind", &[("metadata", METADATA), ("spec", POD_SPEC), ("status", POD_STATUS)]);

const DEPLOYMENT_SPEC: Fields = object(
    "minReadySeconds paused progressDeadlineSeconds replicas revisionHistoryLimit",
    &[
        ("selector", flat("matchExpressions matchLabels")),
        ("strategy", flat("rollingUpdate type")),
        ("template", object("", &[("metadata", METADATA), ("spec", POD_SPEC)])),
    ],
);

const DEPLOYMENT: Fields = object("apiVersion kind status", &[("metadata", METADATA), ("spec", DEPLOYMENT_SPEC)]);

fn fields(kind: Kind) -> &'static Fields {
    match kind {
        Kind::Service => &SERVICE,
        Kind::EndpointSlice => &ENDPOINT_SLICE,
        Kind::Endpoints => &ENDPOINTS,
        Kind::Node => &NODE,
        Kind::ServiceCidr => &SERVICE_CIDR,
        Kind::Pod => &POD,
        Kind::Deployment => &DEPLOYMENT,
    }
}

impl Fields {
    fn any(&self) -> impl Iterator<Item = &'static str> {
        self.any.split(' ')
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.iter().map(|(name, _)| *name).chain(self.any())
    }
}

/// Passes line, path and the most similar name of each unknown field of an object to `unknown`.
pub(super) fn unknown_fields(kind: Kind, node: &Node<'_>, unknown: &mut dyn FnMut(u32, &str, Option<&'static str>)) {
    visit(fields(kind), node, &mut String::new(), unknown);
}

fn visit(
    fields: &Fields,
    node: &Node<'_>,
    path: &mut String,
    unknown: &mut dyn FnMut(u32, &str, Option<&'static str>),
) {
    let length = path.len();
    match &node.value {
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                visit(fields, item, path, unknown);
                path.truncate(length);
            }
        }
        Value::Map(entries) => {
            for (key, value) in entries {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
                match fields.known.iter().find(|(name, _)| name == key) {
                    Some((_, fields)) => visit(fields, value, path, unknown),
                    None if fields.any().any(|name| name == key) => {}
                    None => unknown(value.line, path, similar(key, fields.names().filter(|name| !name.is_empty()))),
                }
                path.truncate(length);
            }
        }
        // Has the wrong type, which decoding reports.
        _ => {}
    }
}

/// Reports whether a kind is that of lists of any objects, or of objects that are read.
pub(super) fn is_list(kind: &str) -> bool {
    kind.strip_suffix("List").is_some_and(|item| item.is_empty() || Kind::ALL.iter().any(|kind| kind.as_str() == item))
}

/// Returns `None` if a kind is known, otherwise the known kind with the most similar name, if any.
pub(super) fn unknown_kind(api_version: &str, kind: &str) -> Option<Option<&'static str>> {
    let is_extension = api_version.split_once('/').is_some_and(|(group, _)| group.contains('.'));
    let is_known = KINDS.contains(&kind) || is_extension;
    (!is_known).then(|| similar(kind, Kind::ALL.into_iter().map(Kind::as_str).chain(KINDS.iter().copied())))
}

/// Kinds of Kubernetes that are common in manifests with Services, and that a proxy does not read.
const KINDS: &[&str] = &[
    "Binding",
    "ClusterRole",
    "ClusterRoleBinding",
    "ComponentStatus",
    "Config",
    "ConfigMap",
    "ControllerRevision",
    "CronJob",
    "CSIDriver",
    "CustomResourceDefinition",
    "DaemonSet",
    "Event",
    "Eviction",
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
    "PodSecurityPolicy",
    "PodTemplate",
    "PriorityClass",
    "ReplicaSet",
    "ReplicationController",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "RuntimeClass",
    "Scale",
    "Secret",
    "ServiceAccount",
    "StatefulSet",
    "Status",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

#[cfg(test)]
mod tests {
    use super::unknown_kind;
    use crate::manifest::documents;

    fn unknown(text: &str) -> Vec<String> {
        let errors = documents(text).flat_map(|document| document.check().unknown);
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
    fn fields_of_pods_deployments_and_nodes_are_known() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replica: 2\n  template:\n    \
                    metadata: {labels: {any: thing}}\n    spec:\n      nodeNme: a\n      containers:\n      - name: web\n        \
                    ports:\n        - containerport: 80\n        securityContext: {privileged: true}\n        \
                    readinesProbe: {}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDRS: []}\n\
                    status:\n  addresses:\n  - type: InternalIP\n    addres: 10.0.0.1\n---\napiVersion: v1\nkind: Pod\n\
                    metadata: {name: p}\nspec: {hostNetwork: true}\nstatus: {podIp: 10.0.0.2, podIPs: [{ip: 10.0.0.2}]}\n";
        assert_eq!(
            unknown(text),
            [
                "document 1, line 5: Deployment default/web: spec.replica: unknown field (did you mean \"replicas\"?)",
                "document 1, line 9: Deployment default/web: spec.template.spec.nodeNme: unknown field (did you mean \"nodeName\"?)",
                "document 1, line 13: Deployment default/web: spec.template.spec.containers[0].ports[0].containerport: unknown \
                 field (did you mean \"containerPort\"?)",
                "document 1, line 15: Deployment default/web: spec.template.spec.containers[0].readinesProbe: unknown field \
                 (did you mean \"readinessProbe\"?)",
                "document 2, line 20: Node n1: spec.podCIDRS: unknown field (did you mean \"podCIDRs\"?)",
                "document 2, line 24: Node n1: status.addresses[0].addres: unknown field (did you mean \"address\"?)",
                "document 3, line 30: Pod default/p: status.podIp: unknown field (did you mean \"podIP\"?)",
            ]
        );
    }

    #[test]
    fn kinds_of_kubernetes_are_known() {
        let kinds = [
            ("v1", "Binding"),
            ("v1", "ComponentStatus"),
            ("v1", "Config"),
            ("v1", "Status"),
            ("autoscaling/v1", "Scale"),
            ("policy/v1", "Eviction"),
            ("policy/v1beta1", "PodSecurityPolicy"),
        ];
        assert!(kinds.iter().all(|(version, kind)| unknown_kind(version, kind).is_none()));
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
