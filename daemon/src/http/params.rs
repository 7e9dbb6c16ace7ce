//! The parameters that both completion endpoints take: ranges, and what is not offered.

use faser_actors::{MAX_TOP_LOGPROBS, Sampling};
use faser_engine::{Handling, TokenId};
use serde_json::{Value, json};

use super::answer::Shape;
use super::bounds::Bounds;
use super::elsewhere::elsewhere;
use super::format::{Form, form};
use super::prediction::prediction;
use super::prompt_tokens::{PromptTokens, prompt_tokens};
use super::speculation::handling;
use super::tools::ReadCalls;
use super::vocabulary::{allowed_tokens, bad_words};
use crate::fields::{Fault, FieldError, Fields, at_most, each, whole, wrong_type, wrong_value};
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
    /// Whether every token of output is told of.
    pub fn tells_tokens(&self) -> bool {
        self.usage_so_far || self.return_token_ids
    }

    /// How choice `number` of a prompt is drawn. The first has the request's seed, each other a seed of its own that follows from it.
    pub fn sampling_of(&self, number: usize) -> Sampling {
        let seed = self.sampling.seed;
        let seed = if number == 0 { seed } else { random::derived(seed, number as u64) };
        Sampling { seed, ..self.sampling.clone() }
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
        tokens_as_ids: fields.flag("return_tokens_as_token_ids")?.unwrap_or(false),
        min_tokens: min_tokens(fields, max_new_tokens)?,
        include_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
        stop: stop(fields)?,
        stop_tokens: match fields.list("stop_token_ids")? {
            Some(ids) => token_ids(&fields.path("stop_token_ids"), ids, vocab, MAX_STOP_TOKENS)?,
            None => Vec::new(),
        },
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        prediction: prediction(fields)?,
        handling: handling(fields, bounds.priorities)?,
        include_metrics: fields.flag("include_metrics")?.unwrap_or(false),
        return_token_ids: shape != Shape::Response && fields.flag("return_token_ids")?.unwrap_or(false),
        ..Parameters::default()
    };
    streaming(fields, shape, &mut parameters)?;
    check_form(fields, &parameters)?;
    Ok(parameters)
}

/// Refuses what would move the end of an output that has a form, or forbid tokens that it needs.
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
    parameters.stream = fields.flag("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else { return Ok(()) };
    if !parameters.stream {
        return Err(fields.wrong("stream_options", "needs `\"stream\": true`"));
    }
    if shape == Shape::Response {
        options.neutral("include_obfuscation", &[json!(false)], "nothing is obfuscated")?;
        return options.finish();
    }
    parameters.include_usage = options.flag("include_usage")?.unwrap_or(false);
    parameters.usage_so_far = options.flag("continuous_usage_stats")?.unwrap_or(false);
    options.finish()
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
    if value.is_none_or(|value| value > 0.0) {
        return Ok(value);
    }
    let wanted = format!("a number above 0, up to {most}");
    Err(fields.wrong_value(name, &wanted, &json!(0)))
}

/// 0, and -1 as others write it, is off.
fn top_k(fields: &mut Fields<'_>) -> Result<Option<u32>, FieldError> {
    let Some(value) = fields.value("top_k") else { return Ok(None) };
    if value.as_i64() == Some(-1) {
        return Ok(Some(0));
    }
    whole(&fields.path("top_k"), value, 0..=u64::from(u32::MAX)).map(|k| Some(k as u32))
}

/// Any 64-bit number, signed or not; a random one if absent.
fn seed(fields: &mut Fields<'_>) -> Result<u64, FieldError> {
    match fields.value("seed") {
        None => Ok(random::number()),
        Some(value) => value
            .as_u64()
            .or_else(|| value.as_i64().map(i64::cast_unsigned))
            .ok_or_else(|| fields.wrong_type("seed", "a whole number of 64 bits", value)),
    }
}

fn logit_bias(fields: &mut Fields<'_>, vocab: usize) -> Result<Vec<(TokenId, f32)>, FieldError> {
    let Some(value) = fields.value("logit_bias") else { return Ok(Vec::new()) };
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
            match fields.value("logprobs") {
                None | Some(Value::Bool(false)) => Ok(None),
                Some(_) => fields.size("logprobs", 0..=MAX_TOP_LOGPROBS),
            }
        }
        Shape::Chat | Shape::Response => {
            let (wanted, problem) = match shape {
                Shape::Response => {
                    (included(fields)?, "needs `\"include\": [\"message.output_text.logprobs\"]`")
                }
                _ => (fields.flag("logprobs")?.unwrap_or(false), "needs `\"logprobs\": true`"),
            };
            let top = fields.size("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
            if !wanted && top.is_some_and(|top| top > 0) {
                return Err(fields.wrong("top_logprobs", problem));
            }
            Ok(wanted.then_some(top.unwrap_or(0)))
        }
    }
}

/// Whether `include` asks for log-probabilities. Reasoning that nobody tells from the text needs no encrypted form either.
fn included(fields: &mut Fields<'_>) -> Result<bool, FieldError> {
    const LOGPROBS: &str = "message.output_text.logprobs";
    let path = fields.path("include");
    let mut wanted = false;
    for (i, value) in fields.list("include")?.unwrap_or_default().iter().enumerate() {
        let path = format!("{path}[{i}]");
        match value.as_str() {
            Some(LOGPROBS) => wanted = true,
            Some("reasoning.encrypted_content") => {}
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
    let least = fields.size("min_tokens", 0..=u32::MAX as usize)?.unwrap_or(0);
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
    let old = fields.size("max_tokens", least..=usize::MAX)?;
    let new = fields.size("max_completion_tokens", least..=usize::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            Err(fields.wrong("max_completion_tokens", "and `max_tokens` differ: give one of them"))
        }
        (old, new) => Ok(new.or(old)),
    }
}

fn stop(fields: &mut Fields<'_>) -> Result<Vec<String>, FieldError> {
    let path = fields.path("stop");
    let stops = match fields.value("stop") {
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

/// A list of at most `most` token ids below `vocab`.
///
/// # Errors
/// An entry is no such id, or there are too many.
pub fn token_ids(path: &str, ids: &[Value], vocab: usize, most: usize) -> Result<Vec<TokenId>, FieldError> {
    at_most(path, ids.len(), most, "token ids")?;
    let highest = vocab.saturating_sub(1) as u64;
    each(path, ids, |path, value| whole(&path, value, 0..=highest).map(|id| id as TokenId))
}

#[cfg(test)]
mod tests;
