use std::fmt;

use ferroute_api::{Service, ServiceSpec, labels};

/// Why there is nothing for this proxy to do for a Service that has nothing wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Its label [`labels::SERVICE_PROXY_NAME`] gives it to the proxy of this name.
    OtherProxy(String),
    /// It has the label [`labels::HEADLESS`].
    HeadlessByLabel,
    /// It is of type `ExternalName`: another name for something, without an address.
    ExternalName,
    /// Its cluster IP is `None`: DNS tells the endpoints' own addresses.
    Headless,
}

impl SkipReason {
    /// The reason that holds for `service`, if there is one. Where several do, the one that is looked at first.
    pub fn for_service(service: &Service) -> Option<Self> {
        let labels = &service.metadata.labels;
        if let Some(proxy) = labels.get(labels::SERVICE_PROXY_NAME) {
            return Some(Self::OtherProxy(proxy.clone()));
        }
        if labels.contains_key(labels::HEADLESS) {
            return Some(Self::HeadlessByLabel);
        }
        if service.spec.type_.as_deref() == Some("ExternalName") {
            return Some(Self::ExternalName);
        }
        is_headless(&service.spec).then_some(Self::Headless)
    }

    /// A label says so; the rest of the Service does not matter then, however wrong it is.
    pub(super) fn is_by_label(&self) -> bool {
        matches!(self, Self::OtherProxy(_) | Self::HeadlessByLabel)
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherProxy(name) => {
                write!(f, "its label {} gives it to another proxy, {name:?}", labels::SERVICE_PROXY_NAME)
            }
            Self::HeadlessByLabel => write!(f, "it is headless by its label {}", labels::HEADLESS),
            Self::ExternalName => {
                f.write_str("its type is ExternalName: a name for something else, without an address")
            }
            Self::Headless => f.write_str("it is headless (clusterIP None): DNS tells the endpoints' own addresses"),
        }
    }
}

fn is_headless(spec: &ServiceSpec) -> bool {
    let first = spec.cluster_ip.as_deref().filter(|text| !text.is_empty());
    first.or(spec.cluster_ips.first().map(String::as_str)) == Some("None")
}
