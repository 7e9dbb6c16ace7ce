//! The device of a service: a CPU or a GPU, and how its lanes are made, as often as it takes. Nothing else in this crate knows which.

mod cpu_spec;
mod cuda_spec;
mod open;

use std::sync::Arc;

use faser_engine::EngineConfig;

use crate::error::ServiceError;
use crate::gpu_actor::DeviceFactory;
use crate::nodes::Nodes;

pub use cpu_spec::CpuSpec;
pub(crate) use cpu_spec::opened as opened_on_cores;
pub(crate) use cuda_spec::opened as opened_on_gpu;
pub use cuda_spec::{CudaDevice, CudaSource, CudaSpec, CudaWeights, OnGpu};
pub(crate) use open::{LanePasses, OnLane, Open, SAMPLED_ROWS};
pub use open::{LaneSizes, ModelFacts, PassLimits};

/// The pair and where it runs. Clones share the weights.
#[derive(Clone, Debug)]
pub enum DeviceSpec {
    /// On cores of this host.
    Cpu(CpuSpec),
    /// On a GPU, or on several, over which it is split.
    Cuda(CudaSpec),
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
            // Copies are in memory once.
            DeviceSpec::Cpu(spec) if spec.copies().is_some() => {
                spec.draft.first().map(|draft| ModelFacts::of(draft))
            }
            DeviceSpec::Cpu(spec) => of_all_ranks(spec.draft.iter().map(|shard| ModelFacts::of(shard))),
            DeviceSpec::Cuda(spec) => {
                let apart = spec.apart.iter().map(|device| device.source().target.clone());
                of_all_ranks(apart.chain(spec.ranks.iter().filter_map(|rank| rank.source().draft.clone())))
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

    /// Whether both lanes have the same units on a partition, at once: what passes cost there depends on what the other lane does.
    pub fn shares_units(&self, place: usize) -> bool {
        match self {
            DeviceSpec::Cpu(_) => false,
            DeviceSpec::Cuda(spec) => spec.shares_sms(place),
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

    /// Whether other processes may take of its time, so that passes were slow once and are not always.
    pub fn is_shared(&self) -> bool {
        matches!(self, DeviceSpec::Cpu(_))
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
            DeviceSpec::Cpu(spec) => work.on(lane, spec.open_lane(&lane)?),
            DeviceSpec::Cuda(spec) => work.on(lane, spec.open_lane(&lane)?),
        }
    }

    /// The other nodes that have ranks of the target.
    pub fn nodes(&self) -> Option<&Nodes> {
        match self {
            DeviceSpec::Cpu(spec) => spec.nodes.as_ref(),
            DeviceSpec::Cuda(spec) => spec.nodes.as_ref(),
        }
    }

    /// Ranks of the target's group, and of the draft's; 1 where a model is whole.
    pub fn ranks(&self) -> (usize, usize) {
        let (target, draft) = match self {
            DeviceSpec::Cpu(spec) => (spec.target_ranks(), spec.draft.len() / spec.copies().unwrap_or(1)),
            DeviceSpec::Cuda(spec) => {
                let drafts = spec.ranks.iter().filter(|rank| rank.source().draft.is_some());
                let ranks = spec.nodes.as_ref().map_or(spec.ranks.len(), Nodes::ranks);
                (ranks, if spec.has_copies() { 1 } else { drafts.count() })
            }
        };
        (target, draft.max(1))
    }

    /// Checks what the parts say of each other.
    pub(crate) fn check(&self, engine: &EngineConfig) -> Result<(), ServiceError> {
        match self {
            DeviceSpec::Cpu(spec) => spec.check(engine),
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
                Arc::new(move || spec.build(&engine))
            }
            DeviceSpec::Cuda(spec) => {
                let (spec, engine) = (spec.clone(), engine.clone());
                Arc::new(move || spec.build(&engine))
            }
        }
    }
}

/// Of a model in shards: its weights are those of all ranks.
fn of_all_ranks(shards: impl Iterator<Item = ModelFacts>) -> Option<ModelFacts> {
    shards.reduce(|all, own| ModelFacts { weight_bytes: all.weight_bytes + own.weight_bytes, ..all })
}
