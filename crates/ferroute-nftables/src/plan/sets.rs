use crate::model::{DataType, Name, Set, SetKind};

use super::Context;

/// A set or map of the table. The variants are in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// Frontend to kind and number of endpoints.
    Services,
    /// Frontend to kind and number of endpoints on this node, for external traffic with policy Local.
    LocalServices,
    /// Kind and number of endpoints to the chain.
    Dispatch,
    /// The same for `local-services`. A separate map, because the kernel refuses a verdict map that can go back to a
    /// chain that looks it up.
    LocalDispatch,
    /// Frontend and index or slot to the endpoint's address and port.
    Endpoints,
    /// Frontend and index to the endpoint's slot.
    Slots,
    /// Slot owner and client to the slot; written by rules.
    Affinity,
    /// Frontends without endpoints anywhere: rejected.
    Refused,
    /// Frontends with traffic policy Local and without endpoints on this node: dropped.
    Dropped,
    /// Frontends with source ranges.
    Restricted,
    /// Sources that these ranges allow.
    SourceRanges,
    /// Connections of this node's endpoints to themselves.
    Hairpin,
    /// Cluster IPs.
    ClusterIps,
    /// Addresses that serve node ports.
    NodePortAddresses,
    /// Frontends with an affinity timeout of this many seconds.
    Sticky(u32),
}

/// The names of maps that rules look up.
pub(super) struct MapName;

impl MapName {
    pub(super) const SERVICES: Name = Name::fixed("services");
    pub(super) const LOCAL_SERVICES: Name = Name::fixed("local-services");
    pub(super) const DISPATCH: Name = Name::fixed("dispatch");
    pub(super) const LOCAL_DISPATCH: Name = Name::fixed("local-dispatch");
    pub(super) const ENDPOINTS: Name = Name::fixed("endpoints");
    pub(super) const SLOTS: Name = Name::fixed("slots");
    pub(super) const AFFINITY: Name = Name::fixed("affinity");
}

impl SetId {
    /// The sets and maps that exist without any Service.
    pub const FIXED: [Self; 14] = [
        Self::Services,
        Self::LocalServices,
        Self::Dispatch,
        Self::LocalDispatch,
        Self::Endpoints,
        Self::Slots,
        Self::Affinity,
        Self::Refused,
        Self::Dropped,
        Self::Restricted,
        Self::SourceRanges,
        Self::Hairpin,
        Self::ClusterIps,
        Self::NodePortAddresses,
    ];

    /// Returns the name.
    pub fn name(self) -> Name {
        match self {
            Self::Services => MapName::SERVICES,
            Self::LocalServices => MapName::LOCAL_SERVICES,
            Self::Dispatch => MapName::DISPATCH,
            Self::LocalDispatch => MapName::LOCAL_DISPATCH,
            Self::Endpoints => MapName::ENDPOINTS,
            Self::Slots => MapName::SLOTS,
            Self::Affinity => MapName::AFFINITY,
            Self::Refused => Name::fixed("refused"),
            Self::Dropped => Name::fixed("dropped"),
            Self::Restricted => Name::fixed("restricted"),
            Self::SourceRanges => Name::fixed("source-ranges"),
            Self::Hairpin => Name::fixed("hairpin"),
            Self::ClusterIps => Name::fixed("cluster-ips"),
            Self::NodePortAddresses => Name::fixed("node-port-addresses"),
            Self::Sticky(seconds) => format!("{STICKY}{seconds}").into(),
        }
    }

    /// Reports whether rules add the elements instead of the planner.
    pub fn is_dynamic(self) -> bool {
        self == Self::Affinity
    }

    /// Returns the set with this name; `None` if it is not one of this table's.
    pub fn from_name(name: &Name) -> Option<Self> {
        let sticky = || {
            let id = Self::Sticky(name.as_str().strip_prefix(STICKY)?.parse().ok()?);
            (id.name() == *name).then_some(id)
        };
        Self::FIXED.into_iter().find(|id| id.name() == *name).or_else(sticky)
    }

    /// Returns the declaration.
    pub(crate) fn declaration(self, context: &Context) -> Set {
        let address = DataType::address(context.family);
        let frontend = [address, DataType::InetProto, DataType::InetService];
        let set = |key: &[DataType]| Set::new(self.name(), key);
        let with = |last: DataType| [&frontend[..], &[last]].concat();
        match self {
            Self::Services => set(&frontend).map_to([DataType::ClassId]).counter(context.counters).comment(
                "what to do for an address and port, kind:endpoints in hexadecimal; 0.0.0.0 or :: for node ports",
            ),
            Self::LocalServices => set(&frontend)
                .map_to([DataType::ClassId])
                .comment("the same for outside traffic that must stay on this node, kind:endpoints of this node"),
            Self::Dispatch => set(&[DataType::ClassId])
                .verdict_map()
                .comment("1 pick, 2 pick-local, 3 external, 4 external-local; +4 with affinity, +10 for node ports"),
            Self::LocalDispatch => {
                set(&[DataType::ClassId]).verdict_map().comment("the same for classes of local-services")
            }
            Self::Endpoints => set(&with(DataType::ClassId))
                .map_to([address, DataType::InetService])
                .counter(context.counters)
                .comment("list:index, list 1 the cluster's, 2 this node's; from 100:1 slots for affinity"),
            Self::Slots => set(&with(DataType::ClassId))
                .map_to([DataType::ClassId])
                .comment("list:index of an endpoint to its slot, for services with affinity"),
            Self::Affinity => set(&[DataType::ClassId, address])
                .map_to([DataType::ClassId])
                .kind(SetKind::Dynamic { size: AFFINITY_CAPACITY })
                .comment("slots of a service's list and client to the slot of the endpoint that the client had last"),
            Self::Refused => set(&frontend).comment("services without any endpoint"),
            Self::Dropped => {
                set(&frontend).comment("services without an endpoint on this node, where policy asks for one")
            }
            Self::Restricted => set(&frontend).comment("load balancers with source ranges"),
            Self::SourceRanges => set(&with(address)).kind(SetKind::Interval).comment("sources that may use them"),
            Self::Hairpin => set(&[&[address], &frontend[..]].concat())
                .comment("endpoints of this node that reach themselves through a service"),
            Self::ClusterIps => set(&[address]).comment("addresses of services within the cluster"),
            Self::NodePortAddresses => {
                set(&[address]).comment("addresses that answer on node ports, unless all local ones do")
            }
            Self::Sticky(_) => set(&frontend),
        }
    }
}

const STICKY: &str = "sticky-";
/// The maximum number of clients in the affinity map, at about 100 bytes each.
const AFFINITY_CAPACITY: u32 = 1 << 20;
