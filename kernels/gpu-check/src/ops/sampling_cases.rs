//! The sampler: the same tokens as on the CPU, the same noise bit for bit.

use super::super::probes::NoiseArgs;
use super::case_bench::{Bench, Memory};
use super::reference::{Random, lane};
use faser_kernels::collective::part;
use faser_kernels::cuda::{
    AdjustArgs, CandidatesArgs, ConfidenceArgs, CountArgs, DrawArgs, LogitStats, LogitStatsArgs,
    LogprobFound, LogprobWish, LogprobsArgs, NOTHING, NucleusArgs, PickArgs, Ptr, Sample, Sampler,
    TopTokensArgs,
};
use faser_kernels::ops::{self, TOP_TOKENS};
use faser_kernels::sampling::{CANDIDATES, LogprobRow, Logprobs, mask_of};
use faser_kernels::{History, Isa, SampleRow, Sampling, Tensor};
use std::ops::Range;

/// A sampler in memory that stays.
pub(super) fn sampler(bench: &Bench<'_>, sampling: &Sampling, counts: Ptr) -> Sampler {
    let tokens: Vec<u32> = sampling.logit_bias.iter().map(|(token, _)| *token).collect();
    let bias: Vec<f32> = sampling.logit_bias.iter().map(|(_, bias)| *bias).collect();
    Sampler::new(sampling, bench.lasting(&tokens), bench.lasting(&bias), counts)
}

pub(super) fn noise_is_the_cpus_bit_for_bit(bench: &Bench<'_>) {
    let on_device = |seed, position, tokens: usize| {
        let out = bench.words(&vec![0; tokens]);
        let args = NoiseArgs { out: out.ptr(), count: tokens as u32, position, seed };
        bench.run(&args.launch(), 0);
        out.read().iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<f32>>()
    };
    // Pinned, as in the CPU's own test.
    assert_eq!(on_device(1, 2, 3), [3.372_484_7, 3.598_653_8, 0.417_324_24]);
    // The CPU shows its noise as the margin of two tokens of equal logits.
    for (seed, position) in [(7, 0), (u64::MAX, 31), (0x1234_5678_9abc_def0, u32::MAX)] {
        let found = on_device(seed, position, 5000);
        let sampling = Sampling { seed, ..Sampling::default() };
        for token in 1..5000u32 {
            let margin = faser_kernels::sampling::margin(&sampling, position, 0, &[token], &[0.0], 0.0);
            assert_eq!(
                margin,
                found[token as usize] - found[0],
                "seed {seed} position {position} token {token}"
            );
        }
    }
}

/// Samples of one pass: for each chunk, its parameters, the tokens it has, and proposals.
struct Pass {
    vocabulary: usize,
    chunks: Vec<(Sampling, usize, Vec<u32>, Vec<u32>)>,
    logits: Vec<f32>,
}

/// Places for proposals of a chunk.
const PROPOSALS: u32 = 4;

/// A pass in memory that stays.
#[derive(Clone, Copy)]
struct Staged {
    n: usize,
    masks: Ptr,
    mask_of: Ptr,
    mask_words: u32,
    samples: Ptr,
    samplers: Ptr,
    proposals: Ptr,
    count: Ptr,
}

impl Pass {
    fn random(random: &mut Random, vocabulary: usize, chunks: usize) -> Pass {
        let token = |random: &mut Random| random.below(vocabulary.min(40)) as u32;
        let chunks: Vec<_> = (0..chunks)
            .map(|_| {
                let mut sampling = Sampling { seed: random.bits(), ..Sampling::default() };
                sampling.temperature = [0.0, 0.3, 1.0, 1.6][random.below(4)];
                sampling.top_k = [0, 0, 1, 3, 40, 100_000][random.below(6)];
                sampling.top_p = [1.0, 0.95, 0.5, 0.05][random.below(4)];
                sampling.min_p = [0.0, 0.0, 0.1, 1.0][random.below(4)];
                if random.below(2) == 0 {
                    sampling.repetition_penalty = 1.3;
                    sampling.presence_penalty = 0.7;
                    sampling.frequency_penalty = -0.4;
                }
                if random.below(2) == 0 {
                    sampling.logit_bias = (0..5).map(|_| (token(random), 4.0 * random.number())).collect();
                    sampling.logit_bias.push((u32::MAX, 1.0));
                }
                match random.below(4) {
                    0 => sampling.allowed = Some((0..4).map(|_| random.bits() as u32).collect()),
                    1 => sampling.banned = vec![vec![token(random)], vec![token(random), token(random)]],
                    _ => {}
                }
                let (prompt, output) = (1 + random.below(20), random.below(20));
                let tokens = (0..prompt + output).map(|_| token(random)).collect();
                let proposals = (0..random.below(4)).map(|_| token(random)).collect();
                (sampling, prompt, tokens, proposals)
            })
            .collect();
        let samples: usize =
            chunks.iter().map(|(_, _, _, proposals): &(_, _, _, Vec<u32>)| proposals.len() + 1).sum();
        let mut logits: Vec<f32> =
            random.numbers(samples * vocabulary).iter().map(|x| x * x * x * 12.0).collect();
        // Ties, and what is not finite.
        for _ in 0..logits.len() / 7 {
            let at = random.below(logits.len());
            logits[at] = [2.0, -0.0, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.below(6)];
        }
        Pass { vocabulary, chunks, logits }
    }

    fn histories(&self) -> Vec<History> {
        let of = |(sampling, prompt, tokens, _): &(Sampling, usize, Vec<u32>, Vec<u32>)| {
            History::new(*prompt, tokens, sampling)
        };
        self.chunks.iter().map(of).collect()
    }

    fn rows<'a>(&'a self, histories: &'a [History]) -> Vec<SampleRow<'a>> {
        let mut rows = Vec::new();
        for ((sampling, _, tokens, proposals), history) in self.chunks.iter().zip(histories) {
            for since in 0..=proposals.len() {
                let position = (tokens.len() + since) as u32;
                let since = &proposals[..since];
                rows.push(SampleRow { row: rows.len(), position, sampling, history, since, allowed: None });
            }
        }
        rows
    }

    fn on_cpu(&self) -> Vec<u32> {
        let histories = self.histories();
        let rows = self.rows(&histories);
        let mut out = vec![0; rows.len()];
        let logits = Tensor::from_rows(self.vocabulary, &self.logits);
        ops::sample(&lane(Isa::Portable, 1), logits.view(rows.len()), &rows, &mut out);
        out
    }

    /// Bias, then penalties, one operation after the other; then what may not be drawn.
    fn adjusted(&self) -> Vec<f32> {
        let mut all = self.logits.clone();
        let mut rows = all.chunks_mut(self.vocabulary);
        for (sampling, prompt, tokens, proposals) in &self.chunks {
            for since in 0..=proposals.len() {
                let logits = rows.next().expect("a row for each");
                for (token, bias) in &sampling.logit_bias {
                    if let Some(logit) = logits.get_mut(*token as usize) {
                        *logit += bias;
                    }
                }
                let output = [&tokens[*prompt..], &proposals[..since]].concat();
                for (token, logit) in (0u32..).zip(logits) {
                    let count = output.iter().filter(|other| **other == token).count();
                    if !sampling.has_penalties() || (count == 0 && !tokens[..*prompt].contains(&token)) {
                        continue;
                    }
                    let penalty = sampling.repetition_penalty;
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                    if count > 0 {
                        *logit -= sampling.frequency_penalty * count as f32;
                        *logit -= sampling.presence_penalty;
                    }
                }
            }
        }
        let histories = self.histories();
        for (row, logits) in self.rows(&histories).iter().zip(all.chunks_mut(self.vocabulary)) {
            let Some(mask) = mask_of(row, self.vocabulary) else { continue };
            let forbidden =
                logits.iter_mut().enumerate().filter(|(token, _)| mask[token / 32] >> (token % 32) & 1 == 0);
            forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        all
    }

    /// Samples, samplers and proposals where kernels read them.
    fn stage(&self, bench: &Bench<'_>, order: i32) -> Staged {
        let vocabulary = self.vocabulary as u32;
        let (mut samples, mut samplers, mut proposals) = (vec![], vec![], vec![]);
        for (chunk, (sampling, prompt, tokens, proposed)) in self.chunks.iter().enumerate() {
            let counts = bench.lasting(&vec![0u32; self.vocabulary]);
            let args = CountArgs {
                tokens: bench.lasting(tokens),
                counts,
                len: tokens.len() as u32,
                first_position: 0,
                prompt_len: *prompt as u32,
                vocabulary,
                remove: 0,
            };
            bench.run(&args.launch(1), order);
            // What the output had for a while leaves nothing behind.
            let passing = CountArgs { first_position: *prompt as u32, ..args };
            bench.run(&passing.launch(1), order);
            bench.run(&CountArgs { remove: 1, ..passing }.launch(1), order);
            samplers.push(sampler(bench, sampling, counts));
            for since in 0..=proposed.len() as u32 {
                let position = tokens.len() as u32 + since;
                samples.push(Sample { row: 0, chunk: chunk as u32, position, since });
            }
            let mut row = proposed.clone();
            row.resize(PROPOSALS as usize, u32::MAX);
            proposals.extend(row);
        }
        let n = samples.len();
        let mask_words = self.vocabulary.div_ceil(32);
        let (mut masks, mut mask_of_chunk) = (Vec::new(), vec![NOTHING; self.chunks.len()]);
        let histories = self.histories();
        for (row, sample) in self.rows(&histories).iter().zip(&samples) {
            if let Some(mask) = mask_of(row, self.vocabulary) {
                let first = &mut mask_of_chunk[sample.chunk as usize];
                if *first == NOTHING {
                    *first = (masks.len() / mask_words) as u32;
                }
                // Those of a chunk stand together.
                masks.resize((*first + sample.since) as usize * mask_words, u32::MAX);
                masks.extend(mask);
            } else if mask_of_chunk[sample.chunk as usize] != NOTHING {
                masks.extend(vec![u32::MAX; mask_words]);
            }
        }
        Staged {
            n,
            masks: bench.lasting(&masks),
            mask_of: bench.lasting(&mask_of_chunk),
            mask_words: mask_words as u32,
            samples: bench.lasting(&samples),
            samplers: bench.lasting(&samplers),
            proposals: bench.lasting(&proposals),
            count: bench.count(n),
        }
    }

    fn on_device(&self, bench: &Bench<'_>, order: i32) -> Vec<u32> {
        let staged = self.stage(bench, order);
        let logits = bench.floats(&self.logits);
        let Found { best, parts, .. } = staged.best(bench, order, logits.ptr(), 0..self.vocabulary, true);
        for (found, expected) in logits.read().iter().zip(self.adjusted()) {
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{found} {expected}"
            );
        }
        let tokens = bench.words(&vec![0; staged.n]);
        let pick = PickArgs::tokens(best, tokens.ptr(), staged.count, parts);
        bench.run(&pick.launch(staged.most(), 1), order);
        tokens.read()
    }

    /// As ranks of a group, of which each has the logits of some tokens.
    fn on_ranks(&self, bench: &Bench<'_>, order: i32, ranks: usize) -> Vec<u32> {
        let staged = self.stage(bench, order);
        let Staged { n, count, .. } = staged;
        let mut keys_of_all = Vec::new();
        for rank in 0..ranks {
            let own = part(self.vocabulary, rank, ranks);
            let rows = self.logits.chunks(self.vocabulary).flat_map(|row| &row[own.clone()]);
            let logits = bench.floats(&rows.copied().collect::<Vec<f32>>());
            let Found { best, parts, .. } = staged.best(bench, order, logits.ptr(), own.clone(), false);
            let keys = bench.memory(&vec![0u64; n], 5);
            bench.run(&PickArgs::keys(best, keys.ptr(), count, parts).launch(staged.most(), 1), order);
            // A place more than there are samples, as in a bucket.
            keys_of_all.extend(keys.read().iter().copied().chain([u64::MAX]));
        }
        let tokens = bench.words(&vec![0; n]);
        let keys = bench.lasting(&keys_of_all);
        let pick = PickArgs::of_ranks(keys, tokens.ptr(), count, ranks as u32, staged.most());
        bench.run(&pick.launch(staged.most(), 1), order);
        tokens.read()
    }
}

/// What is found of logits: the best of each part, what nucleus left, and how many parts a row has.
struct Found {
    best: Ptr,
    stats: Ptr,
    least: Ptr,
    parts: u32,
}

impl Staged {
    /// Samples that there may be.
    fn most(&self) -> u32 {
        self.n as u32 + 1
    }

    /// Adjusts the logits of some tokens, and draws.
    fn best(&self, bench: &Bench<'_>, order: i32, logits: Ptr, own: Range<usize>, cuts: bool) -> Found {
        let Staged { n, masks, mask_of, mask_words, samples, samplers, proposals, count } = *self;
        let (first, vocabulary, most) = (own.start as u32, own.len() as u32, self.most());
        let adjust = AdjustArgs {
            logits,
            samples,
            samplers,
            proposals,
            masks,
            mask_of,
            count,
            vocabulary,
            proposal_stride: PROPOSALS,
            first,
            mask_words,
        };
        bench.run(&adjust.launch(most, 1), order);
        let (found, parts) = stats(bench, order, logits, (n, most), vocabulary, first);
        let (least_of, best_of) =
            (bench.memory(&vec![0u64; n], 5), bench.memory(&vec![0u64; n * parts as usize], 5));
        let (stats, best, first_token) = (found.ptr(), best_of.ptr(), first);
        let mut least = Ptr::NULL;
        if cuts {
            least = least_of.ptr();
            let args = NucleusArgs { logits, stats, samples, samplers, least, count, vocabulary, parts };
            bench.run(&args.launch(most, 1), order);
        }
        let args =
            DrawArgs { logits, stats, least, samples, samplers, best, count, vocabulary, parts, first_token };
        bench.run(&args.launch(most), order);
        let _ = (found.read(), least_of.read(), best_of.read());
        Found { best, stats, least, parts }
    }
}

/// What kernels find of logits, `most` being rows there may be; and in how many parts each row is.
fn stats<'e>(
    bench: &Bench<'e>,
    order: i32,
    logits: Ptr,
    (rows, most): (usize, u32),
    vocabulary: u32,
    first_token: u32,
) -> (Memory<'e, LogitStats>, u32) {
    let parts = LogitStatsArgs::parts(vocabulary);
    let stats = bench.memory(&vec![LogitStats::default(); rows * parts as usize], LogitStats::default());
    let (at, rows) = (stats.ptr(), bench.count(rows));
    bench.run(&LogitStatsArgs { logits, stats: at, rows, vocabulary, first_token }.launch(most), order);
    (stats, parts)
}

pub(super) fn tokens_are_the_cpus(bench: &Bench<'_>) {
    let mut random = Random::new(2);
    let mut drawn = 0;
    for case in 0..60 {
        let vocabulary = [5, 33, 300, 4096, 4100, 9000][case % 6];
        let pass = Pass::random(&mut random, vocabulary, 1 + case % 3);
        let expected = pass.on_cpu();
        let found = pass.on_device(bench, bench.order(case));
        // The nucleus sums in fixed point here and in f64 there: only a sum within 1e-6 of top_p may differ, and none of these is.
        assert_eq!(found, expected, "case {case}, vocabulary {vocabulary}");
        drawn += expected.len();
    }
    assert!(drawn > 100);
}

/// Candidates of rows that only top-k may cut, which leaves as many tokens as it says.
pub(super) fn candidates_are_the_cpus(bench: &Bench<'_>) {
    let mut random = Random::new(8);
    let (mut none_left, mut cut) = (0, 0);
    for case in 0..40 {
        let vocabulary = [5, 33, 300, 4100, 9000][case % 5];
        let mut pass = Pass::random(&mut random, vocabulary, 1 + case % 3);
        for (sampling, ..) in &mut pass.chunks {
            (sampling.top_k, sampling.top_p, sampling.min_p) = ([0, 0, 2, 3][random.below(4)], 1.0, 0.0);
        }
        let (order, staged, drawn) = (bench.order(case), pass.stage(bench, bench.order(case)), pass.on_cpu());
        let logits = bench.floats(&pass.logits);
        let Found { stats, least, parts, .. } = staged.best(bench, order, logits.ptr(), 0..vocabulary, true);
        let Staged { n, samples, samplers, count, .. } = staged;
        let out = bench.words(&vec![7; n * CANDIDATES]);
        let args = CandidatesArgs {
            logits: logits.ptr(),
            stats,
            least,
            samples,
            samplers,
            tokens: bench.lasting(&drawn),
            out: out.ptr(),
            count,
            vocabulary: vocabulary as u32,
            parts,
        };
        bench.run(&args.launch(staged.most(), 1), order);
        let found = out.read();

        // What is left of each row, drawn from with the same noise and nothing cut.
        let (histories, mut left) = (pass.histories(), pass.adjusted());
        let mut plain: Vec<Sampling> = Vec::new();
        for (row, logits) in pass.rows(&histories).iter().zip(left.chunks_mut(vocabulary)) {
            let Sampling { top_k, temperature, seed, .. } = *row.sampling;
            if top_k > 0 && temperature > 0.0 {
                let mut order: Vec<usize> =
                    (0..vocabulary).filter(|token| logits[*token].is_finite()).collect();
                order.sort_by(|a, b| (logits[*b] + 0.0).total_cmp(&(logits[*a] + 0.0)).then(a.cmp(b)));
                order.iter().skip(top_k as usize).for_each(|token| logits[*token] = f32::NEG_INFINITY);
                cut += 1;
            }
            plain.push(Sampling { temperature, seed, ..Sampling::default() });
        }
        let rows: Vec<SampleRow<'_>> = pass
            .rows(&histories)
            .iter()
            .zip(&plain)
            .map(|(row, sampling)| SampleRow { sampling, ..*row })
            .collect();
        let mut expected = vec![[0; CANDIDATES]; n];
        let tensor = Tensor::from_rows(vocabulary, &left);
        ops::candidates(&lane(Isa::Portable, 1), tensor.view(n), &rows, &drawn, &mut expected);
        for ((row, logits), expected) in left.chunks(vocabulary).enumerate().zip(&mut expected) {
            let others = |(token, z): &(usize, &f32)| z.is_finite() && *token != drawn[row] as usize;
            let others = logits.iter().enumerate().filter(others).count();
            expected.iter_mut().skip(others).for_each(|token| *token = NOTHING);
            none_left += CANDIDATES.saturating_sub(others);
        }
        assert_eq!(found, expected.concat(), "case {case}, vocabulary {vocabulary}");
    }
    assert!(none_left > 20 && cut > 20, "{none_left} {cut}");
}

pub(super) fn ranks_with_parts_of_the_tokens_draw_the_same(bench: &Bench<'_>) {
    let mut random = Random::new(3);
    for case in 0..30 {
        let vocabulary = [5, 33, 300, 4100, 9000][case % 5];
        let mut pass = Pass::random(&mut random, vocabulary, 1 + case % 3);
        for (sampling, ..) in &mut pass.chunks {
            (sampling.top_k, sampling.top_p, sampling.min_p) = (0, 1.0, 0.0);
        }
        let found = pass.on_ranks(bench, bench.order(case), 1 + case % 4);
        assert_eq!(found, pass.on_cpu(), "case {case}, vocabulary {vocabulary}");
    }
}

pub(super) fn a_row_without_a_finite_logit_gives_token_0(bench: &Bench<'_>) {
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, top_p: 0.9, ..Sampling::default() };
        let pass = Pass {
            vocabulary: 40,
            chunks: vec![(sampling, 1, vec![1], vec![])],
            logits: vec![f32::NEG_INFINITY; 40],
        };
        assert_eq!((pass.on_device(bench, 0), pass.on_cpu()), (vec![0], vec![0]));
    }
}

pub(super) fn confidence_and_top_tokens_are_the_cpus(bench: &Bench<'_>) {
    let mut random = Random::new(5);
    for case in 0..30 {
        let (rows, vocabulary) = (1 + random.below(4), [3, 50, 4096, 5000, 8200][case % 5]);
        let mut logits: Vec<f32> =
            random.numbers(rows * vocabulary).iter().map(|x| (x * 40.0).round() / 4.0).collect();
        if case % 3 == 0 {
            for _ in 0..rows * vocabulary / 3 {
                let at = random.below(rows * vocabulary);
                logits[at] = f32::NEG_INFINITY;
            }
        }
        let tokens: Vec<u32> = (0..rows).map(|_| random.below(vocabulary) as u32).collect();
        let (cpu, tensor) = (lane(Isa::Portable, 1), Tensor::from_rows(vocabulary, &logits));
        let (mut confidences, mut tops) = (vec![0.0; rows], vec![[0; TOP_TOKENS]; rows]);
        ops::confidence(&cpu, tensor.view(rows), &tokens, &[], &mut confidences);
        ops::top_tokens(&cpu, tensor.view(rows), &mut tops);

        let (order, vocabulary) = (bench.order(case), vocabulary as u32);
        let (out, top) = (bench.floats(&vec![9.0; rows]), bench.words(&vec![9; rows * TOP_TOKENS]));
        let (logits, most) = (bench.lasting(&logits), rows as u32);
        let (stats, parts) = stats(bench, order, logits, (rows, most), vocabulary, 0);
        let confidence = ConfidenceArgs {
            logits,
            stats: stats.ptr(),
            tokens: bench.lasting(&tokens),
            out: out.ptr(),
            rows: bench.count(rows),
            vocabulary,
            parts,
        };
        bench.run(&confidence.launch(most, 1), order);
        for (found, expected) in out.read().iter().zip(&confidences) {
            assert!((found - expected).abs() <= 1e-5 * expected + 1e-30, "case {case}: {found} {expected}");
        }
        let args = TopTokensArgs { logits, out: top.ptr(), rows: bench.count(rows), vocabulary };
        bench.run(&args.launch(most, 1), order);
        assert_eq!(top.read(), tops.concat(), "case {case}");
    }
}

pub(super) fn logprobs_are_the_cpus(bench: &Bench<'_>) {
    let mut random = Random::new(6);
    for case in 0..20 {
        let (chunks, vocabulary) = (1 + random.below(4), [3, 50, 4096, 5000, 8200][case % 5]);
        let (mut samples, mut wishes, mut prompt_tokens, mut asked) = (vec![], vec![], vec![], vec![]);
        let drawn: Vec<u32> = (0..chunks * 4).map(|_| random.below(vocabulary) as u32).collect();
        for chunk in 0..chunks as u32 {
            // Some places are the prompt's, whose tokens are known; behind them something is drawn.
            let (start, places, prompt) = (random.below(90) as u32, 1 + random.below(4), random.below(3));
            let top = if random.below(5) == 0 { NOTHING } else { random.below(22) as u32 };
            wishes.push(LogprobWish {
                top,
                prompt_at: prompt_tokens.len() as u32,
                start,
                count: prompt as u32,
            });
            for place in 0..places {
                let row = samples.len();
                let token = if place < prompt { random.below(vocabulary) as u32 } else { drawn[row] };
                if place < prompt {
                    prompt_tokens.push(token);
                }
                samples.push(Sample { row: 0, chunk, position: start + place as u32, since: 0 });
                if top != NOTHING {
                    asked.push(LogprobRow { row, token, top: top as usize });
                }
            }
            prompt_tokens.resize((wishes[chunk as usize].prompt_at + prompt as u32) as usize, 0);
        }
        let rows = samples.len();
        let mut logits: Vec<f32> =
            random.numbers(rows * vocabulary).iter().map(|x| (x * 40.0).round() / 4.0).collect();
        for _ in 0..rows * vocabulary / 5 {
            let at = random.below(rows * vocabulary);
            logits[at] = f32::NEG_INFINITY;
        }
        let (cpu, tensor) = (lane(Isa::Portable, 1), Tensor::from_rows(vocabulary, &logits));
        let mut expected = vec![Logprobs::default(); asked.len()];
        ops::logprobs(&cpu, tensor.view(rows), &asked, &mut expected);

        let (order, vocabulary, count) = (bench.order(case), vocabulary as u32, bench.count(rows));
        let out = bench.memory(&vec![LogprobFound::default(); rows], LogprobFound::default());
        let (logits, most) = (bench.lasting(&logits), rows as u32);
        let (stats, parts) = stats(bench, order, logits, (rows, most), vocabulary, 0);
        let args = LogprobsArgs {
            logits,
            stats: stats.ptr(),
            samples: bench.lasting(&samples),
            tokens: bench.lasting(&drawn),
            wishes: bench.lasting(&wishes),
            prompt_tokens: bench.lasting(&prompt_tokens),
            out: out.ptr(),
            count,
            vocabulary,
            parts,
        };
        bench.run(&args.launch(most, 1), order);
        let near = |a: f32, b: f32| a == b || (a - b).abs() < 1e-4;
        for (asked, expected) in asked.iter().zip(&expected) {
            let found = out.read()[asked.row].logprobs();
            let tokens = |found: &Logprobs| found.top.iter().map(|(token, _)| *token).collect::<Vec<u32>>();
            assert_eq!((found.token, tokens(&found)), (expected.token, tokens(expected)), "case {case}");
            assert!(near(found.logprob, expected.logprob), "case {case}: {found:?} {expected:?}");
            let pairs = found.top.iter().zip(&expected.top);
            assert!(pairs.into_iter().all(|((_, a), (_, b))| near(*a, *b)), "case {case}");
        }
    }
}
