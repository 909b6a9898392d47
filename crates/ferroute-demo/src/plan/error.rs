use std::fmt;

use ferroute_core::{IpFamily, Protocol, parse::InvalidObject};

/// The objects do not make a cluster: what an API server would refuse, or more than the demo has room for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An object is wrong in itself.
    #[error(transparent)]
    Invalid(#[from] InvalidObject),
    /// An object does not fit into this cluster.
    #[error(transparent)]
    Unfit(Box<Unfit>),
}

/// An object that does not fit into the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {problem}")]
pub struct Unfit {
    /// Which one.
    pub object: ObjectName,
    /// The field at fault, as in the YAML: `spec.ports[0].nodePort`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// Which object is meant; printed like `Service default/nginx-service`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// `Service`, `Deployment` or `Pod`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Why a field does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It must be there.
    #[error("is missing")]
    Missing,
    /// Two objects, or one twice, ask for the same.
    #[error("{value} is already taken by {owner}")]
    Taken {
        /// What both ask for.
        value: String,
        /// Who has it.
        owner: ObjectName,
    },
    /// Not a name that Kubernetes allows; holds what is wrong with it.
    #[error("{0}")]
    NotAName(String),
    /// The demo's own machine has that name.
    #[error("{0:?} is the name of one of the demo's own machines")]
    Reserved(String),
    /// Outside of what the field allows.
    #[error("{got} is out of range (want {min} to {max})")]
    OutOfRange {
        /// What is there.
        got: i64,
        /// Least allowed.
        min: i64,
        /// Greatest allowed.
        max: i64,
    },
    /// Not one of the field's values.
    #[error("unsupported value {got:?} (want {want})")]
    Unsupported {
        /// What is there.
        got: String,
        /// What may be there.
        want: &'static str,
    },
    /// The Deployment would not own its own pods.
    #[error("does not match the labels of spec.template")]
    SelectorMismatch,
    /// The Service wants IPv6 and there is none.
    #[error("asks for IPv6, which this machine's kernel does not have")]
    NoIpv6,
    /// Every value that could be assigned is taken.
    #[error("no {what} is left to assign")]
    Exhausted {
        /// What there is none left of.
        what: Resource,
    },
}

/// What the demo assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// An address for a pod on its node.
    PodAddress,
    /// A cluster IP of a family.
    ClusterIp(IpFamily),
    /// A load-balancer address of a family.
    LoadBalancerIp(IpFamily),
    /// A port on the nodes.
    NodePort(Protocol),
}

impl ObjectName {
    /// The problem with a field of this object.
    pub(super) fn unfit(&self, field: impl Into<String>, problem: Problem) -> PlanError {
        PlanError::Unfit(Box::new(Unfit { object: self.clone(), field: field.into(), problem }))
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
            Self::LoadBalancerIp(family) => write!(f, "{family} load-balancer address"),
            Self::NodePort(protocol) => write!(f, "{protocol} node port"),
        }
    }
}
