//! What can go wrong before or during a benchmark, in words that say what to do.

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A value of the [`crate::BenchSpec`] makes no sense.
    #[error("{0}")]
    Spec(String),
    /// The prompts file cannot be read or holds something else than prompts.
    #[error("prompts file {path}: {why}")]
    Prompts {
        /// The file as it was named.
        path: String,
        /// What is wrong, with the index of the entry where it applies.
        why: String,
    },
    /// A trace of requests cannot be read or holds something else.
    #[error("trace {path}: {why}")]
    Trace {
        /// The file as it was named.
        path: String,
        /// What is wrong, with the number of the line where it applies.
        why: String,
    },
    /// The server could not be asked for its models.
    #[error("{url} does not answer as an OpenAI server: {why}; is it running?")]
    Server {
        /// The address that was asked.
        url: String,
        /// The connection error or the unexpected answer.
        why: String,
    },
    /// Not one request of a run came back, so there is nothing to report.
    #[error("all {requests} requests at concurrency {concurrency}, k {k} failed; the first with: {why}")]
    AllFailed {
        /// Requests of the run.
        requests: usize,
        /// Requests in flight at once.
        concurrency: usize,
        /// The speculative length asked for.
        k: String,
        /// The first failure.
        why: String,
    },
    /// The bounds of a simulated engine do not go together.
    #[error(transparent)]
    Engine(#[from] faser_engine::EngineError),
    /// A picture cannot be made.
    #[error("cannot draw the plot: {0}")]
    Plot(String),
}
