//! From checked requests to answers: opens the sequences, then collects or streams their text.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, web};
use faser_actors::Sampling;
use faser_config::fields::{Fault, FieldError};
use faser_engine::TokenId;
use faser_models::{Channel, Grammar, GrammarSource, ReasoningStart};
use futures_util::stream::{self, SelectAll, Stream, StreamExt};
use tokio::sync::Semaphore;

use super::answer::{Answer, Choice, Head};
use super::answer_usage::Place;
use super::bounds::Shape;
use super::calls::{Part, Reader};
use super::encoding;
use super::errors::ApiError;
use super::logprob_shapes::LogprobShape;
use super::params::{ALLOWED, BAD_WORDS, Choices, Parameters};
use super::prompt::{Echo, Prompt, Repeated};
use super::resume::{Resume, check_form};
use super::slow::Watched;
use crate::pairs::{Opening, Served};
use crate::text_sequence::{Ending, Piece, SequenceError, Span, TextSequence, TokenLogprob};

/// The header of an answer that says by which seed it was drawn: with it another server can go on with the answer.
const SEED: &str = "x-seed";

/// Longer answers are written on other threads, a few at a time.
const LONG_ANSWER_BYTES: usize = 256 << 10;
static PLACES_TO_WRITE: Semaphore = Semaphore::const_new(2);

/// Everything a request asks for.
pub(super) struct Generation {
    pub(super) shape: Shape,
    pub(super) prompts: Vec<Prompt>,
    pub(super) parameters: Parameters,
    /// Where outputs begin, if their reasoning is told from the rest.
    pub(super) reasoning: Option<ReasoningStart>,
    /// Tokens per sequence when the request does not say; `None` is the rest of the context.
    pub(super) max_new_tokens: Option<usize>,
}

impl Generation {
    /// Answers the request in the way that `write` makes; a stream of which nothing is taken for `patience` is cut off. Dropping the future, or the body of the answer,
    /// cancels its sequences.
    pub(super) async fn respond(
        mut self,
        served: &Arc<Served>,
        patience: Duration,
        write: impl FnOnce(Head) -> Box<dyn Answer>,
    ) -> Result<HttpResponse, ApiError> {
        let repeated = self.cut(served).await?;
        self.ban(served)?;
        let prompt_tokens = self.prompts.iter().map(|prompt| prompt.ids.len()).sum::<usize>();
        let grammar = match &self.parameters.form {
            Some(form) => {
                let behind = served.reasoning.zip(self.reasoning).map(|(format, start)| {
                    GrammarSource::BehindReasoning(format, start, Box::new(form.source.clone()))
                });
                let compiled = served.grammars.compile(behind.as_ref().unwrap_or(&form.source)).await;
                Some(compiled.map_err(|err| ApiError::of_grammar(&err, &form.field))?)
            }
            None => None,
        };
        if let (Some(resume), Some(grammar)) = (&self.parameters.resume, &grammar) {
            check_form(resume, grammar, &served.encoding).await?;
        }
        let sequences = self.open(served, grammar.as_ref()).await;
        let sequences = sequences.map_err(|err| self.shape.in_its_words(err))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let tokens = LogprobShape {
            shape: self.shape,
            wanted: self.parameters.logprobs.is_some(),
            as_ids: self.parameters.tokens_as_ids,
            tokenizer: Arc::clone(&served.tokenizer),
        };
        let seed = self.parameters.sampling.seed;
        let received = self.parameters.resume.as_ref().map_or(0, |resume| resume.tokens().len());
        let Parameters { model, calls, include_metrics, include_usage, usage_so_far, stream, .. } =
            self.parameters;
        let Choices(n) = self.parameters.n;
        let token_ids = self.parameters.return_token_ids.then(|| {
            let ids = self.prompts.iter().flat_map(|prompt| std::iter::repeat_n(&prompt.ids, n));
            ids.cloned().collect()
        });
        let answer = write(Head {
            tokens,
            model,
            created: now.as_secs(),
            metrics: Place::of(include_metrics, sequences.len()),
            usage_chunk: include_usage,
            usage_so_far,
            token_ids,
            choices: sequences.len(),
            prompt_tokens,
            received,
        });
        let choices = sequences.into_iter().map(|mut sequence| {
            let mut reader = Reader::new(calls);
            // What the client has is read too, that it is known where in a call it ends.
            for (channel, text) in texts(sequence.shown_before(), &mut Vec::new()) {
                drop(reader.take(channel, text));
            }
            (sequence, reader)
        });
        let seed = (header::HeaderName::from_static(SEED), seed.to_string());
        let tokens_last = self.shape != Shape::Response;
        if stream {
            return Ok(streamed(answer, choices.collect(), patience, (seed, tokens_last)));
        }
        let choices = choices.map(|(sequence, reader)| collected(sequence, reader));
        let choices = futures_util::future::try_join_all(choices).await?;
        let whole = written(answer, choices, repeated.ids()).await?;
        Ok(HttpResponse::Ok().insert_header(seed).content_type("application/json").body(whole))
    }

    /// Leaves of each prompt what the request wants of it, and has its text where that is repeated as it decodes. Returns what is repeated.
    async fn cut(&mut self, served: &Arc<Served>) -> Result<Repeated, ApiError> {
        let output = self.parameters.max_new_tokens.or(self.max_new_tokens).unwrap_or(1);
        let mut repeated = Repeated::by(self.shape);
        for prompt in &mut self.prompts {
            let kept = self.parameters.prompt_tokens.kept.of(&prompt.ids, served.max_context, output);
            // With log-probabilities tokens are repeated one by one.
            let as_sent = kept.is_none() && self.parameters.logprobs.is_none();
            prompt.ids = kept.unwrap_or_else(|| Arc::clone(&prompt.ids));
            if matches!(prompt.echo, Echo::Text(_)) && !as_sent {
                prompt.echo = Echo::Tokens;
            }
            if let (Echo::Tokens, None) = (&prompt.echo, self.parameters.logprobs) {
                prompt.echo = Echo::Text(encoding::text(served, prompt.ids.to_vec()).await?);
            }
            repeated.add(prompt, &self.parameters)?;
        }
        Ok(repeated)
    }

    /// Has the sampler keep to the tokens that the request allows.
    fn ban(&mut self, served: &Served) -> Result<(), ApiError> {
        let Parameters { sampling, bad_words, .. } = &mut self.parameters;
        sampling.banned = banned(served, bad_words)?;
        if sampling.banned.is_empty() && sampling.allowed.is_none() {
            return Ok(());
        }
        let ends = if self.parameters.min_tokens > 0 { served.ends(&self.parameters) } else { Vec::new() };
        check_left(&self.parameters.sampling, served.vocab, &ends)
    }

    /// All sequences, in the order of their choices: those of the first prompt first. The further choices of a prompt are opened once its
    /// first one has begun: then the KV of the prompt is in the cache for them.
    async fn open(
        &self,
        served: &Arc<Served>,
        grammar: Option<&Grammar>,
    ) -> Result<Vec<TextSequence>, ApiError> {
        let Choices(n) = self.parameters.n;
        // What the client has of the text is a good prediction of its beginning.
        let expected = self.parameters.prediction.as_deref();
        let predicted = match expected.or(self.parameters.resume.as_ref().and_then(Resume::text)) {
            Some(text) => encoding::beginning(served, text.to_owned(), served.max_context).await?,
            None => Vec::new(),
        };
        let open = |prompt: &Prompt, number| {
            let ids = Arc::clone(&prompt.ids);
            let echo = match &prompt.echo {
                Echo::Nothing => None,
                Echo::Text(text) => Some(text.clone()),
                Echo::Tokens => Some(String::new()),
            };
            let opening = Opening {
                number,
                max_new_tokens: self.max_new_tokens,
                echo,
                sequences: n * self.prompts.len(),
                prediction: predicted.clone(),
                grammar,
                reasoning: self.reasoning,
            };
            async move { served.open(&ids, &self.parameters, opening).await }
        };
        let first = self.parameters.resume.as_ref().map_or(0, |resume| resume.choice);
        let mut firsts = Vec::with_capacity(self.prompts.len());
        for prompt in &self.prompts {
            firsts.push(open(prompt, first).await?);
        }
        if n == 1 {
            return Ok(firsts);
        }
        let mut sequences = Vec::with_capacity(n * firsts.len());
        for (prompt, mut first) in self.prompts.iter().zip(firsts) {
            first.begin().await;
            sequences.push(first);
            for number in 1..n {
                sequences.push(open(prompt, number).await?);
            }
        }
        Ok(sequences)
    }
}

/// Tokens of bad words, of each as it is and with a space before it: both at the beginning of a text and within one.
///
/// # Errors
/// 400: the tokenizer cannot express one.
fn banned(served: &Served, words: &[String]) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let mut banned: Vec<Vec<TokenId>> = Vec::new();
    for word in words {
        let word = word.trim_start();
        for text in [word.to_owned(), format!(" {word}")] {
            let ids = served.tokenizer.encode(&text, false)?;
            if !ids.is_empty() && !banned.contains(&ids) {
                banned.push(ids);
            }
        }
    }
    Ok(banned)
}

/// Refuses a request to which no token might be left.
///
/// # Errors
/// 400: of what is allowed, all may be forbidden at once.
fn check_left(sampling: &Sampling, vocab: usize, ends: &[TokenId]) -> Result<(), ApiError> {
    let lasts = sampling.banned.iter().filter_map(|word| word.last());
    let barred: HashSet<TokenId> = lasts.chain(ends).copied().collect();
    let (name, left) = match &sampling.allowed {
        None => (BAD_WORDS, vocab > barred.len()),
        Some(bits) => {
            let mut allowed = (0..vocab as TokenId)
                .filter(|id| bits.get(*id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1));
            (ALLOWED, allowed.any(|id| !barred.contains(&id)))
        }
    };
    if left {
        return Ok(());
    }
    let problem = "leaves no token that `bad_words` and `min_tokens` do not forbid";
    Err(FieldError::new(name, Fault::Value, problem).into())
}

/// Writes an answer that is not streamed, with so many ids of prompts.
///
/// # Errors
/// The thread that writes it panicked.
async fn written(answer: Box<dyn Answer>, choices: Vec<Choice>, ids: usize) -> Result<web::Bytes, ApiError> {
    let size: usize = choices.iter().map(Choice::rough_bytes).sum();
    if size + 8 * ids <= LONG_ANSWER_BYTES {
        return Ok(answer.whole(choices));
    }
    // None only if it were closed, which nobody does. The thread keeps the place: it works on when the client is gone.
    let place = PLACES_TO_WRITE.acquire().await.ok();
    let written = web::block(move || {
        let _place = place;
        answer.whole(choices)
    });
    written.await.map_err(|err| ApiError::internal(err.to_string(), "internal_error"))
}

async fn collected(mut sequence: TextSequence, mut reader: Reader) -> Result<Choice, SequenceError> {
    let mut all = Vec::new();
    loop {
        let piece = sequence.next().await?.ok_or(SequenceError::Ended)?;
        let (parts, ending) = read(&mut reader, piece, false);
        all.extend(parts);
        if let Some(ending) = ending {
            return Ok(Choice { parts: all, ending });
        }
    }
}

/// What a piece says, one part of it with the log-probabilities of its tokens: the first, or the last; and the end, if it is that.
fn read(
    reader: &mut Reader,
    piece: Piece,
    tokens_last: bool,
) -> (Vec<(Part, Vec<TokenLogprob>)>, Option<Ending>) {
    let mut logprobs = Vec::new();
    let (mut parts, ending) = match piece {
        Piece::Text(spans) => {
            let texts = texts(spans, &mut logprobs).into_iter();
            (texts.flat_map(|(channel, text)| reader.take(channel, text)).collect(), None)
        }
        Piece::End(ending) => (reader.finish(), Some(reader.ending(*ending))),
    };
    // Text that is held back is nothing yet, but its tokens are there.
    if parts.is_empty() && !logprobs.is_empty() {
        parts.push(reader.silence());
    }
    let bearer = if tokens_last { parts.len().saturating_sub(1) } else { 0 };
    let mut tokens = |number| if number == bearer { std::mem::take(&mut logprobs) } else { Vec::new() };
    let parts = parts.into_iter().enumerate().map(|(number, part)| (part, tokens(number))).collect();
    (parts, ending)
}

/// The texts of some tokens, each with what it is; their log-probabilities are appended to `logprobs`.
fn texts(spans: Vec<Span>, logprobs: &mut Vec<TokenLogprob>) -> Vec<(Channel, String)> {
    let mut texts: Vec<(Channel, String)> = Vec::new();
    for span in spans {
        logprobs.extend(span.logprob);
        match texts.last_mut() {
            Some((channel, text)) if *channel == span.channel && *channel != Channel::Call => {
                text.push_str(&span.text);
            }
            _ => texts.push((span.channel, span.text)),
        }
    }
    texts
}

type Pieces = Pin<Box<dyn Stream<Item = (usize, Result<Piece, SequenceError>)>>>;

/// One sequence's pieces, with its place in the request.
fn pieces(index: usize, sequence: TextSequence) -> Pieces {
    Box::pin(stream::unfold(Some(sequence), move |sequence| async move {
        let mut sequence = sequence?;
        match sequence.next().await {
            Ok(Some(piece)) => Some(((index, Ok(piece)), Some(sequence))),
            Ok(None) => None,
            Err(err) => Some(((index, Err(err)), None)),
        }
    }))
}

/// A stream of server-sent events. A failure is its last event.
fn streamed(
    mut answer: Box<dyn Answer>,
    choices: Vec<(TextSequence, Reader)>,
    patience: Duration,
    (seed, tokens_last): ((header::HeaderName, String), bool),
) -> HttpResponse {
    let (opening, cut_off) = (answer.opening(), answer.cut_off(&too_slow(patience)));
    let (sequences, readers): (Vec<TextSequence>, Vec<Reader>) = choices.into_iter().unzip();
    let pieces: SelectAll<Pieces> =
        sequences.into_iter().enumerate().map(|(index, sequence)| pieces(index, sequence)).collect();
    let events = Events { answer, pieces, readers, tokens_last };
    let rest = stream::unfold(Some(events), |events| async move { events?.next().await });
    let opening = Some(opening).filter(|opening| !opening.is_empty());
    let body = stream::iter(opening).chain(rest);
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/event-stream"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header(seed)
        .streaming(Watched::new(Box::pin(body), patience, cut_off))
}

/// What a client finds that reads on after it was given up.
fn too_slow(patience: Duration) -> ApiError {
    let message = format!(
        "nothing of this stream was taken for {} s (server.write_timeout_s): it was cut off",
        patience.as_secs()
    );
    ApiError::refused(StatusCode::REQUEST_TIMEOUT, "too_slow", message)
}

/// What is left of a stream.
struct Events {
    answer: Box<dyn Answer>,
    pieces: SelectAll<Pieces>,
    readers: Vec<Reader>,
    /// Tokens come with the last that they say, so that a client that has a token has all of that.
    tokens_last: bool,
}

impl Events {
    /// The next bytes, and what is left after them.
    async fn next(mut self) -> Option<(web::Bytes, Option<Events>)> {
        loop {
            let bytes = match self.pieces.next().await {
                Some((index, Ok(piece))) => self.of(index, piece),
                Some((_, Err(err))) => {
                    tracing::warn!(%err, "a stream is broken off");
                    return Some((self.answer.broken(&ApiError::from(err)), None));
                }
                None => return Some((self.answer.last(), None)),
            };
            // Text that is held back is nothing yet.
            if !bytes.is_empty() {
                return Some((bytes, Some(self)));
            }
        }
    }

    /// The events for a piece of a choice.
    fn of(&mut self, index: usize, piece: Piece) -> web::Bytes {
        let Some(reader) = self.readers.get_mut(index) else { return web::Bytes::new() };
        let (parts, ending) = read(reader, piece, self.tokens_last);
        let mut bytes = web::BytesMut::new();
        for (part, logprobs) in parts {
            bytes.extend_from_slice(&self.answer.part(index, part, logprobs));
        }
        if let Some(ending) = ending {
            bytes.extend_from_slice(&self.answer.end(index, ending));
        }
        bytes.freeze()
    }
}
