//! Grammars of requests, compiled off the threads that serve streams, within limits; those that come again are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use faser_engine::TokenId;
use faser_models::{Grammar, GrammarCompiler, GrammarError, GrammarSource, Tokenizer};
use tokio::sync::Semaphore;

/// A grammar that takes longer to compile is refused. What bounds it besides are the limits of [`GrammarCompiler`].
const COMPILE_WITHIN: Duration = Duration::from_secs(10);
/// Grammars that are compiled at the same time; others wait.
const AT_ONCE: usize = 2;
/// Compiled grammars that are kept.
const KEPT: usize = 32;

/// Why a request gets no grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The grammar is wrong, or beyond a limit.
    #[error("the output's grammar is not taken: {0}")]
    Grammar(#[from] GrammarError),
    /// It takes too long.
    #[error("the output's grammar takes longer than {} s to compile; make it simpler", COMPILE_WITHIN.as_secs())]
    TooSlow,
    /// Others are in the way.
    #[error("other grammars are being compiled; try again")]
    Busy,
}

/// The grammars of one model.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab: usize,
    ends: Arc<[TokenId]>,
    /// Made for the first grammar: few servers ever see one.
    compiler: Arc<OnceLock<Result<GrammarCompiler, GrammarError>>>,
    slots: Arc<Semaphore>,
    /// By the text of their source, the latest last.
    kept: Mutex<VecDeque<(String, Grammar)>>,
}

impl Grammars {
    /// For a model whose texts end with one of `eos`. If it has no such token, the last one of its vocabulary ends what follows a grammar.
    pub fn new(tokenizer: &Arc<Tokenizer>, vocab: usize, eos: &[TokenId]) -> Grammars {
        let last = [vocab.saturating_sub(1) as TokenId];
        Grammars {
            tokenizer: Arc::clone(tokenizer),
            vocab,
            ends: if eos.is_empty() { last.as_slice() } else { eos }.into(),
            compiler: Arc::default(),
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            kept: Mutex::default(),
        }
    }

    /// The tokens of which one comes where a grammar is complete.
    pub fn ends(&self) -> &[TokenId] {
        &self.ends
    }

    /// The compiled grammar.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub async fn compile(&self, source: &GrammarSource) -> Result<Grammar, FormatError> {
        let key = format!("{source:?}");
        if let Some(grammar) = self.known(&key) {
            return Ok(grammar);
        }
        let slot = tokio::time::timeout(COMPILE_WITHIN, Arc::clone(&self.slots).acquire_owned()).await;
        let Ok(Ok(slot)) = slot else { return Err(FormatError::Busy) };
        let (compiler, tokenizer) = (Arc::clone(&self.compiler), Arc::clone(&self.tokenizer));
        let (ends, vocab, source) = (Arc::clone(&self.ends), self.vocab, source.clone());
        let work = tokio::task::spawn_blocking(move || {
            // Held as long as it works, whoever still waits for it.
            let _slot = slot;
            let compiler = compiler.get_or_init(|| GrammarCompiler::new(&tokenizer, vocab, &ends));
            compiler.as_ref().map_err(Clone::clone)?.compile(&source)
        });
        let compiled = tokio::time::timeout(COMPILE_WITHIN, work).await;
        let grammar = compiled.map_err(|_| FormatError::TooSlow)?.map_err(|_| FormatError::Busy)??;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((key, grammar.clone()));
        Ok(grammar)
    }

    fn known(&self, key: &str) -> Option<Grammar> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == key)?;
        let found = kept.remove(at)?;
        let grammar = found.1.clone();
        kept.push_back(found);
        Some(grammar)
    }
}
