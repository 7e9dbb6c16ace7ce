//! Log-probabilities of what a verify plan commits, and of prompts: looked up where the logits are, told on the requests' boards.

use std::sync::Arc;

use faser_engine::TokenId;
use faser_kernels::ops;
use faser_kernels::sampling::{LogprobRow, Logprobs};

use super::passes::Passes;
use crate::lane_request::LogprobBoard;

/// What is wanted of the pass at hand, and what is known of the plan's samples.
#[derive(Default)]
pub(super) struct Telling {
    rows: Vec<LogprobRow>,
    of: Vec<Of>,
    found: Vec<Logprobs>,
    /// By the number of the sample, increasing: which of them are committed is known at the end of the plan.
    samples: Vec<(usize, Logprobs)>,
}

/// What a row's log-probabilities are of.
enum Of {
    /// A token of a prompt, at this position.
    Prompt(Arc<LogprobBoard>, usize),
    /// A sample of the plan, by its number.
    Sample(usize),
}

impl Telling {
    /// A new plan.
    pub(super) fn begin(&mut self) {
        self.samples.clear();
    }

    /// The pass samples this token, as the plan's sample of that number, in this row of its logits.
    pub(super) fn of_sample(&mut self, row: usize, board: &LogprobBoard, token: TokenId, number: usize) {
        self.rows.push(LogprobRow { row, token, top: board.top() });
        self.of.push(Of::Sample(number));
    }

    /// This row of the pass's logits predicts the token of the prompt at `position`.
    pub(super) fn of_prompt(&mut self, row: usize, board: &Arc<LogprobBoard>, position: usize) {
        if let Some(token) = board.of_prompt(position) {
            self.rows.push(LogprobRow { row, token, top: board.top() });
            self.of.push(Of::Prompt(board.clone(), position));
        }
    }

    /// Looks up what is wanted of the pass. All ranks of a group look, one tells.
    pub(super) fn look_up(&mut self, passes: &mut Passes) {
        if self.rows.is_empty() {
            return;
        }
        let tells = passes.group().rank() == 0;
        let (lane, logits) = passes.whole_logits();
        self.found.clear();
        self.found.resize(self.rows.len(), Logprobs::default());
        ops::logprobs(lane, logits, &self.rows, &mut self.found);
        self.rows.clear();
        for (of, found) in self.of.drain(..).zip(self.found.drain(..)).filter(|_| tells) {
            match of {
                Of::Prompt(board, position) => board.put(position, found),
                Of::Sample(number) => self.samples.push((number, found)),
            }
        }
    }

    /// Tells of `count` samples from number `first` on, whose tokens stand from `position` on.
    pub(super) fn tell(&mut self, board: &LogprobBoard, first: usize, count: usize, position: usize) {
        let begin = self.samples.partition_point(|(number, _)| *number < first);
        for (number, logprobs) in self.samples[begin..].iter_mut().take_while(|(n, _)| *n < first + count) {
            board.put(position + *number - first, std::mem::take(logprobs));
        }
    }
}
