use std::fmt;

use ferroute_core::{IpFamily, Protocol, parse::InvalidObject};

/// An error in the objects: one that the API server would report, or a limit of the demo.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An object is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidObject),
    /// A field does not fit into this cluster.
    #[error(transparent)]
    Field(Box<FieldError>),
}

/// A field that does not fit into the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {problem}")]
pub struct FieldError {
    /// The object.
    pub object: ObjectName,
    /// The field, such as `spec.ports[0].nodePort`.
    pub field: String,
    /// The problem.
    pub problem: Problem,
}

/// The kind and name of an object, printed as `Service default/nginx-service`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// `Service`, `Deployment` or `Pod`.
    pub kind: &'static str,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// A problem with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A required field is missing.
    #[error("is missing")]
    Missing,
    /// The value is in use.
    #[error("{value} is already taken by {owner}")]
    Taken {
        /// The value.
        value: String,
        /// Object that has it.
        owner: ObjectName,
    },
    /// Kubernetes does not allow the name; holds the reason.
    #[error("{0}")]
    InvalidName(String),
    /// A machine of the demo has the name.
    #[error("{0:?} is the name of one of the demo's machines")]
    Reserved(String),
    /// The number is out of range.
    #[error("{got} is out of range (want {min} to {max})")]
    OutOfRange {
        /// The value.
        got: i64,
        /// The minimum.
        min: i64,
        /// The maximum.
        max: i64,
    },
    /// The value is not supported.
    #[error("unsupported value {got:?} (want {want})")]
    Unsupported {
        /// The value.
        got: String,
        /// The supported values.
        want: &'static str,
    },
    /// A Deployment's selector does not match its pods.
    #[error("does not match the labels of spec.template")]
    SelectorMismatch,
    /// A Service requires IPv6.
    #[error("requires IPv6, which the kernel does not support")]
    NoIpv6,
    /// All assignable values are in use.
    #[error("no free {resource}")]
    Exhausted {
        /// The kind of value.
        resource: Resource,
    },
}

/// A kind of value that the demo assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A pod address of a node.
    PodAddress,
    /// A cluster IP of a family.
    ClusterIp(IpFamily),
    /// A load balancer IP of a family.
    LoadBalancerIp(IpFamily),
    /// A port on the nodes.
    NodePort(Protocol),
}

impl ObjectName {
    /// Returns an error for a field of this object.
    pub(super) fn field_error(&self, field: impl Into<String>, problem: Problem) -> PlanError {
        PlanError::Field(Box::new(FieldError { object: self.clone(), field: field.into(), problem }))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodAddress => f.write_str("pod address"),
            Self::ClusterIp(family) => write!(f, "{family} cluster IP"),
            Self::LoadBalancerIp(family) => write!(f, "{family} load balancer IP"),
            Self::NodePort(protocol) => write!(f, "{protocol} node port"),
        }
    }
}
