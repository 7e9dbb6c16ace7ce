//! What happens to the rows of a pass: proposals tested, rows compacted.

use super::case_bench::Bench;
use super::reference::Random;
use super::sampling_cases::sampler;
use faser_kernels::cuda::{Chunk, CompactPassArgs, NOTHING, PruneArgs, PruneTest, Ptr, Sample};
use faser_kernels::sampling::margin;
use faser_kernels::{Sampling, ops::TOP_TOKENS};

/// A pass: chunks in the order of their rows.
fn pass(random: &mut Random, chunks: usize, most_rows: usize) -> Vec<Chunk> {
    let mut first = 0;
    (0..chunks)
        .map(|_| {
            let rows = 1 + random.below(most_rows) as u32;
            let sampled_from =
                if random.below(4) == 0 { NOTHING } else { random.below(rows as usize) as u32 };
            // Some begin within the proposals, some before the rows that proposals stand behind.
            let since = random.below(7) as i32 - 3;
            let chunk = Chunk { first, rows, sampled_from, since };
            first += rows;
            chunk
        })
        .collect()
}

pub(super) fn cancelled_chunks_and_rows_behind_the_live_ones_leave(bench: &Bench<'_>) {
    let mut random = Random::new(11);
    for case in 0..24 {
        // Some passes are larger than a block.
        let chunks = 1 + random.below(30);
        let before = pass(&mut random, chunks, if case % 4 == 0 { 90 } else { 6 });
        let rows: usize = before.iter().map(|chunk| chunk.rows as usize).sum();
        let cancelled: Vec<u32> = before.iter().map(|_| u32::from(random.below(5) == 0)).collect();
        let live: Vec<u32> =
            before
                .iter()
                .map(|chunk| {
                    if random.below(2) == 0 {
                        chunk.rows
                    } else {
                        random.below(chunk.rows as usize + 1) as u32
                    }
                })
                .collect();
        let chunk_of: Vec<u32> =
            (0u32..).zip(&before).flat_map(|(c, chunk)| vec![c; chunk.rows as usize]).collect();
        let positions: Vec<u32> = (0..rows).map(|_| random.below(5000) as u32).collect();

        let stays = |r: &usize| {
            let c = chunk_of[*r] as usize;
            cancelled[c] == 0 && (*r as u32 - before[c].first) < live[c]
        };
        let keep: Vec<usize> = (0..rows).filter(stays).collect();
        let (mut after, mut samples, mut first) = (vec![], vec![], 0);
        for (c, chunk) in before.iter().enumerate() {
            let rows = if cancelled[c] == 0 { live[c] } else { 0 };
            after.push(Chunk { first, rows, ..*chunk });
            for offset in chunk.sampled_from..rows.max(chunk.sampled_from) {
                let position = positions[(chunk.first + offset) as usize] + 1;
                let since = chunk.since(offset);
                samples.push(Sample { row: first + offset, chunk: c as u32, position, since });
            }
            first += rows;
        }

        let empty = Sample { row: 7, chunk: 7, position: 7, since: 7 };
        let chunks = bench.memory(&before, Chunk::default());
        let (live, found_positions) = (bench.words(&live), bench.words(&positions));
        let (found_chunk_of, found_keep) = (bench.words(&chunk_of), bench.words(&vec![0; rows]));
        let found_samples = bench.memory(&vec![empty; rows], Sample::default());
        let counts = bench.words(&[rows as u32, 99, 99]);
        let args = CompactPassArgs {
            chunks: chunks.ptr(),
            cancelled: bench.lasting(&cancelled),
            live: live.ptr(),
            positions: found_positions.ptr(),
            chunk_of: found_chunk_of.ptr(),
            keep: found_keep.ptr(),
            samples: found_samples.ptr(),
            counts: counts.ptr(),
            chunk_count: before.len() as u32,
        };
        bench.run(&args.launch(), bench.order(case));

        let moved = keep.iter().enumerate().take_while(|(to, from)| to == *from).count();
        assert_eq!(counts.read(), [keep.len() as u32, moved as u32, samples.len() as u32], "case {case}");
        assert_eq!(chunks.read(), after);
        assert_eq!(found_samples.read()[..samples.len()], samples);
        for (to, from) in keep.iter().enumerate() {
            assert_eq!(found_keep.read()[to] as usize, *from);
            assert_eq!(found_positions.read()[to], positions[*from]);
            assert_eq!(found_chunk_of.read()[to], chunk_of[*from]);
        }
    }
}

pub(super) fn margins_are_the_cpus_and_end_chunks(bench: &Bench<'_>) {
    let mut random = Random::new(12);
    let (mut ended, mut ties, mut untested) = (0, 0, 0);
    for case in 0..40 {
        let temperature = [0.0, 0.7, 1.0][case % 3];
        let chunks: Vec<Chunk> =
            pass(&mut random, 5, 7).into_iter().map(|chunk| Chunk { sampled_from: 0, ..chunk }).collect();
        let samplings: Vec<Sampling> = chunks
            .iter()
            .map(|_| {
                let bias = if random.below(2) == 0 { vec![(3, 1.5), (5, -0.5), (3, 0.25)] } else { vec![] };
                Sampling { temperature, seed: random.bits(), logit_bias: bias, ..Sampling::default() }
            })
            .collect();
        let samplers: Vec<_> = samplings.iter().map(|sampling| sampler(bench, sampling, Ptr::NULL)).collect();
        let (mut tests, mut tokens, mut scores, mut most) = (vec![], vec![], vec![], vec![]);
        for (c, chunk) in chunks.iter().enumerate() {
            // The last row predicts what is not in the pass: a test of it is idle.
            for offset in 0..chunk.rows {
                let proposal = random.below(12) as u32;
                tests.push(PruneTest {
                    chunk: c as u32,
                    offset,
                    position: random.below(900) as u32,
                    proposal,
                });
                tokens.extend((0..TOP_TOKENS).map(|_| random.below(12) as u32));
                tokens.push(proposal);
                scores.extend((0..=TOP_TOKENS).map(|_| match random.below(12) {
                    0 => f32::NAN,
                    1 => f32::NEG_INFINITY,
                    level => level as f32 / 2.0 - 3.0,
                }));
                most.push(random.number());
            }
        }
        let n = tests.len();
        let live: Vec<u32> =
            chunks.iter().map(|chunk| chunk.rows - u32::from(random.below(3) == 0)).collect();
        let (rows, margins) = (bench.words(&vec![0; n]), bench.floats(&vec![9.0; n]));
        let found_live = bench.words(&live);
        let args = PruneArgs {
            tests: bench.lasting(&tests),
            tokens: bench.lasting(&tokens),
            scores: bench.lasting(&scores),
            most: bench.lasting(&most),
            chunks: bench.lasting(&chunks),
            samplers: bench.lasting(&samplers),
            rows: rows.ptr(),
            margins: margins.ptr(),
            live: found_live.ptr(),
            count: bench.count(n),
        };
        bench.run(&args.rows(n as u32 + 9), bench.order(case));
        bench.run(&args.test(n as u32 + 9), bench.order(case));
        let mut expected_live = live.clone();
        for (i, test) in tests.iter().enumerate() {
            let c = test.chunk as usize;
            if test.offset + 1 >= live[c] {
                assert!(rows.read()[i] == NOTHING && margins.read()[i].is_nan());
                untested += 1;
                continue;
            }
            assert_eq!(rows.read()[i], chunks[c].first + test.offset);
            let at = i * PruneArgs::SCORED;
            let (alternatives, own) = (at..at + TOP_TOKENS, scores[at + TOP_TOKENS]);
            let expected = margin(
                &samplings[c],
                test.position,
                test.proposal,
                &tokens[alternatives.clone()],
                &scores[alternatives],
                own,
            );
            assert_eq!(margins.read()[i].to_bits(), expected.to_bits(), "case {case} {test:?}: {expected}");
            ties += usize::from(expected == f32::MIN_POSITIVE);
            if expected > most[i] {
                expected_live[c] = expected_live[c].min(test.offset + 1);
                ended += 1;
            }
        }
        assert_eq!(found_live.read(), expected_live);
    }
    assert!(ended > 20 && ties > 3 && untested > 20, "{ended} {ties} {untested}");
}
