//! What calls work on, and snapshots of the daemon.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use actix_web::rt::time::timeout;
use actix_web::web;
use faser_actors::{LaneSizes, Look, Seen};
use faser_engine::LoadView;
use faser_openai::app::App;
use faser_openai::errors::ApiError;
use faser_openai::pairs::{Pairs, Served};
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::peer::Operators;
use super::snapshot::{ModelView, PairRow, PartitionView, PolicyView, ReplicaView, RequestRow, Snapshot};
use super::timeline::Timeline;
use super::view_figures::{figures, requests};
use crate::reload::Reload;

/// How often views are kept to have rates from.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// How many: rates are over so many seconds.
const SAMPLES: usize = 5;
/// Requests of a snapshot.
const SLOWEST: usize = 10;
/// Shorter than this a window says nothing.
const SHORTEST_WINDOW: Duration = Duration::from_millis(200);

/// How long a dispatcher may take to answer, before it is shown as one that does not.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// What the calls work on.
pub struct Admin {
    pub(super) app: web::Data<App>,
    pub(super) reload: Arc<AsyncMutex<Reload>>,
    pub(super) operators: Operators,
    /// When each was taken, and the views of the replicas of each pair: the oldest first.
    samples: Mutex<VecDeque<(Instant, Vec<Vec<LoadView>>)>>,
    started: Instant,
    /// Held while costs are measured.
    pub(super) measuring: Arc<AsyncMutex<()>>,
    /// How often requests were taken again: who waits for a drain hears of it.
    pub(super) resumed: watch::Sender<u64>,
}

impl Admin {
    /// Of a daemon that begins to load now.
    pub fn new(app: web::Data<App>, reload: Arc<AsyncMutex<Reload>>, operators: Operators) -> Admin {
        Admin {
            app,
            reload,
            operators,
            samples: Mutex::default(),
            started: Instant::now(),
            measuring: Arc::default(),
            resumed: watch::Sender::default(),
        }
    }
}

impl Admin {
    /// Keeps how things are, to have rates from.
    pub(super) fn sample(&self) {
        let Some(pairs) = self.app.loaded() else { return };
        let views = pairs.iter().map(|served| served.service.views()).collect();
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back((Instant::now(), views));
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    /// The oldest views of a pair that there are, and their age; none if they are too young.
    fn earlier(&self, pair: usize) -> Option<(Duration, Vec<LoadView>)> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, views) = samples.front()?;
        Some((at.elapsed(), views.get(pair)?.clone())).filter(|(age, _)| *age >= SHORTEST_WINDOW)
    }

    /// The daemon now, and the first of its pairs, or the one of this name. `seen` is what was seen of the lanes of each replica, and is brought up to date; without it they are not looked at.
    ///
    /// # Errors
    /// 404: there is no such pair.
    pub(super) async fn snapshot(
        &self,
        pair: Option<&str>,
        mut seen: Option<&mut Vec<Seen>>,
    ) -> Result<Snapshot, ApiError> {
        let (state, detail) = self.state();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut snapshot = Snapshot {
            time_ms: since_epoch.as_millis() as u64,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            state: state.into(),
            detail,
            ..Snapshot::default()
        };
        let Some(pairs) = self.app.loaded() else { return Ok(snapshot) };
        let (place, served) = pairs.place(pair)?;
        let number_of_pair = pairs.several().then_some(place);
        let service = &served.service;
        let (window, then) = self
            .earlier(place)
            .unwrap_or_else(|| (self.started.elapsed(), vec![LoadView::default(); service.count()]));
        let (mut sum_then, mut sum) = (LoadView::default(), LoadView::default());
        for (number, state) in service.words().into_iter().enumerate() {
            let cursor = seen.as_mut().map(|seen| {
                seen.resize(service.count(), Seen::default());
                &mut seen[number]
            });
            let before = then.get(number).cloned().unwrap_or_default();
            let (replica, view, look) = self.replica(served, number, state, (&before, window), cursor).await;
            snapshot.slowest.extend(look.iter().flat_map(|look| requests(number_of_pair, number, look)));
            if number == 0 {
                (sum_then, sum) = (before, view);
            } else {
                sum_then.add(&before);
                sum.add(&view);
            }
            snapshot.replicas.push(replica);
        }
        snapshot.total = figures(&sum_then, &sum, window, service.count());
        snapshot.window_s = window.as_secs_f64();
        oldest_first(&mut snapshot.slowest);
        snapshot.slowest.truncate(SLOWEST);
        snapshot.pairs = rows(pairs);
        snapshot.model = Some(model(served));
        snapshot.policy =
            self.reload.lock().await.config().each().get(place).map(|config| PolicyView::of(&config.tuning));
        Ok(snapshot)
    }

    async fn replica(
        &self,
        served: &Served,
        number: usize,
        state: String,
        (then, window): (&LoadView, Duration),
        seen: Option<&mut Seen>,
    ) -> (ReplicaView, LoadView, Option<Look>) {
        let look = self.look(served, number, SLOWEST, seen.as_ref().map(|seen| **seen)).await;
        let answers = look.is_some();
        let policy = look.as_ref().map(|look| look.tuning.policy.to_string());
        let view = match &look {
            Some(look) => look.view.clone(),
            None => served.service.replica(number).map(faser_actors::Service::view).unwrap_or_default(),
        };
        let mut timeline = None;
        if let Some(look) = &look
            && let (Some(seen), Some(recent)) = (seen, &look.recent)
        {
            *seen = recent.seen;
            timeline = Some(Timeline::new(look.now, recent));
        }
        let figures = figures(then, &view, window, 1);
        let draft_retired = served.service.replica(number).and_then(faser_actors::Service::draft_retired);
        let replica =
            ReplicaView { replica: number, state, draft_retired, answers, policy, figures, timeline };
        (replica, view, look)
    }

    /// Asks the dispatcher of a replica; `None` if it does not answer.
    pub(super) async fn look(
        &self,
        served: &Served,
        replica: usize,
        most: usize,
        seen: Option<Seen>,
    ) -> Option<Look> {
        let service = served.service.replica(replica)?;
        timeout(ANSWERS_WITHIN, service.look(most, seen)).await.ok()?
    }

    /// What the daemon is at, as one word and in many.
    fn state(&self) -> (&'static str, String) {
        let app = &self.app;
        if app.draining() {
            return ("draining", "the daemon is on its way down".to_owned());
        }
        match (app.loaded(), app.paused()) {
            (None, _) => ("loading", app.loading()),
            (Some(_), Some(why)) => ("paused", why.to_owned()),
            (Some(pairs), None) if pairs.ready() => ("serving", pairs.status()),
            (Some(pairs), None) => ("not-ready", pairs.status()),
        }
    }
}

pub(super) fn oldest_first(rows: &mut [RequestRow]) {
    rows.sort_by(|a, b| b.age_s.total_cmp(&a.age_s));
}

/// Each pair of several.
fn rows(pairs: &Pairs) -> Vec<PairRow> {
    let row = |served: &std::sync::Arc<Served>| PairRow {
        name: served.name.clone(),
        ready: served.service.ready(),
        state: served.service.status(),
        requests: served.service.active(),
    };
    pairs.iter().filter(|_| pairs.several()).map(row).collect()
}

fn model(served: &Served) -> ModelView {
    let partition = |LaneSizes { draft, verify }| PartitionView { draft, verify };
    ModelView {
        name: served.name.clone(),
        max_context: served.max_context,
        device_kind: served.machine.kind(),
        device: served.machine.name().to_owned(),
        unit: served.device.unit().into(),
        partitions: served.device.partitions().into_iter().map(partition).collect(),
        block_size: served.bounds.block_size,
        max_pass_rows: served.bounds.max_pass_rows,
    }
}
