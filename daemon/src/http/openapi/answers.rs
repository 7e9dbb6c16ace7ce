//! Answers, by what stands outermost in them.

use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::Object;

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
    metrics: Option<Object>,
}

#[derive(Serialize, ToSchema)]
struct CompletionChoice {
    index: u32,
    text: String,
    logprobs: Option<Object>,
    finish_reason: String,
    /// If `return_token_ids` asks.
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    metrics: Option<Object>,
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
    metrics: Option<Object>,
}

#[derive(Serialize, ToSchema)]
struct ChatChoice {
    index: u32,
    message: AnswerMessage,
    logprobs: Option<Object>,
    finish_reason: String,
    /// If `return_token_ids` asks.
    token_ids: Option<Vec<u32>>,
    metrics: Option<Object>,
}

#[derive(Serialize, ToSchema)]
struct AnswerMessage {
    role: String,
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Object>>,
}

#[derive(Serialize, ToSchema)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    /// What of the prompt was in the cache, where that is known.
    prompt_tokens_details: Option<Object>,
    /// What became of the client's prediction.
    completion_tokens_details: Option<Object>,
}

/// A response.
#[derive(Serialize, ToSchema)]
pub(super) struct Response {
    id: String,
    object: String,
    created_at: u64,
    status: String,
    background: bool,
    error: Option<Object>,
    incomplete_details: Option<Object>,
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    max_tool_calls: Option<u64>,
    metadata: Object,
    model: String,
    output: Vec<Object>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    prompt_cache_key: Option<String>,
    reasoning: Object,
    safety_identifier: Option<String>,
    service_tier: String,
    store: bool,
    temperature: f64,
    text: Object,
    tool_choice: AnsweredChoice,
    tools: Vec<Object>,
    top_logprobs: u64,
    top_p: f64,
    truncation: String,
    usage: Option<Object>,
    user: Option<String>,
    /// What it took, if `include_metrics` asks (docs/requests.md).
    metrics: Option<Object>,
}

/// A word, or an object.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum AnsweredChoice {
    Mode(String),
    Functions(Box<Object>),
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

// What is answered: as a JSON value a long text's would take many times the memory.
/// POST /tokenize.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Tokens {
    pub(in crate::http) count: u64,
    pub(in crate::http) max_model_len: u64,
    pub(in crate::http) tokens: Vec<u32>,
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
