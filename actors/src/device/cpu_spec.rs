//! Lanes on cores of this host: of one device, or of a group of ranks that split them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::EngineConfig;
use faser_kernels::collective::in_process;
use faser_kernels::{Collective, Isa};
use faser_models::{Features, Model, Shard};
use faser_topology::{LanePair, Partition, rank_partitions};

use super::open::{LanePasses, Open, PassLimits, as_many_copies, copies, lanes_of, whole_group};
use crate::error::ServiceError;
use crate::gpu_actor::DeviceBuild;
use crate::runner::{CpuBackend, CpuFeatures, CpuLaneSpec};

/// A pair on cores of this host.
#[derive(Clone)]
pub struct CpuSpec {
    /// The target's shards, rank after rank: one, the whole model, where it is not split.
    pub target: Vec<Arc<Model>>,
    /// Those of the draft, which has the target's vocabulary and a group of its own: both share ranks as far as they go. Or the whole draft, once for
    /// each rank, which divide the sequences among them. Without any, nobody speculates.
    pub draft: Vec<Arc<Model>>,
    /// The cores of both lanes on each partition, all of them first: those of all ranks.
    pub partitions: Vec<LanePair>,
    /// The instruction set of the kernels.
    pub isa: Isa,
    /// A rank that another has waited for longer is lost, and the group is built anew. Generous: a rank may be at a long prefill.
    pub rank_deadline: Duration,
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
    /// Whether the shards are those of whole groups, as the engine has it.
    pub(super) fn check(&self, engine: &EngineConfig) -> Result<(), ServiceError> {
        let of = |models: &[Arc<Model>]| models.iter().map(|model| model.shard()).collect::<Vec<_>>();
        let draft = of(&self.draft);
        whole_group("target", &of(&self.target))?;
        if copies(&draft).is_none() {
            whole_group("draft", &draft)?;
        }
        as_many_copies(&draft, engine)?;
        if self.draft.len() > 1
            && self.copies().is_none()
            && self.draft.iter().any(|draft| draft.config().head.is_some())
        {
            let problem = "the draft is a head on hidden states, which is not split over ranks: `device.draft_tensor_parallel` must be 1";
            return Err(ServiceError::Contradiction(problem.to_owned()));
        }
        if self.target.is_empty() {
            return Err(ServiceError::Contradiction("there is no target".to_owned()));
        }
        Ok(())
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
        let (targets, drafts) = (&self.target, &self.draft);
        let pages = self.features(engine.target_blocks, engine.block_size);
        let cores = rank_partitions(&self.partitions, targets.len(), drafts.len().max(1));
        let lanes = |name,
                     models: &[Arc<Model>],
                     lane: fn(&LanePair) -> &Partition,
                     blocks,
                     max_logit_rows| {
            let ways = self.ways_of(models, ways);
            let parts = models.iter().zip(&cores).zip(ways);
            let ranks = parts.enumerate().map(|(rank, ((model, cores), way))| {
                let partitions = cores.iter().map(|pair| lane(pair).clone()).collect();
                let (isa, block_size, max_rows) = (self.isa, engine.block_size, limits.rows);
                let features = self.features_of(rank, model, pages.as_ref());
                let spec =
                    CpuLaneSpec { partitions, isa, blocks, block_size, max_rows, max_logit_rows, features };
                opened(name, model.clone(), spec, way)
            });
            ranks.collect()
        };
        let draft =
            lanes("draft", drafts, |pair| &pair.draft, engine.draft.needs().blocks, limits.draft_logit_rows);
        let verify =
            lanes("verify", targets, |pair| &pair.verify, engine.target_blocks, limits.verify_logit_rows);
        lanes_of(draft, self.copies().is_some(), verify)
    }

    /// Ranks that each have the draft whole, and a part of the draft lane's cores.
    pub fn copies(&self) -> Option<usize> {
        let draft: Vec<_> = self.draft.iter().map(|model| model.shard()).collect();
        copies(&draft)
    }

    /// Each rank's way to those that have the other shards.
    fn ways_of(
        &self,
        models: &[Arc<Model>],
        ways: &dyn Fn(usize, Duration) -> Vec<Option<Arc<dyn Collective>>>,
    ) -> Vec<Option<Arc<dyn Collective>>> {
        let whole = models.iter().all(|model| model.shard() == Shard::WHOLE);
        if whole { vec![None; models.len()] } else { ways(models.len(), self.rank_deadline) }
    }

    /// Pages for what a head reads of tokens in so many blocks of its target, if the draft is one.
    fn features(&self, blocks: usize, block_size: usize) -> Option<Arc<Features>> {
        let head = self.draft.first().map(|draft| draft.config()).filter(|draft| draft.head.is_some())?;
        Some(Features::new(blocks, block_size, head.hidden))
    }

    /// What a rank's lane has of them: all ranks of the target have the same streams, and the first writes.
    fn features_of(&self, rank: usize, model: &Model, pages: Option<&Arc<Features>>) -> Option<CpuFeatures> {
        let writes = model.config().head.is_none();
        let head = self.draft.first().filter(|_| writes).cloned();
        pages.filter(|_| rank == 0 || !writes).map(|pages| CpuFeatures { pages: pages.clone(), head })
    }

    /// One lane on one partition, to be timed: that of each rank.
    pub(crate) fn open_lane(&self, lane: &LanePasses) -> Vec<Open<CpuBackend>> {
        let pair = &self.partitions[lane.place];
        let (models, cores) =
            if lane.drafts { (&self.draft, &pair.draft) } else { (&self.target, &pair.verify) };
        let (ranks, name) = (models.len(), if lane.drafts { "draft" } else { "verify" });
        let parts = models.iter().zip(cores.split(ranks)).zip(self.ways_of(models, &ways));
        // Of several that are whole each has such passes.
        let parts = parts.take(if lane.drafts && self.copies().is_some() { 1 } else { ranks });
        let pages = self.features(lane.blocks(), lane.block_size);
        let open = parts.enumerate().map(|(rank, ((model, cores), way))| {
            let spec = CpuLaneSpec {
                partitions: vec![cores],
                isa: self.isa,
                blocks: lane.blocks(),
                block_size: lane.block_size,
                max_rows: lane.most_rows,
                max_logit_rows: lane.most_rows,
                features: self.features_of(rank, model, pages.as_ref()),
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
