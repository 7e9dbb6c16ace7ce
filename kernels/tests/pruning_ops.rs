//! What pruning inside a pass needs: compact_rows against gather_rows, score_tokens against matmul.

#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;

use faser_kernels::ops::{compact_rows, gather_rows, score_tokens};
use faser_kernels::{Dtype, Isa, Matrix, Source, Tensor};
use proptest::prelude::*;
use reference::{Random, bits, lane, on_each_isa, product};

#[test]
fn compact_rows_gathers_in_place() {
    let mut random = Random::new(3);
    for _ in 0..200 {
        let (rows, cols) = (1 + random.below(40), 1 + random.below(70));
        let x = random.tensor(rows, cols);
        let one_in = 1 + random.below(4);
        let keep: Vec<u32> = (0..rows as u32).filter(|_| random.below(one_in) == 0).collect();
        let mut expected = Tensor::zeros(keep.len(), cols);
        gather_rows(&lane(Isa::Portable, 1), x.view(rows), &keep, expected.view_mut(keep.len()));
        let mut found =
            Tensor::from_rows(cols, &(0..rows).flat_map(|r| x.row(r).to_vec()).collect::<Vec<_>>());
        compact_rows(found.view_mut(rows), &keep);
        assert_eq!(bits(&found, keep.len()), bits(&expected, keep.len()), "{keep:?} of {rows}");
    }
}

#[test]
fn compact_rows_leaves_other_columns_alone() {
    let mut x = Tensor::from_rows(4, &(0..16).map(|i| i as f32).collect::<Vec<_>>());
    compact_rows(x.view_mut(4).columns(1..3), &[1, 3]);
    assert_eq!([x.row(0), x.row(1)], [[0., 5., 6., 3.], [4., 13., 14., 7.]]);
}

#[test]
#[should_panic(expected = "[0, 2, 2] does not ascend")]
fn compact_rows_refuses_a_row_twice() {
    compact_rows(Tensor::zeros(3, 2).view_mut(3), &[0, 2, 2]);
}

#[test]
#[should_panic(expected = "[1, 3] of 3 rows")]
fn compact_rows_refuses_a_row_beyond_the_last() {
    compact_rows(Tensor::zeros(3, 2).view_mut(3), &[1, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn scores_are_the_bits_of_matmul(
        rows in 1usize..20, inputs in 1usize..300, outputs in 1usize..300, each in 0usize..80, workers in 1usize..=3,
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4]), seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        // A view of some columns of a wider tensor.
        let x = random.tensor(rows, inputs + 5);
        let x = x.view(rows).columns(2..inputs + 2);
        let w = random.numbers(outputs * inputs);
        let matrix = Matrix::pack(inputs, &[Source::F32(&w)], dtype).unwrap();
        let tokens: Vec<u32> = (0..rows * each).map(|_| random.below(outputs) as u32).collect();
        for isa in Isa::available() {
            let lane = lane(isa, workers);
            let logits = product(&lane, x, &matrix);
            let mut scores = vec![f32::NAN; tokens.len()];
            score_tokens(&lane, x, &matrix, &tokens, &mut scores);
            for (i, (token, score)) in tokens.iter().zip(&scores).enumerate() {
                let logit = logits.row(i / each)[*token as usize];
                prop_assert_eq!(score.to_bits(), logit.to_bits(), "{} {}: token {}", isa, dtype, token);
            }
        }
    }
}

#[test]
fn scores_come_with_enough_work_to_share() {
    let (rows, inputs, outputs, each) = (64, 1024, 500, 8);
    let mut random = Random::new(4);
    let x = random.tensor(rows, inputs);
    let matrix =
        Matrix::pack(inputs, &[Source::F32(&random.numbers(outputs * inputs))], Dtype::Bf16).unwrap();
    let tokens: Vec<u32> = (0..rows * each).map(|_| random.below(outputs) as u32).collect();
    on_each_isa(|isa| {
        let (mut together, mut alone) = (vec![0.0; rows * each], vec![0.0; each]);
        score_tokens(&lane(isa, 3), x.view(rows), &matrix, &tokens, &mut together);
        for r in 0..rows {
            let row = Tensor::from_rows(inputs, x.row(r));
            score_tokens(&lane(isa, 1), row.view(1), &matrix, &tokens[r * each..][..each], &mut alone);
            assert_eq!(together[r * each..][..each], alone, "{isa} row {r}");
        }
    });
}

#[test]
fn no_rows_have_no_scores() {
    let matrix = Matrix::pack(4, &[Source::F32(&[0.0; 8])], Dtype::F32).unwrap();
    let x = Tensor::zeros(2, 4);
    score_tokens(&lane(Isa::Portable, 1), x.view(0), &matrix, &[], &mut []);
    score_tokens(&lane(Isa::Portable, 1), x.view(2), &matrix, &[], &mut []);
}

#[test]
#[should_panic(expected = "token 2 of 2")]
fn a_token_beyond_the_outputs_is_refused() {
    // The panel is longer than the outputs: a zero would come back.
    let matrix = Matrix::pack(4, &[Source::F32(&[0.0; 8])], Dtype::F32).unwrap();
    score_tokens(&lane(Isa::Portable, 1), Tensor::zeros(1, 4).view(1), &matrix, &[1, 2], &mut [0.0; 2]);
}

#[test]
#[should_panic(expected = "3 tokens for 2 rows")]
fn a_number_of_tokens_that_is_not_the_same_for_each_row_is_refused() {
    let matrix = Matrix::pack(4, &[Source::F32(&[0.0; 8])], Dtype::F32).unwrap();
    score_tokens(&lane(Isa::Portable, 1), Tensor::zeros(2, 4).view(2), &matrix, &[0; 3], &mut [0.0; 3]);
}
