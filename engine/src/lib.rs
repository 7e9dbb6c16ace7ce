//! Every decision of faser, pure: no clock, no IO, no threads, no text, no tensors.
//!
//! [`Engine::handle`] takes an [`Event`] and appends [`Command`]s; `actors` carries them between devices and clients,
//! [sim] between a virtual clock and a model of a device. Start reading at `engine.rs`.

mod admission;
mod api;
mod blocks;
mod config;
pub mod cost;
mod drafting;
mod engine;
mod histogram;
mod lane;
mod lookup;
mod plan;
mod planner;
mod policy;
mod proposals;
mod pruning;
pub mod record;
pub mod router;
mod sequence;
pub mod sim;
mod source;
pub mod survival;
mod tuning;
mod usage;
mod verifying;
mod view;

pub use api::*;
pub use config::{EngineConfig, EngineError, SpeculationBounds};
pub use engine::Engine;
pub use histogram::ErrorHistogram;
pub use plan::*;
pub use planner::Execution;
pub use policy::{Mechanisms, Policy, PolicyTraits, Switch};
pub use source::{DraftSource, RoundPasses, SourceNeeds};
pub use tuning::Tuning;
pub use usage::{Moments, Tried, Usage};
pub use view::{CalibrationView, EpochMove, LoadView, PoolView, RequestState, RequestView, Totals};
