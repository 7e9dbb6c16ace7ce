//! A whole service on a fake GPU: the tokens that the CPU's gives, also when a lane fails in between; GPUs that are lost; cost tables; refusals.

#[path = "../../kernels/tests/cuda_fake/mod.rs"]
mod cuda_fake;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use faser_actors::{
    CpuSpec, CudaDevice, CudaSource, CudaSpec, DeviceSpec, DeviceStatus, Dtype, GroupTerms, Isa, LaneSizes,
    LogprobCollector, ModelFacts, ProfileSpec, Sampling, Service, ServiceSpec, Submission, SubmitError,
    Update, WatchdogConfig, probe_one, profile,
};
use faser_engine::cost::Reach;
use faser_engine::{
    DraftSource, EngineConfig, FinishReason, Learned, Policy, SpeculationBounds, TokenId, Tuning,
};
use faser_models::cuda::CudaModel;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{Model, ModelError, Shard, WeightSource};
use faser_topology::{GpuDevice, LanePair, Partition};

/// Nothing here takes this long unless it hangs; kernels on fibers are slow.
const PATIENCE: Duration = Duration::from_secs(300);
const BLOCKS: usize = 24;
const GPUS: (&str, &str) = ("FASER_FAKE_GPUS", "2");

fn pair() -> SyntheticSpec {
    SyntheticSpec {
        layers: 2,
        draft_layers: 1,
        hidden: 32,
        intermediate: 32,
        experts: 0,
        experts_per_token: 0,
        heads: 2,
        kv_heads: 1,
        vocab: 256,
        max_context: 96,
        seed: 3,
        residual_scale: 0.3,
        mask_token: None,
    }
}

fn models() -> (Arc<Model>, Arc<Model>) {
    let (target, draft) = synthetic::pair(&pair(), Dtype::F32, &mut |_| {}).expect("a synthetic pair");
    (Arc::new(target), Arc::new(draft))
}

fn on_cpu() -> DeviceSpec {
    let (target, draft) = models();
    let lane = Partition { cores: vec![0] };
    let partitions = vec![LanePair { draft: lane.clone(), verify: lane }];
    let (target, draft) = (vec![target], vec![draft]);
    DeviceSpec::Cpu(CpuSpec {
        target,
        draft,
        partitions,
        isa: Isa::detect(),
        rank_deadline: PATIENCE,
        nodes: None,
    })
}

fn on_gpu(draft_sms: &[u32], utilization: f64) -> DeviceSpec {
    on_gpu_keeping(None, draft_sms, utilization)
}

fn on_gpu_keeping(kernel_cache: Option<PathBuf>, draft_sms: &[u32], utilization: f64) -> DeviceSpec {
    let (target, draft) = models();
    let info = probe_one(0).expect("the fake GPU is there");
    let device = GpuDevice { sms: info.sms, memory_bytes: info.memory_bytes, utilization };
    let facts = (ModelFacts::of(&target), ModelFacts::of(&draft));
    let weights = |gpu: &_, progress: &mut dyn FnMut(_)| {
        let source = WeightSource::Synthetic(pair());
        let target = CudaModel::load(gpu, &source, Shard::WHOLE, Dtype::F32, progress)?;
        let draft = target.first_layers(pair().draft_layers);
        Ok(vec![target, draft])
    };
    let device = CudaDevice::new(CudaSource {
        info,
        device,
        kernel_cache,
        target: facts.0,
        draft: Some(facts.1),
        weights: Arc::new(weights),
    });
    DeviceSpec::Cuda(CudaSpec {
        ranks: vec![device],
        apart: None,
        draft_sms: draft_sms.to_vec(),
        group: GroupTerms::within(PATIENCE),
        nodes: None,
        own_ranks: None,
    })
}

/// The target over `target` GPUs, the draft over the first `draft` of them.
fn over_gpus(target: usize, draft: usize, deadline: Duration) -> DeviceSpec {
    let (whole_target, whole_draft) = models();
    let facts = (ModelFacts::of(&whole_target), ModelFacts::of(&whole_draft));
    let rank = |rank: usize| {
        let info = probe_one(rank).expect("a fake GPU is there");
        let device = GpuDevice { sms: info.sms, memory_bytes: info.memory_bytes, utilization: 0.9 };
        let own = Shard::of(rank, target);
        let drafts = (rank < draft).then_some(Shard::of(rank, draft));
        CudaDevice::new(CudaSource {
            info,
            device,
            kernel_cache: None,
            target: ModelFacts { shard: own, ..facts.0.clone() },
            draft: drafts.map(|shard| ModelFacts { shard, ..facts.1.clone() }),
            weights: Arc::new(move |gpu, progress| {
                let draft = drafts.map(|shard| (WeightSource::SyntheticDraft(pair()), shard));
                [(WeightSource::Synthetic(pair()), own)]
                    .into_iter()
                    .chain(draft)
                    .map(|(source, shard)| CudaModel::load(gpu, &source, shard, Dtype::F32, progress))
                    .collect()
            }),
        })
    };
    let ranks = (0..target).map(rank).collect();
    DeviceSpec::Cuda(CudaSpec {
        ranks,
        apart: None,
        draft_sms: vec![16],
        group: GroupTerms::within(deadline),
        nodes: None,
        own_ranks: None,
    })
}

/// The target on the first GPU, the draft on the second alone.
fn on_own_gpus() -> DeviceSpec {
    let (target, draft) = models();
    let gpu = |place, model: &Model, source: fn(SyntheticSpec) -> WeightSource| {
        let info = probe_one(place).expect("a fake GPU is there");
        let device = GpuDevice { sms: info.sms, memory_bytes: info.memory_bytes, utilization: 0.9 };
        CudaDevice::new(CudaSource {
            info,
            device,
            kernel_cache: None,
            target: ModelFacts::of(model),
            draft: None,
            weights: Arc::new(move |gpu, progress| {
                CudaModel::load(gpu, &source(pair()), Shard::WHOLE, Dtype::F32, progress)
                    .map(|model| vec![model])
            }),
        })
    };
    let ranks = vec![gpu(0, &target, WeightSource::Synthetic)];
    let apart = gpu(1, &draft, WeightSource::SyntheticDraft);
    let draft_sms = vec![apart.source().info.sms];
    DeviceSpec::Cuda(CudaSpec {
        ranks,
        apart: Some(apart),
        draft_sms,
        group: GroupTerms::within(PATIENCE),
        nodes: None,
        own_ranks: None,
    })
}

fn spec(device: DeviceSpec) -> ServiceSpec {
    ServiceSpec {
        device,
        engine: EngineConfig {
            block_size: 16,
            target_blocks: BLOCKS,
            draft: DraftSource::model(BLOCKS),
            max_pass_rows: 32,
            max_context: 96,
            partitions: Vec::new(),
            target_layers: 2,
            deterministic: false,
            speculation: SpeculationBounds::default(),
            prefix_cache: true,
            learned: Learned::default(),
            tuning: Tuning {
                max_running: 3,
                max_waiting: 8,
                policy: Policy::Fixed { k: 3 },
                ..Tuning::default()
            },
        },
        watchdog: WatchdogConfig { back_off: Duration::from_millis(1), ..WatchdogConfig::default() },
        kv_events: None,
    }
}

fn submission(seed: u64) -> Submission {
    Submission {
        prompt: (0..9 + seed as TokenId).map(|i| (i * 7 + seed as TokenId) % 256).collect(),
        sampling: Sampling { seed, temperature: 0.8, ..Sampling::default() },
        max_new_tokens: 16,
        // The verify lane alone computes them.
        logprobs: Some(Arc::new(LogprobCollector::of_output(2))),
        ..Submission::default()
    }
}

/// The tokens of three requests at once; every pool is whole afterwards.
async fn tokens(spec: ServiceSpec) -> Vec<Vec<TokenId>> {
    let service = Service::start(spec).await.expect("a service");
    let all = tokens_of(&service).await;
    service.stop().await;
    all
}

async fn tokens_of(service: &Service) -> Vec<Vec<TokenId>> {
    let mut streams = Vec::new();
    for seed in 0..3u64 {
        streams.push(service.submit(submission(seed)).await.expect("it is taken"));
    }
    let mut all = Vec::new();
    for mut stream in streams {
        let mut found = Vec::new();
        let reason = loop {
            match stream.next().await.expect("a stream ends with a word") {
                Update::Tokens(tokens) => found.extend(tokens.iter().map(|emitted| emitted.token)),
                Update::Finished { reason, .. } => break reason,
            }
        };
        assert_eq!(reason, FinishReason::Length);
        all.push(found);
    }
    while service.view().running > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let view = service.view();
    assert!(view.target_pool.whole() && view.draft_pool.whole(), "{view:?}");
    all
}

fn in_system<T>(test: impl Future<Output = T>) -> T {
    actix::System::new()
        .block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("the test hangs") })
}

#[test]
fn a_service_on_a_gpu_gives_the_cpus_tokens_and_leaves_nothing_behind() {
    let name = "a_service_on_a_gpu_gives_the_cpus_tokens_and_leaves_nothing_behind";
    let report = cuda_fake::inside(name, &[], || {
        in_system(async {
            let expected = tokens(spec(on_cpu())).await;
            let gpu = on_gpu(&[16], 0.9);
            // A second service over the same device: the weights are there.
            for _ in 0..2 {
                assert_eq!(tokens(spec(gpu.clone())).await, expected);
            }
        });
    });
    let Some(report) = report else { return };
    assert!(report.contains("memory left 0\n") && report.contains("streams left 0\n"), "{report}");
}

#[test]
fn streams_go_on_with_the_same_tokens_after_a_launch_was_refused() {
    for (short, kernel) in [("draft", "confidence:9"), ("verify", "logprobs:4")] {
        let name = "streams_go_on_with_the_same_tokens_after_a_launch_was_refused";
        let report = cuda_fake::inside(name, &[("FASER_FAKE_REFUSE", kernel)], || {
            in_system(async {
                let expected = tokens(spec(on_cpu())).await;
                let gpu = on_gpu(&[16], 0.9);
                let DeviceSpec::Cuda(cuda) = &gpu else { panic!("a GPU") };
                let before = cuda.ranks[0].open(&mut |_| {}).expect("the fake GPU opens");
                let weights = Arc::downgrade(&before.target);
                drop(before);
                assert_eq!(tokens(spec(gpu.clone())).await, expected);
                assert!(weights.upgrade().is_some(), "context and weights stay: they are well");
            });
        });
        let Some(report) = report else { return };
        assert!(
            report.contains("memory left 0\n") && report.contains("streams left 0\n"),
            "{short}: {report}"
        );
    }
}

#[test]
fn a_service_on_several_gpus_gives_the_cpus_tokens_and_leaves_nothing_behind() {
    let name = "a_service_on_several_gpus_gives_the_cpus_tokens_and_leaves_nothing_behind";
    let report = cuda_fake::inside(name, &[GPUS], || {
        in_system(async {
            let expected = tokens(spec(on_cpu())).await;
            for draft in [1, 2] {
                let gpus = over_gpus(2, draft, PATIENCE);
                assert_eq!(gpus.ranks(), (2, draft));
                assert_eq!(tokens(spec(gpus)).await, expected, "the draft over {draft}");
            }
        });
    });
    let Some(report) = report else { return };
    for nothing in ["memory left 0\n", "streams left 0\n", "communicators left 0\n"] {
        assert!(report.contains(nothing), "{report}");
    }
    assert!(report.contains("communicators made 6\n"), "each lane has a group of its own: {report}");
}

#[test]
fn streams_go_on_with_the_same_tokens_after_a_rank_is_lost() {
    let name = "streams_go_on_with_the_same_tokens_after_a_rank_is_lost";
    for (variable, value, peers, words) in [
        // It never comes to a call; its communicator reports an error; its host fails.
        ("FASER_FAKE_NCCL_LOSE", "1:30", "none", "have not ended within"),
        ("FASER_FAKE_NCCL_FAIL", "0:25", "none", "ncclRemoteError"),
        ("FASER_FAKE_REFUSE", "activate_f32:33", "none", "OUT_OF_RESOURCES"),
        ("FASER_FAKE_PEERS_LOSE", "1:30", "all", "have not ended within"),
        ("FASER_FAKE_REFUSE", "sum_ranks:9", "all", "OUT_OF_RESOURCES"),
    ] {
        let variables = [GPUS, ("FASER_FAKE_PEERS", peers), (variable, value)];
        let report = cuda_fake::inside(name, &variables, || {
            in_system(async {
                let expected = tokens(spec(on_cpu())).await;
                let gpus = over_gpus(2, 1, Duration::from_secs(5));
                let mut spec = spec(gpus);
                // Long enough to be seen.
                spec.watchdog.back_off = Duration::from_millis(300);
                let service = Service::start(spec).await.expect("a service");
                let found = actix::spawn({
                    let service = service.clone();
                    async move { tokens_of(&service).await }
                });
                while !matches!(service.status(), DeviceStatus::Rebuilding { .. }) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                println!("{}", service.status());
                assert_eq!(found.await.expect("it ends"), expected, "{variable}");
                service.stop().await;
            });
        });
        let Some(report) = report else { return };
        for nothing in ["memory left 0\n", "streams left 0\n", "communicators left 0\n"] {
            assert!(report.contains(nothing), "{variable}, {words}: {report}");
        }
        assert!(report.contains("communicators made 4\n"), "the group was built anew: {report}");
    }
}

#[test]
fn a_gpu_that_is_lost_is_given_up_at_once_and_every_request_is_told() {
    let name = "a_gpu_that_is_lost_is_given_up_at_once_and_every_request_is_told";
    for ranks in ["1", "2"] {
        let variables = [GPUS, ("FASER_FAKE_LOSE", "logprobs:4"), ("RANKS", ranks)];
        let report = cuda_fake::inside(name, &variables, || {
            in_system(async {
                let alone = std::env::var("RANKS").as_deref() == Ok("1");
                let device = if alone { on_gpu(&[16], 0.9) } else { over_gpus(2, 1, Duration::from_secs(5)) };
                let service = Service::start(spec(device)).await.expect("a service");
                let mut stream = service.submit(submission(0)).await.expect("it is taken");
                let end = loop {
                    match stream.next().await.expect("a stream ends with a word") {
                        Update::Tokens(_) => {}
                        Update::Finished { reason, .. } => break reason,
                    }
                };
                assert_eq!(end, FinishReason::DeviceFailed);
                let DeviceStatus::GivenUp { reason } = service.status() else {
                    panic!("{}", service.status())
                };
                assert!(
                    reason.contains("is lost to this process") && reason.contains("LAUNCH_FAILED"),
                    "{reason}"
                );
                let refused = service.submit(submission(1)).await.err();
                assert!(matches!(refused, Some(SubmitError::NotReady(_))), "{refused:?}");
                service.stop().await;
            });
        });
        let Some(report) = report else { return };
        // A device that was built anew would have copied the weights again.
        let opened = |report: &str| {
            report.lines().find_map(|line| line.strip_prefix("contexts opened ")?.parse::<usize>().ok())
        };
        assert_eq!(opened(&report), ranks.parse().ok(), "{report}");
    }
}

/// The draft alone runs this kernel, so that it is its GPU that is lost, or whose launch is refused.
#[test]
fn a_draft_gpu_that_is_lost_is_retired_and_one_that_fails_for_once_is_not() {
    let name = "a_draft_gpu_that_is_lost_is_retired_and_one_that_fails_for_once_is_not";
    for (variable, for_good) in [("FASER_FAKE_LOSE", "yes"), ("FASER_FAKE_REFUSE", "no")] {
        let variables = [GPUS, (variable, "confidence:9"), ("FOR_GOOD", for_good)];
        let report = cuda_fake::inside(name, &variables, || {
            in_system(async {
                let for_good = std::env::var("FOR_GOOD").as_deref() == Ok("yes");
                let expected = tokens(spec(on_cpu())).await;
                let service = Service::start(spec(on_own_gpus())).await.expect("a service");
                assert_eq!(tokens_of(&service).await, expected);
                assert!(service.ready(), "{}", service.words());
                let (before, retired) = (service.view(), service.draft_retired());
                assert_eq!(before.draft_pool.total == 0, for_good);
                let words = ["the draft's own device", "GPU 1 is lost to this process"];
                let said = retired.as_ref().is_some_and(|why| words.iter().all(|words| why.contains(words)));
                assert_eq!((retired.is_some(), said), (for_good, for_good), "{retired:?}");
                assert_eq!(tokens_of(&service).await, expected);
                let more = service.view().totals.draft_passes - before.totals.draft_passes;
                assert_eq!(more == 0, for_good, "{more} draft passes more");
                service.stop().await;
            });
        });
        let Some(report) = report else { return };
        // A GPU that was built anew would have been opened again.
        assert!(report.contains("contexts opened 2\n"), "{report}");
        assert!(report.contains("streams left 0\n"), "{report}");
    }
}

#[test]
fn the_gpus_of_a_group_have_their_weights_at_the_same_time() {
    let name = "the_gpus_of_a_group_have_their_weights_at_the_same_time";
    cuda_fake::inside(name, &[GPUS], || {
        // Each tells the other that it has begun, and waits for the same; then both load, or fail.
        let spec = |fails: bool| {
            let (first, second) = (mpsc::channel(), mpsc::channel());
            let ways = [(first.0, second.1), (second.0, first.1)].map(Mutex::new);
            let ranks = ways.into_iter().enumerate().map(|(rank, way)| {
                let info = probe_one(rank).expect("a fake GPU is there");
                let device = GpuDevice { sms: info.sms, memory_bytes: info.memory_bytes, utilization: 0.9 };
                let weights = move |gpu: &_, progress: &mut dyn FnMut(_)| {
                    let (tell, told) = &*way.lock().expect("one asks");
                    tell.send(()).expect("the other is there");
                    told.recv_timeout(PATIENCE).expect("the other has begun");
                    if fails {
                        return Err(ModelError::Pair(format!("rank {rank} fails")));
                    }
                    let source = WeightSource::Synthetic(pair());
                    CudaModel::load(gpu, &source, Shard::of(rank, 2), Dtype::F32, progress)
                        .map(|model| vec![model])
                };
                let (target, weights) = (ModelFacts::of(&models().0), Arc::new(weights));
                CudaDevice::new(CudaSource { info, device, kernel_cache: None, target, draft: None, weights })
            });
            let ranks = ranks.collect();
            let (draft_sms, group) = (Vec::new(), GroupTerms::within(PATIENCE));
            CudaSpec { ranks, apart: None, draft_sms, group, nodes: None, own_ranks: None }
        };
        let mut heard = Vec::new();
        let both = spec(false).open(&mut |progress| heard.push(progress)).expect("both load");
        assert_eq!(both.len(), 2);
        let last = heard.last().expect("it was told");
        assert_eq!(last.done_bytes, last.total_bytes);
        let one = heard.iter().map(|progress| progress.total_bytes).min();
        assert_eq!(Some(last.total_bytes), one.map(|one| 2 * one), "of both together");
        let refusal = spec(true).open(&mut |_| {}).err().expect("both fail").to_string();
        assert!(refusal.contains("rank 0 fails"), "{refusal}");
    });
}

#[test]
fn kernels_that_cannot_be_kept_are_compiled_and_used() {
    cuda_fake::inside("kernels_that_cannot_be_kept_are_compiled_and_used", &[], || {
        // A file where a folder should be: nobody can write below it, not even root.
        let nowhere = std::env::current_exe().expect("a test has a file").join("kernels");
        let DeviceSpec::Cuda(cuda) = on_gpu_keeping(Some(nowhere), &[16], 0.9) else { panic!("a GPU") };
        let opened = cuda.open(&mut |_| {}).expect("it opens all the same");
        assert!(opened[0].draft.is_some());
    });
}

#[test]
fn passes_are_timed_on_every_share() {
    let report = cuda_fake::inside("passes_are_timed_on_every_share", &[], || {
        let device = on_gpu(&[16, 64, 132], 0.9);
        let sizes = [(132, 132), (16, 116), (64, 68), (132, 132)];
        let sizes = sizes.map(|(draft, verify)| LaneSizes { draft, verify });
        assert_eq!((device.partitions(), device.unit()), (sizes.to_vec(), "SMs"));
        let spec = ProfileSpec {
            device: &device,
            block_size: 16,
            // Room for four sequences of two blocks, which tell what attention costs.
            max_rows: 8,
            max_context: 32,
            deterministic: false,
        };
        let mut heard = Vec::new();
        let costs = profile(&spec, &mut |done, all| heard.push((done, all))).expect("costs");
        assert_eq!((costs.len(), heard.last()), (4, Some(&(8, 8))));
        assert_eq!([0, 1, 2, 3].map(|place| device.shares_units(place)), [false, false, false, true]);
        // On fibers rows are what takes time: far enough apart to be true on any machine, but beside another lane.
        for costs in costs.iter().enumerate().filter(|(place, _)| !device.shares_units(*place)) {
            let seconds = |rows| costs.1.verify.seconds(rows, Reach::NONE);
            assert!(seconds(8) > 2.0 * seconds(1), "{costs:?}");
        }
        let few = device.with_partitions(&[0, 2]);
        assert_eq!(few.partitions(), [sizes[0], sizes[2]]);
    });
    let Some(report) = report else { return };
    for sms in [132, 16, 116, 64, 68] {
        assert!(report.contains(&format!("launches on {sms} SMs")), "{sms}: {report}");
    }
}

#[test]
fn passes_of_a_group_are_timed_by_its_first_rank() {
    cuda_fake::inside("passes_of_a_group_are_timed_by_its_first_rank", &[GPUS], || {
        for draft in [1, 2] {
            let device = over_gpus(2, draft, PATIENCE);
            let spec = ProfileSpec {
                device: &device,
                block_size: 16,
                max_rows: 8,
                max_context: 96,
                deterministic: false,
            };
            let costs = profile(&spec, &mut |_, _| {}).expect("costs");
            assert_eq!(costs.len(), 2);
            for costs in &costs {
                let seconds = |rows| costs.verify.seconds(rows, Reach::NONE);
                assert!(seconds(8) > seconds(1), "{costs:?}");
            }
        }
    });
}

#[test]
fn shards_that_are_no_group_are_refused() {
    cuda_fake::inside("shards_that_are_no_group_are_refused", &[GPUS], || {
        let DeviceSpec::Cuda(mut cuda) = over_gpus(2, 2, PATIENCE) else { panic!("GPUs") };
        cuda.ranks.swap(0, 1);
        let refusal = in_system(Service::start(spec(DeviceSpec::Cuda(cuda)))).err().expect("it is refused");
        assert!(refusal.to_string().contains("give all of a group, rank after rank"), "{refusal}");
    });
}

#[test]
fn what_the_gpu_does_not_have_is_refused_by_the_name_of_the_key() {
    let name = "what_the_gpu_does_not_have_is_refused_by_the_name_of_the_key";
    cuda_fake::inside(name, &[("FASER_FAKE_MEMORY", "200000000")], || {
        let refusal = |device: DeviceSpec| {
            let error = in_system(Service::start(spec(device))).err().expect("it is refused");
            error.to_string()
        };
        let split = refusal(on_gpu(&[13], 0.9));
        assert!(
            split.contains("13 for drafting of 132 would become 16") && split.contains("`device.partitions`"),
            "{split}"
        );
        // Somebody else has most of it.
        let gpu = faser_kernels::cuda::Gpu::open(0, None).expect("the fake GPU opens");
        let other = faser_kernels::cuda::DeviceBuffer::zeroed(&gpu, 150_000_000, "another process");
        let taken = refusal(on_gpu(&[], 0.5));
        assert!(taken.contains("device.gpu_memory_utilization") && taken.contains("at most 0.25"), "{taken}");
        drop(other);
        // Lanes that find no room say what they wanted.
        let mut large = spec(on_gpu(&[], 0.5));
        large.engine.target_blocks = 1 << 20;
        let full = in_system(Service::start(large)).err().expect("it is refused").to_string();
        assert!(full.contains("keys takes") && full.contains("kv.memory"), "{full}");
    });
}
