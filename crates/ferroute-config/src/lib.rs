//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1` and the flags of kube-proxy 1.36.
//!
//! ```text
//!   text ──► KubeProxyConfiguration ──► with defaults ──► (flags) ──► Resolved
//!    (strict or       (raw)              .defaulted()      merged     .resolve()
//!     lenient)
//! ```
//!
//! The types have the form of the API, so that a file can be decoded and encoded without loss and flags can be merged
//! by setting fields. Only [`KubeProxyConfiguration::resolve`] converts strings to addresses, networks and modes. It
//! reports all validation errors at once, with Kubernetes' messages.
//!
//! ```
//! use ferroute_config::{KubeProxyConfiguration, ModeName};
//!
//! let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables";
//! let config = KubeProxyConfiguration::from_text(text)?.strict()?;
//! let resolved = config.defaulted().resolve()?;
//! assert_eq!(resolved.mode, ModeName::NFTABLES);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The host's properties and the implementations of the modes are in other crates.

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
    Conntrack, ConntrackLimit, FlagSettings, IpvsSettings, LogFormat, Logging, ModeName, Resolved, SyncPeriods,
    UserspaceSettings, canonical_node_name,
};
pub use types::{
    ApiVersion, ClientConnectionConfiguration, ConntrackConfiguration, DetectLocalConfiguration, FlushFrequency,
    IpTablesConfiguration, IpvsConfiguration, Kind, KubeProxyConfiguration, LogFormatOptions, LoggingConfiguration,
    NfTablesConfiguration, OutputRoutingOptions, VModuleItem, WinkernelConfiguration,
};
pub use warnings::Warning;
