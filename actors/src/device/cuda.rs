//! Lanes on a GPU: the GPU is opened and has its weights once, for as many services as want it and for as long as it is well.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use faser_engine::EngineConfig;
use faser_kernels::cuda::{CudaError, Gpu, GpuInfo, NvrtcError, Share, SharePair};
use faser_models::cuda::{CudaModel, CudaSizes};
use faser_models::{ModelError, Progress};
use faser_topology::GpuDevice;

use super::{LaneSizes, ModelFacts};
use crate::error::ServiceError;
use crate::gpu_actor::DeviceBuild;
use crate::lane::Run;
use crate::runner::{CudaDraftRunner, CudaRunnerSpec, CudaVerifyRunner, DraftWork, VerifyWork};
use crate::shed::ShedReader;
use crate::spec::PassLimits;

/// Brings the weights to a GPU, the target's first, then the draft's if there is one. Called again when a GPU was lost.
pub type CudaWeights =
    Arc<dyn Fn(&Arc<Gpu>, &mut dyn FnMut(Progress)) -> Result<Vec<CudaModel>, ModelError> + Send + Sync>;

/// What a GPU with a pair on it is made from.
pub struct CudaSource {
    /// Which GPU, as it was found.
    pub info: GpuInfo,
    /// What was planned with: so much of its memory has to be free when it is opened.
    pub device: GpuDevice,
    /// Where compiled kernels are kept; without it every start compiles them.
    pub kernel_cache: Option<PathBuf>,
    /// The target model.
    pub target: ModelFacts,
    /// The draft model, if there is one.
    pub draft: Option<ModelFacts>,
    /// Their weights.
    pub weights: CudaWeights,
}

/// A pair on a GPU.
#[derive(Clone, Debug)]
pub struct CudaSpec {
    /// The GPU.
    pub device: CudaDevice,
    /// SMs of the draft lane on each partition behind the first, which is the whole GPU for both lanes. The verify lane has the rest.
    pub draft_sms: Vec<u32>,
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
    /// nothing on it has changed. A context that an error of a kernel has made useless is let go, and with the last use of it the driver
    /// ends it; the GPU is opened on a new one, and the weights are copied again.
    ///
    /// # Errors
    /// The GPU cannot be opened, has not the memory that was planned with, or does not take the weights.
    pub fn open(&self, progress: &mut dyn FnMut(Progress)) -> Result<Arc<OnGpu>, ServiceError> {
        let source = &self.0.source;
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = opened.as_ref().filter(|there| there.gpu.memory().is_ok()) {
            return Ok(there.clone());
        }
        *opened = None;
        let gpu = source.open()?;
        let (free_bytes, _) = gpu.memory()?;
        source.device.check_free(free_bytes as u64)?;
        let mut models = (source.weights)(&gpu, progress)?.into_iter().map(Arc::new);
        let (target, draft) = (models.next(), models.next());
        let Some(target) = target.filter(|_| draft.is_some() == source.draft.is_some()) else {
            return Err(ServiceError::Contradiction("weights of other models than were planned".to_owned()));
        };
        let there = Arc::new(OnGpu { gpu, target, draft });
        *opened = Some(there.clone());
        Ok(there)
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaDevice").field(&self.0.source.info).finish()
    }
}

impl CudaSource {
    fn open(&self) -> Result<Arc<Gpu>, CudaError> {
        match Gpu::open(self.info.ordinal, self.kernel_cache.as_deref()) {
            Err(CudaError::Compile(why @ NvrtcError::Cache { .. })) => {
                tracing::warn!(%why, "compiled kernels cannot be kept: every start compiles them");
                Gpu::open(self.info.ordinal, None)
            }
            opened => opened,
        }
    }
}

impl OnGpu {
    /// The shares of both lanes: the whole GPU, then each split.
    pub(crate) fn shares(&self, draft_sms: &[u32]) -> Result<Vec<SharePair>, CudaError> {
        let whole = Share::whole(&self.gpu);
        let mut shares = vec![SharePair { draft: whole.clone(), verify: whole }];
        for &sms in draft_sms {
            shares.push(self.split(sms)?);
        }
        Ok(shares)
    }

    fn split(&self, sms: u32) -> Result<SharePair, CudaError> {
        const ADVICE: &str = "name others by `device.partitions`, or do without by `[]`";
        let refuse = |problem: String| CudaError::Split { problem: format!("{problem}; {ADVICE}") };
        let pair = Share::split(&self.gpu, sms).map_err(|error| match error {
            CudaError::Split { problem } => refuse(problem),
            other => other,
        })?;
        match pair.draft.sms() {
            got if got == sms => Ok(pair),
            got => Err(refuse(format!("{sms} for drafting would become {got} on this GPU"))),
        }
    }
}

impl CudaSpec {
    /// Opens the GPU, or takes it as it is, and makes sure that its SMs can be shared out as said.
    ///
    /// # Errors
    /// As [`CudaDevice::open`]; a partition cannot be had.
    pub fn open(&self, progress: &mut dyn FnMut(Progress)) -> Result<Arc<OnGpu>, ServiceError> {
        let on_gpu = self.device.open(progress)?;
        on_gpu.shares(&self.draft_sms)?;
        Ok(on_gpu)
    }

    pub(super) fn partitions(&self) -> Vec<LaneSizes> {
        let sms = self.device.source().info.sms;
        let split =
            |&draft: &u32| LaneSizes { draft: draft as usize, verify: (sms - draft.min(sms)) as usize };
        let whole = LaneSizes { draft: sms as usize, verify: sms as usize };
        [whole].into_iter().chain(self.draft_sms.iter().map(split)).collect()
    }

    pub(super) fn build(&self, engine: &EngineConfig) -> Result<DeviceBuild, ServiceError> {
        let on_gpu = self.device.open(&mut |_| {})?;
        let shares = on_gpu.shares(&self.draft_sms)?;
        let limits = PassLimits::of(engine);
        let spec = |lane: fn(&SharePair) -> &Arc<Share>, sizes| CudaRunnerSpec {
            shares: shares.iter().map(|pair| lane(pair).clone()).collect(),
            sizes,
        };
        let draft_spec = spec(|pair| &pair.draft, limits.cuda_draft(engine));
        let verify_spec = spec(|pair| &pair.verify, limits.cuda_verify(engine));
        let target = on_gpu.target.clone();
        Ok(DeviceBuild {
            draft: on_gpu.draft.clone().map(|model| {
                Arc::new(move |shed| {
                    let mut runner = CudaDraftRunner::new(model.clone(), &draft_spec)?;
                    runner.shedding(Box::new(ShedReader::new(shed)));
                    Ok(Box::new(move |work: DraftWork| runner.run(work)) as Run<DraftWork>)
                }) as _
            }),
            verify: Arc::new(move |shed| {
                let mut runner = CudaVerifyRunner::new(target.clone(), &verify_spec)?;
                runner.shedding(Box::new(ShedReader::new(shed)));
                Ok(Box::new(move |work: VerifyWork| runner.run(work)) as Run<VerifyWork>)
            }),
            others: Vec::new(),
        })
    }
}

impl PassLimits {
    /// The bounds of the draft lane's passes on a GPU.
    pub fn cuda_draft(&self, engine: &EngineConfig) -> CudaSizes {
        self.cuda(engine, engine.draft_blocks, self.draft_logit_rows)
    }

    /// The bounds of the verify lane's passes on a GPU.
    pub fn cuda_verify(&self, engine: &EngineConfig) -> CudaSizes {
        self.cuda(engine, engine.target_blocks, self.verify_logit_rows)
    }

    fn cuda(&self, engine: &EngineConfig, blocks: usize, max_logit_rows: usize) -> CudaSizes {
        CudaSizes {
            blocks,
            max_rows: self.rows,
            max_logit_rows,
            max_chunks: engine.max_running,
            max_context: engine.max_context,
            max_gates: engine.target_layers,
        }
    }
}
