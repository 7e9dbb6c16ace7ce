//! The parameters that both completion endpoints take: ranges, and what is not offered.

use faser_actors::Sampling;
use faser_engine::{K_LIMIT, TokenId};
use serde_json::{Value, json};

use crate::fields::{Fault, FieldError, Fields, whole, wrong_type, wrong_value};
use crate::random;

/// Stop strings of a request at most, and bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Stop tokens of a request at most.
const MAX_STOP_TOKENS: usize = 64;
/// Entries of `logit_bias` at most.
const MAX_BIASES: usize = 1024;

/// How a request wants its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_new_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Tokens that end the sequence beside the model's own.
    pub stop_tokens: Vec<TokenId>,
    /// Whether the model's own end tokens are ordinary ones.
    pub ignore_eos: bool,
    /// Cap on the speculative length.
    pub k_max: Option<usize>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a stream ends with its usage.
    pub include_usage: bool,
}

/// Reads them; `vocab` bounds token ids.
///
/// # Errors
/// The first field that is of the wrong type, out of range, or not offered.
pub fn parameters(fields: &mut Fields<'_>, vocab: usize) -> Result<Parameters, FieldError> {
    refuse_unsupported(fields)?;
    let (stream, include_usage) = streaming(fields)?;
    fields.text("user")?;
    Ok(Parameters {
        sampling: sampling(fields, vocab)?,
        max_new_tokens: max_new_tokens(fields)?,
        stop: stop(fields)?,
        stop_tokens: match fields.list("stop_token_ids")? {
            Some(ids) => token_ids(&fields.path("stop_token_ids"), ids, vocab, MAX_STOP_TOKENS)?,
            None => Vec::new(),
        },
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        k_max: speculation(fields)?,
        stream,
        include_usage,
    })
}

/// Fields of other servers: taken only with the value that means the same as leaving them out.
fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let one = [json!(1)];
    fields.neutral("n", &one, "each request gets one choice; send it again with another seed")?;
    fields.neutral("best_of", &one, "each request gets one choice")?;
    fields.neutral("logprobs", &[json!(false)], "log-probabilities are not offered")?;
    fields.neutral("top_logprobs", &[json!(0)], "log-probabilities are not offered")?;
    fields.neutral("prompt_logprobs", &[], "log-probabilities are not offered")?;
    fields.neutral(
        "response_format",
        &[json!({"type": "text"})],
        "the only format is {\"type\": \"text\"}",
    )?;
    fields.neutral("prediction", &[], "predicted outputs are not offered")?;
    fields.neutral("min_tokens", &[json!(0)], "a least number of tokens is not offered")?;
    fields.neutral("length_penalty", &[json!(1), json!(1.0)], "beam search is not offered")?;
    fields.neutral("use_beam_search", &[json!(false)], "beam search is not offered")?;
    fields.neutral("skip_special_tokens", &[json!(true)], "special tokens are always left out")?;
    fields.neutral("include_stop_str_in_output", &[json!(false)], "stop strings are always left out")?;
    fields.neutral("service_tier", &[json!("auto"), json!("default")], "there is one tier")?;
    fields.neutral("store", &[json!(false)], "nothing is stored")?;
    fields.neutral("metadata", &[json!({})], "nothing is stored")?;
    refuse_routers(fields)
}

/// What routers add to every request they pass on.
fn refuse_routers(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.neutral("no_stop_trim", &[json!(false)], "stop strings are always left out")?;
    fields.neutral("return_hidden_states", &[json!(false)], "hidden states are not offered")?;
    fields.neutral("continue_final_message", &[json!(false)], "an answer is always a new message")?;
    let split = "reasoning is not told from the rest of the text";
    fields.neutral("separate_reasoning", &[json!(true), json!(false)], split)?;
    fields.neutral("stream_reasoning", &[json!(true), json!(false)], split)
}

fn streaming(fields: &mut Fields<'_>) -> Result<(bool, bool), FieldError> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else { return Ok((stream, false)) };
    if !stream {
        let problem = "needs `\"stream\": true`";
        return Err(FieldError::new(fields.path("stream_options"), Fault::Value, problem));
    }
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    options.neutral("continuous_usage_stats", &[json!(false)], "usage comes once, at the end")?;
    options.finish()?;
    Ok((stream, include_usage))
}

fn sampling(fields: &mut Fields<'_>, vocab: usize) -> Result<Sampling, FieldError> {
    let real = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
    Ok(Sampling {
        temperature: real(fields.number("temperature", 0.0..=2.0)?, 1.0),
        top_k: top_k(fields)?,
        top_p: positive(fields, "top_p", 1.0)?,
        min_p: real(fields.number("min_p", 0.0..=1.0)?, 0.0),
        repetition_penalty: positive(fields, "repetition_penalty", 10.0)?,
        presence_penalty: real(fields.number("presence_penalty", -2.0..=2.0)?, 0.0),
        frequency_penalty: real(fields.number("frequency_penalty", -2.0..=2.0)?, 0.0),
        logit_bias: logit_bias(fields, vocab)?,
        seed: seed(fields)?,
    })
}

/// A number above 0, up to `most`; 1 if absent, which is without effect for the fields that come here.
fn positive(fields: &mut Fields<'_>, name: &'static str, most: f64) -> Result<f32, FieldError> {
    let value = fields.number(name, 0.0..=most)?.unwrap_or(1.0) as f32;
    if value > 0.0 {
        return Ok(value);
    }
    let wanted = format!("a number above 0, up to {most}");
    Err(wrong_value(&fields.path(name), &wanted, &json!(0)))
}

/// 0, and -1 as others write it, is off.
fn top_k(fields: &mut Fields<'_>) -> Result<u32, FieldError> {
    match fields.value("top_k") {
        None => Ok(0),
        Some(value) if value.as_i64() == Some(-1) => Ok(0),
        Some(value) => whole(&fields.path("top_k"), value, 0..=u64::from(u32::MAX)).map(|k| k as u32),
    }
}

/// Any 64-bit number, signed or not; a random one if absent.
fn seed(fields: &mut Fields<'_>) -> Result<u64, FieldError> {
    match fields.value("seed") {
        None => Ok(random::number()),
        Some(value) => value
            .as_u64()
            .or_else(|| value.as_i64().map(i64::cast_unsigned))
            .ok_or_else(|| wrong_type(&fields.path("seed"), "a whole number of 64 bits", value)),
    }
}

fn logit_bias(fields: &mut Fields<'_>, vocab: usize) -> Result<Vec<(TokenId, f32)>, FieldError> {
    let Some(value) = fields.value("logit_bias") else { return Ok(Vec::new()) };
    let path = fields.path("logit_bias");
    let Value::Object(map) = value else {
        return Err(wrong_type(&path, "an object of token ids and numbers, such as {\"42\": -100}", value));
    };
    if map.len() > MAX_BIASES {
        let problem = format!("has {} entries; {MAX_BIASES} are taken at most", map.len());
        return Err(FieldError::new(path, Fault::Value, problem));
    }
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

fn max_new_tokens(fields: &mut Fields<'_>) -> Result<Option<usize>, FieldError> {
    let old = fields.size("max_tokens", 1..=usize::MAX)?;
    let new = fields.size("max_completion_tokens", 1..=usize::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let problem = "and `max_tokens` differ: give one of them";
            Err(FieldError::new(fields.path("max_completion_tokens"), Fault::Value, problem))
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
    if stops.len() > MAX_STOPS {
        let problem = format!("has {} strings; {MAX_STOPS} are taken at most", stops.len());
        return Err(FieldError::new(path, Fault::Value, problem));
    }
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

fn speculation(fields: &mut Fields<'_>) -> Result<Option<usize>, FieldError> {
    let Some(mut fields) = fields.object("speculation")? else { return Ok(None) };
    let k_max = fields.size("k_max", 0..=K_LIMIT)?;
    fields.finish()?;
    Ok(k_max)
}

/// A list of at most `most` token ids below `vocab`.
///
/// # Errors
/// An entry is no such id, or there are too many.
pub fn token_ids(path: &str, ids: &[Value], vocab: usize, most: usize) -> Result<Vec<TokenId>, FieldError> {
    if ids.len() > most {
        let problem = format!("has {} token ids; {most} are taken at most", ids.len());
        return Err(FieldError::new(path, Fault::Value, problem));
    }
    let highest = vocab.saturating_sub(1) as u64;
    let id = |(i, value)| whole(&format!("{path}[{i}]"), value, 0..=highest).map(|id| id as TokenId);
    ids.iter().enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Parameters, FieldError> {
        let mut fields = Fields::new("", body)?;
        let read = parameters(&mut fields, 1000)?;
        fields.finish()?;
        Ok(read)
    }

    #[test]
    fn absent_fields_take_the_defaults_of_the_openai_api() {
        let read = read(&json!({})).unwrap();
        let wanted = Parameters {
            sampling: Sampling { seed: read.sampling.seed, ..Sampling::default() },
            ..Parameters::default()
        };
        assert_eq!(read, wanted);
        assert_eq!(read.sampling.temperature, 1.0);
    }

    #[test]
    fn every_field_arrives() {
        let read = read(&json!({
            "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
            "presence_penalty": -1, "frequency_penalty": 2, "logit_bias": {"7": -100, "3": 1.5}, "seed": -1,
            "max_completion_tokens": 12, "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true,
            "speculation": {"k_max": 0}, "stream": true, "stream_options": {"include_usage": true}, "user": "me",
        }))
        .unwrap();
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            repetition_penalty: 1.1,
            presence_penalty: -1.0,
            frequency_penalty: 2.0,
            logit_bias: vec![(3, 1.5), (7, -100.0)],
            seed: u64::MAX,
        };
        let wanted = Parameters {
            sampling,
            max_new_tokens: Some(12),
            stop: vec!["a".into(), "b".into()],
            stop_tokens: vec![5],
            ignore_eos: true,
            k_max: Some(0),
            stream: true,
            include_usage: true,
        };
        assert_eq!(read, wanted);
    }

    #[test]
    fn what_means_nothing_is_taken() {
        for body in [
            json!({"n": 1, "best_of": 1, "logprobs": null, "top_logprobs": 0, "response_format": {"type": "text"}}),
            json!({"top_k": -1, "stop": null, "seed": null, "temperature": null, "max_tokens": 3, "max_completion_tokens": 3}),
            json!({"logprobs": false, "stop": "x", "stream": false, "service_tier": "auto", "store": false, "metadata": {}}),
        ] {
            assert!(read(&body).is_ok(), "{body}: {:?}", read(&body));
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (body, path, fault) in [
            (json!({"temperature": 2.1}), "temperature", Fault::Value),
            (json!({"temperature": -0.1}), "temperature", Fault::Value),
            (json!({"temperature": "hot"}), "temperature", Fault::Type),
            (json!({"top_p": 0}), "top_p", Fault::Value),
            (json!({"top_p": 1.01}), "top_p", Fault::Value),
            (json!({"top_k": -2}), "top_k", Fault::Value),
            (json!({"min_p": 1.5}), "min_p", Fault::Value),
            (json!({"repetition_penalty": 0}), "repetition_penalty", Fault::Value),
            (json!({"presence_penalty": 2.5}), "presence_penalty", Fault::Value),
            (json!({"logit_bias": [1]}), "logit_bias", Fault::Type),
            (json!({"logit_bias": {"1000": 1}}), "logit_bias", Fault::Value),
            (json!({"logit_bias": {"x": 1}}), "logit_bias", Fault::Value),
            (json!({"logit_bias": {"1": 101}}), "logit_bias.1", Fault::Value),
            (json!({"logit_bias": {"1": 1, "01": 1}}), "logit_bias", Fault::Value),
            (json!({"seed": 1.5}), "seed", Fault::Type),
            (json!({"max_tokens": 0}), "max_tokens", Fault::Value),
            (json!({"max_tokens": -1}), "max_tokens", Fault::Value),
            (json!({"max_tokens": 1, "max_completion_tokens": 2}), "max_completion_tokens", Fault::Value),
            (json!({"stop": ""}), "stop", Fault::Value),
            (json!({"stop": [1]}), "stop", Fault::Type),
            (json!({"stop": vec!["x"; 17]}), "stop", Fault::Value),
            (json!({"stop_token_ids": [1000]}), "stop_token_ids[0]", Fault::Value),
            (json!({"speculation": {"k_max": 17}}), "speculation.k_max", Fault::Value),
            (json!({"speculation": {"kmax": 1}}), "speculation.kmax", Fault::Unknown),
            (json!({"speculation": 4}), "speculation", Fault::Type),
            (json!({"stream_options": {"include_usage": true}}), "stream_options", Fault::Value),
            (json!({"n": 2}), "n", Fault::Unsupported),
            (json!({"best_of": 3}), "best_of", Fault::Unsupported),
            (json!({"logprobs": 0}), "logprobs", Fault::Unsupported),
            (json!({"logprobs": true}), "logprobs", Fault::Unsupported),
            (json!({"response_format": {"type": "json_object"}}), "response_format", Fault::Unsupported),
            (json!({"prediction": {"type": "content"}}), "prediction", Fault::Unsupported),
            (json!({"temprature": 1}), "temprature", Fault::Unknown),
        ] {
            let err = read(&body).expect_err("this has to be refused");
            assert_eq!((err.path.as_str(), err.fault), (path, fault), "{body}: {err}");
        }
    }
}
