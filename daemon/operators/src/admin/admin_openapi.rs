//! The API as an OpenAPI document: routes from the table, answers from the types that are sent.

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::{OpenApi, ToSchema};

use super::admin_api::{ROUTES, Route};
use super::snapshot::{PolicyView, RequestRow, Snapshot};
use crate::reload::Changes;

/// The config in force.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConfigView {
    /// The config file; none: every default.
    pub file: Option<String>,
    /// Another one after every change; also the `ETag`.
    pub tag: String,
    /// The keys in force that were written down, with the flags of the command line.
    #[schema(value_type = Object)]
    pub written: Value,
    /// The keys that can change in a running daemon.
    pub live: Vec<LiveRow>,
    /// Keys that a reload would apply, or name as waiting for a restart.
    pub pending: Vec<String>,
    /// Why a reload would be refused.
    pub error: Option<String>,
}

/// A key that can change in a running daemon.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LiveRow {
    /// Its name.
    pub key: &'static str,
    /// What is in force.
    pub value: Value,
    /// What of a change counts when.
    pub when: &'static str,
}

/// What is left after a drain.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Drained {
    /// Requests that are not finished.
    pub left: usize,
}

/// What was measured.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Measured {
    /// Partitions whose costs are known now, the whole device included.
    pub partitions: usize,
    /// Where they are kept.
    pub source: String,
}

/// What was forgotten.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Forgotten {
    /// Past outputs that there were, over all replicas.
    pub outputs: usize,
}

/// The schemas of all answers.
#[derive(OpenApi)]
#[openapi(components(schemas(
    Snapshot, Requests, ConfigView, PolicyView, LevelView, Cancelled, State, Drained, Changes, Measured,
    Forgotten
)))]
struct Schemas;

/// `GET /v1/requests`.
#[derive(Serialize, ToSchema)]
pub(super) struct Requests {
    pub(super) requests: Vec<RequestRow>,
}

/// `GET /v1/log-level`.
#[derive(Serialize, ToSchema)]
pub(super) struct LevelView {
    pub(super) level: String,
}

/// `POST /v1/requests/{id}/cancel`.
#[derive(Serialize, ToSchema)]
pub(super) struct Cancelled {
    pub(super) cancelled: String,
}

/// `POST /v1/resume`.
#[derive(Serialize, ToSchema)]
pub(super) struct State {
    pub(super) state: String,
}

/// The name of the schema of a route's answer; none if it is no JSON object of ours.
fn schema(route: &Route) -> Option<&'static str> {
    Some(match (route.method.as_str(), route.path) {
        (_, "/v1/status" | "/v1/events") => "Snapshot",
        (_, "/v1/requests") => "Requests",
        (_, "/v1/requests/{id}/cancel") => "Cancelled",
        (_, "/v1/config") => "ConfigView",
        ("GET", "/v1/policy") => "PolicyView",
        ("GET", "/v1/log-level") => "LevelView",
        (_, "/v1/policy" | "/v1/log-level" | "/v1/reload") => "Changes",
        (_, "/v1/profile") => "Measured",
        (_, "/v1/forget") => "Forgotten",
        (_, "/v1/drain") => "Drained",
        (_, "/v1/resume") => "State",
        _ => return None,
    })
}

/// The document.
pub(super) fn document() -> Value {
    let schemas = serde_json::to_value(Schemas::openapi()).unwrap_or_default();
    let mut paths = Map::new();
    for route in ROUTES.iter() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "faser admin",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP over faser's admin socket. GET is for everybody who may connect, all else for root, faser's own user \
                            and members of admin.group.",
        },
        "paths": paths,
        "components": schemas["components"],
    })
}

fn operation(route: &Route) -> Value {
    let looks = route.method == "GET";
    let kind = match route.path {
        "/v1/events" => "text/event-stream",
        "/metrics" => "text/plain",
        "/" => "text/html",
        _ => "application/json",
    };
    let answer = schema(route)
        .map_or_else(|| json!({}), |name| json!({"$ref": format!("#/components/schemas/{name}")}));
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "responses": {
            "200": {"description": "done", "content": {kind: {"schema": answer}}},
            "default": {"description": "refused: {\"error\": {\"message\", \"type\", \"param\", \"code\"}}"},
        },
    });
    let mut parameters = Vec::new();
    if route.path.contains("{id}") {
        let text = "REPLICA-NUMBER";
        parameters.push(json!({"name": "id", "in": "path", "required": true, "description": text, "schema": {"type": "string"}}));
    }
    if looks {
        let query = |(name, text): &(&str, &str)| json!({"name": name, "in": "query", "description": text, "schema": {}});
        parameters.extend(route.fields.iter().map(query));
    } else if !route.fields.is_empty() {
        let property = |(name, text): &(&str, &str)| ((*name).to_owned(), json!({"description": text}));
        let properties: Map<String, Value> = route.fields.iter().map(property).collect();
        let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
        operation["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// `patch_policy` of PATCH /v1/policy.
fn operation_id(route: &Route) -> String {
    let path = route
        .path
        .trim_start_matches("/v1")
        .trim_matches('/')
        .replace(['/', '-', '.'], "_")
        .replace("_{id}", "");
    let path = if path.is_empty() { "dashboard" } else { &path };
    format!("{}_{path}", route.method.as_str().to_lowercase())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_route_is_in_it_and_every_reference_leads_somewhere() {
        let document = document();
        let mut ids = HashSet::new();
        for route in ROUTES.iter() {
            let operation = &document["paths"][route.path][route.method.as_str().to_lowercase()];
            assert_eq!(operation["summary"], route.summary);
            assert!(ids.insert(operation["operationId"].to_string()), "{operation}");
        }
        let text = document.to_string();
        let references: Vec<&str> =
            text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.contains(&"Snapshot") && references.contains(&"Figures"), "{references:?}");
        for name in references {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
