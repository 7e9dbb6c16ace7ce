//! Recorded requests, to be replayed: when they came, how long they were, and what their prompts have in common.

use std::fmt;
use std::time::Duration;

use super::lengths::fitting;

/// Requests of a trace, by their time.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What it is called.
    name: String,
    speed: f64,
    requests: Vec<TracedRequest>,
    /// Requests without a prompt or without output, which are not among them.
    empty: usize,
}

/// A recorded request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TracedRequest {
    /// When it came, from any moment on.
    pub at: Duration,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its output.
    pub output_tokens: usize,
    /// What the blocks of its prompt are, each of [`Trace::BLOCK_TOKENS`] tokens, the last one cut: equal numbers are equal tokens. Tokens
    /// behind them are the request's own.
    pub blocks: Box<[u64]>,
}

impl Trace {
    /// Tokens of a block that prompts may have in common.
    pub const BLOCK_TOKENS: usize = 512;

    /// From the first request on, times divided by `speed`, which is above 0. Requests without a prompt or without output are left out.
    pub fn new(name: impl Into<String>, speed: f64, mut requests: Vec<TracedRequest>) -> Trace {
        let all = requests.len();
        requests.retain(|request| request.prompt_tokens > 0 && request.output_tokens > 0);
        requests.sort_by_key(|request| request.at);
        let first = requests.first().map_or(Duration::ZERO, |request| request.at);
        for request in &mut requests {
            request.at = Duration::from_secs_f64((request.at - first).as_secs_f64() / speed);
        }
        Trace { name: name.into(), speed, empty: all - requests.len(), requests }
    }

    /// Its requests, the first at time 0.
    pub fn requests(&self) -> &[TracedRequest] {
        &self.requests
    }

    /// Time over which they come, in whole seconds.
    pub fn duration(&self) -> Duration {
        let last = self.requests.last().map_or(Duration::ZERO, |request| request.at);
        Duration::from_secs(last.as_secs() + 1)
    }

    /// Those that come before `duration`.
    pub fn before(&self, duration: Duration) -> &[TracedRequest] {
        &self.requests[..self.requests.partition_point(|request| request.at < duration)]
    }

    /// Whether prompts have blocks in common.
    pub fn shares_blocks(&self) -> bool {
        self.requests.iter().any(|request| !request.blocks.is_empty())
    }

    /// Tokens of the prompts that come before `duration`, where a sequence has at most `max_context`.
    pub fn prompt_tokens(&self, duration: Duration, max_context: usize) -> usize {
        let prompts = self.before(duration).iter().map(|request| request.lengths(max_context).0);
        prompts.fold(0, usize::saturating_add)
    }

    /// What is replayed of it before `duration`, in words.
    pub fn spoken(&self, duration: Duration, max_context: usize) -> impl fmt::Display + use<> {
        let Trace { name, speed, empty, .. } = self;
        let requests = self.before(duration);
        let cut = requests
            .iter()
            .filter(|request| request.lengths(max_context) != (request.prompt_tokens, request.output_tokens));
        let cut = match cut.count() {
            0 => String::new(),
            cut => format!(", {cut} of them cut to {max_context} tokens"),
        };
        let speed = if *speed == 1.0 { String::new() } else { format!(" at {speed} times its speed") };
        let empty = if *empty > 0 { format!(", {empty} without tokens left out") } else { String::new() };
        format!("{} requests of {name}{speed}{cut}{empty}", requests.len())
    }
}

impl TracedRequest {
    /// Prompt and output tokens, cut to what a sequence may have.
    pub(super) fn lengths(&self, max_context: usize) -> (usize, usize) {
        fitting(self.prompt_tokens, self.output_tokens, max_context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at_ms: u64, prompt_tokens: usize, output_tokens: usize) -> TracedRequest {
        let at = Duration::from_millis(at_ms);
        TracedRequest { at, prompt_tokens, output_tokens, blocks: [].into() }
    }

    #[test]
    fn a_trace_begins_with_its_first_request_and_leaves_out_what_is_none() {
        let requests =
            vec![request(9000, 10, 5), request(5000, 300, 50), request(6000, 0, 5), request(7000, 5, 0)];
        let trace = Trace::new("some", 2.0, requests);
        let ats: Vec<u128> = trace.requests().iter().map(|request| request.at.as_millis()).collect();
        assert_eq!((ats, trace.duration()), (vec![0, 2000], Duration::from_secs(3)));
        let said = |seconds, context| trace.spoken(Duration::from_secs(seconds), context).to_string();
        assert_eq!(said(3, 400), "2 requests of some at 2 times its speed, 2 without tokens left out");
        let cut =
            "1 requests of some at 2 times its speed, 1 of them cut to 100 tokens, 2 without tokens left out";
        assert_eq!(said(2, 100), cut);
        assert_eq!(trace.prompt_tokens(Duration::from_secs(3), 100), 50 + 10);
        assert_eq!(Trace::new("none", 1.0, Vec::new()).duration(), Duration::from_secs(1));
    }
}
