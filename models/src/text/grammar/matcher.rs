//! An output on its way through a grammar.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

/// More tokens than this are never beginnings of one another, as vocabularies go.
const MOST_BEGINNINGS: usize = 32;

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
}

impl TokenMask {
    fn new(bits: SimpleVob) -> TokenMask {
        let only = (bits.num_set() == 1).then(|| bits.first_bit_set()).flatten();
        TokenMask { only: only.map(|token| token as u32), bits }
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

/// Follows one output. Outputs may be taken back: what is asked of it is a function of the tokens it is given alone.
pub struct GrammarMatcher {
    inner: Matcher,
    ends: Arc<[u32]>,
    /// What `inner` has been given: no token that ends a text.
    taken: Vec<u32>,
    /// The output goes on behind its end, or with a token that may not stand there: nothing of it is asked for.
    beyond: bool,
}

impl GrammarMatcher {
    pub(super) fn new(inner: Matcher, ends: Arc<[u32]>) -> GrammarMatcher {
        GrammarMatcher { inner, ends, taken: Vec::new(), beyond: false }
    }

    /// Goes to the end of `output`.
    pub fn follow(&mut self, output: &[u32]) {
        let same = self.taken.iter().zip(output).take_while(|(a, b)| a == b).count();
        if same < self.taken.len() && self.inner.rollback(self.taken.len() - same).is_ok() {
            self.taken.truncate(same);
        }
        let rest = &output[same..];
        // An error is kept by `inner`, and shows in what may come next.
        let mut taken = 0;
        while let Some(token) = rest.get(taken)
            && !self.ends.contains(token)
            && !self.inner.is_stopped()
            && self.inner.try_consume_tokens(&[*token]).is_ok_and(|one| one == 1)
        {
            taken += 1;
        }
        self.taken.extend(&rest[..taken]);
        self.beyond = taken < rest.len();
    }

    /// What may come next: anything, behind the end of a text or where it left the grammar before. Only an end, if the grammar became too
    /// large to be followed; `failure` says why then.
    pub fn allowed(&mut self) -> Option<TokenMask> {
        if self.beyond && !self.inner.is_error() {
            return None;
        }
        let bits = self.inner.compute_mask_or_eos();
        Some(TokenMask::new(bits.unwrap_or_else(|_| {
            let longest = self.ends.iter().max().map_or(0, |end| *end as usize + 1);
            let mut bits = SimpleVob::alloc(longest);
            self.ends.iter().for_each(|end| bits.allow_token(*end));
            bits
        })))
    }

    /// How many of `proposals` may come behind `output` before one that is forbidden, without a mask being computed. Of the first token that
    /// ends a text the mask alone can say whether it may: it is counted, and what stands behind it is not.
    pub fn rightful(&mut self, output: &[u32], proposals: &[u32]) -> usize {
        self.follow(output);
        if self.beyond || self.inner.is_error() {
            return proposals.len();
        }
        let plain = proposals.iter().position(|token| self.ends.contains(token)).unwrap_or(proposals.len());
        match self.inner.validate_tokens(&proposals[..plain]) {
            Ok(valid) if valid < plain => valid,
            Ok(_) => proposals.len().min(plain + 1),
            // It shows in the masks.
            Err(_) => proposals.len(),
        }
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
        let vocabulary = self.inner.tok_env().ok()?;
        let bytes = |token: u32| vocabulary.tok_trie().token(token);
        let allowed = mask.bits.to_list();
        let token = allowed.iter().copied().max_by_key(|token| bytes(*token).len())?;
        let beginnings = allowed.iter().all(|shorter| bytes(token).starts_with(bytes(*shorter)));
        beginnings.then_some(ForcedToken { token, certain: false })
    }

    /// Why the grammar could not be followed any further.
    pub fn failure(&self) -> Option<String> {
        self.inner.get_error()
    }
}
