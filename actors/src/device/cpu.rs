//! Lanes on cores of this host: of one device, or of a group of ranks that share them out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::EngineConfig;
use faser_kernels::collective::in_process;
use faser_kernels::{Collective, Isa};
use faser_models::{Model, Shard};
use faser_topology::{LanePair, Partition, rank_partitions};

use crate::error::ServiceError;
use crate::gpu_actor::{DeviceBuild, RankBuild};
use crate::lane::{Build, Follow, Run};
use crate::runner::{DraftRunner, DraftWork, RunnerSpec, VerifyRunner, VerifyWork};
use crate::shed::ShedReader;
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
        let ranks = |models: Vec<&Arc<Model>>, lane: fn(&LanePair) -> &Partition, blocks, max_logit_rows| {
            let ways = ways(models.len(), self.group.deadline);
            let parts = models.into_iter().zip(&cores).zip(ways);
            let ranks = parts.map(|((model, cores), way)| {
                let partitions = cores.iter().map(|pair| lane(pair).clone()).collect();
                let (isa, block_size, max_rows) = (self.isa, engine.block_size, limits.rows);
                let spec = RunnerSpec {
                    partitions,
                    isa,
                    blocks,
                    block_size,
                    max_rows,
                    max_logit_rows,
                    mask_patience: RunnerSpec::MASK_PATIENCE,
                };
                Rank { model: model.clone(), spec, way }
            });
            ranks.collect::<Vec<_>>()
        };
        let draft = ranks(drafts, |pair| &pair.draft, engine.draft_blocks, limits.draft_logit_rows);
        let mut draft = draft.into_iter();
        let mut verify = ranks(targets, |pair| &pair.verify, engine.target_blocks, limits.verify_logit_rows);
        let first_draft = draft.next();
        // The target itself.
        let first_verify = verify.remove(0);
        let mut verify = verify.into_iter();
        let others = (0..draft.len().max(verify.len())).map(|_| RankBuild {
            draft: draft.next().map(Rank::following_draft),
            verify: verify.next().map(Rank::following_verify),
        });
        let others = others.collect();
        DeviceBuild {
            draft: first_draft.map(Rank::leading_draft),
            verify: first_verify.leading_verify(),
            others,
        }
    }
}

/// Each rank's way to its group; none is needed alone.
pub(crate) fn ways(ranks: usize, deadline: Duration) -> Vec<Option<Arc<dyn Collective>>> {
    if ranks <= 1 {
        return vec![None; ranks];
    }
    in_process(ranks, deadline).into_iter().map(|way| Some(Arc::new(way) as Arc<dyn Collective>)).collect()
}

/// One rank's model, what its lane is made for, and its way to the group.
struct Rank {
    model: Arc<Model>,
    spec: RunnerSpec,
    way: Option<Arc<dyn Collective>>,
}

impl Rank {
    fn draft_runner(&self) -> Result<DraftRunner, ServiceError> {
        let mut runner = DraftRunner::new(self.model.clone(), &self.spec)?;
        self.way.iter().for_each(|way| runner.join(way));
        say_if_unpinned("draft", runner.pin_current_thread());
        Ok(runner)
    }

    fn verify_runner(&self) -> Result<VerifyRunner, ServiceError> {
        let mut runner = VerifyRunner::new(self.model.clone(), &self.spec)?;
        self.way.iter().for_each(|way| runner.join(way));
        say_if_unpinned("verify", runner.pin_current_thread());
        Ok(runner)
    }

    fn leading_draft(self) -> Build<DraftWork> {
        Arc::new(move |shed| {
            let mut runner = self.draft_runner()?;
            runner.shedding(Box::new(ShedReader::new(shed)));
            Ok(Box::new(move |work: DraftWork| runner.run(work)) as Run<DraftWork>)
        })
    }

    fn leading_verify(self) -> Build<VerifyWork> {
        Arc::new(move |shed| {
            let mut runner = self.verify_runner()?;
            runner.shedding(Box::new(ShedReader::new(shed)));
            Ok(Box::new(move |work: VerifyWork| runner.run(work)) as Run<VerifyWork>)
        })
    }

    fn following_draft(self) -> Build<Follow<DraftWork>> {
        Arc::new(move |_| {
            let mut runner = self.draft_runner()?;
            let run = move |Follow(work)| drop(runner.run(Arc::unwrap_or_clone(work)));
            Ok(Box::new(run) as Run<Follow<DraftWork>>)
        })
    }

    fn following_verify(self) -> Build<Follow<VerifyWork>> {
        Arc::new(move |_| {
            let mut runner = self.verify_runner()?;
            let run = move |Follow(work)| drop(runner.run(Arc::unwrap_or_clone(work)));
            Ok(Box::new(run) as Run<Follow<VerifyWork>>)
        })
    }
}

fn say_if_unpinned(lane: &str, pinned: bool) {
    if !pinned {
        tracing::warn!(lane, "the lane's thread cannot be pinned to its core; it may be slower");
    }
}
