//! Models split over the ranks of a group: the same tokens as whole, and a rank that is lost takes nothing with it but time.

use super::*;

use std::collections::HashMap;

use faser_models::{Shard, WeightSource};

use crate::drill::disturbed as disturbed_ways;
use crate::gpu_actor::DeviceFactory;

/// Eight query heads, two KV heads.
fn shape() -> SyntheticSpec {
    SyntheticSpec {
        layers: 2,
        draft_layers: 1,
        hidden: 64,
        intermediate: 32,
        experts: 0,
        experts_per_token: 0,
        heads: 8,
        kv_heads: 2,
        vocab: VOCAB,
        max_context: 128,
        seed: 3,
        residual_scale: 0.3,
        mask_token: None,
    }
}

/// Shards by ranks, stages and kind, and rank: made once for all tests.
type Made = HashMap<(usize, usize, usize), Arc<Model>>;

/// A service whose target is split over `target` ranks and whose draft over `draft`.
pub(super) fn split(target: usize, draft: usize) -> ServiceSpec {
    split_in_stages((target, 1), draft)
}

/// The same with the target's ranks in so many stages.
pub(super) fn split_in_stages((target, stages): (usize, usize), draft: usize) -> ServiceSpec {
    static SHARDS: OnceLock<Mutex<Made>> = OnceLock::new();
    let of = |shard: Shard, drafts: bool| {
        let mut made = SHARDS.get_or_init(Mutex::default).lock().expect("the shards");
        let key = (2 * shard.ranks + usize::from(drafts), shard.stages, shard.rank);
        let make = || {
            let source = if drafts { WeightSource::SyntheticDraft } else { WeightSource::Synthetic };
            let model = Model::load(&source(shape()), shard, Dtype::F32, &mut |_| {});
            Arc::new(model.expect("a shard"))
        };
        made.entry(key).or_insert_with(make).clone()
    };
    let lane = Partition { cores: vec![0, 1] };
    let apart = |core| Partition { cores: vec![core] };
    let mut spec = spec();
    spec.device = DeviceSpec::Cpu(CpuSpec {
        target: Shard::all_in_stages(target, stages).map(|shard| of(shard, false)).collect(),
        draft: Shard::all(draft).map(|shard| of(shard, true)).collect(),
        partitions: vec![
            LanePair { draft: lane.clone(), verify: lane },
            LanePair { draft: apart(1), verify: apart(0) },
        ],
        isa: Isa::detect(),
        rank_deadline: PATIENCE,
        nodes: None,
    });
    spec
}

/// A few requests, each sampled in its own way.
pub(super) fn submissions(count: u64) -> impl Iterator<Item = Submission> {
    (0..count).map(|seed| {
        let mut submission = submission(seed, 24);
        match seed % 3 {
            1 => submission.sampling.top_p = 0.9,
            2 => submission.sampling.temperature = 0.0,
            _ => {}
        }
        submission
    })
}

/// Tokens of a few requests, together, and how they ended.
pub(super) async fn tokens(service: &Service, count: u64) -> Vec<Read> {
    read_all(taken(service, count).await).await
}

/// The streams of a few requests, all of which are taken.
pub(super) async fn taken(service: &Service, count: u64) -> Vec<TokenStream> {
    let mut streams = Vec::new();
    for submission in submissions(count) {
        streams.push(service.submit(submission).await.expect("it is taken"));
    }
    streams
}

/// What they bring, to their ends.
pub(super) async fn read_all(streams: Vec<TokenStream>) -> Vec<Read> {
    let mut all = Vec::new();
    for stream in streams {
        all.push(read(stream).await);
    }
    all
}

/// What a service with whole models gives.
pub(super) async fn expected() -> Vec<Read> {
    let service = Service::start(split(1, 1)).await.expect("a service");
    let expected = tokens(&service, 4).await;
    assert!(expected.iter().all(|(_, reason)| *reason == Some(FinishReason::Length)), "{expected:?}");
    service.stop().await;
    expected
}

#[test]
fn groups_give_the_tokens_of_one_rank() {
    in_system(async {
        let expected = expected().await;
        for (target, draft) in
            [((2, 1), 1), ((4, 1), 1), ((2, 1), 2), ((1, 1), 2), ((4, 1), 2), ((2, 2), 1), ((4, 2), 2)]
        {
            let service = Service::start(split_in_stages(target, draft)).await.expect("a service");
            assert_eq!(tokens(&service, 4).await, expected, "target over {target:?}, draft over {draft}");
            assert_whole(&service).await;
            assert!(service.view().totals.accepted_tokens > 0);
            service.stop().await;
        }
    });
}

/// Devices of which rank `rank` of the target is disturbed, at calls of that rank counted over all of them. A pass of two layers has six.
fn disturbed(
    spec: &ServiceSpec,
    rank: usize,
    disturb: impl Fn(usize) + Clone + Send + Sync + 'static,
) -> DeviceFactory {
    let DeviceSpec::Cpu(cpu) = spec.device.clone() else { panic!("a group is on the CPU") };
    let (engine, calls) = (spec.engine.clone(), Arc::new(AtomicUsize::new(0)));
    Arc::new(move || {
        cpu.build_in(&engine, &|of, ways| {
            let (calls, disturb) = (calls.clone(), disturb.clone());
            let disturb = move || disturb(calls.fetch_add(1, Ordering::Relaxed));
            if of == rank { disturbed_ways(&ways, disturb) } else { ways }
        })
    })
}

#[test]
fn a_rank_that_panics_ends_the_group_and_streams_go_on_on_the_next() {
    in_system(async {
        let expected = expected().await;
        for rank in [0, 1, 3] {
            let spec = split(4, 1);
            let faults = Arc::new(AtomicUsize::new(0));
            let counted = faults.clone();
            let factory = disturbed(&spec, rank, move |call| {
                if [15, 50].contains(&call) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    panic!("injected fault at call {call}");
                }
            });
            let service = Service::start_with(spec, factory, Meter::default()).await.expect("a service");
            assert_eq!(tokens(&service, 4).await, expected, "rank {rank}");
            assert_eq!(faults.load(Ordering::Relaxed), 2);
            assert_whole(&service).await;
            until("the device serves", || service.ready()).await;
            service.stop().await;
        }
    });
}

#[test]
fn a_rank_that_hangs_is_lost_at_the_deadline_and_streams_go_on_on_the_next() {
    in_system(async {
        let expected = expected().await;
        for rank in [0, 1] {
            let mut spec = split(2, 1);
            if let DeviceSpec::Cpu(cpu) = &mut spec.device {
                cpu.rank_deadline = Duration::from_millis(1500);
            }
            let gate = Gate::default();
            let hang = gate.clone();
            let factory = disturbed(&spec, rank, move |call| {
                if call == 15 {
                    hang.pass();
                }
            });
            let service = Service::start_with(spec, factory, Meter::default()).await.expect("a service");
            let found = actix::spawn({
                let service = service.clone();
                async move { tokens(&service, 4).await }
            });
            until("the loss is noticed", || matches!(service.status(), DeviceStatus::Rebuilding { .. }))
                .await;
            let words = service.status().to_string();
            assert!(words.contains(&format!("rank {rank} of 2 has not come within 1500 ms")), "{words}");
            assert!(!service.ready());
            // So that nothing of it is left behind.
            gate.open();
            assert_eq!(found.await.expect("it ends"), expected, "rank {rank}");
            assert_whole(&service).await;
            until("the device serves", || service.ready()).await;
            service.stop().await;
        }
    });
}

#[test]
fn shards_that_are_no_group_are_refused() {
    let contradicts = |change: fn(&mut CpuSpec)| {
        let mut spec = split(2, 2);
        if let DeviceSpec::Cpu(cpu) = &mut spec.device {
            change(cpu);
        }
        let error = in_system(Service::start(spec)).err().expect("it is refused").to_string();
        assert!(error.contains("give all of a group"), "{error}");
    };
    contradicts(|cpu| cpu.target.truncate(1));
    contradicts(|cpu| cpu.target.swap(0, 1));
    contradicts(|cpu| cpu.draft.push(cpu.draft[1].clone()));
    contradicts(|cpu| drop(cpu.draft.remove(0)));
}

#[test]
fn costs_are_measured_on_all_ranks_of_a_group() {
    let spec = split(2, 1);
    let costs = crate::profile(
        &crate::ProfileSpec {
            device: &spec.device,
            block_size: 16,
            max_rows: 16,
            max_context: 128,
            deterministic: false,
        },
        &mut |_, _| {},
    );
    assert_eq!(costs.expect("costs").len(), 2);
}
