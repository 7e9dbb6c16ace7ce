//! Draws tokens where every rank of a group has a part of the vocabulary's logits.
//!
//! Where nothing is cut off, the token is an arg max: each rank finds the best of its own tokens (bias, penalties and noise are
//! a token's own affair), and the best of these pairs of value and token is taken, by the same rule in a tie. Top-k, top-p and min-p look at all
//! tokens together: such rows are gathered, and drawn from as if there were one rank. Both give the tokens that one rank
//! draws from the same logits.

use super::choose::Best;
use super::draw::{SampleRow, best_of_part, draw};
use crate::collective::part;
use crate::memory::{SharedMut, Tensor, View};
use crate::ops::{all_gather, gather_rows};
use crate::{CollectiveError, Lane, Op};

/// Rows that are gathered at a time.
const GATHERED_ROWS: usize = 8;

/// The sampler of one rank, with its buffers.
pub struct PartSampler {
    vocabulary: usize,
    /// Value and token of this rank's best, row after row; and those of all ranks.
    own: Vec<f32>,
    all: Vec<f32>,
    /// Rows that are gathered: this rank's part of them, and all of them.
    parts: Tensor,
    whole: Tensor,
}

impl PartSampler {
    /// For a vocabulary of that many tokens, of which this is the rank's part.
    #[must_use]
    pub fn new(vocabulary: usize, rank: usize, ranks: usize) -> PartSampler {
        PartSampler {
            vocabulary,
            own: Vec::new(),
            all: Vec::new(),
            parts: Tensor::zeros(GATHERED_ROWS, part(vocabulary, rank, ranks).len()),
            whole: Tensor::zeros(GATHERED_ROWS, vocabulary),
        }
    }

    /// As [`super::sample`], on the columns of the logits that [`part`] gives this rank; the same tokens on every rank of the
    /// lane's group.
    ///
    /// # Errors
    /// The group is lost: see [`CollectiveError`].
    ///
    /// # Panics
    /// As [`super::sample`], or if the logits are not this rank's part.
    pub fn sample(
        &mut self,
        lane: &Lane,
        logits: View<'_>,
        rows: &[SampleRow<'_>],
        out: &mut [u32],
    ) -> Result<(), CollectiveError> {
        assert_eq!(out.len(), rows.len(), "sample: length of out");
        let own = part(self.vocabulary, lane.group().rank(), lane.group().ranks());
        assert_eq!(logits.cols(), own.len(), "sample: tokens of this rank");
        let vocabulary = self.vocabulary;
        let cut = |row: &SampleRow<'_>| row.sampling.cuts(vocabulary);
        if !rows.iter().all(cut) {
            self.best(lane, logits, own.start as u32, rows, out)?;
        }
        let mut gathered = rows.iter().zip(out.iter_mut()).filter(|(row, _)| cut(row)).peekable();
        while gathered.peek().is_some() {
            let some: Vec<_> = gathered.by_ref().take(GATHERED_ROWS).collect();
            self.gathered(lane, logits, some)?;
        }
        Ok(())
    }

    /// Rows from which nothing is cut off; the others are left to come.
    fn best(
        &mut self,
        lane: &Lane,
        logits: View<'_>,
        first: u32,
        rows: &[SampleRow<'_>],
        out: &mut [u32],
    ) -> Result<(), CollectiveError> {
        let (isa, vocabulary) = (lane.supported(), self.vocabulary);
        self.own.clear();
        self.own.resize(2 * rows.len(), 0.0);
        let own = SharedMut::new(&mut self.own);
        lane.for_each(Op::Sample, rows.len(), logits.cols(), |i, scratch| {
            let row = &rows[i];
            if !row.sampling.cuts(vocabulary) {
                let best = best_of_part(isa, logits.row(row.row), first, row, scratch);
                // SAFETY: each row is one item, done once.
                let place = unsafe { own.part(2 * i, 2) };
                place.copy_from_slice(&[best.logit, f32::from_bits(best.token)]);
            }
        });
        self.all.clear();
        self.all.resize(lane.group().ranks() * self.own.len(), 0.0);
        let (own, all) = (&self.own, &mut self.all);
        lane.with_group(Op::AllGather, |group, _| group.all_gather(own, all))?;
        for (i, token) in out.iter_mut().enumerate() {
            let of_ranks = self
                .all
                .chunks_exact(self.own.len())
                .map(|pairs| Best { logit: pairs[2 * i], token: pairs[2 * i + 1].to_bits() });
            *token = of_ranks.reduce(Best::or).map_or(0, |best| best.token);
        }
        Ok(())
    }

    /// At most [`GATHERED_ROWS`], and the places of their tokens.
    fn gathered(
        &mut self,
        lane: &Lane,
        logits: View<'_>,
        rows: Vec<(&SampleRow<'_>, &mut u32)>,
    ) -> Result<(), CollectiveError> {
        let n = rows.len();
        let of_logits: Vec<u32> = rows.iter().map(|(row, _)| row.row as u32).collect();
        gather_rows(lane, logits, &of_logits, self.parts.view_mut(n));
        all_gather(lane, self.parts.view(n), self.whole.view_mut(n))?;
        let isa = lane.supported();
        let mut tokens = [0; GATHERED_ROWS];
        let drawn = SharedMut::new(&mut tokens);
        lane.for_each(Op::Sample, n, self.vocabulary, |i, scratch| {
            // SAFETY: each row is one item, done once.
            let token = unsafe { drawn.part(i, 1) };
            token[0] = draw(isa, self.whole.row(i), rows[i].0, scratch);
        });
        rows.into_iter().zip(tokens).for_each(|((_, place), token)| *place = token);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampling;
    use crate::collective::in_process;
    use crate::{Collective, History, Isa, Partition, sampling};
    use std::sync::Arc;
    use std::time::Duration;

    /// Of few levels, so that some are equal; some are not finite.
    fn logits(row: u32, vocabulary: u32) -> Vec<f32> {
        let at = |token: u32| (token + 1).wrapping_mul((row + 1).wrapping_mul(0x9e37_79b9)) >> 15;
        let level = |token| match at(token) % 97 {
            0 => f32::NEG_INFINITY,
            1 => f32::NAN,
            2 => f32::INFINITY,
            level if row.is_multiple_of(2) => (level % 9) as f32 / 2.0 - 2.0,
            level => level as f32 / 9.0,
        };
        (0..vocabulary).map(level).collect()
    }

    fn samplings() -> Vec<Sampling> {
        let mut all = Vec::new();
        for temperature in [0.0, 0.7, 1.4] {
            let plain = Sampling { temperature, seed: 11, ..Sampling::default() };
            let bias = vec![(3, 1.5), (40, -2.0), (40, 0.5)];
            all.extend([
                Sampling { top_k: 5, ..plain.clone() },
                Sampling { top_p: 0.8, ..plain.clone() },
                Sampling { min_p: 0.1, ..plain.clone() },
                Sampling { logit_bias: bias, ..plain.clone() },
                Sampling { repetition_penalty: 1.3, frequency_penalty: 0.4, ..plain.clone() },
                Sampling {
                    banned: vec![vec![7], vec![2, 3, 40], vec![8, 2, 3, 41], vec![1, 3, 5]],
                    ..plain.clone()
                },
                Sampling {
                    allowed: Some(vec![0xaaaa_5555, 0xf0, 1 << 30].into()),
                    banned: vec![vec![3, 2]],
                    top_p: 0.7,
                    ..plain.clone()
                },
                Sampling { allowed: Some(vec![0x5555_aaaa, 0xf].into()), ..plain.clone() },
                Sampling { top_p: 0.9, presence_penalty: 0.5, ..plain.clone() },
                plain,
            ]);
        }
        all
    }

    #[test]
    fn parts_draw_what_one_rank_draws_from_the_same_logits() {
        const ROWS: u32 = 40;
        let samplings = samplings();
        for isa in Isa::available() {
            for vocabulary in [50, 64, 131] {
                let values: Vec<f32> = (0..ROWS).flat_map(|row| logits(row, vocabulary as u32)).collect();
                let mut whole = Tensor::from_rows(vocabulary, &values);
                // Nothing that can be drawn, and nothing in the first rank's part.
                whole.row_mut(3).fill(f32::NAN);
                whole.row_mut(5)[..vocabulary / 2].fill(f32::NEG_INFINITY);
                let whole = &whole;
                let tokens: Vec<u32> = (0..9).map(|i| i * 7 % vocabulary as u32).collect();
                let histories: Vec<_> = samplings.iter().map(|s| History::new(4, &tokens, s)).collect();
                let since = [2, 3];
                let rows: Vec<SampleRow<'_>> = (0..ROWS as usize)
                    .flat_map(|row| samplings.iter().zip(&histories).map(move |pair| (row, pair)))
                    .map(|(row, (sampling, history))| SampleRow {
                        row,
                        position: 11,
                        sampling,
                        history,
                        since: &since,
                        allowed: None,
                    })
                    .collect();
                let rows = &rows;
                let lane = || Lane::new(&Partition { cores: vec![0, 0] }, isa).unwrap();
                let mut expected = vec![0; rows.len()];
                sampling::sample(&lane(), whole.view(ROWS as usize), rows, &mut expected);
                let expected = &expected;
                for ranks in [1, 2, 3, 4] {
                    std::thread::scope(|scope| {
                        for group in in_process(ranks, Duration::from_secs(60)) {
                            scope.spawn(move || {
                                let (rank, mut lane) = (group.rank(), lane());
                                lane.join(Arc::new(group));
                                let own = part(vocabulary, rank, ranks);
                                let mut sampler = PartSampler::new(vocabulary, rank, ranks);
                                let mut out = vec![u32::MAX; rows.len()];
                                let logits = whole.view(ROWS as usize).columns(own);
                                sampler.sample(&lane, logits, rows, &mut out).unwrap();
                                assert_eq!(out, *expected, "{isa}, {vocabulary} tokens, {ranks} ranks");
                            });
                        }
                    });
                }
            }
        }
    }
}
