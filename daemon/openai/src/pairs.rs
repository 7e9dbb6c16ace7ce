//! The model pairs that are served, most often one: how a sequence of one is opened, which of them a request means, and what is done to all.

use std::sync::Arc;
use std::time::Duration;

use faser_actors::{Constraint, DeviceSpec, LogprobCollector, Replicas, Sampling, Submission};
use faser_config::Config;
use faser_config::device::Machine;
use faser_config::fields::{Fault, FieldError};
use faser_engine::{EngineConfig, TokenId};
use faser_models::{
    CallFormat, ChatTemplate, Conversation, GenerationDefaults, Grammar, ModelError, ReasoningFormat,
    ReasoningParser, ReasoningStart, Tokenizer,
};
use futures_util::future::join_all;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::bounds::{Bounds, TemplateReads};
use crate::conversation::{EFFORT, VERBOSITY, with_tools_in_text};
use crate::errors::ApiError;
use crate::grammars::Grammars;
use crate::names::Names;
use crate::params::Parameters;
use crate::request_trace::{Asked, SequenceTrace};
use crate::resume::{RESUME, Resume};
use crate::text_sequence::{AT_ONCE, LEAST_AT_ONCE, Reading, TextSequence};

/// A model pair, ready to take prompts.
pub struct Served {
    /// What clients call it.
    pub name: String,
    /// Names that mean the same.
    pub aliases: Vec<String>,
    /// Unix time at which it was loaded, in seconds.
    pub created: u64,
    /// Its engines and devices.
    pub service: Replicas,
    /// Its tokenizer, the same for target and draft.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, or why chats cannot be had.
    pub template: Result<ChatTemplate, ModelError>,
    /// How it writes tool calls, if it does.
    pub calls: Option<CallFormat>,
    /// How it writes its reasoning, if that is told from the rest.
    pub reasoning: Option<ReasoningFormat>,
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
    /// Whether priorities of requests count.
    pub priorities: bool,
    /// Places for work that takes a core for a while, as to tokenize a long text.
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
    /// How many sequences its request has.
    pub sequences: usize,
    /// What the client expects.
    pub prediction: Vec<TokenId>,
    /// What its text follows.
    pub grammar: Option<&'a Grammar>,
    /// Where it begins, if its reasoning is told from the rest.
    pub reasoning: Option<ReasoningStart>,
}

impl Served {
    /// What requests may call it.
    pub fn names(&self) -> Names<'_> {
        Names { main: &self.name, aliases: &self.aliases }
    }

    /// What requests of an owner are measured against.
    pub(crate) fn bounds_of_requests(
        &self,
        max_prompts: usize,
        max_body_bytes: usize,
        owner: u128,
    ) -> Bounds<'_> {
        let reads = |name| self.template.as_ref().is_ok_and(|template| template.reads(name));
        Bounds {
            names: self.names(),
            vocab: self.vocab,
            max_context: self.max_context,
            max_prompts,
            max_body_bytes,
            calls: self.calls,
            priorities: self.priorities,
            template: TemplateReads {
                tools: reads("tools"),
                reasoning_effort: reads(EFFORT),
                verbosity: reads(VERBOSITY),
            },
            defaults: self.defaults,
            owner,
        }
    }

    /// The conversation as the model's chat template writes it.
    pub(crate) fn render(&self, conversation: &Conversation) -> Result<String, ApiError> {
        let refuse = |err: &dyn std::fmt::Display| {
            ApiError::bad_request(err.to_string(), Some("messages"), "chat_template_error")
        };
        let template = self.template.as_ref().map_err(|err| refuse(err))?;
        // Where the template does not tell the model of its tools, the conversation does.
        let in_text = self.calls == Some(CallFormat::Json) && !template.reads("tools");
        let rewritten = in_text.then(|| with_tools_in_text(conversation));
        template.render(rewritten.as_ref().unwrap_or(conversation)).map_err(|err| refuse(&err))
    }

    /// Tokens that end an output that is not a structured one.
    pub fn ends(&self, parameters: &Parameters) -> Vec<TokenId> {
        let mut ends = parameters.stop_tokens.clone();
        if !parameters.ignore_eos {
            ends.extend(&self.eos);
            ends.extend(parameters.calls.and_then(|calls| calls.format.end(&self.tokenizer)));
        }
        ends
    }

    /// Where an output behind this prompt of a chat begins, if its reasoning is told from the rest.
    pub(crate) fn reasoning_behind(&self, prompt: &str, parameters: &Parameters) -> Option<ReasoningStart> {
        // Without its channels a text of Harmony would not be told from calls.
        let told =
            |format: &ReasoningFormat| !parameters.reasoning_in_text || *format == ReasoningFormat::Harmony;
        self.reasoning.filter(told).map(|format| format.start(prompt))
    }

    /// Special tokens that are part of calls and reasoning, which are read from the text.
    fn marks(&self, parameters: &Parameters, reasons: bool) -> Vec<TokenId> {
        let mut marks = parameters.calls.map_or_else(Vec::new, |calls| calls.format.marks(&self.tokenizer));
        marks.extend(
            self.reasoning.filter(|_| reasons).iter().flat_map(|format| format.marks(&self.tokenizer)),
        );
        marks
    }

    /// Opens a sequence.
    ///
    /// # Errors
    /// The service refuses it; or it is to go on behind what it could not have.
    pub async fn open(
        &self,
        prompt: &Arc<[TokenId]>,
        parameters: &Parameters,
        opening: Opening<'_>,
    ) -> Result<TextSequence, ApiError> {
        let Opening { number, max_new_tokens, echo, sequences, prediction, grammar, reasoning } = opening;
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
        let resume = parameters.resume.as_ref();
        let (received, text) = (resume.map_or(&[][..], Resume::tokens), resume.and_then(Resume::text));
        check_received(received, max_new_tokens, &stop_tokens, parameters.include_stop)?;
        let logprobs = parameters.logprobs.map(|top| {
            Arc::new(match &echo {
                // The client has those of the prompt.
                Some(_) if received.is_empty() => LogprobCollector::with_prompt(top, Arc::clone(prompt)),
                _ => LogprobCollector::of_output(top),
            })
        });
        let reading = Reading {
            stops: parameters.stop.clone(),
            include_stop: parameters.include_stop,
            min_tokens,
            prompt: Arc::clone(prompt),
            echo,
            at_once: (AT_ONCE / (sequences.max(1) * (1 + parameters.logprobs.unwrap_or(0))))
                .max(LEAST_AT_ONCE),
            prompt_only: max_new_tokens == 0,
            logprobs: logprobs.clone(),
            all_tokens: parameters.lists_tokens(),
            constraint: constraint.clone(),
            received: received.to_vec(),
            received_text: text.unwrap_or_default().to_owned(),
            marks: self.marks(parameters, reasoning.is_some()),
            reasoning: self
                .reasoning
                .zip(reasoning)
                .and_then(|(format, start)| ReasoningParser::new(format, start, &self.tokenizer)),
        };
        let before_last = received.split_last().map_or(&[][..], |(_, before)| before);
        let submission = Submission {
            prompt: prompt.to_vec(),
            // The last of them is drawn again, which shows that they are of this request.
            output: before_last.to_vec(),
            sampling,
            // The prompt alone: the one token that comes tells that it is computed, whichever it is.
            stop_tokens: if max_new_tokens == 0 { Vec::new() } else { stop_tokens },
            max_new_tokens: max_new_tokens.max(1),
            prediction,
            handling: parameters.handling,
            logprobs,
            constraint,
            // A stop string ends it as soon as it is seen, and so does another text than the client has.
            whole: !parameters.stream && parameters.stop.is_empty() && parameters.resume.is_none(),
        };
        let mut sequence = TextSequence::new(&self.tokenizer, reading).await;
        match sequence.ended() {
            None => {
                let asks = Asked {
                    model: &parameters.model,
                    max_new_tokens,
                    sampling: &parameters.sampling,
                    n: parameters.n.0,
                };
                let trace = SequenceTrace::of(&self.name, asks);
                sequence.read(self.service.submit(submission).await?, trace);
            }
            Some(tokens) if tokens == received.len() => {}
            Some(tokens) => {
                let problem =
                    format!("go on behind a stop string, which the first {tokens} of them end with");
                return Err(wrong_tokens(problem));
            }
        }
        Ok(sequence)
    }
}

/// Refuses tokens that no client can have of an output.
fn check_received(
    received: &[TokenId],
    max_new_tokens: usize,
    stop_tokens: &[TokenId],
    include_stop: bool,
) -> Result<(), ApiError> {
    if received.len() > max_new_tokens {
        let found = received.len();
        let problem = format!("are {found}, more than the most that the output may have, {max_new_tokens}");
        return Err(wrong_tokens(problem));
    }
    let may_end = received.split_last().filter(|_| include_stop).map_or(received, |(_, before)| before);
    match may_end.iter().find(|token| stop_tokens.contains(token)) {
        Some(token) => Err(wrong_tokens(format!("have token {token}, which ends the output"))),
        None => Ok(()),
    }
}

fn wrong_tokens(problem: String) -> ApiError {
    FieldError::new(format!("{RESUME}.token_ids"), Fault::Value, problem).into()
}

/// One pair or several, in the order of the config. Clones are handles on the same ones.
#[derive(Clone)]
pub struct Pairs(Arc<[Arc<Served>]>);

impl Pairs {
    /// These.
    ///
    /// # Panics
    /// There are none: every config has one.
    pub fn new(all: Vec<Arc<Served>>) -> Pairs {
        assert!(!all.is_empty(), "a config has at least one pair");
        Pairs(all.into())
    }

    /// The first, which requests get that name none.
    pub fn first(&self) -> &Arc<Served> {
        &self.0[0]
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.0.iter()
    }

    /// Whether there is more than one.
    pub fn several(&self) -> bool {
        self.0.len() > 1
    }

    /// The pair of this number.
    pub fn get(&self, number: usize) -> Option<&Arc<Served>> {
        self.0.get(number)
    }

    /// The pair of this name, or the first.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn named(&self, name: Option<&str>) -> Result<&Arc<Served>, ApiError> {
        self.place(name).map(|(_, served)| served)
    }

    /// [`Pairs::named`] with the number of the pair.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn place(&self, name: Option<&str>) -> Result<(usize, &Arc<Served>), ApiError> {
        let Some(name) = name else { return Ok((0, self.first())) };
        let found = self.iter().enumerate().find(|(_, served)| served.names().find(name).is_some());
        found.ok_or_else(|| ApiError::unknown_model(name, self.names()))
    }

    /// The pair that the JSON of a request names as `model`, or the first: also of a body that cannot be read, for whoever reads it whole
    /// says what is wrong with it.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn of_body(&self, body: &[u8]) -> Result<&Arc<Served>, ApiError> {
        #[derive(Deserialize)]
        struct Named {
            model: Option<String>,
        }
        if !self.several() {
            return Ok(self.first());
        }
        let model = serde_json::from_slice::<Named>(body).ok().and_then(|body| body.model);
        self.named(model.as_deref())
    }

    /// The pair that a query names as `model`, or the first.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn of_query(&self, query: &str) -> Result<&Arc<Served>, ApiError> {
        self.named(model_of(query).as_deref())
    }

    /// All their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().flat_map(|served| served.names().all())
    }

    /// Streams that have not ended.
    pub fn active(&self) -> usize {
        self.iter().map(|served| served.service.active()).sum()
    }

    /// Each has a replica that serves.
    pub fn ready(&self) -> bool {
        self.iter().all(|served| served.service.ready())
    }

    /// What their devices do, on one line; of several only those that do not serve, or without a draft, unless all do.
    pub fn status(&self) -> String {
        let in_trouble = |served: &&Arc<Served>| !served.service.ready() || served.service.draft_retired();
        let troubled: Vec<&Arc<Served>> = self.iter().filter(in_trouble).collect();
        match troubled.as_slice() {
            _ if !self.several() => self.first().service.status(),
            [] => "serving".to_owned(),
            troubled => {
                let words = |served: &&Arc<Served>| format!("{}: {}", served.name, served.service.status());
                troubled.iter().map(words).collect::<Vec<_>>().join("; ")
            }
        }
    }

    /// Brings all metrics that follow from views up to date.
    pub fn publish_metrics(&self) {
        self.iter().for_each(|served| served.service.publish_metrics());
    }

    /// Comes back when the dispatchers of all have answered; `false` if one has stopped.
    pub async fn heartbeat(&self) -> bool {
        for served in self.iter() {
            if !served.service.heartbeat().await {
                return false;
            }
        }
        true
    }

    /// Waits until no device of any is left that could serve.
    pub async fn until_given_up(&self) {
        for served in self.iter() {
            served.service.until_given_up().await;
        }
    }

    /// Waits, at most for `wait`, until there are no requests; says how many are left.
    pub async fn idle(&self, wait: Duration) -> usize {
        join_all(self.iter().map(|served| served.service.idle(wait))).await.into_iter().sum()
    }

    /// Takes nothing new from now on, and waits as [`Pairs::idle`].
    pub async fn drain(&self, timeout: Duration) -> usize {
        join_all(self.iter().map(|served| served.service.drain(timeout))).await.into_iter().sum()
    }

    /// Ends all their threads.
    pub async fn stop(&self) {
        join_all(self.iter().map(|served| served.service.clone().stop())).await;
    }
}

/// What a query says of `model`.
pub fn model_of(query: &str) -> Option<String> {
    let fields = actix_web::web::Query::<Vec<(String, String)>>::from_query(query).ok()?;
    fields.into_inner().into_iter().find_map(|(name, value)| (name == "model").then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_model() {
        assert_eq!(model_of("replica=1&model=Qwen%2FQwen3"), Some("Qwen/Qwen3".to_owned()));
        assert_eq!((model_of("seconds=1"), model_of("")), (None, None));
    }
}
