//! Keys and values in 8 bits: a token's are its own, whatever stands beside it, and logits stay near those of f32.

use faser_kernels::{Dtype, Isa};
use faser_models::{Model, Quality, Shard, WeightSource};

use crate::accuracy::{demo, demo_prompts};
use crate::golden::expected;
use crate::session::{Session, golden_cases, load};

fn in_chunks(model: &Model, isa: Isa, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut session = Session::new(model, isa, tokens.len(), chunk);
    let starts = (0..).step_by(chunk);
    tokens.chunks(chunk).zip(starts).flat_map(|(tokens, start)| session.feed(start, tokens)).collect()
}

/// RMS of the difference, as a share of the RMS of what is right, in the row in the middle: where two experts are nearly level, rounding chooses.
fn distance(found: &[Vec<f32>], right: &[Vec<f32>]) -> f32 {
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>();
    let of_row = |(found, right): (&Vec<f32>, &Vec<f32>)| {
        let error = squares(&mut found.iter().zip(right).map(|(a, b)| a - b));
        (error / squares(&mut right.iter().copied())).sqrt()
    };
    let mut rows: Vec<f32> = found.iter().zip(right).map(of_row).collect();
    rows.sort_by(f32::total_cmp);
    rows[rows.len() / 2]
}

#[test]
fn every_family_is_near_transformers_and_the_same_in_chunks() {
    for case in golden_cases() {
        let model = load(&case, Shard::WHOLE, Dtype::F32).unwrap().with_kv(Dtype::Int8);
        assert_eq!((model.dtype(), model.kv_dtype()), (Dtype::F32, Dtype::Int8));
        let (tokens, expected) = expected(&case);
        for isa in Isa::available() {
            let whole = in_chunks(&model, isa, &tokens, tokens.len());
            let off = distance(&whole, &expected);
            println!("{isa} {case}: {off}");
            // Half a step of 127 is off by 0.3 % (RMS of what is largest), in a few layers.
            assert!(off > 1e-5 && off < 0.04, "{isa} {case}: {off}");
            for chunk in [1, 5] {
                assert!(in_chunks(&model, isa, &tokens, chunk) == whole, "{isa} {case}: chunks of {chunk}");
            }
        }
    }
}

#[test]
fn rows_written_again_leave_no_trace() {
    let model = load("mistral-sliding", Shard::WHOLE, Dtype::Bf16).unwrap().with_kv(Dtype::Int8);
    let (tokens, _) = expected("mistral-sliding");
    let whole = in_chunks(&model, Isa::detect(), &tokens, tokens.len());
    let mut session = Session::new(&model, Isa::detect(), tokens.len(), tokens.len());
    session.feed(0, &tokens[..10]);
    session.feed(10, &[7, 7, 7, 7, 7]);
    assert!(session.feed(10, &tokens[10..]) == whole[10..]);
}

#[test]
fn memory_is_half_of_bf16_and_predictions_are_next_to_the_same() {
    let source = WeightSource::folder(&demo("target")).unwrap();
    let load = |dtype| Model::load(&source, Shard::WHOLE, dtype, &mut |_| {}).unwrap();
    let [bf16, int8, exact] = [load(Dtype::Bf16), load(Dtype::Bf16).with_kv(Dtype::Int8), load(Dtype::F32)];
    // Two KV heads of 64 elements, with a scale each.
    assert_eq!(bf16.kv_bytes_per_token(), 6 * 2 * 2 * 64 * 2);
    assert_eq!(int8.kv_bytes_per_token(), 6 * 2 * 2 * (64 + 4));
    let shape = int8.kv_shape(10, 16);
    assert_eq!(shape.bytes(int8.kv_dtype()), 160 * int8.kv_bytes_per_token());
    let text: Vec<u32> = demo_prompts(&exact, 8).concat();
    let [plain, eight] = [&bf16, &int8].map(|model| Quality::of(model, &exact, &text, 1).unwrap());
    println!("KV in bf16: {plain:?}\nin int8: {eight:?}");
    assert!(eight.divergence > plain.divergence && eight.divergence < 0.002, "{eight:?}");
    assert!(eight.same_token > 0.95, "{eight:?}");
}
