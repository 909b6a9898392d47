//! The nftables mode: Services as elements of maps, under a fixed set of chains.
//!
//! ```text
//!   ServiceTable ──► plan ──► Transaction ──► kernel (netlink; in memory for tests)
//!                    (which     (only the       │
//!                    elements)  difference)     └──► existing table, to compare with
//! ```
//!
//! # Why no chain per Service
//!
//! When a rule, or an element with a jump or goto, is added, the kernel walks everything that is reachable from the
//! hooks, including all elements of every verdict map on the way. A chain per Service therefore costs quadratic time,
//! and so does a map from frontends to verdicts: with 100,000 Services each change takes 30 ms. In Ferroute's table,
//! the maps that grow with the cluster hold plain data, and the only verdict maps have one element per *kind of
//! forwarding and number of endpoints*. The cost of a change is proportional to the elements that it touches,
//! independent of the size of the cluster.
//!
//! A rule cannot pass a register to the next rule, but it can store a number in the packet's metadata. The priority
//! (`skb->priority`) is available for this: nat chains see only the first packet of a connection, and a later chain
//! clears it, before queueing disciplines or rules of other programs in postrouting read it. `nft` calls its type
//! `classid` and prints it as two hexadecimal numbers, see [`ClassId`]. Here the upper 12 bits are the kind of
//! forwarding, with or without the number of endpoints (the *class*), and the lower 20 bits are a list of endpoints.
//!
//! All frontends of a service port lead to the same lists, so a Service costs frontends plus endpoints, not their product,
//! and a changed endpoint costs the same for one frontend as for thousands.
//!
//! # The table `ip ferroute` (and `ip6 ferroute`)
//!
//! ```text
//!   hook         priority  chain                       effect on the first packet of a connection
//!   prerouting   -110      filter-prerouting-pre-dnat  source ranges of load balancers: drop        ─► firewall
//!   output       -110      filter-output-pre-dnat      the same for the node's own packets          ─► firewall
//!   prerouting   -101      nat-prerouting              chooses an endpoint, or rejects without any  ─► services
//!   output       -101      nat-output                  the same for the node's own packets          ─► services
//!   input        0         filter-input                localhost for others: drop; only with node ports on localhost
//!   forward      0         filter-forward              other ports of cluster IPs: reject           ─► cluster-ips
//!   output       0         filter-output               the same                                     ─► cluster-ips
//!   input        99        nat-input                   clears the priority; so do filter-output, and filter-forward for IPv6
//!   postrouting  99        nat-postrouting             masquerades marked packets and hairpins
//! ```
//!
//! Hooks and priorities are those of kube-proxy's nftables mode, so other tables see its decisions at the same points:
//! before -101 a packet has the Service's address, after it the endpoint's; before 99 it has its original source. The
//! nat chains precede those of `iptables` and of other programs at -100 and 100. kube-proxy's chains have the same
//! priorities as these, so that their order depends on which program started last; in Ferroute, Services come first, as
//! in iptables mode. Only the rejection of packets without an endpoint is earlier than in kube-proxy, which decides at
//! priority 0: the number of endpoints is already known in the nat chains, so established and served connections need
//! not be checked for it again.
//!
//! The kernel calls nat chains for the first packet of a connection only, but filter chains for every packet. Later packets
//! that the node forwards pass one filter chain, in which they match no rule, and a second one at -110 only while a load
//! balancer has source ranges.
//!
//! A *frontend* is `address . protocol . port`, or `protocol . port` for a node port. A *list* has the endpoints of a
//! service port for one traffic policy. A *request* is a kind of forwarding and a list.
//!
//! | map or set | key | contents |
//! | --- | --- | --- |
//! | `services`, `node-ports` | frontend | request |
//! | `lists` | request | class and list: how many endpoints there are |
//! | `dispatch`, `local-dispatch` | class | goto the chain for it |
//! | `tcp-endpoints`, `udp-endpoints`, `sctp-endpoints` | list . index | address and port; indexes from 1 |
//! | `restricted` | frontend | frontends with source ranges, to a list |
//! | `restricted-node-ports` | node port | the same for node ports; only while there are some |
//! | `source-ranges-N` | source network . list | the ranges with prefix length N |
//! | `hairpin` | address . address . protocol . port | connections of endpoints to themselves that are masqueraded |
//! | `cluster-ips` | address | cluster IPs, to masquerade external clients and to reject unknown ports |
//! | `node-port-addresses` | address | addresses that serve node ports, unless all local ones do |
//! | `flow-services`, `flow-node-ports` | frontend | frontends over TCP; only with a flowtable |
//! | `slots` | list . index | slot of an endpoint, number:list, for Services with session affinity |
//! | `sticky-N` | list | lists with an affinity timeout of N seconds |
//! | `new-clients-N-M` | list | the same, each with a Mth part of its namespace's clients that are not in `affinity` yet |
//! | `affinity` | list . client | slot of the client's last endpoint; added by rules |
//! | `limited` | request | the request of a service port with limits, to the same one within them |
//! | `connections-N`, `rate-H-B` | list | lists with N open connections, or with H new ones per hour and a burst of B |
//! | `client-connections-N`, `client-rate-H-B` | list | the same for each client |
//! | `clients-by-connections-N`, `clients-by-rate-H-B` | list . client | their clients; added by rules |
//! | `refusals` | limit and list | rejects or drops, with a counter; also for clients outside of source ranges |
//!
//! # A packet's path
//!
//! ```text
//!   10.244.0.9 ─► 10.96.0.10:80/tcp, a Service with 3 endpoints and list 1:5
//!
//!   nat-prerouting ─► services
//!       ip daddr . meta l4proto . th dport map @services        10.96.0.10 . tcp . 80 : 11:5
//!       meta priority map @lists                                11:5 : 191:5
//!       meta priority & fff0:1 vmap @dispatch                   190:1 : goto pick-3
//!     ─► pick-3
//!       dnat to meta priority & f:ffff . numgen random mod 3 map @tcp-endpoints
//!                                                               1:5 . 2 : 10.244.1.7 . 8080
//!   filter-forward ─► cluster-ips                               no match: the destination is an endpoint now
//!   nat-postrouting                                             no mark, no hairpin: the source is kept
//! ```
//!
//! There is one chain per kind and number of endpoints in use, shared by all lists with this number; above 64
//! endpoints, the number is rounded up by a 32nd at most, and a choice without an endpoint is repeated. The suffix
//! `-sticky` is for Services with session affinity:
//!
//! * `pick-N` chooses one of the list's endpoints.
//! * `external-N` marks packets for masquerading, and goes to `pick-N`.
//! * `external-local-N` is for external traffic policy Local: pods and the node itself are served as if through a load
//!   balancer (`pick-N`); other clients go to the service port's other list, this node's endpoints.
//! * `refuse` rejects packets if there are no endpoints. If only other nodes have endpoints, `dispatch` drops them.
//!
//! # Session affinity
//!
//! An endpoint of a Service with session affinity has a *slot*: a number that does not change during the endpoint's
//! lifetime, with its list in the lower 20 bits. It takes the place of list and index in the maps of endpoints. The
//! `-sticky` chains look up list and client in `affinity`, which holds the slot of the client's last endpoint. So a client
//! reaches the same endpoint through all frontends of a service port, as in kube-proxy. A removed endpoint has no element
//! for its slot, so its clients are removed from `affinity` and get another endpoint; changes of other endpoints have no
//! effect. Chain `remember` updates the client's element before the packet's destination is translated, and chain `admit`
//! adds that of a new client.
//!
//! A flood of clients of one Service, possibly with spoofed addresses, must not fill `affinity` for all others. A
//! namespace therefore has a share of an eighth of the map, which its lists divide into M equal parts; M is their
//! number, rounded up to a power of two. An element of `new-clients-N-M` has a token bucket: the kernel finds it only
//! while it has a token. The bucket holds half of the part, and is refilled with the other half during N seconds, so
//! that the number of clients of the list in the map never exceeds the part. Further clients are served without
//! affinity. If M changes, the buckets are full again.
//!
//! # Limits of connections
//!
//! The frontends of a Service with limits lead to requests that are not in `lists` but in `limited`, so the rules for them cost others
//! nothing. Chain `limits` has a rule for each distinct value: if the list is in the set of the value, and the element's `ct count`
//! or `limit` is exceeded, chain `over-limit` looks up in `refusals` what happens. Otherwise the request is dispatched as usual. The
//! kernel counts connections that passed the rule, so a new limit begins at zero.
//!
//! # Flowtable
//!
//! With [`NftablesSettings::flowtable`](plan::NftablesSettings::flowtable), chain `filter-forward` adds connections through a
//! Service to flowtable `established` once they have had enough packets. Their further packets that arrive on a device of the
//! flowtable are translated and forwarded at its ingress hook, past all other hooks, until one of them ends the connection
//! or none has come for 30 s. Only TCP: an entry of connection tracking cannot be deleted while its connection is in a
//! flowtable, and those of UDP flows to removed endpoints must be.
//!
//! The devices are added in separate transactions, because the kernel refuses a transaction with a device that has just
//! been deleted.
//!
//! # Changes
//!
//! All changes are written through netlink. Most syncs are one transaction; what elements lead to is added in another one before
//! it, and deleted in one after it. The first sync writes the API server and DNS first, and the rest in transactions of about
//! 30 ms. On start, and when the kernel's generation shows that another program has committed a transaction that modified the
//! table, the table is read and only the difference is written.
//!
//! A removed endpoint is replaced by the last one of its list, so indexes stay dense and a change touches a few elements.
//! The order of endpoints in a list has no meaning; a restarted proxy keeps the kernel's, and the numbers of lists. A table
//! with another layout, of an earlier version, is replaced in one transaction.
//!
//! A packet can be between two rules when a transaction takes effect. It keeps the rules of the time when it came to the hook, but
//! finds the elements of the time when it looks them up. In one transaction, an element could lead it to a chain that has no rules
//! for it yet, or from an earlier element to a list that is gone, and it would be rejected. So chains, sets and the rules that
//! refer to them are written first, and lists that no frontend leads to are deleted last. A service port keeps its number, and a
//! removed one's is not used again for long. A list that became shorter still has its first endpoint. Chains and elements of
//! classes that are not used any more are kept for a while, for such packets and for reuse; they are deleted in further
//! transactions, because kernels before 6.2 still count the references of elements that the same transaction deletes.
//!
//! # Required kernel
//!
//! Linux 5.10, with the modules `nf_tables`, `nft_chain_nat`, `nft_ct`, `nft_fib` of both families, `nft_masq`, `nft_nat`,
//! `nft_numgen` and `nft_reject`; [`probe`] tries them.
//!
//! | needed | since Linux |
//! | --- | --- |
//! | ranges in concatenations: `source-ranges` | 5.6 |
//! | statements of the elements of a set or map: limits, connection counters | 5.7 |
//! | flowtables without devices, and changes of their devices: only with a flowtable | 5.8 |
//! | comments of chains, by which a restarted proxy recognises its own chains | 5.10 |
//!
//! Neither newer messages, such as those that delete an object if it exists (6.3), nor newer attributes are used.
//!
//! This crate does not handle Kubernetes objects, the times of syncs, stale conntrack entries and sysctls
//! (`route_localnet` for node ports on localhost).
//!
//! # Example
//!
//! The model also describes tables that are not Ferroute's, and [`kernel::MemoryKernel`] checks transactions without
//! privileges:
//!
//! ```
//! use ferroute_core::IpFamily;
//! use ferroute_nftables::{
//!     DataType, Value,
//!     kernel::{Kernel, MemoryKernel},
//!     model::{Chain, Change, Element, Field, Name, Rule, Set, Statement, TableId, Transaction, Verdict},
//! };
//!
//! let table = TableId { family: IpFamily::V4, name: Name::fixed("example") };
//! let ports = Set::new(Name::fixed("ports"), [DataType::InetService]).verdict_map();
//! let mut transaction = Transaction::new(table);
//! transaction.push(Change::AddTable(None));
//! transaction.push(Change::AddSet(ports.clone()));
//! transaction.push(Change::AddElement(ports.name.clone(), Element::new([Value::Port(80)]).verdict(Verdict::Accept)));
//! transaction.add_chain(
//!     Chain::new("input").rules([Rule::new([Statement::Vmap { key: vec![Field::Dport], map: ports.name }])]),
//! );
//! assert_eq!(
//!     transaction.to_string(),
//!     "add table ip example\n\
//!      add map ip example ports { type inet_service : verdict ; }\n\
//!      add element ip example ports { 80 : accept }\n\
//!      add chain ip example input\n\
//!      add rule ip example input th dport vmap @ports\n"
//! );
//!
//! let mut kernel = MemoryKernel::new();
//! kernel.commit(&transaction)?;
//! assert_eq!(kernel.generation()?, 1);
//! # Ok::<(), ferroute_nftables::kernel::MemoryError>(())
//! ```

mod connections;
mod dataplane;
pub mod kernel;
pub mod model;
pub mod plan;
mod probe;
mod remove;
pub mod script;
mod service_elements;
#[cfg(feature = "testing")]
pub mod testing;
mod wire;

pub use connections::{ConnectionReader, ConnectionTotals, RefusalReader};
pub use dataplane::{NftablesDataplane, OpenError};
pub use model::{ClassId, DataType, Value};
pub use probe::{MINIMUM_KERNEL, ProbeError, probe};
pub use remove::{TableOwner, delete_table, udp_frontends};
pub use service_elements::{CountedElement, service_port_elements};
