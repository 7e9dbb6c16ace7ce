//! GET /openapi.json: the whole API as an OpenAPI 3.1 document. What requests may have, their readers tell; tests hold that against what they
//! ask for.

#[cfg(test)]
mod tests;

use actix_web::HttpResponse;
use faser_config::fields::{Schemas, named};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::body::Ask;
use super::bounds::Bounds;
use super::chunks::Generated;
use super::errors::Failure;
use super::info::{Model, ModelInfo, Models, Readiness, ServerInfo, Status, Version};
use super::responses::Response;
use super::tokenize::{Detokenized, Tokens};
use super::{chat, completions, responses, tokenize};

/// Schemas of answers.
#[derive(OpenApi)]
#[openapi(components(schemas(
    Generated,
    Detokenized,
    Failure,
    Model,
    ModelInfo,
    Models,
    Readiness,
    Response,
    ServerInfo,
    Status,
    Tokens,
    Version
)))]
struct Answers;

/// One way of asking.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Schemas of which a body has one.
    bodies: &'static [&'static str],
    /// The schema of what is answered with 200; none: it is no JSON of a known shape, or there is no 200.
    answer: Option<&'static str>,
    /// Statuses beside 200.
    others: &'static [u16],
    /// Names of what the query may have.
    query: &'static [&'static str],
}

const GENERATES: &[u16] = &[400, 401, 404, 408, 413, 415, 429, 500, 503];
const LOOKS: &[u16] = &[401, 429, 503];
/// Those of what is never there.
const GONE: &[u16] = &[401, 404, 429];

const fn get(path: &'static str, summary: &'static str, answer: &'static str) -> Operation {
    Operation { method: "get", path, summary, bodies: &[], answer: Some(answer), others: LOOKS, query: &[] }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    bodies: &'static [&'static str],
    answer: &'static str,
) -> Operation {
    Operation { method: "post", path, summary, bodies, answer: Some(answer), others: GENERATES, query: &[] }
}

const fn gone(method: &'static str, path: &'static str) -> Operation {
    let summary = "nothing is stored: there is no such response";
    Operation { method, path, summary, bodies: &[], answer: None, others: GONE, query: &[] }
}

const OPERATIONS: [Operation; 22] = [
    post("/v1/completions", "continues prompts", &["CompletionRequest"], "Completion"),
    post("/v1/chat/completions", "answers a chat", &["ChatRequest"], "ChatCompletion"),
    post(
        "/v1/responses",
        "answers a chat, in the words of the Responses API",
        &["ResponseRequest"],
        "Response",
    ),
    gone("get", "/v1/responses/{id}"),
    gone("delete", "/v1/responses/{id}"),
    gone("post", "/v1/responses/{id}/cancel"),
    gone("get", "/v1/responses/{id}/input_items"),
    get("/v1/models", "names of models", "Models"),
    Operation { others: &[401, 404, 429, 503], ..get("/v1/models/{id}", "one model", "Model") },
    post("/tokenize", "the tokens of a text or chat", &["TokenizeText", "TokenizeChat"], "Tokens"),
    post("/detokenize", "the text of tokens", &["DetokenizeRequest"], "Detokenized"),
    Operation { others: &[], ..get("/health", "whether the process is alive", "Status") },
    Operation { others: &[503], ..get("/ready", "whether requests are taken", "Readiness") },
    Operation { others: &[401, 429], ..get("/version", "which faser this is", "Version") },
    Operation {
        answer: None,
        others: &[401, 429],
        ..get("/metrics", "metrics, as Prometheus reads them", "")
    },
    get("/health_generate", "whether a token comes", "Status"),
    get("/model_info", "what is served", "ModelInfo"),
    get("/get_model_info", "the same", "ModelInfo"),
    get("/server_info", "what serves it", "ServerInfo"),
    get("/get_server_info", "the same", "ServerInfo"),
    Operation {
        answer: None,
        others: &[400, 401, 404, 409, 429, 500, 503],
        query: &["seconds", "replica"],
        ..get("/debug/trace", "what the lanes do from now on, as Chrome trace JSON", "")
    },
    Operation { answer: None, others: &[401, 429], ..get("/openapi.json", "this document", "") },
];

/// The handler.
pub(super) async fn openapi() -> HttpResponse {
    HttpResponse::Ok().json(document())
}

/// The document.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for operation in &OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation.json();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "faser",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's API and what stands beside it. A field that is unknown, or cannot be honoured, is refused.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    })
}

/// Requests by their names, what is said of each, and its reader.
const READERS: [(&str, &str, Ask<()>); 6] = [
    ("CompletionRequest", "POST /v1/completions.", |fields, bounds| {
        completions::asked(fields, bounds).map(drop)
    }),
    ("ChatRequest", "POST /v1/chat/completions.", |fields, bounds| chat::asked(fields, bounds).map(drop)),
    ("ResponseRequest", "POST /v1/responses.", |fields, bounds| responses::asked(fields, bounds).map(drop)),
    ("TokenizeText", "POST /tokenize: of a text.", |fields, bounds| tokenize::text(fields, bounds).map(drop)),
    ("TokenizeChat", "POST /tokenize: of what the chat template makes of messages.", |fields, bounds| {
        tokenize::chat(fields, bounds).map(drop)
    }),
    ("DetokenizeRequest", "POST /detokenize.", |fields, bounds| tokenize::ids(fields, bounds).map(drop)),
];

/// All schemas.
fn schemas() -> Map<String, Value> {
    let told = Schemas::default();
    for (name, about, ask) in READERS {
        told.tell(name, about, |fields| ask(fields, &Bounds::EVERYTHING));
    }
    let mut schemas = told.finish();
    // What a derive has made is valid JSON; a document without schemas fails the tests.
    let answers = serde_json::to_value(Answers::openapi()).unwrap_or_default();
    schemas.extend(answers["components"]["schemas"].as_object().cloned().unwrap_or_default());
    // What is sent for completions and chats is one type: a choice has a text or a message.
    let both = ["Generated", "GeneratedChoice"].map(|name| schemas.remove(name).unwrap_or_default());
    for (names, about, said, others) in [
        (
            ["Completion", "CompletionChoice"],
            "A completion.",
            ("text", json!({"type": "string"})),
            [&["prompt_token_ids"][..], &["message"]],
        ),
        (
            ["ChatCompletion", "ChatChoice"],
            "A chat's answer.",
            ("message", named("AnswerMessage")),
            [&[], &["text", "prompt_token_ids"]],
        ),
    ] {
        let [mut answer, mut choice] = both.clone();
        answer["description"] = about.into();
        answer["properties"]["choices"]["items"] = named(names[1]);
        choice["properties"][said.0] = said.1;
        choice["required"] = json!(["index", said.0, "finish_reason"]);
        for ((name, mut schema), others) in names.into_iter().zip([answer, choice]).zip(others) {
            if let Value::Object(properties) = &mut schema["properties"] {
                properties.retain(|name, _| !others.contains(&name.as_str()));
            }
            schemas.insert(name.to_owned(), schema);
        }
    }
    schemas
}

impl Operation {
    fn json(&self) -> Value {
        let schema = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let failure = |why: &str| json!({"description": why, "content": {"application/json": {"schema": schema("Failure")}}});
        let mut responses = Map::new();
        for status in self.others {
            let described = match (status, self.path) {
                // What load balancers ask says how it stands, whatever that is.
                (503, "/ready" | "/health_generate") => {
                    let schema = schema(self.answer.unwrap_or("Status"));
                    json!({"description": why(*status), "content": {"application/json": {"schema": schema}}})
                }
                _ => failure(why(*status)),
            };
            responses.insert(status.to_string(), described);
        }
        if self.others != GONE {
            responses
                .insert("200".to_owned(), json!({"description": "done", "content": self.content(schema)}));
        }
        let mut operation = json!({
            "summary": self.summary, "operationId": self.id(), "responses": responses,
        });
        match self.bodies {
            [] => {}
            [one] => operation["requestBody"] = body(&schema(one)),
            several => {
                let all: Vec<Value> = several.iter().map(|name| schema(name)).collect();
                operation["requestBody"] = body(&json!({"oneOf": all}));
            }
        }
        let mut parameters = Vec::new();
        if self.path.contains("{id}") {
            parameters
                .push(json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}));
        }
        for name in self.query {
            parameters
                .push(json!({"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0}}));
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if matches!(self.path, "/health" | "/ready") {
            operation["security"] = json!([]);
        }
        operation
    }

    fn content(&self, schema: impl Fn(&str) -> Value) -> Value {
        let Some(answer) = self.answer else {
            let kind = if self.path == "/metrics" { "text/plain" } else { "application/json" };
            return json!({kind: {}});
        };
        let mut content = json!({"application/json": {"schema": schema(answer)}});
        // Those that can be streamed.
        if self.path.starts_with("/v1/") && self.method == "post" {
            content["text/event-stream"] = json!({"schema": {"type": "string"}});
        }
        content
    }

    /// `post_v1_chat_completions`.
    fn id(&self) -> String {
        let path = self.path.trim_matches('/').replace(['/', '.'], "_").replace(['{', '}'], "");
        format!("{}_{path}", self.method)
    }
}

fn body(schema: &Value) -> Value {
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

fn why(status: u16) -> &'static str {
    match status {
        400 => "the request is wrong",
        401 => "there is no key, or a wrong one",
        404 => "there is none of that name",
        408 => "the body took too long",
        409 => "somebody else does that",
        413 => "the body is too large",
        415 => "the body is compressed",
        429 => "later: the server, or the key, has enough to do",
        500 => "the server failed",
        _ => "not for now",
    }
}
