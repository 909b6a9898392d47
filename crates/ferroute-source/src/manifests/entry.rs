//! From an object to what is remembered of it and to the events that tell it.

use std::collections::BTreeSet;

use ferroute_api::{Kind, Object, mirror};

use super::state::{Digest, Key};
use crate::{Event, ObjectName, Resource};

/// What is remembered of an object in a file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: ObjectName,
    pub(super) holds: Holds,
}

/// What an [`Entry`] stands for.
#[derive(Debug)]
pub(super) enum Holds {
    Service(Digest),
    Node(Digest),
    ServiceCidr(Digest),
    Slice {
        digest: Digest,
        /// The Service that it belongs to, in its namespace.
        service: Option<Box<str>>,
    },
    /// The slices that it becomes, unless the Service has slices of its own.
    Endpoints(Box<[(ObjectName, Digest)]>),
}

impl Entry {
    pub(super) fn kind(&self) -> Kind {
        match self.holds {
            Holds::Service(_) => Kind::Service,
            Holds::Node(_) => Kind::Node,
            Holds::ServiceCidr(_) => Kind::ServiceCidr,
            Holds::Slice { .. } => Kind::EndpointSlice,
            Holds::Endpoints(_) => Kind::Endpoints,
        }
    }

    /// Whether it can tell one of these objects.
    pub(super) fn tells(&self, keys: &BTreeSet<&Key>) -> bool {
        let among = |resource, name: &ObjectName| keys.contains(&Key { resource, name: name.clone() });
        match &self.holds {
            Holds::Service(_) => among(Resource::Services, &self.name),
            Holds::Node(_) => among(Resource::Nodes, &self.name),
            Holds::ServiceCidr(_) => among(Resource::ServiceCidrs, &self.name),
            Holds::Slice { .. } => among(Resource::EndpointSlices, &self.name),
            Holds::Endpoints(slices) => slices.iter().any(|(name, _)| among(Resource::EndpointSlices, name)),
        }
    }
}

/// An event that tells an object, for when it comes into force.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) key: Key,
    pub(super) digest: Digest,
    pub(super) event: Event,
    /// Whether it holds whatever else there may be; not so for slices that come from Endpoints.
    pub(super) certain: bool,
}

/// Takes an object apart. `None` for those that no proxy cares about.
pub(super) fn take(object: Object) -> Option<(Entry, Vec<Telling>)> {
    let name = ObjectName::of(object.metadata());
    let digest = Digest::of(&object);
    let telling =
        |resource, event| vec![Telling { key: Key { resource, name: name.clone() }, digest, event, certain: true }];
    let (holds, tellings) = match object {
        Object::Service(service) => {
            (Holds::Service(digest), telling(Resource::Services, Event::ServiceApplied(Box::new(service))))
        }
        Object::Node(node) => (Holds::Node(digest), telling(Resource::Nodes, Event::NodeApplied(Box::new(node)))),
        Object::ServiceCidr(cidr) => {
            (Holds::ServiceCidr(digest), telling(Resource::ServiceCidrs, Event::ServiceCidrApplied(Box::new(cidr))))
        }
        Object::EndpointSlice(slice) => {
            let service = slice.service_name().map(Into::into);
            let event = Event::SliceApplied(Box::new(slice));
            (Holds::Slice { digest, service }, telling(Resource::EndpointSlices, event))
        }
        Object::Endpoints(endpoints) => {
            let tellings: Vec<Telling> = mirror(&endpoints)
                .into_iter()
                .map(|slice| Telling {
                    key: Key { resource: Resource::EndpointSlices, name: ObjectName::of(&slice.metadata) },
                    digest: Digest::of(&slice),
                    event: Event::SliceApplied(Box::new(slice)),
                    certain: false,
                })
                .collect();
            let slices = tellings.iter().map(|telling| (telling.key.name.clone(), telling.digest)).collect();
            (Holds::Endpoints(slices), tellings)
        }
        Object::Pod(_) | Object::Deployment(_) => return None,
    };
    Some((Entry { name, holds }, tellings))
}
