//! Engine and runners without actors, threads or clock: plans are carried out one by one, whenever the test says so.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use faser_actors::{DraftRunner, DraftWork, Isa, PassLimits, RunnerSpec, Sampling, VerifyRunner, VerifyWork};
use faser_engine::{
    Admission, Command, DraftResult, Engine, EngineConfig, Event, FinishReason, Request, SeqId, TokenId,
    Usage, VerifyResult,
};
use faser_models::Model;
use faser_topology::Partition;

/// Partitions of the rig's device, all alike.
pub(crate) const PARTITIONS: usize = 3;

/// A target, and its draft if anyone speculates.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) target: Arc<Model>,
    pub(crate) draft: Option<Arc<Model>>,
}

/// What a client has seen of its request.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) ended: Option<(FinishReason, Usage)>,
}

/// A plan on its way to a lane.
pub(crate) enum Plan {
    Draft(DraftWork),
    Verify(VerifyWork),
}

/// The engine, the lanes, and the clients.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) plans: VecDeque<Plan>,
    pub(crate) streams: HashMap<SeqId, Stream>,
    sampling: HashMap<SeqId, Arc<Sampling>>,
    pair: Pair,
    config: EngineConfig,
    draft: Option<DraftRunner>,
    verify: VerifyRunner,
}

impl Rig {
    /// A rig with empty pools. Lanes of one worker: the calling thread.
    pub(crate) fn new(pair: &Pair, config: &EngineConfig) -> Rig {
        let (draft, verify) = runners(pair, config);
        Rig {
            engine: Engine::new(config.clone()).expect("a valid config"),
            plans: VecDeque::new(),
            streams: HashMap::new(),
            sampling: HashMap::new(),
            pair: pair.clone(),
            config: config.clone(),
            draft,
            verify,
        }
    }

    /// Hands a request in.
    pub(crate) fn submit(&mut self, request: Request, sampling: &Sampling) {
        self.streams.insert(request.seq, Stream::default());
        self.sampling.insert(request.seq, Arc::new(sampling.clone()));
        self.tell(Event::Submit(request));
    }

    /// Tells the engine something, and keeps what it asks for. A lost device takes its plans and its memory along.
    pub(crate) fn tell(&mut self, event: Event) {
        if matches!(event, Event::DeviceLost) {
            self.plans.clear();
            (self.draft, self.verify) = runners(&self.pair, &self.config);
        }
        let mut commands = Vec::new();
        self.engine.handle(Duration::ZERO, event, &mut commands);
        for command in commands {
            match command {
                Command::Draft(plan) => {
                    let sampling = self.sampling_of(&plan.admit);
                    self.plans.push_back(Plan::Draft(DraftWork { plan, sampling }));
                }
                Command::Verify(plan) => {
                    let sampling = self.sampling_of(&plan.admit);
                    self.plans.push_back(Plan::Verify(VerifyWork { plan, sampling }));
                }
                Command::Emit { seq, tokens } => {
                    let stream = self.streams.get_mut(&seq).expect("a stream for every emission");
                    assert!(stream.ended.is_none() && !tokens.is_empty());
                    stream.tokens.extend(tokens.iter().map(|emitted| emitted.token));
                }
                Command::Finish { seq, reason, usage } => {
                    let stream = self.streams.get_mut(&seq).expect("a stream for every end");
                    assert_eq!(stream.tokens.len(), usage.output_tokens);
                    assert!(stream.ended.replace((reason, usage)).is_none(), "{seq} ended twice");
                }
                Command::Reject { seq, why } => panic!("{seq} was refused: {why}"),
            }
        }
    }

    /// Carries out one of the plans that are out, each on a lane of its own; false if it is not there. What the engine
    /// is told of its time is `took`, so that a case can be replayed.
    pub(crate) fn work(&mut self, plan: usize, took: Duration) -> bool {
        let done = match self.plans.remove(plan) {
            None => return false,
            Some(Plan::Draft(work)) => {
                let result = self.draft.as_mut().expect("a draft model").run(&work);
                Event::DraftDone(DraftResult { took, ..result })
            }
            Some(Plan::Verify(work)) => Event::VerifyDone(VerifyResult { took, ..self.verify.run(&work) }),
        };
        self.tell(done);
        true
    }

    /// Works until nothing is left to do; all streams must have ended then, and both pools be whole.
    pub(crate) fn finish(&mut self) {
        while self.work(0, Duration::from_micros(100)) {}
        assert!(self.engine.idle(), "no plan is out, yet the engine is not idle: {:?}", self.engine.view());
        let view = self.engine.view();
        assert!(view.target_pool.whole() && view.draft_pool.whole(), "{view:?}");
        assert!(self.streams.values().all(|stream| stream.ended.is_some()));
    }

    fn sampling_of(&self, admissions: &[Admission]) -> Vec<Arc<Sampling>> {
        admissions.iter().map(|admission| self.sampling[&admission.seq].clone()).collect()
    }
}

fn runners(pair: &Pair, config: &EngineConfig) -> (Option<DraftRunner>, VerifyRunner) {
    let limits = PassLimits::of(config);
    let spec = |blocks, max_logit_rows| RunnerSpec {
        partitions: vec![Partition { cores: vec![0] }; PARTITIONS],
        isa: Isa::detect(),
        blocks,
        block_size: config.block_size,
        max_rows: limits.rows,
        max_logit_rows,
    };
    let draft = pair.draft.as_ref().map(|model| {
        DraftRunner::new(model.clone(), &spec(config.draft_blocks, limits.draft_logit_rows))
            .expect("a draft lane")
    });
    let verify =
        VerifyRunner::new(pair.target.clone(), &spec(config.target_blocks, limits.verify_logit_rows));
    (draft, verify.expect("a verify lane"))
}

/// A small generator of random numbers (splitmix64), so that a case is its seed on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
