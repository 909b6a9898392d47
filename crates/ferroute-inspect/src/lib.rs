//! Inspection of Service rules: the library behind the commands that explain, compare and diagnose, and change nothing.
//!
//! | module | command | question |
//! | --- | --- | --- |
//! | [`explain`] | `ferroute explain` | How does the proxy handle a Service? |
//! | [`trace`] | `ferroute trace` | What happens to a packet? |
//! | [`diff`] | `ferroute diff` | Are the rules in the kernel, of any proxy, equivalent to the planned ones? |
//! | [`doctor`] | `ferroute doctor` | What breaks Services on this host? |
//! | [`preflight`] | `ferroute preflight` | What behaves differently after a switch of modes? |
//! | [`top`] | `ferroute top` | Which Services receive the most connections? |
//! | [`flows`] | `ferroute flows` | Who connects to which Service, and how does it end? |
//! | [`replay`] | `ferroute replay` | Do the recorded syncs of a proxy give the same rules again? |
//! | [`about`] | (all of them) | Whose state is the answer about? |
//! | [`check`] | `ferroute check` | What in manifests would be skipped, ignored, limited or rejected? |
//! | [`desired`] | (all of them, `render`) | Which state should the node have? |
//!
//! The core of each module is a pure function; reading the kernel and the host is separate from it. Modes come from the
//! registry in `ferroute-proxy`: the rules of a new mode are planned, traced, compared and replayed without a change to
//! this crate.
//!
//! ```text
//!   manifests, API server ─► desired::Desired ─┬─► explain::explain ──► Explanation ─┐
//!                                              ├─► diff::compare ─────► DiffReport ──┼─► text, JSON
//!   kernel, host ──────────────────────────────┴─► doctor::diagnose ──► Diagnosis ───┘
//! ```
//!
//! # Example
//!
//! Explain a Service that the proxy skips:
//!
//! ```
//! use ferroute_api::{Object, manifest::{Parsed, read}};
//! use ferroute_core::{ModeTraits, NodeView, ProxySettings, Tracker};
//! use ferroute_inspect::explain::{Inputs, explain, write_explanation_into};
//!
//! let manifest = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
//!                  spec: {clusterIP: None, ports: [{port: 80}]}}";
//! let Some(Ok(Parsed::Object(object))) = read(manifest).into_iter().next() else { panic!("not an object") };
//! let Object::Service(service) = *object else { panic!("not a Service") };
//!
//! let tracker = Tracker::new(NodeView { name: "node-1".to_owned(), ..NodeView::default() });
//! let settings = ProxySettings::default();
//! let (health_check, pod, node) = (None, &|_| None, &|_| None);
//! let traits = &ModeTraits::NFTABLES;
//! let inputs = Inputs { tracker: &tracker, settings: &settings, traits, addresses: &[], health_check, pod, node };
//! let mut text = String::new();
//! write_explanation_into(&mut text, &explain(&service, &inputs))?;
//! assert!(text.starts_with("Service shop/web, type ClusterIP, on node node-1\n\nskipped: "));
//! # Ok::<(), std::fmt::Error>(())
//! ```

pub mod about;
pub mod check;
pub mod desired;
pub mod diff;
pub mod doctor;
pub mod explain;
pub mod flows;
pub mod preflight;
pub mod replay;
pub mod report;
pub mod top;
pub mod trace;
mod waiting;

/// Returns a number with a noun in the singular or plural.
fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns the first of some names, and the number of the others; hosts with many pods have hundreds of interfaces.
fn some_of<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The maximum number of names in a line.
const MAX_NAMES: usize = 4;
