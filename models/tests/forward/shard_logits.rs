//! Shards on the ranks of a group compute what the whole model does: against Hugging Face transformers' logits, for every family.

use std::sync::Arc;
use std::time::Duration;

use faser_kernels::collective::in_process;
use faser_kernels::{BlockId, Dtype, HostCollective, Isa, KvCache, Lane, Partition, Rows};
use faser_models::synthetic::SyntheticSpec;
use faser_models::{Model, Shard, WeightSource};

use crate::golden::expected;
use crate::session::{Session, golden_cases, load};

const TOLERANCE: f32 = 1e-4;

/// A rank's way to its group, and to its stage.
type Ways = [Arc<dyn HostCollective>; 2];

/// Runs each rank of a group on a thread; what each returned, rank after rank.
fn on_ranks<T: Send>((ranks, stages): (usize, usize), run: impl Fn(Shard, Ways) -> T + Sync) -> Vec<T> {
    let run = &run;
    let ways = |ranks| in_process(ranks, Duration::from_secs(60));
    std::thread::scope(|scope| {
        let stage = (0..stages).flat_map(|_| ways(ranks / stages));
        let group = Shard::all_in_stages(ranks, stages).zip(ways(ranks).into_iter().zip(stage));
        let ranks: Vec<_> = group
            .map(|(shard, (group, stage))| {
                scope.spawn(move || run(shard, [Arc::new(group), Arc::new(stage)]))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The logits of all ranks side by side, and the bytes of each rank's weights.
fn logits(
    load: &(dyn Fn(Shard) -> Model + Sync),
    ranks: usize,
    isa: Isa,
    tokens: &[u32],
    chunk: usize,
) -> (Vec<Vec<f32>>, Vec<u64>) {
    logits_in_stages(load, (ranks, 1), isa, tokens, chunk)
}

/// The same of ranks in stages.
fn logits_in_stages(
    load: &(dyn Fn(Shard) -> Model + Sync),
    (ranks, stages): (usize, usize),
    isa: Isa,
    tokens: &[u32],
    chunk: usize,
) -> (Vec<Vec<f32>>, Vec<u64>) {
    let of_ranks = on_ranks((ranks, stages), |shard, group| {
        let model = load(shard);
        let mut session = Session::new(&model, isa, tokens.len(), chunk);
        session.join(group);
        let starts = (0..).step_by(chunk);
        let chunks = tokens.chunks(chunk).zip(starts);
        let rows: Vec<Vec<f32>> = chunks.flat_map(|(tokens, start)| session.feed(start, tokens)).collect();
        (rows, model.weight_bytes())
    });
    let mut rows = vec![Vec::new(); tokens.len()];
    for (own, _) in &of_ranks {
        rows.iter_mut().zip(own).for_each(|(row, own)| row.extend(own));
    }
    (rows, of_ranks.into_iter().map(|(_, bytes)| bytes).collect())
}

#[test]
fn shards_agree_with_transformers() {
    let mut split = 0;
    for case in &golden_cases() {
        let (tokens, expected) = expected(case);
        let load = |shard| load(case, shard, Dtype::F32).unwrap();
        let whole = load(Shard::WHOLE);
        for ranks in [2, 4, 8] {
            if Shard::of(0, ranks).check(whole.config()).is_err() {
                continue;
            }
            split += 1;
            for isa in [Isa::Portable, Isa::detect()] {
                let (found, bytes) = logits(&load, ranks, isa, &tokens, tokens.len());
                let largest = expected.iter().flatten().fold(0f32, |most, logit| most.max(logit.abs()));
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found.len(), expected.len());
                    for (found, expected) in found.iter().zip(expected) {
                        let error = (found - expected).abs() / largest;
                        assert!(error < TOLERANCE, "{isa} {case} {ranks} ranks: {error:.2e}");
                    }
                }
                // What every rank has (norms, shared KV heads, padding) is little beside what is split.
                assert!(bytes.iter().all(|own| *own < whole.weight_bytes()), "{case}: {bytes:?}");
            }
        }
    }
    assert!(split >= 20, "only {split} cases could be split");
}

/// Stages compute what the ranks of one of them would with all layers, bit by bit; and each has its own layers alone.
#[test]
fn layers_in_stages_give_the_same_bits_as_in_one() {
    let mut cases = 0;
    for case in &golden_cases() {
        let load = |shard| load(case, shard, Dtype::F32).unwrap();
        let whole = load(Shard::WHOLE);
        let (tokens, layers) = (expected(case).0, whole.config().layers.len());
        for (width, stages) in [(1, 2), (1, layers), (2, 2)] {
            let ranks = width * stages;
            let fits = |shard: Shard| shard.check(whole.config()).is_ok();
            if stages < 2 || !fits(Shard { rank: 0, ranks, stages }) || !fits(Shard::of(0, width)) {
                continue;
            }
            cases += 1;
            let isa = Isa::detect();
            let (one, _) = logits(&load, width, isa, &tokens, 5);
            let (found, bytes) = logits_in_stages(&load, (ranks, stages), isa, &tokens, 5);
            assert!(found == one, "{case}: {stages} stages of {width}");
            assert!(bytes.iter().all(|own| *own < whole.weight_bytes()), "{case}: {bytes:?}");
        }
    }
    assert!(cases >= 40, "only {cases} cases have stages");
}

#[test]
fn chunks_give_the_same_bits_as_one_prefill_and_every_run_the_same() {
    let case = "llama-linear-rope-biases";
    let load = |shard| load(case, shard, Dtype::Bf16).unwrap();
    let tokens: Vec<u32> = (0..29).map(|i| i * 31 % 131).collect();
    let isa = Isa::detect();
    let (whole, _) = logits(&load, 2, isa, &tokens, tokens.len());
    for chunk in [1, 5, 29] {
        assert!(logits(&load, 2, isa, &tokens, chunk).0 == whole, "chunks of {chunk} differ");
    }
}

#[test]
fn a_synthetic_pairs_shards_are_those_of_its_models() {
    let spec = SyntheticSpec {
        layers: 3,
        draft_layers: 1,
        hidden: 64,
        intermediate: 96,
        experts: 0,
        experts_per_token: 0,
        heads: 8,
        kv_heads: 2,
        vocab: 300,
        max_context: 64,
        seed: 5,
        residual_scale: 0.4,
        mask_token: None,
    };
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 300).collect();
    let isa = Isa::detect();
    type Load<'a> = &'a (dyn Fn(Shard) -> Model + Sync);
    let of = |source: &WeightSource, shard| Model::load(source, shard, Dtype::F32, &mut |_| {}).unwrap();
    let target: Load<'_> = &|shard| of(&WeightSource::Synthetic(spec.clone()), shard);
    let draft: Load<'_> = &|shard| of(&WeightSource::SyntheticDraft(spec.clone()), shard);
    let of_pair: Load<'_> = &|shard| target(shard).first_layers(spec.draft_layers);
    for (load, other) in [(target, target), (draft, of_pair)] {
        let (whole, _) = logits(other, 1, isa, &tokens, 40);
        assert!(logits(load, 1, isa, &tokens, 40).0 == whole);
        for ranks in [2, 4] {
            let (found, _) = logits(load, ranks, isa, &tokens, 40);
            for (found, expected) in found.iter().flatten().zip(whole.iter().flatten()) {
                assert!((found - expected).abs() < 2e-3, "{ranks} ranks: {found} {expected}");
            }
        }
    }
}

/// Ranks round sums otherwise than one, and a rounding may turn a number of 8 bits: all of them agree, and are as near as those are.
#[test]
fn ranks_with_keys_and_values_in_int8_are_near_one() {
    let case = "llama-gqa8-llama3-rope-tied";
    let load = |shard| load(case, shard, Dtype::F32).unwrap().with_kv(Dtype::Int8);
    let tokens = expected(case).0;
    let isa = Isa::detect();
    let (whole, _) = logits(&load, 1, isa, &tokens, 5);
    let largest = whole.iter().flatten().fold(0f32, |most, logit| most.max(logit.abs()));
    for ranks in [2, 4] {
        let (found, _) = logits(&load, ranks, isa, &tokens, 5);
        assert!(logits(&load, ranks, isa, &tokens, tokens.len()).0 == found, "{ranks} ranks: chunks differ");
        for (found, expected) in found.iter().flatten().zip(whole.iter().flatten()) {
            assert!((found - expected).abs() < 0.03 * largest, "{ranks} ranks: {found} {expected}");
        }
    }
}

#[test]
fn scores_between_layers_are_the_same_on_every_rank_and_those_of_one() {
    let case = "llama-gqa8-llama3-rope-tied";
    let positions: Vec<u32> = (0..12).collect();
    let tokens: Vec<u32> = positions.iter().map(|i| i * 17 % 131).collect();
    let table: Vec<BlockId> = vec![0];
    let scored: Vec<u32> = (0..2 * 131).map(|i| i % 131).collect();
    let scores_in = |ranks, stages| {
        on_ranks((ranks, stages), |shard, [group, stage]| {
            let model = load(case, shard, Dtype::F32).unwrap();
            let mut lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
            lane.join(group);
            lane.join_stage(stage);
            let mut kv = KvCache::new(model.kv_shape(1, 16), model.kv_dtype()).unwrap();
            let mut scratch = model.scratch(12, 12);
            let rows = Rows { positions: &positions, table_of: &[0; 12], tables: &[&table] };
            let mut scores = vec![0.0; scored.len()];
            model.begin(&lane, &mut scratch, &tokens);
            model.layers(&lane, 0..1, &mut kv, &mut scratch, rows);
            model.score(&lane, &mut scratch, 12, &[3, 11], &scored, &mut scores);
            scores
        })
    };
    let scores = |ranks| scores_in(ranks, 1);
    let expected = &scores(1)[0];
    // Of two layers one is a stage: behind it the second has the stream.
    assert!(scores_in(2, 2).iter().all(|scores| scores == expected), "2 stages");
    assert!(scores_in(4, 2).iter().all(|found| *found == scores(2)[0]), "2 stages of 2 ranks");
    for ranks in [2, 4] {
        let found = scores(ranks);
        assert!(found.iter().all(|scores| *scores == found[0]), "{ranks} ranks");
        for (found, expected) in found[0].iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{ranks} ranks: {found} {expected}");
        }
    }
}

#[test]
#[should_panic(expected = "rank and ranks of the lane, and of the model's shard")]
fn a_shard_does_not_run_alone() {
    let shard = Shard::of(0, 2);
    let model = load("llama", shard, Dtype::F32).unwrap();
    Session::new(&model, Isa::Portable, 16, 4).feed(0, &[1, 2]);
}

#[test]
fn what_cannot_be_split_is_refused_at_load() {
    let shard = Shard::of(0, 3);
    let refusal = load("llama", shard, Dtype::F32).unwrap_err();
    assert!(refusal.to_string().contains("over 3 ranks: its 4 heads"), "{refusal}");
}
