//! What rows of blocks take from the token before each.

use super::case_bench::Bench;
use super::reference::{Random, close};
use faser_kernels::cuda::{Element, GatesArgs, NoteDrawnArgs, Ptr, Sample, SuretyArgs};

/// Rows, columns of an embedding.
const SHAPES: [(usize, usize); 5] = [(1, 1), (2, 15), (3, 64), (5, 259), (33, 300)];
const UNSET: f32 = -1234.5;

fn sigmoid(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

fn tolerance(element: Element) -> f64 {
    if element == Element::F32 { 2e-6 } else { 1.0 / 256.0 + 2e-6 }
}

pub(super) fn rows_of_blocks_take_from_the_token_before(bench: &Bench<'_>) {
    for element in [Element::F32, Element::Bf16] {
        for order in bench.orders() {
            for ((rows, rank), recurrent) in
                SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)])
            {
                let mut random = Random::new(rank as u64 + 21);
                let wide = if recurrent { 3 * rank } else { rank };
                let mut gates: Vec<f32> = random.numbers(rows * wide).iter().map(|x| x * 4.0).collect();
                (gates[0], gates[wide - 1]) = (1e30, -1e30);
                let embedded = random.numbers(rows * rank);
                let old = random.numbers((rows + 1) * rank);
                let state = bench.floats(&old);
                let out = bench.elements(element, &vec![UNSET; (rows + 1) * rank]);
                let args = GatesArgs {
                    gates: bench.lasting(&gates),
                    embedded: bench.lasting(&embedded),
                    state: if recurrent { state.ptr() } else { Ptr::NULL },
                    out: out.ptr(),
                    rows: bench.count(rows),
                    rank: rank as u32,
                };
                bench.run(&args.launch(element, rows as u32 + 1, 1), order);
                let (found, moved) = (out.read(), state.read());
                for at in 0..rows * rank {
                    let own = &gates[at / rank * wide..][..wide];
                    let (i, gate) = (at % rank, sigmoid(own[at % rank]));
                    let expected = match recurrent {
                        true => f64::from(own[2 * rank + i]).tanh(),
                        false => gate * f64::from(embedded[at]),
                    };
                    close(found[at], expected, 1.0, tolerance(element), "what a row reads");
                    let stays = gate * f64::from(old[at]);
                    let state = match recurrent {
                        true => stays + (1.0 - gate) * f64::from(own[rank + i]).tanh(),
                        false => f64::from(old[at]),
                    };
                    close(moved[at], state, 1.0, 2e-6, "what a recurrence knows");
                }
                assert_eq!(moved[rows * rank..], old[rows * rank..], "padding was written");

                let cols = 2 * rank + 3;
                let hidden = random.numbers(rows * cols);
                let weights: Vec<f32> = random.numbers(cols + rank).iter().map(|x| x * 0.2).collect();
                let hidden_at = bench.elements(element, &hidden);
                let held = hidden_at.read();
                for read in [0, rank] {
                    let sure = bench.floats(&vec![UNSET; rows + 1]);
                    let args = SuretyArgs {
                        hidden: hidden_at.ptr(),
                        before: if read == 0 { Ptr::NULL } else { bench.lasting(&embedded) },
                        weights: bench.lasting(&weights),
                        bias: bench.lasting(&[0.25f32]),
                        out: sure.ptr(),
                        rows: bench.count(rows),
                        cols: cols as u32,
                        rank: read as u32,
                    };
                    bench.run(&args.launch(element, rows as u32 + 1, 1), order);
                    let found = sure.read();
                    for (row, found) in found[..rows].iter().enumerate() {
                        let known = held[row * cols..][..cols].iter().chain(&embedded[row * rank..][..read]);
                        let sum: f64 = known.zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                        let expected = 1.0 / (1.0 + (-sum - 0.25).exp());
                        close(*found, expected, 1.0, 1e-5, "how sure a head is");
                    }
                    assert_eq!(found[rows], UNSET, "padding was written");
                }
            }
        }
    }
}

pub(super) fn drawn_tokens_are_noted_where_there_is_room(bench: &Bench<'_>) {
    for order in bench.orders() {
        let sample = |chunk, since| Sample { row: 0, chunk, position: 0, since };
        let samples = [sample(2, 1), sample(0, 0), sample(1, 4), sample(1, 3)];
        let proposals = bench.words(&[7u32; 12]);
        let args = NoteDrawnArgs {
            tokens: bench.lasting(&[11u32, 22, 33, 44]),
            samples: bench.lasting(&samples),
            proposals: proposals.ptr(),
            rows: bench.count(4),
            stride: 4,
        };
        bench.run(&args.launch(5, 1), order);
        assert_eq!(proposals.read(), [22, 7, 7, 7, 7, 7, 7, 44, 7, 11, 7, 7]);
    }
}
