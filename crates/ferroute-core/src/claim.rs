use std::{
    cmp::Ordering,
    fmt,
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{Frontend, FrontendKind, Reservation, ServicePort, ServicePortName};

/// The claim of a service port on a frontend.
///
/// Anyone who may create Services can list any address in `externalIPs`, so several service ports may claim one
/// frontend. The least claim owns it: addresses that only the API server assigns ([`FrontendKind::ClusterIp`] and
/// [`FrontendKind::NodePort`]) come before those of load balancers, which their controllers assign, followed by
/// external IPs, which users write. Among equal claims, the older Service comes first, then the first by name.
///
/// A [`Reservation`] comes before the addresses of load balancers and external IPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The field of the Service that has the address.
    pub kind: FrontendKind,
    /// The creation time of the Service.
    pub created: CreationTime,
    /// The service port.
    pub name: ServicePortName,
}

/// The creation time of an object (`metadata.creationTimestamp`) in whole seconds. Unknown times are the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreationTime {
    /// Seconds since 1970.
    seconds: Option<NonZeroU32>,
}

/// Frontends that a service port claims and other service ports own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFrontends {
    /// The service port with all the frontends that it claims. The one in [`ServiceTable::entries`] lacks the lost ones.
    ///
    /// [`ServiceTable::entries`]: crate::ServiceTable::entries
    pub claimed: Arc<ServicePort>,
    /// The lost frontends, in the order of [`ServicePort::frontends`].
    pub frontends: Vec<LostFrontend>,
}

/// A frontend that a service port claims and another service port owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFrontend {
    /// The kind of the lost claim.
    pub kind: FrontendKind,
    /// The frontend.
    pub frontend: Frontend,
    /// The owner.
    pub owner: FrontendOwner,
}

/// The owner of a frontend that a service port claims in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendOwner {
    /// Another service port, by this claim. Its kind is [`FrontendKind::NodePort`] even if the frontend is an address
    /// of the node.
    ServicePort(Claim),
    /// Reserved; no Service may have the frontend.
    Reserved(Reservation),
}

impl Ord for Claim {
    fn cmp(&self, other: &Self) -> Ordering {
        let Self { kind, created, name } = self;
        self.rank()
            .cmp(&other.rank())
            .then_with(|| created.cmp(&other.created))
            .then_with(|| name.cmp(&other.name))
            .then_with(|| kind.cmp(&other.kind))
    }
}

impl PartialOrd for Claim {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Claim {
    /// Returns the rank: lower ones win.
    fn rank(&self) -> u8 {
        self.kind.rank()
    }

    /// Reports whether only the API server assigns the address.
    pub(crate) fn is_assigned(&self) -> bool {
        self.kind.is_assigned()
    }
}

impl FrontendKind {
    /// Returns the rank of a claim: lower ones win.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::ClusterIp | Self::NodePort => 0,
            Self::LoadBalancer => 1,
            Self::ExternalIp => 2,
        }
    }

    /// Reports whether only the API server assigns the address.
    pub(crate) fn is_assigned(self) -> bool {
        self.rank() == 0
    }
}

impl CreationTime {
    /// The time of objects from files.
    pub const UNKNOWN: Self = Self { seconds: None };

    /// Returns the time in an object's metadata; [`CreationTime::UNKNOWN`] if it has none or an invalid one.
    pub fn from_metadata(metadata: &ferroute_api::ObjectMeta) -> Self {
        let time = metadata.creation_timestamp.as_deref().and_then(crate::rfc3339::parse);
        let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let seconds = since.and_then(|since| NonZeroU32::new(u32::try_from(since.as_secs()).ok()?));
        Self { seconds }
    }

    /// Returns the time as in an object's metadata; `None` if it is unknown.
    pub fn to_rfc3339(self) -> Option<String> {
        let since = Duration::from_secs(self.seconds?.get().into());
        crate::rfc3339::format(SystemTime::UNIX_EPOCH + since, 0)
    }

    /// Seconds since 1970; the greatest number for an unknown time.
    fn order(self) -> u32 {
        self.seconds.map_or(u32::MAX, NonZeroU32::get)
    }
}

impl Ord for CreationTime {
    fn cmp(&self, other: &Self) -> Ordering {
        // The last second that can be stored is as late as an unknown time.
        self.order().cmp(&other.order()).then_with(|| self.seconds.is_none().cmp(&other.seconds.is_none()))
    }
}

impl PartialOrd for CreationTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for LostFrontend {
    /// Writes `external IP 10.96.0.10:53/udp belongs to kube-system/kube-dns:dns (cluster IP)`, or
    /// `external IP 192.0.2.1:6443/tcp is reserved for the API server`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, frontend, owner } = self;
        if frontend.address.is_some() {
            write!(f, "{kind} ")?;
        }
        write!(f, "{frontend} {owner}")
    }
}

impl fmt::Display for FrontendOwner {
    /// Writes `belongs to kube-system/kube-dns:dns (cluster IP)`, or `is reserved for the API server`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServicePort(Claim { kind, name, .. }) => write!(f, "belongs to {name} ({kind})"),
            Self::Reserved(reservation) => write!(f, "is reserved for {reservation}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroute_api::ObjectMeta;

    use super::*;
    use crate::testing::port_name;

    fn created(text: &str) -> CreationTime {
        CreationTime::from_metadata(&ObjectMeta { creation_timestamp: Some(text.into()), ..ObjectMeta::default() })
    }

    #[test]
    fn claims_are_ordered_by_kind_then_age_then_name() {
        use FrontendKind::*;
        let (old, new) = (created("2026-01-02T15:04:05Z"), created("2026-01-02T15:04:06Z"));
        let claim = |kind, created, name| Claim { kind, created, name: port_name(name) };
        let expected = [
            claim(ClusterIp, old, "z/old:http"),
            claim(NodePort, new, "b/new:http"),
            claim(ClusterIp, CreationTime::UNKNOWN, "a/file:http"),
            claim(LoadBalancer, old, "a/old:http"),
            claim(LoadBalancer, old, "b/old:http"),
            claim(ExternalIp, old, "z/old:http"),
            claim(ExternalIp, new, "a/new:http"),
            claim(ExternalIp, new, "a/new:https"),
            claim(ExternalIp, CreationTime::UNKNOWN, "a/file:http"),
        ];
        let mut sorted = expected.to_vec();
        sorted.reverse();
        sorted.sort();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn creation_times_have_whole_seconds_and_survive_a_round_trip() {
        let text = "2026-01-02T15:04:05Z";
        assert_eq!(created(text).to_rfc3339().as_deref(), Some(text));
        assert_eq!(created("2026-01-02T15:04:05.9Z"), created(text));
        for unknown in ["", "yesterday", "1970-01-01T00:00:00Z", "1960-01-01T00:00:00Z", "2200-01-01T00:00:00Z"] {
            assert_eq!(created(unknown), CreationTime::UNKNOWN, "{unknown}");
        }
        assert_eq!(CreationTime::from_metadata(&ObjectMeta::default()).to_rfc3339(), None);
        assert!(created("2106-02-07T06:28:15Z") < CreationTime::UNKNOWN);
    }
}
