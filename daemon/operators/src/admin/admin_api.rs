//! The whole admin API: one enum, and the table of how each of its calls looks in HTTP.

use std::sync::LazyLock;
use std::time::Duration;

use actix_web::http::{Method, StatusCode};
use actix_web::web;
use faser_config::fields::{Fault, FieldError, Fields};
use faser_config::tunables::{TUNABLES, Tunable};
use faser_engine::SeqId;
use faser_openai::errors::ApiError;
use serde_json::Value;

use super::admin_errors::not_here;

/// Everything that can be asked of a running daemon. `POST`, `PUT` and `PATCH` change something: they are for root, faser's own user and
/// members of `admin.group`, and each is written to the log as an audit line. What a call has beside that is the name of a pair, of several:
/// without one the first is meant, of `Requests`
/// and `Forget` all.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// A page that shows the events in a browser.
    Dashboard,
    /// A snapshot: what the daemon does now, and one pair of it.
    Status(Option<String>),
    /// The same again and again, as server-sent events.
    Events(Watch),
    /// The requests it has.
    Requests(Option<String>),
    /// The config in force, what a reload would change, and the tag of it (`ETag`).
    Config,
    /// Where the models of the config would go, as `faser plan` says.
    Plan(Option<String>),
    /// How lengths are chosen, and the bounds of that.
    Policy(Option<String>),
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
    SetPolicy {
        /// The keys.
        keys: Vec<(&'static str, Value)>,
        /// The pair; all if there is none.
        pair: Option<String>,
    },
    /// Sets `log.level`, until the next reload.
    SetLogLevel(Value),
    /// Records what the lanes of one replica do, and answers with a trace for ui.perfetto.dev. Refused while somebody else records.
    Trace {
        /// How long.
        length: Duration,
        /// The replica.
        replica: usize,
        /// The pair; the first if there is none.
        pair: Option<String>,
    },
    /// Measures anew what passes cost, and has all replicas of a pair plan by that. Takes no requests meanwhile. Refused while there are
    /// requests, and on a GPU, whose memory the service has.
    Profile(Option<String>),
    /// Forgets the past outputs that are proposed from, in all replicas of a pair; of all pairs if there is no name.
    Forget(Option<String>),
}

/// How events are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Time between two.
    pub every: Duration,
    /// With the passes of the lanes since the one before.
    pub timeline: bool,
    /// The pair; the first if there is none.
    pub pair: Option<String>,
}

/// A request, as `REPLICA-NUMBER`, or of several pairs as `PAIR-REPLICA-NUMBER`, all counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The number of the pair that has it, if there are several.
    pub pair: Option<usize>,
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

const THE_PAIR: (&str, &str) = ("pair", "which of several pairs; the first if left out");
const ANY_PAIR: (&str, &str) = ("pair", "which of several pairs; all if left out");

/// All calls.
pub static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let tunables = TUNABLES.iter().map(|tunable| (tunable.name(), tunable.help));
    let policy_fields: Vec<_> = tunables.chain([ANY_PAIR]).collect();
    vec![
        route(Method::GET, "/", "a page that shows all this in a browser", &[THE_PAIR]),
        route(Method::GET, "/v1/status", "what the daemon does now", &[THE_PAIR]),
        route(
            Method::GET,
            "/v1/events",
            "the same again and again, as server-sent events",
            &[
                ("every_ms", "time between two events, 100 to 60000; 1000 if left out"),
                ("timeline", "true, or false to leave out what the lanes did; true if left out"),
                THE_PAIR,
            ],
        ),
        route(Method::GET, "/v1/requests", "the requests it has, the oldest first", &[ANY_PAIR]),
        route(Method::POST, "/v1/requests/{id}/cancel", "end one request", &[]),
        route(Method::GET, "/v1/config", "the config in force, and what a reload would change", &[]),
        route(Method::POST, "/v1/reload", "read the config file again; If-Match: the tag of /v1/config", &[]),
        route(Method::GET, "/v1/plan", "where the models of the config would go", &[THE_PAIR]),
        route(Method::GET, "/v1/policy", "how speculative lengths are chosen", &[THE_PAIR]),
        route(
            Method::PATCH,
            "/v1/policy",
            "have them chosen otherwise; If-Match: the tag of /v1/config",
            policy_fields.leak(),
        ),
        route(
            Method::POST,
            "/v1/profile",
            "measure anew what passes cost, while there are no requests",
            &[THE_PAIR],
        ),
        route(Method::POST, "/v1/forget", "forget the past outputs that are proposed from", &[ANY_PAIR]),
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
            &[
                ("seconds", "how long, 1 to 60; 5 if left out"),
                ("replica", "whose lanes; 0 if left out"),
                THE_PAIR,
            ],
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
    ]
});

impl Call {
    /// Reads a call: `input` is its query or its JSON body, as an object.
    ///
    /// # Errors
    /// 404, 405, or 400 with the field that is wrong.
    pub fn read(method: &Method, path: &str, input: &Value) -> Result<Call, ApiError> {
        let (route, part) = find(method, path)?;
        let mut fields = Fields::new("", input)?;
        let pair =
            if route.fields.iter().any(|(name, _)| *name == "pair") { fields.text("pair")? } else { None };
        let pair = pair.map(str::to_owned);
        let call = match (route.method.as_str(), route.path) {
            ("GET", "/") => Call::Dashboard,
            ("GET", "/v1/status") => Call::Status(pair),
            ("GET", "/v1/events") => Call::Events(Watch {
                every: Duration::from_millis(fields.whole("every_ms", 100..=60_000)?.unwrap_or(1000)),
                timeline: fields.flag("timeline")?.unwrap_or(true),
                pair,
            }),
            ("GET", "/v1/requests") => Call::Requests(pair),
            ("POST", "/v1/requests/{id}/cancel") => Call::Cancel(RequestId::read(part)?),
            ("GET", "/v1/config") => Call::Config,
            ("POST", "/v1/reload") => Call::Reload,
            ("GET", "/v1/plan") => Call::Plan(pair),
            ("GET", "/v1/policy") => Call::Policy(pair),
            ("PATCH", "/v1/policy") => Call::SetPolicy { keys: policy(&mut fields, input)?, pair },
            ("POST", "/v1/profile") => Call::Profile(pair),
            ("POST", "/v1/forget") => Call::Forget(pair),
            ("POST", "/v1/drain") => {
                Call::Drain { wait: Duration::from_secs(fields.whole("wait_s", 0..=86_400)?.unwrap_or(0)) }
            }
            ("POST", "/v1/resume") => Call::Resume,
            ("POST", "/v1/trace") => Call::Trace {
                length: Duration::from_secs(fields.whole("seconds", 1..=60)?.unwrap_or(5)),
                replica: fields.size("replica", 0..=4096)?.unwrap_or(0),
                pair,
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
            | Call::Status(_)
            | Call::Events(_)
            | Call::Requests(_)
            | Call::Config
            | Call::Plan(_)
            | Call::Policy(_)
            | Call::LogLevel
            | Call::Metrics
            | Call::OpenApi => false,
            Call::Cancel(_)
            | Call::Drain { .. }
            | Call::Resume
            | Call::Reload
            | Call::SetPolicy { .. }
            | Call::SetLogLevel(_)
            | Call::Trace { .. }
            | Call::Profile(_)
            | Call::Forget(_) => true,
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
    for tunable in TUNABLES.iter() {
        let name = tunable.name();
        // Asked for, so that `finish` knows it.
        let value = fields.value(name);
        if input.get(name).is_some() {
            keys.push((tunable.key, value.cloned().unwrap_or(Value::Null)));
        }
    }
    if keys.is_empty() && input.as_object().is_some_and(|input| input.keys().all(|name| name == "pair")) {
        let known: Vec<&str> = TUNABLES.iter().map(Tunable::name).collect();
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
            let problem = "must be REPLICA-NUMBER, such as 0-17, or of several pairs PAIR-REPLICA-NUMBER; /v1/requests lists them";
            FieldError::new("id", Fault::Value, problem)
        };
        let numbers = text.split('-').map(str::parse).collect::<Result<Vec<u64>, _>>();
        match numbers.map_err(|_| wrong())?[..] {
            [replica, seq] => Ok(RequestId { pair: None, replica: replica as usize, seq: SeqId(seq) }),
            [pair, replica, seq] => {
                Ok(RequestId { pair: Some(pair as usize), replica: replica as usize, seq: SeqId(seq) })
            }
            _ => Err(wrong()),
        }
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(pair) = self.pair {
            write!(f, "{pair}-")?;
        }
        write!(f, "{}-{}", self.replica, self.seq.0)
    }
}

/// The values of a query as JSON would have them: whole numbers and flags are no strings there, names are.
///
/// # Errors
/// A field is given twice, or it is no query.
pub fn query(text: &str) -> Result<Value, FieldError> {
    let mut object = serde_json::Map::new();
    let fields = web::Query::<Vec<(String, String)>>::from_query(text);
    let fields = fields
        .map_err(|err| FieldError::new("", Fault::Value, format!("the query cannot be read: {err}")))?;
    for (name, text) in fields.into_inner() {
        let value = match text.as_str() {
            _ if name == "pair" => text.into(),
            "true" => true.into(),
            "false" => false.into(),
            number => number.parse::<u64>().map_or_else(|_| number.into(), Value::from),
        };
        if object.insert(name.chars().take(64).collect(), value).is_some() {
            return Err(FieldError::new(name.escape_debug().to_string(), Fault::Value, "is given twice"));
        }
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests;
