//! The proxies on all nodes of a cluster, for `kubectl ferroute`.
//!
//! ```text
//!   Selection ──► proxies ──► run `ferroute ...` in each pod, some at a time ──► answers and failures by node ──► text, JSON
//!   (API server)  (pods)      (as kubectl exec does)
//! ```
//!
//! Every answer is the output of a command that can also be run on the node itself. A node that does not answer is part
//! of the result, and does not affect the others.
//!
//! This crate has neither the command line nor the commands that run on a node.

mod answer;
mod bundle;
mod flows;
mod kube_proxy;
mod proxies;
mod same;
mod session;
mod status;
mod table;
mod top;
mod trace;
mod wait;

pub use self::{
    answer::{Fleet, NodeAnswer},
    bundle::write_bundles_into,
    flows::{flows, pod_labels},
    kube_proxy::{kube_proxy_beside, write_findings_into},
    proxies::{DEFAULT_PODS, NodeProxy, Selection},
    same::{Same, same_everywhere, write_same_into},
    session::{NodePages, PageBody, PageHead, PageRequest, PageResponse},
    status::{Doctor, Drift, NodeReport, is_good, statuses, write_statuses_into},
    top::{ClusterTop, top},
    trace::{ClusterTrace, Hop, TraceQuery, parse_source, trace, write_trace_into},
    wait::{Waited, wait_applied},
};
