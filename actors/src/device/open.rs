//! What is the same of lanes on every device: what is said of them, how large their passes are, and how they are made of what a device opens.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use faser_engine::{EngineConfig, Event};
use faser_kernels::Dtype;
use faser_models::{Model, ModelConfig, Shard};

use crate::awake::Awake;
use crate::cancellation::{CancelReader, CancelSource};
use crate::error::ServiceError;
use crate::gpu_actor::{DeviceBuild, RankBuild};
use crate::lane::{Build, Follow, Run, Work};
use crate::nodes::{Link, MeasuredLane, VerifyLaneSpec};
use crate::runner::{
    CopyRunner, DraftRunner, DraftWork, Gathering, LaneBackend, MASK_PATIENCE, VerifyRunner,
};

/// What can be said of a model without its weights.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Its shape.
    pub config: ModelConfig,
    /// What is there of it, or of all ranks together the first's.
    pub shard: Shard,
    /// In which type its matrices are held.
    pub dtype: Dtype,
    /// In which type its keys and values are.
    pub kv_dtype: Dtype,
    /// Its weights, in bytes.
    pub weight_bytes: u64,
}

impl ModelFacts {
    /// Those of a model whose weights are in memory.
    pub fn of(model: &Model) -> ModelFacts {
        ModelFacts {
            config: model.config().clone(),
            shard: model.shard(),
            dtype: model.dtype(),
            kv_dtype: model.kv_dtype(),
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

/// The largest passes an engine asks for: what `Scratch` has to be made for on each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassLimits {
    /// Rows of a pass, on either lane.
    pub rows: usize,
    /// Rows of a draft pass whose logits are wanted.
    pub draft_logit_rows: usize,
    /// Rows of a verify pass whose logits are wanted.
    pub verify_logit_rows: usize,
}

impl PassLimits {
    /// The limits that follow from an engine's bounds.
    pub fn of(engine: &EngineConfig) -> PassLimits {
        let k = engine.speculation.room;
        let rows = engine.max_pass_rows;
        let drawn = if engine.draft.needs().passes.is_one() { k.max(1) } else { 1 };
        PassLimits {
            rows,
            draft_logit_rows: engine.draft_chunks().saturating_mul(drawn).min(rows),
            verify_logit_rows: engine.tuning.max_running.saturating_mul(k + 1).min(rows),
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

/// Rows of a pass whose logits are wanted, at most: larger passes are mostly prefill, which needs none.
pub(crate) const SAMPLED_ROWS: usize = 64;

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
    /// Tokens that the model knows.
    pub(crate) vocab: usize,
    /// As passes are that are served.
    pub(crate) deterministic: bool,
}

impl LanePasses {
    /// Blocks of its pool.
    pub(crate) fn blocks(&self) -> usize {
        self.most_rows.max(self.table)
    }
}

/// Makes what a lane's runner drives, with fresh KV memory; called on the lane's thread.
pub(crate) type Open<B> = Box<dyn Fn() -> Result<B, ServiceError> + Send + Sync>;

impl PassLimits {
    /// What the verify lane of an engine's target is made for, on a device with so many partitions.
    pub(super) fn verify_lane(&self, engine: &EngineConfig, partitions: usize) -> VerifyLaneSpec {
        VerifyLaneSpec {
            partitions,
            blocks: engine.target_blocks,
            block_size: engine.block_size,
            max_rows: self.rows,
            max_logit_rows: self.verify_logit_rows,
            max_running: engine.tuning.max_running,
            max_context: engine.max_context,
            layers: engine.target_layers,
            deterministic: engine.deterministic,
        }
    }
}

impl From<LanePasses> for MeasuredLane {
    fn from(lane: LanePasses) -> MeasuredLane {
        let LanePasses { block_size, most_rows, context, table, vocab, deterministic, .. } = lane;
        MeasuredLane { block_size, most_rows, context, table, vocab, deterministic }
    }
}

impl From<MeasuredLane> for LanePasses {
    fn from(lane: MeasuredLane) -> LanePasses {
        let MeasuredLane { block_size, most_rows, context, table, vocab, deterministic } = lane;
        LanePasses { place: 0, drafts: false, block_size, most_rows, context, table, vocab, deterministic }
    }
}

/// Another node's ranks take part in a device.
pub(super) fn joined_by(build: &mut DeviceBuild, link: Link) {
    build.on_loss.push(link.on_loss());
    build.others.push(RankBuild { draft: None, verify: Some(link.lane()) });
}

/// The same, in a session with other nodes that lasts as long as this.
pub(super) fn in_session<B: 'static>(open: Open<B>, links: &Arc<Vec<Link>>) -> Open<B> {
    let links = links.clone();
    Box::new(move || {
        let _lasts = &links;
        open()
    })
}

/// The lanes of both models, rank after rank: the first of each leads. Drafts that each rank has whole divide their plans, and whoever is last answers.
pub(super) fn lanes_of<B: LaneBackend + 'static>(
    draft: Vec<Open<B>>,
    copies: bool,
    verify: Vec<Open<B>>,
) -> DeviceBuild {
    let gathering = copies.then(|| Gathering::of(draft.len()));
    let (mut draft, mut verify) = (draft.into_iter().enumerate(), verify.into_iter());
    let first_draft = draft.next().map(|(rank, open)| match &gathering {
        Some(gathering) => copy(open, rank, gathering, Cow::Owned),
        None => leading(open, drafting, DraftRunner::set_cancel_source, |runner, work| {
            Event::DraftDone(runner.run(work))
        }),
    });
    let Some(first_verify) = verify.next() else { panic!("a device without a target") };
    let others = (0..draft.len().max(verify.len())).map(|_| RankBuild {
        draft: draft.next().map(|(rank, open)| match &gathering {
            Some(gathering) => {
                copy(open, rank, gathering, |Follow(work)| Cow::Owned(Arc::unwrap_or_clone(work)))
            }
            None => following(open, drafting, DraftRunner::run),
        }),
        verify: verify.next().map(|open| following(open, verifying, VerifyRunner::run)),
    });
    let others = others.collect();
    let verify = leading(first_verify, verifying, VerifyRunner::set_cancel_source, |runner, work| {
        Event::VerifyDone(runner.run(work))
    });
    DeviceBuild {
        draft: first_draft,
        draft_apart: false,
        verify,
        others,
        on_loss: Vec::new(),
        awake: Awake::default(),
    }
}

fn drafting<B: LaneBackend>(backend: B) -> DraftRunner<B> {
    DraftRunner::new(backend, MASK_PATIENCE)
}

fn verifying<B: LaneBackend>(backend: B) -> VerifyRunner<B> {
    VerifyRunner::new(backend, MASK_PATIENCE)
}

/// The lane of a rank that has the draft whole.
fn copy<B: LaneBackend + 'static, W: Work>(
    open: Open<B>,
    rank: usize,
    gathering: &Arc<Gathering>,
    work_of: fn(W) -> Cow<'static, DraftWork>,
) -> Build<W> {
    let gathering = gathering.clone();
    Arc::new(move |cancels| {
        let cancels = Box::new(CancelReader::new(cancels));
        let mut runner = CopyRunner::new(drafting(open()?), rank, gathering.clone(), cancels);
        Ok(Box::new(move |work: W| runner.run(work_of(work)).map(Event::DraftDone)) as Run<W>)
    })
}

fn leading<B: 'static, R: 'static, W: Work>(
    open: Open<B>,
    make: fn(B) -> R,
    set_cancel_source: fn(&mut R, Box<dyn CancelSource>),
    run: fn(&mut R, W) -> Event,
) -> Build<W> {
    Arc::new(move |cancels| {
        let mut runner = make(open()?);
        set_cancel_source(&mut runner, Box::new(CancelReader::new(cancels)));
        Ok(Box::new(move |work: W| Some(run(&mut runner, work))) as Run<W>)
    })
}

/// A rank after the first, whose outcome nobody needs twice.
fn following<B: 'static, R: 'static, W: Work + Clone + Sync, P>(
    open: Open<B>,
    make: fn(B) -> R,
    run: fn(&mut R, W) -> P,
) -> Build<Follow<W>>
where
    P: 'static,
{
    Arc::new(move |_| {
        let mut runner = make(open()?);
        Ok(Box::new(move |Follow(work)| {
            drop(run(&mut runner, Arc::unwrap_or_clone(work)));
            None
        }) as Run<Follow<W>>)
    })
}

/// Ranks that each have the draft whole; none where it is in one place, or split.
pub(super) fn copies(draft: &[Shard]) -> Option<usize> {
    (draft.len() > 1 && draft.iter().all(|shard| *shard == Shard::WHOLE)).then_some(draft.len())
}

/// Refuses an engine that divides its sequences among other ranks than those that have the draft whole.
pub(super) fn as_many_copies(draft: &[Shard], engine: &EngineConfig) -> Result<(), ServiceError> {
    let (there, divided) = (copies(draft).unwrap_or(1), engine.speculation.draft_copies);
    if there == divided || draft.is_empty() {
        return Ok(());
    }
    let problem = format!("{there} ranks have the draft whole, and sequences are divided among {divided}");
    Err(ServiceError::Contradiction(problem))
}

/// Refuses shards that are not those of these ranks of a group, rank after rank; all of it, where none are given.
pub(super) fn whole_group(
    model: &str,
    found: &[Shard],
    ranks: Option<Range<usize>>,
) -> Result<(), ServiceError> {
    let of = found.first().copied().unwrap_or(Shard::WHOLE);
    let own = ranks.unwrap_or(0..if found.is_empty() { 0 } else { of.ranks });
    let all = Shard::all_in_stages(of.ranks, of.stages).skip(own.start).take(own.len());
    if found.iter().copied().eq(all) { Ok(()) } else { Err(no_group(model, found)) }
}

pub(super) fn no_group(model: &str, found: &[Shard]) -> ServiceError {
    ServiceError::Contradiction(format!(
        "the {model} is given in shards {found:?}: give all of a group, rank after rank"
    ))
}
