//! What each call does.

use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use faser_actors::Seen;
use faser_config::Config;
use faser_config::fields::{Fault, FieldError};
use faser_openai::errors::ApiError;
use faser_openai::pairs::Pairs;
use faser_openai::{chrome_trace, no_replica};
use futures_util::stream;
use serde_json::{Value, json};

use super::admin_api::{Call, RequestId, Watch};
use super::admin_errors::conflict;
use super::admin_openapi::{
    self, Cancelled, ConfigView, Drained, Forgotten, LevelView, LiveRow, Requests, State,
};
use super::look::{Admin, oldest_first};
use super::peer::Peer;
use super::snapshot::{PolicyView, RequestRow};
use super::view_figures::requests;
use super::{audit, dashboard};
use crate::reload::{Changes, LIVE};

/// Requests that are listed at most, of each replica.
const MOST_REQUESTS: usize = 1000;
/// Why nothing is taken after `drain`.
const DRAINED: &str = "drained by an operator";

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
        Call::Status(pair) => ok.json(admin.snapshot(pair.as_deref(), None).await?),
        Call::Events(watch) => events(admin.clone(), watch)?,
        Call::Requests(pair) => ok.json(Requests { requests: admin.requests(pair.as_deref()).await? }),
        Call::Config => {
            let config = admin.config().await;
            ok.insert_header((header::ETAG, format!("\"{}\"", config.tag))).json(config)
        }
        Call::Plan(pair) => ok.json(admin.plan(pair.as_deref()).await?),
        Call::Policy(pair) => ok.json(PolicyView::of(&admin.config_of(pair.as_deref()).await?.tuning)),
        Call::LogLevel => ok.json(LevelView { level: admin.level().await }),
        Call::Metrics => {
            ok.content_type("text/plain; version=0.0.4; charset=utf-8").body(admin.app.render_metrics())
        }
        Call::OpenApi => ok.json(admin_openapi::document()),
        Call::Cancel(id) => {
            admin.cancel(id).await?;
            audit::changed(peer, "cancel", &json!(id.to_string()), &Value::Null);
            ok.json(Cancelled { cancelled: id.to_string() })
        }
        Call::Drain { wait } => ok.json(admin.drain(wait, peer).await?),
        Call::Resume => {
            admin.resume(peer)?;
            ok.json(State { state: "serving".to_owned() })
        }
        Call::Reload => ok.json(admin.reload(peer, tag).await?),
        Call::SetPolicy { keys, pair } => {
            ok.json(admin.set("policy", &keys, pair.as_deref(), peer, tag).await?)
        }
        Call::SetLogLevel(level) => {
            ok.json(admin.set("log-level", &[("log.level", level)], None, peer, tag).await?)
        }
        Call::Trace { length, replica, pair } => {
            let trace = admin.trace(length, replica, pair.as_deref()).await?;
            audit::changed(
                peer,
                "trace",
                &Value::Null,
                &json!({"seconds": length.as_secs(), "replica": replica, "pair": pair}),
            );
            ok.content_type("application/json").body(trace)
        }
        Call::Profile(pair) => ok.json(admin.measure(pair.as_deref(), peer).await?),
        Call::Forget(pair) => ok.json(admin.forget(pair.as_deref(), peer).await?),
    })
}

/// `GET /v1/events`, as long as somebody reads them: one event now, and one after every interval. A reader that is slower gets fewer.
///
/// # Errors
/// 404: there is no such pair.
fn events(admin: web::Data<Admin>, watch: Watch) -> Result<HttpResponse, ApiError> {
    if let Some(pairs) = admin.app.loaded() {
        pairs.named(watch.pair.as_deref())?;
    }
    let begin = (admin, watch.timeline.then(Vec::<Seen>::new), false);
    let Watch { every, pair, .. } = watch;
    let events = stream::unfold(begin, move |(admin, mut seen, begun)| {
        let pair = pair.clone();
        async move {
            if begun {
                actix_web::rt::time::sleep(every).await;
            }
            let event = admin.snapshot(pair.as_deref(), seen.as_mut()).await.and_then(|snapshot| {
                serde_json::to_string(&snapshot)
                    .map(|data| web::Bytes::from(format!("event: status\ndata: {data}\n\n")))
                    .map_err(|err| ApiError::internal(err.to_string(), "internal_error"))
            });
            Some((event, (admin, seen, true)))
        }
    });
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/event-stream"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .streaming(events))
}

impl Admin {
    /// The pairs, for calls that need them.
    pub(super) fn pairs(&self) -> Result<&Pairs, ApiError> {
        self.app.loaded().ok_or_else(|| ApiError::unavailable(self.app.loading(), "loading"))
    }

    /// The config in force of a pair; before it is loaded too.
    async fn config_of(&self, pair: Option<&str>) -> Result<Config, ApiError> {
        let reload = self.reload.lock().await;
        let each = reload.config().each();
        let Some(name) = pair else { return Ok(each[0].clone()) };
        let found = each.iter().find(|config| config.model.name.as_deref() == Some(name));
        match (found, self.app.loaded()) {
            (Some(found), _) => Ok(found.clone()),
            (None, Some(pairs)) => pairs.named(pair).map(|_| each[0].clone()),
            (None, None) => Err(ApiError::unavailable(self.app.loading(), "loading")),
        }
    }

    async fn requests(&self, pair: Option<&str>) -> Result<Vec<RequestRow>, ApiError> {
        let pairs = self.pairs()?;
        let chosen = pair.map(|_| pairs.place(pair)).transpose()?.map(|(place, _)| place);
        let mut rows = Vec::new();
        for (place, served) in
            pairs.iter().enumerate().filter(|(place, _)| chosen.is_none_or(|chosen| chosen == *place))
        {
            for replica in 0..served.service.count() {
                let look =
                    self.look(served, replica, MOST_REQUESTS, None).await.ok_or_else(|| silent(replica))?;
                rows.extend(requests(pairs.several().then_some(place), replica, &look));
            }
        }
        oldest_first(&mut rows);
        Ok(rows)
    }

    async fn cancel(&self, id: RequestId) -> Result<(), ApiError> {
        let none =
            || FieldError::new("id", Fault::Value, "is of no pair that there is; /v1/requests lists them");
        let served = self.pairs()?.get(id.pair.unwrap_or(0)).ok_or_else(none)?;
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
            value: live.value(reload.config()),
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

    async fn plan(&self, pair: Option<&str>) -> Result<Value, ApiError> {
        let config = self.config_of(pair).await?;
        let planned = web::block(move || {
            let report = faser_loading::plan_command::plan(&config).map_err(|err| err.to_string())?;
            serde_json::to_value(report).map_err(|err| err.to_string())
        });
        let planned = planned.await.map_err(|err| ApiError::internal(err.to_string(), "internal_error"))?;
        planned.map_err(|why| ApiError::internal(why, "plan"))
    }

    async fn forget(&self, pair: Option<&str>, peer: &Peer) -> Result<Forgotten, ApiError> {
        let pairs = self.pairs()?;
        let chosen = pair.map(|_| pairs.place(pair)).transpose()?.map(|(place, _)| place);
        let mut forgotten = 0;
        let meant = |place: &usize| chosen.is_none_or(|chosen| chosen == *place);
        for (_, served) in pairs.iter().enumerate().filter(|(place, _)| meant(place)) {
            forgotten += served.service.forget_outputs().await;
        }
        audit::changed(peer, "forget", &json!({"pair": pair, "outputs": forgotten}), &Value::Null);
        Ok(Forgotten { outputs: forgotten })
    }

    async fn level(&self) -> String {
        self.reload.lock().await.config().log.level.to_string().to_lowercase()
    }

    async fn drain(&self, wait: Duration, peer: &Peer) -> Result<Drained, ApiError> {
        self.not_ending()?;
        let pairs = self.pairs()?;
        let before = self.app.paused();
        let mut resumed = self.resumed.subscribe();
        self.app.pause(Some(DRAINED));
        audit::changed(peer, "drain", &json!(before.unwrap_or("serving")), &json!(DRAINED));
        tokio::select! {
            biased;
            _ = resumed.changed() => {
                Err(conflict("resumed", "an operator had requests taken again meanwhile: drain once more"))
            }
            left = pairs.idle(wait) => Ok(Drained { left }),
        }
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
        self.resumed.send_modify(|times| *times += 1);
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
        let pairs = self.pairs()?;
        let mut reload = self.reload.lock().await;
        reload.expect(tag)?;
        let changes = reload.run(Some(pairs)).await?;
        audit_changes(peer, "reload", &changes);
        Ok(changes)
    }

    async fn set(
        &self,
        what: &str,
        keys: &[(&'static str, Value)],
        pair: Option<&str>,
        peer: &Peer,
        tag: Option<&str>,
    ) -> Result<Changes, ApiError> {
        let pairs = self.pairs()?;
        let place = pair.map(|_| pairs.place(pair)).transpose()?.map(|(place, _)| place);
        let mut reload = self.reload.lock().await;
        reload.expect(tag)?;
        let changes = reload.set(keys, place, Some(pairs)).await?;
        audit_changes(peer, what, &changes);
        Ok(changes)
    }

    async fn trace(&self, length: Duration, replica: usize, pair: Option<&str>) -> Result<Vec<u8>, ApiError> {
        let service = &self.pairs()?.named(pair)?.service;
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
