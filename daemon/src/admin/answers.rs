//! What each call does.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::api::{Call, RequestId};
use super::errors::conflict;
use super::figures::requests;
use super::look::{oldest_first, policy};
use super::peer::Peer;
use super::snapshot::RequestRow;
use super::{Admin, audit, dashboard, events, openapi};
use crate::app::Served;
use crate::http::errors::ApiError;
use crate::http::{chrome_trace, no_replica};
use crate::reload::{Changes, LIVE};

/// Requests that are listed at most, of each replica.
const MOST_REQUESTS: usize = 1000;
/// Why nothing is taken after `drain`.
const DRAINED: &str = "drained by an operator";

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

/// Makes a call of `peer`'s. `tag` is what the config must be, if that was said.
pub(super) async fn answer(
    admin: &web::Data<Admin>,
    call: Call,
    peer: &Peer,
    tag: Option<&str>,
) -> Result<HttpResponse, ApiError> {
    let mut ok = HttpResponse::Ok();
    Ok(match call {
        Call::Dashboard => dashboard::answer(),
        Call::Status => ok.json(admin.snapshot(None).await),
        Call::Events(watch) => events::stream(admin.clone(), watch),
        Call::Requests => ok.json(json!({"requests": admin.requests().await?})),
        Call::Config => {
            let config = admin.config().await;
            ok.insert_header((header::ETAG, format!("\"{}\"", config.tag))).json(config)
        }
        Call::Plan => ok.json(admin.plan().await?),
        Call::Policy => ok.json(policy(admin.reload.lock().await.config())),
        Call::LogLevel => ok.json(json!({"level": admin.level().await})),
        Call::Metrics => {
            ok.content_type("text/plain; version=0.0.4; charset=utf-8").body(admin.app.render_metrics())
        }
        Call::OpenApi => ok.json(openapi::document()),
        Call::Cancel(id) => {
            admin.cancel(id).await?;
            audit::changed(peer, "cancel", &json!(id.to_string()), &Value::Null);
            ok.json(json!({"cancelled": id.to_string()}))
        }
        Call::Drain { wait } => ok.json(admin.drain(wait, peer).await?),
        Call::Resume => {
            admin.resume(peer)?;
            ok.json(json!({"state": "serving"}))
        }
        Call::Reload => ok.json(admin.reload(peer, tag).await?),
        Call::SetPolicy(keys) => ok.json(admin.set("policy", &keys, peer, tag).await?),
        Call::SetLogLevel(level) => {
            ok.json(admin.set("log-level", &[("log.level", level)], peer, tag).await?)
        }
        Call::Trace { length, replica } => {
            let trace = admin.trace(length, replica).await?;
            audit::changed(
                peer,
                "trace",
                &Value::Null,
                &json!({"seconds": length.as_secs(), "replica": replica}),
            );
            ok.content_type("application/json").body(trace)
        }
        Call::Profile => ok.json(admin.measure(peer).await?),
    })
}

impl Admin {
    /// The pair, for calls that need one.
    pub(super) fn served(&self) -> Result<&Arc<Served>, ApiError> {
        self.app.loaded().ok_or_else(|| ApiError::unavailable(self.app.loading(), "loading"))
    }

    async fn requests(&self) -> Result<Vec<RequestRow>, ApiError> {
        let served = self.served()?;
        let mut rows = Vec::new();
        for replica in 0..served.service.count() {
            let look =
                self.look(served, replica, MOST_REQUESTS, None).await.ok_or_else(|| silent(replica))?;
            rows.extend(requests(replica, &look));
        }
        oldest_first(&mut rows);
        Ok(rows)
    }

    async fn cancel(&self, id: RequestId) -> Result<(), ApiError> {
        let served = self.served()?;
        let service = served.service.replica(id.replica).ok_or_else(|| no_replica(&served.service))?;
        match service.cancel(id.seq).await {
            Some(true) => Ok(()),
            Some(false) => {
                let message = format!("there is no request {id}, or not any more; /v1/requests lists them");
                Err(ApiError::refused(actix_web::http::StatusCode::NOT_FOUND, "no_such_request", message))
            }
            None => Err(silent(id.replica)),
        }
    }

    async fn config(&self) -> ConfigView {
        let reload = self.reload.lock().await;
        let (pending, error) = match reload.pending() {
            Ok(pending) => (pending, None),
            Err(err) => (Vec::new(), Some(err.to_string())),
        };
        let row = |live: &crate::reload::LiveKey| LiveRow {
            key: live.key,
            value: (live.of)(reload.config()),
            when: live.when,
        };
        ConfigView {
            file: reload.file().map(|file| file.display().to_string()),
            tag: reload.tag(),
            written: reload.written().clone(),
            live: LIVE.iter().map(row).collect(),
            pending,
            error,
        }
    }

    async fn plan(&self) -> Result<Value, ApiError> {
        let config = self.reload.lock().await.config().clone();
        let planned = web::block(move || {
            let report = crate::plan::plan(&config).map_err(|err| err.to_string())?;
            serde_json::to_value(report).map_err(|err| err.to_string())
        });
        let planned = planned.await.map_err(|err| ApiError::internal(err.to_string(), "internal_error"))?;
        planned.map_err(|why| ApiError::internal(why, "plan"))
    }

    async fn level(&self) -> String {
        self.reload.lock().await.config().log.level.to_string().to_lowercase()
    }

    async fn drain(&self, wait: Duration, peer: &Peer) -> Result<Drained, ApiError> {
        self.not_ending()?;
        let served = self.served()?;
        let before = self.app.paused();
        self.app.pause(Some(DRAINED));
        audit::changed(peer, "drain", &json!(before.unwrap_or("serving")), &json!(DRAINED));
        Ok(Drained { left: served.service.idle(wait).await })
    }

    fn resume(&self, peer: &Peer) -> Result<(), ApiError> {
        self.not_ending()?;
        if self.measuring.try_lock().is_err() {
            return Err(conflict(
                "measuring",
                "costs are being measured: requests are taken again after that",
            ));
        }
        let before = self.app.paused();
        self.app.pause(None);
        audit::changed(peer, "resume", &json!(before.unwrap_or("serving")), &json!("serving"));
        Ok(())
    }

    pub(super) fn not_ending(&self) -> Result<(), ApiError> {
        if self.app.draining() {
            return Err(conflict("ending", "the daemon is on its way down, and nothing changes that"));
        }
        Ok(())
    }

    async fn reload(&self, peer: &Peer, tag: Option<&str>) -> Result<Changes, ApiError> {
        let served = self.served()?;
        let mut reload = self.reload.lock().await;
        reload.expect(tag)?;
        let changes = reload.run(Some(&served.service)).await?;
        audit_changes(peer, "reload", &changes);
        Ok(changes)
    }

    async fn set(
        &self,
        what: &str,
        keys: &[(&'static str, Value)],
        peer: &Peer,
        tag: Option<&str>,
    ) -> Result<Changes, ApiError> {
        let served = self.served()?;
        let mut reload = self.reload.lock().await;
        reload.expect(tag)?;
        let changes = reload.set(keys, Some(&served.service)).await?;
        audit_changes(peer, what, &changes);
        Ok(changes)
    }

    async fn trace(&self, length: Duration, replica: usize) -> Result<Vec<u8>, ApiError> {
        let service = &self.served()?.service;
        let record = service.record(replica, length).await.ok_or_else(|| no_replica(service))??;
        chrome_trace(record).await
    }
}

fn audit_changes(peer: &Peer, what: &str, changes: &Changes) {
    let side = |of: fn(&crate::reload::Change) -> &Value| {
        Value::Object(changes.applied.iter().map(|change| (change.key.clone(), of(change).clone())).collect())
    };
    audit::changed(peer, what, &side(|change| &change.before), &side(|change| &change.after));
}

fn silent(replica: usize) -> ApiError {
    ApiError::unavailable(format!("the dispatcher of replica {replica} does not answer"), "silent")
}
