//! The body of a response.

use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::Object;

use super::words::{
    AllowedMode, AllowedType, Effort, FormatType, FunctionType, InputCallOutputType, InputCallType,
    InputPartType, InputRole, ItemStatus, MessageType, ToolMode, Verbosity,
};

/// POST /v1/responses.
#[derive(Serialize, ToSchema)]
pub(super) struct ResponseRequest {
    input: Input,
    /// A system message in front.
    instructions: Option<String>,
    #[schema(minimum = 1)]
    max_output_tokens: Option<u32>,
    #[schema(max_items = 128)]
    tools: Option<Vec<FlatTool>>,
    tool_choice: Option<FlatToolChoice>,
    /// Whether an output may have several calls.
    parallel_tool_calls: Option<bool>,
    text: Option<TextOptions>,
    include: Option<Vec<Include>>,
    /// Only with log-probabilities in `include`.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
    /// Variables of the chat template; 64 in 16 KiB at most.
    #[schema(example = json!({"enable_thinking": false}))]
    chat_template_kwargs: Option<Object>,
    reasoning: Option<ReasoningOptions>,
    stream_options: Option<ResponseStreamOptions>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum InputItem {
    Message(InputMessage),
    Call(InputCall),
    Output(InputCallOutput),
}

#[derive(Serialize, ToSchema)]
struct InputMessage {
    r#type: Option<MessageType>,
    role: InputRole,
    content: InputText,
    id: Option<String>,
    status: Option<ItemStatus>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum InputText {
    Whole(String),
    Parts(Vec<InputPart>),
}

#[derive(Serialize, ToSchema)]
struct InputPart {
    r#type: InputPartType,
    text: String,
    /// Templates know none.
    #[schema(max_items = 0, example = json!([]))]
    annotations: Option<Vec<String>>,
    /// Of no effect.
    #[schema(example = json!([]))]
    logprobs: Option<Vec<Object>>,
}

#[derive(Serialize, ToSchema)]
struct InputCall {
    r#type: InputCallType,
    call_id: String,
    name: String,
    /// JSON of an object.
    #[schema(example = "{\"a\": 1}")]
    arguments: String,
    id: Option<String>,
    status: Option<ItemStatus>,
}

#[derive(Serialize, ToSchema)]
struct InputCallOutput {
    r#type: InputCallOutputType,
    call_id: String,
    output: InputText,
    id: Option<String>,
    status: Option<ItemStatus>,
}

#[derive(Serialize, ToSchema)]
struct FlatTool {
    r#type: FunctionType,
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,64}$", example = "f")]
    name: String,
    description: Option<String>,
    /// A JSON schema of an object.
    #[schema(example = json!({"type": "object"}))]
    parameters: Option<Object>,
    /// Whether calls have to be valid by it: they do, if nothing is said.
    strict: Option<bool>,
}

/// Which functions may be, or have to be, called.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum FlatToolChoice {
    Mode(ToolMode),
    Named(FlatNamedTool),
    Allowed(FlatAllowedTools),
}

#[derive(Serialize, ToSchema)]
struct FlatNamedTool {
    r#type: FunctionType,
    #[schema(example = "f")]
    name: String,
}

#[derive(Serialize, ToSchema)]
struct FlatAllowedTools {
    r#type: AllowedType,
    mode: Option<AllowedMode>,
    #[schema(min_items = 1)]
    tools: Vec<FlatNamedTool>,
}

#[derive(Serialize, ToSchema)]
struct TextOptions {
    format: Option<FlatFormat>,
    /// For the chat template; one that does not read it allows `medium` alone.
    verbosity: Option<Verbosity>,
}

#[derive(Serialize, ToSchema)]
struct ReasoningOptions {
    /// For the chat template, as `reasoning_effort`; one that does not read it allows `medium` alone.
    effort: Option<Effort>,
}

#[derive(Serialize, ToSchema)]
struct FlatFormat {
    #[schema(example = "json_schema")]
    r#type: FormatType,
    name: Option<String>,
    description: Option<String>,
    strict: Option<bool>,
    /// Beside the type `json_schema`.
    #[schema(example = json!({"type": "integer"}))]
    schema: Option<Object>,
}

#[derive(Serialize, ToSchema)]
enum Include {
    #[serde(rename = "message.output_text.logprobs")]
    Logprobs,
    #[serde(rename = "reasoning.encrypted_content")]
    Encrypted,
}

/// Only with `stream`.
#[derive(Serialize, ToSchema)]
struct ResponseStreamOptions {
    #[schema(example = false)]
    include_obfuscation: Option<bool>,
}
