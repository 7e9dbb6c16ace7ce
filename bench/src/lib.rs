//! Workloads and a closed-loop load generator for any server that speaks the OpenAI completions API over HTTP.
//!
//! [`run`] keeps a fixed number of requests in flight for every combination of concurrency and speculative length,
//! interleaved so that ratios come from one run, and returns a [`Report`]: JSON by serde, a table by `Display`.
//! It measures what a client sees and never looks inside the server. [sim] compares policies without a server, in the engine's
//! simulator; [compare] holds what a comparison on this machine found, whoever ran it; [trace] shows what lanes did.

mod bench_report;
mod bench_spec;
mod canvas;
pub mod compare;
mod error;
mod event_lines;
mod load;
mod max_tokens;
mod prompts;
mod resumed_stream;
pub mod sim;
mod stats;
mod targets;
mod timed_stream;
pub mod trace;

pub use bench_report::{Cell, Report, Run};
pub use bench_spec::{BenchSpec, KMax};
pub use error::BenchError;
pub use load::{Progress, run};
pub use max_tokens::MaxTokens;
pub use prompts::{Prompt, Prompts};
pub use resumed_stream::{Resumed, ResumedStreams};
pub use stats::Quantiles;
pub use targets::{Answered, Attained, Targets};
