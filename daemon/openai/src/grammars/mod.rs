//! Grammars of requests, compiled within limits that hold whatever a stranger sends; those that come again are kept.
//!
//! A grammar is compiled twice: first in a process of its own, which the kernel ends at bounds on time, memory and stack (`trial.rs`); then, if
//! it fitted, in the daemon, beside the lanes that follow it. Compiled grammars cannot be handed from one process to another, and following
//! one in another process would cost each token a way there and back. Most are compiled in a millisecond, twice is two.

mod frames;
mod trial;
mod trials;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use faser_engine::TokenId;
use faser_models::{
    CallForm, Grammar, GrammarCompiler, GrammarError, GrammarProgram, GrammarSource, GrammarVocabulary,
    Tokenizer,
};
use ring::digest::{Context, SHA256};
use rustix::process::setpriority_process;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::frames::{Bounds, Outcome};
use self::trials::Trials;

pub use self::trial::{COMMAND, run};

/// The daemon's binary where this process is another, as in tests.
static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Has grammars tried by this binary, which must be the daemon's; for what is loaded from now on. Only the first call counts.
pub fn try_by(binary: PathBuf) {
    BINARY.get_or_init(|| binary);
}

/// What a first trial may take. Nearly all grammars fit; what is more expensive goes on in the queue of those alone.
const QUICK: Bounds = Bounds { cpu: Duration::from_millis(500), memory_bytes: 64 << 20 };
/// How long a quick trial may last where other work is in the way: a simple grammar must not end behind expensive ones.
const QUICK_WITHIN: Duration = Duration::from_secs(5);
/// Quick trials at the same time.
const QUICK_AT_ONCE: usize = 8;
/// What a grammar may take at most.
const LONG: Bounds = Bounds { cpu: Duration::from_secs(5), memory_bytes: 256 << 20 };
/// How long that may last where other work is in the way.
const LONG_WITHIN: Duration = Duration::from_secs(20);
/// Expensive grammars that are tried at the same time.
const LONG_AT_ONCE: usize = 1;
/// How long a grammar waits for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(10);
/// Grammars that the daemon itself compiles at the same time.
const COMPILED_AT_ONCE: usize = 1;
/// Stack of that: more than a trial has, so that what has fitted fits.
const STACK_BYTES: usize = 2 * trial::STACK_BYTES;
/// Lanes and streams come first.
const NICE: i32 = 10;
/// Grammars that are kept, compiled or refused.
const KEPT: usize = 64;
/// Memory of one compiled grammar at most, what it may come to have by being followed counted, and of all that are kept or in use.
const MAX_BYTES: u64 = 64 << 20;
const MAX_ALL_BYTES: u64 = 1 << 30;
/// What a permit of memory stands for.
const UNIT_BYTES: u64 = 64 << 10;

/// Why a request gets no grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The grammar is wrong, or beyond a limit.
    #[error("the output's grammar is not taken: {0}")]
    Grammar(#[from] GrammarError),
    /// It takes too long.
    #[error("the output's grammar takes longer than {} s to compile; make it simpler", LONG.cpu.as_secs())]
    TooSlow,
    /// It takes too much memory or stack.
    #[error(
        "the output's grammar takes more than {} MiB of memory to compile, or has chains of references that are too long; make it simpler",
        LONG.memory_bytes >> 20
    )]
    TooLarge,
    /// Others are in the way.
    #[error("other grammars are being compiled; try again")]
    Busy,
    /// The process in which they are tried cannot be had.
    #[error("the server cannot compile grammars now; try again")]
    Unavailable,
}

/// The grammars of one model.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab: usize,
    ends: Arc<[TokenId]>,
    /// Made for the first grammar: few servers ever see one.
    vocabulary: Arc<OnceLock<Result<GrammarVocabulary, GrammarError>>>,
    compiler: Arc<OnceLock<Result<GrammarCompiler, GrammarError>>>,
    trials: Arc<Trials>,
    quick: Arc<Semaphore>,
    long: Arc<Semaphore>,
    compiling: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    /// By their source, the latest last. Those who send one while it is being compiled wait for it together.
    kept: Mutex<VecDeque<(Key, Shared)>>,
}

/// The SHA-256 of a source: that itself may be as long as a request.
type Key = [u8; 32];

type Shared = Arc<OnceCell<Result<Grammar, FormatError>>>;

impl Grammars {
    /// For a model whose texts end with one of `eos`. If it has no such token, the last one of its vocabulary ends what follows a grammar.
    pub fn new(tokenizer: &Arc<Tokenizer>, vocab: usize, eos: &[TokenId]) -> Grammars {
        let last = [vocab.saturating_sub(1) as TokenId];
        Grammars {
            tokenizer: Arc::clone(tokenizer),
            vocab,
            ends: if eos.is_empty() { last.as_slice() } else { eos }.into(),
            vocabulary: Arc::default(),
            compiler: Arc::default(),
            // By this name it is there also when its file has been replaced by that of a new version.
            trials: Arc::new(Trials::new(BINARY.get().cloned().unwrap_or_else(|| "/proc/self/exe".into()))),
            quick: Arc::new(Semaphore::new(QUICK_AT_ONCE)),
            long: Arc::new(Semaphore::new(LONG_AT_ONCE)),
            compiling: Arc::new(Semaphore::new(COMPILED_AT_ONCE)),
            memory: Arc::new(Semaphore::new((MAX_ALL_BYTES / UNIT_BYTES) as usize)),
            kept: Mutex::default(),
        }
    }

    /// The tokens of which one comes where a grammar is complete.
    pub fn ends(&self) -> &[TokenId] {
        &self.ends
    }

    /// The compiled grammar. Dropping the future stops the work.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub async fn compile(&self, source: &GrammarSource) -> Result<Grammar, FormatError> {
        let shared = self.shared(key(source));
        let compiled = shared.get_or_try_init(|| async {
            match self.made(source).await {
                // That may be otherwise the next time.
                Err(passing @ (FormatError::Busy | FormatError::Unavailable)) => Err(passing),
                made => Ok(made),
            }
        });
        compiled.await?.clone()
    }

    async fn made(&self, source: &GrammarSource) -> Result<Grammar, FormatError> {
        let program = self.program(source).await?;
        let tried = match (self.tried(&program).await, calls_of(source)) {
            (Err(FormatError::Grammar(error)), Some(form)) => {
                let named = timeout(QUICK_WITHIN, self.of_function(form)).await;
                return Err(named.ok().flatten().unwrap_or(error).into());
            }
            (tried, _) => tried?,
        };
        // Twice: as the compiler leaves it, and as it is followed.
        let bytes = 2 * tried + GrammarCompiler::MOST_LEXER_BYTES;
        if bytes > MAX_BYTES {
            return Err(FormatError::TooLarge);
        }
        let memory = self.memory_of(bytes).await?;
        self.compiled(program, memory).await
    }

    /// What is known, or will be, of a grammar.
    fn shared(&self, key: Key) -> Shared {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| *known == key);
        let spent = |shared: &Shared| matches!(shared.get(), Some(Ok(grammar)) if grammar.spent());
        let found = at.and_then(|at| kept.remove(at)).filter(|(_, shared)| !spent(shared));
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let (key, shared) = found.unwrap_or_else(|| (key, Arc::default()));
        kept.push_back((key, Arc::clone(&shared)));
        shared
    }

    /// The grammar as compilers take it.
    async fn program(&self, source: &GrammarSource) -> Result<GrammarProgram, FormatError> {
        let (shared, tokenizer) = (Arc::clone(&self.vocabulary), Arc::clone(&self.tokenizer));
        let (ends, vocab, source) = (Arc::clone(&self.ends), self.vocab, source.clone());
        let work = spawn_blocking(move || {
            let vocabulary = shared.get_or_init(|| GrammarVocabulary::new(&tokenizer, vocab, &ends));
            vocabulary.as_ref().map_err(Clone::clone)?.program(&source)
        });
        Ok(work.await.map_err(|_| FormatError::Unavailable)??)
    }

    /// The memory that a grammar takes, in bytes, if it fits within the limits.
    async fn tried(&self, program: &GrammarProgram) -> Result<u64, FormatError> {
        let turn = turn_in(&self.quick).await?;
        match timeout(QUICK_WITHIN, self.attempt(program, QUICK)).await {
            Ok(Ok(Outcome::Fits { bytes })) => return Ok(bytes),
            Ok(Ok(Outcome::Refused(error))) => return Err(error.into()),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(Outcome::TooSlow | Outcome::TooLarge)) | Err(_) => drop(turn),
        }
        let _turn = turn_in(&self.long).await?;
        match timeout(LONG_WITHIN, self.attempt(program, LONG)).await {
            Ok(Ok(Outcome::Fits { bytes })) => Ok(bytes),
            Ok(Ok(Outcome::Refused(error))) => Err(error.into()),
            Ok(Ok(Outcome::TooLarge)) => Err(FormatError::TooLarge),
            Ok(Ok(Outcome::TooSlow)) => Err(FormatError::TooSlow),
            // The machine had no time for it.
            Err(_) => Err(FormatError::Busy),
            Ok(Err(error)) => Err(error),
        }
    }

    /// Of calls that are refused, why the first function is that is refused alone, if that is soon known.
    async fn of_function(&self, form: &CallForm) -> Option<GrammarError> {
        for function in &form.functions {
            let alone = CallForm { functions: vec![function.clone()], ..form.clone() };
            let program = self.program(&GrammarSource::Calls(alone)).await.ok()?;
            let _turn = turn_in(&self.quick).await.ok()?;
            match self.attempt(&program, QUICK).await.ok()? {
                Outcome::Fits { .. } => {}
                Outcome::Refused(error) => {
                    return Some(GrammarError::new(&format!("the function `{}`, {error}", function.name)));
                }
                Outcome::TooSlow | Outcome::TooLarge => return None,
            }
        }
        None
    }

    /// One trial; another one if the process went away under it.
    async fn attempt(&self, program: &GrammarProgram, bounds: Bounds) -> Result<Outcome, FormatError> {
        for _ in 0..2 {
            let (trials, shared, program) =
                (Arc::clone(&self.trials), Arc::clone(&self.vocabulary), program.clone());
            // To write to the process may take a while: when it has just been started, it is given the vocabulary.
            let begun = spawn_blocking(move || match shared.get() {
                Some(Ok(vocabulary)) => trials.begin(vocabulary, &program, bounds),
                _ => Err(std::io::Error::other("there is no vocabulary")),
            });
            match begun.await {
                Ok(Ok(trial)) => {
                    if let Some(outcome) = trial.outcome().await {
                        return Ok(outcome);
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "the process that tries grammars cannot be had"),
                Err(_) => {}
            }
        }
        Err(FormatError::Unavailable)
    }

    /// A part of the memory for grammars, if need be that of those that are kept and in no use.
    async fn memory_of(&self, bytes: u64) -> Result<Arc<dyn Any + Send + Sync>, FormatError> {
        let units = bytes.div_ceil(UNIT_BYTES) as u32;
        loop {
            if let Ok(memory) = Arc::clone(&self.memory).try_acquire_many_owned(units) {
                return Ok(Arc::new(memory));
            }
            let oldest = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if oldest.is_none() {
                let waited = timeout(TURN_WITHIN, Arc::clone(&self.memory).acquire_many_owned(units)).await;
                let memory = waited.map_err(|_| FormatError::Busy)?.map_err(|_| FormatError::Busy)?;
                return Ok(Arc::new(memory));
            }
        }
    }

    /// Compiles what has been tried, in this memory. The thread keeps that and its turn: it works on when the client is gone.
    async fn compiled(
        &self,
        program: GrammarProgram,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Result<Grammar, FormatError> {
        let turn = turn_in(&self.compiling).await?;
        let (shared, vocabulary) = (Arc::clone(&self.compiler), Arc::clone(&self.vocabulary));
        let (tell, compiled) = oneshot::channel();
        let work = move || {
            let _turn = turn;
            let _ = setpriority_process(None, NICE);
            let compiler = shared.get_or_init(|| match vocabulary.get() {
                Some(Ok(vocabulary)) => GrammarCompiler::new(vocabulary),
                Some(Err(error)) => Err(error.clone()),
                None => Err(GrammarError::new("there is no vocabulary")),
            });
            let compiled = compiler.as_ref().map_err(Clone::clone).and_then(|it| it.compile(&program));
            let compiled = compiled.map(|grammar| grammar.holding(memory));
            // Who waited may be gone.
            let _ = tell.send(compiled);
        };
        let thread = thread::Builder::new().name("faser-grammars".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(work).map_err(|error| {
            tracing::warn!(%error, "no thread to compile a grammar in");
            FormatError::Unavailable
        })?;
        Ok(compiled.await.map_err(|_| FormatError::Unavailable)??)
    }
}

/// The calls that a source is of, if it is.
fn calls_of(source: &GrammarSource) -> Option<&CallForm> {
    match source {
        GrammarSource::Calls(form) => Some(form),
        GrammarSource::BehindReasoning(_, _, source) => calls_of(source),
        _ => None,
    }
}

/// What a grammar is found by again.
fn key(source: &GrammarSource) -> Key {
    struct Digest(Context);
    impl Write for Digest {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let mut digest = Digest(Context::new(&SHA256));
    // A digest takes all that it is given.
    let _ = write!(digest, "{source:?}");
    let mut key = Key::default();
    key.copy_from_slice(digest.0.finish().as_ref());
    key
}

/// A turn in one of the queues.
async fn turn_in(queue: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, FormatError> {
    match timeout(TURN_WITHIN, Arc::clone(queue).acquire_owned()).await {
        Ok(Ok(turn)) => Ok(turn),
        _ => Err(FormatError::Busy),
    }
}
