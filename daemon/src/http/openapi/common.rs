//! What completions, chats and responses take in common.

use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::Object;

use super::words::{FormatType, Mode, PredictionType, TextPartType};

/// Fields of all three.
#[derive(Serialize, ToSchema)]
pub(super) struct Common {
    /// A name of the model; without one it is the server's own.
    #[schema(example = "m")]
    model: Option<String>,
    /// Whether the answer comes as server-sent events.
    stream: Option<bool>,
    /// Who asks; of no effect.
    user: Option<String>,
    /// Of no effect.
    safety_identifier: Option<String>,
    /// Of no effect: prompts are found in the cache by what they say.
    prompt_cache_key: Option<String>,
    /// Strings by name, 16 at most; of no effect, but that responses repeat them.
    #[schema(example = json!({"a": "b"}))]
    metadata: Option<Object>,
    /// Cached prompts are shared with requests of the same salt alone.
    #[schema(min_length = 1, max_length = 1024)]
    cache_salt: Option<String>,
    #[schema(minimum = 0, maximum = 2)]
    temperature: Option<f64>,
    /// 0 and -1: off.
    #[schema(minimum = -1)]
    top_k: Option<i64>,
    #[schema(exclusive_minimum = 0, maximum = 1, example = 0.9)]
    top_p: Option<f64>,
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f64>,
    #[schema(exclusive_minimum = 0, maximum = 10, example = 1.1)]
    repetition_penalty: Option<f64>,
    #[schema(minimum = -2, maximum = 2)]
    presence_penalty: Option<f64>,
    #[schema(minimum = -2, maximum = 2)]
    frequency_penalty: Option<f64>,
    /// Token ids, each with a number from -100 to 100; 1024 at most.
    #[schema(example = json!({"7": -100}))]
    logit_bias: Option<Object>,
    /// Token ids that alone may be drawn.
    #[schema(min_items = 1)]
    allowed_token_ids: Option<Vec<u32>>,
    /// Texts of which no output has the tokens, neither as they are nor with a space before them.
    #[schema(max_items = 128)]
    bad_words: Option<Vec<String>>,
    /// A whole number of 64 bits; without one it is random.
    seed: Option<i64>,
    /// A JSON schema, or its text.
    #[schema(example = json!({"type": "integer"}))]
    guided_json: Option<Object>,
    #[schema(example = "[a-f]+")]
    guided_regex: Option<String>,
    /// In Lark's form.
    #[schema(example = "start: \"a\"")]
    guided_grammar: Option<String>,
    guided_choice: Option<Vec<String>>,
    structured_outputs: Option<StructuredOutputs>,
    /// Tokens are shown as `token_id:N`.
    return_tokens_as_token_ids: Option<bool>,
    /// Tokens before stop tokens and stop strings count.
    #[schema(minimum = 0)]
    min_tokens: Option<u32>,
    include_stop_str_in_output: Option<bool>,
    stop: Option<Stop>,
    #[schema(max_items = 64)]
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    prediction: Option<Prediction>,
    speculation: Option<Speculation>,
    /// As `speculation.priority`.
    priority: Option<i32>,
    /// The answer says what it took.
    include_metrics: Option<bool>,
}

/// Fields of completions and chats.
#[derive(Serialize, ToSchema)]
pub(super) struct Choices {
    /// Tokens of a choice at most. A completion with `echo` may ask for none.
    #[schema(minimum = 0, example = 9)]
    max_tokens: Option<u32>,
    /// The same, by its later name.
    #[schema(minimum = 0, example = 9)]
    max_completion_tokens: Option<u32>,
    #[schema(minimum = 1, maximum = 16)]
    n: Option<u32>,
    response_format: Option<ResponseFormat>,
    stream_options: Option<StreamOptions>,
    /// Whether the tokenizer adds its own tokens: for texts it does, if nothing is said, for chats it does not.
    add_special_tokens: Option<bool>,
    /// Of longer prompts so many tokens at the end are kept; -1: as many as there is room for.
    #[schema(minimum = -1)]
    truncate_prompt_tokens: Option<i64>,
    /// The answer has the ids of its tokens, and of its prompt's.
    return_token_ids: Option<bool>,
}

/// Up to 16 strings of 1 to 256 bytes.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// What the output is to look like, in vLLM's words; one of them.
#[derive(Serialize, ToSchema)]
struct StructuredOutputs {
    #[schema(example = json!({"type": "integer"}))]
    json: Option<Object>,
    #[schema(example = "[a-f]+")]
    regex: Option<String>,
    #[schema(example = "start: \"a\"")]
    grammar: Option<String>,
    choice: Option<Vec<String>>,
    json_object: Option<bool>,
}

/// The text that is expected, or most of it.
#[derive(Serialize, ToSchema)]
struct Prediction {
    r#type: PredictionType,
    content: Text,
}

/// A text, or parts of it that are joined by line breaks.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Text {
    Whole(String),
    Parts(Vec<TextPart>),
}

#[derive(Serialize, ToSchema)]
pub(super) struct TextPart {
    r#type: Option<TextPartType>,
    text: String,
}

/// How the request is to be scheduled.
#[derive(Serialize, ToSchema)]
struct Speculation {
    #[schema(minimum = 0, maximum = 16)]
    k_max: Option<u32>,
    mode: Option<Mode>,
    slo: Option<Slo>,
    /// Lower is sooner.
    priority: Option<i32>,
}

/// Latency targets.
#[derive(Serialize, ToSchema)]
struct Slo {
    #[schema(minimum = 1, maximum = 3_600_000)]
    ttft_ms: Option<u32>,
    #[schema(minimum = 1, maximum = 3_600_000)]
    itl_ms: Option<u32>,
}

#[derive(Serialize, ToSchema)]
struct ResponseFormat {
    #[schema(example = "json_schema")]
    r#type: FormatType,
    json_schema: Option<NamedSchema>,
}

#[derive(Serialize, ToSchema)]
struct NamedSchema {
    name: Option<String>,
    description: Option<String>,
    strict: Option<bool>,
    #[schema(example = json!({"type": "integer"}))]
    schema: Object,
}

/// Only with `stream`.
#[derive(Serialize, ToSchema)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// Every chunk has the usage so far.
    continuous_usage_stats: Option<bool>,
}
