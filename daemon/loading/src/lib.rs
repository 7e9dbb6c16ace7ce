//! From a config to a running pair: devices, weights, places, cost tables; and plans of all that, without loading.

mod config_pair;
pub mod costs;
pub mod error;
mod fetch;
mod held_dtype;
pub mod load_pairs;
pub mod locate;
mod place_pair;
pub mod plan_command;
pub mod plan_nodes;
pub mod quality;
mod shares;

pub use config_pair::Watch;
pub use fetch::fetched;
