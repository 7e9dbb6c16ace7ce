//! Logits against Hugging Face transformers in float32, on tiny random checkpoints of each family (see
//! golden/README.md).

use candle_core::{DType, Device};
use faser_kernels::{Dtype, Isa};
use faser_models::rounding::Distance;
use faser_models::{Model, ModelConfig, Quality, Shard, WeightSource};

use crate::session::{Session, golden, golden_cases, load};

fn f32(case: &str) -> Model {
    load(case, Shard::WHOLE, Dtype::F32).unwrap()
}

/// The prompt, and the logits after each of its tokens.
pub(crate) fn expected(case: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let tensors =
        candle_core::safetensors::load(golden(case).join("expected.safetensors"), &Device::Cpu).unwrap();
    let tokens = tensors["tokens"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    (tokens, tensors["logits"].to_vec2().unwrap())
}

fn in_chunks(model: &Model, isa: Isa, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut session = Session::new(model, isa, tokens.len(), chunk);
    let starts = (0..).step_by(chunk);
    tokens.chunks(chunk).zip(starts).flat_map(|(tokens, start)| session.feed(start, tokens)).collect()
}

#[test]
fn logits_agree_with_transformers() {
    for isa in Isa::available() {
        for case in golden_cases() {
            let model = f32(&case);
            let (tokens, expected) = expected(&case);
            let found = in_chunks(&model, isa, &tokens, tokens.len());
            let distance = Distance::between(&found, &expected);
            let most = Distance::of_rounding(Dtype::F32, model.config().layers.len());
            println!("{isa} {case}: {distance}");
            assert!(distance.is_within(most), "{isa} {case}: {distance} beyond {most}");
        }
    }
}

#[test]
fn chunks_and_single_tokens_give_the_same_bits_as_one_prefill() {
    for isa in Isa::available() {
        for case in golden_cases() {
            let model = f32(&case);
            let (tokens, _) = expected(&case);
            let whole = in_chunks(&model, isa, &tokens, tokens.len());
            for chunk in [1, 2, 5, 16] {
                assert!(
                    in_chunks(&model, isa, &tokens, chunk) == whole,
                    "{isa:?} {case}: chunks of {chunk} differ"
                );
            }
        }
    }
}

/// LongRoPE's factors are chosen by the context that is served: transformers chooses by the text.
#[test]
fn a_context_within_the_original_one_has_the_short_factors() {
    let case = "phi3-longrope";
    let tensors =
        candle_core::safetensors::load(golden(case).join("expected.safetensors"), &Device::Cpu).unwrap();
    let short: Vec<Vec<f32>> = tensors["short_logits"].to_vec2().unwrap();
    let (tokens, long) = expected(case);
    let mut config = f32(case).config().clone();
    config.limit_context(short.len());
    let layers = config.layers.len();
    let source = WeightSource::Folder(golden(case), Box::new(config));
    let model = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
    let found = in_chunks(&model, Isa::detect(), &tokens[..short.len()], 5);
    let most = Distance::of_rounding(Dtype::F32, layers);
    let distance = Distance::between(&found, &short);
    assert!(distance.is_within(most), "{distance} beyond {most}");
    assert!(!Distance::between(&found, &long[..short.len()]).is_within(most), "factors make no difference");
}

#[test]
fn only_wanted_rows_get_logits_and_in_the_order_asked() {
    let model = f32("qwen2-tied");
    let (tokens, _) = expected("qwen2-tied");
    let isa = Isa::detect();
    let whole = in_chunks(&model, isa, &tokens, tokens.len());
    let mut session = Session::new(&model, isa, tokens.len(), tokens.len());
    let found = session.feed_for(0, &tokens, &[28, 3, 3]);
    assert!(found == [whole[28].clone(), whole[3].clone(), whole[3].clone()]);
    assert!(session.feed_for(0, &tokens, &[]).is_empty());
}

#[test]
fn rows_written_again_leave_no_trace() {
    let model = f32("mistral-sliding");
    let (tokens, _) = expected("mistral-sliding");
    let isa = Isa::detect();
    let whole = in_chunks(&model, isa, &tokens, tokens.len());
    let mut session = Session::new(&model, isa, tokens.len(), tokens.len());
    session.feed(0, &tokens[..10]);
    // Proposals that are rejected: wrong tokens at the positions from 10 on, then the right ones.
    session.feed(10, &[7, 7, 7, 7, 7]);
    assert!(session.feed(10, &tokens[10..]) == whole[10..]);
}

#[test]
fn bf16_puts_logits_no_farther_than_its_rounding() {
    for case in golden_cases() {
        let model = load(&case, Shard::WHOLE, Dtype::Bf16).unwrap();
        let (tokens, expected) = expected(&case);
        let most = Distance::of_rounding(Dtype::Bf16, model.config().layers.len());
        for isa in Isa::available() {
            let distance = Distance::between(&in_chunks(&model, isa, &tokens, tokens.len()), &expected);
            println!("{isa} {case} in bf16: {distance}");
            assert!(distance.is_within(most), "{isa} {case}: {distance} beyond {most}");
        }
    }
}

/// A draft gets as many rows as its target has: what both know is as it was, and padding is zeros.
#[test]
fn a_vocabulary_with_more_or_fewer_rows_changes_no_logit_that_both_have() {
    let isa = Isa::detect();
    for case in ["llama", "qwen2-tied"] {
        let config = f32(case).config().clone();
        let (tokens, _) = expected(case);
        let tokens: Vec<u32> = tokens.into_iter().filter(|token| *token < 120).collect();
        let whole = in_chunks(&f32(case), isa, &tokens, tokens.len());
        for vocab in [120, 140] {
            let resized = ModelConfig { vocab, ..config.clone() };
            let dir = golden(case);
            let source = WeightSource::Folder(dir.clone(), Box::new(resized));
            let model = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
            let known = model.config().known_vocab();
            assert_eq!(known, vocab.min(config.vocab));
            for (row, original) in in_chunks(&model, isa, &tokens, tokens.len()).iter().zip(&whole) {
                assert_eq!(row.len(), vocab);
                assert_eq!(row[..known], original[..known], "{case} {vocab}");
                assert!(row[known..].iter().all(|logit| *logit == 0.0), "{case} {vocab}");
            }
        }
    }
}

#[test]
fn quality_is_that_of_transformers_logits_and_of_the_type_alone() {
    let (tokens, expected) = expected("llama");
    let model = f32("llama");
    let same = Quality::of(&model, &model, &tokens, 1).unwrap();
    let surprise = |(logits, next): (&Vec<f32>, &u32)| {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        sum.ln() - f64::from(logits[*next as usize])
    };
    let all: f64 = expected.iter().zip(&tokens[1..]).map(surprise).sum();
    let perplexity = (all / (tokens.len() - 1) as f64).exp();
    assert!((same.perplexity / perplexity - 1.0).abs() < 1e-4, "{same:?} {perplexity}");
    assert_eq!((same.tokens, same.divergence, same.divergence_p99), (tokens.len() - 1, 0.0, 0.0));
    assert_eq!((same.same_token, same.perplexity_in_f32), (1.0, same.perplexity));

    // Four windows of the model's 64 tokens, and one token, which has nothing behind it.
    let long: Vec<u32> = tokens.iter().copied().cycle().take(4 * 64 + 1).collect();
    let of = |dtype| {
        let model = load("llama", Shard::WHOLE, dtype).unwrap();
        Quality::of(&model, &f32("llama"), &long, 2).unwrap()
    };
    let [bf16, int8, int4] = [Dtype::Bf16, Dtype::Int8, Dtype::Int4].map(of);
    assert_eq!([bf16.tokens, int8.tokens, int4.tokens], [4 * 63; 3]);
    assert!(bf16.divergence > 0.0 && 4.0 * bf16.divergence < int4.divergence, "{bf16:?} {int4:?}");
    assert!(int8.divergence < int4.divergence && int4.same_token < 1.0, "{int8:?} {int4:?}");
    assert!(int4.divergence_p99 > int4.divergence && int4.divergence < 1.0, "{int4:?}");
}
