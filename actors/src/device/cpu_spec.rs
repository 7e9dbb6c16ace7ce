//! Lanes on cores of this host: of one device, or of a group of ranks that split them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::EngineConfig;
use faser_kernels::Isa;
use faser_kernels::collective::{GroupWays, ways_in_process};
use faser_models::{Features, Model, Shard};
use faser_topology::{LanePair, Partition, rank_partitions};

use super::open::{
    LanePasses, Open, PassLimits, as_many_copies, copies, in_session, joined_by, lanes_of, whole_group,
};
use crate::error::ServiceError;
use crate::gpu_actor::DeviceBuild;
use crate::nodes::{Link, Nodes, Session, SessionWays, SessionWork};
use crate::runner::{CpuBackend, CpuFeatures, CpuLaneSpec};

/// A pair on cores of this host.
#[derive(Clone)]
pub struct CpuSpec {
    /// The target's shards, rank after rank: one, the whole model, where it is not split. Where other nodes have ranks too, those of this one.
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
    /// The nodes that have the other ranks of the target; none where all are here.
    pub nodes: Option<Nodes>,
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
        whole_group("target", &of(&self.target), self.nodes.as_ref().map(Nodes::own_ranks))?;
        if copies(&draft).is_none() {
            whole_group("draft", &draft, None)?;
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

    /// How to make the lanes, once: a group that was lost is of no use to the lanes after it. Waits for other nodes.
    ///
    /// # Errors
    /// They do not come.
    pub(super) fn build(&self, engine: &EngineConfig) -> Result<DeviceBuild, ServiceError> {
        self.build_in(engine, &|_, ways| ways)
    }

    /// As `build`, where something is done to each rank's ways.
    pub(crate) fn build_in(
        &self,
        engine: &EngineConfig,
        change: &dyn Fn(usize, GroupWays) -> GroupWays,
    ) -> Result<DeviceBuild, ServiceError> {
        let limits = PassLimits::of(engine);
        let (targets, drafts) = (&self.target, &self.draft);
        let pages = self.features(engine.target_blocks, engine.block_size);
        let cores = rank_partitions(&self.partitions, targets.len(), drafts.len().max(1));
        let lanes = |name,
                     models: &[Arc<Model>],
                     ways: Vec<Option<GroupWays>>,
                     lane: fn(&LanePair) -> &Partition,
                     blocks,
                     max_logit_rows| {
            let parts = models.iter().zip(&cores).zip(ways);
            let ranks = parts.enumerate().map(|(rank, ((model, cores), way))| {
                let partitions = cores.iter().map(|pair| lane(pair).clone()).collect();
                let (isa, block_size, max_rows) = (self.isa, engine.block_size, limits.rows);
                let features = self.features_of(rank, model, pages.as_ref());
                let spec =
                    CpuLaneSpec { partitions, isa, blocks, block_size, max_rows, max_logit_rows, features };
                opened(name, model.clone(), spec, way.map(|way| change(rank, way)))
            });
            ranks.collect()
        };
        let work = SessionWork::Serve(limits.verify_lane(engine, self.partitions.len()));
        let (ways, links) = self.ways_of_target(&work)?;
        let (blocks, logit_rows) = (engine.target_blocks, limits.verify_logit_rows);
        let verify = lanes("verify", targets, ways, |pair| &pair.verify, blocks, logit_rows);
        let (ways, blocks) = (self.ways_here(&self.draft), engine.draft.needs().blocks);
        let draft = lanes("draft", drafts, ways, |pair| &pair.draft, blocks, limits.draft_logit_rows);
        let mut build = lanes_of(draft, self.copies().is_some(), verify);
        links.into_iter().for_each(|link| joined_by(&mut build, link));
        Ok(build)
    }

    /// Ranks that each have the draft whole, and a part of the draft lane's cores.
    pub fn copies(&self) -> Option<usize> {
        let draft: Vec<_> = self.draft.iter().map(|model| model.shard()).collect();
        copies(&draft)
    }

    /// The ways of the target's ranks here, in a session with the other nodes if there are any.
    fn ways_of_target(
        &self,
        work: &SessionWork,
    ) -> Result<(Vec<Option<GroupWays>>, Vec<Link>), ServiceError> {
        let Some(nodes) = &self.nodes else { return Ok((self.ways_here(&self.target), Vec::new())) };
        match nodes.begin(work)? {
            Session { ways: SessionWays::Cores(ways), links } => {
                Ok((ways.into_iter().map(Some).collect(), links))
            }
            Session { .. } => Err(ServiceError::Contradiction("nodes on GPUs beside a CPU".to_owned())),
        }
    }

    /// Each rank's ways to those that have the other shards, if there are any: all of them are here.
    fn ways_here(&self, models: &[Arc<Model>]) -> Vec<Option<GroupWays>> {
        match models.first().map(|model| model.shard()) {
            Some(Shard { ranks, stages, .. }) if ranks > 1 => {
                ways_in_process(ranks, stages, self.rank_deadline).into_iter().map(Some).collect()
            }
            _ => vec![None; models.len()],
        }
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

    /// One lane on one partition, to be timed: that of each rank here. Ranks on other nodes do the same as long as these are there.
    ///
    /// # Errors
    /// The other nodes do not come.
    pub(crate) fn open_lane(&self, lane: &LanePasses) -> Result<Vec<Open<CpuBackend>>, ServiceError> {
        let pair = &self.partitions[lane.place];
        let (models, cores) =
            if lane.drafts { (&self.draft, &pair.draft) } else { (&self.target, &pair.verify) };
        let (ranks, name) = (models.len(), if lane.drafts { "draft" } else { "verify" });
        let (ways, links) = match lane.drafts {
            true => (self.ways_here(&self.draft), Vec::new()),
            false => self.ways_of_target(&SessionWork::Measure((*lane).into()))?,
        };
        let links = Arc::new(links);
        let parts = models.iter().zip(cores.split(ranks)).zip(ways);
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
            in_session(opened(name, model.clone(), spec, way), &links)
        });
        Ok(open.collect())
    }

    /// The ranks of the target's group, on all nodes.
    pub(crate) fn target_ranks(&self) -> usize {
        self.target.first().map_or(1, |model| model.shard().ranks)
    }
}

/// A rank's lane: its model, what it is made for, and its way to the group.
pub(crate) fn opened(
    lane: &'static str,
    model: Arc<Model>,
    spec: CpuLaneSpec,
    way: Option<GroupWays>,
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
