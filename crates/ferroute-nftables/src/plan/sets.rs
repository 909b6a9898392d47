use crate::model::{DataType, Name, Set, SetKind};

use super::Context;

/// The sets and maps of the table, in the order in which they are declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// Kinds and numbers of endpoints, by frontend.
    Services,
    /// The same for what must stay on this node.
    LocalServices,
    /// Chains, by kind and number of endpoints.
    Dispatch,
    /// The same for what must stay on this node. The kernel refuses a map that leads back to where it is looked into.
    LocalDispatch,
    /// Addresses and ports, by frontend and index or slot.
    Endpoints,
    /// Slots, by frontend and index.
    Slots,
    /// Slots, by their owner and client; written by the kernel.
    Affinity,
    /// Frontends whose Service has no endpoints anywhere.
    Refused,
    /// Frontends whose Service has no endpoints here, although its policy asks for them.
    Dropped,
    /// Frontends with source ranges.
    Restricted,
    /// Sources that may use them.
    SourceRanges,
    /// Endpoints of this node, with themselves as clients.
    Hairpin,
    /// Cluster IPs.
    ClusterIps,
    /// Addresses that answer on node ports.
    NodePortAddresses,
    /// Frontends with an affinity of so many seconds.
    Sticky(u32),
}

/// Names of maps that rules look into.
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
    /// Those that are always there.
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

    /// Its name.
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

    /// Rules of the kernel write it, not we.
    pub fn is_learned(self) -> bool {
        self == Self::Affinity
    }

    /// The opposite of [`SetId::name`]; `None` for a name that none of ours has.
    pub fn of_name(name: &Name) -> Option<Self> {
        let sticky = || {
            let id = Self::Sticky(name.as_str().strip_prefix(STICKY)?.parse().ok()?);
            (id.name() == *name).then_some(id)
        };
        Self::FIXED.into_iter().find(|id| id.name() == *name).or_else(sticky)
    }

    /// How it is declared.
    pub(crate) fn declare(self, context: &Context) -> Set {
        let address = DataType::address(context.family);
        let frontend = [address, DataType::Protocol, DataType::Port];
        let set = |key: &[DataType]| Set::new(self.name(), key);
        let with = |last: DataType| [&frontend[..], &[last]].concat();
        match self {
            Self::Services => set(&frontend).to_values([DataType::Class]).counter(context.counters).comment(
                "what to do for an address and port, kind:endpoints in hexadecimal; 0.0.0.0 or :: for node ports",
            ),
            Self::LocalServices => set(&frontend)
                .to_values([DataType::Class])
                .comment("the same for outside traffic that must stay on this node, kind:endpoints of this node"),
            Self::Dispatch => set(&[DataType::Class])
                .to_verdicts()
                .comment("1 pick, 2 pick-local, 3 external, 4 external-local; +4 with affinity, +10 for node ports"),
            Self::LocalDispatch => {
                set(&[DataType::Class]).to_verdicts().comment("the same for classes of local-services")
            }
            Self::Endpoints => set(&with(DataType::Class))
                .to_values([address, DataType::Port])
                .counter(context.counters)
                .comment("list:index, list 1 the cluster's, 2 this node's; from 100:1 slots for affinity"),
            Self::Slots => set(&with(DataType::Class))
                .to_values([DataType::Class])
                .comment("list:index of an endpoint to its slot, for services with affinity"),
            Self::Affinity => set(&[DataType::Class, address])
                .to_values([DataType::Class])
                .kind(SetKind::Learned { capacity: AFFINITY_CAPACITY })
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
/// Clients that the kernel remembers, over all Services, at about 100 bytes each while they are remembered.
const AFFINITY_CAPACITY: u32 = 1 << 20;
