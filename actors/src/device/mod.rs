//! The device of a service: a CPU or a GPU, and how its lanes are made, as often as it takes. Nothing else in this crate knows which.

mod cpu;
mod cuda;

use std::sync::Arc;

use faser_engine::EngineConfig;
use faser_kernels::Dtype;
use faser_models::{Model, ModelConfig, Shard};

use crate::error::ServiceError;
use crate::gpu_actor::{DeviceBuild, DeviceFactory, RankBuild};
use crate::lane::{Build, Follow, Run, Work};
use crate::runner::{DraftRunner, LaneBackend, MASK_PATIENCE, VerifyRunner};
use crate::shed::{Fallen, ShedReader};

pub use cpu::CpuSpec;
pub(crate) use cpu::ways;
pub use cuda::{CudaDevice, CudaSource, CudaSpec, CudaWeights, OnGpu};

/// The pair and where it runs. Clones share the weights.
#[derive(Clone, Debug)]
pub enum DeviceSpec {
    /// On cores of this host.
    Cpu(CpuSpec),
    /// On a GPU, or on several, over which it is split.
    Cuda(CudaSpec),
}

/// What can be said of a model without its weights.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Its shape.
    pub config: ModelConfig,
    /// In which type its matrices are held.
    pub dtype: Dtype,
    /// Its weights, in bytes.
    pub weight_bytes: u64,
}

impl ModelFacts {
    /// Those of a model whose weights are in memory.
    pub fn of(model: &Model) -> ModelFacts {
        ModelFacts {
            config: model.config().clone(),
            dtype: model.dtype(),
            weight_bytes: model.weight_bytes(),
        }
    }
}

/// What each lane has of a partition, in [`DeviceSpec::unit`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSizes {
    /// The draft lane.
    pub draft: usize,
    /// The verify lane.
    pub verify: usize,
}

impl DeviceSpec {
    /// The target model.
    pub fn target(&self) -> ModelFacts {
        match self {
            DeviceSpec::Cpu(spec) => of_all_ranks(spec.target.iter().map(|shard| ModelFacts::of(shard))),
            DeviceSpec::Cuda(spec) => {
                of_all_ranks(spec.ranks.iter().map(|rank| rank.source().target.clone()))
            }
        }
        .expect("a device has a rank")
    }

    /// The draft model; without one nobody speculates.
    pub fn draft(&self) -> Option<ModelFacts> {
        match self {
            DeviceSpec::Cpu(spec) => of_all_ranks(spec.draft.iter().map(|shard| ModelFacts::of(shard))),
            DeviceSpec::Cuda(spec) => {
                of_all_ranks(spec.ranks.iter().filter_map(|rank| rank.source().draft.clone()))
            }
        }
    }

    /// What the lanes have of each partition, the whole device first, which both have in turns.
    pub fn partitions(&self) -> Vec<LaneSizes> {
        match self {
            DeviceSpec::Cpu(spec) => {
                let sizes = |pair: &faser_topology::LanePair| LaneSizes {
                    draft: pair.draft.cores.len(),
                    verify: pair.verify.cores.len(),
                };
                spec.partitions.iter().map(sizes).collect()
            }
            DeviceSpec::Cuda(spec) => spec.partitions(),
        }
    }

    /// What partitions are made of: `cores` or `SMs`.
    pub fn unit(&self) -> &'static str {
        match self {
            DeviceSpec::Cpu(_) => "cores",
            DeviceSpec::Cuda(_) => "SMs",
        }
    }

    /// The same device with these of its partitions, in ascending order; the first must be 0, the whole device.
    ///
    /// # Panics
    /// If it is not, or there is none of a number.
    #[must_use]
    pub fn with_partitions(&self, places: &[usize]) -> DeviceSpec {
        assert_eq!(places.first(), Some(&0), "the whole device comes first");
        match self {
            DeviceSpec::Cpu(spec) => {
                let partitions = places.iter().map(|&place| spec.partitions[place].clone()).collect();
                DeviceSpec::Cpu(CpuSpec { partitions, ..spec.clone() })
            }
            DeviceSpec::Cuda(spec) => {
                let draft_sms = places.iter().skip(1).map(|&place| spec.draft_sms[place - 1]).collect();
                DeviceSpec::Cuda(CudaSpec { draft_sms, ..spec.clone() })
            }
        }
    }

    /// Tokens of a KV block, where nothing else can be had.
    pub fn block_size(&self) -> Option<usize> {
        match self {
            DeviceSpec::Cpu(_) => None,
            DeviceSpec::Cuda(_) => Some(faser_kernels::cuda::BLOCK_SIZE),
        }
    }

    /// Why passes cannot be timed beside a service; none if they can.
    pub fn measures_alone(&self) -> Option<&'static str> {
        match self {
            DeviceSpec::Cpu(_) => None,
            DeviceSpec::Cuda(_) => {
                Some("the service has the GPU's memory, and measuring needs some of its own")
            }
        }
    }

    /// What the draft lane and the verify lane have of each partition, in words.
    pub fn lanes(&self) -> Vec<(String, String)> {
        match self {
            DeviceSpec::Cpu(spec) => {
                let cores = |partition: &faser_topology::Partition| format!("cores {:?}", partition.cores);
                spec.partitions.iter().map(|pair| (cores(&pair.draft), cores(&pair.verify))).collect()
            }
            DeviceSpec::Cuda(spec) => {
                let sms = |LaneSizes { draft, verify }| (format!("{draft} SMs"), format!("{verify} SMs"));
                spec.partitions().into_iter().map(sms).collect()
            }
        }
    }

    /// Opens one lane, and does something with it.
    pub(crate) fn with_lane<W: OnLane>(&self, lane: LanePasses, work: W) -> Result<W::Found, ServiceError> {
        match self {
            DeviceSpec::Cpu(spec) => work.on(lane, spec.open_lane(&lane)),
            DeviceSpec::Cuda(spec) => work.on(lane, spec.open_lane(&lane)?),
        }
    }

    /// Ranks of the target's group, and of the draft's; 1 where a model is whole.
    pub fn ranks(&self) -> (usize, usize) {
        let (target, draft) = match self {
            DeviceSpec::Cpu(spec) => (spec.target.len(), spec.draft.len()),
            DeviceSpec::Cuda(spec) => {
                let drafts = spec.ranks.iter().filter(|rank| rank.source().draft.is_some());
                (spec.ranks.len(), drafts.count())
            }
        };
        (target, draft.max(1))
    }

    /// Checks what the parts say of each other.
    pub(crate) fn check(&self) -> Result<(), ServiceError> {
        match self {
            DeviceSpec::Cpu(spec) => spec.check(),
            DeviceSpec::Cuda(spec) if spec.ranks.is_empty() => {
                Err(ServiceError::Contradiction("there is no target".to_owned()))
            }
            DeviceSpec::Cuda(_) => Ok(()),
        }
    }

    /// How to make the lanes of this device for an engine of these bounds: once for each generation.
    pub(crate) fn factory(&self, engine: &EngineConfig) -> DeviceFactory {
        match self {
            DeviceSpec::Cpu(spec) => {
                let (spec, engine) = (spec.clone(), engine.clone());
                Arc::new(move || Ok(spec.build(&engine)))
            }
            DeviceSpec::Cuda(spec) => {
                let (spec, engine) = (spec.clone(), engine.clone());
                Arc::new(move || spec.build(&engine))
            }
        }
    }
}

/// What is done with one lane, on any device.
pub(crate) trait OnLane {
    /// What comes of it.
    type Found;

    /// Does it, with each rank's way to its lane.
    fn on<B: LaneBackend + 'static>(
        self,
        lane: LanePasses,
        ranks: Vec<Open<B>>,
    ) -> Result<Self::Found, ServiceError>;
}

/// A lane on one partition whose passes are to be timed.
#[derive(Clone, Copy)]
pub(crate) struct LanePasses {
    /// Which partition.
    pub(crate) place: usize,
    /// The draft lane.
    pub(crate) drafts: bool,
    pub(crate) block_size: usize,
    /// Rows of its largest pass, which have a block each where they have no context.
    pub(crate) most_rows: usize,
    /// Tokens before the last row of a pass with context, and blocks of its table.
    pub(crate) context: usize,
    pub(crate) table: usize,
}

impl LanePasses {
    /// Blocks of its pool.
    pub(crate) fn blocks(&self) -> usize {
        self.most_rows.max(self.table)
    }
}

/// Makes what a lane's runner drives, with fresh KV memory; called on the lane's thread.
pub(crate) type Open<B> = Box<dyn Fn() -> Result<B, ServiceError> + Send + Sync>;

/// The lanes of both models, rank after rank: the first of each leads.
fn lanes_of<B: LaneBackend + 'static>(draft: Vec<Open<B>>, verify: Vec<Open<B>>) -> DeviceBuild {
    let (mut draft, mut verify) = (draft.into_iter(), verify.into_iter());
    let first_draft =
        draft.next().map(|open| leading(open, drafting, DraftRunner::shedding, DraftRunner::run));
    let Some(first_verify) = verify.next() else { panic!("a device without a target") };
    let others = (0..draft.len().max(verify.len())).map(|_| RankBuild {
        draft: draft.next().map(|open| following(open, drafting, DraftRunner::run)),
        verify: verify.next().map(|open| following(open, verifying, VerifyRunner::run)),
    });
    let others = others.collect();
    let verify = leading(first_verify, verifying, VerifyRunner::shedding, VerifyRunner::run);
    DeviceBuild { draft: first_draft, verify, others }
}

fn drafting<B: LaneBackend>(backend: B) -> DraftRunner<B> {
    DraftRunner::new(backend, MASK_PATIENCE)
}

fn verifying<B: LaneBackend>(backend: B) -> VerifyRunner<B> {
    VerifyRunner::new(backend, MASK_PATIENCE)
}

fn leading<B: 'static, R: 'static, W: Work>(
    open: Open<B>,
    make: fn(B) -> R,
    shedding: fn(&mut R, Box<dyn Fallen>),
    run: fn(&mut R, W) -> W::Outcome,
) -> Build<W> {
    Arc::new(move |shed| {
        let mut runner = make(open()?);
        shedding(&mut runner, Box::new(ShedReader::new(shed)));
        Ok(Box::new(move |work: W| run(&mut runner, work)) as Run<W>)
    })
}

fn following<B: 'static, R: 'static, W: Work + Clone + Sync>(
    open: Open<B>,
    make: fn(B) -> R,
    run: fn(&mut R, W) -> W::Outcome,
) -> Build<Follow<W>> {
    Arc::new(move |_| {
        let mut runner = make(open()?);
        Ok(Box::new(move |Follow(work)| drop(run(&mut runner, Arc::unwrap_or_clone(work)))) as Run<Follow<W>>)
    })
}

/// Of a model in shards: its weights are those of all ranks.
fn of_all_ranks(shards: impl Iterator<Item = ModelFacts>) -> Option<ModelFacts> {
    shards.reduce(|all, own| ModelFacts { weight_bytes: all.weight_bytes + own.weight_bytes, ..all })
}

/// Refuses shards that are not those of a whole group, rank after rank.
fn whole_group(model: &str, found: &[Shard]) -> Result<(), ServiceError> {
    if found.iter().copied().eq(Shard::all(found.len())) { Ok(()) } else { Err(no_group(model, found)) }
}

fn no_group(model: &str, found: &[Shard]) -> ServiceError {
    ServiceError::Contradiction(format!(
        "the {model} is given in shards {found:?}: give all of a group, rank after rank"
    ))
}
