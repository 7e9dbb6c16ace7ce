//! What the HTTP handlers share: the model pairs being served, and how far the daemon is with its life.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use faser_actors::{Constraint, DeviceSpec, LogprobBoard, Replicas, Sampling, Submission, SubmitError};
use faser_engine::{EngineConfig, TokenId};
use faser_models::{CallFormat, ChatTemplate, GenerationDefaults, Grammar, ModelError, Tokenizer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::config::{Config, ServerConfig};
use crate::device::Machine;
use crate::grammars::Grammars;
use crate::http::Bodies;
use crate::http::errors::ApiError;
use crate::http::params::Parameters;
use crate::names::Names;
use crate::pairs::Pairs;
use crate::sequence::{Reading, TextSequence};

/// A model pair, ready to take prompts.
pub struct Served {
    /// What clients call it.
    pub name: String,
    /// Unix time at which it was loaded, in seconds.
    pub created: u64,
    /// Its engines and devices.
    pub service: Replicas,
    /// Its tokenizer, the same for target and draft.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, or why chats cannot be had.
    pub template: Result<ChatTemplate, ModelError>,
    /// How it writes calls of functions, if it does.
    pub calls: Option<CallFormat>,
    /// The tokens by which it ends a text.
    pub eos: Vec<TokenId>,
    /// What outputs may have to follow.
    pub grammars: Grammars,
    /// What requests sample by where they say nothing themselves.
    pub defaults: GenerationDefaults,
    /// Token ids are below this.
    pub vocab: usize,
    /// Tokens of a sequence, prompt and output together.
    pub max_context: usize,
    /// Places for long texts that are being tokenized, which takes a core for a while.
    pub encoding: Arc<Semaphore>,
    /// The config that it was loaded by.
    pub config: Config,
    /// What the first replica runs on.
    pub machine: Machine,
    /// The first replica's device, with its partitions.
    pub device: DeviceSpec,
    /// The bounds that its engines were made with.
    pub bounds: EngineConfig,
}

/// What a sequence is opened with beside its prompt and the request's parameters.
#[derive(Debug, Default)]
pub struct Opening<'a> {
    /// Which choice of the prompt it is.
    pub number: usize,
    /// Tokens when the request does not say, but no more than the context has left; `None` is all of that.
    pub max_new_tokens: Option<usize>,
    /// What its text begins with.
    pub echo: Option<String>,
    /// What the client expects.
    pub prediction: Vec<TokenId>,
    /// What its text follows.
    pub grammar: Option<&'a Grammar>,
}

impl Served {
    /// What requests may call it.
    pub fn names(&self) -> Names<'_> {
        Names { main: &self.name, aliases: &self.config.model.aliases }
    }

    /// Tokens that end an output without a form.
    pub fn ends(&self, parameters: &Parameters) -> Vec<TokenId> {
        let mut ends = parameters.stop_tokens.clone();
        if !parameters.ignore_eos {
            ends.extend(&self.eos);
            ends.extend(parameters.calls.and_then(|calls| calls.format.end(&self.tokenizer)));
        }
        ends
    }

    /// Opens a sequence.
    ///
    /// # Errors
    /// The service refuses it.
    pub async fn open(
        &self,
        prompt: &Arc<[TokenId]>,
        parameters: &Parameters,
        opening: Opening<'_>,
    ) -> Result<TextSequence, SubmitError> {
        let Opening { number, max_new_tokens, echo, prediction, grammar } = opening;
        let rest = self.max_context.saturating_sub(prompt.len()).max(1);
        let mut stop_tokens = self.ends(parameters);
        let constraint = grammar.map(|grammar| Arc::new(Constraint::new(grammar.clone())));
        if constraint.is_some() {
            stop_tokens.extend(self.grammars.ends());
        }
        let min_tokens = parameters.min_tokens;
        let sampling = Sampling {
            min_tokens: u32::try_from(min_tokens).unwrap_or(u32::MAX),
            ends: if min_tokens > 0 { stop_tokens.clone() } else { Vec::new() },
            ..parameters.sampling_of(number)
        };
        let max_new_tokens = parameters
            .max_new_tokens
            .unwrap_or_else(|| max_new_tokens.map_or(rest, |tokens| tokens.min(rest)));
        let logprobs = parameters.logprobs.map(|top| {
            Arc::new(match &echo {
                Some(_) => LogprobBoard::with_prompt(top, Arc::clone(prompt)),
                None => LogprobBoard::of_output(top),
            })
        });
        let reading = Reading {
            stops: parameters.stop.clone(),
            include_stop: parameters.include_stop,
            min_tokens,
            prompt: Arc::clone(prompt),
            echo,
            prompt_only: max_new_tokens == 0,
            logprobs: logprobs.clone(),
            tells: parameters.tells_tokens(),
            constraint: constraint.clone(),
            marks: parameters.calls.map_or_else(Vec::new, |calls| calls.format.marks(&self.tokenizer)),
            took: parameters.include_metrics,
        };
        let submission = Submission {
            prompt: prompt.to_vec(),
            sampling,
            // The prompt alone: the one token that comes tells that it is computed, whichever it is.
            stop_tokens: if max_new_tokens == 0 { Vec::new() } else { stop_tokens },
            max_new_tokens: max_new_tokens.max(1),
            prediction,
            handling: parameters.handling,
            logprobs,
            constraint,
        };
        let tokens = self.service.submit(submission).await?;
        Ok(TextSequence::new(tokens, &self.tokenizer, reading))
    }
}

/// The daemon as its handlers see it.
pub struct App {
    /// The limits of the HTTP side.
    pub limits: ServerConfig,
    /// Who may come.
    pub access: Arc<Access>,
    /// The bodies that are being read.
    pub bodies: Bodies,
    metrics: PrometheusHandle,
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
            pairs: OnceLock::new(),
            loading: RwLock::new("loading models".to_owned()),
            draining: AtomicBool::new(false),
            paused: RwLock::new(None),
        }
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
        crate::metrics::rendered(&self.metrics)
    }

    /// How far loading is.
    pub fn loading(&self) -> String {
        self.loading.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
