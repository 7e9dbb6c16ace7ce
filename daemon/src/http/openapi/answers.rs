//! Answers, by what stands outermost in them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A refusal or a failure.
#[derive(Serialize, ToSchema)]
pub(super) struct Failure {
    error: FailureDetails,
}

#[derive(Serialize, ToSchema)]
struct FailureDetails {
    message: String,
    r#type: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<String>,
}

/// A completion.
#[derive(Serialize, ToSchema)]
pub(super) struct Completion {
    id: String,
    object: String,
    created: u64,
    model: String,
    choices: Vec<CompletionChoice>,
    usage: Usage,
    /// What it took, if `include_metrics` asks (docs/requests.md); of several choices it stands in each.
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
}

#[derive(Serialize, ToSchema)]
struct CompletionChoice {
    index: u32,
    text: String,
    #[schema(value_type = Option<Object>)]
    logprobs: Option<Value>,
    finish_reason: String,
    /// If `return_token_ids` asks.
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
}

/// A chat's answer.
#[derive(Serialize, ToSchema)]
pub(super) struct ChatCompletion {
    id: String,
    object: String,
    created: u64,
    model: String,
    choices: Vec<ChatChoice>,
    usage: Usage,
    /// If `return_token_ids` asks.
    prompt_token_ids: Option<Vec<u32>>,
    /// What it took, if `include_metrics` asks (docs/requests.md); of several choices it stands in each.
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
}

#[derive(Serialize, ToSchema)]
struct ChatChoice {
    index: u32,
    message: AnswerMessage,
    #[schema(value_type = Option<Object>)]
    logprobs: Option<Value>,
    finish_reason: String,
    /// If `return_token_ids` asks.
    token_ids: Option<Vec<u32>>,
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
}

#[derive(Serialize, ToSchema)]
struct AnswerMessage {
    role: String,
    content: Option<String>,
    refusal: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Vec<Value>>,
}

#[derive(Serialize, ToSchema)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    /// What of the prompt was in the cache, where that is known.
    #[schema(value_type = Option<Object>)]
    prompt_tokens_details: Option<Value>,
    /// What became of the client's prediction.
    #[schema(value_type = Option<Object>)]
    completion_tokens_details: Option<Value>,
}

/// A response.
#[derive(Serialize, ToSchema)]
pub(super) struct Response {
    id: String,
    object: String,
    created_at: u64,
    status: String,
    background: bool,
    #[schema(value_type = Option<Object>)]
    error: Option<Value>,
    #[schema(value_type = Option<Object>)]
    incomplete_details: Option<Value>,
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    max_tool_calls: Option<u64>,
    #[schema(value_type = Object)]
    metadata: Value,
    model: String,
    #[schema(value_type = Vec<Object>)]
    output: Vec<Value>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    prompt_cache_key: Option<String>,
    #[schema(value_type = Object)]
    reasoning: Value,
    safety_identifier: Option<String>,
    service_tier: String,
    store: bool,
    temperature: f64,
    #[schema(value_type = Object)]
    text: Value,
    tool_choice: AnsweredChoice,
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
    top_logprobs: u64,
    top_p: f64,
    truncation: String,
    #[schema(value_type = Option<Object>)]
    usage: Option<Value>,
    user: Option<String>,
    /// What it took, if `include_metrics` asks (docs/requests.md).
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
}

/// A word, or an object.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum AnsweredChoice {
    Mode(String),
    #[schema(value_type = Object)]
    Functions(Value),
}

/// GET /v1/models.
#[derive(Serialize, ToSchema)]
pub(super) struct Models {
    object: String,
    data: Vec<Model>,
}

/// A name by which a model can be asked for.
#[derive(Serialize, ToSchema)]
pub(super) struct Model {
    id: String,
    object: String,
    created: u64,
    owned_by: String,
    /// The model's own name.
    root: String,
    parent: Option<String>,
    max_model_len: u64,
}

/// POST /tokenize.
#[derive(Serialize, ToSchema)]
pub(super) struct Tokens {
    count: u64,
    max_model_len: u64,
    tokens: Vec<u32>,
}

/// POST /detokenize.
#[derive(Serialize, ToSchema)]
pub(super) struct Detokenized {
    prompt: String,
}

/// How it stands.
#[derive(Serialize, ToSchema)]
pub(super) struct Status {
    status: String,
}

/// Whether requests are taken, and by which replicas.
#[derive(Serialize, ToSchema)]
pub(super) struct Readiness {
    status: String,
    replicas: Option<Vec<ReplicaStatus>>,
}

#[derive(Serialize, ToSchema)]
struct ReplicaStatus {
    replica: u32,
    status: String,
}

/// GET /version.
#[derive(Serialize, ToSchema)]
pub(super) struct Version {
    version: String,
}

/// GET /model_info.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelInfo {
    served_model_name: String,
    is_generation: bool,
    max_context_length: u64,
}

/// GET /server_info.
#[derive(Serialize, ToSchema)]
pub(super) struct ServerInfo {
    served_model_name: String,
    version: String,
    max_model_len: u64,
}
