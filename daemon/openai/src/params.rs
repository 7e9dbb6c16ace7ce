//! The parameters that completions, chats and responses take: ranges, and what is not offered.

use std::sync::Arc;

use faser_actors::{MAX_TOP_LOGPROBS, Sampling};
use faser_config::fields::{
    Fault, FieldError, Fields, at_most, each, one_of, required_as, shortened, whole, wrong_type, wrong_value,
};
use faser_engine::{Handling, TokenId};
use faser_models::CallFormat;
use serde_json::{Value, json};

use super::bounds::{Bounds, Shape};
use super::conversation::content;
use super::format::{Form, form};
use super::resume::{RESUME, Received, Resume};
use super::speculation::handling;
use crate::random;

/// Stop strings of a request at most, and bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Stop tokens of a request at most.
const MAX_STOP_TOKENS: usize = 64;
/// Entries of `logit_bias` at most.
const MAX_BIASES: usize = 1024;
/// Choices per prompt at most.
const MAX_CHOICES: usize = 16;

/// Pairs of `metadata`, and characters of a key and of a value, as in OpenAI's API.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// Bad words of a request at most, and bytes of each: together no more than a thread that serves everybody may tokenize.
const MAX_BAD_WORDS: usize = 128;
const MAX_BAD_WORD_BYTES: usize = 64;
/// Where no token might be left.
pub(super) const ALLOWED: &str = "allowed_token_ids";
pub(super) const BAD_WORDS: &str = "bad_words";

/// How a request wants its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// The name by which the request asks for the model, which answers repeat.
    pub model: String,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// `max_tokens`, `max_completion_tokens` or `max_output_tokens`.
    pub max_new_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Tokens that end the sequence beside the model's own.
    pub stop_tokens: Vec<TokenId>,
    /// Choices per prompt.
    pub n: Choices,
    /// Log-probabilities of tokens, with so many of the likeliest in each place.
    pub logprobs: Option<usize>,
    /// Whether tokens are shown as `token_id:N` there.
    pub tokens_as_ids: bool,
    /// Tokens before stop tokens and stop strings count.
    pub min_tokens: usize,
    /// Whether text ends behind a stop string or stop token, not before it.
    pub include_stop: bool,
    /// What the output is to look like; plain text without.
    pub form: Option<Form>,
    /// Texts of which no output has the tokens; they become some of [`Sampling::banned`].
    pub bad_words: Vec<String>,
    /// What of a prompt is computed.
    pub prompt_tokens: PromptTokens,
    /// How calls are read from the output; none: it is text alone.
    pub calls: Option<ReadCalls>,
    /// Whether the model's own end tokens are ordinary ones.
    pub ignore_eos: bool,
    /// What the client expects to get.
    pub prediction: Option<String>,
    /// How it is to be scheduled.
    pub handling: Handling,
    /// Whether the answer says what it took.
    pub include_metrics: bool,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a stream ends with its usage.
    pub include_usage: bool,
    /// Whether each chunk of a stream says what was used so far.
    pub usage_so_far: bool,
    /// Whether answers have the ids of their tokens.
    pub return_token_ids: bool,
    /// The output that goes on, if it has begun elsewhere.
    pub resume: Option<Resume>,
    /// Whether reasoning stays in a chat's text.
    pub reasoning_in_text: bool,
}

/// How many choices a prompt gets: 1, if nobody says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices(pub usize);

impl Default for Choices {
    fn default() -> Choices {
        Choices(1)
    }
}

impl Parameters {
    /// Whether every token of output is listed.
    pub fn lists_tokens(&self) -> bool {
        self.usage_so_far || self.return_token_ids
    }

    /// How choice `number` of a prompt is drawn. The first has the request's seed, each other a seed of its own that follows from it.
    pub fn sampling_of(&self, number: usize) -> Sampling {
        let seed = self.sampling.seed;
        let seed = if number == 0 { seed } else { random::derived(seed, number as u64) };
        Sampling { seed, ..self.sampling.clone() }
    }
}

/// How calls are read from an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCalls {
    /// How the model writes them.
    pub format: CallFormat,
    /// The request has named the function.
    pub named: bool,
}

/// What a request says of its prompts' tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Whether the tokenizer adds its own; if nothing is said it does for texts, and not for chats, whose templates write them.
    pub add_special: Option<bool>,
    /// What of longer prompts is kept.
    pub kept: Kept,
}

/// What of a prompt is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// All of it.
    #[default]
    All,
    /// The last tokens, so many.
    Last(usize),
    /// The last tokens, as many as the context holds beside the output.
    Fitting,
}

impl Kept {
    /// What is kept of `ids`, where the context holds `max_context` tokens of which `output` are to be written; none if it is all of them.
    pub(super) fn of(self, ids: &[TokenId], max_context: usize, output: usize) -> Option<Arc<[TokenId]>> {
        let most = match self {
            Kept::All => return None,
            Kept::Last(most) => most,
            Kept::Fitting => max_context.saturating_sub(output).max(1),
        };
        let first = ids.len().checked_sub(most).filter(|first| *first > 0)?;
        Some(ids.get(first..)?.into())
    }
}

/// Reads them, but for the model's name and calls; no token at all may be asked for where the prompt is repeated.
///
/// # Errors
/// The first field that is of the wrong type, out of range, or not offered.
pub(super) fn parameters(
    fields: &mut Fields<'_>,
    bounds: &Bounds<'_>,
    shape: Shape,
    echo: bool,
) -> Result<Parameters, FieldError> {
    let vocab = bounds.vocab;
    elsewhere(fields, shape)?;
    let max_new_tokens = max_new_tokens(fields, shape, usize::from(!echo))?;
    let mut parameters = Parameters {
        sampling: sampling(fields, bounds)?,
        max_new_tokens,
        form: form(fields, shape)?,
        bad_words: bad_words(fields)?,
        prompt_tokens: prompt_tokens(fields, shape, bounds)?,
        n: choices(fields, shape)?,
        logprobs: logprobs(fields, shape)?,
        tokens_as_ids: fields
            .flag(("return_tokens_as_token_ids", "Tokens are shown as `token_id:N`."))?
            .unwrap_or(false),
        min_tokens: min_tokens(fields, max_new_tokens)?,
        include_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
        stop: stop(fields)?,
        stop_tokens: match fields.list_of("stop_token_ids", token_id)? {
            Some(ids) => token_ids(&fields.path("stop_token_ids"), ids, vocab, MAX_STOP_TOKENS)?,
            None => Vec::new(),
        },
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        prediction: prediction(fields)?,
        handling: handling(fields, bounds.priorities, bounds.owner)?,
        include_metrics: fields.flag(("include_metrics", "The answer says what it took."))?.unwrap_or(false),
        return_token_ids: shape != Shape::Response
            && fields
                .flag(("return_token_ids", "The answer has the ids of its tokens, and of its prompt's."))?
                .unwrap_or(false),
        ..Parameters::default()
    };
    fields.tell("stop_token_ids", || json!({"maxItems": MAX_STOP_TOKENS}));
    let separate = ("separate_reasoning", "Whether reasoning is told from the rest of a chat's text.");
    parameters.reasoning_in_text = fields.flag(separate)? == Some(false);
    streaming(fields, shape, &mut parameters)?;
    check_form(fields, &parameters)?;
    parameters.resume = resume(fields, shape, bounds, &parameters)?;
    Ok(parameters)
}

/// The output that goes on; responses have none.
///
/// # Errors
/// It is wrong, or cannot be had with another field.
fn resume(
    fields: &mut Fields<'_>,
    shape: Shape,
    bounds: &Bounds<'_>,
    parameters: &Parameters,
) -> Result<Option<Resume>, FieldError> {
    if shape == Shape::Response {
        let elsewhere = "a response is begun anew: send it again with the same `seed`";
        fields.neutral(RESUME, &[], elsewhere)?;
        return Ok(None);
    }
    let about = "Goes on with an output of which the client has a part already.";
    let resume = fields.within((RESUME, about), "Resume", |resume| {
        let ids = ("token_ids", "The tokens that the client has of it, as `return_token_ids` told them.");
        let ids = match resume.list_of(ids, token_id)? {
            Some(ids) => {
                let path = resume.path("token_ids");
                Some(token_ids(&path, ids, bounds.vocab, bounds.max_context)?)
            }
            None => None,
        };
        let text = resume.text(("text", "In place of them: the text that the client has of it."))?;
        let about = "Which choice of its prompt it is, as `index` told, from 0.";
        let choice = resume.size(("choice", about), 0..=MAX_CHOICES - 1)?.unwrap_or(0);
        let received = match (ids, text) {
            (Some(_), Some(_)) => return Err(resume.wrong("text", "and `token_ids` exclude one another")),
            (_, Some(text)) => Received::Text(text.to_owned()),
            (ids, None) => Received::Tokens(ids.unwrap_or_default()),
        };
        Ok(Resume { received, choice })
    })?;
    let Some(resume) = resume else { return Ok(None) };
    let seeded = fields.value("seed").is_some();
    let tells_tokens = parameters.lists_tokens() || parameters.logprobs.is_some();
    for (wrong, problem) in [
        (
            !seeded && !parameters.sampling.is_greedy(),
            "needs the `seed` that the output was begun with: the header `x-seed` of its answer says it",
        ),
        (
            parameters.n != Choices(1),
            "is of one choice: send a request for each with \"n\": 1 and its `resume.choice`",
        ),
        (parameters.max_new_tokens == Some(0), "needs a `max_tokens` above 0: that of the whole output"),
        (
            resume.text().is_some() && tells_tokens,
            "of a text cannot be had where tokens are told one by one: give `resume.token_ids`",
        ),
    ] {
        if wrong {
            return Err(fields.wrong(RESUME, problem));
        }
    }
    Ok(Some(resume))
}

/// Refuses what would move the end of a structured output, or forbid tokens that it needs.
///
/// # Errors
/// There is a form, and something else that says when an output ends, or what it has in it.
pub(super) fn check_form(fields: &Fields<'_>, parameters: &Parameters) -> Result<(), FieldError> {
    if parameters.form.is_some() {
        let ends = "cannot be had together with a form of the output, whose end is given by that";
        let tokens = "cannot be had together with a form of the output, for which no token might be left";
        for (name, asked, problem) in [
            ("ignore_eos", parameters.ignore_eos, ends),
            ("min_tokens", parameters.min_tokens > 0, ends),
            ("allowed_token_ids", parameters.sampling.allowed.is_some(), tokens),
            ("bad_words", !parameters.bad_words.is_empty(), tokens),
        ] {
            if asked {
                return Err(fields.wrong(name, problem));
            }
        }
    }
    Ok(())
}

fn streaming(fields: &mut Fields<'_>, shape: Shape, parameters: &mut Parameters) -> Result<(), FieldError> {
    let stream = ("stream", "Whether the answer comes as server-sent events.");
    parameters.stream = fields.flag(stream)?.unwrap_or(false);
    if !parameters.stream && fields.value("stream_options").is_some_and(Value::is_object) {
        return Err(fields.wrong("stream_options", "needs `\"stream\": true`"));
    }
    let kind = if shape == Shape::Response { "ResponseStreamOptions" } else { "StreamOptions" };
    let options = fields.within(("stream_options", "Only with `stream`."), kind, |options| {
        if shape == Shape::Response {
            options.neutral("include_obfuscation", &[json!(false)], "nothing is obfuscated")?;
            return Ok((false, false));
        }
        let usage = options.flag("include_usage")?.unwrap_or(false);
        let so_far = ("continuous_usage_stats", "Every chunk has the usage so far.");
        Ok((usage, options.flag(so_far)?.unwrap_or(false)))
    })?;
    (parameters.include_usage, parameters.usage_so_far) = options.unwrap_or_default();
    Ok(())
}

fn sampling(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<Sampling, FieldError> {
    let (vocab, defaults) = (bounds.vocab, bounds.defaults);
    let real = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
    Ok(Sampling {
        temperature: real(fields.number("temperature", 0.0..=2.0)?, defaults.temperature.unwrap_or(1.0)),
        top_k: top_k(fields)?.or(defaults.top_k).unwrap_or(0),
        top_p: positive(fields, "top_p", 1.0)?.or(defaults.top_p).unwrap_or(1.0),
        min_p: real(fields.number("min_p", 0.0..=1.0)?, defaults.min_p.unwrap_or(0.0)),
        repetition_penalty: positive(fields, "repetition_penalty", 10.0)?
            .or(defaults.repetition_penalty)
            .unwrap_or(1.0),
        presence_penalty: real(fields.number("presence_penalty", -2.0..=2.0)?, 0.0),
        frequency_penalty: real(fields.number("frequency_penalty", -2.0..=2.0)?, 0.0),
        logit_bias: logit_bias(fields, vocab)?,
        allowed: allowed_tokens(fields, vocab)?,
        seed: seed(fields)?,
        ..Sampling::default()
    })
}

/// A number above 0, up to `most`.
fn positive(fields: &mut Fields<'_>, name: &'static str, most: f64) -> Result<Option<f32>, FieldError> {
    let value = fields.number(name, 0.0..=most)?.map(|value| value as f32);
    fields.tell(name, || json!({"minimum": null, "exclusiveMinimum": 0, "example": 0.9}));
    if value.is_none_or(|value| value > 0.0) {
        return Ok(value);
    }
    let wanted = format!("a number above 0, up to {most}");
    Err(fields.wrong_value(name, &wanted, &json!(0)))
}

/// 0, and -1 as others write it, is off.
fn top_k(fields: &mut Fields<'_>) -> Result<Option<u32>, FieldError> {
    let schema = || json!({"type": "integer", "format": "int64", "minimum": -1});
    let Some(value) = fields.value_of(("top_k", "0 and -1: off."), schema) else { return Ok(None) };
    if value.as_i64() == Some(-1) {
        return Ok(Some(0));
    }
    whole(&fields.path("top_k"), value, 0..=u64::from(u32::MAX)).map(|k| Some(k as u32))
}

/// Any 64-bit number, signed or not; a random one if absent.
fn seed(fields: &mut Fields<'_>) -> Result<u64, FieldError> {
    let name = ("seed", "A whole number of 64 bits; without one it is random.");
    match fields.value_of(name, || json!({"type": "integer", "format": "int64"})) {
        // As large as JavaScript keeps: the answer says it.
        None => Ok(random::number() >> 11),
        Some(value) => value
            .as_u64()
            .or_else(|| value.as_i64().map(i64::cast_unsigned))
            .ok_or_else(|| fields.wrong_type("seed", "a whole number of 64 bits", value)),
    }
}

fn logit_bias(fields: &mut Fields<'_>, vocab: usize) -> Result<Vec<(TokenId, f32)>, FieldError> {
    let name = ("logit_bias", "Token ids, each with a number from -100 to 100; 1024 at most.");
    let schema = || json!({"type": "object", "example": {"7": -100}});
    let Some(value) = fields.value_of(name, schema) else { return Ok(Vec::new()) };
    let path = fields.path("logit_bias");
    let Value::Object(map) = value else {
        return Err(wrong_type(&path, "an object of token ids and numbers, such as {\"42\": -100}", value));
    };
    at_most(&path, map.len(), MAX_BIASES, "entries")?;
    let mut biases = Vec::with_capacity(map.len());
    for (key, value) in map {
        let id = key.parse::<TokenId>().ok().filter(|id| (*id as usize) < vocab).ok_or_else(|| {
            let wanted = format!("keyed by token ids from \"0\" to \"{}\"", vocab.saturating_sub(1));
            wrong_value(&path, &wanted, &key.as_str().into())
        })?;
        let bias = value
            .as_f64()
            .filter(|bias| (-100.0..=100.0).contains(bias))
            .ok_or_else(|| wrong_value(&format!("{path}.{id}"), "a number from -100 to 100", value))?;
        biases.push((id, bias as f32));
    }
    biases.sort_unstable_by_key(|(id, _)| *id);
    if let Some(twice) = biases.windows(2).find(|pair| matches!(pair, [(a, _), (b, _)] if a == b)) {
        let problem = format!("names token {} twice", twice.iter().map(|(id, _)| *id).next().unwrap_or(0));
        return Err(FieldError::new(path, Fault::Value, problem));
    }
    Ok(biases)
}

/// How many choices; finished ones are never thrown away for better ones.
fn choices(fields: &mut Fields<'_>, shape: Shape) -> Result<Choices, FieldError> {
    if shape == Shape::Response {
        return Ok(Choices::default());
    }
    let n = fields.size("n", 1..=MAX_CHOICES)?.unwrap_or(1);
    let why = "no choice is made to be thrown away: ask for `n` choices with `logprobs`, and take the best";
    fields.neutral("best_of", &[json!(n)], why)?;
    Ok(Choices(n))
}

/// The likeliest tokens to tell of in each place: a number for completions, a flag and a number for chats and responses.
fn logprobs(fields: &mut Fields<'_>, shape: Shape) -> Result<Option<usize>, FieldError> {
    match shape {
        Shape::Completion => {
            fields.neutral("top_logprobs", &[json!(0)], "completions take their number by `logprobs`")?;
            if fields.value("logprobs") == Some(&Value::Bool(false)) {
                return Ok(None);
            }
            let about = "Log-probabilities, with so many of the likeliest tokens in each place.";
            fields.size(("logprobs", about), 0..=MAX_TOP_LOGPROBS)
        }
        Shape::Chat | Shape::Response => {
            let (wanted, problem) = match shape {
                Shape::Response => {
                    (included(fields)?, "needs `\"include\": [\"message.output_text.logprobs\"]`")
                }
                _ => (fields.flag("logprobs")?.unwrap_or(false), "needs `\"logprobs\": true`"),
            };
            let about = "Only with log-probabilities.";
            let top = fields.size(("top_logprobs", about), 0..=MAX_TOP_LOGPROBS)?;
            if !wanted && top.is_some_and(|top| top > 0) {
                return Err(fields.wrong("top_logprobs", problem));
            }
            Ok(wanted.then_some(top.unwrap_or(0)))
        }
    }
}

/// Whether `include` asks for log-probabilities. Reasoning is in the answer as text, which needs no encrypted form.
fn included(fields: &mut Fields<'_>) -> Result<bool, FieldError> {
    const LOGPROBS: &str = "message.output_text.logprobs";
    const ENCRYPTED: &str = "reasoning.encrypted_content";
    let path = fields.path("include");
    let mut wanted = false;
    for (i, value) in fields
        .list_of("include", || json!({"type": "string", "enum": [LOGPROBS, ENCRYPTED]}))?
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let path = format!("{path}[{i}]");
        match value.as_str() {
            Some(LOGPROBS) => wanted = true,
            Some(ENCRYPTED) => {}
            Some(_) => {
                let problem = format!("is not supported: only `{LOGPROBS}` can be had");
                return Err(FieldError::new(path, Fault::Unsupported, problem));
            }
            None => return Err(wrong_type(&path, "a string", value)),
        }
    }
    Ok(wanted)
}

fn min_tokens(fields: &mut Fields<'_>, most: Option<usize>) -> Result<usize, FieldError> {
    let least = fields
        .size(("min_tokens", "Tokens before stop tokens and stop strings count."), 0..=u32::MAX as usize)?
        .unwrap_or(0);
    match most {
        Some(most) if least > most => {
            let problem = format!("is {least}, more than the most tokens asked for, {most}");
            Err(fields.wrong("min_tokens", problem))
        }
        _ => Ok(least),
    }
}

fn max_new_tokens(fields: &mut Fields<'_>, shape: Shape, least: usize) -> Result<Option<usize>, FieldError> {
    if shape == Shape::Response {
        return fields.size("max_output_tokens", least..=usize::MAX);
    }
    let about = "Tokens of a choice at most.";
    let old = fields.size(("max_tokens", about), least..=usize::MAX)?;
    let new = fields.size(("max_completion_tokens", "The same, by its later name."), least..=usize::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            Err(fields.wrong("max_completion_tokens", "and `max_tokens` differ: give one of them"))
        }
        (old, new) => Ok(new.or(old)),
    }
}

fn stop(fields: &mut Fields<'_>) -> Result<Vec<String>, FieldError> {
    let path = fields.path("stop");
    let text = || json!({"type": "string"});
    let schema = || one_of([text(), json!({"type": "array", "items": text()})]);
    let stops = match fields.value_of(("stop", "Up to 16 strings of 1 to 256 bytes."), schema) {
        None => return Ok(Vec::new()),
        Some(Value::Array(stops)) => stops.iter().collect(),
        Some(stop) => vec![stop],
    };
    at_most(&path, stops.len(), MAX_STOPS, "strings")?;
    let wanted = format!("a string of 1 to {MAX_STOP_BYTES} bytes, or a list of such");
    stops
        .into_iter()
        .map(|stop| match stop {
            Value::String(text) if (1..=MAX_STOP_BYTES).contains(&text.len()) => Ok(text.clone()),
            Value::String(_) => Err(wrong_value(&path, &wanted, stop)),
            other => Err(wrong_type(&path, &wanted, other)),
        })
        .collect()
}

/// What documents say of a token id.
pub(super) fn token_id() -> Value {
    json!({"type": "integer", "format": "int32", "minimum": 0})
}

/// A list of at most `most` token ids below `vocab`.
///
/// # Errors
/// An entry is no such id, or there are too many.
pub fn token_ids(path: &str, ids: &[Value], vocab: usize, most: usize) -> Result<Vec<TokenId>, FieldError> {
    at_most(path, ids.len(), most, "token ids")?;
    let highest = vocab.saturating_sub(1) as u64;
    each(path, ids, |path, value| whole(&path, value, 0..=highest).map(|id| id as TokenId))
}

/// Reads both; responses have neither.
///
/// # Errors
/// One of them is wrong.
fn prompt_tokens(
    fields: &mut Fields<'_>,
    shape: Shape,
    bounds: &Bounds<'_>,
) -> Result<PromptTokens, FieldError> {
    const TRUNCATE: &str = "truncate_prompt_tokens";
    if shape == Shape::Response {
        return Ok(PromptTokens::default());
    }
    let about = "Whether the tokenizer adds its own tokens: for texts it does, if nothing is said, for chats it does not.";
    let add_special = fields.flag(("add_special_tokens", about))?;
    let about = "Of longer prompts so many tokens at the end are kept; -1: as many as there is room for.";
    let schema = || json!({"type": "integer", "format": "int64", "minimum": -1, "example": -1});
    let kept = match fields.value_of((TRUNCATE, about), schema) {
        None => Kept::All,
        Some(value) if value.as_i64() == Some(-1) => Kept::Fitting,
        Some(value) => {
            let wanted = format!("-1 or a whole number from 1 to {}", bounds.max_context);
            let most = value.as_u64().filter(|most| (1..=bounds.max_context as u64).contains(most));
            let wrong = if value.is_number() { wrong_value } else { wrong_type };
            Kept::Last(most.ok_or_else(|| wrong(&fields.path(TRUNCATE), &wanted, value))? as usize)
        }
    };
    Ok(PromptTokens { add_special, kept })
}

/// `prediction`: the text that a client expects to get back, or most of it, as when a file is edited. It is proposed where it fits, so that few
/// passes are needed; what comes is what would have come without it.
///
/// # Errors
/// It is not of the form `{"type": "content", "content": …}`.
fn prediction(fields: &mut Fields<'_>) -> Result<Option<String>, FieldError> {
    fields.within(("prediction", "The text that is expected, or most of it."), "Prediction", |prediction| {
        let kind = prediction.word("type", &["content"])?;
        required_as(kind, prediction, "type", "is missing: the only type is `content`")?;
        content(prediction)
    })
}

/// The tokens that may be drawn, a bit each; none if all may.
///
/// # Errors
/// It is no list of token ids, or an empty one.
fn allowed_tokens(fields: &mut Fields<'_>, vocab: usize) -> Result<Option<Arc<[u32]>>, FieldError> {
    let path = fields.path(ALLOWED);
    let list = fields.list_of((ALLOWED, "Token ids that alone may be drawn."), token_id)?;
    fields.tell(ALLOWED, || json!({"minItems": 1}));
    let Some(list) = list else { return Ok(None) };
    if list.is_empty() {
        return Err(FieldError::new(
            path,
            Fault::Value,
            "is an empty list, so that nothing could be written",
        ));
    }
    let mut bits = vec![0; vocab.div_ceil(32)];
    for id in token_ids(&path, list, vocab, vocab)? {
        // Ids are below `vocab`.
        if let Some(word) = bits.get_mut(id as usize / 32) {
            *word |= 1 << (id % 32);
        }
    }
    Ok(Some(bits.into()))
}

/// Texts of which no output is to have the tokens.
///
/// # Errors
/// It is no list of texts, or there are too many or too long ones.
fn bad_words(fields: &mut Fields<'_>) -> Result<Vec<String>, FieldError> {
    let path = fields.path(BAD_WORDS);
    let about = "Texts of which no output has the tokens, neither as they are nor with a space before them.";
    let list = fields.list_of((BAD_WORDS, about), || json!({"type": "string"}))?.unwrap_or_default();
    fields.tell(BAD_WORDS, || json!({"maxItems": MAX_BAD_WORDS}));
    at_most(&path, list.len(), MAX_BAD_WORDS, "words")?;
    let wanted = format!("a string of 1 to {MAX_BAD_WORD_BYTES} bytes that is not only white space");
    each(&path, list, |path, value| match value {
        Value::String(text) if text.len() <= MAX_BAD_WORD_BYTES && !text.trim().is_empty() => {
            Ok(text.clone())
        }
        Value::String(_) => Err(wrong_value(&path, &wanted, value)),
        other => Err(wrong_type(&path, &wanted, other)),
    })
}

/// Fields that mean something elsewhere: taken where they can change no text, refused where ignoring them would mislead.
/// `docs/requests.md` lists them.
///
/// # Errors
/// The first that asks for what is not offered.
fn elsewhere(fields: &mut Fields<'_>, shape: Shape) -> Result<(), FieldError> {
    taken(fields)?;
    fields.neutral("prompt_logprobs", &[], "use /v1/completions with `echo` and `logprobs`")?;
    fields.neutral("length_penalty", &[json!(1), json!(1.0)], "beam search is not offered")?;
    fields.neutral("use_beam_search", &[json!(false)], "beam search is not offered")?;
    fields.neutral("skip_special_tokens", &[json!(true)], "special tokens are always left out")?;
    fields.neutral("service_tier", &[json!("auto"), json!("default")], "there is one tier")?;
    fields.neutral("store", &[json!(false)], "nothing is stored")?;
    if shape == Shape::Response {
        let whole = "a response has no place for them: use /v1/chat/completions";
        fields.neutral("return_token_ids", &[json!(false)], whole)?;
    }
    of_routers(fields)
}

/// Words of who asks and what for. Prompts are found in the cache by what they say, whatever their key.
fn taken(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.text(("user", "Who asks; of no effect."))?;
    fields.text(("safety_identifier", "Of no effect."))?;
    fields.text(("prompt_cache_key", "Of no effect: prompts are found in the cache by what they say."))?;
    metadata(fields)
}

/// What routers add to every request they pass on.
fn of_routers(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.neutral("no_stop_trim", &[json!(false)], "use `include_stop_str_in_output`")?;
    fields.neutral("return_hidden_states", &[json!(false)], "hidden states are not offered")?;
    fields.neutral("stream_reasoning", &[json!(true), json!(false)], "it is streamed as it comes")
}

fn metadata(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let path = fields.path("metadata");
    let about = "Strings by name, 16 at most; of no effect, but that responses repeat them.";
    let schema = || json!({"type": "object", "example": {"a": "b"}});
    let pairs = match fields.value_of(("metadata", about), schema) {
        None => return Ok(()),
        Some(Value::Object(pairs)) => pairs,
        Some(other) => return Err(wrong_type(&path, "an object of strings", other)),
    };
    at_most(&path, pairs.len(), MAX_METADATA, "pairs")?;
    for (key, value) in pairs {
        let path = format!("{path}.{}", shortened(key, MAX_METADATA_KEY));
        let text = value.as_str().ok_or_else(|| wrong_type(&path, "a string", value))?;
        if key.chars().count() > MAX_METADATA_KEY || text.chars().count() > MAX_METADATA_VALUE {
            let problem = format!(
                "is too long: keys have {MAX_METADATA_KEY} characters at most, values {MAX_METADATA_VALUE}"
            );
            return Err(FieldError::new(path, Fault::Value, problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
