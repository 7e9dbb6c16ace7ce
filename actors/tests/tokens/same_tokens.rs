//! Invariant 1: what is emitted for a request depends on (prompt, parameters, seed) alone. Random requests in random
//! batches on random engines, which are told to decide otherwise in the middle, with arrivals, cancellations, preemptions, lost devices and lost or retired drafts in between, with rows pruned at
//! random between any two layers and clients that go in the middle of a pass: each must get, bit for bit, the tokens of its
//! solo run without speculation.
//!
//! `FASER_CASES` sets the number of cases (1000), `FASER_SEED` the first case's seed (1; case i has seed + i).

use faser_actors::Dtype;
use faser_engine::survival::Source;
use faser_engine::{
    DraftSource, EngineConfig, Event, FinishReason, Handling, K_LIMIT, Request, RoundPasses, SpeculationMode,
    TokenId, Tuning,
};
use faser_models::HeadKind;

use crate::cases::{
    BLOCK, BLOCK_KINDS, Case, END, GRAMMARS, Got, often_right, pair, solo, with_experts, with_head,
    with_int8_kv,
};
use crate::rig::{Pair, Plan, Random, Rig, Times, have_it_prepare};

/// From this many cases on, everything that is meant to happen must have happened.
const ENOUGH_CASES: u64 = 100;
/// And for what is rare: that some pairs can do alone, or that a past output says what comes in texts that are random.
const ENOUGH_FOR_RARE: u64 = 1000;

/// What happened over all cases.
#[derive(Debug, Default)]
struct Tally {
    requests: u64,
    tokens: u64,
    accepted: u64,
    rejected: u64,
    preemptions: u64,
    cancellations: u64,
    devices_lost: u64,
    drafts_lost: u64,
    drafts_retired: u64,
    prefix_hits: u64,
    /// Requests whose cached prefix ended inside a block.
    parted_hits: u64,
    chunked_prefills: u64,
    stopped: u64,
    /// Times at which both lanes had a plan.
    overlapped: u64,
    chunks_cancelled: u64,
    late_drafts: u64,
    outcomes: u64,
    outcomes_taken: u64,
    pruned: u64,
    pruned_in_vain: u64,
    cancelled_inside: u64,
    tunings: u64,
    prompt_lookup: u64,
    prompt_lookup_accepted: u64,
    suffix: u64,
    suffix_accepted: u64,
    /// Requests that proposed what their mode lets them, by mode.
    lookups: u64,
    drafts: u64,
    /// Proposals of drafts that propose in one pass.
    one_pass: u64,
    one_pass_accepted: u64,
    /// Proposals of heads on hidden states.
    of_heads: u64,
    /// Those of heads that propose in one pass.
    one_pass_of_heads: u64,
    /// Those of heads that propose a block.
    of_blocks: u64,
    of_blocks_accepted: u64,
    off: u64,
    /// Requests of one engine that do not all have the same priority, and were preempted.
    priorities: u64,
    logprobs: u64,
    prompt_logprobs: u64,
    min_tokens: u64,
    constrained: u64,
    /// Chunks that came again, since it was not known in time what their grammars allow.
    late: u64,
    forbidden: u64,
    complete: u64,
}

#[test]
fn a_request_gets_the_tokens_of_its_solo_run_whatever_happens_around_it() {
    let cases = env_or("FASER_CASES", 1000);
    let first_seed = env_or("FASER_SEED", 1);
    let heads = [
        (Dtype::F32, Dtype::F32, HeadKind::Steps),
        (Dtype::Bf16, Dtype::Int8, HeadKind::Steps),
        (Dtype::F32, Dtype::F32, HeadKind::Masks),
        (Dtype::Bf16, Dtype::Int8, HeadKind::Masks),
        (Dtype::F32, Dtype::F32, HeadKind::Block(BLOCK_KINDS[0])),
        (Dtype::Bf16, Dtype::Int8, HeadKind::Block(BLOCK_KINDS[1])),
        (Dtype::F32, Dtype::Bf16, HeadKind::Block(BLOCK_KINDS[2])),
    ];
    let heads = heads.map(|(target, head, kind)| with_head(target, head, kind));
    let experts = [Dtype::F32, Dtype::Int8].map(with_experts);
    let int8_kv = [Dtype::Bf16, Dtype::Int8].map(with_int8_kv);
    let plain = [Dtype::F32, Dtype::Bf16, Dtype::Int8].map(pair);
    let pairs = [&plain[..], &int8_kv, &experts, &heads].concat();
    let mut tally = Tally::default();
    for seed in first_seed..first_seed + cases {
        let _replay = Replay { seed };
        run_case(&pairs, &mut Random(seed), &mut tally);
    }
    println!("{cases} cases, seeds from {first_seed}: {tally:?}");
    if cases >= ENOUGH_CASES {
        tally.assert_everything_happened();
    }
    if cases >= ENOUGH_FOR_RARE {
        tally.assert_the_rare_happened();
    }
}

/// The other half of the story: with the target as its own draft every proposal is right, so that one rejection shows
/// a draft lane with the wrong history, position or KV.
#[test]
fn a_draft_that_is_the_target_is_never_rejected() {
    let cases = env_or("FASER_CASES", 1000).div_ceil(4);
    let first_seed = env_or("FASER_SEED", 1);
    let target = pair(Dtype::Bf16).target;
    let pair = Pair { target: target.clone(), draft: Some(target), cuda: None, shards: None };
    let mut tally = Tally::default();
    for seed in first_seed..first_seed + cases {
        let _replay = Replay { seed };
        let random = &mut Random(seed);
        let (mut config, mut cases) = (random.config(), random.cases());
        // What prompt-lookup proposes may be wrong; a change of the tuning may have some of it nevertheless. So may past outputs.
        config.tuning.mechanisms.lookup = false;
        // Behind mask tokens the target knows no more than any other model.
        config.draft = DraftSource::model(config.draft.needs().blocks);
        random.want_more(&mut cases);
        in_a_batch(&pair, &config, &cases, Times::Any, random, &mut tally);
        let free = tally.prompt_lookup + tally.suffix - tally.prompt_lookup_accepted - tally.suffix_accepted;
        assert_eq!(tally.rejected, free, "{tally:?}");
    }
    println!(
        "{cases} cases, seeds from {first_seed}: {} proposals accepted, none that was drafted rejected",
        tally.accepted
    );
    assert!(tally.accepted > 0 || cases < ENOUGH_CASES);
}

/// Outcomes that were prepared for, found, missed and cancelled, beside all else that happens: with a draft that is often right, on a device where
/// preparing pays.
#[test]
fn what_is_prepared_for_verdicts_changes_no_text() {
    let cases = env_or("FASER_CASES", 1000).div_ceil(2);
    let first_seed = env_or("FASER_SEED", 1);
    let pairs = [Dtype::F32, Dtype::Bf16].map(often_right);
    let mut tally = Tally::default();
    for seed in first_seed..first_seed + cases {
        let _replay = Replay { seed };
        let random = &mut Random(seed);
        let mut config = random.config();
        have_it_prepare(&mut config);
        let pair = random.one_of(&pairs);
        run_case_on(&pair, &config, Times::Told, random, &mut tally);
    }
    let Tally { outcomes, outcomes_taken, preemptions, devices_lost, .. } = tally;
    println!("{cases} cases, seeds from {first_seed}: {tally:?}");
    if cases >= ENOUGH_CASES {
        let counts = [outcomes, outcomes_taken, preemptions, devices_lost, tally.chunks_cancelled];
        assert!(counts.iter().all(|count| *count > 0), "the test shows less than it says: {tally:?}");
    }
}

/// Names the case when it fails.
struct Replay {
    seed: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "replay with FASER_CASES=1 FASER_SEED={} cargo test -p faser-actors --test tokens same_tokens",
                self.seed
            );
        }
    }
}

fn run_case(pairs: &[Pair], random: &mut Random, tally: &mut Tally) {
    let pair = random.one_of(pairs);
    let mut config = random.config();
    config.draft = pair.draft_source(config.draft);
    run_case_on(&pair, &config, Times::Any, random, tally);
}

fn run_case_on(pair: &Pair, config: &EngineConfig, times: Times, random: &mut Random, tally: &mut Tally) {
    let mut cases = random.cases();
    random.want_more(&mut cases);
    // By coins of its own: what follows is as it was.
    if let [first, .., last] = cases.as_mut_slice()
        && Random(random.0.rotate_left(32)).chance(40)
    {
        // What was said before may be said again.
        let seq = last.request.seq;
        *last = Case { request: Request { seq, ..first.request.clone() }, ..first.clone() };
    }
    let solo: Vec<_> = cases.iter().map(|case| solo(pair, case)).collect();
    for (case, solo) in cases.iter_mut().zip(&solo) {
        case.request.prediction = expected_instead(&solo.tokens, random).into();
    }
    let together = in_a_batch(pair, config, &cases, times, random, tally);
    for ((case, solo), got) in cases.iter().zip(&solo).zip(&together) {
        let seq = case.request.seq;
        match got.reason {
            FinishReason::Cancelled => {
                assert!(solo.tokens.starts_with(&got.tokens), "{seq}: {got:?} does not begin {solo:?}");
            }
            reason => {
                assert_eq!((&got.tokens, reason), (&solo.tokens, solo.reason), "{seq} {case}");
                // Bit for bit, prompt and output.
                assert_eq!(got.logprobs, solo.logprobs, "{seq} {case}");
                tally.logprobs += got.logprobs.iter().flatten().count() as u64;
                tally.prompt_logprobs += u64::from(case.wants.of_prompt && case.wants.logprobs.is_some());
            }
        }
        check(case, got, tally);
        tally.parted_hits += u64::from(!got.usage.cached_tokens.is_multiple_of(BLOCK));
        tally.tokens += got.tokens.len() as u64;
        tally.stopped += u64::from(matches!(got.reason, FinishReason::StopToken(_)));
    }
    tally.requests += cases.len() as u64;
}

/// What a client may expect instead of `text`: nothing, or most of it with some tokens left out or others in their place.
fn expected_instead(text: &[TokenId], random: &mut Random) -> Vec<TokenId> {
    if random.chance(50) {
        return Vec::new();
    }
    let mut expected = Vec::with_capacity(text.len());
    for &token in text {
        if random.chance(90) {
            expected.push(token);
        } else if random.chance(50) {
            expected.push(random.token());
        }
    }
    expected
}

/// What can be said of a request's outcome without its solo run.
fn check(case: &Case, got: &Got, tally: &mut Tally) {
    let Handling { mode, k_max, .. } = case.request.handling;
    let drafted = got.usage.by_source[Source::Draft].proposed;
    let prompt_lookup = got.usage.proposed - drafted;
    assert!(got.usage.longest <= k_max.unwrap_or(K_LIMIT), "{case}: {:?}", got.usage);
    match mode {
        SpeculationMode::Auto => {}
        SpeculationMode::Off => tally.off += 1,
        SpeculationMode::Lookup => tally.lookups += u64::from(prompt_lookup > 0),
        SpeculationMode::Draft => tally.drafts += u64::from(drafted > 0),
        SpeculationMode::Suffix => {}
    }
    assert!(
        (mode.drafts() || drafted == 0) && (mode.looks_up() || prompt_lookup == 0),
        "{case}: {:?}",
        got.usage
    );
    let least = case.sampling.min_tokens.min(case.request.max_new_tokens as u32) as usize;
    if got.reason != FinishReason::Cancelled && least > 0 {
        assert!(got.tokens.len() >= least || case.sampling.ends.is_empty(), "{case} {got:?}");
        tally.min_tokens += u64::from(!case.sampling.ends.is_empty());
    }
    if let Some(number) = case.wants.grammar {
        let mut matcher = GRAMMARS[number].matcher();
        let stop = match got.reason {
            FinishReason::StopToken(token) => Some(token),
            _ => None,
        };
        for (at, token) in got.tokens.iter().copied().chain(stop).enumerate() {
            matcher.follow(&got.tokens[..at]);
            let allowed = matcher.allowed().is_some_and(|mask| mask.allows(token));
            assert!(allowed, "{case}: token {token} in place {at} of {:?}", got.tokens);
        }
        tally.constrained += 1;
        tally.complete += u64::from(stop == Some(END));
    }
    for (position, logprobs) in got.logprobs.iter().enumerate() {
        let all = case.request.prompt.iter().chain(&got.tokens);
        let first = if case.wants.of_prompt { 1 } else { case.request.prompt.len() };
        // Cancelled: the lanes may not have come to all of the prompt, and never to less than what was emitted.
        if got.reason != FinishReason::Cancelled || position >= case.request.prompt.len() {
            assert_eq!(logprobs.is_some(), position >= first, "{case}: position {position}");
        }
        if let Some(logprobs) = logprobs {
            assert_eq!(Some(&logprobs.token), all.clone().nth(position), "{case}: position {position}");
            assert_eq!(Some(logprobs.top.len()), case.wants.logprobs);
            assert!(logprobs.top.first().is_none_or(|(_, likeliest)| *likeliest >= logprobs.logprob));
        }
    }
}

/// All requests on one engine, with whatever comes in between.
fn in_a_batch(
    pair: &Pair,
    config: &EngineConfig,
    cases: &[Case],
    times: Times,
    random: &mut Random,
    tally: &mut Tally,
) -> Vec<Got> {
    let mut rig = Rig::new(pair, config);
    let seed = random.next();
    rig.disturb(random.chance(50).then_some(seed), random.chance(30).then_some(!seed));
    let mut to_come = cases.iter();
    let disturbed = random.chance(40);
    let mut device_may_fail = random.chance(20);
    // By coins of its own: cases without it are as they were.
    let coins = &mut Random(seed.rotate_left(32));
    let draft_may_fail = config.draft.drafts() && coins.chance(15);
    let tuned = random.chance(30);
    loop {
        let waiting = to_come.len() > 0;
        if waiting && (rig.plans.is_empty() || random.chance(30)) {
            let case = to_come.next().expect("one is to come");
            case.submit(&mut rig);
        } else if disturbed && random.chance(4) {
            let seq = random.one_of(cases).request.seq;
            rig.tell(Event::Cancel(seq));
        } else if tuned && random.chance(8) {
            tally.tunings += 1;
            rig.tell(Event::Tune(tuning(config, random)));
        } else if device_may_fail && random.chance(4) {
            device_may_fail = false;
            tally.devices_lost += 1;
            rig.tell(Event::DeviceLost);
            rig.tell(Event::DeviceReady);
        } else if draft_may_fail && coins.chance(6) {
            // As often as it pleases: nobody is given up for it.
            tally.drafts_lost += 1;
            rig.tell(Event::DraftLost);
            if coins.chance(40) {
                tally.drafts_retired += u64::from(!rig.retired);
                rig.tell(Event::DraftRetired);
            }
            rig.tell(Event::DeviceReady);
        } else {
            tally.overlapped += u64::from(rig.plans.len() == 2);
            let next = random.between(0, rig.plans.len().saturating_sub(1));
            tally.chunked_prefills += rig.plans.get(next).map_or(0, prefill_chunks);
            let took = times.of(rig.plans.get(next), random);
            if !rig.work(next, took) && !waiting {
                break;
            }
        }
    }
    rig.finish();
    let totals = rig.engine.view().totals;
    let needs = config.draft.needs();
    let drafted = totals.draft_tokens - totals.prompt_lookup_tokens - totals.suffix_tokens;
    let drafted_accepted =
        totals.accepted_tokens - totals.prompt_lookup_accepted_tokens - totals.suffix_accepted_tokens;
    if needs.passes.is_one() && !needs.hidden_states {
        tally.one_pass += drafted;
        tally.one_pass_accepted += drafted_accepted;
    }
    if needs.hidden_states {
        match needs.passes {
            _ if needs.block.is_some() => {
                tally.of_blocks += drafted;
                tally.of_blocks_accepted += drafted_accepted;
            }
            RoundPasses::One => tally.one_pass_of_heads += drafted,
            _ => tally.of_heads += drafted,
        }
    }
    tally.accepted += totals.accepted_tokens;
    tally.rejected += totals.draft_tokens - totals.accepted_tokens;
    tally.preemptions += totals.preemptions;
    let priority = |case: &Case| case.request.handling.priority;
    let differ = cases.iter().any(|case| priority(case) != priority(&cases[0]));
    tally.priorities += if differ { totals.preemptions } else { 0 };
    tally.chunks_cancelled += totals.chunks_cancelled;
    tally.late_drafts += totals.late_drafts;
    tally.outcomes += totals.outcomes_drafted;
    tally.outcomes_taken += totals.outcomes_taken;
    tally.late += totals.late_chunks;
    tally.pruned += totals.rows_pruned;
    tally.pruned_in_vain += totals.pruned_in_vain;
    tally.cancelled_inside += rig.cancelled_inside;
    tally.forbidden += rig.forbidden;
    tally.prompt_lookup += totals.prompt_lookup_tokens;
    tally.prompt_lookup_accepted += totals.prompt_lookup_accepted_tokens;
    tally.suffix += totals.suffix_tokens;
    tally.suffix_accepted += totals.suffix_accepted_tokens;
    tally.cancellations += totals.cancelled;
    tally.prefix_hits += totals.cached_prompt_tokens;
    cases.iter().map(|case| case.outcome(&mut rig)).collect()
}

/// Another way to decide, of those that an engine of this config can be told in the middle of everything.
fn tuning(config: &EngineConfig, random: &mut Random) -> Tuning {
    let other = random.config().tuning.clone();
    let partitions = config.partitions.len();
    let pinned = partitions > 1 && random.chance(30);
    let tuning = Tuning {
        k_max: Some(random.between(0, K_LIMIT)),
        max_prefill_rows: random.chance(30).then(|| random.between(1, 5)),
        partition: pinned.then(|| random.between(1, partitions - 1)),
        max_running: random.between(1, config.tuning.max_running),
        max_waiting: config.tuning.max_waiting,
        ..other
    };
    assert_eq!(config.tunable(&tuning), Ok(()));
    tuning
}

/// Chunks that bring the target's KV of a prompt forward without reaching its end.
fn prefill_chunks(plan: &Plan) -> u64 {
    match plan {
        Plan::Draft(_) => 0,
        Plan::Verify(work) => work.plan.chunks.iter().filter(|chunk| !chunk.sample).count() as u64,
    }
}

fn env_or(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

impl Tally {
    fn assert_the_rare_happened(&self) {
        for (what, count) in [
            ("overlapped plans", self.overlapped),
            ("proposals from past outputs that were accepted", self.suffix_accepted),
            ("proposals from past outputs that were rejected", self.suffix - self.suffix_accepted),
        ] {
            assert!(count > 0, "no {what}: {self:?}");
        }
    }

    fn assert_everything_happened(&self) {
        for (what, count) in [
            ("acceptances", self.accepted),
            ("rejections", self.rejected),
            ("preemptions", self.preemptions),
            ("cancellations", self.cancellations),
            ("lost devices", self.devices_lost),
            ("lost drafts", self.drafts_lost),
            ("retired drafts", self.drafts_retired),
            ("prefix cache hits", self.prefix_hits),
            ("prefix cache hits that end inside a block", self.parted_hits),
            ("chunked prefills", self.chunked_prefills),
            ("stop tokens", self.stopped),
            ("cancelled chunks", self.chunks_cancelled),
            ("late drafts", self.late_drafts),
            ("pruned rows", self.pruned),
            ("rows pruned in vain", self.pruned_in_vain),
            ("clients that cancel inside a plan", self.cancelled_inside),
            ("other ways to decide", self.tunings),
            ("prompt-lookup proposals that were accepted", self.prompt_lookup_accepted),
            ("prompt-lookup proposals that were rejected", self.prompt_lookup - self.prompt_lookup_accepted),
            ("requests that propose nothing", self.off),
            ("requests that copy alone", self.lookups),
            ("requests that draft alone", self.drafts),
            ("proposals from one pass that were accepted", self.one_pass_accepted),
            ("proposals of heads", self.of_heads),
            ("proposals of heads in one pass", self.one_pass_of_heads),
            ("proposals of blocks", self.of_blocks),
            ("proposals of blocks that were accepted", self.of_blocks_accepted),
            ("proposals from one pass that were rejected", self.one_pass - self.one_pass_accepted),
            ("preemptions among priorities", self.priorities),
            ("log-probabilities", self.logprobs),
            ("log-probabilities of prompts", self.prompt_logprobs),
            ("requests for a least number of tokens", self.min_tokens),
            ("outputs that follow a grammar", self.constrained),
            ("chunks whose grammars were waited for no longer", self.late),
            ("prompt-lookup proposals that a grammar forbids", self.forbidden),
            ("outputs that come to the end of one", self.complete),
        ] {
            assert!(count > 0, "no {what} in any case: the test shows less than it says");
        }
    }
}
