use std::time::Duration;

use ferroute_core::{ConnectionRate, Protocol};

use crate::model::{DataType, Key, Limit, Name, Set, SetKind, Value};

use super::{Context, ListNumber};

/// A set or map of the table. The variants are in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// Map from frontends to requests, which are a kind of forwarding and a list.
    Services,
    /// Like [`Self::Services`], for node ports.
    NodePorts,
    /// Map from requests to the current handling of the list's traffic.
    Lists,
    /// Map from the kind and number of endpoints to the chain.
    Dispatch,
    /// Like [`Self::Dispatch`], for requests of rules of these chains. It is a separate map because the kernel refuses
    /// a verdict map that can lead back to a chain that looks it up.
    LocalDispatch,
    /// Map from list and index, or slot and 0, to the endpoint's address and port. There is a map per protocol, because
    /// `nft` accepts no port without a protocol.
    Endpoints(Protocol),
    /// Map from list and index to the endpoint's slot.
    Slots,
    /// Map from list and client to the slot; written by rules.
    Affinity,
    /// Map from frontends with source ranges to the list of their service port.
    Restricted,
    /// Like [`Self::Restricted`], for node ports.
    RestrictedNodePorts,
    /// Connections of this node's endpoints to themselves.
    Hairpin,
    /// Frontends whose connections may be in the flowtable.
    FlowServices,
    /// Like [`Self::FlowServices`], for node ports.
    FlowNodePorts,
    /// Cluster IPs.
    ClusterIps,
    /// Addresses that serve node ports.
    NodePortAddresses,
    /// Allowed sources with this prefix length, each with the list of the service port that allows it.
    SourceRanges(u8),
    /// Lists with an affinity timeout of this many seconds.
    Sticky(u32),
    /// Like [`Self::Sticky`], for a part of a namespace's share of the affinity map, with the limit for clients that
    /// are not in the map.
    NewClients {
        /// The timeout.
        seconds: u32,
        /// Number of parts of the share, a power of two.
        parts: u32,
    },
    /// Map from requests of service ports with limits to the requests within the limits.
    Limited,
    /// Map from the kind of a limit, and the list of the service port, to the handling of connections beyond it, with a
    /// counter.
    Refusals,
    /// Lists of service ports whose clients have this rate of new connections.
    ClientRateLists(Bucket),
    /// Pairs of these lists and clients; written by rules.
    ClientRates(Bucket),
    /// Lists of service ports whose clients have this many connections at most.
    ClientConnectionLists(u32),
    /// Pairs of these lists and clients; written by rules.
    ClientConnections(u32),
    /// Lists of service ports with this rate of new connections.
    Rates(Bucket),
    /// Lists of service ports with this many connections at most.
    Connections(u32),
}

/// What the key of an element says about the service port that the element belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// A frontend, which is the service port's own.
    Frontend,
    /// A cluster IP, which the ports of a Service share.
    ClusterIp,
    /// An endpoint, which service ports can share.
    Endpoint,
    /// A list, see [`list_number`], which is the service port's own.
    List,
    /// Nothing: the elements do not depend on Services.
    None,
}

/// Returns the number of the service port in a key that has a list.
pub fn list_number(key: &Key) -> Option<ListNumber> {
    let id = key.iter().find_map(|value| match value {
        Value::ClassId(id) => Some(*id),
        _ => None,
    });
    ListNumber::from_class_id(id?).map(|(number, _)| number)
}

/// A token bucket of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket {
    /// New tokens per day.
    pub per_day: u64,
    /// Size.
    pub burst: u32,
}

impl Bucket {
    /// Returns the time in which the bucket fills up. The bucket of a client without new connections is full after this
    /// time, like that of a client without an element.
    pub(super) fn time_to_fill(self) -> Duration {
        Duration::from_secs((u64::from(self.burst) * SECONDS_PER_DAY).div_ceil(self.per_day.max(1)).max(1))
    }

    fn limit(self) -> Limit {
        Limit::Rate { per_day: self.per_day, burst: self.burst, over: true }
    }

    /// Returns the bucket of a set's name.
    fn parse(text: &str) -> Option<Self> {
        let (per_day, burst) = text.split_once('-')?;
        Some(Self { per_day: per_day.parse().ok()?, burst: burst.parse().ok()? })
    }
}

impl From<ConnectionRate> for Bucket {
    fn from(rate: ConnectionRate) -> Self {
        Self { per_day: rate.per_day(), burst: rate.burst().get() }
    }
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.per_day, self.burst)
    }
}

/// The names of maps that rules look up.
pub(super) struct MapName;

impl MapName {
    pub(super) const SERVICES: Name = Name::fixed("services");
    pub(super) const NODE_PORTS: Name = Name::fixed("node-ports");
    pub(super) const LISTS: Name = Name::fixed("lists");
    pub(super) const DISPATCH: Name = Name::fixed("dispatch");
    pub(super) const LOCAL_DISPATCH: Name = Name::fixed("local-dispatch");
    pub(super) const SLOTS: Name = Name::fixed("slots");
    pub(super) const AFFINITY: Name = Name::fixed("affinity");
    pub(super) const RESTRICTED: Name = Name::fixed("restricted");
    pub(super) const RESTRICTED_NODE_PORTS: Name = Name::fixed("restricted-node-ports");
    pub(super) const LIMITED: Name = Name::fixed("limited");
    pub(super) const REFUSALS: Name = Name::fixed("refusals");

    pub(super) fn endpoints(protocol: Protocol) -> Name {
        Name::fixed(match protocol {
            Protocol::Tcp => "tcp-endpoints",
            Protocol::Udp => "udp-endpoints",
            Protocol::Sctp => "sctp-endpoints",
        })
    }
}

impl SetId {
    /// The sets that exist with a flowtable.
    pub(super) const OF_FLOWTABLE: [Self; 2] = [Self::FlowServices, Self::FlowNodePorts];
    /// Maps that exist while a service port has limits; the second one also exists with source ranges.
    pub(super) const OF_LIMITS: [Self; 2] = [Self::Limited, Self::Refusals];
    /// The sets and maps that exist without any Service.
    pub const FIXED: [Self; 14] = [
        Self::Services,
        Self::NodePorts,
        Self::Lists,
        Self::Dispatch,
        Self::LocalDispatch,
        Self::Endpoints(Protocol::Tcp),
        Self::Endpoints(Protocol::Udp),
        Self::Endpoints(Protocol::Sctp),
        Self::Slots,
        Self::Affinity,
        Self::Restricted,
        Self::Hairpin,
        Self::ClusterIps,
        Self::NodePortAddresses,
    ];

    /// Returns the name.
    pub fn name(self) -> Name {
        match self {
            Self::Services => MapName::SERVICES,
            Self::NodePorts => MapName::NODE_PORTS,
            Self::Lists => MapName::LISTS,
            Self::Dispatch => MapName::DISPATCH,
            Self::LocalDispatch => MapName::LOCAL_DISPATCH,
            Self::Endpoints(protocol) => MapName::endpoints(protocol),
            Self::Slots => MapName::SLOTS,
            Self::Affinity => MapName::AFFINITY,
            Self::Restricted => MapName::RESTRICTED,
            Self::RestrictedNodePorts => MapName::RESTRICTED_NODE_PORTS,
            Self::Hairpin => Name::fixed("hairpin"),
            Self::FlowServices => Name::fixed("flow-services"),
            Self::FlowNodePorts => Name::fixed("flow-node-ports"),
            Self::ClusterIps => Name::fixed("cluster-ips"),
            Self::NodePortAddresses => Name::fixed("node-port-addresses"),
            Self::SourceRanges(length) => format!("{SOURCE_RANGES}{length}").into(),
            Self::Sticky(seconds) => format!("{STICKY}{seconds}").into(),
            Self::NewClients { seconds, parts } => format!("{NEW_CLIENTS}{seconds}-{parts}").into(),
            Self::Limited => MapName::LIMITED,
            Self::Refusals => MapName::REFUSALS,
            Self::ClientRateLists(bucket) => format!("{CLIENT_RATE_LISTS}{bucket}").into(),
            Self::ClientRates(bucket) => format!("{CLIENT_RATES}{bucket}").into(),
            Self::ClientConnectionLists(max) => format!("{CLIENT_CONNECTION_LISTS}{max}").into(),
            Self::ClientConnections(max) => format!("{CLIENT_CONNECTIONS}{max}").into(),
            Self::Rates(bucket) => format!("{RATES}{bucket}").into(),
            Self::Connections(max) => format!("{CONNECTIONS}{max}").into(),
        }
    }

    /// Reports whether these are allowed sources.
    pub(super) fn is_source_ranges(self) -> bool {
        matches!(self, Self::SourceRanges(_))
    }

    /// Reports whether elements of other sets lead packets to the elements of this one.
    pub(crate) fn is_led_to(self) -> bool {
        use SetId::{Dispatch, Endpoints, Limited, Lists, LocalDispatch, Slots};
        matches!(self, Limited | Lists | Dispatch | LocalDispatch | Slots | Endpoints(_))
    }

    /// Returns what the keys say about the service port of an element.
    pub fn key_owner(self) -> KeyOwner {
        match self {
            Self::Services
            | Self::NodePorts
            | Self::Restricted
            | Self::RestrictedNodePorts
            | Self::FlowServices
            | Self::FlowNodePorts => KeyOwner::Frontend,
            Self::ClusterIps => KeyOwner::ClusterIp,
            Self::Hairpin => KeyOwner::Endpoint,
            Self::Lists
            | Self::Endpoints(_)
            | Self::Slots
            | Self::Affinity
            | Self::SourceRanges(_)
            | Self::Sticky(_)
            | Self::NewClients { .. }
            | Self::Limited
            | Self::Refusals
            | Self::ClientRateLists(_)
            | Self::ClientRates(_)
            | Self::ClientConnectionLists(_)
            | Self::ClientConnections(_)
            | Self::Rates(_)
            | Self::Connections(_) => KeyOwner::List,
            Self::Dispatch | Self::LocalDispatch | Self::NodePortAddresses => KeyOwner::None,
        }
    }

    /// Reports whether rules add the elements instead of the planner.
    pub fn is_dynamic(self) -> bool {
        matches!(self, Self::Affinity | Self::ClientRates(_) | Self::ClientConnections(_))
    }

    /// Returns the set of this table with this name; `None` for other names.
    pub fn from_name(name: &Name) -> Option<Self> {
        let text = name.as_str();
        let fixed =
            Self::FIXED.into_iter().chain(Self::OF_FLOWTABLE).chain(Self::OF_LIMITS).chain([Self::RestrictedNodePorts]);
        let number = |prefix: &str| text.strip_prefix(prefix).and_then(|number| number.parse().ok());
        let bucket = |prefix: &str| text.strip_prefix(prefix).and_then(Bucket::parse);
        let ranges = text.strip_prefix(SOURCE_RANGES).and_then(|length| length.parse().ok()).map(Self::SourceRanges);
        let new_clients = text.strip_prefix(NEW_CLIENTS).and_then(|text| text.split_once('-'));
        let new_clients = new_clients.and_then(|(seconds, parts)| {
            Some(Self::NewClients { seconds: seconds.parse().ok()?, parts: parts.parse().ok()? })
        });
        let others = [
            ranges,
            number(STICKY).map(Self::Sticky),
            new_clients,
            bucket(CLIENT_RATE_LISTS).map(Self::ClientRateLists),
            bucket(CLIENT_RATES).map(Self::ClientRates),
            number(CLIENT_CONNECTION_LISTS).map(Self::ClientConnectionLists),
            number(CLIENT_CONNECTIONS).map(Self::ClientConnections),
            bucket(RATES).map(Self::Rates),
            number(CONNECTIONS).map(Self::Connections),
        ];
        fixed.chain(others.into_iter().flatten()).find(|id| id.name() == *name)
    }

    /// Returns the declaration.
    pub(crate) fn declaration(self, context: &Context) -> Set {
        let address = DataType::address(context.settings.family);
        let frontend = [address, DataType::InetProto, DataType::InetService];
        let set = |key: &[DataType]| Set::new(self.name(), key);
        match self {
            Self::Services => set(&frontend)
                .map_to([DataType::ClassId])
                .counter(context.counters)
                .comment("address and port to kind:list, hexadecimal"),
            Self::NodePorts => set(&[DataType::InetProto, DataType::InetService])
                .map_to([DataType::ClassId])
                .counter(context.counters)
                .comment("the same for node ports"),
            Self::Lists => set(&[DataType::ClassId])
                .map_to([DataType::ClassId])
                .comment("kind:list to class:list; the class says how many endpoints there are"),
            Self::Dispatch => set(&[DataType::ClassId]).verdict_map().comment("what to do for a class"),
            Self::LocalDispatch => set(&[DataType::ClassId])
                .verdict_map()
                .comment("the same for outside traffic that must stay on this node"),
            Self::Endpoints(protocol) => set(&[DataType::ClassId, DataType::Integer])
                .protocol(protocol)
                .map_to([address, DataType::InetService])
                .counter(context.counters)
                .comment("list and index from 1, or slot and 0, to an endpoint"),
            Self::Slots => set(&[DataType::ClassId, DataType::Integer])
                .map_to([DataType::ClassId])
                .comment("list and index to the endpoint's slot, for services with affinity"),
            Self::Affinity => set(&[DataType::ClassId, address])
                .map_to([DataType::ClassId])
                .kind(SetKind::Dynamic { size: AFFINITY_CAPACITY, expires: true })
                .comment("list and client to the slot of the endpoint that the client had last"),
            Self::Restricted => {
                set(&frontend).map_to([DataType::ClassId]).comment("load balancers with source ranges, to their list")
            }
            Self::RestrictedNodePorts => set(&[DataType::InetProto, DataType::InetService])
                .map_to([DataType::ClassId])
                .comment("node ports with source ranges, to their list"),
            Self::Hairpin => set(&[&[address], &frontend[..]].concat())
                .comment("endpoints of this node that reach themselves through a service"),
            Self::FlowServices => set(&frontend).comment("services whose connections may skip the hooks"),
            Self::FlowNodePorts => {
                set(&[DataType::InetProto, DataType::InetService]).comment("the same for node ports")
            }
            Self::ClusterIps => set(&[address]).comment("addresses of services within the cluster"),
            Self::NodePortAddresses => {
                set(&[address]).comment("addresses that answer on node ports, unless all local ones do")
            }
            Self::SourceRanges(_) => set(&[address, DataType::ClassId]),
            Self::Sticky(_) => set(&[DataType::ClassId]),
            Self::NewClients { seconds, parts } => set(&[DataType::ClassId]).limit(new_clients(seconds, parts)),
            Self::Limited => set(&[DataType::ClassId])
                .map_to([DataType::ClassId])
                .comment("requests of services with limits to requests within them"),
            Self::Refusals => set(&[DataType::ClassId])
                .verdict_map()
                .counter(true)
                .comment("limit:list to what happens to refused connections"),
            Self::ClientRateLists(_) | Self::ClientConnectionLists(_) => set(&[DataType::ClassId]),
            Self::ClientRates(bucket) => set(&[DataType::ClassId, address])
                .kind(SetKind::Dynamic { size: CLIENTS_CAPACITY, expires: true })
                .limit(bucket.limit()),
            Self::ClientConnections(max) => set(&[DataType::ClassId, address])
                .kind(SetKind::Dynamic { size: CLIENTS_CAPACITY, expires: false })
                .limit(Limit::ConnectionsOver(max)),
            Self::Rates(bucket) => set(&[DataType::ClassId]).limit(bucket.limit()),
            // The flag `dynamic` would delete elements without connections.
            Self::Connections(max) => set(&[DataType::ClassId]).limit(Limit::ConnectionsOver(max)),
        }
    }
}

const SOURCE_RANGES: &str = "source-ranges-";
/// Returns how many clients a list may add to the affinity map that has one of `parts` equal parts of its namespace's share.
///
/// A full bucket, and what flows in during the timeout, are the list's part: that many of its clients can be in the map
/// at a time.
pub(super) fn new_clients(timeout_seconds: u32, parts: u32) -> Limit {
    let half = (NAMESPACE_SHARE / parts.max(1) / 2).max(1);
    // Rounded down, to at least one: a timeout is at most one day.
    let per_day = (u64::from(half) * SECONDS_PER_DAY / u64::from(timeout_seconds.max(1))).max(1);
    Limit::Rate { per_day, burst: half, over: false }
}

const SECONDS_PER_DAY: u64 = 86_400;
const STICKY: &str = "sticky-";
const NEW_CLIENTS: &str = "new-clients-";
const CLIENT_RATE_LISTS: &str = "client-rate-";
const CLIENT_RATES: &str = "clients-by-rate-";
const CLIENT_CONNECTION_LISTS: &str = "client-connections-";
const CLIENT_CONNECTIONS: &str = "clients-by-connections-";
const RATES: &str = "rate-";
const CONNECTIONS: &str = "connections-";
/// Maximum number of clients in a set for limits per client. Further clients have no limit.
const CLIENTS_CAPACITY: u32 = 1 << 16;
/// The maximum number of clients in the affinity map, at about 100 bytes each.
const AFFINITY_CAPACITY: u32 = 1 << 20;
/// The maximum number of clients in the affinity map of one namespace's Services, so that they cannot fill it.
pub(super) const NAMESPACE_SHARE: u32 = AFFINITY_CAPACITY / 8;
