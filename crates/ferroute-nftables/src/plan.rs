//! What should be in the table, and the changes that bring it there. A pure function of its input.
//!
//! ```text
//!   Entry ──► Record ──► elements of each frontend ──► difference ──► Transaction
//!            (compact,       (services, endpoints, …)      ▲
//!             kept)                                        └── of the Record before
//! ```

mod backends;
mod context;
mod counts;
mod digest;
mod elements;
mod fixed;
mod frontend;
mod kind;
mod order;
mod planner;
mod record;
mod sets;
mod shared;
mod slots;

use std::net::IpAddr;

use ferroute_core::ServiceTable;

use crate::model::{Name, TableId, Transaction};

pub use context::{Context, NftablesSettings};
pub use frontend::Frontend;
pub use kind::{Kind, List, Way};
pub use order::Order;
pub use planner::{Planner, Tally};
use sets::MapName;
pub use sets::SetId;

/// Everything that is in force for a table of Services, as one transaction that starts from nothing; `host` holds the
/// addresses of the host's interfaces. Printed, it is input for `nft -f`.
pub fn render(table: &ServiceTable, settings: &NftablesSettings, host: &[IpAddr]) -> Transaction {
    let mut planner = Planner::new(Context::new(table, settings, host));
    let mut transaction = Transaction::new(TableId { family: table.family, name: TABLE });
    planner.set_up(&mut transaction);
    for name in table.entries.keys() {
        planner.update(name, table, &mut transaction);
    }
    planner.settle(&mut transaction);
    transaction
}

/// The name of our tables, one per family. What is in there is ours alone.
pub const TABLE: Name = Name::fixed("ferroute");
