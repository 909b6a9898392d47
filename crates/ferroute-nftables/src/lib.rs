//! The nftables mode: Services as elements of maps, under a fixed set of chains.
//!
//! ```text
//!   ServiceTable ──► plan ──► Transaction ──► kernel (netlink; in memory for tests)
//!                    (which     (only what      │
//!                    elements)   differs)       └──► what it holds, to compare with
//! ```
//!
//! # Why no chain per Service
//!
//! When a rule, or an element that leads to a chain, is added, the kernel walks everything that can be reached from the
//! hooks, and all elements of every map of verdicts on the way. So a chain per Service costs quadratic time, and so does
//! a map from frontends to verdicts: in one of 100,000 Services each change takes 30 ms. Here the maps that grow with the
//! cluster hold plain data, and the only map of verdicts has an element per *kind of answer and number of endpoints*.
//! A change costs the elements that it touches, in any cluster.
//!
//! A rule cannot hand a number to the next rule, but it can leave one with the packet. Of what a packet carries, the
//! priority (`skb->priority`) is the one thing that nobody misses: nat chains see only the first packet of a connection,
//! and the next chain clears it again, before routing, queueing or other people's rules look at it. `nft` calls its type
//! `classid` and prints it as two hexadecimal numbers, here `kind:count`, see [`Class`].
//!
//! # The table `ip ferroute` (and `ip6 ferroute`)
//!
//! ```text
//!   hook         priority  chain                       what happens to the first packet of a connection
//!   prerouting   -110      filter-prerouting-pre-dnat  source ranges of load balancers: drop        ─► firewall
//!   output       -110      filter-output-pre-dnat      the same for the node's own packets          ─► firewall
//!   prerouting   -100      nat-prerouting              choice of an endpoint                        ─► services
//!   output       -100      nat-output                  the same for the node's own packets          ─► services
//!   prerouting   -99       filter-prerouting-post-dnat clears the priority
//!   output       -99       filter-output-post-dnat     the same for the node's own packets
//!   input        0         filter-input                no endpoints: reject or drop     ─► node-ports, frontends
//!   forward      0         filter-forward              the same; other ports of cluster IPs: reject ─► frontends
//!   output       0         filter-output               the same                                     ─► frontends
//!   postrouting  100       nat-postrouting             masquerades marked packets and hairpins
//! ```
//!
//! The hooks and priorities are those of kube-proxy's nftables mode, so other tables meet our decisions at the same
//! places: before -100 a packet has the Service's address, after it the endpoint's; before 100 it has its true source.
//!
//! A *frontend* is `address . protocol . port`. Node ports are frontends whose address is written as `0.0.0.0` (`::`);
//! their rules look them up by `ip daddr & 0.0.0.0`. So all frontends are in the same maps:
//!
//! | map or set | key | holds |
//! | --- | --- | --- |
//! | `services` | frontend | kind and number of endpoints |
//! | `local-services` | frontend | the same for this node's endpoints, where outside traffic must stay local |
//! | `dispatch`, `local-dispatch` | kind:count | goto the chain for it |
//! | `endpoints` | frontend . list:index | address and port; lists 1 (the cluster's) and 2 (this node's), from index 1 |
//! | `refused`, `dropped` | frontend | nothing to send packets to: say so, or be silent as policy Local asks |
//! | `restricted`, `source-ranges` | frontend (. sources) | has source ranges; who may pass |
//! | `hairpin` | address . address . protocol . port | endpoints of this node, calling themselves |
//! | `cluster-ips` | address | cluster IPs, to masquerade strangers and to refuse unknown ports |
//! | `node-port-addresses` | address | addresses that answer on node ports, unless all local ones do |
//! | `slots` | frontend . list:index | slot of an endpoint, owner:number, for Services with affinity |
//! | `sticky-N` | frontend | has an affinity of N seconds |
//! | `affinity` | owner . client | slot of the endpoint that the client had last; the kernel alone writes it |
//!
//! # A packet's way
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
//!   filter-forward ─► frontends, cluster-ips                    it has an endpoint's address now: nothing to do
//!   nat-postrouting                                             no mark, no hairpin: the source stays
//! ```
//!
//! Kinds of chains, one per number of endpoints in use, shared by all frontends with that number. With `node-port-` in
//! front they are for node ports, with `-sticky` behind for Services with affinity:
//!
//! * `pick-N` chooses among the cluster's endpoints, `pick-local-N` among this node's.
//! * `external-N` marks for masquerading, then `pick-N`.
//! * `external-local-N` is for external policy Local: pods and the node itself are served as if they came through a
//!   load balancer (`pick-N`); all others go to `pick-local-N`, or nowhere.
//!
//! # Affinity
//!
//! An endpoint of a Service with affinity has a *slot*, a number that it keeps while it is there, and under which it is
//! in `endpoints`, too. One half of it is the *owner*, which all slots of one list of one service port have in common.
//! The `-sticky` chains take the slot of any endpoint, leave the owner of it, and look up owner and client in
//! `affinity`, which says the slot that the client had last. So a client has the same endpoint at all frontends of a
//! service port, as in kube-proxy. An endpoint that is gone has no element under its slot, so its clients are forgotten
//! and choose again, and changes of other endpoints do not matter. Chain `remember` adds or prolongs the client's
//! element before the packet's address is translated.
//!
//! # Changes
//!
//! Everything is written through netlink, one transaction per sync; the first sync of all puts the API server and DNS in
//! force, then the rest in transactions of about 30 ms. On start, and when the kernel's generation number tells that
//! somebody else has changed something, what is there is read and only the difference is written.
//!
//! An endpoint that goes is replaced by the last one of its list, so the indexes stay dense and a change touches three
//! elements per frontend. The order within a list has no meaning; after a restart the kernel's is taken over. A
//! few chains for numbers of endpoints that no Service has any more are kept for the next one that has; others are
//! removed by a second transaction, as kernels before 6.2 still count the references of elements that the same one
//! deletes.
//!
//! What is *not* here: Kubernetes objects, when to sync, stale flows, sysctls (`route_localnet` for node ports on
//! localhost).

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
pub use model::{Class, DataType, Value};
pub use probe::probe;
pub use remove::{Owner, remove_table};
