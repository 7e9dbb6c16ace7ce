//! Records of engines driven by hand and by the simulator, against what the engine itself counts.

mod common;

use std::collections::HashMap;
use std::time::Duration;

use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::record::{Bounds, ChunkRecord, Mark, PassRecord, Recorder};
use faser_engine::sim::{Deviation, Happening, Report, Simulation};
use faser_engine::{
    CancelledChunk, Command, DraftSource, Engine, EngineConfig, Event, LaneKind, Policy, Request, SeqId,
    Verdict, VerifyPlan,
};

const PLENTY: Bounds = Bounds { passes: 1000, chunks: 1000, marks: 1000 };

/// The whole device, and a partition on which drafting costs little beside a pass.
fn partitions() -> Vec<PartitionCosts> {
    let cost = |pass_us, row_us| PassCost::linear(pass_us, row_us, AttentionCost::default());
    vec![
        PartitionCosts { draft: cost(300, 1), verify: cost(1000, 5) },
        PartitionCosts { draft: cost(310, 1), verify: cost(1020, 5) },
    ]
}

fn config(policy: Policy) -> EngineConfig {
    let config = common::config(policy);
    EngineConfig { target_blocks: 60, draft: DraftSource::model(60), partitions: partitions(), ..config }
}

fn request(seq: u64, max_new_tokens: usize) -> Request {
    common::request(seq, vec![seq as u32; 6], max_new_tokens)
}

/// Eight requests that draft ahead, are rejected now and then, and run short of KV; with `losses` of the device.
fn simulated(losses: u64) -> Report {
    let mut happenings: Vec<_> =
        (0..8).map(|seq| (Duration::from_millis(seq), Happening::Arrival(request(seq, 100)))).collect();
    for loss in 1..=losses {
        let rebuild = Duration::from_millis(5);
        happenings.push((Duration::from_millis(31 * loss), Happening::DeviceLost { rebuild }));
    }
    // Drafts take longer than told, so that verdicts come before them.
    let deviation = Deviation { draft: 3.0, ..Deviation::default() };
    let mut config = config(Policy::Faser);
    // What costs no draft step is in no draft pass.
    config.tuning.mechanisms.lookup = false;
    let device = common::device(&config, 0.93).deviating(deviation);
    Simulation::new(config, device).expect("the configuration is sound").in_detail().run(happenings)
}

#[test]
fn a_record_has_what_the_engine_counts() {
    let report = simulated(0);
    let totals = report.view.totals.clone();
    let record = report.into_record();
    let of = |lane| record.passes.iter().filter(move |pass| pass.lane == lane);
    assert_eq!(of(LaneKind::Draft).count() as u64, totals.draft_passes);
    assert_eq!(of(LaneKind::Verify).count() as u64, totals.target_passes);
    assert_eq!(of(LaneKind::Verify).map(|pass| pass.accepted).sum::<usize>() as u64, totals.accepted_tokens);
    assert_eq!(
        of(LaneKind::Verify).filter(|pass| pass.partition > 0).count() as u64,
        totals.overlapped_passes
    );
    assert_eq!(
        of(LaneKind::Verify).filter(|pass| !pass.prune_checkpoints.is_empty()).count() as u64,
        totals.pruning_passes
    );
    let sum = |of: fn(&Mark) -> u64| record.marks.iter().map(|(_, mark)| of(mark)).sum::<u64>();
    let late = sum(|mark| if let Mark::LateDrafts(n) = mark { *n } else { 0 });
    let preempted = sum(|mark| if let Mark::Preemptions(n) = mark { *n } else { 0 });
    let cancelled =
        sum(|mark| u64::from(matches!(mark, Mark::EpochMoved { moved, .. } if moved.cancelled())));
    let ended = sum(|mark| u64::from(matches!(mark, Mark::Ended { .. })));
    assert_eq!(
        (late, preempted, cancelled, ended),
        (totals.late_drafts, totals.preemptions, totals.chunks_cancelled, 8)
    );
    // Otherwise all this says little.
    assert!(cancelled > 0 && late > 0 && preempted > 0 && totals.overlapped_passes > 0, "{totals:?}");
    for pass in &record.passes {
        assert_eq!(pass.chunks.len(), pass.sequences);
        assert_eq!(pass.chunks.iter().map(|chunk| chunk.accepted).sum::<usize>(), pass.accepted);
        assert!(pass.chunks.iter().all(|chunk| chunk.proposals <= chunk.k));
        // What a verdict of the same moment cancels has taken no time.
        let worked = pass.began < pass.ended || pass.chunks.iter().all(|chunk| chunk.cancelled);
        assert!(pass.left <= pass.began && worked && pass.predicted.is_some(), "{pass:?}");
    }
}

#[test]
fn a_cancelled_chunk_leads_to_the_pass_that_did_it_and_to_what_fell() {
    let record = simulated(0).into_record();
    let mut epochs: HashMap<SeqId, u32> = HashMap::new();
    let (mut chunks, mut proposals) = (0, 0);
    for (at, mark) in &record.marks {
        let Mark::EpochMoved { moved, by } = mark else { continue };
        // Epochs follow one another.
        let epoch = epochs.entry(moved.seq).or_default();
        assert_eq!(moved.epoch, *epoch);
        *epoch += 1;
        assert_eq!(by.is_some(), moved.rejected);
        let Some(by) = by.filter(|_| moved.cancelled()) else { continue };
        let of = |lane| record.passes.iter().filter(move |pass| pass.lane == lane);
        let pass = of(LaneKind::Verify).find(|pass| pass.step == by).expect("the pass is there");
        assert_eq!(pass.ended, *at);
        let chunk = pass.chunks.iter().find(|chunk| chunk.seq == moved.seq).expect("its chunk is there");
        assert!(chunk.next && chunk.epoch == moved.epoch);
        assert_eq!(chunk.proposed(LaneKind::Verify).end, moved.frontier);
        // Drafted under the pass, on the path that was not taken.
        let ahead = of(LaneKind::Draft)
            .filter(|pass| pass.left < *at && Some(pass.step) != moved.drafting)
            .flat_map(|pass| &pass.chunks)
            .filter(|chunk| !chunk.outcome || chunk.taken)
            .filter(|chunk| (chunk.seq, chunk.epoch + u32::from(chunk.taken)) == (moved.seq, moved.epoch))
            .map(|chunk| chunk.proposed(LaneKind::Draft))
            .map(|places| places.end.saturating_sub(places.start.max(moved.frontier)));
        assert_eq!(ahead.sum::<usize>(), moved.unsent);
        proposals += moved.unsent;
        if let Some(step) = moved.drafting {
            let pass = of(LaneKind::Draft).find(|pass| pass.step == step).expect("it came back");
            let own = |chunk: &ChunkRecord| chunk.seq == moved.seq && !chunk.outcome && chunk.cancelled;
            let chunk = pass.chunks.iter().position(own).expect("its chunk was cancelled");
            let told = CancelledChunk { lane: LaneKind::Draft, step, seq: moved.seq, chunk };
            assert!(record.marks.contains(&(*at, Mark::ChunkCancelled(told))));
            chunks += 1;
        }
    }
    assert!(chunks > 0 && proposals > 0);
}

#[test]
fn lanes_do_one_thing_at_a_time_also_when_devices_are_lost() {
    let record = simulated(3).into_record();
    for lane in [LaneKind::Draft, LaneKind::Verify] {
        let passes: Vec<_> = record.passes.iter().filter(|pass| pass.lane == lane).collect();
        assert!(passes.windows(2).all(|pair| pair[0].ended <= pair[1].began && pair[0].step < pair[1].step));
    }
    let count = |wanted: Mark| record.marks.iter().filter(|(_, mark)| *mark == wanted).count();
    assert_eq!((count(Mark::DeviceLost), count(Mark::DeviceReady)), (3, 3));
    assert!(record.marks.is_sorted_by_key(|(at, _)| *at));
}

/// An engine whose verify lane is the test.
struct ByHand {
    engine: Engine,
    commands: Vec<Command>,
}

impl ByHand {
    fn new() -> ByHand {
        let engine = Engine::new(config(Policy::Off)).expect("a sound config");
        ByHand { engine, commands: Vec::new() }
    }

    /// Tells the engine of it; the plan it sends.
    fn tell(&mut self, recorder: &mut Recorder, ms: u64, event: Event) -> Option<VerifyPlan> {
        let now = Duration::from_millis(ms);
        recorder.before(now, &event);
        self.commands.clear();
        self.engine.handle(now, event, &mut self.commands);
        recorder.after(now, &self.engine, &self.commands);
        self.commands.drain(..).find_map(|command| match command {
            Command::Verify(plan) => Some(plan),
            _ => None,
        })
    }
}

/// What a lane makes of a plan in 3 ms: token 9 for everyone.
fn done(mut plan: VerifyPlan) -> Event {
    plan.outcome.took = Duration::from_millis(3);
    plan.outcome.verdicts.extend(plan.chunks.iter().map(|_| Verdict { next: Some(9), ..Verdict::default() }));
    Event::VerifyDone(plan)
}

#[test]
fn a_pass_lasts_as_long_as_its_lane_says_and_the_rest_is_waiting() {
    let mut hand = ByHand::new();
    let mut recorder = Recorder::in_detail(PLENTY, Duration::ZERO, &hand.engine);
    let plan = hand.tell(&mut recorder, 10, Event::Submit(request(1, 5))).expect("a prefill");
    let next = hand.tell(&mut recorder, 20, done(plan)).expect("a token");
    hand.tell(&mut recorder, 24, done(next));
    let record = recorder.finish(Duration::from_millis(30));
    let ms = Duration::from_millis;
    let times: Vec<_> = record.passes.iter().map(|pass| (pass.left, pass.began, pass.ended)).collect();
    assert_eq!(times, [(ms(10), ms(17), ms(20)), (ms(20), ms(21), ms(24))]);
    let PassRecord { rows, committed, predicted, .. } = record.passes[0];
    assert_eq!((rows, committed, predicted), (6, 1, Some(Duration::from_micros(1030))));
    assert_eq!(record.marks, [(ms(10), Mark::Arrived(SeqId(1)))]);
    assert_eq!(
        (record.from, record.until, record.cut_short, record.target_layers),
        (ms(0), ms(30), false, 32)
    );
}

#[test]
fn what_left_before_the_record_is_not_in_it_nor_what_a_lost_device_had() {
    let mut hand = ByHand::new();
    let mut before = Recorder::of_passes(&hand.engine);
    let plan = hand.tell(&mut before, 1, Event::Submit(request(1, 9))).expect("a prefill");
    let mut recorder = Recorder::in_detail(PLENTY, Duration::from_millis(2), &hand.engine);
    let second = hand.tell(&mut recorder, 5, done(plan)).expect("a token");
    let third = hand.tell(&mut recorder, 9, done(second)).expect("a token");
    hand.tell(&mut recorder, 10, Event::DeviceLost);
    hand.tell(&mut recorder, 12, done(third));
    let again = hand.tell(&mut recorder, 13, Event::DeviceReady).expect("all from the beginning");
    hand.tell(&mut recorder, 17, done(again));
    let record = recorder.finish(Duration::from_millis(20));
    let steps: Vec<u64> = record.passes.iter().map(|pass| pass.step).collect();
    assert_eq!(steps, [2, 4]);
    let moved = |mark: &Mark| matches!(mark, Mark::EpochMoved { moved, by: None } if !moved.rejected);
    assert!(record.marks.iter().any(|(at, mark)| moved(mark) && *at == Duration::from_millis(10)));
}

#[test]
fn a_recorder_that_is_full_keeps_nothing_further() {
    for bounds in [
        Bounds { passes: 2, ..PLENTY },
        Bounds { chunks: 2, ..PLENTY },
        Bounds { passes: 0, ..PLENTY },
        Bounds { marks: 0, ..PLENTY },
    ] {
        let mut hand = ByHand::new();
        let mut recorder = Recorder::in_detail(bounds, Duration::ZERO, &hand.engine);
        let mut plan = hand.tell(&mut recorder, 0, Event::Submit(request(1, 6)));
        for pass in 1.. {
            let Some(out) = plan else { break };
            plan = hand.tell(&mut recorder, 5 * pass, done(out));
        }
        assert!(recorder.full() && hand.engine.idle());
        let record = recorder.finish(Duration::from_millis(50));
        assert_eq!(record.passes.len(), bounds.passes.min(bounds.chunks).min(bounds.marks), "{bounds:?}");
        assert!(record.cut_short && record.marks.len() <= 1);
    }
}
