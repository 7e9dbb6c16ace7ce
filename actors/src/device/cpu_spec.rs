//! Lanes on cores of this host: of one device, or of a group of ranks that split them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::EngineConfig;
use faser_kernels::collective::in_process;
use faser_kernels::{Collective, Isa};
use faser_models::Model;
use faser_topology::{LanePair, Partition, rank_partitions};

use super::open::{LanePasses, Open, PassLimits, lanes_of, whole_group};
use crate::error::ServiceError;
use crate::gpu_actor::DeviceBuild;
use crate::runner::{CpuBackend, CpuLaneSpec};

/// A pair on cores of this host.
#[derive(Clone)]
pub struct CpuSpec {
    /// The target's shards, rank after rank: one, the whole model, where it is not split.
    pub target: Vec<Arc<Model>>,
    /// Those of the draft, which has the target's vocabulary and a group of its own: both share ranks as far as they go. Without any,
    /// nobody speculates.
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
    /// Whether the shards are those of whole groups.
    pub(super) fn check(&self) -> Result<(), ServiceError> {
        for (name, shards) in [("target", &self.target), ("draft", &self.draft)] {
            let shards: Vec<_> = shards.iter().map(|model| model.shard()).collect();
            whole_group(name, &shards)?;
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
        let cores = rank_partitions(&self.partitions, targets.len(), drafts.len().max(1));
        let lanes =
            |name, models: &[Arc<Model>], lane: fn(&LanePair) -> &Partition, blocks, max_logit_rows| {
                let ways = ways(models.len(), self.rank_deadline);
                let parts = models.iter().zip(&cores).zip(ways);
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
            if lane.drafts { (&self.draft, &pair.draft) } else { (&self.target, &pair.verify) };
        let (ranks, name) = (models.len(), if lane.drafts { "draft" } else { "verify" });
        let parts = models.iter().zip(cores.split(ranks)).zip(ways(ranks, self.rank_deadline));
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
