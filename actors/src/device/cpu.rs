//! Lanes on cores of this host: of one device, or of a group of ranks that share them out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::EngineConfig;
use faser_kernels::collective::in_process;
use faser_kernels::{Collective, Isa};
use faser_models::{Model, Shard};
use faser_topology::{LanePair, Partition, rank_partitions};

use super::{LanePasses, Open, lanes_of};
use crate::error::ServiceError;
use crate::gpu_actor::DeviceBuild;
use crate::runner::{CpuBackend, CpuLaneSpec};
use crate::spec::PassLimits;

/// A pair on cores of this host.
#[derive(Clone)]
pub struct CpuSpec {
    /// The target model; the first rank's shard, if it is split over a group.
    pub target: Arc<Model>,
    /// The draft model, of the same vocabulary, or the first rank's shard; without one nobody speculates.
    pub draft: Option<Arc<Model>>,
    /// The cores of both lanes on each partition, all of them first: those of all ranks.
    pub partitions: Vec<LanePair>,
    /// The instruction set of the kernels.
    pub isa: Isa,
    /// The ranks after the first.
    pub group: CpuGroup,
}

/// The ranks after the first: target and draft are each split over a group of their own, which share ranks as far as both go.
#[derive(Clone)]
pub struct CpuGroup {
    /// The target's other shards, from rank 1 on.
    pub target: Vec<Arc<Model>>,
    /// The draft's other shards, from rank 1 on.
    pub draft: Vec<Arc<Model>>,
    /// A rank that another has waited for longer is lost, and the group is built anew. Generous: a rank may be at a long prefill.
    pub deadline: Duration,
}

impl Default for CpuGroup {
    /// No other ranks, and a minute.
    fn default() -> CpuGroup {
        CpuGroup { target: Vec::new(), draft: Vec::new(), deadline: Duration::from_secs(60) }
    }
}

impl fmt::Debug for CpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuSpec")
            .field("partitions", &self.partitions)
            .field("isa", &self.isa)
            .finish_non_exhaustive()
    }
}

impl CpuSpec {
    /// Whether the shards are those of whole groups.
    pub(super) fn check(&self) -> Result<(), ServiceError> {
        for (name, shards) in [("target", self.targets()), ("draft", self.drafts())] {
            let found: Vec<Shard> = shards.iter().map(|model| model.shard()).collect();
            if !found.iter().copied().eq(Shard::all(found.len())) {
                return Err(ServiceError::Contradiction(format!(
                    "the {name} is given in shards {found:?}: give all of a group, rank after rank"
                )));
            }
        }
        Ok(())
    }

    /// The target's shards, rank after rank.
    pub(crate) fn targets(&self) -> Vec<&Arc<Model>> {
        std::iter::once(&self.target).chain(&self.group.target).collect()
    }

    /// The draft's shards; none without a draft.
    pub(crate) fn drafts(&self) -> Vec<&Arc<Model>> {
        self.draft.iter().chain(&self.group.draft).collect()
    }

    /// How to make the lanes, once: a group that was lost is of no use to the lanes after it.
    pub(super) fn build(&self, engine: &EngineConfig) -> DeviceBuild {
        self.build_in(engine, &ways)
    }

    /// As `build`, with groups of the caller's making: see [`ways`].
    pub(crate) fn build_in(
        &self,
        engine: &EngineConfig,
        ways: &dyn Fn(usize, Duration) -> Vec<Option<Arc<dyn Collective>>>,
    ) -> DeviceBuild {
        let limits = PassLimits::of(engine);
        let (targets, drafts) = (self.targets(), self.drafts());
        let cores = rank_partitions(&self.partitions, targets.len(), drafts.len().max(1));
        let lanes =
            |name, models: Vec<&Arc<Model>>, lane: fn(&LanePair) -> &Partition, blocks, max_logit_rows| {
                let ways = ways(models.len(), self.group.deadline);
                let parts = models.into_iter().zip(&cores).zip(ways);
                let ranks = parts.map(|((model, cores), way)| {
                    let partitions = cores.iter().map(|pair| lane(pair).clone()).collect();
                    let (isa, block_size, max_rows) = (self.isa, engine.block_size, limits.rows);
                    let hidden = None;
                    let spec =
                        CpuLaneSpec { partitions, isa, blocks, block_size, max_rows, max_logit_rows, hidden };
                    opened(name, model.clone(), spec, way)
                });
                ranks.collect()
            };
        let draft =
            lanes("draft", drafts, |pair| &pair.draft, engine.draft.needs().blocks, limits.draft_logit_rows);
        let verify =
            lanes("verify", targets, |pair| &pair.verify, engine.target_blocks, limits.verify_logit_rows);
        lanes_of(draft, verify)
    }

    /// One lane on one partition, to be timed: that of each rank.
    pub(crate) fn open_lane(&self, lane: &LanePasses) -> Vec<Open<CpuBackend>> {
        let pair = &self.partitions[lane.place];
        let (models, cores) =
            if lane.drafts { (self.drafts(), &pair.draft) } else { (self.targets(), &pair.verify) };
        let (ranks, name) = (models.len(), if lane.drafts { "draft" } else { "verify" });
        let parts = models.into_iter().zip(cores.split(ranks)).zip(ways(ranks, self.group.deadline));
        let open = parts.map(|((model, cores), way)| {
            let spec = CpuLaneSpec {
                partitions: vec![cores],
                isa: self.isa,
                blocks: lane.blocks(),
                block_size: lane.block_size,
                max_rows: lane.most_rows,
                max_logit_rows: lane.most_rows,
                hidden: None,
            };
            opened(name, model.clone(), spec, way)
        });
        open.collect()
    }
}

/// A rank's lane: its model, what it is made for, and its way to the group.
fn opened(
    lane: &'static str,
    model: Arc<Model>,
    spec: CpuLaneSpec,
    way: Option<Arc<dyn Collective>>,
) -> Open<CpuBackend> {
    Box::new(move || {
        let mut backend = CpuBackend::new(model.clone(), &spec)?;
        way.iter().for_each(|way| backend.join(way));
        if !backend.pin_current_thread() {
            tracing::warn!(lane, "the lane's thread cannot be pinned to its core; it may be slower");
        }
        Ok(backend)
    })
}

/// Each rank's way to its group; none is needed alone.
pub(crate) fn ways(ranks: usize, deadline: Duration) -> Vec<Option<Arc<dyn Collective>>> {
    if ranks <= 1 {
        return vec![None; ranks];
    }
    in_process(ranks, deadline).into_iter().map(|way| Some(Arc::new(way) as Arc<dyn Collective>)).collect()
}
