//! The service as a client sees it, with a tiny synthetic pair on real lanes, and with devices that fail on demand.

mod control;
mod fault_tests;
mod groups;
mod kv_events;
mod node_tests;
mod recording_tests;
mod replica_tests;
mod retired_draft;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use actix::System;
use faser_engine::{
    DraftSource, Engine, EngineConfig, FinishReason, Handling, Learned, Policy, Refusal, SpeculationBounds,
    TokenId, Tuning,
};
use faser_kernels::{Dtype, Isa, Sampling};
use faser_models::Model;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_topology::{LanePair, Partition};

use crate::drill::before_each;
use crate::gpu_actor::DeviceBuild;
use crate::lane::Build;
use crate::meter::Meter;
use crate::{
    CpuSpec, DeviceSpec, DeviceStatus, Service, ServiceError, ServiceSpec, Submission, SubmitError,
    TokenStream, Update, WatchdogConfig,
};

const VOCAB: usize = 256;
const BLOCKS: usize = 32;
/// Nothing in these tests takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

fn models() -> (Arc<Model>, Arc<Model>) {
    static PAIR: OnceLock<(Arc<Model>, Arc<Model>)> = OnceLock::new();
    let pair = PAIR.get_or_init(|| {
        let spec = SyntheticSpec {
            layers: 2,
            draft_layers: 1,
            hidden: 32,
            intermediate: 32,
            experts: 0,
            experts_per_token: 0,
            heads: 2,
            kv_heads: 1,
            vocab: VOCAB,
            max_context: 128,
            seed: 3,
            residual_scale: 0.3,
            mask_token: None,
        };
        let (target, draft) = synthetic::pair(&spec, Dtype::F32, &mut |_| {}).expect("a synthetic pair");
        (Arc::new(target), Arc::new(draft))
    });
    pair.clone()
}

fn spec() -> ServiceSpec {
    let (target, draft) = models();
    let lane = Partition { cores: vec![0] };
    ServiceSpec {
        device: DeviceSpec::Cpu(CpuSpec {
            target: vec![target],
            draft: vec![draft],
            partitions: vec![LanePair { draft: lane.clone(), verify: lane }],
            isa: Isa::detect(),
            rank_deadline: PATIENCE,
            nodes: None,
        }),
        engine: EngineConfig {
            block_size: 16,
            target_blocks: BLOCKS,
            draft: DraftSource::model(BLOCKS),
            max_pass_rows: 64,
            max_context: 128,
            partitions: Vec::new(),
            target_layers: 0,
            deterministic: false,
            speculation: SpeculationBounds::default(),
            prefix_cache: true,
            learned: Learned::default(),
            tuning: Tuning {
                max_running: 4,
                max_waiting: 8,
                policy: Policy::Fixed { k: 3 },
                ..Tuning::default()
            },
        },
        watchdog: WatchdogConfig { back_off: Duration::from_millis(1), ..WatchdogConfig::default() },
        kv_events: None,
    }
}

/// The engine of such a service, by itself.
pub(crate) fn engine() -> Engine {
    Engine::new(spec().engine).expect("a valid config")
}

fn submission(seed: u64, max_new_tokens: usize) -> Submission {
    Submission {
        prompt: (0..5 + seed as TokenId).map(|i| (i * 7 + seed as TokenId) % VOCAB as TokenId).collect(),
        sampling: Sampling { seed, temperature: 0.8, ..Sampling::default() },
        max_new_tokens,
        ..Submission::default()
    }
}

/// Runs a test inside an actix System, and not for ever.
fn in_system<T>(test: impl Future<Output = T>) -> T {
    System::new().block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("the test hangs") })
}

/// What a stream brought.
type Read = (Vec<TokenId>, Option<FinishReason>);

/// Reads a stream to its end.
async fn read(mut stream: TokenStream) -> Read {
    read_by(async || stream.next().await).await
}

async fn read_by(mut next: impl AsyncFnMut() -> Option<Update>) -> Read {
    let mut tokens = Vec::new();
    while let Some(update) = next().await {
        match update {
            Update::Tokens(emitted) => tokens.extend(emitted.iter().map(|emitted| emitted.token)),
            Update::Finished { reason, usage } => {
                assert_eq!((usage.output_tokens, usage.prompt_tokens > 4), (tokens.len(), true));
                assert_eq!(next().await, None, "nothing follows the end");
                return (tokens, Some(reason));
            }
        }
    }
    (tokens, None)
}

/// Hands in requests of so many tokens, one after the other.
async fn submit(service: &Service, seeds: std::ops::Range<u64>, tokens: usize) -> Vec<TokenStream> {
    let mut streams = Vec::new();
    for seed in seeds {
        streams.push(service.submit(submission(seed, tokens)).await.expect("it is taken"));
    }
    streams
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..5_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never came true: {what}");
}

/// Nothing is left of any request.
async fn assert_whole(service: &Service) {
    until("the engine is empty", || service.view().running + service.view().waiting == 0).await;
    let view = service.view();
    assert!(view.target_pool.whole() && view.draft_pool.whole(), "{view:?}");
    assert_eq!(service.active(), 0);
}

/// Holds a lane until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().expect("the gate") = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let open = self.0.0.lock().expect("the gate");
        drop(self.0.1.wait_while(open, |open| !*open).expect("the gate"));
    }
}

/// The verify lane waits at the gate: until it is opened, nothing fails and no stream moves.
fn gated(build: DeviceBuild, gate: &Gate) -> DeviceBuild {
    let gate = gate.clone();
    DeviceBuild { verify: before_each(&build.verify, move || gate.pass()), ..build }
}

async fn start_gated(spec: ServiceSpec, gate: &Gate) -> Service {
    let build = gated(device_build(&spec), gate);
    start_build(spec, build).await.expect("a service")
}

/// The lanes of a specification, to be tampered with.
fn device_build(spec: &ServiceSpec) -> DeviceBuild {
    spec.device.factory(&spec.engine)().expect("a CPU is always there")
}

async fn start_build(spec: ServiceSpec, build: DeviceBuild) -> Result<Service, ServiceError> {
    Service::start_with(spec, Arc::new(move || Ok(build.clone())), Meter::default()).await
}

/// Tokens of a few requests on an undisturbed service.
async fn undisturbed(count: u64) -> Vec<Vec<TokenId>> {
    let service = Service::start(spec()).await.expect("a service");
    let mut all = Vec::new();
    for seed in 0..count {
        let stream = service.submit(submission(seed, 24)).await.expect("it is taken");
        let (tokens, reason) = read(stream).await;
        assert_eq!((tokens.len(), reason), (24, Some(FinishReason::Length)));
        all.push(tokens);
    }
    assert_whole(&service).await;
    service.stop().await;
    all
}

/// Greedy and sampled; prompts that fill their blocks and others.
#[test]
fn of_a_prompt_that_was_there_the_last_token_alone_is_computed_and_texts_are_the_same() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        for (length, temperature) in [(48, 0.0), (49, 0.8), (58, 0.8), (63, 0.0)] {
            let sampling = Sampling { temperature, ..submission(length, 0).sampling };
            let prompt: Vec<TokenId> =
                (0..length as TokenId).map(|i| (i * 5 + length as TokenId) % 200).collect();
            let of = |prompt: &[TokenId], salt: u128, max_new_tokens: usize| {
                let handling = Handling { salt, ..Handling::default() };
                let (prompt, sampling) = (prompt.to_vec(), sampling.clone());
                Submission { prompt, sampling, handling, max_new_tokens, ..Submission::default() }
            };
            let got = async |submission: Submission| {
                let mut stream = service.submit(submission).await.expect("it is taken");
                let (mut tokens, mut cached) = (Vec::new(), None);
                while let Some(update) = stream.next().await {
                    match update {
                        Update::Tokens(emitted) => tokens.extend(emitted.iter().map(|emitted| emitted.token)),
                        Update::Finished { usage, .. } => cached = Some(usage.cached_tokens),
                    }
                }
                (tokens, cached.expect("its usage"))
            };
            // Of another salt: nothing is found of it.
            let (right, cached) = got(of(&prompt, u128::from(length), 24)).await;
            assert_eq!(cached, 0);
            let (begun, cached) = got(of(&prompt, 0, 1)).await;
            assert_eq!((&begun[..], cached), (&right[..1], 0));
            for _ in 0..2 {
                assert_eq!(got(of(&prompt, 0, 24)).await, (right.clone(), length as usize - 1));
            }
            let parted: Vec<TokenId> = prompt[..41].iter().copied().chain([201, 202]).collect();
            let (text, cached) = got(of(&parted, 0, 24)).await;
            assert_eq!(cached, 41);
            assert_eq!(got(of(&parted, 99, 24)).await, (text, 0));
        }
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn requests_get_the_same_tokens_alone_and_together() {
    in_system(async {
        let alone = undisturbed(6).await;
        let service = Service::start(spec()).await.expect("a service");
        for (stream, alone) in submit(&service, 0..6, 24).await.into_iter().zip(alone) {
            assert_eq!(read(stream).await, (alone, Some(FinishReason::Length)));
        }
        assert_whole(&service).await;
        let totals = service.view().totals;
        assert_eq!((totals.submitted, totals.finished, totals.output_tokens), (6, 6, 6 * 24));
        assert!(totals.accepted_tokens > 0, "{totals:?}");
        service.stop().await;
    });
}

#[test]
fn dropping_a_stream_frees_its_blocks() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        let mut reading = service.submit(submission(1, 100)).await.expect("it is taken");
        let unread = service.submit(submission(2, 100)).await.expect("it is taken");
        assert!(matches!(reading.next().await, Some(Update::Tokens(_))));
        drop(reading);
        drop(unread);
        assert_whole(&service).await;
        assert_eq!(service.view().totals.cancelled, 2);
        service.stop().await;
    });
}

#[test]
fn dropping_the_submission_itself_leaves_nothing_behind() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        for seed in 0..20 {
            let submit = service.submit(submission(seed % 5, 100));
            // Polled once or twice: the message is on its way, the verdict is not there, or just came.
            tokio::select! {
                biased;
                stream = submit => drop(stream),
                () = async { if seed % 2 == 0 { tokio::task::yield_now().await } } => {}
            }
        }
        until("all streams are closed", || service.active() == 0).await;
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn a_full_queue_refuses_and_takes_again_later() {
    in_system(async {
        let gate = Gate::default();
        let mut spec = spec();
        (spec.engine.tuning.max_running, spec.engine.tuning.max_waiting) = (1, 1);
        let service = start_gated(spec, &gate).await;
        let first = service.submit(submission(1, 4)).await.expect("it runs");
        let second = service.submit(submission(2, 4)).await.expect("it waits");
        let refused = service.submit(submission(3, 4)).await.expect_err("the queue is full");
        assert_eq!(refused, SubmitError::Full { capacity: 1 });
        gate.open();
        assert_eq!(read(first).await.1, Some(FinishReason::Length));
        assert_eq!(read(second).await.1, Some(FinishReason::Length));
        let third = service.submit(submission(3, 4)).await.expect("there is room again");
        assert_eq!(read(third).await.1, Some(FinishReason::Length));
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn requests_that_cannot_be_served_are_refused_with_a_reason() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        let with = |change: fn(&mut Submission)| {
            let mut submission = submission(1, 4);
            change(&mut submission);
            submission
        };
        let refusal = async |submission| service.submit(submission).await.expect_err("it is refused");
        assert_eq!(refusal(with(|s| s.prompt.clear())).await, SubmitError::Refused(Refusal::EmptyPrompt));
        assert!(matches!(
            refusal(with(|s| s.max_new_tokens = usize::MAX)).await,
            SubmitError::Refused(Refusal::TooLong { .. })
        ));
        for change in [
            (|s| s.prompt[2] = VOCAB as TokenId) as fn(&mut Submission),
            |s| s.sampling.temperature = f32::NAN,
            |s| s.sampling.logit_bias.push((VOCAB as TokenId, 1.0)),
        ] {
            assert!(matches!(refusal(with(change)).await, SubmitError::Invalid(_)));
        }
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn draining_finishes_what_runs_and_takes_nothing_new() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        let streams = submit(&service, 1..3, 60).await;
        let draining = actix::spawn({
            let service = service.clone();
            async move { service.drain(PATIENCE).await }
        });
        until("it drains", || !service.ready()).await;
        let refused = service.submit(submission(3, 4)).await.expect_err("it drains");
        assert_eq!(refused, SubmitError::Draining);
        for stream in streams {
            assert_eq!(read(stream).await.1, Some(FinishReason::Length));
        }
        assert_eq!(draining.await.expect("it ends"), 0);
        service.stop().await;
    });
}

#[test]
fn stopping_ends_streams_that_are_still_open() {
    in_system(async {
        let gate = Gate::default();
        let service = start_gated(spec(), &gate).await;
        let stream = service.submit(submission(1, 60)).await.expect("it is taken");
        assert_eq!(service.drain(Duration::from_millis(5)).await, 1);
        // The lane is in a pass until the stream has been told: what it does then could end the request.
        let stopping = actix::spawn(service.clone().stop());
        assert_eq!(read(stream).await.1, None);
        gate.open();
        stopping.await.expect("it stops");
        assert_eq!(service.submit(submission(2, 4)).await.expect_err("it is over"), SubmitError::Draining);
        service.stop().await;
    });
}

#[test]
fn contradictory_specifications_are_refused() {
    let contradicts = |change: fn(&mut ServiceSpec)| {
        let mut spec = spec();
        change(&mut spec);
        let error = in_system(Service::start(spec)).err().expect("it is refused");
        assert!(matches!(error, ServiceError::Contradiction(_)), "{error}");
    };
    fn cpu(spec: &mut ServiceSpec) -> &mut CpuSpec {
        let DeviceSpec::Cpu(cpu) = &mut spec.device else { panic!("a CPU") };
        cpu
    }
    contradicts(|spec| cpu(spec).draft.clear());
    contradicts(|spec| spec.engine.draft = DraftSource::Lookup);
    contradicts(|spec| cpu(spec).partitions.clear());
    contradicts(|spec| spec.engine.max_context = 1 << 20);
}

#[test]
fn the_counters_are_exact_when_all_is_quiet() {
    let ledger = crate::ledger::Ledger::default();
    let _recorder = metrics::set_default_local_recorder(&ledger);
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        for seed in 0..3 {
            let stream = service.submit(submission(seed, 24)).await.expect("it is taken");
            read(stream).await;
        }
        // Nobody publishes by hand: the monitor is told when the engine becomes idle.
        until("the last token is counted", || ledger.counted("faser_output_tokens_total") == 3 * 24).await;
        let totals = service.view().totals;
        for (name, total) in [
            ("faser_requests_finished_total", 3),
            ("faser_prompt_tokens_total", 5 + 6 + 7),
            ("faser_passes_total{lane=verify}", totals.target_passes),
            ("faser_passes_total{lane=draft}", totals.draft_passes),
            ("faser_spec_decode_num_drafts_total", totals.drafts),
            ("faser_spec_decode_num_draft_tokens_total", totals.draft_tokens),
            ("faser_spec_decode_num_accepted_tokens_total", totals.accepted_tokens),
        ] {
            assert_eq!(ledger.counted(name), total, "{name}");
        }
        assert!(totals.draft_passes > 0 && totals.accepted_tokens > 0);
        assert_eq!(ledger.gauged("faser_kv_blocks_free{model=draft}"), BLOCKS as f64);
        assert_eq!(ledger.gauged("faser_requests_running"), 0.0);
        service.stop().await;
    });
}
