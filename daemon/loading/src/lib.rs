//! From a config to a running pair: devices, weights, places, cost tables; and plans of all that, without loading.

pub mod costs;
pub mod error;
pub mod load;
mod locate;
mod pair;
mod place;
pub mod plan;
mod shares;

pub use pair::Watch;
