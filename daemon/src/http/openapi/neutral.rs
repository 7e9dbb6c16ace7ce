//! Fields that are taken only with what their absence says: other servers know them.

use serde_json::{Value, json};

/// The schema, a field of it, and its values; none but null where there are none.
pub(super) fn all() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    let mut all = Vec::new();
    for schema in ["CompletionRequest", "ChatRequest", "ResponseRequest"] {
        all.extend([
            (schema, "prompt_logprobs", vec![]),
            (schema, "length_penalty", vec![json!(1)]),
            (schema, "use_beam_search", vec![json!(false)]),
            (schema, "skip_special_tokens", vec![json!(true)]),
            (schema, "service_tier", vec![json!("auto"), json!("default")]),
            (schema, "store", vec![json!(false)]),
            (schema, "no_stop_trim", vec![json!(false)]),
            (schema, "return_hidden_states", vec![json!(false)]),
            (schema, "separate_reasoning", vec![json!(true), json!(false)]),
            (schema, "stream_reasoning", vec![json!(true), json!(false)]),
        ]);
    }
    for schema in ["CompletionRequest", "ChatRequest"] {
        all.push((schema, "best_of", vec![json!(1)]));
    }
    all.extend([
        ("CompletionRequest", "suffix", vec![json!("")]),
        ("CompletionRequest", "top_logprobs", vec![json!(0)]),
        ("CompletionRequest", "continue_final_message", vec![json!(false)]),
        ("ChatRequest", "functions", vec![json!([])]),
        ("ChatRequest", "function_call", vec![json!("none"), json!("auto")]),
        ("ChatRequest", "modalities", vec![json!(["text"])]),
        ("ChatRequest", "audio", vec![]),
        ("AssistantMessage", "refusal", vec![]),
        ("AssistantMessage", "audio", vec![]),
        ("AssistantMessage", "function_call", vec![]),
        ("ResponseRequest", "previous_response_id", vec![]),
        ("ResponseRequest", "conversation", vec![]),
        ("ResponseRequest", "prompt", vec![]),
        ("ResponseRequest", "background", vec![json!(false)]),
        ("ResponseRequest", "truncation", vec![json!("disabled")]),
        ("ResponseRequest", "return_token_ids", vec![json!(false)]),
        ("ReasoningOptions", "summary", vec![]),
        ("ReasoningOptions", "generate_summary", vec![]),
        ("ResponseRequest", "max_tool_calls", vec![]),
        ("ResponseRequest", "prompt_cache_retention", vec![]),
        ("TokenizeText", "return_token_strs", vec![json!(false)]),
        ("TokenizeChat", "return_token_strs", vec![json!(false)]),
    ]);
    all
}
