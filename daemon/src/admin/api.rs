//! The whole admin API: one enum, and the table of how each of its calls looks in HTTP.

use std::time::Duration;

use actix_web::http::{Method, StatusCode};
use faser_engine::SeqId;
use serde_json::Value;

use super::errors::not_here;
use crate::fields::{Fault, FieldError, Fields};
use crate::http::errors::ApiError;

/// Everything that can be asked of a running daemon. `POST`, `PUT` and `PATCH` change something: they are for root, faser's own user and
/// members of `admin.group`, and each is written to the log as an audit line.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// A page that shows the events in a browser.
    Dashboard,
    /// A snapshot: what the daemon does now.
    Status,
    /// The same again and again, as server-sent events.
    Events(Watch),
    /// The requests it has.
    Requests,
    /// The config in force, what a reload would change, and the tag of it (`ETag`).
    Config,
    /// Where the models of the config would go, as `faser plan` says.
    Plan,
    /// How lengths are chosen, and the bounds of that.
    Policy,
    /// The level of the log.
    LogLevel,
    /// All metrics, in Prometheus' text format.
    Metrics,
    /// This API as an OpenAPI document.
    OpenApi,
    /// Ends one request; its client gets an error. Refused if there is no such request.
    Cancel(RequestId),
    /// Takes no new requests from now on (503, `/ready` too), and answers when those it has are finished, or after `wait`. Refused while
    /// the daemon shuts down.
    Drain {
        /// How long the answer may be waited for.
        wait: Duration,
    },
    /// Takes requests again after a drain. Refused while the daemon shuts down.
    Resume,
    /// Reads the config file again: what can change in a running daemon is applied, all else is named. A wrong file is refused, and changes nothing.
    Reload,
    /// Sets keys of `speculation` and `scheduler` in the running daemon, all or none, until the next reload. Streams go on.
    SetPolicy(Vec<(&'static str, Value)>),
    /// Sets `log.level`, until the next reload.
    SetLogLevel(Value),
    /// Records what the lanes of one replica do, and answers with a trace for ui.perfetto.dev. Refused while somebody else records.
    Trace {
        /// How long.
        length: Duration,
        /// The replica.
        replica: usize,
    },
    /// Measures anew what passes cost, and has all replicas plan by that. Takes no requests meanwhile. Refused while there are requests,
    /// and on a GPU, whose memory the service has.
    Profile,
}

/// How events are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Time between two.
    pub every: Duration,
    /// With the passes of the lanes since the one before.
    pub timeline: bool,
}

/// A request, as `REPLICA-NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The replica that has it.
    pub replica: usize,
    /// Its sequence there.
    pub seq: SeqId,
}

/// A call as it looks in HTTP.
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path; `{id}` stands for one part of it.
    pub path: &'static str,
    /// One line on it.
    pub summary: &'static str,
    /// The fields of its query, or of its JSON body, with one line on each.
    pub fields: &'static [(&'static str, &'static str)],
}

const fn route(
    method: Method,
    path: &'static str,
    summary: &'static str,
    fields: &'static [(&'static str, &'static str)],
) -> Route {
    Route { method, path, summary, fields }
}

const POLICY_FIELDS: &[(&str, &str)] = &[
    ("policy", "off, fixed:K, batch-table:B=K,B=K, budget or faser"),
    ("k_max", "cap on the speculative length, 0 to 16; null for none"),
    ("trim", "leave proposals that do not pay out of a pass"),
    ("overlap", "draft past the frontier while a pass runs"),
    ("prune", "test proposals between layers of a pass"),
    ("lookup", "copy proposals from the text before and from predictions"),
    ("partition", "the one partition for overlapped execution, counted from 1; null for any"),
    ("ttft_ms", "latency target, from arrival to the first token; null for none"),
    ("tpot_ms", "latency target, per token after that; null for none"),
    ("max_running", "sequences that run at once, up to what the daemon was started with"),
    ("max_waiting", "sequences that wait"),
];

/// Where each field of [`Call::SetPolicy`] stands in the config.
const POLICY_KEYS: [&str; 11] = [
    "speculation.policy",
    "speculation.k_max",
    "speculation.trim",
    "speculation.overlap",
    "speculation.prune",
    "speculation.lookup",
    "speculation.partition",
    "speculation.slo.ttft_ms",
    "speculation.slo.tpot_ms",
    "scheduler.max_running",
    "scheduler.max_waiting",
];

/// All calls.
pub const ROUTES: &[Route] = &[
    route(Method::GET, "/", "a page that shows all this in a browser", &[]),
    route(Method::GET, "/v1/status", "what the daemon does now", &[]),
    route(
        Method::GET,
        "/v1/events",
        "the same again and again, as server-sent events",
        &[
            ("every_ms", "time between two events, 100 to 60000; 1000 if left out"),
            ("timeline", "true, or false to leave out what the lanes did; true if left out"),
        ],
    ),
    route(Method::GET, "/v1/requests", "the requests it has, the oldest first", &[]),
    route(Method::POST, "/v1/requests/{id}/cancel", "end one request", &[]),
    route(Method::GET, "/v1/config", "the config in force, and what a reload would change", &[]),
    route(Method::POST, "/v1/reload", "read the config file again; If-Match: the tag of /v1/config", &[]),
    route(Method::GET, "/v1/plan", "where the models of the config would go", &[]),
    route(Method::GET, "/v1/policy", "how speculative lengths are chosen", &[]),
    route(
        Method::PATCH,
        "/v1/policy",
        "have them chosen otherwise; If-Match: the tag of /v1/config",
        POLICY_FIELDS,
    ),
    route(Method::POST, "/v1/profile", "measure anew what passes cost, while there are no requests", &[]),
    route(
        Method::POST,
        "/v1/drain",
        "take no new requests, and wait for those there are",
        &[("wait_s", "how long the answer may be waited for, 0 to 86400; 0 if left out")],
    ),
    route(Method::POST, "/v1/resume", "take requests again", &[]),
    route(
        Method::POST,
        "/v1/trace",
        "record what the lanes do, as a trace for ui.perfetto.dev",
        &[("seconds", "how long, 1 to 60; 5 if left out"), ("replica", "whose lanes; 0 if left out")],
    ),
    route(Method::GET, "/v1/log-level", "the level of the log", &[]),
    route(
        Method::PUT,
        "/v1/log-level",
        "log at another level",
        &[("level", "error, warn, info, debug or trace")],
    ),
    route(Method::GET, "/metrics", "all metrics, in Prometheus' text format", &[]),
    route(Method::GET, "/openapi.json", "this API as an OpenAPI document", &[]),
];

impl Call {
    /// Reads a call: `input` is its query or its JSON body, as an object.
    ///
    /// # Errors
    /// 404, 405, or 400 with the field that is wrong.
    pub fn read(method: &Method, path: &str, input: &Value) -> Result<Call, ApiError> {
        let (route, part) = find(method, path)?;
        let mut fields = Fields::new("", input)?;
        let call = match (route.method.as_str(), route.path) {
            ("GET", "/") => Call::Dashboard,
            ("GET", "/v1/status") => Call::Status,
            ("GET", "/v1/events") => Call::Events(Watch {
                every: Duration::from_millis(fields.whole("every_ms", 100..=60_000)?.unwrap_or(1000)),
                timeline: fields.flag("timeline")?.unwrap_or(true),
            }),
            ("GET", "/v1/requests") => Call::Requests,
            ("POST", "/v1/requests/{id}/cancel") => Call::Cancel(RequestId::read(part)?),
            ("GET", "/v1/config") => Call::Config,
            ("POST", "/v1/reload") => Call::Reload,
            ("GET", "/v1/plan") => Call::Plan,
            ("GET", "/v1/policy") => Call::Policy,
            ("PATCH", "/v1/policy") => Call::SetPolicy(policy(&mut fields, input)?),
            ("POST", "/v1/profile") => Call::Profile,
            ("POST", "/v1/drain") => {
                Call::Drain { wait: Duration::from_secs(fields.whole("wait_s", 0..=86_400)?.unwrap_or(0)) }
            }
            ("POST", "/v1/resume") => Call::Resume,
            ("POST", "/v1/trace") => Call::Trace {
                length: Duration::from_secs(fields.whole("seconds", 1..=60)?.unwrap_or(5)),
                replica: fields.size("replica", 0..=4096)?.unwrap_or(0),
            },
            ("GET", "/v1/log-level") => Call::LogLevel,
            ("PUT", "/v1/log-level") => {
                let level = fields.value("level").cloned();
                let missing =
                    || FieldError::new("level", Fault::Missing, "is missing: write `info`, for example");
                Call::SetLogLevel(level.ok_or_else(missing)?)
            }
            ("GET", "/metrics") => Call::Metrics,
            ("GET", "/openapi.json") => Call::OpenApi,
            (_, path) => return Err(ApiError::internal(format!("{path} has no call"), "internal_error")),
        };
        fields.finish()?;
        Ok(call)
    }

    /// Whether it changes something, or costs the daemon more than a look.
    pub fn changes(&self) -> bool {
        match self {
            Call::Dashboard
            | Call::Status
            | Call::Events(_)
            | Call::Requests
            | Call::Config
            | Call::Plan
            | Call::Policy
            | Call::LogLevel
            | Call::Metrics
            | Call::OpenApi => false,
            Call::Cancel(_)
            | Call::Drain { .. }
            | Call::Resume
            | Call::Reload
            | Call::SetPolicy(_)
            | Call::SetLogLevel(_)
            | Call::Trace { .. }
            | Call::Profile => true,
        }
    }
}

/// The route of a request, and the part of the path that `{id}` stands for.
fn find<'p>(method: &Method, path: &'p str) -> Result<(&'static Route, &'p str), ApiError> {
    let there = || ROUTES.iter().filter_map(|route| Some((route, part(route.path, path)?)));
    if let Some(found) = there().find(|(route, _)| route.method == *method) {
        return Ok(found);
    }
    let methods: Vec<&str> = there().map(|(route, _)| route.method.as_str()).collect();
    if methods.is_empty() {
        return Err(not_here(path));
    }
    let message = format!("{path} is not for {method}; use {}", methods.join(" or "));
    Err(ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message))
}

/// What stands in `path` for `{id}` of `pattern`; empty if it has none. `None` if they do not match.
fn part<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    match pattern.split_once("{id}") {
        None => (pattern == path).then_some(""),
        Some((before, behind)) => {
            let id = path.strip_prefix(before)?.strip_suffix(behind)?;
            (!id.is_empty() && !id.contains('/')).then_some(id)
        }
    }
}

/// Every field that is there, null too, by its key of the config. What values may be, the config knows.
fn policy(fields: &mut Fields<'_>, input: &Value) -> Result<Vec<(&'static str, Value)>, FieldError> {
    let mut keys = Vec::new();
    for ((name, _), key) in POLICY_FIELDS.iter().zip(POLICY_KEYS) {
        // Asked for, so that `finish` knows it.
        let value = fields.value(name);
        if input.get(name).is_some() {
            keys.push((key, value.cloned().unwrap_or(Value::Null)));
        }
    }
    if keys.is_empty() && input.as_object().is_some_and(serde_json::Map::is_empty) {
        let known: Vec<&str> = POLICY_FIELDS.iter().map(|(name, _)| *name).collect();
        return Err(FieldError::new(
            "",
            Fault::Missing,
            format!("nothing is to change: give any of {}", known.join(", ")),
        ));
    }
    Ok(keys)
}

impl RequestId {
    fn read(text: &str) -> Result<RequestId, FieldError> {
        let wrong = || {
            let problem = "must be REPLICA-NUMBER, such as 0-17; /v1/requests lists them";
            FieldError::new("id", Fault::Value, problem)
        };
        let (replica, seq) = text.split_once('-').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        Ok(RequestId { replica: number(replica)? as usize, seq: SeqId(number(seq)?) })
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.replica, self.seq.0)
    }
}

/// The values of a query as JSON would have them: whole numbers and flags are no strings there.
///
/// # Errors
/// A field is given twice.
pub fn query(text: &str) -> Result<Value, FieldError> {
    let mut object = serde_json::Map::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
        let value = match text {
            "true" => true.into(),
            "false" => false.into(),
            text => text.parse::<u64>().map_or_else(|_| text.into(), Value::from),
        };
        if object.insert(name.chars().take(64).collect(), value).is_some() {
            return Err(FieldError::new(name.escape_debug().to_string(), Fault::Value, "is given twice"));
        }
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(method: &Method, path: &str, input: &Value) -> Result<Call, String> {
        Call::read(method, path, input).map_err(|err| err.to_string())
    }

    #[test]
    fn every_route_has_a_call_and_only_get_changes_nothing() {
        for Route { method, path, .. } in ROUTES {
            let input = match (method.as_str(), *path) {
                ("PATCH", _) => json!({"k_max": 3}),
                ("PUT", _) => json!({"level": "info"}),
                _ => json!({}),
            };
            let call = read(method, &path.replace("{id}", "0-7"), &input).unwrap();
            assert_eq!(call.changes(), *method != Method::GET, "{method} {path}");
        }
    }

    #[test]
    fn calls_are_read_with_their_fields() {
        assert_eq!(
            read(&Method::GET, "/v1/events", &query("every_ms=250&timeline=false").unwrap()),
            Ok(Call::Events(Watch { every: Duration::from_millis(250), timeline: false }))
        );
        assert_eq!(
            read(&Method::PATCH, "/v1/policy", &json!({"k_max": null, "max_waiting": 3})),
            Ok(Call::SetPolicy(vec![
                ("speculation.k_max", Value::Null),
                ("scheduler.max_waiting", json!(3))
            ]))
        );
        let id = RequestId { replica: 1, seq: SeqId(17) };
        assert_eq!(read(&Method::POST, "/v1/requests/1-17/cancel", &json!({})), Ok(Call::Cancel(id)));
    }

    #[test]
    fn what_is_no_call_is_refused_with_what_would_be() {
        for (method, path, input, words) in [
            (Method::GET, "/v1/nothing", json!({}), "/v1/status"),
            (Method::DELETE, "/v1/policy", json!({}), "use GET or PATCH"),
            (Method::POST, "/v1/requests/7/cancel", json!({}), "REPLICA-NUMBER"),
            (Method::POST, "/v1/requests//cancel", json!({}), "nothing at"),
            (Method::PATCH, "/v1/policy", json!({}), "nothing is to change"),
            (Method::PATCH, "/v1/policy", json!({"polcy": "off"}), "did you mean `policy`"),
            (Method::PUT, "/v1/log-level", json!({}), "is missing"),
            (Method::POST, "/v1/drain", json!({"wait_s": -1}), "0 to 86400"),
            (Method::GET, "/v1/status", json!({"x": 1}), "`x` is unknown"),
        ] {
            let refusal = read(&method, path, &input).unwrap_err();
            assert!(refusal.contains(words), "{path}: {refusal}");
        }
        assert!(query("a=1&a=2").is_err());
    }
}
