//! Random cases: requests, how they are sampled, and engines for them; and what each request gets when it is alone.

use crate::rig::{OnGpu, PARTITIONS, Pair, Random, Rig};
use faser_actors::{Constraint, Dtype, LaneRequest, LogprobCollector, Logprobs, Sampling};
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost, ROW_GRID};
use faser_engine::{
    DraftSource, EngineConfig, FinishReason, Handling, Learned, Mechanisms, Policy, ProposedBlock, Request,
    SeqId, Slo, SpeculationBounds, SpeculationMode, TokenId, Tuning, Usage,
};
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{
    BlockSpec, ConfidenceInput, Grammar, GrammarCompiler, GrammarSource, GrammarVocabulary, HeadKind,
    MarkovKind, MarkovSpec, Tokenizer,
};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const VOCAB: usize = 256;
const LAYERS: usize = 3;
const MAX_CONTEXT: usize = 96;
const LONGEST_PROMPT: u64 = 60;
pub(crate) const BLOCK: usize = 16;

/// Those that propose more stand there more often.
const MODES: [SpeculationMode; 6] = [
    SpeculationMode::Auto,
    SpeculationMode::Auto,
    SpeculationMode::Auto,
    SpeculationMode::Off,
    SpeculationMode::Lookup,
    SpeculationMode::Draft,
];

#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) request: Request,
    pub(crate) sampling: Sampling,
    pub(crate) wants: Wants,
}

/// What is wanted beside tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    /// Log-probabilities, with so many of the likeliest tokens.
    pub(crate) logprobs: Option<usize>,
    /// Of the prompt's tokens too.
    pub(crate) of_prompt: bool,
    /// One of [`GRAMMARS`].
    pub(crate) grammar: Option<usize>,
}

/// Ends what follows a grammar; as a byte it is in no text.
pub(crate) const END: TokenId = 255;

/// Over the vocabulary of the pair, whose tokens are bytes.
pub(crate) static GRAMMARS: LazyLock<Vec<Grammar>> = LazyLock::new(|| {
    let schema = serde_json::json!({
        "type": "object", "required": ["id", "kind"], "additionalProperties": false,
        "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["a", null]}},
    });
    let tokenizer = Tokenizer::synthetic(VOCAB).expect("a tokenizer");
    let vocabulary = GrammarVocabulary::new(&tokenizer, VOCAB, &[END]).expect("a vocabulary");
    let compiler = GrammarCompiler::new(&vocabulary).expect("a compiler");
    let compile = |source| compiler.compile(&vocabulary.program(source)?);
    let sources = [
        GrammarSource::JsonSchema(schema),
        GrammarSource::JsonObject,
        GrammarSource::Regex("([a-z]{1,3} ?){2,9}[.!]".to_owned()),
        GrammarSource::Choice(["yes", "no, never", "yes, of course"].map(str::to_owned).to_vec()),
        GrammarSource::Lark("start: \"(\" (start | /[0-9]+/)* \")\"".to_owned()),
    ];
    sources.iter().map(|source| compile(source).expect("a grammar")).collect()
});

/// What a request got.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) reason: FinishReason,
    pub(crate) usage: Usage,
    /// Of each token of prompt and output, if they were wanted.
    pub(crate) logprobs: Vec<Option<Logprobs>>,
}

impl Case {
    /// Hands it in.
    pub(crate) fn submit(&self, rig: &mut Rig) {
        let logprobs = self.wants.logprobs.map(|top| {
            Arc::new(match self.wants.of_prompt {
                true => LogprobCollector::with_prompt(top, self.request.prompt.clone()),
                false => LogprobCollector::of_output(top),
            })
        });
        let history_free = !self.sampling.reads_history() && self.wants.grammar.is_none();
        let whole_prompt = self.wants.of_prompt;
        let mut request = Request { history_free, whole_prompt, ..self.request.clone() };
        if rig.engine.proposes(request.handling.mode).is_err() {
            request.handling.mode = SpeculationMode::Off;
        }
        let grammar = self.wants.grammar.map(|number| GRAMMARS[number].clone());
        let constraint = grammar.map(|grammar| Arc::new(Constraint::new(grammar)));
        rig.submit(request, LaneRequest { logprobs, constraint, ..self.sampling.clone().into() });
    }

    /// What it got in the end.
    pub(crate) fn outcome(&self, rig: &mut Rig) -> Got {
        let (tokens, (reason, usage)) = outcome(rig, self.request.seq);
        let collector = rig.requests[&self.request.seq].logprobs.as_ref();
        let all = 0..self.request.prompt.len() + tokens.len();
        let logprobs = collector
            .map_or_else(Vec::new, |collector| all.map(|position| collector.take(position)).collect());
        Got { tokens, reason, usage, logprobs }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.request, self.sampling, self.wants)
    }
}

/// The reference: alone, on an engine of its own, without speculation; on a GPU, if the pair is there.
pub(crate) fn solo(pair: &Pair, case: &Case) -> Got {
    let config = EngineConfig {
        block_size: BLOCK,
        target_blocks: MAX_CONTEXT / BLOCK,
        draft: DraftSource::Lookup,
        max_pass_rows: MAX_CONTEXT,
        max_context: MAX_CONTEXT,
        partitions: Vec::new(),
        target_layers: 0,
        deterministic: pair.cuda.is_some(),
        speculation: SpeculationBounds::default(),
        prefix_cache: false,
        learned: Learned::default(),
        tuning: Tuning { max_running: 1, max_waiting: 1, policy: Policy::Off, ..Tuning::default() },
    };
    let cuda = pair.cuda.clone().map(|cuda| OnGpu { draft: None, ..cuda });
    let mut rig = Rig::new(&Pair { target: pair.target.clone(), draft: None, cuda, shards: None }, &config);
    case.submit(&mut rig);
    rig.finish();
    case.outcome(&mut rig)
}

fn outcome(rig: &mut Rig, seq: SeqId) -> (Vec<TokenId>, (FinishReason, Usage)) {
    let stream = rig.streams.remove(&seq).expect("a stream for every request");
    (stream.tokens, stream.ended.expect("every stream ends"))
}

/// Blocks that heads propose: of each kind of Markov head, and of none.
pub(crate) const BLOCK_KINDS: [BlockSpec; 3] = [
    BlockSpec {
        rows: 5,
        from_anchor: true,
        causal: false,
        markov: Some(MarkovSpec { kind: MarkovKind::Recurrent, rank: 6 }),
        confidence: Some(ConfidenceInput::HiddenAndBefore),
    },
    BlockSpec { rows: 4, from_anchor: false, causal: false, markov: None, confidence: None },
    BlockSpec {
        rows: 7,
        from_anchor: true,
        causal: true,
        markov: Some(MarkovSpec { kind: MarkovKind::Gated, rank: 8 }),
        confidence: None,
    },
];

/// What stands in places whose tokens are not known yet.
pub(crate) const MASK: TokenId = 254;

pub(crate) fn spec() -> SyntheticSpec {
    SyntheticSpec {
        layers: LAYERS,
        draft_layers: 1,
        hidden: 32,
        intermediate: 48,
        experts: 0,
        experts_per_token: 0,
        heads: 4,
        kv_heads: 2,
        vocab: VOCAB,
        max_context: MAX_CONTEXT,
        seed: 7,
        residual_scale: 0.3,
        mask_token: Some(MASK),
    }
}

/// The same with eight query heads and two KV heads, and more to be split.
pub(crate) fn split_spec() -> SyntheticSpec {
    SyntheticSpec { hidden: 64, heads: 8, ..spec() }
}

pub(crate) fn pair(dtype: Dtype) -> Pair {
    pair_of(&spec(), dtype)
}

/// What a head reads, how many tokens it proposes, and what its weights are made from.
pub(crate) const HEAD_STREAMS: [usize; 3] = [0, 2, LAYERS];
pub(crate) const HEAD_TOKENS: usize = VOCAB / 2;
pub(crate) const HEAD_SEED: u64 = 3;

/// The same target with a head on its hidden states, which was never trained.
pub(crate) fn with_head(dtype: Dtype, head: Dtype, kind: HeadKind) -> Pair {
    let pair = pair(dtype);
    let mask = (kind != HeadKind::Steps).then_some(MASK);
    let shape = (HEAD_TOKENS, kind, mask);
    let draft = synthetic::head_of_kind(&pair.target, &HEAD_STREAMS, shape, HEAD_SEED, head).expect("a head");
    Pair { draft: Some(Arc::new(draft)), ..pair }
}

pub(crate) fn pair_of(spec: &SyntheticSpec, dtype: Dtype) -> Pair {
    let (target, draft) = synthetic::pair(spec, dtype, &mut |_| {}).expect("a synthetic pair");
    Pair { target: Arc::new(target), draft: Some(Arc::new(draft)), cuda: None, shards: None }
}

/// The same with keys and values in 8 bits, those of the draft too.
pub(crate) fn with_int8_kv(dtype: Dtype) -> Pair {
    let (target, draft) = synthetic::pair(&spec(), dtype, &mut |_| {}).expect("a synthetic pair");
    let [target, draft] = [target, draft].map(|model| Arc::new(model.with_kv(Dtype::Int8)));
    Pair { target, draft: Some(draft), cuda: None, shards: None }
}

/// A target whose draft is often right.
pub(crate) fn often_right(dtype: Dtype) -> Pair {
    pair_of(&often_right_spec(), dtype)
}

/// A pair whose layers have experts, of each row a few.
pub(crate) fn with_experts(dtype: Dtype) -> Pair {
    pair_of(&with_experts_spec(&spec()), dtype)
}

/// The same layers with experts.
pub(crate) fn with_experts_spec(spec: &SyntheticSpec) -> SyntheticSpec {
    SyntheticSpec { experts: 5, experts_per_token: 2, intermediate: 16, ..spec.clone() }
}

/// That of [`often_right`].
pub(crate) fn often_right_spec() -> SyntheticSpec {
    SyntheticSpec { residual_scale: 0.1, ..spec() }
}

impl Pair {
    /// What proposes with this pair: its head if it has one, with as many blocks as another draft would have.
    pub(crate) fn draft_source(&self, other: DraftSource) -> DraftSource {
        let blocks = other.needs().blocks;
        let head = self.draft.as_ref().and_then(|draft| draft.config().head.as_ref());
        match head.map(|head| head.kind) {
            None => other,
            Some(HeadKind::Steps) => DraftSource::head(blocks),
            Some(HeadKind::Masks) => DraftSource::one_pass_head(blocks),
            Some(HeadKind::Block(block)) => {
                let (rows, proposals) = (block.rows, block.proposals());
                DraftSource::block_head(blocks, ProposedBlock { rows, proposals })
            }
        }
    }
}

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below((high - low + 1) as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn fraction(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.below(1 << 20) as f32 / (1 << 20) as f32
    }

    pub(crate) fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    pub(crate) fn token(&mut self) -> TokenId {
        self.below(VOCAB as u64) as TokenId
    }

    /// Small pools force preemptions, small passes chunked prefill.
    pub(crate) fn config(&mut self) -> EngineConfig {
        let max_running = self.between(1, 5);
        let least_blocks = MAX_CONTEXT / BLOCK;
        EngineConfig {
            block_size: BLOCK,
            target_blocks: self.between(least_blocks, least_blocks + 4),
            draft: match self.between(least_blocks, 2 * least_blocks) {
                blocks if self.chance(30) => DraftSource::one_pass(blocks),
                blocks => DraftSource::model(blocks),
            },
            max_pass_rows: self.between(max_running, 40),
            max_context: MAX_CONTEXT,
            partitions: (0..self.between(1, PARTITIONS)).map(|_| self.costs()).collect(),
            target_layers: LAYERS,
            deterministic: max_running.is_multiple_of(2),
            speculation: SpeculationBounds {
                suffix_bytes: if self.chance(70) { 1 << 16 } else { 0 },
                ..SpeculationBounds::default()
            },
            prefix_cache: self.chance(50),
            learned: Learned::default(),
            tuning: Tuning {
                max_running,
                max_waiting: 16,
                policy: self.one_of(&[
                    Policy::Off,
                    Policy::Fixed { k: 1 },
                    Policy::Fixed { k: 2 },
                    Policy::Fixed { k: 4 },
                    Policy::Fixed { k: 8 },
                    Policy::BatchTable { steps: vec![(1, 8), (3, 2)] },
                    Policy::Budget,
                    Policy::Faser,
                    Policy::Faser,
                    Policy::Faser,
                ]),
                mechanisms: Mechanisms {
                    trim: self.chance(80),
                    overlap: self.chance(80),
                    prune: self.chance(80),
                    lookup: self.chance(80),
                    sizing: self.chance(80),
                },
                slo: Slo {
                    ttft: None,
                    tpot: self.chance(20).then(|| Duration::from_micros(self.below(900))),
                },
                ..Tuning::default()
            },
        }
    }

    /// Costs of any shape: what they make the planner do must not show in any text.
    pub(crate) fn costs(&mut self) -> PartitionCosts {
        let mut cost = || {
            let (pass, row) = (self.between(1, 3000), self.between(0, 200));
            let times = ROW_GRID.map(|rows| (rows, Duration::from_micros((pass + row * rows) as u64)));
            let attention =
                AttentionCost { per_kv_fs: self.below(100_000_000), per_row_fs: self.below(100_000_000) };
            PassCost::new(&times, attention)
        };
        PartitionCosts { draft: cost(), verify: cost() }
    }

    /// One request alone, or several.
    pub(crate) fn cases(&mut self) -> Vec<Case> {
        let count = if self.chance(20) { 1 } else { self.between(2, 7) };
        let shared: Vec<TokenId> = (0..LONGEST_PROMPT).map(|_| self.token()).collect();
        (0..count as u64).map(|seq| self.case(SeqId(seq), &shared)).collect()
    }

    pub(crate) fn case(&mut self, seq: SeqId, shared: &[TokenId]) -> Case {
        let length = 1 + self.below(LONGEST_PROMPT) as usize;
        let mut prompt: Vec<TokenId> = (0..length).map(|_| self.token()).collect();
        if self.chance(50) {
            let common = self.between(0, length);
            prompt[..common].copy_from_slice(&shared[..common]);
        }
        let stops = if self.chance(30) { self.between(1, 40) } else { 0 };
        let request = Request::new(seq, prompt, self.between(1, 30));
        let stop_tokens = (0..stops).map(|_| self.token()).collect();
        let request = Request { stop_tokens, handling: self.handling(), ..request };
        Case { request, sampling: self.sampling(), wants: Wants::default() }
    }

    /// Anything that a client may wish of its scheduling.
    pub(crate) fn handling(&mut self) -> Handling {
        let target = |random: &mut Random, percent, most| {
            random.chance(percent).then(|| Duration::from_micros(random.below(most)))
        };
        Handling {
            k_max: self.one_of(&[None, None, Some(0), Some(1), Some(2), Some(4), Some(8)]),
            mode: self.one_of(&MODES),
            slo: Slo { ttft: target(self, 20, 9000), tpot: target(self, 20, 900) },
            priority: if self.chance(60) { 0 } else { self.below(5) as i32 - 2 },
            salt: if self.chance(80) { 0 } else { u128::from(self.below(3)) },
            owner: if self.chance(70) { 0 } else { u128::from(self.below(3)) },
        }
    }

    /// Gives some of the cases what not every device offers.
    pub(crate) fn want_more(&mut self, cases: &mut [Case]) {
        for Case { request, sampling, wants } in cases {
            if self.chance(30) {
                wants.grammar = Some(self.below(GRAMMARS.len() as u64) as usize);
                let stops = request.stop_tokens.iter().copied().filter(|_| self.chance(10));
                request.stop_tokens = stops.chain([END]).collect();
            } else if self.chance(25) {
                sampling.min_tokens = self.between(1, 20) as u32;
                sampling.ends = request.stop_tokens.to_vec();
            }
            if wants.grammar.is_none() && self.chance(30) {
                let words = self.between(1, 20);
                sampling.banned =
                    (0..words).map(|i| (0..1 + i % 3).map(|_| self.token()).collect()).collect();
                sampling.allowed = self.chance(30).then(|| (0..64).map(|_| self.next() as u32).collect());
            }
            if self.chance(30) {
                wants.logprobs = Some(self.between(0, 20));
                wants.of_prompt = self.chance(40);
            }
        }
    }

    pub(crate) fn sampling(&mut self) -> Sampling {
        let mut sampling = Sampling { seed: self.next(), ..Sampling::default() };
        sampling.temperature = if self.chance(35) { 0.0 } else { self.fraction(0.2, 1.5) };
        if self.chance(25) {
            sampling.top_k = self.between(1, 20) as u32;
        }
        if self.chance(25) {
            sampling.top_p = self.fraction(0.5, 1.0);
        }
        if self.chance(20) {
            sampling.min_p = self.fraction(0.0, 0.2);
        }
        if self.chance(25) {
            sampling.repetition_penalty = self.fraction(0.8, 1.6);
        }
        if self.chance(25) {
            sampling.presence_penalty = self.fraction(-1.0, 2.0);
        }
        if self.chance(25) {
            sampling.frequency_penalty = self.fraction(-0.5, 1.5);
        }
        if self.chance(20) {
            let biases = self.between(1, 20);
            sampling.logit_bias = (0..biases).map(|_| (self.token(), self.fraction(-4.0, 4.0))).collect();
        }
        sampling
    }
}
