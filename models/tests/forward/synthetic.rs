//! Synthetic pairs: text that does not loop, and an acceptance that epsilon controls.

use faser_kernels::{Dtype, Isa};
use faser_models::synthetic::{SyntheticSpec, pair};
use faser_models::{Model, ModelError, Progress};

use crate::draft_acceptance::{Figures, measure};
use crate::session;

const LENGTH: usize = 96;

fn tiny(residual_scale: f32) -> SyntheticSpec {
    SyntheticSpec { residual_scale, ..SyntheticSpec::preset("tiny").unwrap() }
}

fn make(spec: &SyntheticSpec, dtype: Dtype) -> (Model, Model) {
    pair(spec, dtype, &mut |_| {}).unwrap()
}

/// Texts of bytes, as the synthetic tokenizer gives them.
fn prompts() -> Vec<Vec<u32>> {
    let texts = [
        "What is a trait?",
        "fn main() {",
        "The quick brown fox",
        "In the beginning there was",
        "0123456789",
        "x",
    ];
    texts.iter().map(|text| text.bytes().map(u32::from).collect()).collect()
}

fn figures(spec: &SyntheticSpec, dtype: Dtype) -> Figures {
    let (target, draft) = make(spec, dtype);
    measure(&target, &draft, Isa::detect(), &prompts(), LENGTH)
}

#[test]
fn acceptance_falls_with_epsilon_and_text_does_not_loop() {
    let all = [0.0, 0.05, 0.2, 1.0].map(|epsilon| figures(&tiny(epsilon), Dtype::Bf16));
    println!("{all:#?}");
    assert!((all[0].greedy, all[0].overlap > 0.999) == (1.0, true), "the draft is the target: {:?}", all[0]);
    assert!(all.windows(2).all(|pair| pair[0].greedy > pair[1].greedy + 0.05), "{all:#?}");
    assert!(all[1].greedy > 0.6 && all[3].greedy < 0.5, "{all:#?}");
    for figures in all {
        assert!(figures.distinct > 0.6, "few distinct tokens: {figures:?}");
        assert!(figures.looped < 0.1, "the end repeats itself: {figures:?}");
        assert!((0.3..4.0).contains(&figures.entropy), "{figures:?}");
    }
}

#[test]
fn a_pair_depends_on_its_seed_alone() {
    let logits = |spec: &SyntheticSpec| {
        let (target, _) = make(spec, Dtype::F32);
        session::Session::new(&target, Isa::detect(), 16, 16).feed(0, &[1, 2, 3, 4])
    };
    let spec = tiny(0.1);
    assert!(logits(&spec) == logits(&spec));
    assert!(logits(&spec) != logits(&SyntheticSpec { seed: 1, ..spec }));
}

#[test]
fn the_draft_is_a_model_of_its_own_with_the_same_vocabulary() {
    let spec = tiny(0.1);
    let mut last = Progress { done_bytes: 0, total_bytes: 1 };
    let (target, draft) = pair(&spec, Dtype::Bf16, &mut |progress| last = progress).unwrap();
    assert_eq!(target.config().vocab, draft.config().vocab);
    assert_eq!((target.config().layers.len(), draft.config().layers.len()), (4, 1));
    assert!(draft.weight_bytes() < target.weight_bytes());
    assert_eq!(draft.kv_bytes_per_token() * 4, target.kv_bytes_per_token());
    assert_eq!(last.done_bytes, last.total_bytes);
}

#[test]
fn kv_memory_is_counted_as_it_is_taken_where_heads_are_padded_too() {
    for (hidden, padded) in [(128, 32 + 32), (96, 24 + 32)] {
        let (target, _) = make(&SyntheticSpec { hidden, ..tiny(0.1) }, Dtype::Bf16);
        let taken = target.kv_shape(5, 16).bytes(target.kv_dtype());
        assert_eq!(taken, 5 * 16 * target.kv_bytes_per_token());
        assert_eq!(target.kv_bytes_per_token(), 4 * 2 * padded * 2, "layers, heads, numbers, bytes");
    }
}

#[test]
fn an_impossible_shape_is_refused() {
    let spec = SyntheticSpec { vocab: 100, ..tiny(0.1) };
    let error = pair(&spec, Dtype::Bf16, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ModelError::Synthetic { field: "vocab", .. }), "{error}");
}
