//! `usage` of an answer, and `metrics`, for who asked by `include_metrics`: what its sequences took, in vLLM's words for what vLLM tells too.

use std::time::Duration;

use faser_engine::Usage as Spent;
use faser_engine::survival::Source;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::text_sequence::Ending;

/// Cached tokens are told in steps of so many: told one by one they would let a client find out, token after token, how somebody else's prompt
/// goes on.
const CACHED_STEP: usize = 16;

/// `usage` of an answer.
#[derive(Serialize, ToSchema)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) total_tokens: u64,
    /// What of the prompt was in the cache, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(super) prompt_tokens_details: Option<Value>,
    /// How much of it is reasoning, and what became of the client's prediction, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    completion_tokens_details: Option<Value>,
}

impl Usage {
    /// Of so many tokens, of which nothing more is known.
    pub(super) fn counts(prompt_tokens: usize, completion_tokens: usize) -> Usage {
        Usage {
            prompt_tokens: prompt_tokens as u64,
            completion_tokens: completion_tokens as u64,
            total_tokens: (prompt_tokens + completion_tokens) as u64,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// Of a request: the sum over its sequences. Cached tokens are told when they are known of all; those of predictions of sequences
    /// whose device did not run ahead of the end of the text.
    pub(super) fn of<'e>(prompt_tokens: usize, endings: impl Iterator<Item = &'e Ending> + Clone) -> Usage {
        let completion_tokens = endings.clone().map(|ending| ending.output.len()).sum();
        let exact = |ending: &Ending| ending.usage.filter(|usage| usage.output_tokens <= ending.output.len());
        let (accepted, all) = endings.clone().filter_map(exact).fold((0, 0), |(accepted, all), usage| {
            let predicted = usage.by_source[Source::Prediction];
            (accepted + predicted.accepted, all + predicted.proposed)
        });
        let told = |usage: Spent| usage.cached_tokens / CACHED_STEP * CACHED_STEP;
        let cached: Option<usize> = endings.clone().map(|ending| ending.usage.map(told)).sum();
        let reasoning: Option<usize> = endings.map(|ending| ending.reasoning_tokens).sum();
        let mut details = Map::new();
        let mut tell = |name: &str, tokens: Option<usize>| {
            details.extend(tokens.map(|tokens| (name.to_owned(), tokens.into())));
        };
        tell("reasoning_tokens", reasoning);
        tell("accepted_prediction_tokens", (all > 0).then_some(accepted));
        tell("rejected_prediction_tokens", (all > 0).then_some(all - accepted));
        Usage {
            prompt_tokens_details: cached.map(|cached| json!({"cached_tokens": cached})),
            completion_tokens_details: (!details.is_empty()).then_some(details.into()),
            ..Usage::counts(prompt_tokens, completion_tokens)
        }
    }
}

/// Where the metrics of an answer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nobody asked.
    Nowhere,
    /// Beside `usage`, as there is one choice.
    Answer,
    /// In each choice, as there are several.
    Choices,
}

impl Place {
    /// Of an answer of so many choices.
    pub(super) fn of(asked: bool, choices: usize) -> Place {
        match (asked, choices) {
            (false, _) => Place::Nowhere,
            (true, 1) => Place::Answer,
            (true, _) => Place::Choices,
        }
    }

    /// They, if this is `here`; null if they are not known.
    pub(super) fn metrics(self, here: Place, ending: &Ending) -> Option<Value> {
        (self == here).then(|| ending.usage.as_ref().map_or(Value::Null, metrics))
    }
}

fn metrics(usage: &Spent) -> Value {
    let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
    let moments = &usage.moments;
    let between = |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
    let generation = between(moments.first_token, moments.last_token);
    let itl = generation.filter(|_| usage.output_tokens > 1);
    let itl = itl.map(|time| time.as_secs_f64() * 1e3 / (usage.output_tokens - 1) as f64);
    let worked = between(moments.admitted, moments.last_token).filter(|time| !time.is_zero());
    json!({
        "queue_time_ms": ms(moments.admitted),
        "time_to_first_token_ms": ms(between(moments.admitted, moments.first_token)),
        "generation_time_ms": ms(generation),
        "mean_itl_ms": itl,
        "tokens_per_second": worked.map(|time| usage.output_tokens as f64 / time.as_secs_f64()),
        "num_target_passes": usage.target_passes,
        "speculative_decoding": speculation(usage),
    })
}

fn speculation(usage: &Spent) -> Value {
    let ratio = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    let passes: u32 = usage.passes_by_accepted.iter().sum();
    let histogram: Vec<u32> = usage.passes_by_accepted.iter().copied().take(usage.longest + 1).collect();
    let source = |source| {
        let tried = usage.by_source[source];
        json!({"num_draft_tokens": tried.proposed, "num_accepted_draft_tokens": tried.accepted})
    };
    json!({
        "mean_acceptance_length": ratio(usage.accepted, passes as usize).map(|accepted| 1.0 + accepted),
        "draft_acceptance_rate": ratio(usage.accepted, usage.proposed),
        "acceptance_histogram": histogram,
        "num_spec_steps": passes,
        "num_accepted_draft_tokens": usage.accepted,
        "num_draft_tokens": usage.proposed,
        "num_spec_tokens": usage.longest,
        "sources": {
            "draft": source(Source::Draft), "text": source(Source::Text), "prediction": source(Source::Prediction),
            "suffix": source(Source::Suffix),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::{Moments, Tried};

    use crate::text_sequence::Finish;

    fn told(usage: Option<Spent>) -> Option<Value> {
        Place::Answer.metrics(
            Place::Answer,
            &Ending { finish: Finish::Stop, output: vec![1], reasoning_tokens: None, usage },
        )
    }

    #[test]
    fn figures_are_those_of_vllm() {
        let mut usage =
            Spent { output_tokens: 21, target_passes: 12, proposed: 30, accepted: 10, ..Spent::default() };
        usage.passes_by_accepted[..4].copy_from_slice(&[5, 1, 3, 1]);
        usage.by_source[Source::Text] = Tried { proposed: 6, accepted: 2 };
        usage.longest = 4;
        let at = |ms| Some(Duration::from_millis(ms));
        usage.moments = Moments { admitted: at(10), first_token: at(110), last_token: at(310) };
        let metrics = told(Some(usage)).unwrap();
        for (name, value) in [
            ("queue_time_ms", 10.0),
            ("time_to_first_token_ms", 100.0),
            ("generation_time_ms", 200.0),
            ("mean_itl_ms", 10.0),
            ("tokens_per_second", 70.0),
        ] {
            assert_eq!(metrics[name].as_f64(), Some(value), "{name}");
        }
        let speculation = &metrics["speculative_decoding"];
        assert_eq!(speculation["mean_acceptance_length"].as_f64(), Some(2.0));
        assert_eq!(speculation["draft_acceptance_rate"].as_f64(), Some(10.0 / 30.0));
        // Dense, up to the most that a pass had, whether any accepted as many or not.
        assert_eq!(speculation["acceptance_histogram"], json!([5, 1, 3, 1, 0]));
        assert_eq!(
            (&speculation["num_spec_steps"], &speculation["num_spec_tokens"]),
            (&json!(10), &json!(4))
        );
        assert_eq!(
            speculation["sources"]["text"],
            json!({"num_draft_tokens": 6, "num_accepted_draft_tokens": 2})
        );
    }

    #[test]
    fn cached_tokens_are_told_in_steps() {
        let ending = |cached_tokens| Ending {
            finish: Finish::Stop,
            output: vec![1],
            reasoning_tokens: None,
            usage: Some(Spent { cached_tokens, ..Spent::default() }),
        };
        for (cached, told) in [([0, 15], 0), ([16, 31], 32), ([127, 127], 224)] {
            let usage = Usage::of(128, cached.map(ending).iter());
            assert_eq!(usage.prompt_tokens_details, Some(json!({"cached_tokens": told})));
        }
    }

    #[test]
    fn what_has_not_been_is_null() {
        assert_eq!(told(None), Some(Value::Null));
        let nothing = told(Some(Spent::default())).unwrap();
        for name in ["queue_time_ms", "time_to_first_token_ms", "mean_itl_ms", "tokens_per_second"] {
            assert!(nothing[name].is_null(), "{name}");
        }
        let speculation = &nothing["speculative_decoding"];
        assert_eq!(speculation["acceptance_histogram"], json!([0]));
        assert!(
            speculation["mean_acceptance_length"].is_null() && speculation["draft_acceptance_rate"].is_null()
        );
        let ending = Ending { finish: Finish::Stop, output: vec![1], reasoning_tokens: None, usage: None };
        assert_eq!(Place::of(true, 3).metrics(Place::Answer, &ending), None);
        assert_eq!(Place::of(false, 1).metrics(Place::Answer, &ending), None);
    }
}
