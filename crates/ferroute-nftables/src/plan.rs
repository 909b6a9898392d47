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

pub use context::{Context, NftablesSettings};
pub use frontend::Frontend;
pub use kind::{Kind, List, Way};
pub use order::Order;
pub use planner::{Planner, Tally};
use sets::MapName;
pub use sets::SetId;
