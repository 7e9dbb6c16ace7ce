//! Language models over the kernels' ops: configuration, weights, the forward pass, and the text on both sides of it.
//!
//! The families are written once, layer by layer as data: see [`LayerSpec`] and [`Model::forward`]. Models come
//! from Hugging Face directories or from a seed ([`WeightSource`]). This crate knows no
//! requests, no scheduling and no threads but the lane's.

mod block;
mod checkpoint;
mod config;
pub mod cuda;
mod error;
mod experts;
mod features;
mod gguf;
mod layer;
mod layer_spec;
mod load;
mod markov;
mod model;
mod quality;
pub mod rounding;
mod scratch;
mod shard;
pub mod synthetic;
mod text;

pub use checkpoint::{check_header, weight_files};
pub use config::{
    Architecture, BlockSpec, ConfidenceInput, FuseNorm, GenerationDefaults, HeadKind, HeadLayout, HeadSpec,
    MarkovKind, MarkovSpec, ModelConfig, RopeConfig, Verifier, WeightQuantisation, fitted, verifier,
};
pub use error::ModelError;
pub use faser_kernels::{end_after_cpu_time, end_with_parent, fork, give_memory_back, on_nodes, one_arena};
pub use features::Features;
pub use gguf::check_gguf;
pub use layer_spec::{AttentionSpec, BesideEmbedding, Experts, LayerSpec, Mlp, MlpSpec, Norms, QkNorm};
pub use load::{OwnBits, Progress, WeightSource};
pub use model::{Model, Pass};
pub use quality::Quality;
pub use scratch::Scratch;
pub use shard::Shard;
pub use text::{
    CallEvent, CallForm, CallFormat, CallParser, Channel, ChatTemplate, Conversation, Detokenizer, Encoded,
    ForcedToken, Function, Grammar, GrammarCancel, GrammarCompiler, GrammarError, GrammarMatcher,
    GrammarProgram, GrammarSource, GrammarTurn, GrammarVocabulary, LastTurn, ReasoningFormat,
    ReasoningParser, ReasoningStart, TokenMask, Tokenizer,
};
