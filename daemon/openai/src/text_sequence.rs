//! One sequence as text: tokens from the service, through the detokenizer and the stop strings, to pieces that can be shown.

use std::sync::Arc;

use faser_actors::{Constraint, LogprobCollector, Logprobs, ReplicaStream, Update};
use faser_engine::{FinishReason, Moments, Origin, TokenId, Usage};
use faser_models::{Channel, Detokenizer, ReasoningParser, Tokenizer};

use crate::request_trace::SequenceTrace;
use crate::stop::StopMatcher;

/// Tokens that are read before it is the turn of others: of outputs that go on, and of prompts that are repeated so many log-probabilities.
pub(crate) const AT_ONCE: usize = 1024;
/// And of each of many sequences at least: each turn is an event of a stream.
pub(crate) const LEAST_AT_ONCE: usize = 16;

/// A running sequence. Dropping it cancels the request.
pub struct TextSequence {
    /// `None` once the sequence has ended or a stop string was seen.
    tokens: Option<ReplicaStream>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    reasoning: Option<ReasoningParser>,
    reading: Reading,
    /// The prompt where it is repeated token by token: how it is read, and how many of its tokens were.
    repeating: Option<(Detokenizer, usize)>,
    /// What came before anybody asked for it.
    ahead: Option<Option<Update>>,
    /// The last of the tokens that the client has already: it is the first to be drawn.
    again: Option<TokenId>,
    /// The text of those tokens, as it was shown.
    shown_before: Vec<Span>,
    /// There are such tokens: what is counted begins with them, and clocks do not.
    resumed: bool,
    /// Characters of text that tokens have made so far, shown or not.
    characters: usize,
    output: Vec<TokenId>,
    /// Tokens of the output that are reasoning, or end it.
    reasoning_tokens: usize,
    /// Of the last token: text held back until the end is ascribed to it.
    origin: Origin,
    ending: Option<Ending>,
    /// There until it is told how the sequence ended, if that is traced.
    trace: Option<SequenceTrace>,
}

impl Drop for TextSequence {
    fn drop(&mut self) {
        self.leave(if self.ending.is_some() { Finish::Stop.name() } else { "cancelled" });
    }
}

/// How a sequence is read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Text ends before, or behind, the first of these that is not in reasoning.
    pub stops: Vec<String>,
    /// Text ends behind a stop string or stop token.
    pub include_stop: bool,
    /// Tokens whose text is not searched for stop strings.
    pub min_tokens: usize,
    /// The prompt, behind which the text goes on.
    pub prompt: Arc<[TokenId]>,
    /// The prompt as text, if text begins with it; with log-probabilities it begins with what the prompt's tokens decode to.
    pub echo: Option<String>,
    /// So many of its tokens are repeated in one turn, if they are repeated with log-probabilities.
    pub at_once: usize,
    /// The prompt alone is wanted: no token of output is shown or counted.
    pub prompt_only: bool,
    /// Log-probabilities, if they are wanted.
    pub logprobs: Option<Arc<LogprobCollector>>,
    /// Every token of output is listed, with log-probabilities or without.
    pub all_tokens: bool,
    /// What the output has to follow.
    pub constraint: Option<Arc<Constraint>>,
    /// The tokens that the client has already, which are not shown again.
    pub received: Vec<TokenId>,
    /// The text that it has already, where it has that alone: what comes is compared, and not shown.
    pub received_text: String,
    /// Special tokens that are text.
    pub marks: Vec<TokenId>,
    /// Tells reasoning from the rest, where it is to be told.
    pub reasoning: Option<ReasoningParser>,
}

/// What a sequence says next.
#[derive(Debug)]
pub enum Piece {
    /// Text, or log-probabilities, token by token; never empty.
    Text(Vec<Span>),
    /// The end; nothing follows.
    End(Box<Ending>),
}

/// The text that one token made ready to be shown.
#[derive(Debug, PartialEq)]
pub struct Span {
    /// Empty only if there is a log-probability.
    pub text: String,
    /// What the text is.
    pub channel: Channel,
    /// Who found the token.
    pub origin: Origin,
    /// The token with its log-probabilities, if that is wanted.
    pub logprob: Option<TokenLogprob>,
}

/// A token with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// It is one of the prompt, which is repeated.
    pub echoed: bool,
    /// Where its text begins, in characters.
    pub offset: usize,
    /// None for the first token of a prompt, and where nobody wants them.
    pub logprobs: Option<Logprobs>,
}

/// How a sequence ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Why.
    pub finish: Finish,
    /// Tokens up to the end of the text, the stop token not counted.
    pub output: Vec<TokenId>,
    /// How many of them are reasoning, if that was told from the rest.
    pub reasoning_tokens: Option<usize>,
    /// What it took; `None` if the service ended before it said so. If a stop string ended it the device had run ahead: then with what it had
    /// done beyond the end of the text.
    pub usage: Option<Usage>,
}

/// Why a sequence ended, in the API's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or a stop string.
    Stop,
    /// The limit of tokens.
    Length,
    /// The model has made tool calls.
    ToolCalls,
}

impl Finish {
    /// `finish_reason` of the API.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// Why a sequence broke off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The grammar of the output grew beyond its limits.
    #[error("the output's grammar could not be followed to its end: {0}")]
    Grammar(String),
    /// What it was to go on with is not what it writes.
    #[error(
        "`resume` has an output that is none of this request: the model, a parameter or the seed is another one"
    )]
    Another,
    /// The device went away under it, more often than is put up with.
    #[error(
        "the device failed while it worked on this request; send it again, or the rest of it by `resume`"
    )]
    DeviceFailed,
    /// An operator ended it.
    #[error("an operator of the server cancelled this request")]
    Cancelled,
    /// The daemon is on its way down.
    #[error(
        "the server is shutting down and did not finish this request; another goes on with it by `resume`"
    )]
    Ended,
}

impl TextSequence {
    /// Reads tokens as text, behind those that the client has already.
    pub async fn new(tokenizer: &Arc<Tokenizer>, mut reading: Reading) -> TextSequence {
        let received = std::mem::take(&mut reading.received);
        let mut sequence = TextSequence {
            tokens: None,
            detokenizer: Detokenizer::new(Arc::clone(tokenizer))
                .showing(std::mem::take(&mut reading.marks))
                .behind(&reading.prompt),
            stop: StopMatcher::new(std::mem::take(&mut reading.stops), reading.include_stop),
            reasoning: reading.reasoning.take(),
            reading,
            repeating: None,
            ahead: None,
            again: received.last().copied(),
            shown_before: Vec::new(),
            resumed: !received.is_empty(),
            characters: 0,
            output: Vec::new(),
            reasoning_tokens: 0,
            origin: Origin::Target,
            ending: None,
            trace: None,
        };
        if !received.is_empty() {
            let mut spans = sequence.prompt();
            while sequence.repeating.is_some() {
                tokio::task::yield_now().await;
                spans.extend(sequence.prompt());
            }
            for tokens in received.chunks(AT_ONCE) {
                tokens.iter().for_each(|&token| sequence.take(token, Origin::Target, &mut spans));
                tokio::task::yield_now().await;
            }
            sequence.shown_before = spans;
        }
        sequence
    }

    /// How many tokens it has by a stop string that the client has seen, if there is nothing to come.
    pub fn ended(&self) -> Option<usize> {
        self.ending.as_ref().map(|ending| ending.output.len())
    }

    /// The text of the tokens that the client has already, as it was shown; once.
    pub fn shown_before(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.shown_before)
    }

    /// Its tokens come from here. The last that the client has is the first of them.
    pub(crate) fn read(&mut self, tokens: ReplicaStream, trace: Option<SequenceTrace>) {
        self.tokens = Some(tokens);
        self.trace = trace;
    }

    /// Waits until something has come: from then on the KV of the prompt is there for others.
    pub async fn begin(&mut self) {
        if let (Some(tokens), None) = (&mut self.tokens, &self.ahead) {
            self.ahead = Some(tokens.next().await);
        }
    }

    /// Waits for the next piece; `None` after the end.
    ///
    /// # Errors
    /// The sequence broke off.
    pub async fn next(&mut self) -> Result<Option<Piece>, SequenceError> {
        loop {
            if self.ending.is_some()
                && let Some(tokens) = &mut self.tokens
            {
                let usage = took(tokens).await;
                self.tokens = None;
                if let (Some(trace), Some(usage)) = (self.trace.take(), &usage) {
                    trace.ended(Finish::Stop.name(), usage);
                }
                self.ending.iter_mut().for_each(|ending| ending.usage = usage);
            }
            if let Some(mut ending) = self.ending.take() {
                if let Some(usage) = ending.usage.as_mut().filter(|_| self.resumed) {
                    usage.moments = Moments::default();
                }
                if !self.reading.received_text.is_empty() {
                    return Err(self.broken(SequenceError::Another));
                }
                return Ok(Some(Piece::End(Box::new(ending))));
            }
            if self.repeating.is_some() {
                tokio::task::yield_now().await;
            }
            let Some(tokens) = &mut self.tokens else { return Ok(None) };
            let update = match self.ahead.take() {
                Some(update) => update,
                None => tokens.next().await,
            };
            // What broke off before there was anything has no log-probabilities of its prompt.
            let mut spans = if goes_on(update.as_ref()) { self.prompt() } else { Vec::new() };
            match update {
                update if self.repeating.is_some() => self.ahead = Some(update),
                None => return Err(self.broken(SequenceError::Ended)),
                Some(Update::Tokens(emitted)) => {
                    for emitted in emitted {
                        match self.again.take() {
                            None => self.take(emitted.token, emitted.origin, &mut spans),
                            Some(same) if same == emitted.token => {}
                            Some(_) => return Err(self.broken(SequenceError::Another)),
                        }
                    }
                }
                Some(Update::Finished { reason, usage }) => self.finish(reason, usage, &mut spans)?,
            }
            self.leave_out(&mut spans)?;
            if !spans.is_empty() {
                return Ok(Some(Piece::Text(spans)));
            }
        }
    }

    /// What is next of the prompt, if it is to be repeated: all of its text, or with log-probabilities the next of its tokens. More follows as
    /// long as it is being repeated.
    fn prompt(&mut self) -> Vec<Span> {
        let span = |text, logprob| Span { text, channel: Channel::Content, origin: Origin::Target, logprob };
        if let Some(text) = self.reading.echo.take() {
            if self.reading.logprobs.is_none() {
                self.characters = text.chars().count();
                return if text.is_empty() { Vec::new() } else { vec![span(text, None)] };
            }
            // Places are counted in what the tokens decode to, so that is the text.
            self.repeating = Some((self.detokenizer.again(), 0));
        }
        let Some((mut detokenizer, begun)) = self.repeating.take() else { return Vec::new() };
        let prompt = Arc::clone(&self.reading.prompt);
        let end = prompt.len().min(begun + self.reading.at_once.max(1));
        let mut spans = Vec::with_capacity(end - begun);
        for (position, &token) in prompt.iter().enumerate().take(end).skip(begun) {
            let logprob = self.token_logprob(token, position);
            let text = detokenizer.push(token).unwrap_or_default();
            self.characters += text.chars().count();
            spans.push(span(text, logprob));
        }
        if end < prompt.len() {
            self.repeating = Some((detokenizer, end));
            return spans;
        }
        let rest = detokenizer.finish();
        self.characters += rest.chars().count();
        if !rest.is_empty() {
            spans.push(span(rest, None));
        }
        spans
    }

    /// Takes what the client has from the text that comes.
    fn leave_out(&mut self, spans: &mut Vec<Span>) -> Result<(), SequenceError> {
        if self.reading.received_text.is_empty() {
            return Ok(());
        }
        let received = &mut self.reading.received_text;
        for span in spans.iter_mut() {
            let known = received.len().min(span.text.len());
            // What is the same byte by byte ends between characters in both: one of the two ends there.
            if received.as_bytes()[..known] != span.text.as_bytes()[..known] {
                return Err(self.broken(SequenceError::Another));
            }
            received.drain(..known);
            span.text.drain(..known);
        }
        spans.retain(|span| !span.text.is_empty());
        Ok(())
    }

    /// The token at a position with its log-probabilities.
    fn token_logprob(&self, token: TokenId, position: usize) -> Option<TokenLogprob> {
        let collector = self.reading.logprobs.as_ref();
        let echoed = position < self.reading.prompt.len();
        let of = |logprobs| TokenLogprob { token, echoed, offset: self.characters, logprobs };
        (collector.is_some() || self.reading.all_tokens)
            .then(|| of(collector.and_then(|collector| collector.take(position))))
    }

    /// One token: its text joins the spans unless a stop string was seen.
    fn take(&mut self, token: TokenId, origin: Origin, spans: &mut Vec<Span>) {
        if self.stop.stopped() || self.reading.prompt_only {
            return;
        }
        let logprob = self.token_logprob(token, self.reading.prompt.len() + self.output.len());
        self.output.push(token);
        self.origin = origin;
        let text = self.detokenizer.push(token).unwrap_or_default();
        self.characters += text.chars().count();
        let (first, before) = (spans.len(), self.channel());
        self.show(Some(token), text, spans);
        self.reasoning_tokens += usize::from([before, self.channel()].contains(&Channel::Reasoning));
        match spans.get_mut(first) {
            Some(span) => span.logprob = logprob,
            None if logprob.is_none() => {}
            None => {
                let channel = self.channel();
                spans.push(Span { text: String::new(), channel, origin, logprob });
            }
        }
        if self.stop.stopped() {
            self.end(Finish::Stop, None);
        }
    }

    /// What the next text is.
    fn channel(&self) -> Channel {
        self.reasoning.as_ref().map_or(Channel::Content, ReasoningParser::channel)
    }

    /// The text of a token, or behind all of them the last: what is known to be shown joins the spans.
    fn show(&mut self, token: Option<TokenId>, text: String, spans: &mut Vec<Span>) {
        let searched = self.output.len() > self.reading.min_tokens;
        let (stop, origin) = (&mut self.stop, self.origin);
        let mut out = |channel, text: String| {
            let text = if searched && channel == Channel::Content { stop.push(&text) } else { text };
            if !text.is_empty() {
                spans.push(Span { text, channel, origin, logprob: None });
            }
        };
        match &mut self.reasoning {
            None => out(Channel::Content, text),
            Some(parser) => match token {
                Some(token) => parser.push(token, &text, &mut out),
                None => parser.finish(&text, &mut out),
            },
        }
        if token.is_none() {
            let text = self.stop.finish();
            if !text.is_empty() {
                spans.push(Span { text, channel: Channel::Content, origin, logprob: None });
            }
        }
    }

    /// Lets go of its tokens, which cancels what still runs.
    fn leave(&mut self, why: &'static str) {
        if let (Some(tokens), Some(trace)) = (self.tokens.take(), self.trace.take()) {
            trace.cancelled(tokens, why);
        }
    }

    /// The sequence is over: what was held back comes out.
    fn finish(
        &mut self,
        reason: FinishReason,
        usage: Usage,
        spans: &mut Vec<Span>,
    ) -> Result<(), SequenceError> {
        if let Some(trace) = self.trace.take() {
            trace.ended(name(reason), &usage);
        }
        if let Some(reason) = self.reading.constraint.as_ref().and_then(|constraint| constraint.failure()) {
            let error = SequenceError::Grammar(reason.to_owned());
            return Err(self.broken(error));
        }
        let finish = match reason {
            FinishReason::StopToken(token) => {
                let same = self.again.take();
                if same.is_some_and(|same| same != token || !self.reading.include_stop) {
                    return Err(self.broken(SequenceError::Another));
                }
                if self.reading.include_stop && same.is_none() {
                    self.take(token, Origin::Target, spans);
                    if let Some(ending) = &mut self.ending {
                        // The stop token's text has a stop string in it.
                        (ending.usage, self.tokens) = (Some(usage), None);
                        return Ok(());
                    }
                }
                Finish::Stop
            }
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => return Err(self.broken(SequenceError::Cancelled)),
            FinishReason::DeviceFailed => return Err(self.broken(SequenceError::DeviceFailed)),
        };
        let rest = self.detokenizer.finish();
        self.show(None, rest, spans);
        let finish = if self.stop.stopped() { Finish::Stop } else { finish };
        self.end(finish, Some(usage));
        Ok(())
    }

    fn end(&mut self, finish: Finish, usage: Option<Usage>) {
        match (usage, &mut self.tokens) {
            (None, Some(tokens)) => tokens.cancel(),
            _ => self.tokens = None,
        }
        let reasoning_tokens = self.reasoning.is_some().then_some(self.reasoning_tokens);
        let output = std::mem::take(&mut self.output);
        self.ending = Some(Ending { finish, output, reasoning_tokens, usage });
    }

    fn broken(&mut self, err: SequenceError) -> SequenceError {
        self.tokens = None;
        err
    }
}

/// Whether an update is none that breaks a sequence off.
fn goes_on(update: Option<&Update>) -> bool {
    match update {
        None => false,
        Some(Update::Tokens(_)) => true,
        Some(Update::Finished { reason, .. }) => {
            matches!(reason, FinishReason::StopToken(_) | FinishReason::Length)
        }
    }
}

/// Why a sequence ended, for its trace.
fn name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::StopToken(_) => Finish::Stop.name(),
        FinishReason::Length => Finish::Length.name(),
        FinishReason::Cancelled => "cancelled",
        FinishReason::DeviceFailed => "device_failed",
    }
}

/// What a cancelled sequence took; none if the service ends before it says so.
async fn took(tokens: &mut ReplicaStream) -> Option<Usage> {
    loop {
        match tokens.next().await? {
            Update::Tokens(_) => {}
            Update::Finished { usage, .. } => return Some(usage),
        }
    }
}
