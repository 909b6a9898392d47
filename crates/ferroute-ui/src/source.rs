//! Sources of the state, and the network namespace in which its rules are.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash, Hasher},
    io::BufReader,
    path::Path,
    sync::Arc,
    time::Duration,
};

use ferroute_config::flags::{DesiredArgs, SettingsArgs, SourceArgs};
use ferroute_demo::{cluster::Cluster, layout::NodeId};
use ferroute_inspect::desired::Desired;
use ferroute_proxy::{
    control::{request_bundle, request_status},
    recording::Bundle,
};
use ferroute_source::manifest_files;
use nix::unistd::Uid;

/// Source of the state of the node.
#[derive(Debug)]
pub enum Source {
    /// Manifests, or the API server.
    Objects(Box<DesiredArgs>),
    /// The proxy that runs on this host, from its recording, with the settings of these arguments.
    Node(Box<DesiredArgs>),
    /// A file written by `ferroute bundle`.
    Bundle {
        /// The bundle.
        bundle: Arc<Bundle>,
        /// The file's name.
        origin: String,
    },
    /// A demo, seen from its first node.
    Demo(Box<Cluster>),
}

impl Source {
    /// Returns the running proxy if no other source is given and a proxy responds, otherwise the given source.
    pub fn new(args: DesiredArgs) -> Self {
        let args = Box::new(args);
        if args.source.is_empty() && request_status().is_ok() { Self::Node(args) } else { Self::Objects(args) }
    }

    /// Returns the name of the kind of source.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Objects(args) if args.source.manifests.is_some() => "manifests",
            Self::Objects(_) => "cluster",
            Self::Node(_) => "node",
            Self::Bundle { .. } => "bundle",
            Self::Demo(_) => "demo",
        }
    }

    /// Reports whether rules can be read from the kernel.
    pub(crate) fn has_kernel(&self) -> bool {
        !matches!(self, Self::Bundle { .. }) && Uid::effective().is_root()
    }

    /// Returns the demo.
    pub(crate) fn demo(&self) -> Option<&Cluster> {
        match self {
            Self::Demo(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// Loads the state. Blocks.
    pub(crate) fn load(&self) -> anyhow::Result<Desired> {
        match self {
            Self::Objects(args) => Desired::load_again(args),
            Self::Node(args) => {
                let mut desired = Desired::load_again(args)?;
                // A recording does not have Services in manifests that are invalid.
                desired.complete_from_manifests();
                Ok(desired)
            }
            Self::Bundle { bundle, origin } => Desired::from_bundle(bundle, origin),
            Self::Demo(cluster) => {
                let args = demo_args(cluster);
                let mut desired = cluster.on_node(NodeId::Node, || {
                    let mut desired = Desired::load_again(&args)?;
                    // Files do not contain the endpoints that the proxy has ejected. At the start, the proxy may not
                    // respond yet.
                    if let Ok(recording) = read_recording() {
                        desired.observe(&recording);
                    }
                    anyhow::Ok(desired)
                })??;
                desired.names.add_demo(&cluster.plan()?);
                Ok(desired)
            }
        }
    }

    /// Runs `work` where the rules of the node are. Blocks.
    pub(crate) fn on_node<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        match self {
            Self::Demo(cluster) => cluster.on_node(NodeId::Node, work),
            _ => Ok(work()),
        }
    }

    /// Returns the recent syncs of the proxy; `None` if the source has none. Blocks.
    pub(crate) fn recording(&self) -> anyhow::Result<Option<Arc<Bundle>>> {
        match self {
            Self::Bundle { bundle, .. } => Ok(Some(Arc::clone(bundle))),
            Self::Node(_) | Self::Demo(_) => Ok(Some(Arc::new(self.on_node(read_recording)??))),
            Self::Objects(_) => Ok(None),
        }
    }

    /// Returns a number that changes when files of the source change. Sources without files instead have a minimum time
    /// between two loads. Bundles do not change.
    pub(crate) fn version(&self) -> Version {
        match self {
            Self::Objects(args) => match &args.source.manifests {
                Some(path) => Version::Files(fingerprint(path)),
                None => Version::Unknown(API_SERVER_INTERVAL),
            },
            Self::Demo(cluster) => Version::Files(fingerprint(&cluster.manifests())),
            Self::Node(_) => Version::Unknown(RECORDING_INTERVAL),
            Self::Bundle { .. } => Version::Files(0),
        }
    }
}

/// The version of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Files with this fingerprint.
    Files(u64),
    /// Unknown: load it again after this time.
    Unknown(Duration),
}

fn demo_args(cluster: &Cluster) -> DesiredArgs {
    DesiredArgs {
        source: SourceArgs { manifests: Some(cluster.manifests()), ..SourceArgs::default() },
        settings: SettingsArgs { config: Some(cluster.proxy_config(NodeId::Node)), ..SettingsArgs::default() },
    }
}

fn read_recording() -> anyhow::Result<Bundle> {
    Ok(Bundle::read(BufReader::new(request_bundle()?))?)
}

/// Returns a hash of the names, sizes and times of all manifests.
fn fingerprint(path: &Path) -> u64 {
    let mut hash = DefaultHasher::new();
    for file in manifest_files(path).unwrap_or_default() {
        let metadata = fs::metadata(&file).ok();
        let version = metadata.map(|metadata| (metadata.len(), metadata.modified().ok()));
        (file, version).hash(&mut hash);
    }
    hash.finish()
}

/// Minimum time between two lists of all objects.
const API_SERVER_INTERVAL: Duration = Duration::from_secs(30);

/// The shortest time between two requests to the running proxy.
const RECORDING_INTERVAL: Duration = Duration::from_secs(2);
