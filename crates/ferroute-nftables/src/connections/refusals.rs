//! Connections that exceed a limit or come from outside of source ranges, per service port and reason, from the
//! counters of map `refusals`.

use std::num::NonZeroUsize;

use ferroute_core::IpFamily;

use super::totals::{Counters, Series};
use crate::{
    kernel::{Consistency, Counter, Kernel, NetlinkError, NetlinkKernel},
    model::{Key, TableId, Value},
    plan::{RefusalKind, SetId, TABLE},
};

/// Reads the number of connections of one IP family that were refused by a limit or source ranges.
#[derive(Debug)]
pub struct RefusalReader<K = NetlinkKernel> {
    kernel: K,
    table: TableId,
    elements: Counters<Key>,
    totals: Series<(Box<str>, RefusalKind)>,
}

impl RefusalReader {
    /// Opens a reader in the calling thread's network namespace, with separate totals for up to `max` service ports and reasons.
    ///
    /// # Errors
    ///
    /// The netlink sockets could not be opened, or the kernel does not support nf_tables.
    pub fn open(family: IpFamily, max: NonZeroUsize) -> Result<Self, NetlinkError> {
        Ok(Self::with_kernel(NetlinkKernel::open()?, family, max))
    }
}

impl<K: Kernel> RefusalReader<K> {
    /// Returns a reader on top of any kernel.
    pub fn with_kernel(kernel: K, family: IpFamily, max: NonZeroUsize) -> Self {
        let table = TableId { family, name: TABLE };
        Self { kernel, table, elements: Counters::default(), totals: Series::new(max.get()) }
    }

    /// Reads the counters. The totals stay unchanged if no service port has limits or source ranges, or if there are so many that reading them would
    /// take long.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn read(&mut self) -> Result<(), K::Error> {
        let Some(listing) = self.kernel.list_table(&self.table)? else { return Ok(()) };
        let listed = listing.sets.iter().find(|listed| listed.name == SetId::Refusals.name());
        let Some(listed) = listed.filter(|it| it.element_count.is_none_or(|count| count <= MAX_ELEMENTS)) else {
            return Ok(());
        };
        let Some(set) = &listed.set else { return Ok(()) };
        let mut counted = Vec::new();
        let consistency = self.kernel.dump_elements(&self.table, set, &mut |element, counter| {
            let Some((element, Counter { packets, .. })) = element.zip(counter) else { return };
            let kind = match element.key[..] {
                [Value::ClassId(key)] => RefusalKind::from_key(key),
                _ => None,
            };
            let name = element.comment.as_ref().map(|comment| Box::from(comment.as_str()));
            counted.extend(name.zip(kind).map(|name_and_kind| (element.key.clone(), name_and_kind, packets)));
        })?;
        // Missing elements would be mistaken for removed ones.
        if consistency == Consistency::Consistent {
            let increases = self.elements.read(counted.into_iter());
            self.totals.add(increases);
        }
        Ok(())
    }

    /// Returns the totals by service port and reason. Names are as in comments.
    pub fn totals(&self) -> impl Iterator<Item = (&str, RefusalKind, u64)> {
        self.totals.separate().map(|((name, kind), total)| (&**name, *kind, total))
    }

    /// Returns the common total of all other service ports and reasons.
    pub fn others(&self) -> u64 {
        self.totals.rest()
    }
}

/// A dump of this many elements takes some milliseconds.
const MAX_ELEMENTS: usize = 10_000;
