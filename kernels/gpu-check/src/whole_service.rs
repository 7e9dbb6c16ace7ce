//! A whole service on a GPU: the tokens that the CPU's gives; and its end when a kernel writes to an illegal address in between.

use std::sync::Arc;
use std::time::Duration;

use faser_actors::{
    CpuSpec, CudaDevice, CudaSource, CudaSpec, DeviceSpec, DeviceStatus, GroupTerms, ModelFacts, Service,
    ServiceSpec, Submission, Update, WatchdogConfig,
};
use faser_engine::{
    DraftSource, EngineConfig, FinishReason, Learned, Policy, SpeculationBounds, TokenId, Tuning,
};
use faser_kernels::cuda::{BLOCK_SIZE, CudaLane, Share, probe_one};
use faser_kernels::{Dtype, Isa, Sampling};
use faser_models::cuda::CudaModel;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{Model, Shard, WeightSource};
use faser_topology::{GpuDevice, LanePair, Partition};

use super::probes::{self, IllegalWriteArgs};
use super::{CheckResult, Report, Setting};

type Failure = Box<dyn std::error::Error + Send + Sync>;
/// What requests got and how they ended, and the device behind them.
type Ended = (Vec<(Vec<TokenId>, FinishReason)>, DeviceStatus);

const REQUESTS: u64 = 4;
/// SMs of the draft lane on the split.
const SPLIT: u32 = 16;
const RANK_DEADLINE: Duration = Duration::from_secs(60);

/// Requests of a small pair in f32, under some policies, give the CPU's tokens; but for ties that rounding decides, which are rare.
///
/// # Errors
/// A service does not start, or loses a request.
pub fn tokens(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let pair = Pair::new(setting)?;
    let expected = pair.tokens(pair.on_cpu()?, Policy::Off)?;
    for policy in [Policy::Off, Policy::Fixed { k: 1 }, Policy::Fixed { k: 4 }] {
        let name = policy.to_string();
        let found = pair.tokens(pair.on_gpu(setting)?, policy)?;
        compare(&expected, &found, &format!("the CPU's tokens under {name}"), report);
    }
    Ok(())
}

/// A kernel writes to an illegal address while requests run: the GPU is given up at once, and every request is told.
///
/// # Errors
/// A service does not start, or loses a request.
pub fn lost(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let pair = Pair::new(setting)?;
    let policy = Policy::Fixed { k: 3 };
    let expected = pair.tokens(pair.on_cpu()?, policy.clone())?;
    let device = pair.on_gpu(setting)?;
    let DeviceSpec::Cuda(cuda) = &device else { return Err("not a GPU".into()) };
    let on_gpu = cuda.ranks[0].open(&mut |_| {})?;
    probes::load(&on_gpu.gpu)?;
    // Ready before: the requests do not take long.
    let illegal = CudaLane::new(&[Share::whole(&on_gpu.gpu)], false)?;
    drop(on_gpu);
    let (found, status) = pair.run(device.clone(), policy, Some(illegal))?;
    let lost =
        matches!(&status, DeviceStatus::GivenUp { reason } if reason.contains("is lost to this process"));
    report.right(format!("the device is {status}"), lost);
    let told = found.iter().filter(|(_, reason)| *reason == FinishReason::DeviceFailed).count();
    report.at_least("requests that were told", told as f64, "", 1.0);
    let begun =
        expected.iter().zip(&found).filter(|(expected, (found, _))| expected.starts_with(found)).count();
    report.at_least("requests with a beginning of the CPU's tokens", begun as f64, "", expected.len() as f64);
    Ok(())
}

fn compare(expected: &[Vec<TokenId>], found: &[Vec<TokenId>], what: &str, report: &mut Report<'_>) {
    let same = expected.iter().zip(found).filter(|(a, b)| a == b).count();
    for (request, (expected, found)) in expected.iter().zip(found).enumerate() {
        if let Some(at) = expected.iter().zip(found).position(|(a, b)| a != b) {
            report.number(format!("request {request} has other tokens from here on"), at as f64, "");
        }
    }
    report.at_least(format!("requests with {what}"), same as f64, "", expected.len() as f64);
}

struct Pair {
    spec: SyntheticSpec,
    target: Arc<Model>,
    draft: Arc<Model>,
    context: usize,
    /// Tokens of each request.
    output: usize,
}

impl Pair {
    fn new(setting: &Setting) -> Result<Pair, Failure> {
        let context = setting.size(1024, 96);
        let spec = SyntheticSpec {
            layers: setting.size(4, 2),
            draft_layers: 1,
            hidden: setting.size(256, 32),
            intermediate: setting.size(512, 32),
            experts: 0,
            experts_per_token: 0,
            heads: setting.size(4, 2),
            kv_heads: setting.size(2, 1),
            vocab: setting.size(2048, 256),
            max_context: context,
            seed: 3,
            residual_scale: 0.3,
            mask_token: None,
        };
        let (target, draft) = synthetic::pair(&spec, Dtype::F32, &mut |_| {})?;
        let output = setting.size(500, 16);
        Ok(Pair { spec, target: Arc::new(target), draft: Arc::new(draft), context, output })
    }

    fn on_cpu(&self) -> Result<DeviceSpec, Failure> {
        let lane = Partition { cores: vec![0] };
        let partitions = vec![LanePair { draft: lane.clone(), verify: lane }];
        let (target, draft) = (vec![self.target.clone()], vec![self.draft.clone()]);
        Ok(DeviceSpec::Cpu(CpuSpec {
            target,
            draft,
            partitions,
            isa: Isa::auto()?,
            rank_deadline: RANK_DEADLINE,
            nodes: None,
        }))
    }

    fn on_gpu(&self, setting: &Setting) -> Result<DeviceSpec, Failure> {
        let info = probe_one(setting.ordinal)?;
        let device = GpuDevice { sms: info.sms, memory_bytes: info.memory_bytes, utilization: 0.5 };
        let spec = self.spec.clone();
        let device = CudaDevice::new(CudaSource {
            info,
            device,
            kernel_cache: None,
            target: ModelFacts::of(&self.target),
            draft: Some(ModelFacts::of(&self.draft)),
            weights: Arc::new(move |gpu, progress| {
                let source = WeightSource::Synthetic(spec.clone());
                let target = CudaModel::load(gpu, &source, Shard::WHOLE, Dtype::F32, progress)?;
                let draft = target.first_layers(spec.draft_layers);
                Ok(vec![target, draft])
            }),
        });
        Ok(DeviceSpec::Cuda(CudaSpec {
            ranks: vec![device],
            apart: None,
            draft_sms: vec![SPLIT],
            group: GroupTerms::within(RANK_DEADLINE),
            nodes: None,
            own_ranks: None,
        }))
    }

    fn service(&self, device: DeviceSpec, policy: Policy) -> ServiceSpec {
        let blocks = REQUESTS as usize * self.context / BLOCK_SIZE;
        ServiceSpec {
            device,
            engine: EngineConfig {
                block_size: BLOCK_SIZE,
                target_blocks: blocks,
                draft: DraftSource::model(blocks),
                max_pass_rows: 64,
                max_context: self.context,
                partitions: Vec::new(),
                target_layers: self.target.config().layers.len(),
                deterministic: false,
                speculation: SpeculationBounds::default(),
                prefix_cache: true,
                learned: Learned::default(),
                tuning: Tuning {
                    max_running: REQUESTS as usize,
                    max_waiting: REQUESTS as usize,
                    policy,
                    ..Tuning::default()
                },
            },
            watchdog: WatchdogConfig { back_off: Duration::from_millis(10), ..WatchdogConfig::default() },
            kv_events: None,
        }
    }

    /// What each request gets, all at once.
    fn tokens(&self, device: DeviceSpec, policy: Policy) -> Result<Vec<Vec<TokenId>>, Failure> {
        let whole = |(tokens, reason)| match reason {
            FinishReason::Length => Ok(tokens),
            reason => Err(format!("a request ended by {reason:?}").into()),
        };
        self.run(device, policy, None)?.0.into_iter().map(whole).collect()
    }

    /// What each request gets, and how it and the device end; on the lane `illegal` a kernel writes to an illegal address when the first
    /// tokens have come.
    fn run(
        &self,
        device: DeviceSpec,
        policy: Policy,
        mut illegal: Option<CudaLane>,
    ) -> Result<Ended, Failure> {
        let spec = self.service(device, policy);
        actix::System::new().block_on(async {
            let service = Service::start(spec).await?;
            let mut streams = Vec::new();
            for seed in 0..REQUESTS {
                streams.push(service.submit(self.submission(seed)).await?);
            }
            let mut all = Vec::new();
            for mut stream in streams {
                let mut found = Vec::new();
                let reason = loop {
                    match stream.next().await.ok_or("a stream ended without a word")? {
                        Update::Tokens(tokens) => found.extend(tokens.iter().map(|emitted| emitted.token)),
                        Update::Finished { reason, .. } => break reason,
                    }
                    if let Some(lane) = illegal.take() {
                        write_to_illegal_address(lane)?;
                    }
                };
                all.push((found, reason));
            }
            let status = service.status();
            service.stop().await;
            Ok((all, status))
        })
    }

    fn submission(&self, seed: u64) -> Submission {
        let vocab = self.target.config().vocab as TokenId;
        Submission {
            prompt: (0..9 + seed as TokenId).map(|i| (i * 7 + seed as TokenId) % vocab).collect(),
            sampling: Sampling {
                seed,
                temperature: if seed == 0 { 0.0 } else { 0.8 },
                ..Sampling::default()
            },
            max_new_tokens: self.output,
            ..Submission::default()
        }
    }
}

/// A write to where no memory is, on the service's own context, which the lane lets go.
fn write_to_illegal_address(mut lane: CudaLane) -> CheckResult {
    lane.bind()?;
    lane.launch(&IllegalWriteArgs::launch())?;
    match lane.wait(&mut || {}) {
        Err(_) => Ok(()),
        Ok(()) => Err("a write to where no memory is went through".into()),
    }
}
