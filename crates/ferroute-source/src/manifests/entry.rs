//! The conversion of objects to the state that is kept for them and to events.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU64,
};

use ferroute_api::{Kind, Object};
use ferroute_core::{
    NamespacedName,
    parse::{FieldError, InvalidObject, MirroredEndpoints, parse_endpoints, validate},
};

use crate::{Event, Resource};

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) resource: Resource,
    pub(super) name: NamespacedName,
}

/// A 128-bit hash of an object or text. Kept instead of the object, to detect changes.
///
/// Accidental collisions are negligible. Deliberate ones are not a concern: an attacker who can cause them can write
/// manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Digest(u64, u64);

impl Digest {
    pub(super) fn new<T: Hash + ?Sized>(value: &T) -> Self {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(salt);
            value.hash(&mut hasher);
            hasher.finish()
        };
        Self(half(0), half(1))
    }
}

/// A hash of the name of a Service with slices, shorter than a [`Digest`] because every slice has one. It decides only whether
/// slices are mirrored from Endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ServiceDigest(NonZeroU64);

impl ServiceDigest {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        let Digest(half, _) = Digest::new(&(namespace, name));
        Self(NonZeroU64::new(half).unwrap_or(NonZeroU64::MIN))
    }
}

/// The state kept for an object in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Object {
        key: Key,
        digest: Digest,
        /// For an EndpointSlice: its Service.
        service: Option<ServiceDigest>,
    },
    Endpoints {
        name: NamespacedName,
        /// The mirrored slices, which apply unless the Service has EndpointSlices.
        slices: Box<[(Key, Digest)]>,
        /// The addresses that are in no slice.
        ignored: Box<[FieldError]>,
    },
}

impl Entry {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Object { key, .. } => key.resource.kind(),
            Self::Endpoints { .. } => Kind::Endpoints,
        }
    }

    pub(super) fn name(&self) -> &NamespacedName {
        match self {
            Self::Object { key, .. } => &key.name,
            Self::Endpoints { name, .. } => name,
        }
    }

    /// Returns the object with its digest if only its contents differ from `previous`; `None` for other differences.
    pub(super) fn changed_content(&self, previous: &Self) -> Option<(Key, Digest)> {
        match (self, previous) {
            (Self::Object { key, digest, service }, Self::Object { key: old_key, digest: _, service: old_service }) => {
                (key == old_key && service == old_service).then(|| (key.clone(), *digest))
            }
            _ => None,
        }
    }

    /// Reports whether the object in the file defines one of `keys`.
    pub(super) fn defines_any(&self, keys: &BTreeSet<&Key>) -> bool {
        match self {
            Self::Object { key, .. } => keys.contains(key),
            Self::Endpoints { slices, .. } => slices.iter().any(|(key, _)| keys.contains(key)),
        }
    }
}

/// An object that was read from a file, and that applies unless another definition takes precedence.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) key: Key,
    pub(super) digest: Digest,
    /// The event that applies the object.
    pub(super) event: Event,
    /// A slice that is mirrored from Endpoints, and applies only if the Service has no EndpointSlices.
    pub(super) is_mirrored: bool,
}

/// Splits a valid object into the state that is kept for it and the candidates. Returns `None` for kinds that a proxy does not
/// read.
pub(super) fn split(object: Object) -> Result<Option<(Entry, Vec<Candidate>)>, InvalidObject> {
    if !matches!(object, Object::Endpoints(_)) {
        validate(&object)?;
    }
    let digest = Digest::new(&object);
    let name = NamespacedName::from_metadata(object.metadata());
    let (resource, service, event) = match object {
        Object::Service(service) => (Resource::Services, None, Event::ServiceApplied(Box::new(service))),
        Object::Node(node) => (Resource::Nodes, None, Event::NodeApplied(Box::new(node))),
        Object::ServiceCidr(cidr) => (Resource::ServiceCidrs, None, Event::ServiceCidrApplied(Box::new(cidr))),
        Object::EndpointSlice(slice) => {
            let service = slice.service_name().map(|service| ServiceDigest::new(name.namespace(), service));
            (Resource::EndpointSlices, service, Event::SliceApplied(Box::new(slice)))
        }
        Object::Endpoints(endpoints) => {
            let MirroredEndpoints { slices, ignored } = parse_endpoints(&endpoints)?;
            let candidates: Vec<Candidate> = slices
                .into_iter()
                .map(|slice| {
                    let name = NamespacedName::from_metadata(&slice.metadata);
                    let digest = Digest::new(&slice);
                    let event = Event::SliceApplied(Box::new(slice));
                    Candidate {
                        key: Key { resource: Resource::EndpointSlices, name },
                        digest,
                        event,
                        is_mirrored: true,
                    }
                })
                .collect();
            let slices = candidates.iter().map(|slice| (slice.key.clone(), slice.digest)).collect();
            return Ok(Some((Entry::Endpoints { name, slices, ignored: ignored.into() }, candidates)));
        }
        Object::Pod(_) | Object::Deployment(_) => return Ok(None),
    };
    let key = Key { resource, name };
    let candidate = Candidate { key: key.clone(), digest, event, is_mirrored: false };
    Ok(Some((Entry::Object { key, digest, service }, vec![candidate])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_different_values_differ() {
        assert_eq!(Digest::new("a"), Digest::new("a"));
        assert_ne!(Digest::new("a"), Digest::new("b"));
        let Digest(first, second) = Digest::new("a");
        assert_ne!(first, second);
    }
}
