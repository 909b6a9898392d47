//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`, as kube-proxy 1.36 reads it.
//!
//! ```text
//!   text ──► KubeProxyConfiguration ──► with defaults ──► (flags) ──► Resolved
//!    (strict or      (as written)       .defaulted()     set fields   .resolve()
//!     lenient)
//! ```
//!
//! The types hold what was written, in the API's own shape, so that a file can be read and printed again without loss
//! and a command line can be laid over it by setting fields. Only [`KubeProxyConfiguration::resolve`] turns text into
//! addresses, networks and modes, and gathers everything that is wrong on the way, worded as Kubernetes words it.
//!
//! What is *not* here: reading files, the command line itself, looking at the host.

mod address;
mod decode;
mod defaults;
mod duration;
mod families;
mod field_error;
pub mod flags;
mod media_type;
mod quantity;
mod resolve;
pub mod settings;
mod types;
mod warnings;

pub use address::append_port;
pub use decode::{DecodeError, Decoded, StrictDecodingError, Violation};
pub use duration::{GoDuration, ParseDurationError};
pub use families::{Families, FamilyError, FamilySupport};
pub use field_error::{FieldError, FieldErrors};
pub use media_type::MediaType;
pub use quantity::{ParseQuantityError, Quantity};
pub use resolve::{
    Conntrack, ConntrackLimit, IpvsSettings, LogFormat, Logging, ModeName, Resolved, SyncPeriods, canonical_node_name,
};
pub use types::{
    ApiVersion, ClientConnectionConfiguration, ConntrackConfiguration, DetectLocalConfiguration, FlushFrequency,
    IpTablesConfiguration, IpvsConfiguration, Kind, KubeProxyConfiguration, LogFormatOptions, LoggingConfiguration,
    NfTablesConfiguration, OutputRoutingOptions, VModuleItem, WinkernelConfiguration,
};
pub use warnings::Warning;
