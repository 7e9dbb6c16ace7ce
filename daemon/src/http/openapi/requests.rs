//! Bodies of completions, chats and what makes tokens of text; what they have in common is in `common`.

use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::Object;

use super::common::Text;
use super::words::{
    AllowedMode, AllowedType, AssistantRole, Effort, FunctionType, PlainRole, ToolMode, ToolRole, Verbosity,
};

/// POST /v1/completions.
#[derive(Serialize, ToSchema)]
pub(super) struct CompletionRequest {
    prompt: Prompt,
    /// Whether the text begins with the prompt.
    echo: Option<bool>,
    /// Log-probabilities, with so many of the likeliest tokens in each place.
    #[schema(minimum = 0, maximum = 20)]
    logprobs: Option<u32>,
}

/// Text or token ids, one or several.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

/// POST /v1/chat/completions.
#[derive(Serialize, ToSchema)]
pub(super) struct ChatRequest {
    #[schema(min_items = 1, max_items = 4096)]
    messages: Vec<Message>,
    #[schema(max_items = 128)]
    tools: Option<Vec<Tool>>,
    tool_choice: Option<ToolChoice>,
    /// Whether an output may have several calls.
    parallel_tool_calls: Option<bool>,
    logprobs: Option<bool>,
    /// Only with `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
    /// Variables of the chat template; 64 in 16 KiB at most.
    #[schema(example = json!({"enable_thinking": false}))]
    chat_template_kwargs: Option<Object>,
    /// For the chat template; one that does not read it allows `medium` alone.
    reasoning_effort: Option<Effort>,
    /// For the chat template; one that does not read it allows `medium` alone.
    verbosity: Option<Verbosity>,
    /// Whether the assistant's turn is opened behind the messages.
    add_generation_prompt: Option<bool>,
    /// Whether the last message is continued; only with `"add_generation_prompt": false`.
    continue_final_message: Option<bool>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Message {
    Plain(PlainMessage),
    Assistant(AssistantMessage),
    Calling(CallingMessage),
    Tool(ToolMessage),
}

#[derive(Serialize, ToSchema)]
struct PlainMessage {
    role: PlainRole,
    content: Text,
    name: Option<String>,
    /// Only an assistant calls.
    #[schema(max_items = 0, example = json!([]))]
    tool_calls: Option<Vec<String>>,
}

#[derive(Serialize, ToSchema)]
struct AssistantMessage {
    role: AssistantRole,
    content: Text,
    name: Option<String>,
    reasoning_content: Option<String>,
    #[schema(max_items = 128)]
    tool_calls: Option<Vec<Call>>,
    /// Templates know none.
    #[schema(max_items = 0, example = json!([]))]
    annotations: Option<Vec<String>>,
}

/// An assistant's that need not say anything, as it calls.
#[derive(Serialize, ToSchema)]
struct CallingMessage {
    role: AssistantRole,
    content: Option<Text>,
    name: Option<String>,
    reasoning_content: Option<String>,
    #[schema(min_items = 1, max_items = 128)]
    tool_calls: Vec<Call>,
}

#[derive(Serialize, ToSchema)]
struct ToolMessage {
    role: ToolRole,
    content: Text,
    tool_call_id: String,
    name: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct Call {
    id: String,
    r#type: Option<FunctionType>,
    /// Its place within a stream; of no effect.
    #[schema(minimum = 0)]
    index: Option<u32>,
    function: CalledFunction,
}

#[derive(Serialize, ToSchema)]
struct CalledFunction {
    name: String,
    /// JSON of an object.
    #[schema(example = "{\"a\": 1}")]
    arguments: String,
}

#[derive(Serialize, ToSchema)]
struct Tool {
    r#type: FunctionType,
    function: Function,
}

#[derive(Serialize, ToSchema)]
struct Function {
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,64}$", example = "f")]
    name: String,
    description: Option<String>,
    /// A JSON schema of an object.
    #[schema(example = json!({"type": "object"}))]
    parameters: Option<Object>,
    /// Whether calls have to be valid by it.
    strict: Option<bool>,
}

/// Which functions may be, or have to be, called.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum ToolChoice {
    Mode(ToolMode),
    Named(NamedTool),
    Allowed(AllowedTools),
}

#[derive(Serialize, ToSchema)]
struct NamedTool {
    r#type: FunctionType,
    function: FunctionName,
}

#[derive(Serialize, ToSchema)]
struct FunctionName {
    #[schema(example = "f")]
    name: String,
}

#[derive(Serialize, ToSchema)]
struct AllowedTools {
    r#type: AllowedType,
    allowed_tools: Allowed,
}

#[derive(Serialize, ToSchema)]
struct Allowed {
    mode: Option<AllowedMode>,
    #[schema(min_items = 1)]
    tools: Vec<NamedTool>,
}

/// POST /tokenize: of a text.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenizeText {
    #[schema(example = "m")]
    model: Option<String>,
    prompt: String,
    add_special_tokens: Option<bool>,
}

/// POST /tokenize: of what the chat template makes of messages.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenizeChat {
    #[schema(example = "m")]
    model: Option<String>,
    #[schema(min_items = 1, max_items = 4096)]
    messages: Vec<Message>,
    /// What the template is given, whatever it is.
    tools: Option<Vec<Object>>,
    #[schema(example = json!({"enable_thinking": false}))]
    chat_template_kwargs: Option<Object>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    add_special_tokens: Option<bool>,
}

/// POST /detokenize.
#[derive(Serialize, ToSchema)]
pub(super) struct DetokenizeRequest {
    #[schema(example = "m")]
    model: Option<String>,
    tokens: Vec<u32>,
}
