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
//! When a rule, or an element with a jump or goto, is added, the kernel walks everything that is reachable from the hooks,
//! including all elements of every verdict map on the way. A chain per Service therefore costs quadratic time, and so does
//! a map from frontends to verdicts: with 100,000 Services each change takes 30 ms. Here the maps that grow with the
//! cluster hold plain data, and the only verdict maps have one element per *kind of forwarding and number of endpoints*.
//! The cost of a change is proportional to the elements that it touches, independent of the size of the cluster.
//!
//! A rule cannot pass a register to the next rule, but it can store a number in the packet's metadata. The priority
//! (`skb->priority`) is available for this: nat chains see only the first packet of a connection, and the next chain clears
//! it, before routing, queueing or other programs' rules read it. `nft` calls its type `classid` and prints it as two
//! hexadecimal numbers, here `kind:count`, see [`ClassId`].
//!
//! # The table `ip ferroute` (and `ip6 ferroute`)
//!
//! ```text
//!   hook         priority  chain                       effect on the first packet of a connection
//!   prerouting   -110      filter-prerouting-pre-dnat  source ranges of load balancers: drop        ─► firewall
//!   output       -110      filter-output-pre-dnat      the same for the node's own packets          ─► firewall
//!   prerouting   -100      nat-prerouting              chooses an endpoint                          ─► services
//!   output       -100      nat-output                  the same for the node's own packets          ─► services
//!   prerouting   -99       filter-prerouting-post-dnat clears the priority
//!   output       -99       filter-output-post-dnat     the same for the node's own packets
//!   input        0         filter-input                no endpoints: reject or drop     ─► node-ports, frontends
//!   forward      0         filter-forward              the same; other ports of cluster IPs: reject ─► frontends
//!   output       0         filter-output               the same                                     ─► frontends
//!   postrouting  100       nat-postrouting             masquerades marked packets and hairpins
//! ```
//!
//! Hooks and priorities are those of kube-proxy's nftables mode, so other tables see its decisions at the same points:
//! before -100 a packet has the Service's address, after it the endpoint's; before 100 it has its original source.
//!
//! A *frontend* is `address . protocol . port`. Node ports are frontends with address `0.0.0.0` (`::`); their rules look
//! them up by `ip daddr & 0.0.0.0`, so that all frontends share the same maps:
//!
//! | map or set | key | contents |
//! | --- | --- | --- |
//! | `services` | frontend | kind and number of endpoints |
//! | `local-services` | frontend | the same for this node's endpoints, for external traffic with policy Local |
//! | `dispatch`, `local-dispatch` | kind:count | goto the chain for it |
//! | `endpoints` | frontend . list:index | address and port; list 1 is the cluster's, list 2 this node's, indexes from 1 |
//! | `refused`, `dropped` | frontend | frontends without endpoints: rejected, or dropped if the policy is Local |
//! | `restricted`, `source-ranges` | frontend (. source) | frontends with source ranges; the ranges |
//! | `hairpin` | address . address . protocol . port | connections of this node's endpoints to themselves |
//! | `cluster-ips` | address | cluster IPs, to masquerade external clients and to reject unknown ports |
//! | `node-port-addresses` | address | addresses that serve node ports, unless all local ones do |
//! | `slots` | frontend . list:index | slot of an endpoint, owner:number, for Services with session affinity |
//! | `sticky-N` | frontend | frontends with an affinity timeout of N seconds |
//! | `affinity` | owner . client | slot of the client's last endpoint; added by rules |
//!
//! # A packet's path
//!
//! ```text
//!   10.244.0.9 ─► 10.96.0.10:80/tcp, a Service with 3 endpoints
//!
//!   nat-prerouting ─► services
//!       ip daddr . meta l4proto . th dport map @services        10.96.0.10 . tcp . 80 : 1:3
//!       meta priority vmap @dispatch                            1:3 : goto pick-3
//!     ─► pick-3
//!       numgen random mod 3                                     1:1, 1:2 or 1:3
//!       dnat to … map @endpoints                                10.96.0.10 . tcp . 80 . 1:2 : 10.244.1.7 . 8080
//!   filter-forward ─► frontends, cluster-ips                    no match: the destination is an endpoint now
//!   nat-postrouting                                             no mark, no hairpin: the source is kept
//! ```
//!
//! There is one chain per kind and number of endpoints in use, shared by all frontends with this number. The prefix
//! `node-port-` is for node ports, the suffix `-sticky` for Services with session affinity:
//!
//! * `pick-N` chooses among the cluster's endpoints, `pick-local-N` among this node's.
//! * `external-N` marks packets for masquerading, and goes to `pick-N`.
//! * `external-local-N` is for external traffic policy Local: pods and the node itself are served as if through a load
//!   balancer (`pick-N`); other clients go to `pick-local-N`, if there is one.
//!
//! # Session affinity
//!
//! An endpoint of a Service with session affinity has a *slot*: a number that does not change during the endpoint's
//! lifetime, and by which map `endpoints` has a second element for it. One half of it is the *owner*, which all slots of
//! one list of a service port share. The `-sticky` chains load the slot of any endpoint, mask all but its owner, and look
//! up owner and client in `affinity`, which holds the slot of the client's last endpoint. So a client reaches the same
//! endpoint through all frontends of a service port, as in kube-proxy. A removed endpoint has no element for its slot, so
//! its clients are removed from `affinity` and get another endpoint; changes of other endpoints have no effect. Chain
//! `remember` updates the client's element before the packet's destination is translated.
//!
//! # Changes
//!
//! All changes are written through netlink, one transaction per sync. The first sync writes the API server and DNS first,
//! and the rest in transactions of about 30 ms. On start, and when the kernel's generation shows that another program has
//! committed a transaction that modified the table, the table is read and only the difference is written.
//!
//! A removed endpoint is replaced by the last one of its list, so indexes stay dense and a change touches three elements
//! per frontend. The order of endpoints in a list has no meaning; a restarted proxy keeps the kernel's. Some unused chains
//! are kept for reuse; others are deleted in a second transaction, because kernels before 6.2 still count the references
//! of elements that the same transaction deletes.
//!
//! What is *not* here: Kubernetes objects, when to sync, stale conntrack entries, sysctls (`route_localnet` for node ports
//! on localhost).
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
mod wire;

pub use connections::{ConnectionReader, ConnectionTotals};
pub use dataplane::NftablesDataplane;
pub use model::{ClassId, DataType, Value};
pub use probe::probe;
pub use remove::{TableOwner, delete_table};
