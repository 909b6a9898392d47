//! Connections by service port and endpoint, read from the kernel again and again on a thread of its own: reading takes
//! a while in large clusters, and neither syncs nor health checks are to wait for it.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use anyhow::Context;
use ferroute_core::IpFamily;
use ferroute_admin::metrics::Connections;
use ferroute_nftables::{ConnectionReader, ConnectionTotals};

use crate::logging::chain;

/// The last totals, once somebody reads them.
#[derive(Debug, Default)]
pub(crate) struct ConnectionBoard(OnceLock<Arc<Mutex<Vec<Connections>>>>);

impl ConnectionBoard {
    /// Starts to read in the calling thread's network namespace, until this is dropped. So many service ports are told
    /// apart in each family.
    pub(crate) fn start(&self, families: &[IpFamily], most: NonZeroUsize) -> anyhow::Result<()> {
        let open = |family: &IpFamily| ConnectionReader::open(*family, most).map(|reader| (*family, reader));
        let readers: Vec<_> = families.iter().map(open).collect::<Result<_, _>>()?;
        let totals = Arc::downgrade(self.0.get_or_init(Arc::default));
        let thread = std::thread::Builder::new().name("connections".to_owned());
        thread.spawn(move || read(readers, &totals)).context("cannot start the thread that counts connections")?;
        Ok(())
    }

    /// The last totals.
    pub(super) fn get(&self) -> Vec<Connections> {
        let totals = self.0.get().map(|totals| totals.lock().unwrap_or_else(PoisonError::into_inner).clone());
        totals.unwrap_or_default()
    }
}

/// Reads until nobody wants to know any more.
fn read(mut readers: Vec<(IpFamily, ConnectionReader)>, totals: &Weak<Mutex<Vec<Connections>>>) {
    loop {
        let start = Instant::now();
        let read = readers.iter_mut().filter_map(|(family, reader)| match reader.read() {
            Ok(totals) => Some(connections(*family, totals)),
            Err(error) => {
                tracing::debug!(%family, "cannot count connections: {}", chain(&error));
                None
            }
        });
        let read: Vec<Connections> = read.collect();
        let Some(totals) = totals.upgrade() else { return };
        if read.len() == readers.len() {
            *totals.lock().unwrap_or_else(PoisonError::into_inner) = read;
        }
        drop(totals);
        std::thread::sleep(INTERVAL.max(start.elapsed() * REST));
    }
}

fn connections(family: IpFamily, totals: &ConnectionTotals) -> Connections {
    Connections {
        family,
        services: totals.services().map(|(name, count)| (name.to_owned(), count)).collect(),
        other_services: totals.other_services(),
        endpoints: totals.endpoints().map(|(name, at, count)| (name.to_owned(), at, count)).collect(),
        other_endpoints: totals.other_endpoints(),
    }
}

/// Between two readings; most scrape intervals are longer.
const INTERVAL: Duration = Duration::from_secs(2);

/// So much longer than a reading is the pause after it, so that reading takes a few hundredths of a CPU at most.
const REST: u32 = 30;
