//! Why a pair cannot be loaded or served.

use std::path::PathBuf;

use faser_actors::{ServiceError, SubmitError};
use faser_config::ConfigError;
use faser_config::sizes::written;
use faser_engine::EngineError;
use faser_hub::HubError;
use faser_models::ModelError;
use faser_openai::text_sequence::SequenceError;
use faser_topology::TopologyError;

/// What loading a pair, planning for it, or running it fails with; the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The configuration, or a flag that overrides it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The demo pair is in none of these places.
    #[error(
        "the demo pair, a folder with `target` and `draft` in it, is at none of: {}. Run faser from its repository, \
         or name your own models by `model.target` and `model.draft` in a config file (see configs/laptop.yaml)",
        .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoDemoPair(Vec<PathBuf>),
    /// A file of cost tables cannot be used.
    #[error("the cost tables in {}: {problem}", path.display())]
    CostFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// A text has nothing that could be predicted.
    #[error("the text has {0} tokens: two are needed at least, one that the other is predicted from")]
    ShortText(usize),
    /// A model cannot be had by its name.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// It has a name on the hub, and was not downloaded.
    #[error(
        "the models are to be downloaded first: this is a bug, which a folder as `model.target` gets around"
    )]
    NotFetched,
    /// A model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A model cannot be split as the config says.
    #[error("`{key}` is {ranks}: {source}")]
    Ranks {
        /// The key.
        key: &'static str,
        /// What it says.
        ranks: usize,
        /// Why not.
        source: Box<ModelError>,
    },
    /// The tokenizer has no tokens for the reasoning that the config says.
    #[error(
        "`model.reasoning` is `harmony`, and the target's tokenizer has not all of {0}: leave it at `auto`"
    )]
    Reasoning(&'static str),
    /// A node was to be loaded, and the config names none.
    #[error("the config names no node of several (`node`)")]
    NoNode,
    /// A command that works on a pair was given the config of a node that has a part of it.
    #[error(
        "this is node {rank} of {of} (`node.rank`), for `faser serve` alone: give the config of node 0, where the others run"
    )]
    OtherNode {
        /// Its number.
        rank: usize,
        /// How many there are.
        of: usize,
    },
    /// Nobody can listen for the other nodes.
    #[error(
        "cannot listen for the other nodes at `node.rendezvous` {rendezvous}: {source}. It is an address of the first node's; where that listens elsewhere, say so by `node.listen`"
    )]
    Rendezvous {
        /// What the config says.
        rendezvous: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The target model cannot hold the contexts asked for.
    #[error(
        "`scheduler.max_context` is {asked}, but the target model holds {limit} tokens: lower it, or leave it out"
    )]
    Context {
        /// What the config asks for.
        asked: usize,
        /// What the model holds.
        limit: usize,
    },
    /// The draft proposes a block that no pass has room for.
    #[error(
        "`scheduler.max_pass_rows` is {asked}, and the draft proposes by blocks of {rows} rows: it must be at least {least}"
    )]
    Block {
        /// Rows of its block.
        rows: usize,
        /// What the config asks for.
        asked: usize,
        /// What it takes.
        least: usize,
    },
    /// Past outputs would take more memory than there is.
    #[error(
        "`speculation.suffix_memory` is {} for each of {replicas} replicas, and there are {} of memory: lower it",
        written(*each_bytes), written(*memory_bytes)
    )]
    PastOutputs {
        /// What the config asks for.
        each_bytes: u64,
        /// How many keep so much.
        replicas: usize,
        /// What the host has.
        memory_bytes: u64,
    },
    /// This alias is the name that the pair has anyway.
    #[error("`model.aliases` names `{0}`, which the model is called already: leave it out")]
    Alias(String),
    /// A GPU that is there does not take the pair.
    #[error("GPU {ordinal} cannot serve this pair: {source}. To run on the CPU write `device.kind: cpu`")]
    OpenGpu {
        /// Its number.
        ordinal: usize,
        /// Why not.
        source: Box<ServiceError>,
    },
    /// This key makes it a config for `faser plan` alone.
    #[error("`{0}` is for `faser plan` alone so far: leave it out")]
    PlanOnly(&'static str),
    /// The draft is to have a GPU of its own, and there is none.
    #[error(
        "`device.draft_placement: own` is a GPU for the draft alone, and this pair is served by the CPU{0}: leave it out"
    )]
    ApartOnCpu(String),
    /// A plan was asked for on a GPU that is not there.
    #[error(
        "`device.kind` is cuda:{first}, and the machine has {count} GPUs{}: write `topology` for one that has it, or `device.kind: auto`",
        .note.as_ref().map_or_else(String::new, |note| format!(" ({note})"))
    )]
    PlanGpu {
        /// Its number.
        first: usize,
        /// GPUs of the machine.
        count: usize,
        /// What was found instead.
        note: Option<String>,
    },
    /// A plan was asked for on GPUs that cannot hold the pair so.
    #[error("{0}")]
    PlanUnfit(String),
    /// One pair of several.
    #[error("pair `{name}`: {source}")]
    Pair {
        /// Its name.
        name: String,
        /// What is wrong with it.
        source: Box<LoadError>,
    },
    /// The models do not fit the device.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The bounds do not go together.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The service did not start.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A prompt was not taken.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A sequence broke off.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}
