//! The document beside the readers and beside real routes.

use std::collections::BTreeSet;

use faser_config::fields::asked;

use super::*;
use crate::body::read;

fn resolved<'a>(schema: &'a Value, all: &'a Map<String, Value>) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/components/schemas/"));
    name.map_or(schema, |name| &all[name])
}

/// The type beside null, and what the schema is one of.
fn kind(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap(),
        other => other.as_str().unwrap_or_default(),
    }
}

/// Values of a schema that together have everything in them that it documents.
fn values(schema: &Value, all: &Map<String, Value>) -> Vec<Value> {
    if let Some(example) = schema.get("example") {
        return vec![example.clone()];
    }
    let schema = resolved(schema, all);
    if let Some(values) = schema["enum"].as_array() {
        return values.clone();
    }
    if let Some(several) = schema["oneOf"].as_array() {
        return several.iter().flat_map(|one| values(one, all)).collect();
    }
    match kind(schema) {
        "null" => vec![],
        "boolean" => vec![json!(true)],
        "integer" | "number" => {
            let least = &schema["minimum"];
            vec![if least.is_null() { json!(1) } else { least.clone() }]
        }
        "string" => vec![json!("x")],
        "array" => values(&schema["items"], all).into_iter().map(|item| json!([item])).collect(),
        "object" => objects(schema, all),
        other => panic!("{other}: {schema}"),
    }
}

/// An object with what it has to have, and then one for each value of each property.
fn objects(schema: &Value, all: &Map<String, Value>) -> Vec<Value> {
    let Some(properties) = schema["properties"].as_object() else { return vec![json!({})] };
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut base = Map::new();
    for name in required.iter().filter_map(Value::as_str) {
        base.insert(name.to_owned(), values(&properties[name], all)[0].clone());
    }
    let mut found = vec![base.clone().into()];
    for (name, property) in properties {
        for value in values(property, all) {
            let mut object = base.clone();
            object.insert(name.clone(), value);
            found.push(object.into());
        }
    }
    found
}

/// Full names of all properties, of lists those of the first item.
fn documented(schema: &Value, path: &str, all: &Map<String, Value>, found: &mut BTreeSet<String>) {
    let schema = resolved(schema, all);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        documented(property, &inner, all, found);
        found.insert(inner);
    }
    if schema["items"].is_object() {
        documented(&schema["items"], &format!("{path}[0]"), all, found);
    }
    for one in schema["oneOf"].as_array().into_iter().flatten() {
        documented(one, path, all, found);
    }
}

/// Adds what some fields cannot be without.
fn completed(name: &str, mut body: Value) -> Value {
    let has = |body: &Value, field: &str| !body[field].is_null();
    if has(&body, "stream_options") {
        body["stream"] = true.into();
    }
    if has(&body, "resume") {
        body["seed"] = 1.into();
    }
    if has(&body, "tool_choice") {
        body["tools"] = match name {
            "ResponseRequest" => json!([{"type": "function", "name": "f"}]),
            _ => json!([{"type": "function", "function": {"name": "f"}}]),
        };
    }
    if let Some(message) = body.pointer_mut("/messages/0")
        && message["role"] == "assistant"
        && message["tool_calls"].as_array().is_none_or(Vec::is_empty)
    {
        message.as_object_mut().unwrap().entry("content").or_insert_with(|| "x".into());
    }
    if body["continue_final_message"] == true {
        body["add_generation_prompt"] = false.into();
    }
    for (form, schema) in [("/response_format", "json_schema"), ("/text/format", "schema")] {
        let Some(form) = body.pointer_mut(form).and_then(Value::as_object_mut) else { continue };
        if form.len() > 1 {
            form.insert("type".to_owned(), "json_schema".into());
        }
        if form["type"] == "json_schema" {
            form.entry(schema).or_insert_with(|| json!({"schema": {}}));
        }
    }
    body
}

#[test]
fn requests_have_the_fields_that_readers_ask_for_and_no_others() {
    let all = schemas();
    for (name, _, ask) in READERS {
        let mut known = BTreeSet::new();
        documented(&all[name], "", &all, &mut known);
        asked::take();
        for body in objects(&all[name], &all) {
            let body = completed(name, body);
            read(body.to_string().as_bytes(), &Bounds::EVERYTHING, ask)
                .unwrap_or_else(|err| panic!("{name}: {err}: {body}"));
        }
        assert_eq!(asked::take(), known, "{name}: what is read, what is documented");
    }
}

#[test]
fn every_route_is_documented_and_every_reference_leads_somewhere() {
    let routes =
        include_str!("../lib.rs").split("resource(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let routes: BTreeSet<String> =
        routes.map(|route| route.split(':').next().unwrap().trim_end_matches('}').to_owned()).collect();
    let known = OPERATIONS.iter().map(|operation| operation.path.split('}').next().unwrap().to_owned());
    assert_eq!(routes, known.collect::<BTreeSet<_>>());
    let document = document();
    let mut ids = BTreeSet::new();
    for operation in &OPERATIONS {
        let made = &document["paths"][operation.path][operation.method];
        assert!(ids.insert(made["operationId"].to_string()), "{made}");
    }
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}
