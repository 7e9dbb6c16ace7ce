//! Lanes on a GPU, or on the GPUs of a group: each is opened and has its weights once, for as many services as want it and for as long as
//! it is well.

use std::fmt;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use faser_engine::EngineConfig;
use faser_kernels::cuda::{
    CudaError, Gpu, GpuInfo, GroupTerms, KvElement, NcclRankSlot, NvrtcError, Share, SharePair, SmallSums,
    nccl_group,
};
use faser_models::cuda::{CudaFeaturePages, CudaModel, CudaSizes};
use faser_models::{ModelError, Progress, Shard};
use faser_topology::GpuDevice;

use super::open::{
    LanePasses, LaneSizes, ModelFacts, Open, PassLimits, SAMPLED_ROWS, as_many_copies, copies, in_session,
    joined_by, lanes_of, no_group, whole_group,
};
use crate::awake::Awake;
use crate::error::ServiceError;
use crate::gpu_actor::DeviceBuild;
use crate::nodes::{Link, Nodes, Session, SessionWays, SessionWork};
use crate::runner::{CudaBackend, CudaFeatures, CudaLaneSpec};

/// Brings the weights to a GPU, the target's first, then the draft's if there is one.
pub type CudaWeights =
    Arc<dyn Fn(&Arc<Gpu>, &mut dyn FnMut(Progress)) -> Result<Vec<CudaModel>, ModelError> + Send + Sync>;

/// What a GPU with a pair on it, or with a rank's shards of one, is made from.
pub struct CudaSource {
    /// Which GPU, as it was found.
    pub info: GpuInfo,
    /// What was planned with: so much of its memory has to be free when it is opened.
    pub device: GpuDevice,
    /// Where compiled kernels are kept; without it every start compiles them.
    pub kernel_cache: Option<PathBuf>,
    /// The target model; its weights are those of the shard that is here.
    pub target: ModelFacts,
    /// The draft model, if there is one, or a shard of it here.
    pub draft: Option<ModelFacts>,
    /// Their weights.
    pub weights: CudaWeights,
}

/// A pair on a GPU, or on the GPUs of a group.
#[derive(Clone, Debug)]
pub struct CudaSpec {
    /// A GPU for each rank of the target, with its shard; the first of them may have shards of the draft, or each the whole draft.
    pub ranks: Vec<CudaDevice>,
    /// The GPU that has the draft alone, as what its source calls the target; none of the ranks has a draft then, or a head.
    pub apart: Option<CudaDevice>,
    /// SMs of the draft lane on each partition behind the first, which is the whole GPU for both lanes, in turns. The verify lane has the rest; where the draft
    /// lane has all of them both have all at once. Where the draft is apart: one, of all SMs, and the verify lane has all of its own.
    pub draft_sms: Vec<u32>,
    /// Of its groups: a rank that another has waited for longer than the deadline is lost, and the group is built anew. Generous: a rank may be at a long prefill.
    pub group: GroupTerms,
    /// The nodes that have the other ranks of the target; none where all are here, or on a node that does not lead.
    pub nodes: Option<Nodes>,
    /// Which of the target's ranks are here, where not all are.
    pub own_ranks: Option<Range<usize>>,
}

/// A GPU that is opened when it is first wanted. Clones are the same one.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

struct Inner {
    source: CudaSource,
    opened: Mutex<Option<Arc<OnGpu>>>,
}

/// An opened GPU with the weights on it.
pub struct OnGpu {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The target model.
    pub target: Arc<CudaModel>,
    /// The draft model.
    pub draft: Option<Arc<CudaModel>>,
}

impl CudaDevice {
    /// A GPU that is not opened yet.
    pub fn new(source: CudaSource) -> CudaDevice {
        CudaDevice(Arc::new(Inner { source, opened: Mutex::new(None) }))
    }

    /// What it is made from.
    pub fn source(&self) -> &CudaSource {
        &self.0.source
    }

    /// The GPU with its weights. One that was opened before is taken as it is if its context still answers: then what failed was ours, and
    /// nothing on it has changed. A context that no longer answers is not opened anew: cublasLt, NCCL and green contexts hold it too, so
    /// that letting go of it would not end it ("the process must be terminated and relaunched", CUDA's Driver API on 700 and 719).
    ///
    /// # Errors
    /// The GPU cannot be opened, has not the memory that was planned with, does not take the weights, or is lost: [`CudaError::Lost`].
    pub fn open(&self, progress: &mut dyn FnMut(Progress)) -> Result<Arc<OnGpu>, ServiceError> {
        open_all(std::slice::from_ref(self), progress).map(|mut opened| opened.remove(0))
    }
}

/// Opens GPUs, and brings all of them their weights at the same time; `progress` is that of all together. See [`CudaDevice::open`].
///
/// # Errors
/// As there: the first of them that fails.
pub(crate) fn open_all(
    devices: &[CudaDevice],
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Arc<OnGpu>>, ServiceError> {
    let mut opened: Vec<_> =
        devices.iter().map(|device| device.0.opened.lock().unwrap_or_else(PoisonError::into_inner)).collect();
    // One after the other: the first compiles what the others find compiled.
    let mut without_weights = Vec::new();
    for (number, (device, there)) in devices.iter().zip(&mut opened).enumerate() {
        let source = device.source();
        if let Some(there) = there.as_ref() {
            let lost = |why| CudaError::Lost { ordinal: source.info.ordinal, why: Box::new(why) };
            there.gpu.memory().map_err(lost)?;
        } else {
            without_weights.push((number, source, source.open()?, &mut **there));
        }
    }
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let loading: Vec<_> = without_weights
            .into_iter()
            .map(|(number, source, gpu, there)| {
                let tell = tell.clone();
                scope.spawn(move || -> Result<(), ServiceError> {
                    let tell = &mut |progress| {
                        // Whoever listens does so until all are loaded.
                        let _ = tell.send((number, progress));
                    };
                    let loaded = source.load(gpu, tell)?;
                    *there = Some(Arc::new(loaded));
                    Ok(())
                })
            })
            .collect();
        drop(tell);
        let mut each = vec![Progress { done_bytes: 0, total_bytes: 0 }; devices.len()];
        for (number, news) in told {
            each[number] = news;
            let sum = |bytes: fn(&Progress) -> u64| each.iter().map(bytes).sum();
            progress(Progress { done_bytes: sum(|of| of.done_bytes), total_bytes: sum(|of| of.total_bytes) });
        }
        let ended = loading.into_iter().map(|thread| thread.join().unwrap_or_else(|why| resume_unwind(why)));
        // All are waited for, whichever fails.
        ended.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()
    })?;
    Ok(opened.iter().filter_map(|there| Option::clone(there)).collect())
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaDevice").field(&self.0.source.info).finish()
    }
}

impl CudaSource {
    fn open(&self) -> Result<Arc<Gpu>, CudaError> {
        let opened = match Gpu::open(self.info.ordinal, self.kernel_cache.as_deref()) {
            Err(CudaError::Compile(why @ NvrtcError::Cache { .. })) => {
                tracing::warn!(%why, "compiled kernels cannot be cached: every start compiles them");
                Gpu::open(self.info.ordinal, None)
            }
            opened => opened,
        };
        if let Ok(gpu) = &opened {
            tracing::info!("GPU {}: {}", self.info.ordinal, gpu.kernels_from());
        }
        opened
    }

    /// Brings it the weights.
    fn load(&self, gpu: Arc<Gpu>, progress: &mut dyn FnMut(Progress)) -> Result<OnGpu, ServiceError> {
        let (free_bytes, _) = gpu.memory()?;
        self.device.check_free(free_bytes as u64)?;
        let contradiction = |what: &str| Err(ServiceError::Contradiction(what.to_owned()));
        let mut planned = [Some(&self.target), self.draft.as_ref()].into_iter().flatten();
        let mut models = Vec::with_capacity(2);
        for model in (self.weights)(&gpu, progress)? {
            let Some(facts) = planned.next() else { return contradiction("more models than were planned") };
            let Some(kv) = KvElement::of(facts.kv_dtype) else {
                return contradiction("keys and values in what GPUs do not hold them");
            };
            models.push(Arc::new(model.with_kv(kv)));
        }
        let mut models = models.into_iter();
        let (Some(target), None) = (models.next(), planned.next()) else {
            return contradiction("fewer models than were planned");
        };
        Ok(OnGpu { gpu, target, draft: models.next() })
    }
}

impl OnGpu {
    /// The shares of both lanes: the whole GPU, then each split, of which one may be the whole GPU again. Where nobody drafts, verifying has the whole GPU on every partition.
    pub(crate) fn shares(&self, draft_sms: &[u32]) -> Result<Vec<SharePair>, CudaError> {
        let whole = Share::whole(&self.gpu);
        let whole = SharePair { draft: whole.clone(), verify: whole };
        if self.draft.is_none() {
            return Ok(vec![whole; 1 + draft_sms.len()]);
        }
        let mut shares = vec![whole.clone()];
        for &sms in draft_sms {
            shares.push(if sms == self.gpu.info().sms { whole.clone() } else { self.split(sms)? });
        }
        Ok(shares)
    }

    /// What a lane of rank `number` has of these pages: the residual stream is the same on every rank, so the first alone writes.
    fn features(
        &self,
        number: usize,
        drafts: bool,
        pages: Option<&Arc<CudaFeaturePages>>,
    ) -> Option<CudaFeatures> {
        let head = self.draft.clone().filter(|_| !drafts);
        pages.filter(|_| number == 0).map(|pages| CudaFeatures { pages: pages.clone(), head })
    }

    fn split(&self, sms: u32) -> Result<SharePair, CudaError> {
        const ADVICE: &str = "name others by `device.partitions`, or do without by `[]`";
        let refuse = |problem: String| CudaError::Split { problem: format!("{problem}; {ADVICE}") };
        let pair = Share::split(&self.gpu, sms).map_err(|error| match error {
            CudaError::Split { problem } => refuse(problem),
            other => other,
        })?;
        match (pair.draft.sms(), pair.verify.sms()) {
            (draft, verify) if draft == sms && draft + verify == self.gpu.info().sms => Ok(pair),
            (draft, verify) => Err(refuse(format!(
                "{sms} for drafting of {} would become {draft}, and {verify} for verifying",
                self.gpu.info().sms
            ))),
        }
    }
}

impl CudaSpec {
    /// Opens the GPUs, or takes them as they are, and makes sure that their SMs can be partitioned as said.
    ///
    /// # Errors
    /// As [`CudaDevice::open`]; a partition cannot be had, or the shards are not those of whole groups.
    pub fn open(&self, progress: &mut dyn FnMut(Progress)) -> Result<Vec<Arc<OnGpu>>, ServiceError> {
        let ranks = self.open_ranks(progress)?;
        if self.open_apart(progress)?.is_some() && ranks.iter().any(|rank| rank.draft.is_some()) {
            return Err(ServiceError::Contradiction("the draft is apart, and on a rank too".to_owned()));
        }
        Ok(ranks)
    }

    /// As `open`, but without the GPU that has the draft alone, which may be lost.
    fn open_ranks(&self, progress: &mut dyn FnMut(Progress)) -> Result<Vec<Arc<OnGpu>>, ServiceError> {
        let ranks = open_all(&self.ranks, progress)?;
        for rank in &ranks {
            rank.shares(&self.draft_sms)?;
        }
        let target: Vec<Shard> = ranks.iter().map(|rank| rank.target.shard()).collect();
        let draft: Vec<Shard> =
            ranks.iter().flat_map(|rank| &rank.draft).map(|model| model.shard()).collect();
        whole_group("target", &target, self.own_ranks.clone())?;
        if copies(&draft) == Some(ranks.len()) {
            return Ok(ranks);
        }
        let drafts_later = ranks[draft.len()..].iter().any(|rank| rank.draft.is_some());
        if drafts_later { Err(no_group("draft", &draft)) } else { whole_group("draft", &draft, None) }?;
        Ok(ranks)
    }

    /// The GPU that has the draft alone, if one has.
    fn open_apart(&self, progress: &mut dyn FnMut(Progress)) -> Result<Option<Arc<OnGpu>>, ServiceError> {
        self.apart.as_ref().map(|device| device.open(progress)).transpose()
    }

    /// As `open`, but a partition that cannot be had is left out: which those are, and what is wrong with the first.
    ///
    /// # Errors
    /// As [`CudaSpec::open`], but for partitions.
    pub fn open_without_what_cannot_be_split(
        &mut self,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<(Vec<u32>, String)>, ServiceError> {
        let asked = std::mem::take(&mut self.draft_sms);
        let ranks = self.open(progress)?;
        let mut left_out: Option<(Vec<u32>, String)> = None;
        for sms in asked {
            match ranks.iter().try_for_each(|rank| rank.shares(&[sms]).map(drop)) {
                Ok(()) => self.draft_sms.push(sms),
                Err(CudaError::Split { problem }) => {
                    left_out.get_or_insert((Vec::new(), problem)).0.push(sms);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(left_out)
    }

    /// Whether several ranks have the draft whole.
    pub(super) fn has_copies(&self) -> bool {
        let mut drafts = self.ranks.iter().filter_map(|rank| rank.source().draft.as_ref());
        let whole = |draft: &ModelFacts| draft.shard == Shard::WHOLE;
        drafts.next().is_some_and(whole) && drafts.next().is_some()
    }

    /// SMs of the GPU that has the first rank.
    fn sms(&self) -> u32 {
        self.ranks.first().map_or(0, |first| first.source().info.sms)
    }

    /// Whether both lanes have the same SMs on a partition, at once.
    pub(super) fn shares_sms(&self, place: usize) -> bool {
        self.apart.is_none() && place > 0 && self.draft_sms[place - 1] == self.sms()
    }

    pub(super) fn partitions(&self) -> Vec<LaneSizes> {
        let sms = self.sms();
        let left = |draft: u32| if draft == sms { sms } else { sms - draft.min(sms) };
        let split = |&draft: &u32| LaneSizes { draft: draft as usize, verify: left(draft) as usize };
        let whole = LaneSizes { draft: sms as usize, verify: sms as usize };
        [whole].into_iter().chain(self.draft_sms.iter().map(split)).collect()
    }

    pub(super) fn build(&self, engine: &EngineConfig) -> Result<DeviceBuild, ServiceError> {
        let ranks = self.open_ranks(&mut |_| {})?;
        let limits = PassLimits::of(engine);
        let work = SessionWork::Serve(limits.verify_lane(engine, 1 + self.draft_sms.len()));
        let (verify_slots, links) = self.slots_of_target(ranks.len(), &work)?;
        let mut verify_slots = verify_slots.into_iter();
        let pages = pages(&ranks, engine.target_blocks)?;
        let drafts: Vec<_> = ranks.iter().flat_map(|rank| &rank.draft).map(|draft| draft.shard()).collect();
        let copies = copies(&drafts).is_some();
        as_many_copies(&drafts, engine)?;
        let mut draft_slots = slots(if copies { 1 } else { drafts.len() }, self.group)?.into_iter();
        let (mut draft, mut verify) = (Vec::new(), Vec::new());
        if let Some(apart) = self.apart.clone() {
            let (draft_sms, sizes) = (self.draft_sms.clone(), limits.cuda_draft(engine));
            // Opened with its lane: if it cannot be, the others are well.
            draft.push(Box::new(move || {
                let apart = apart.open(&mut |_| {})?;
                let shares = apart.shares(&draft_sms)?.into_iter().map(|pair| pair.draft).collect();
                let spec = CudaLaneSpec { shares, sizes, drafts: true, features: None };
                CudaBackend::new(apart.target.clone(), &spec)
            }) as Open<CudaBackend>);
        }
        for (number, rank) in ranks.iter().enumerate() {
            let shares = rank.shares(&self.draft_sms)?;
            let spec = |lane: fn(&SharePair) -> &Arc<Share>, sizes, drafts| CudaLaneSpec {
                shares: shares.iter().map(|pair| lane(pair).clone()).collect(),
                sizes,
                drafts,
                features: rank.features(number, drafts, pages.as_ref()),
            };
            if let Some(model) = &rank.draft {
                let spec = spec(|pair| &pair.draft, limits.cuda_draft(engine), true);
                draft.push(opened(model.clone(), spec, draft_slots.next().flatten()));
            }
            let spec = spec(|pair| &pair.verify, limits.cuda_verify(engine), false);
            verify.push(opened(rank.target.clone(), spec, verify_slots.next().flatten()));
        }
        let lanes = draft.len() + verify.len() + links.len();
        let mut build = lanes_of(draft, copies, verify);
        build.draft_apart = self.apart.is_some();
        // The GPU works, and the cores have nothing else to do.
        build.awake = Awake::with_lanes(lanes);
        links.into_iter().for_each(|link| joined_by(&mut build, link));
        Ok(build)
    }

    /// The places of the target's ranks here in its group, in a session with the other nodes if there are any.
    fn slots_of_target(
        &self,
        ranks: usize,
        work: &SessionWork,
    ) -> Result<(Vec<Option<NcclRankSlot>>, Vec<Link>), ServiceError> {
        let Some(nodes) = &self.nodes else { return Ok((slots(ranks, self.group)?, Vec::new())) };
        match nodes.begin(work)? {
            Session { ways: SessionWays::Gpus(slots), links } => {
                Ok((slots.into_iter().map(Some).collect(), links))
            }
            Session { .. } => Err(ServiceError::Contradiction("nodes on CPUs beside a GPU".to_owned())),
        }
    }

    /// One lane on one partition, to be timed: that of each rank.
    ///
    /// # Errors
    /// As [`CudaSpec::open`].
    pub(crate) fn open_lane(&self, lane: &LanePasses) -> Result<Vec<Open<CudaBackend>>, ServiceError> {
        let ranks = self.open(&mut |_| {})?;
        let sizes = lane.cuda();
        let pages = pages(&ranks, lane.blocks())?;
        let mut models = Vec::new();
        if let Some(apart) = self.open_apart(&mut |_| {})?.filter(|_| lane.drafts) {
            let share = apart.shares(&self.draft_sms)?[lane.place].draft.clone();
            let spec = CudaLaneSpec { shares: vec![share], sizes, drafts: true, features: None };
            models.push((apart.target.clone(), spec));
        }
        for (number, rank) in ranks.iter().enumerate() {
            let SharePair { draft, verify } = rank.shares(&self.draft_sms)?[lane.place].clone();
            let of_lane = if lane.drafts { rank.draft.clone() } else { Some(rank.target.clone()) };
            let share = if lane.drafts { draft } else { verify };
            let features = rank.features(number, lane.drafts, pages.as_ref());
            let spec = CudaLaneSpec { shares: vec![share], sizes, drafts: lane.drafts, features };
            models.extend(of_lane.map(|model| (model, spec)));
        }
        // Of several that are whole each has such passes.
        let shards: Vec<_> = models.iter().map(|(model, _)| model.shard()).collect();
        if copies(&shards).is_some() {
            models.truncate(1);
        }
        let (slots, links) = match lane.drafts {
            true => (slots(models.len(), self.group)?, Vec::new()),
            false => self.slots_of_target(models.len(), &SessionWork::Measure((*lane).into()))?,
        };
        let links = Arc::new(links);
        let open = models
            .into_iter()
            .zip(slots)
            .map(|((model, spec), slot)| in_session(opened(model, spec, slot), &links));
        Ok(open.collect())
    }
}

/// Pages for the features of a target with so many blocks, if its draft is a head; on the first rank's GPU.
fn pages(ranks: &[Arc<OnGpu>], blocks: usize) -> Result<Option<Arc<CudaFeaturePages>>, CudaError> {
    let head = ranks.first().and_then(|first| first.draft.as_ref());
    let head = head.filter(|draft| draft.config().head.is_some());
    head.map(|head| CudaFeaturePages::new(head, blocks)).transpose()
}

/// A rank's lane: its model, what it is made for, and its place in the group. If it cannot be made, the others hear of it.
pub(crate) fn opened(
    model: Arc<CudaModel>,
    spec: CudaLaneSpec,
    slot: Option<NcclRankSlot>,
) -> Open<CudaBackend> {
    Box::new(move || {
        let made = CudaBackend::new(model.clone(), &spec);
        let Some(slot) = &slot else { return made };
        let joined = made.and_then(|mut backend| {
            let small_sums = backend.join(slot)?;
            if slot.rank() == 0 {
                tell(small_sums, if spec.drafts { "draft" } else { "target" });
            }
            Ok(backend)
        });
        joined.inspect_err(|error| slot.abort(&format!("rank {} cannot be built: {error}", slot.rank())))
    })
}

/// How a group adds up is seen in its speed alone.
fn tell(small_sums: SmallSums, which: &str) {
    match small_sums {
        SmallSums::Peers => tracing::info!("small sums of the {which} over GPUs go over each other's memory"),
        SmallSums::Nccl => tracing::info!("sums of the {which} over GPUs go by NCCL"),
        SmallSums::Unproven => tracing::warn!(
            "sums of the {which} over GPUs go by NCCL: the driver says that these GPUs may write each other's memory, but what they wrote did not come, or wrong \
             (an IOMMU or PCIe's access control between them does that). `device.custom_all_reduce: false` says so, and saves the attempt at each start"
        ),
    }
}

/// Each rank's place in a group of its lane's; none is needed alone.
pub(crate) fn slots(ranks: usize, terms: GroupTerms) -> Result<Vec<Option<NcclRankSlot>>, CudaError> {
    if ranks <= 1 {
        return Ok(vec![None; ranks]);
    }
    Ok(nccl_group(ranks, terms)?.into_iter().map(Some).collect())
}

impl LanePasses {
    /// The bounds of its passes on a GPU.
    pub(crate) fn cuda(&self) -> CudaSizes {
        CudaSizes {
            blocks: self.blocks(),
            max_rows: self.most_rows,
            max_logit_rows: self.most_rows.min(SAMPLED_ROWS),
            max_chunks: self.most_rows,
            max_sequences: self.most_rows,
            max_context: self.context + 1,
            max_prune_checkpoints: 1,
            deterministic: self.deterministic && !self.drafts,
        }
    }
}

impl PassLimits {
    /// The bounds of the draft lane's passes on a GPU.
    pub fn cuda_draft(&self, engine: &EngineConfig) -> CudaSizes {
        let needs = engine.draft.needs();
        // Of each sequence the rows of its text, and those of its block: the ones that propose, and the others.
        let of_sequence = if needs.block.is_some() { 3 } else { 1 };
        CudaSizes {
            blocks: needs.blocks,
            max_logit_rows: self.draft_logit_rows,
            max_chunks: engine.draft_chunks().saturating_mul(of_sequence),
            // No text depends on what is proposed.
            deterministic: false,
            ..self.cuda_verify(engine)
        }
    }

    /// The bounds of the verify lane's passes on a GPU.
    pub fn cuda_verify(&self, engine: &EngineConfig) -> CudaSizes {
        // As other nodes make theirs.
        self.verify_lane(engine, 1).cuda()
    }
}
