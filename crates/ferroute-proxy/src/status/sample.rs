//! What is looked up only when somebody asks for metrics.

use std::sync::{Mutex, OnceLock, PoisonError};

use ferroute_core::{IpFamily, NfacctCounters};
use ferroute_host::{KernelCounters, PacketCounters, ProcessUsage};
use ferroute_admin::metrics::{Engine, Progress, Sampled};
use tokio::runtime::Handle;

use super::connections::ConnectionBoard;
use crate::logging::chain;

/// Where it is told, once that is known, who can say how far the sync of each family is.
pub(super) type ProgressBoard = OnceLock<Vec<(IpFamily, ferroute_core::Progress)>>;

/// Looks up what nobody tells by itself.
pub(crate) struct Sampler {
    /// Only where rules count packets, and the kernel can.
    packets: Option<Mutex<KernelCounters>>,
    /// The runtime that follows the source.
    main: Handle,
    pub(super) progress: ProgressBoard,
    pub(super) connections: ConnectionBoard,
}

impl Sampler {
    /// For the calling thread's network namespace, and a program that follows its source on the runtime `main`.
    pub(crate) fn new(engine: Engine, main: Handle) -> Self {
        let packets = match engine {
            Engine::Iptables => KernelCounters::open().unwrap_or_else(|error| {
                tracing::warn!("{}: metrics will not tell of packets", chain(&error));
                None
            }),
            Engine::Nftables | Engine::Ipvs => None,
        };
        Self {
            packets: packets.map(Mutex::new),
            main,
            progress: ProgressBoard::default(),
            connections: ConnectionBoard::default(),
        }
    }

    pub(crate) fn sample(&self) -> Sampled {
        Sampled {
            process: told(ProcessUsage::current()),
            tasks: Some(self.tasks()),
            invalid_dropped: self.packets(NfacctCounters::INVALID_DROPPED),
            localhost_accepted: self.packets(NfacctCounters::LOCALHOST_ACCEPTED),
            progress: self.progress.get().into_iter().flatten().map(progress).collect(),
            connections: self.connections.get(),
        }
    }

    /// Of both runtimes: metrics are looked up on the HTTP thread, which has one of its own.
    fn tasks(&self) -> u64 {
        let runtimes = [Some(self.main.clone()), Handle::try_current().ok()];
        let tasks = runtimes.iter().flatten().map(|runtime| runtime.metrics().num_alive_tasks());
        tasks.sum::<usize>() as u64
    }

    fn packets(&self, counter: &str) -> Option<u64> {
        let mut counters = self.packets.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        told(counters.read(counter)).flatten().map(|counter| counter.packets)
    }
}

fn progress((family, progress): &(IpFamily, ferroute_core::Progress)) -> Progress {
    let (done, total) = progress.get();
    Progress { family: *family, done, total }
}

/// Readers come every few seconds, so that a failure is nothing to be loud about.
fn told<T, E: std::error::Error>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|error| tracing::debug!("{}", chain(error))).ok()
}
