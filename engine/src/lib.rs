//! Every decision of faser, pure: no clock, no IO, no threads, no text, no tensors.
//!
//! [`Engine::handle`] takes an [`Event`] and appends [`Command`]s; `actors` carries them between devices and clients,
//! [sim] between a virtual clock and a model of a device. Start reading at `engine.rs`.

mod admission;
mod api;
mod blocks;
mod branch;
mod config;
pub mod cost;
mod counts;
mod drafting;
mod engine;
mod investment;
mod lane_book;
mod lookup;
mod outcomes;
mod output_length;
mod plan;
mod planner;
mod policy;
mod portfolio;
mod pruning;
pub mod record;
mod request;
pub mod router;
mod sequence;
pub mod sim;
mod source;
mod suffix;
pub mod survival;
mod usage;
mod verifying;
mod view;

pub use api::*;
pub use blocks::{BlockCopy, BlockId, KvEvent};
pub use config::{EngineConfig, EngineError, SpeculationBounds, Tuning};
pub use counts::Counts;
pub use engine::Engine;
pub use plan::*;
pub use planner::Execution;
pub use policy::{Mechanisms, Policy, PolicyTraits, Switch};
pub use request::*;
pub use source::{DraftSource, ProposedBlock, RoundPasses, SourceNeeds};
pub use survival::{Learned, LearnedOfSource};
pub use usage::{Moments, Tried, Usage};
pub use view::{
    CalibrationView, EpochMove, ErrorHistogram, LoadView, PoolView, RequestState, RequestView, SteeringView,
    SuffixView, Totals,
};
