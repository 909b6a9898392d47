//! The planner: computes the contents of the table, and the changes that lead to it. A pure function of its input.
//!
//! ```text
//!   ServicePortEntry ──► PortElements ──► elements of its lists and frontends ──► difference ──► Transaction
//!                       (compact,         (endpoints, lists, services, …)        ▲
//!                        kept)                                                   └── previous PortElements
//! ```

mod affinity_shares;
mod capacity;
mod choice;
mod context;
mod digest;
mod elements;
mod existing;
mod fixed;
mod frontend;
mod kind;
mod limits;
mod list;
mod planner;
mod port_plan;
mod sets;
mod shared;
mod slots;
mod socket_list;
mod spread;
mod steps;

use std::net::IpAddr;

use ferroute_core::{Frontend, ServiceTable};

use crate::model::{Name, TableId, Transaction};

pub(crate) use context::Context;
pub use context::NftablesSettings;
pub(crate) use existing::ExistingLists;
pub(crate) use fixed::is_optional;
pub use frontend::{frontend_from_key, frontend_key, frontend_map};
pub(crate) use kind::Kind;
pub use limits::RefusalKind;
pub use list::{List, ListNumber};
pub(crate) use planner::{Planner, Undo};
use sets::MapName;
pub use sets::{Bucket, KeyOwner, SetId, list_number};
pub(crate) use shared::Written;
pub(crate) use steps::Steps;

/// Returns the whole table for a table of Services as one transaction, starting from an empty ruleset; `host` are the
/// addresses of the host's interfaces. Printed, it is input for `nft -f`. A service port that cannot be planned is left out, as in
/// [`SyncReport::rejected`](ferroute_core::SyncReport::rejected).
pub fn render(table: &ServiceTable, settings: &NftablesSettings, host: &[IpAddr]) -> Transaction {
    let mut planner = Planner::new(Context::new(table, settings, host));
    let mut steps = Steps::new(TableId { family: table.family, name: TABLE });
    planner.create_table(&mut steps.before);
    for name in table.entries.keys() {
        // A service port that cannot be planned does not change the plan.
        let _ = planner.update(name, table, &mut steps);
    }
    planner.finish_transaction(&mut steps);
    steps.merged()
}

/// The name of the table's flowtable.
pub(crate) const FLOWTABLE: Name = Name::fixed("established");
/// The name of Ferroute's tables, one per IP family. No other program uses them.
pub const TABLE: Name = Name::fixed("ferroute");
