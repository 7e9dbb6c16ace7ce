//! What a model loses by the type that its weights are held in: its predictions of a text beside those of the same model in f32, on the CPU.

use faser_kernels::{BlockId, Isa, KvCache, Lane, Partition, Rows};

use crate::{Model, ModelError, Pass, Scratch};

/// Tokens of a part of the text; each part is read by itself, and its first token is not predicted.
const WINDOW: usize = 512;
/// Rows of a pass, all of whose logits are looked at.
const ROWS: usize = 64;
const BLOCK: usize = 16;

/// How well two models predict a text, and how far apart they are. Logarithms are natural.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Tokens that were predicted.
    pub tokens: usize,
    /// `e` to the mean of what the text's own tokens were short of certainty.
    pub perplexity: f64,
    /// The same of the model in f32.
    pub perplexity_in_f32: f64,
    /// The mean Kullback-Leibler divergence of its predictions from those in f32, nats.
    pub divergence: f64,
    /// That which one place in a hundred exceeds.
    pub divergence_p99: f64,
    /// The share of places with the same likeliest token.
    pub same_token: f64,
}

impl Quality {
    /// Of `model`, beside `in_f32`, which is the same model in that, over a text of two tokens at least; on so many cores.
    ///
    /// # Errors
    /// There is no memory for KV, or a logit is no number.
    pub fn of(model: &Model, in_f32: &Model, tokens: &[u32], cores: usize) -> Result<Quality, ModelError> {
        let window = WINDOW.min(model.config().max_context);
        let mut readers = [Reader::new(model, cores, window)?, Reader::new(in_f32, cores, window)?];
        let (mut surprise, mut surprise_in_f32, mut divergences, mut same) = (0.0, 0.0, Vec::new(), 0);
        for part in tokens.chunks(window) {
            for start in (0..part.len().saturating_sub(1)).step_by(ROWS) {
                let rows = &part[start..(start + ROWS).min(part.len() - 1)];
                readers.iter_mut().for_each(|reader| reader.read(start, rows));
                for (row, &next) in part[start + 1..][..rows.len()].iter().enumerate() {
                    let [own, other] = [0, 1].map(|reader: usize| logprobs(readers[reader].logits(row)));
                    if let Some(value) = own.iter().chain(&other).find(|logprob| logprob.is_nan()) {
                        let (tensor, place) = ("logits".to_owned(), next as usize);
                        return Err(ModelError::NotFinite { tensor, place, value: *value as f32 });
                    }
                    surprise -= own[next as usize];
                    surprise_in_f32 -= other[next as usize];
                    divergences
                        .push(other.iter().zip(&own).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0));
                    same += usize::from(likeliest(&own) == likeliest(&other));
                }
            }
        }
        let count = divergences.len().max(1);
        divergences.sort_by(f64::total_cmp);
        let mean = |sum: f64| sum / count as f64;
        Ok(Quality {
            tokens: divergences.len(),
            perplexity: mean(surprise).exp(),
            perplexity_in_f32: mean(surprise_in_f32).exp(),
            divergence: mean(divergences.iter().sum()),
            divergence_p99: divergences.get(count * 99 / 100).copied().unwrap_or_default(),
            same_token: mean(same as f64),
        })
    }
}

/// A model that reads one text.
struct Reader<'m> {
    model: &'m Model,
    lane: Lane,
    kv: KvCache,
    scratch: Scratch,
    table: Vec<BlockId>,
}

impl<'m> Reader<'m> {
    fn new(model: &'m Model, cores: usize, window: usize) -> Result<Reader<'m>, ModelError> {
        let blocks = window.div_ceil(BLOCK);
        Ok(Reader {
            model,
            lane: Lane::new(&Partition { cores: (0..cores).collect() }, Isa::detect())?,
            kv: KvCache::new(model.kv_shape(blocks, BLOCK), model.kv_dtype())?,
            scratch: model.scratch(ROWS, ROWS),
            table: (0..blocks as BlockId).collect(),
        })
    }

    /// Reads tokens from this place of its text on.
    fn read(&mut self, start: usize, tokens: &[u32]) {
        let positions: Vec<u32> = (start as u32..).take(tokens.len()).collect();
        let all: Vec<u32> = (0..tokens.len() as u32).collect();
        let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[&self.table] };
        self.model.forward(&self.lane, &mut self.kv, &mut self.scratch, &Pass { tokens, rows, logits: &all });
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.scratch.logits().row(row)
    }
}

fn logprobs(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect()
}

fn likeliest(logprobs: &[f64]) -> Option<usize> {
    (0..logprobs.len()).max_by(|a, b| logprobs[*a].total_cmp(&logprobs[*b]))
}
