//! Between two steps of drafting: proposals recorded, stop rules applied, the next pass written.

use super::case_bench::{Bench, Memory};
use super::reference::{Random, bf16};
use faser_kernels::cuda::{
    Chunk, DraftState, DraftStepArgs, Element, FeaturesArgs, NOTHING, PassOnArgs, Ptr, Sample, Tile,
};
use faser_kernels::ops::TOP_TOKENS;
use faser_kernels::sampling::CANDIDATES;

const STEPS: usize = DraftStepArgs::STEPS;
/// Values that a kernel must not leave; bf16 has them.
const UNSET: f32 = -1024.0;

/// A chunk, as the host would keep it.
#[derive(Clone, Default)]
struct Drafting {
    state: DraftState,
    drafted: Vec<(u32, f32, Vec<u32>)>,
    cancelled: bool,
}

impl Drafting {
    fn goes_on(&self) -> bool {
        let DraftState { survival, below, steps, .. } = self.state;
        let count = self.drafted.len();
        !self.cancelled && count > 0 && count < steps as usize && survival >= below
    }

    fn add(&mut self, token: u32, confidence: f32, top: Vec<u32>) {
        let bin = ((confidence * 16.0) as usize).min(15);
        self.state.survival *= self.state.acceptance[bin];
        self.drafted.push((token, confidence, top));
    }
}

fn new_chunks(random: &mut Random, count: usize, step_cost: f32) -> Vec<Drafting> {
    let one = |_| {
        let mut acceptance = [0.0; 16];
        acceptance.iter_mut().for_each(|p| *p = 0.4 + random.below(60) as f32 / 100.0);
        let state = DraftState {
            base: random.below(900) as u32 + 1,
            steps: random.below(STEPS + 1) as u32,
            count: 0,
            alive: 1,
            survival: 1.0,
            below: [0.0, 0.2, 0.5][random.below(3)],
            next: 0.0,
            // All that go on bring one each, so that sums are exact.
            each: -1.0,
            step_cost,
            acceptance,
        };
        Drafting { state, ..Drafting::default() }
    };
    (0..count).map(one).collect()
}

pub(super) fn features_are_read_where_they_were_written(bench: &Bench<'_>) {
    for (element, round) in [(Element::F32, f32::from as fn(f32) -> f32), (Element::Bf16, bf16)] {
        for (cols, order) in
            [1, 15, 64, 300].into_iter().flat_map(|cols| bench.orders().map(move |order| (cols, order)))
        {
            let mut random = Random::new(cols as u64);
            let (stride, blocks) = (3, 7);
            let pool: Vec<u32> = random.shuffled(blocks);
            let tables = bench.words(&pool[..2 * stride]);
            // Two sequences, from the first position on and from within a block.
            let positions: Vec<u32> = (0..20).chain(13..34).collect();
            let chunk_of: Vec<u32> = positions.iter().enumerate().map(|(r, _)| u32::from(r >= 20)).collect();
            let n = positions.len();
            let rows = random.numbers(n * cols);
            let pages = bench.elements(element, &vec![UNSET; blocks * 16 * cols]);
            let write = FeaturesArgs {
                pages: pages.ptr(),
                tables: tables.ptr(),
                chunk_of: bench.lasting(&chunk_of),
                positions: bench.lasting(&positions),
                x: bench.lasting(&rows),
                rows: bench.count(n),
                masked: Ptr::NULL,
                unknown: Ptr::NULL,
                table_stride: stride as u32,
                cols: cols as u32,
            };
            bench.run(&write.write(element, n as u32 + 3, 2), order);
            let written = pages.read().iter().filter(|x| **x != UNSET).count();
            assert_eq!(written, n * cols, "{element:?}");
            let found = bench.floats(&vec![UNSET; (n + 1) * cols]);
            // The last two are mask tokens.
            let masked: Vec<u32> = (0..n).map(|r| u32::from(r >= n - 2)).collect();
            let unknown = random.numbers(cols);
            let read = FeaturesArgs {
                x: found.ptr(),
                masked: bench.lasting(&masked),
                unknown: bench.lasting(&unknown),
                ..write
            };
            bench.run(&read.read(element, n as u32 + 3, 2), order);
            let found = found.read();
            for r in 0..n {
                let expected = match (r, positions[r]) {
                    (_, 0) => vec![0.0; cols],
                    (r, _) if r >= n - 2 => unknown.clone(),
                    // Nobody wrote what is before it.
                    (20, _) => vec![UNSET; cols],
                    _ => rows[(r - 1) * cols..r * cols].iter().map(|x| round(*x)).collect(),
                };
                assert_eq!(found[r * cols..(r + 1) * cols], expected, "{element:?} row {r}");
            }
            assert!(found[n * cols..].iter().all(|x| *x == UNSET), "padding was written");

            let samples = [3, 0, 1].map(|chunk| Sample { row: 0, chunk, position: 0, since: 0 });
            for of_plan in [None, Some([4, 2, 9, 0])] {
                let kept = bench.floats(&[UNSET; 5 * 300][..5 * cols]);
                let args = PassOnArgs {
                    x: write.x,
                    samples: bench.lasting(&samples),
                    of_plan: of_plan.as_ref().map_or(Ptr::NULL, |of_plan| bench.lasting(of_plan)),
                    out: kept.ptr(),
                    count: bench.count(3),
                    cols: cols as u32,
                };
                bench.run(&args.launch(4, 2), order);
                let kept = kept.read();
                for chunk in 0..5_usize {
                    let of = |sample: &Sample| of_plan.map_or(sample.chunk, |of| of[sample.chunk as usize]);
                    let from = samples.iter().position(|sample| of(sample) as usize == chunk);
                    let expected =
                        from.map_or(vec![UNSET; cols], |s| rows[s * cols..(s + 1) * cols].to_vec());
                    assert_eq!(kept[chunk * cols..(chunk + 1) * cols], expected, "chunk {chunk}");
                }
            }
        }
    }
}

pub(super) fn steps_record_proposals_and_go_on_with_those_that_may(bench: &Bench<'_>) {
    let mut random = Random::new(31);
    let (mut stopped, mut cancelled, mut full, mut unpaid) = (0, 0, 0, 0);
    for case in 0..12 {
        // Some plans are larger than a block.
        let n = if [5, 11].contains(&case) { 1100 } else { 1 + random.below(40) };
        let step_cost = if case % 4 == 3 { n as f32 / 3.0 } else { 0.0 };
        let mut all = new_chunks(&mut random, n, step_cost);
        let (each, queries) = (1 + case as u32 % 2, 16);
        let alternatives_wanted = case % 3 > 0;
        let states: Vec<DraftState> = all.iter().map(|chunk| chunk.state).collect();
        let states = bench.memory(&states, DraftState::default());
        let (proposals, counts_of) = (bench.words(&vec![0; n * STEPS]), bench.words(&vec![0; n]));
        let confidences = bench.floats(&vec![0.0; n * STEPS]);
        let alternatives = bench.words(&vec![0; n * STEPS * TOP_TOKENS]);
        let candidates = bench.words(&vec![0; n * STEPS * CANDIDATES]);
        let chunks = bench.memory(&vec![Chunk::default(); n], Chunk::default());
        let rows = [0; 3].map(|_| bench.words(&vec![0; n]));
        let samples = bench.memory(&vec![Sample::default(); n], Sample::default());
        let tiles = bench.memory(&vec![Tile { chunk: 7, first_query: 7 }; n * each as usize], Tile::PADDING);
        let (counts, step, going) = (bench.words(&[0; 3]), bench.words(&[0]), bench.words(&[0; STEPS + 1]));
        let [row_tokens, positions, chunk_of] = rows.each_ref().map(Memory::ptr);

        // The first pass has chunks of its own: those that draft, the last first.
        let drafting: Vec<u32> = (0..n as u32).rev().filter(|c| all[*c as usize].state.steps > 0).collect();
        let first: Vec<Sample> =
            (0..drafting.len() as u32).map(|chunk| Sample { row: 0, chunk, position: 0, since: 0 }).collect();
        let mut drawing: Vec<usize> = drafting.iter().map(|c| *c as usize).collect();
        for at in 0..=STEPS {
            let tokens: Vec<u32> = drawing.iter().map(|_| random.below(5000) as u32).collect();
            let confidence: Vec<f32> = drawing
                .iter()
                .map(|_| {
                    [f32::NAN, -1.0, 1.5, 1.0, random.below(100) as f32 / 99.0]
                        [random.below(5).max(random.below(5))]
                })
                .collect();
            let top: Vec<u32> = (0..drawing.len() * TOP_TOKENS).map(|_| random.below(5000) as u32).collect();
            // Of each place the first three of those, so that what is kept of one says what is kept of the other.
            let next: Vec<u32> = top.chunks(TOP_TOKENS).flat_map(|top| &top[..CANDIDATES]).copied().collect();
            let flags: Vec<u32> =
                all.iter().map(|chunk| u32::from(chunk.cancelled || random.below(30) == 0)).collect();
            let args = DraftStepArgs {
                samples: if at == 0 { bench.lasting(&first) } else { samples.ptr() },
                tokens: bench.lasting(&tokens),
                confidence: bench.lasting(&confidence),
                top: if alternatives_wanted { bench.lasting(&top) } else { Ptr::NULL },
                next: if alternatives_wanted { bench.lasting(&next) } else { Ptr::NULL },
                sample_count: if at == 0 {
                    bench.lasting(&[drawing.len() as u32])
                } else {
                    Ptr(counts.ptr().0 + 8)
                },
                of_plan: if at == 0 { bench.lasting(&drafting) } else { Ptr::NULL },
                states: states.ptr(),
                cancelled: bench.lasting(&flags),
                proposals: proposals.ptr(),
                confidences: confidences.ptr(),
                alternatives: alternatives.ptr(),
                candidates: candidates.ptr(),
                proposal_counts: counts_of.ptr(),
                chunks: chunks.ptr(),
                row_tokens,
                positions,
                chunk_of,
                next_samples: samples.ptr(),
                tiles: tiles.ptr(),
                counts: counts.ptr(),
                step: step.ptr(),
                going: going.ptr(),
                chunk_count: n as u32,
                tiles_each: each,
                tile_queries: queries,
            };
            bench.run(&args.launch(), bench.order(case));

            for (i, c) in drawing.iter().enumerate() {
                let top = if alternatives_wanted {
                    top[i * TOP_TOKENS..][..TOP_TOKENS].to_vec()
                } else {
                    vec![0; 8]
                };
                all[*c].add(tokens[i], confidence[i], top);
            }
            for (chunk, flag) in all.iter_mut().zip(&flags) {
                cancelled += usize::from(*flag == 1 && chunk.goes_on());
                chunk.cancelled |= *flag == 1;
            }
            drawing = (0..n).filter(|c| all[*c].goes_on()).collect();
            if step_cost > 0.0 && !drawing.is_empty() && drawing.len() as f32 <= step_cost {
                unpaid += 1;
                drawing.clear();
                all.iter_mut().for_each(|chunk| chunk.cancelled = true);
            }
            let rows_now = drawing.len() as u32;
            assert_eq!(counts.read(), [rows_now; 3], "case {case}, step {at}");
            assert_eq!((step.read()[0] as usize, going.read()[at]), (at + 1, rows_now + 1));
            let rows_read = rows.each_ref().map(Memory::read);
            let (samples_read, chunks_read, tiles_read) = (samples.read(), chunks.read(), tiles.read());
            for (to, &c) in drawing.iter().enumerate() {
                let (base, count) = (all[c].state.base, all[c].drafted.len() as u32);
                let found = [0, 1, 2].map(|array: usize| rows_read[array][to]);
                assert_eq!(found, [all[c].drafted[count as usize - 1].0, base + count - 1, c as u32]);
                let sample = Sample { row: to as u32, chunk: c as u32, position: base + count, since: count };
                assert_eq!(samples_read[to], sample);
                let chunk = Chunk { first: to as u32, rows: 1, sampled_from: 0, since: 0 };
                assert_eq!(chunks_read[c], chunk);
                let of_row = (0..each).map(|t| Tile { chunk: c as u32, first_query: t * queries });
                assert!(of_row.eq(tiles_read[to * each as usize..][..each as usize].iter().copied()));
            }
            let padding = &tiles_read[drawing.len() * each as usize..];
            assert!(padding.iter().all(|tile| tile.chunk == NOTHING));
            let idle = (0..n).filter(|c| !all[*c].goes_on());
            assert!(
                idle.map(|c| chunks_read[c]).all(|chunk| (chunk.rows, chunk.sampled_from) == (0, NOTHING))
            );
        }
        let (counts_read, proposals_read) = (counts_of.read(), proposals.read());
        let (confidences_read, alternatives_read) = (confidences.read(), alternatives.read());
        let candidates_read = candidates.read();
        for (c, chunk) in all.iter().enumerate() {
            let count = chunk.drafted.len();
            assert_eq!(counts_read[c] as usize, count);
            for (i, (token, confidence, top)) in chunk.drafted.iter().enumerate() {
                let place = c * STEPS + i;
                assert_eq!(proposals_read[place], *token);
                assert_eq!(confidences_read[place].to_bits(), confidence.to_bits());
                assert_eq!(alternatives_read[place * TOP_TOKENS..][..TOP_TOKENS], *top);
                assert_eq!(candidates_read[place * CANDIDATES..][..CANDIDATES], top[..CANDIDATES]);
            }
            full += usize::from(count > 0 && count == chunk.state.steps as usize);
            stopped += usize::from(!chunk.cancelled && count > 0 && count < chunk.state.steps as usize);
        }
    }
    assert!(
        stopped > 50 && cancelled > 20 && full > 20 && unpaid > 1,
        "{stopped} {cancelled} {full} {unpaid}"
    );
}
