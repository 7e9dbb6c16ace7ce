//! Outputs of a given form: every output of random schemas is valid by a checker of the test's own, with and without speculation.

use super::*;

/// A small generator of random numbers (xorshift), so that a case is its seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A schema whose values are short, so that any output comes to its end.
    fn schema(&mut self, depth: u64) -> Value {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => json!({"type": "boolean"}),
            1 => json!({"type": "null"}),
            2 => {
                let minimum = self.below(50) as i64 - 25;
                json!({"type": "integer", "minimum": minimum, "maximum": minimum + self.below(500) as i64})
            }
            3 => json!({"type": "string", "minLength": self.below(3), "maxLength": 2 + self.below(4)}),
            4 => json!({"enum": ["red", "green", 7, null, "\"quoted\" \u{e9}"]}),
            5 => json!({"const": format!("the constant {}", self.below(100))}),
            6 => {
                let most = 1 + self.below(3);
                json!({"type": "array", "items": self.schema(depth - 1), "minItems": self.below(most), "maxItems": most})
            }
            7 => json!({"anyOf": [self.schema(depth - 1), self.schema(depth - 1)]}),
            _ => self.object(depth - 1),
        }
    }

    pub(super) fn object(&mut self, depth: u64) -> Value {
        let names = ["id", "name", "tags", "is it?", "länge"];
        let count = 1 + self.below(4) as usize;
        let properties: serde_json::Map<String, Value> =
            names[..count].iter().map(|name| ((*name).to_owned(), self.schema(depth))).collect();
        let required: Vec<&str> = names[..count].iter().copied().filter(|_| self.below(3) > 0).collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }
}

/// Whether a value is valid, for the schemas above.
pub(super) fn valid(schema: &Value, value: &Value) -> bool {
    let number = |key: &str| schema[key].as_i64();
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| valid(schema, value));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    if let Some(only) = schema.get("const") {
        return only == value;
    }
    let length_fits = |length: usize, least: &str, most: &str| {
        let length = length as i64;
        number(least).is_none_or(|least| length >= least) && number(most).is_none_or(|most| length <= most)
    };
    match schema["type"].as_str() {
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("integer") => value.as_i64().is_some_and(|value| {
            number("minimum").is_some_and(|least| value >= least)
                && number("maximum").is_some_and(|most| value <= most)
        }),
        Some("string") => {
            value.as_str().is_some_and(|text| length_fits(text.chars().count(), "minLength", "maxLength"))
        }
        Some("array") => value.as_array().is_some_and(|items| {
            length_fits(items.len(), "minItems", "maxItems")
                && items.iter().all(|item| valid(&schema["items"], item))
        }),
        Some("object") => value.as_object().is_some_and(|map| {
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| map.contains_key(name.as_str().unwrap()))
                && map.iter().all(|(name, value)| {
                    schema["properties"].get(name).is_some_and(|schema| valid(schema, value))
                })
        }),
        other => panic!("a schema of type {other:?}"),
    }
}

#[actix_web::test]
async fn outputs_of_two_hundred_random_schemas_are_valid() {
    const SCHEMAS: u64 = 200;
    let (client, served) = client_of!(daemon("scheduler: {max_context: 1024}\n"));
    let random = &mut Random(0x5eed_1234);
    let (mut tokens, mut same) = (0, 0);
    for number in 0..SCHEMAS {
        let schema = random.object(2);
        let format =
            json!({"type": "json_schema", "json_schema": {"name": "case", "schema": schema, "strict": true}});
        let body = json!({
            "prompt": format!("case {number}"), "max_tokens": 900, "seed": number, "temperature": random.below(3) as f64 / 2.0,
            "response_format": format,
        });
        let (status, answer) = post!(client, "/v1/completions", body);
        assert_eq!(status, StatusCode::OK, "{schema}: {answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{schema}: {answer}");
        let value: Value =
            serde_json::from_str(text_of(&answer)).unwrap_or_else(|err| panic!("{err}: {answer}"));
        assert!(valid(&schema, &value), "{value} is not of {schema}");
        tokens += answer["usage"]["completion_tokens"].as_u64().unwrap();
        if number % 10 == 0 {
            let mut plain = body.clone();
            plain["speculation"] = json!({"k_max": 0});
            let (_, plain) = post!(client, "/v1/completions", plain);
            assert_eq!(plain["choices"], answer["choices"]);
            same += 1;
        }
    }
    let totals = served.service.view().totals;
    println!(
        "{SCHEMAS} schemas, {tokens} tokens, {same} the same without speculation; {} of {} proposals accepted, {} target passes",
        totals.accepted_tokens, totals.draft_tokens, totals.target_passes
    );
    assert!(totals.accepted_tokens > 0);
    close(&served).await;
}

#[actix_web::test]
async fn every_kind_of_form_is_followed_whole_and_streamed() {
    let (client, served) = client_of!(daemon("scheduler: {max_context: 512}\n"));
    for (form, fits) in [
        (json!({"guided_choice": ["yes", "no", "perhaps, perhaps not"]}), "^(yes|no|perhaps, perhaps not)$"),
        (json!({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2,4}"}}), "^[a-f]{3}-[0-9]{2,4}$"),
        (json!({"guided_grammar": "start: \"<\" /[a-z]{1,5}/ \">\""}), "^<[a-z]{1,5}>$"),
    ] {
        let mut body = with(&json!({"prompt": "x", "max_tokens": 60, "seed": 4, "n": 3}), &form);
        let answer = ok!(client, "/v1/completions", body);
        let matcher = matches(fits);
        for choice in answer["choices"].as_array().unwrap() {
            assert!(matcher(choice["text"].as_str().unwrap()), "{choice} is not of {form}");
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
        }
        body["stream"] = json!(true);
        let (_, streamed) = post!(client, "/v1/completions", body);
        for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
            let events = events(&streamed);
            let of = events.iter().map(|event| &event["choices"][0]).filter(|c| c["index"] == json!(index));
            let text: String = of.filter_map(|choice| choice["text"].as_str()).collect();
            assert_eq!(json!(text), choice["text"]);
        }
    }
    for (form, code, param) in [
        (json!({"guided_regex": "("}), "invalid_grammar", "guided_regex"),
        (
            json!({"structured_outputs": {"grammar": "start: x"}}),
            "invalid_grammar",
            "structured_outputs.grammar",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}}),
            "invalid_grammar",
            "response_format",
        ),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "invalid_value", "guided_choice"),
    ] {
        let body = with(&json!({"prompt": "x"}), &form);
        let (status, answer) = post!(client, "/v1/completions", body);
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(code)), "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
    close(&served).await;
}

/// The patterns above, by hand.
fn matches(pattern: &str) -> impl Fn(&str) -> bool {
    move |text| match pattern.as_bytes()[1] {
        b'(' => ["yes", "no", "perhaps, perhaps not"].contains(&text),
        b'[' => text.split_once('-').is_some_and(|(word, digits)| {
            word.len() == 3
                && word.bytes().all(|byte| (b'a'..=b'f').contains(&byte))
                && (2..=4).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_digit())
        }),
        _ => text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).is_some_and(|word| {
            (1..=5).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase())
        }),
    }
}
