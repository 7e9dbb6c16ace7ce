//! What the HTTP handlers share: the limits, who may come, the pairs being served, and how far the daemon is with its life.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use actix_web::{HttpRequest, web};
use faser_config::ServerConfig;
use faser_telemetry::Traces;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::access::Access;
use crate::body::{self, Ask, Bodies};
use crate::caller::owner;
use crate::errors::ApiError;
use crate::pairs::{Pairs, Served};

/// The daemon as its handlers see it.
pub struct App {
    /// The limits of the HTTP side.
    pub limits: ServerConfig,
    /// Who may come.
    pub access: Arc<Access>,
    /// The bodies that are being read.
    pub bodies: Bodies,
    metrics: PrometheusHandle,
    /// Where traces of requests go, if anywhere.
    traces: Option<Arc<Traces>>,
    pairs: OnceLock<Pairs>,
    loading: RwLock<String>,
    draining: AtomicBool,
    /// Why nothing new is taken for now, if an operator has said so.
    paused: RwLock<Option<&'static str>>,
}

impl App {
    /// A daemon that has yet to load its models.
    pub fn new(limits: ServerConfig, access: Arc<Access>, metrics: PrometheusHandle) -> App {
        App {
            limits,
            access,
            bodies: Bodies::default(),
            metrics,
            traces: None,
            pairs: OnceLock::new(),
            loading: RwLock::new("loading models".to_owned()),
            draining: AtomicBool::new(false),
            paused: RwLock::new(None),
        }
    }

    /// The same with traces of requests, if they go anywhere.
    #[must_use]
    pub fn traced(self, traces: Option<Traces>) -> App {
        App { traces: traces.map(Arc::new), ..self }
    }

    /// Where traces of requests go, if anywhere.
    pub fn traces(&self) -> Option<&Arc<Traces>> {
        self.traces.as_ref()
    }

    /// Says how far loading is; shown by /ready.
    pub fn set_loading(&self, progress: String) {
        *self.loading.write().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// From now on prompts are taken. Only the first call counts.
    pub fn serve(&self, pairs: Pairs) {
        self.pairs.get_or_init(|| pairs);
    }

    /// From now on nothing new is taken.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The daemon is on its way down.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Takes nothing new until `None` is given, for this reason.
    pub fn pause(&self, why: Option<&'static str>) {
        *self.paused.write().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why nothing new is taken for now, if an operator has said so.
    pub fn paused(&self) -> Option<&'static str> {
        *self.paused.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pairs as they are, whether requests are taken or not; none while they are loaded.
    pub fn loaded(&self) -> Option<&Pairs> {
        self.pairs.get()
    }

    /// The pairs, for a request that wants tokens from one of them.
    ///
    /// # Errors
    /// 503: they are not loaded yet, an operator has it take nothing new, or the daemon is on its way down.
    pub fn served(&self) -> Result<&Pairs, ApiError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable(
                "the server is shutting down and takes no new requests",
                "draining",
            ));
        }
        if let Some(why) = self.paused() {
            return Err(ApiError::unavailable(
                format!("the server takes no new requests for now: {why}"),
                "drained",
            ));
        }
        self.pairs.get().ok_or_else(|| ApiError::unavailable(self.loading(), "loading"))
    }

    /// The pair that a request names, and what it asks of that, as `ask` reads it.
    ///
    /// # Errors
    /// The body cannot be read or taken, there is no such pair, or `ask` refuses.
    pub(crate) async fn asked<T>(
        &self,
        request: &HttpRequest,
        payload: web::Payload,
        ask: Ask<T>,
    ) -> Result<(&Arc<Served>, T), ApiError> {
        let pairs = self.served()?;
        let body = body::receive(request, payload, &self.limits, &self.bodies).await?;
        let served = pairs.of_body(&body)?;
        let (max_prompts, max_body_bytes) = (self.limits.max_prompts_per_request, self.limits.max_body_bytes);
        let bounds = served.bounds_of_requests(max_prompts, max_body_bytes, owner(request));
        let asked = body::read(&body, &bounds, ask)?;
        Ok((served, asked))
    }

    /// Whether a request would be taken now, whichever pair it is for; or for the pair of this name.
    ///
    /// # Errors
    /// Why not.
    pub fn readiness(&self, model: Option<&str>) -> Result<(), String> {
        if self.draining.load(Ordering::Relaxed) {
            return Err("draining".to_owned());
        }
        if let Some(why) = self.paused() {
            return Err(why.to_owned());
        }
        let pairs = self.pairs.get().ok_or_else(|| self.loading())?;
        let (ready, status) = match model {
            None => (pairs.ready(), pairs.status()),
            Some(_) => {
                let service = &pairs.named(model).map_err(|err| err.to_string())?.service;
                (service.ready(), service.status())
            }
        };
        if ready { Ok(()) } else { Err(status) }
    }

    /// All metrics in Prometheus' text format, with counters as of this moment.
    pub fn render_metrics(&self) -> String {
        if let Some(pairs) = self.pairs.get() {
            pairs.publish_metrics();
        }
        self.metrics.run_upkeep();
        crate::metrics_recorder::rendered(&self.metrics)
    }

    /// How far loading is.
    pub fn loading(&self) -> String {
        self.loading.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
