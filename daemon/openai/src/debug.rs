//! GET /debug/trace: what the lanes do from now on, as Chrome trace JSON. For operators, and only if the config says so.

use std::str::FromStr;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use faser_actors::Replicas;
use faser_bench::trace::write_chrome_trace;
use faser_config::fields::{Fault, FieldError};
use faser_engine::record::Record;

use super::errors::ApiError;
use crate::app::App;

/// Seconds recorded if nobody says how many.
const DEFAULT_S: u64 = 5;

/// Records one replica for `seconds`, then answers.
pub(super) async fn trace(app: web::Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    if !app.limits.debug {
        let message = "`/debug/trace` is switched off; set `server.debug: true` in the config to have it";
        return Err(ApiError::refused(StatusCode::NOT_FOUND, "debug_off", message));
    }
    let Query { seconds, replica } = Query::read(request.query_string())?;
    let served = app.served()?.of_query(request.query_string())?;
    let length = Duration::from_secs(seconds.unwrap_or(DEFAULT_S));
    let record = served.service.record(replica.unwrap_or(0), length).await;
    let record = record.ok_or_else(|| no_replica(&served.service))??;
    Ok(HttpResponse::Ok().content_type("application/json").body(chrome_trace(record).await?))
}

/// There is no replica of the number asked for.
pub fn no_replica(service: &Replicas) -> FieldError {
    let problem = format!("must be below {}, the number of replicas", service.count());
    FieldError::new("replica", Fault::Value, problem)
}

/// A record as Chrome trace JSON.
///
/// # Errors
/// It cannot be written.
pub async fn chrome_trace(record: Record) -> Result<Vec<u8>, ApiError> {
    // Much text, and others are waiting for this thread.
    let written = web::block(move || {
        let mut trace = Vec::new();
        write_chrome_trace(&record, record.from..record.until, &mut trace).map(|()| trace)
    });
    let failed = |why: String| ApiError::internal(format!("the trace cannot be written: {why}"), "trace");
    let trace = written.await.map_err(|err| failed(err.to_string()))?;
    trace.map_err(|err| failed(err.to_string()))
}

/// The parameters there are. Their ranges are the service's affair.
#[derive(Default)]
struct Query {
    seconds: Option<u64>,
    replica: Option<usize>,
}

impl Query {
    fn read(query: &str) -> Result<Query, ApiError> {
        let mut read = Query::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "seconds" => once(&mut read.seconds, "seconds", value, 5)?,
                "replica" => once(&mut read.replica, "replica", value, 1)?,
                // Read by whoever has the pairs.
                "model" => {}
                _ => {
                    let name: String = name.chars().take(64).collect();
                    let problem = "is unknown; known here: seconds, replica, model";
                    let name = name.escape_debug().to_string();
                    return Err(FieldError::new(name, Fault::Unknown, problem).into());
                }
            }
        }
        Ok(read)
    }
}

/// Reads a whole number that is given at most once.
fn once<T: FromStr>(
    number: &mut Option<T>,
    name: &str,
    value: &str,
    example: usize,
) -> Result<(), FieldError> {
    let given = value.parse().ok().filter(|_| number.is_none());
    *number = Some(given.ok_or_else(|| {
        let problem = format!("must be one whole number, as in /debug/trace?{name}={example}");
        FieldError::new(name, Fault::Value, problem)
    })?);
    Ok(())
}
