//! From checked requests to answers: opens the sequences, then collects or streams their text.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, web};
use faser_engine::TokenId;
use faser_models::{Grammar, GrammarSource};
use futures_util::stream::{self, SelectAll, Stream, StreamExt};
use serde_json::Value;

use super::calls::{Message, Part, Reader};
use super::errors::ApiError;
use super::logprobs::LogprobShape;
use super::metrics::Place;
use super::params::{Choices, Parameters};
use super::prediction::predicted;
use super::shapes::{Answer, Choice, Shape, usage};
use super::slow::Watched;
use crate::app::{Opening, Served};
use crate::grammars::FormatError;
use crate::sequence::{Ending, Piece, SequenceError, Span, TextSequence, Told};

/// Longer texts are tokenized off the thread that serves everybody's streams.
const LONG_TEXT_BYTES: usize = 16 << 10;

/// Everything a request asks for.
pub(super) struct Generation {
    pub(super) shape: Shape,
    pub(super) prompts: Vec<Prompt>,
    pub(super) parameters: Parameters,
    /// Tokens per sequence when the request does not say; `None` is the rest of the context.
    pub(super) max_new_tokens: Option<usize>,
}

/// A prompt.
pub(super) struct Prompt {
    pub(super) ids: Arc<[TokenId]>,
    /// Its text, if answers begin with it.
    pub(super) echo: Option<String>,
}

impl Generation {
    /// Answers the request; a stream of which nothing is taken for `patience` is cut off. Dropping the future, or the body of the answer,
    /// cancels its sequences.
    pub(super) async fn respond(
        self,
        served: &Arc<Served>,
        patience: Duration,
    ) -> Result<HttpResponse, ApiError> {
        let prompt_tokens = self.prompts.iter().map(|prompt| prompt.ids.len()).sum();
        let grammar = match &self.parameters.format {
            Some(source) => Some(served.grammars.compile(source).await.map_err(|err| refused(err, source))?),
            None => None,
        };
        let sequences = self.open(served, grammar.as_ref()).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let tokens = LogprobShape {
            shape: self.shape,
            as_ids: self.parameters.tokens_as_ids,
            tokenizer: Arc::clone(&served.tokenizer),
        };
        let Parameters { model, calls, include_metrics, include_usage, stream, .. } = self.parameters;
        let metrics = Place::of(include_metrics, sequences.len());
        let answer = Answer::new(tokens, model, now.as_secs(), metrics, include_usage);
        let choices = sequences.into_iter().map(|sequence| (sequence, Reader::new(calls)));
        if stream {
            return Ok(streamed(answer, choices.collect(), prompt_tokens, patience));
        }
        let choices = choices.map(|(sequence, reader)| collected(sequence, reader));
        let choices = futures_util::future::try_join_all(choices).await?;
        let usage = usage(prompt_tokens, choices.iter().map(|choice| &choice.ending));
        Ok(HttpResponse::Ok().json(answer.whole(&choices, &usage)))
    }

    /// All sequences, in the order of their choices: those of the first prompt first. The further choices of a prompt are opened once its
    /// first one has begun: then the KV of the prompt is in the cache for them.
    async fn open(
        &self,
        served: &Arc<Served>,
        grammar: Option<&Grammar>,
    ) -> Result<Vec<TextSequence>, ApiError> {
        let Choices(n) = self.parameters.n;
        let predicted = predicted(served, self.parameters.prediction.as_deref()).await?;
        let open = |prompt: &Prompt, number| {
            let (ids, echo) = (Arc::clone(&prompt.ids), prompt.echo.clone());
            let opening = Opening {
                number,
                max_new_tokens: self.max_new_tokens,
                echo,
                prediction: predicted.clone(),
                grammar,
            };
            async move { served.open(&ids, &self.parameters, opening).await }
        };
        let mut firsts = Vec::with_capacity(self.prompts.len());
        for prompt in &self.prompts {
            firsts.push(open(prompt, 0).await?);
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

/// Token ids of a text.
pub(super) async fn encode(
    served: &Arc<Served>,
    text: String,
    add_special: bool,
) -> Result<Vec<TokenId>, ApiError> {
    if text.len() <= LONG_TEXT_BYTES {
        return Ok(served.tokenizer.encode(&text, add_special)?);
    }
    let tokenizer = Arc::clone(&served.tokenizer);
    let place = served.encoding.acquire().await;
    let ids = web::block(move || tokenizer.encode(&text, add_special)).await;
    drop(place);
    Ok(ids.map_err(|err| ApiError::internal(err.to_string(), "internal_error"))??)
}

/// A grammar that is not taken is a fault of the field that it was made of.
fn refused(err: FormatError, source: &GrammarSource) -> ApiError {
    let err = ApiError::from(err);
    match source {
        GrammarSource::Calls(_) if err.param.is_some() => ApiError { param: Some("tools".into()), ..err },
        _ => err,
    }
}

async fn collected(mut sequence: TextSequence, mut reader: Reader) -> Result<Choice, SequenceError> {
    let (mut message, mut told) = (Message::default(), Vec::new());
    loop {
        match sequence.next().await? {
            Some(Piece::Text(spans)) => message.extend(reader.take(text(spans, &mut told))),
            Some(Piece::End(ending)) => {
                message.extend(reader.finish());
                return Ok(Choice { message, told, ending: reader.ending(*ending) });
            }
            None => return Err(SequenceError::Ended),
        }
    }
}

/// The text of some tokens; what is told of them is appended to `told`.
fn text(spans: Vec<Span>, told: &mut Vec<Told>) -> String {
    let mut text = String::new();
    for span in spans {
        text.push_str(&span.text);
        told.extend(span.told);
    }
    text
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

/// A stream of server-sent events. A failure is its last event, and then there is no `[DONE]`.
fn streamed(
    answer: Answer,
    choices: Vec<(TextSequence, Reader)>,
    prompt_tokens: usize,
    patience: Duration,
) -> HttpResponse {
    let openings: Vec<Value> = (0..choices.len()).filter_map(|index| answer.opening(index)).collect();
    let (sequences, readers): (Vec<TextSequence>, Vec<Reader>) = choices.into_iter().unzip();
    let pieces: SelectAll<Pieces> =
        sequences.into_iter().enumerate().map(|(index, sequence)| pieces(index, sequence)).collect();
    let events = Events { answer, pieces, readers, endings: Vec::new(), prompt_tokens };
    let rest = stream::unfold(Some(events), |events| async move { events?.next().await });
    let body = stream::iter(openings).map(|opening| event(&opening)).chain(rest);
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/event-stream"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .streaming(Watched::new(Box::pin(body), patience, event(&too_slow(patience).body())))
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
    answer: Answer,
    pieces: SelectAll<Pieces>,
    readers: Vec<Reader>,
    endings: Vec<Ending>,
    prompt_tokens: usize,
}

impl Events {
    /// The next bytes, and what is left after them.
    async fn next(mut self) -> Option<(web::Bytes, Option<Events>)> {
        loop {
            let bytes = match self.pieces.next().await {
                Some((index, Ok(piece))) => self.of(index, piece),
                Some((_, Err(err))) => {
                    tracing::warn!(%err, "a stream is broken off");
                    return Some((event(&ApiError::from(err).body()), None));
                }
                None => return Some((self.last(), None)),
            };
            // Text that is held back is nothing yet.
            if !bytes.is_empty() {
                return Some((bytes, Some(self)));
            }
        }
    }

    /// The chunks for a piece of a choice.
    fn of(&mut self, index: usize, piece: Piece) -> web::Bytes {
        let Some(reader) = self.readers.get_mut(index) else { return web::Bytes::new() };
        let mut told = Vec::new();
        let (mut parts, ending) = match piece {
            Piece::Text(spans) => (reader.take(text(spans, &mut told)), None),
            Piece::End(ending) => (reader.finish(), Some(reader.ending(*ending))),
        };
        if parts.is_empty() && !told.is_empty() {
            parts.push(Part::Content(String::new()));
        }
        let mut bytes = web::BytesMut::new();
        for part in parts {
            bytes.extend_from_slice(&event(&self.answer.part(index, &part, &std::mem::take(&mut told))));
        }
        if let Some(ending) = ending {
            bytes.extend_from_slice(&event(&self.answer.end(index, &ending)));
            self.endings.push(ending);
        }
        bytes.freeze()
    }

    fn last(&self) -> web::Bytes {
        let usage = self.answer.usage(self.prompt_tokens, &self.endings);
        let mut bytes = usage.map_or_else(Vec::new, |usage| event(&usage).to_vec());
        bytes.extend_from_slice(b"data: [DONE]\n\n");
        bytes.into()
    }
}

/// One server-sent event. JSON has no line breaks of its own, so it is one line.
fn event(data: &Value) -> web::Bytes {
    format!("data: {data}\n\n").into()
}
