//! One sequence as text: tokens from the service, through the detokenizer and the stop strings, to pieces that can be shown.

use std::sync::Arc;

use faser_actors::{ReplicaStream, Update};
use faser_engine::{FinishReason, Origin, TokenId, Usage};
use faser_models::{Detokenizer, Tokenizer};

use crate::stop::StopMatcher;

/// A running sequence. Dropping it cancels the request.
pub struct TextSequence {
    /// `None` once the sequence has ended or a stop string was seen.
    tokens: Option<ReplicaStream>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    output: Vec<TokenId>,
    /// Of the last token: text held back until the end is ascribed to it.
    origin: Origin,
    ending: Option<Ending>,
}

/// What a sequence says next.
#[derive(Debug)]
pub enum Piece {
    /// Text, token by token; never empty.
    Text(Vec<Span>),
    /// The end; nothing follows.
    End(Ending),
}

/// The text that one token made ready to be shown.
#[derive(Debug, PartialEq, Eq)]
pub struct Span {
    /// Not empty.
    pub text: String,
    /// Who found the token.
    pub origin: Origin,
}

/// How a sequence ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Why.
    pub finish: Finish,
    /// Tokens up to the end of the text, the stop token not counted.
    pub output: Vec<TokenId>,
    /// What it took; `None` if a stop string ended it, for then the device had run ahead.
    pub usage: Option<Usage>,
}

/// Why a sequence ended, in the API's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or a stop string.
    Stop,
    /// The limit of tokens.
    Length,
}

impl Finish {
    /// `finish_reason` of the API.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

/// Why a sequence broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The device went away under it, more often than is put up with.
    #[error("the device failed while it worked on this request; send it again")]
    DeviceFailed,
    /// An operator ended it.
    #[error("an operator of the server cancelled this request")]
    Cancelled,
    /// The daemon is on its way down.
    #[error("the server is shutting down and did not finish this request")]
    Ended,
}

impl TextSequence {
    /// Reads `tokens` as text that ends before the first of `stops`.
    pub fn new(tokens: ReplicaStream, tokenizer: &Arc<Tokenizer>, stops: &[String]) -> TextSequence {
        TextSequence {
            tokens: Some(tokens),
            detokenizer: Detokenizer::new(Arc::clone(tokenizer)),
            stop: StopMatcher::new(stops.to_vec()),
            output: Vec::new(),
            origin: Origin::Target,
            ending: None,
        }
    }

    /// Waits for the next piece; `None` after the end.
    ///
    /// # Errors
    /// The sequence broke off.
    pub async fn next(&mut self) -> Result<Option<Piece>, SequenceError> {
        loop {
            if let Some(ending) = self.ending.take() {
                return Ok(Some(Piece::End(ending)));
            }
            let Some(tokens) = &mut self.tokens else { return Ok(None) };
            let spans = match tokens.next().await {
                None => return Err(self.broken(SequenceError::Ended)),
                Some(Update::Tokens(emitted)) => {
                    let mut spans = Vec::new();
                    for emitted in emitted {
                        self.take(emitted.token, emitted.origin, &mut spans);
                    }
                    spans
                }
                Some(Update::Finished { reason, usage }) => self.finish(reason, usage)?,
            };
            if !spans.is_empty() {
                return Ok(Some(Piece::Text(spans)));
            }
        }
    }

    /// One token: its text joins the spans unless a stop string was seen.
    fn take(&mut self, token: TokenId, origin: Origin, spans: &mut Vec<Span>) {
        if self.stop.stopped() {
            return;
        }
        self.output.push(token);
        self.origin = origin;
        let text = self.detokenizer.push(token).unwrap_or_default();
        let text = self.stop.push(&text);
        if !text.is_empty() {
            spans.push(Span { text, origin });
        }
        if self.stop.stopped() {
            self.end(Finish::Stop, None);
        }
    }

    /// The sequence is over: what was held back comes out.
    fn finish(&mut self, reason: FinishReason, usage: Usage) -> Result<Vec<Span>, SequenceError> {
        let finish = match reason {
            FinishReason::StopToken(_) => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => return Err(self.broken(SequenceError::Cancelled)),
            FinishReason::DeviceFailed => return Err(self.broken(SequenceError::DeviceFailed)),
        };
        let rest = self.detokenizer.finish();
        let mut text = self.stop.push(&rest);
        text.push_str(&self.stop.finish());
        let finish = if self.stop.stopped() { Finish::Stop } else { finish };
        self.end(finish, Some(usage));
        let span = Span { text, origin: self.origin };
        Ok(if span.text.is_empty() { Vec::new() } else { vec![span] })
    }

    /// Drops the stream, which cancels what still runs.
    fn end(&mut self, finish: Finish, usage: Option<Usage>) {
        self.tokens = None;
        self.ending = Some(Ending { finish, output: std::mem::take(&mut self.output), usage });
    }

    fn broken(&mut self, err: SequenceError) -> SequenceError {
        self.tokens = None;
        err
    }
}
