//! What a request may ask for, and what is refused by name.

use faser_models::GenerationDefaults;

use super::*;
use crate::TemplateReads;

const BOUNDS: Bounds<'static> = Bounds {
    calls: None,
    template: TemplateReads { tools: false, reasoning_effort: false, verbosity: false },
    ..Bounds::EVERYTHING
};

fn read(body: &Value) -> Result<Parameters, FieldError> {
    read_as(body, Shape::Completion)
}

fn read_as(body: &Value, shape: Shape) -> Result<Parameters, FieldError> {
    let mut fields = Fields::new("", body)?;
    let read = parameters(&mut fields, &BOUNDS, shape, false)?;
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

/// What a model's authors say is what a request begins with; its own fields win.
#[test]
fn absent_fields_take_what_the_models_authors_say() {
    let defaults = GenerationDefaults {
        temperature: Some(0.6),
        top_p: Some(0.95),
        top_k: Some(20),
        min_p: Some(0.1),
        repetition_penalty: Some(1.05),
    };
    let read = |body: &Value| {
        let bounds = Bounds { defaults, ..BOUNDS };
        parameters(&mut Fields::new("", body).unwrap(), &bounds, Shape::Chat, false).unwrap().sampling
    };
    let told = |s: Sampling| (s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty);
    assert_eq!(told(read(&json!({}))), (0.6, 0.95, 20, 0.1, 1.05));
    let own = json!({"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1});
    assert_eq!(told(read(&own)), (0.0, 1.0, 0, 0.0, 1.0));
}

#[test]
fn every_field_arrives() {
    let read = read(&json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
        "presence_penalty": -1, "frequency_penalty": 2, "logit_bias": {"7": -100, "3": 1.5}, "seed": -1,
        "max_completion_tokens": 12, "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true,
        "speculation": {"k_max": 0}, "priority": 3, "include_metrics": true, "stream": true, "stream_options": {"include_usage": true}, "user": "me",
        "n": 3, "best_of": 3, "logprobs": 5, "min_tokens": 4, "include_stop_str_in_output": true, "return_tokens_as_token_ids": true,
        "prediction": {"type": "content", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}]},
        "allowed_token_ids": [0, 33, 999], "bad_words": [" bad", "word"], "add_special_tokens": false, "truncate_prompt_tokens": 7,
        "return_token_ids": true,
    }))
    .unwrap();
    let mut allowed = [0; 32];
    (allowed[0], allowed[1], allowed[31]) = (1, 2, 1 << 7);
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
        allowed: Some(allowed.into()),
        ..Sampling::default()
    };
    let wanted = Parameters {
        model: String::new(),
        sampling,
        max_new_tokens: Some(12),
        stop: vec!["a".into(), "b".into()],
        stop_tokens: vec![5],
        ignore_eos: true,
        prediction: Some("two\nparts".to_owned()),
        handling: Handling { k_max: Some(0), priority: 3, ..Handling::default() },
        include_metrics: true,
        stream: true,
        include_usage: true,
        n: Choices(3),
        calls: None,
        form: None,
        bad_words: vec![" bad".into(), "word".into()],
        prompt_tokens: PromptTokens { add_special: Some(false), kept: Kept::Last(7) },
        usage_so_far: false,
        return_token_ids: true,
        logprobs: Some(5),
        tokens_as_ids: true,
        min_tokens: 4,
        include_stop: true,
        resume: None,
        reasoning_in_text: false,
    };
    assert_eq!(read, wanted);
}

#[test]
fn what_a_client_has_of_an_output_arrives() {
    let resume = |body: Value| read(&body).unwrap().resume;
    let with_tokens = json!({"seed": 1, "resume": {"token_ids": [7, 8], "choice": 3}});
    let wanted = Resume { received: Received::Tokens(vec![7, 8]), choice: 3 };
    assert_eq!(resume(with_tokens), Some(wanted));
    // Greedy: there is no seed to know.
    let with_text = json!({"temperature": 0, "resume": {"text": "a"}});
    assert_eq!(resume(with_text), Some(Resume { received: Received::Text("a".into()), choice: 0 }));
    assert_eq!(resume(json!({"resume": null})), None);
}

#[test]
fn what_means_nothing_is_taken() {
    for body in [
        json!({"n": 1, "best_of": 1, "logprobs": null, "top_logprobs": 0, "response_format": {"type": "text"}}),
        json!({"top_k": -1, "stop": null, "seed": null, "temperature": null, "max_tokens": 3, "max_completion_tokens": 3}),
        json!({"logprobs": false, "stop": "x", "stream": false, "service_tier": "auto", "store": false}),
        json!({"metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "me", "user": "me"}),
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
        (json!({"include_metrics": 1}), "include_metrics", Fault::Type),
        (json!({"stream_options": {"include_usage": true}}), "stream_options", Fault::Value),
        (json!({"metadata": {"a": 1}}), "metadata.a", Fault::Type),
        (json!({"prompt_cache_key": 1}), "prompt_cache_key", Fault::Type),
        (json!({"allowed_token_ids": []}), "allowed_token_ids", Fault::Value),
        (json!({"allowed_token_ids": [1, 1000]}), "allowed_token_ids[1]", Fault::Value),
        (json!({"allowed_token_ids": [1], "guided_regex": "a"}), "allowed_token_ids", Fault::Value),
        (json!({"bad_words": "x"}), "bad_words", Fault::Type),
        (json!({"bad_words": ["x", " "]}), "bad_words[1]", Fault::Value),
        (json!({"bad_words": vec!["x"; 129]}), "bad_words", Fault::Value),
        (json!({"bad_words": ["x"], "guided_regex": "a"}), "bad_words", Fault::Value),
        (json!({"truncate_prompt_tokens": 0}), "truncate_prompt_tokens", Fault::Value),
        (json!({"truncate_prompt_tokens": -2}), "truncate_prompt_tokens", Fault::Value),
        (json!({"truncate_prompt_tokens": 513}), "truncate_prompt_tokens", Fault::Value),
        (json!({"cache_salt": ""}), "cache_salt", Fault::Value),
        (json!({"cache_salt": 1}), "cache_salt", Fault::Type),
        (json!({"n": 0}), "n", Fault::Value),
        (json!({"n": 17}), "n", Fault::Value),
        (json!({"n": 2, "best_of": 4}), "best_of", Fault::Unsupported),
        (json!({"min_tokens": 3, "max_tokens": 2}), "min_tokens", Fault::Value),
        (json!({"prompt_logprobs": 1}), "prompt_logprobs", Fault::Unsupported),
        (json!({"best_of": 3}), "best_of", Fault::Unsupported),
        (json!({"logprobs": 21}), "logprobs", Fault::Value),
        (json!({"logprobs": true}), "logprobs", Fault::Type),
        (json!({"top_logprobs": 3}), "top_logprobs", Fault::Unsupported),
        (json!({"response_format": {"type": "xml"}}), "response_format.type", Fault::Value),
        (json!({"guided_regex": "a", "ignore_eos": true}), "ignore_eos", Fault::Value),
        (json!({"guided_regex": "a", "min_tokens": 1}), "min_tokens", Fault::Value),
        (json!({"prediction": "text"}), "prediction", Fault::Type),
        (json!({"prediction": {"content": "text"}}), "prediction.type", Fault::Missing),
        (json!({"prediction": {"type": "content"}}), "prediction.content", Fault::Missing),
        (
            json!({"prediction": {"type": "content", "content": "x", "more": 1}}),
            "prediction.more",
            Fault::Unknown,
        ),
        (json!({"temprature": 1}), "temprature", Fault::Unknown),
    ] {
        let err = read(&body).expect_err("this has to be refused");
        assert_eq!((err.path.as_str(), err.fault), (path, fault), "{body}: {err}");
    }
}

#[test]
fn chats_ask_for_log_probabilities_by_a_flag() {
    for (body, wanted) in [
        (json!({"logprobs": true}), Some(0)),
        (json!({"logprobs": true, "top_logprobs": 20}), Some(20)),
        (json!({"logprobs": false, "top_logprobs": 0}), None),
        (json!({}), None),
    ] {
        assert_eq!(read_as(&body, Shape::Chat).map(|read| read.logprobs), Ok(wanted), "{body}");
    }
    for (body, path) in [
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logprobs": 3}), "logprobs"),
    ] {
        let refused = read_as(&body, Shape::Chat).expect_err("this has to be refused");
        assert_eq!(refused.path, path, "{body}: {refused}");
    }
}

#[test]
fn each_choice_has_a_seed_of_its_own_and_the_first_that_of_the_request() {
    let read = read(&json!({"seed": 7, "n": 16})).unwrap();
    let seeds: Vec<u64> = (0..16).map(|number| read.sampling_of(number).seed).collect();
    assert_eq!(seeds[0], 7);
    let mut apart = seeds.clone();
    apart.sort_unstable();
    apart.dedup();
    assert_eq!(apart.len(), 16);
    assert_eq!(seeds[3], read.sampling_of(3).seed);
}

#[test]
fn no_token_at_all_may_be_asked_for_where_the_prompt_is_repeated() {
    let body = json!({"max_tokens": 0});
    let mut fields = Fields::new("", &body).unwrap();
    let read = parameters(&mut fields, &BOUNDS, Shape::Completion, true).unwrap();
    assert_eq!(read.max_new_tokens, Some(0));
}

#[test]
fn the_last_tokens_are_kept() {
    let kept = |kept: Kept| kept.of(&[1, 2, 3, 4], 8, 6).map(|ids| ids.to_vec());
    assert_eq!([kept(Kept::All), kept(Kept::Last(4)), kept(Kept::Last(9))], [None, None, None]);
    assert_eq!(kept(Kept::Last(1)), Some(vec![4]));
    assert_eq!(kept(Kept::Fitting), Some(vec![3, 4]));
    assert_eq!(Kept::Fitting.of(&[1, 2], 8, 9).map(|ids| ids.to_vec()), Some(vec![2]));
}
