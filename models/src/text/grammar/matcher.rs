//! An output on its way through a grammar.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use anyhow::{Result, anyhow, ensure};
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, TokenParser};

use super::words::in_plain_words;

/// More tokens than this are never beginnings of one another, as vocabularies go.
const MOST_BEGINNINGS: usize = 32;
/// Earley items that an output may take, and how many more for each of its tokens: a count, so that no clock decides who fails. Grammars
/// that can be read in one way take tens for a token.
const MOST_ITEMS: u64 = 20_000;
const ITEMS_PER_TOKEN: u64 = 250;
const MOST_ITEMS_EVER: u64 = 4_000_000;
/// Bytes of a lexer at most, which grows with what is asked of it: one that is larger is given up for a new one.
pub(super) const MOST_LEXER_BYTES: usize = 16 << 20;
/// What that says, as the library says it of its own limits.
const TOO_MANY_ITEMS: &str = "too many items";

/// A token of text that a grammar forces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedToken {
    /// The token.
    pub token: u32,
    /// No other may come. Otherwise the same text can be divided into shorter ones, which models seldom do.
    pub certain: bool,
}

/// The tokens that may come next.
#[derive(Clone, Debug)]
pub struct TokenMask {
    bits: SimpleVob,
    /// The only one, if there is one alone.
    only: Option<u32>,
    /// Why the grammar could not be followed to here.
    failure: Option<Box<str>>,
}

impl TokenMask {
    fn new(bits: SimpleVob) -> TokenMask {
        let only = (bits.num_set() == 1).then(|| bits.first_bit_set()).flatten();
        TokenMask { only: only.map(|token| token as u32), bits, failure: None }
    }

    /// Why the grammar could not be followed to here, if so: an end alone may come then.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// A bit for each token, the lowest first.
    pub fn words(&self) -> &[u32] {
        self.bits.as_slice()
    }

    /// The token, if only one may come.
    pub fn only(&self) -> Option<u32> {
        self.only
    }

    /// Whether a token may come.
    pub fn allows(&self, token: u32) -> bool {
        self.words().get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

/// A grammar at the beginning of an output.
#[derive(Clone)]
pub(super) struct Start {
    /// Its lexer is that of all who follow the grammar: what one has found out, the others know.
    pub(super) shared: TokenParser,
    /// As the compiler left it.
    pub(super) untouched: Arc<TokenParser>,
}

/// What all who follow a grammar share beside its lexer.
#[derive(Debug, Default)]
pub(super) struct Common {
    /// Held by whoever works with the lexer, which has a lock of its own that can only be waited for.
    turn: Mutex<()>,
    /// Of no more use: the lexer is at its limit, or broken.
    spent: AtomicBool,
}

impl Common {
    pub(super) fn spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }
}

/// A turn at a grammar: who follows it in a thread takes one for each mask, so that a lane can tell that it would have to wait.
pub struct GrammarTurn(Arc<Common>);

impl GrammarTurn {
    /// Waits until it is one's turn.
    pub fn take(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows one output. Outputs may be taken back: what is asked of it is a function of the tokens it is given alone.
pub struct GrammarMatcher {
    start: Start,
    parser: TokenParser,
    /// Its lexer is no other's, and began as the compiler left it.
    own: bool,
    common: Arc<Common>,
    cancel: GrammarCancel,
    ends: Arc<[u32]>,
    /// What `parser` has been given: no token that ends a text.
    taken: Vec<u32>,
    /// Earley items made on the way there, after each of those. What masks and looks ahead make does not count: how often those are asked
    /// depends on the schedule.
    items: Vec<u64>,
    /// The output goes on behind its end, or with a token that may not stand there: nothing of it is asked for.
    beyond: bool,
    failure: Option<Failure>,
}

/// An output that could not be followed any further.
struct Failure {
    output: Vec<u32>,
    reason: String,
}

/// Has a matcher that works in another thread give up soon.
#[derive(Clone, Debug)]
pub struct GrammarCancel(Arc<Mutex<CancellationHandle>>);

impl GrammarCancel {
    /// The matcher fails from now on.
    pub fn cancel(&self) {
        self.handle().cancel();
    }

    fn handle(&self) -> MutexGuard<'_, CancellationHandle> {
        // A handle is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GrammarMatcher {
    pub(super) fn new(start: &Start, common: Arc<Common>, ends: Arc<[u32]>) -> GrammarMatcher {
        let mut parser = start.shared.clone();
        let cancellation = parser.enable_cancellation();
        GrammarMatcher {
            start: start.clone(),
            parser,
            own: false,
            common,
            cancel: GrammarCancel(Arc::new(Mutex::new(cancellation))),
            ends,
            taken: Vec::new(),
            items: Vec::new(),
            beyond: false,
            failure: None,
        }
    }

    /// The turns of those who follow the same grammar.
    pub fn turn(&self) -> GrammarTurn {
        GrammarTurn(self.common.clone())
    }

    /// By what its work can be ended from another thread.
    pub fn cancel(&self) -> GrammarCancel {
        self.cancel.clone()
    }

    /// Goes to the end of `output`.
    pub fn follow(&mut self, output: &[u32]) {
        if let Some(failure) = &self.failure {
            if output.starts_with(&failure.output) || self.cancel.handle().is_cancelled() {
                return;
            }
            // It failed on a way that was taken back.
            self.again(self.own);
        }
        self.go(output);
        if self.failure.is_some() && !self.own && !self.cancel.handle().is_cancelled() {
            // What others have asked of the lexer may have been too much for it. What this output asks is the same each time.
            self.again(true);
            self.go(output);
        }
    }

    /// Whether the grammar allows `output`, or becomes too large on the way there, which masks say. In a turn of the grammar.
    pub fn follows(&mut self, output: &[u32]) -> bool {
        self.follow(output);
        !self.beyond
    }

    fn go(&mut self, output: &[u32]) {
        let same = self.taken.iter().zip(output).take_while(|(a, b)| a == b).count();
        let back = self.taken.len() - same;
        if back > 0 {
            let parser = &mut self.parser;
            if catch_unwind(AssertUnwindSafe(|| parser.rollback(back))).is_err() {
                self.again(true);
                return self.go(output);
            }
            self.taken.truncate(same);
            self.items.truncate(same);
        }
        while let Some(&token) = output.get(self.taken.len())
            && !self.ends.contains(&token)
            && self.parser.stop_reason() == StopReason::NotStopped
        {
            match catch_unwind(AssertUnwindSafe(|| take(&mut self.parser, token))) {
                Ok(Some(items)) => {
                    self.taken.push(token);
                    self.items.push(self.items.last().unwrap_or(&0) + items);
                }
                Ok(None) => break,
                Err(error) => return self.broken(output, &error.to_string()),
            }
            let most = MOST_ITEMS_EVER.min(MOST_ITEMS + ITEMS_PER_TOKEN * self.taken.len() as u64);
            if self.items.last().is_some_and(|items| *items > most) {
                return self.fail(output, TOO_MANY_ITEMS);
            }
        }
        self.beyond = self.taken.len() < output.len();
    }

    /// Stands at the beginning again, if need be with a lexer of its own that nobody has asked anything.
    fn again(&mut self, own: bool) {
        self.own = own;
        self.parser = if own { self.start.untouched.deep_clone() } else { self.start.shared.clone() };
        let mut handle = self.cancel.handle();
        let before = std::mem::replace(&mut *handle, self.parser.enable_cancellation());
        if before.is_cancelled() {
            handle.cancel();
        }
        drop(handle);
        self.taken.clear();
        self.items.clear();
        (self.beyond, self.failure) = (false, None);
    }

    /// The library cannot go on: others had better begin with the grammar anew.
    fn broken(&mut self, output: &[u32], reason: &str) {
        if !self.cancel.handle().is_cancelled() {
            self.common.spent.store(true, Ordering::Relaxed);
        }
        self.fail(output, reason);
    }

    /// An output cannot be followed to its end, or not further than that.
    fn fail(&mut self, output: &[u32], reason: &str) {
        let end = output.len().min(self.taken.len() + 1);
        self.failure = Some(Failure { output: output[..end].to_vec(), reason: in_plain_words(reason) });
    }

    /// What may come next: anything, behind the end of a text or where it left the grammar before. Only an end, if the grammar became too
    /// large to be followed; `failure` says why then.
    pub fn allowed(&mut self) -> Option<TokenMask> {
        if self.failure.is_none() {
            if self.beyond {
                return None;
            }
            let output = self.taken.clone();
            for own in [self.own, true] {
                if own != self.own {
                    self.again(own);
                    self.go(&output);
                    if self.failure.is_some() {
                        break;
                    }
                }
                match catch_unwind(AssertUnwindSafe(|| mask(&mut self.parser))) {
                    Ok((bits, grown)) => {
                        if grown {
                            // The lexer is a memory of what was asked: without it, the same is computed again.
                            self.common.spent.store(true, Ordering::Relaxed);
                            self.again(true);
                            self.go(&output);
                        }
                        return Some(TokenMask::new(bits));
                    }
                    Err(error) => self.broken(&output, &error.to_string()),
                }
                if self.own || self.cancel.handle().is_cancelled() {
                    break;
                }
            }
        }
        let longest = self.ends.iter().max().map_or(0, |end| *end as usize + 1);
        let mut bits = SimpleVob::alloc(longest);
        self.ends.iter().for_each(|end| bits.allow_token(*end));
        let failure = self.failure.as_ref().map(|failure| failure.reason.as_str().into());
        Some(TokenMask { failure, ..TokenMask::new(bits) })
    }

    /// How many of `proposals` may come behind `output` before one that is forbidden, without a mask being computed. Of the first token that
    /// ends a text the mask alone can say whether it may: it is counted, and what stands behind it is not. None if somebody else is at work on
    /// the grammar: that may take long.
    pub fn valid_prefix_len(&mut self, output: &[u32], proposals: &[u32]) -> Option<usize> {
        let common = self.common.clone();
        let _turn = match common.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.follow(output);
        if self.beyond || self.failure.is_some() {
            return Some(proposals.len());
        }
        let plain = proposals.iter().position(|token| self.ends.contains(token)).unwrap_or(proposals.len());
        let parser = &mut self.parser;
        Some(match catch_unwind(AssertUnwindSafe(|| parser.validate_tokens_raw(&proposals[..plain]))) {
            Ok(valid) if valid < plain => valid,
            Ok(_) => proposals.len().min(plain + 1),
            // It shows in the masks.
            Err(_) => proposals.len(),
        })
    }

    /// What may come after `output`, and after each of `proposals` behind it.
    pub fn along(&mut self, output: &[u32], proposals: &[u32]) -> Vec<Option<TokenMask>> {
        let mut all = output.to_vec();
        let mut masks = Vec::with_capacity(proposals.len() + 1);
        self.follow(output);
        masks.push(self.allowed());
        for &proposal in proposals {
            all.push(proposal);
            self.follow(&all);
            masks.push(self.allowed());
        }
        masks
    }

    /// The tokens of the text that must come after `output`, `most` of them at most; and what may come after those.
    pub fn forced(&mut self, output: &[u32], most: usize) -> (Vec<ForcedToken>, Option<TokenMask>) {
        let (mut all, mut forced) = (output.to_vec(), Vec::new());
        self.follow(&all);
        let mut allowed = self.allowed();
        while forced.len() < most
            && let Some(next) = allowed.as_ref().and_then(|mask| self.next_forced(mask))
        {
            forced.push(next);
            all.push(next.token);
            self.follow(&all);
            allowed = self.allowed();
        }
        (forced, allowed)
    }

    /// The longest token that may come, if all others that may are its beginnings: then its text must come.
    fn next_forced(&self, mask: &TokenMask) -> Option<ForcedToken> {
        if let Some(token) = mask.only() {
            return Some(ForcedToken { token, certain: true });
        }
        if mask.bits.num_set() > MOST_BEGINNINGS {
            return None;
        }
        let token = self.longest(mask)?;
        let beginning = |shorter: u32| self.bytes(token).starts_with(self.bytes(shorter));
        mask.bits.iter().all(beginning).then_some(ForcedToken { token, certain: false })
    }

    /// The longest token of text that may come.
    pub(super) fn longest(&self, mask: &TokenMask) -> Option<u32> {
        let text = mask.bits.iter().filter(|token| !self.ends.contains(token));
        text.max_by_key(|token| self.bytes(*token).len())
    }

    fn bytes(&self, token: u32) -> &[u8] {
        self.parser.token_env.tok_trie().token(token)
    }

    /// Why the grammar could not be followed any further.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.reason.as_str())
    }
}

/// Takes one more token, if it may come; how many Earley items that made.
fn take(parser: &mut TokenParser, token: u32) -> Result<Option<u64>> {
    if parser.validate_tokens_raw(&[token])? == 0 {
        // A lexer that has come to its limit over it says no to everything.
        return match parser.parser.get_error() {
            Some(error) => Err(anyhow!(error.message())),
            None => Ok(None),
        };
    }
    let before = parser.parser.stats().all_items;
    ensure!(parser.consume_token(token)? == 0, "panic: backtracking");
    let items = parser.parser.stats().all_items - before;
    parser.check_stop()?;
    Ok(Some(items as u64))
}

/// The tokens that may come, an end alone behind the last word; and whether the lexer has grown too large over it.
fn mask(parser: &mut TokenParser) -> Result<(SimpleVob, bool)> {
    if parser.stop_reason() != StopReason::NotStopped {
        return Ok((parser.token_env.tok_trie().eos_token_set(), false));
    }
    let mask = parser.compute_mask()?;
    Ok((mask, parser.parser.lexer_stats().num_bytes > MOST_LEXER_BYTES))
}
