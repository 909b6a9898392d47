//! Access to the ipsets of the kernel.

pub(crate) mod message;

use std::collections::HashSet;

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{
    Batch, Error, Message, Refusals, Request, Socket, attribute_flags::NLA_F_NET_BYTEORDER as NET_BYTEORDER, flags,
    ipset::*, nfnetlink,
};

use self::message::{SetHeader, parse_entries, parse_header, revision, type_family, write_entry};
use crate::plan::{Entry, ServerKey, SetKind, SetType};

/// A failure to test or destroy an ipset.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The netlink socket cannot be opened.
    #[error("cannot open a netlink socket for ipsets")]
    Open(#[source] Error),
    /// A rule refers to the set. Retrying may succeed: the kernel releases a set shortly after its last rule is deleted.
    #[error("cannot destroy ipset {name}: a rule refers to it")]
    InUse {
        /// The set.
        name: String,
    },
    /// The set cannot be tested for a member.
    #[error("cannot test ipset {name} for virtual server {server}")]
    Test {
        /// The set.
        name: String,
        /// The virtual server whose member was tested.
        server: ServerKey,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The set cannot be created.
    #[error("cannot create ipset {name} of type {set_type}")]
    Create {
        /// The set.
        name: &'static str,
        /// Type.
        set_type: &'static str,
        /// The cause.
        #[source]
        source: Error,
    },
    /// Another program created the set with another type or for the other IP family, and rules refer to it.
    #[error(
        "cannot use ipset {name}: it is {existing} (want {wanted}), and rules refer to it; delete the rules that match {name} and \
         run ipset destroy {name}"
    )]
    Differs {
        /// The set.
        name: &'static str,
        /// Type and family.
        existing: String,
        /// The required type and family.
        wanted: String,
    },
    /// Entries cannot be added.
    #[error("cannot add entries to ipset {name}")]
    Add {
        /// The set.
        name: &'static str,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The set cannot be replaced by another set.
    #[error("cannot replace ipset {name} by one for {capacity} entries")]
    Replace {
        /// The set.
        name: &'static str,
        /// The wanted maximum number of entries.
        capacity: u32,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The set's entries cannot be listed.
    #[error("cannot list ipset {name}")]
    List {
        /// The set.
        name: &'static str,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The set cannot be destroyed.
    #[error("cannot destroy ipset {name}")]
    Destroy {
        /// The set.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
}

/// Access to the ipsets of a network namespace.
#[derive(Debug)]
pub struct IpSets {
    socket: Socket,
}

impl IpSets {
    /// Opens a netlink socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, SetError> {
        Socket::open(ferroute_netlink::Protocol::Netfilter).map(|socket| Self { socket }).map_err(SetError::Open)
    }

    /// Reports whether a set contains the address and port, as for the virtual servers of each Service.
    pub fn has_service(&mut self, server: ServerKey) -> Result<bool, SetError> {
        self.contains(&SetKind::WITH_SERVERS, server, Entry::Service(server))
    }

    /// Reports whether a set contains the port, independent of the address, as for TCP and UDP node ports. For SCTP node
    /// ports, sets contain address and port.
    pub fn has_node_port(&mut self, server: ServerKey) -> Result<bool, SetError> {
        match server.protocol {
            Protocol::Sctp => Ok(false),
            protocol => self.contains(&[SetKind::node_ports(protocol)], server, Entry::Port(server.port)),
        }
    }

    /// Reports whether the address had virtual servers of node ports, even if it has left the host.
    pub fn has_node_port_address(&mut self, server: ServerKey) -> Result<bool, SetError> {
        self.contains(&[SetKind::NodePortIps], server, Entry::Address(server.address))
    }

    /// Reports whether one of the sets contains an entry. A missing set contains none.
    fn contains(&mut self, sets: &[SetKind], server: ServerKey, entry: Entry) -> Result<bool, SetError> {
        for set in sets {
            let name = set.name(IpFamily::of(server.address));
            let mut request = Request::new(command(IPSET_CMD_TEST), 0, &HEADER);
            write_entry(&mut request.attributes(), name, entry);
            match self.socket.request_ack(&mut request) {
                Ok(()) => return Ok(true),
                Err(error) if error.is_not_found() || nfnetlink::is_subsystem_missing(&error) => {}
                Err(error) if has_errno(&error, IPSET_ERR_EXIST) => {}
                Err(source) => return Err(SetError::Test { name: name.to_owned(), server, source }),
            }
        }
        Ok(false)
    }

    /// Creates a set with kube-proxy's settings unless it exists with these, or with a larger capacity. A set that
    /// another program created with other settings is replaced, and keeps the entries that both can have.
    ///
    /// # Errors
    /// If the set cannot be created, or cannot be replaced because rules refer to it and its type or IP family differs.
    pub fn create(&mut self, kind: SetKind, family: IpFamily) -> Result<(), SetError> {
        let name = kind.name(family);
        let existing = self.header(name)?;
        let is_same_type = existing.as_ref().is_none_or(|existing| existing.is_of(kind.set_type(), family));
        // The kernel does not compare the IP family.
        if is_same_type && self.create_as(name, kind, family, DEFAULT_CAPACITY)? {
            return Ok(());
        }
        let Some(existing) = existing else { return Err(conflict(kind, family, None)) };
        let capacity = existing.capacity.unwrap_or_default().max(DEFAULT_CAPACITY);
        if is_same_type && capacity > DEFAULT_CAPACITY && self.create_as(name, kind, family, capacity)? {
            return Ok(());
        }
        let entries = if is_same_type { self.entries(kind, family)? } else { HashSet::new() };
        let is_replaced = self.replace(kind, family, capacity, entries)?;
        // Unused sets can be destroyed, regardless of their type.
        let is_created = is_replaced
            || match self.destroy(name) {
                Ok(_) => self.create_as(name, kind, family, DEFAULT_CAPACITY)?,
                Err(SetError::InUse { .. }) => false,
                Err(error) => return Err(error),
            };
        if !is_created {
            return Err(conflict(kind, family, Some(existing)));
        }
        tracing::warn!("replaced ipset {name}, which another program had created as {existing}");
        Ok(())
    }

    /// Replaces a set by one with kube-proxy's settings and these entries, to which rules then refer. Returns false,
    /// and changes nothing, if the types of the two sets cannot be exchanged.
    fn replace(
        &mut self,
        kind: SetKind,
        family: IpFamily,
        capacity: u32,
        entries: HashSet<Entry>,
    ) -> Result<bool, SetError> {
        let name = kind.name(family);
        let failed = |source| SetError::Replace { name, capacity, source };
        // May be left from a failed attempt.
        self.destroy(REPLACEMENT)?;
        self.create_as(REPLACEMENT, kind, family, capacity)?;
        self.add_all(REPLACEMENT, entries).map_err(failed)?;
        let mut request = Request::new(command(IPSET_CMD_SWAP), 0, &HEADER);
        let mut attributes = request.attributes();
        attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
        attributes.put_str(IPSET_ATTR_SETNAME, REPLACEMENT);
        attributes.put_str(IPSET_ATTR_SETNAME2, name);
        drop(attributes);
        let swapped = match self.socket.request_ack(&mut request) {
            Err(error) if has_errno(&error, IPSET_ERR_TYPE_MISMATCH) => false,
            result => result.map(|()| true).map_err(failed)?,
        };
        self.destroy(REPLACEMENT)?;
        Ok(swapped)
    }

    /// Replaces an existing set by one for this number of entries, if its capacity is smaller. Rules always refer to
    /// the same entries.
    pub fn reserve(&mut self, kind: SetKind, family: IpFamily, entries: usize) -> Result<(), SetError> {
        let (name, capacity) = (kind.name(family), capacity(entries));
        let Some(existing) = self.capacity(kind, family)? else { return Ok(()) };
        if existing >= capacity {
            return Ok(());
        }
        let entries = self.entries(kind, family)?;
        if self.replace(kind, family, capacity, entries)? {
            tracing::info!("enlarged ipset {name} to {capacity} entries");
        }
        Ok(())
    }

    /// Adds entries to a set.
    ///
    /// # Errors
    /// If an entry cannot be added; some of the others may have been added.
    pub fn add(
        &mut self,
        kind: SetKind,
        family: IpFamily,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Result<(), SetError> {
        let name = kind.name(family);
        self.add_all(name, entries).map_err(|source| SetError::Add { name, source })
    }

    fn add_all(&mut self, name: &str, entries: impl IntoIterator<Item = Entry>) -> Result<(), Error> {
        let mut batch = Batch::new();
        for entry in entries {
            write_entry(&mut batch.message(command(IPSET_CMD_ADD), 0, &HEADER), name, entry);
            if batch.byte_length() >= MAX_BATCH {
                self.send_all(&mut batch)?;
            }
        }
        self.send_all(&mut batch)
    }

    /// Sends encoded changes, all of which must succeed.
    fn send_all(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let refusals = self.socket.send_batch(batch)?;
        batch.clear();
        if refusals.is_overrun() {
            return Err(Error::Overrun);
        }
        refusals.as_slice().first().map_or(Ok(()), |refusal| Err(refusal.clone().into()))
    }

    /// Returns the settings of a set; `None` if it does not exist.
    fn header(&mut self, name: &'static str) -> Result<Option<SetHeader>, SetError> {
        let mut request = Request::new(command(IPSET_CMD_LIST), 0, &HEADER);
        let mut attributes = request.attributes();
        attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
        attributes.put_str(IPSET_ATTR_SETNAME, name);
        attributes.put_u32_be(IPSET_ATTR_FLAGS | NET_BYTEORDER, IPSET_FLAG_LIST_HEADER);
        drop(attributes);
        match self.socket.collect(&mut request, |message: Message<'_>| parse_header(message).map(Some)) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(SetError::List { name, source }),
        }
    }

    /// Returns the maximum number of entries of a set; `None` if it does not exist with the type of this kind, or has no maximum.
    fn capacity(&mut self, kind: SetKind, family: IpFamily) -> Result<Option<u32>, SetError> {
        let header = self.header(kind.name(family))?.filter(|header| header.is_of(kind.set_type(), family));
        Ok(header.and_then(|header| header.capacity))
    }

    /// Creates a set unless it exists with the same settings. Returns false if it exists with other settings.
    fn create_as(
        &mut self,
        name: &'static str,
        kind: SetKind,
        family: IpFamily,
        capacity: u32,
    ) -> Result<bool, SetError> {
        let set_type = kind.set_type();
        let failed = |source| SetError::Create { name, set_type: set_type.as_str(), source };
        let revision = self.revision(set_type, family).map_err(failed)?;
        let mut request = Request::new(command(IPSET_CMD_CREATE), flags::NLM_F_CREATE, &HEADER);
        let mut attributes = request.attributes();
        attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
        attributes.put_str(IPSET_ATTR_SETNAME, name);
        attributes.put_str(IPSET_ATTR_TYPENAME, set_type.as_str());
        attributes.put_u8(IPSET_ATTR_REVISION, revision);
        attributes.put_u8(IPSET_ATTR_FAMILY, type_family(set_type, family));
        let mut data = attributes.nest(IPSET_ATTR_DATA);
        if set_type == SetType::Port {
            data.put_u16_be(IPSET_ATTR_PORT | NET_BYTEORDER, 0);
            data.put_u16_be(IPSET_ATTR_PORT_TO | NET_BYTEORDER, u16::MAX);
        } else {
            data.put_u32_be(IPSET_ATTR_HASHSIZE | NET_BYTEORDER, HASH_SIZE);
            data.put_u32_be(IPSET_ATTR_MAXELEM | NET_BYTEORDER, capacity);
        }
        drop(data);
        drop(attributes);
        match self.socket.request_ack(&mut request) {
            Err(error) if error.is_exists() => Ok(false),
            result => result.map(|()| true).map_err(failed),
        }
    }

    /// Returns the revision to create sets with: [`revision`], or the kernel's newest if that is older. Older releases
    /// of `ipset` cannot read newer revisions.
    fn revision(&mut self, set_type: SetType, family: IpFamily) -> Result<u8, Error> {
        let mut request = Request::new(command(IPSET_CMD_TYPE), 0, &HEADER);
        let mut attributes = request.attributes();
        attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
        attributes.put_str(IPSET_ATTR_TYPENAME, set_type.as_str());
        attributes.put_u8(IPSET_ATTR_FAMILY, type_family(set_type, family));
        drop(attributes);
        let newest = self.socket.get(&mut request, |message: Message<'_>| {
            Ok::<u8, Error>(message.attribute::<{ nfnetlink::HEADER_LENGTH }>(IPSET_ATTR_REVISION)?.u8()?)
        })?;
        Ok(revision(set_type).min(newest.unwrap_or_default()))
    }

    /// Returns the entries of a set. Entries without a corresponding [`Entry`] are ignored; a missing set has no
    /// entries.
    pub fn entries(&mut self, kind: SetKind, family: IpFamily) -> Result<HashSet<Entry>, SetError> {
        let name = kind.name(family);
        let mut request = Request::new(command(IPSET_CMD_LIST), 0, &HEADER);
        let mut attributes = request.attributes();
        attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
        attributes.put_str(IPSET_ATTR_SETNAME, name);
        drop(attributes);
        let lists =
            self.socket.collect(&mut request, |message: Message<'_>| parse_entries(message, kind, family).map(Some));
        match lists {
            Ok(lists) => Ok(lists.into_iter().flatten().collect()),
            Err(error) if error.is_not_found() || nfnetlink::is_subsystem_missing(&error) => Ok(HashSet::new()),
            Err(source) => Err(SetError::List { name, source }),
        }
    }

    /// Reports whether one of the sets of ipvs mode has entries.
    pub fn are_used(&mut self, family: IpFamily) -> Result<bool, SetError> {
        for kind in SetKind::ALL {
            if !self.entries(kind, family)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Appends the message that adds or deletes an entry. It is not an error if the entry already exists, or is already
    /// missing.
    pub(crate) fn encode(batch: &mut Batch, added: bool, kind: SetKind, family: IpFamily, entry: Entry) {
        let kind_of = command(if added { IPSET_CMD_ADD } else { IPSET_CMD_DEL });
        write_entry(&mut batch.message(kind_of, 0, &HEADER), kind.name(family), entry);
    }

    /// Sends encoded changes.
    pub(crate) fn send(&mut self, batch: &mut Batch) -> Result<Refusals, Error> {
        self.socket.send_batch(batch)
    }

    /// Destroys a set with its members. Returns false if it does not exist or the kernel does not support ipsets.
    pub fn destroy(&mut self, name: &str) -> Result<bool, SetError> {
        match self.socket.request_ack(&mut destroy(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() || nfnetlink::is_subsystem_missing(&error) => Ok(false),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.errno == IPSET_ERR_BUSY) => {
                Err(SetError::InUse { name: name.to_owned() })
            }
            Err(source) => Err(SetError::Destroy { name: name.to_owned(), source }),
        }
    }
}

/// Returns the names of the ipsets of ipvs mode in Ferroute, and in kube-proxy 1.36 and earlier, for both families.
pub fn kube_proxy_set_names() -> impl Iterator<Item = &'static str> {
    SetKind::ALL.into_iter().flat_map(|kind| IpFamily::BOTH.map(|family| kind.name(family))).chain(FORMER_SETS)
}

/// Returns the error for a set that rules refer to.
fn conflict(kind: SetKind, family: IpFamily, existing: Option<SetHeader>) -> SetError {
    let set_type = kind.set_type();
    let wanted =
        SetHeader { set_type: set_type.as_str().into(), family: type_family(set_type, family), capacity: None };
    let existing = existing.map_or_else(|| "another set".to_owned(), |existing| existing.to_string());
    SetError::Differs { name: kind.name(family), existing, wanted: wanted.to_string() }
}

fn has_errno(error: &Error, errno: i32) -> bool {
    error.refusal().is_some_and(|refusal| refusal.errno == errno)
}

fn destroy(name: &str) -> Request {
    // Without the flag newer kernels ignore a missing set.
    let mut request = Request::new(command(IPSET_CMD_DESTROY), flags::NLM_F_EXCL, &HEADER);
    let mut attributes = request.attributes();
    attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
    attributes.put_str(IPSET_ATTR_SETNAME, name);
    drop(attributes);
    request
}

/// Sets of earlier versions of kube-proxy.
const FORMER_SETS: [&str; 6] = [
    "KUBE-LOAD-BALANCER-MASQ",
    "KUBE-6-LOAD-BALANCER-MASQ",
    "KUBE-NODE-PORT-SCTP",
    "KUBE-6-NODE-PORT-SCTP",
    "KUBE-NODE-PORT-LOCAL-SCTP",
    "KUBE-6-NODE-PORT-LOCAL-SCTP",
];

/// Returns the maximum number of entries of a set that has to hold this many: the default if it suffices, otherwise at
/// least twice as many, because each change of the maximum copies the set.
pub(crate) fn capacity(entries: usize) -> u32 {
    match u32::try_from(entries) {
        Ok(entries) if entries <= DEFAULT_CAPACITY => DEFAULT_CAPACITY,
        Ok(entries) => entries.saturating_mul(2).checked_next_power_of_two().unwrap_or(u32::MAX),
        Err(_) => u32::MAX,
    }
}

/// Initial number of hash buckets and maximum number of entries of a set: ipset's defaults, which kube-proxy uses.
/// kube-proxy cannot use a set with another maximum, but a larger number of entries would not fit into its sets anyway.
pub(crate) const HASH_SIZE: u32 = 1024;
pub(crate) const DEFAULT_CAPACITY: u32 = 65536;
/// Name of the set that replaces another set, while it is filled.
const REPLACEMENT: &str = "FERROUTE-REPLACEMENT";
/// Size of a batch after which it is sent, in bytes.
const MAX_BATCH: usize = 256 * 1024;
