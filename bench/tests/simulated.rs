//! The comparison of policies in the simulator: repeatable, sensible, and readable by others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use faser_bench::Targets;
use faser_bench::sim::{Bound, Contender, Drafts, Figures, Load, MeasuredCosts, SimReport, SimRun, SimSpec};
use faser_bench::trace::{picture, telling_window, write_chrome_trace};
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::record::{ChunkRecord, Mark};
use faser_engine::sim::{
    Acceptance, Arrivals, Deviation, Faults, Hardware, Lengths, Pair, Trace, TracedRequest,
};
use faser_engine::{LaneKind, Mechanisms, Policy, SpeculationMode};
use serde_json::Value;

fn spec() -> SimSpec {
    SimSpec {
        preset: None,
        measured: None,
        hardware: Hardware::H100,
        pair: Pair::QWEN3,
        mechanisms: Mechanisms::default(),
        drafts: Drafts::Steps,
        draft_sms: vec![16],
        draft_apart: false,
        draft_copies: 1,
        kv_tokens: 32_768,
        max_running: 32,
        max_pass_rows: 512,
        max_context: 1024,
        lengths: Lengths::exactly(20, 40),
        trace: None,
        acceptance: Acceptance::mixed(),
        mode: SpeculationMode::Auto,
        suffix_bytes: 0,
        cached_prompts: 0.0,
        targets: Targets::default(),
        deviation: Deviation { noise: 0.02, ..Deviation::default() },
        faults: Faults::default(),
        duration: Duration::from_secs(10),
        seed: 1,
    }
}

fn compare(spec: &SimSpec, contenders: &[&str], loads: &[Load]) -> SimReport {
    let contenders: Vec<Contender> =
        contenders.iter().map(|text| text.parse().expect("a contender")).collect();
    spec.compare(&contenders, loads, &mut |_| {}).expect("a comparison")
}

fn poisson(per_s: f64) -> Load {
    Load { arrivals: Arrivals::Poisson { per_s }, level: per_s }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let report = |seed| {
        let report = compare(&SimSpec { seed, ..spec() }, &["fixed:3", "faser"], &[poisson(3.0)]);
        serde_json::to_string(&report.runs).unwrap()
    };
    assert_eq!(report(1), report(1));
    assert_ne!(report(1), report(2));
}

#[test]
fn at_a_batch_of_one_speculation_pays_as_a_pen_and_paper_says() {
    let even = SimSpec { acceptance: Acceptance::from(0.8), lengths: Lengths::exactly(20, 400), ..spec() };
    let report = compare(&even, &["off", "fixed:4", "best-fixed", "batch-table"], &[Load::backlog(1)]);
    let figures: Vec<_> = report.runs.iter().map(|run| &run.figures).collect();
    // (1 + 0.8 + 0.64 + 0.51 + 0.41) tokens for a pass of 24 ms and four draft steps of 1.2 ms.
    let gain = figures[1].tokens_per_s / figures[0].tokens_per_s;
    assert!((2.4..2.9).contains(&gain), "{gain}");
    assert!((figures[1].tokens_per_verdict - 3.36).abs() < 0.25, "{}", figures[1].tokens_per_verdict);
    assert!((figures[1].draft_steps - 4.0).abs() < 0.2 && figures[1].k_mean > 3.5);
    // Whoever may choose does not choose worse.
    assert!(figures[2].latency_mean_s <= figures[1].latency_mean_s);
    assert!(figures[3].tokens_per_s >= figures[1].tokens_per_s * 0.99);
    assert!(matches!(&report.runs[3].policy, Policy::BatchTable { steps } if steps[0].1 >= 4));
    for text in ["best fixed:", "batch-table", "tokens/s", "the table, tuned"] {
        assert!(report.to_string().contains(text), "{report}");
    }
    let picture = report.svg().unwrap();
    assert!(picture.contains("tokens per second") && picture.contains("batch-table"), "{picture}");
}

#[test]
fn passes_take_what_was_measured() {
    let cost = |pass_us| PassCost::linear(pass_us, 0, AttentionCost::default());
    let tables = vec![PartitionCosts { draft: cost(1000), verify: cost(50_000) }];
    let measured = Some(MeasuredCosts { name: "cost-1.json".to_owned(), tables, target_layers: 8 });
    let spec =
        SimSpec { measured, deviation: Deviation::default(), acceptance: Acceptance::from(1.0), ..spec() };
    let report = compare(&spec, &["off", "fixed:4", "length"], &[Load::backlog(1)]);
    let rates: Vec<f64> = report.runs.iter().map(|run| run.figures.tokens_per_s).collect();
    // A token for each pass of 50 ms; 40 tokens for the first pass and eight more, each behind four steps of a millisecond.
    assert!((rates[0] - 20.0).abs() < 0.5 && (82.0..84.0).contains(&rates[1]), "{report}");
    assert!(rates[2] > rates[1], "{report}");
    assert!(report.title.starts_with("costs as measured in cost-1.json, "), "{}", report.title);
}

#[test]
fn alone_a_draft_goes_on_as_long_as_it_is_sure_and_ends_when_a_step_does_not_pay() {
    let spec = SimSpec { lengths: Lengths::exactly(100, 400), ..spec() };
    // Without drafts under verification; so no lengths but these differ.
    let report = compare(&spec, &["best-fixed", "+trim"], &[Load::backlog(1)]);
    let [fixed, adapted] = [&report.runs[0].figures, &report.runs[1].figures];
    let gain = adapted.tokens_per_s / fixed.tokens_per_s;
    assert!(gain > 1.04, "{gain}: {report}");
    // A step that is not taken is not counted, and more of those that are taken bring a token.
    let per_step = |figures: &Figures| figures.tokens_per_verdict / figures.draft_steps.max(1.0);
    assert!(per_step(adapted) > per_step(fixed), "{report}");
}

#[test]
fn a_head_of_blocks_does_not_lose_to_the_best_fixed_length() {
    for (rows, step_s, acceptance, batch) in [(8, 0.0, 0.85, 4), (16, 6e-3, 0.4, 16)] {
        let pair = Pair { draft_step_s: step_s, ..Pair::QWEN3.with_head() };
        let drafts = Drafts::OnePassHead { block: Some(rows), fade: 0.95 };
        let acceptance = Acceptance::from(acceptance);
        let spec = SimSpec { pair, drafts, acceptance, lengths: Lengths::exactly(260, 100), ..spec() };
        let report = compare(&spec, &["off", "best-fixed", "faser"], &[Load::backlog(batch)]);
        let rates: Vec<f64> = report.runs.iter().map(|run| run.figures.tokens_per_s).collect();
        assert!(rates[2] > 0.98 * rates[0].max(rates[1]), "{report}");
        assert!(report.runs[2].figures.k_mean > 1.0, "{report}");
    }
}

#[test]
fn bounds_are_below_all_policies_and_say_what_they_came_down_to() {
    let duration = Duration::from_secs(4);
    let spec = SimSpec { lengths: Lengths::exactly(200, 60), duration, ..spec() };
    let policies = ["off", "fixed:6", "best-fixed", "faser"].map(|text| text.parse().expect("a contender"));
    let contenders: Vec<Contender> = policies.into_iter().chain(Bound::ALL.map(Contender::Bound)).collect();
    let report = spec.compare(&contenders, &[poisson(4.0)], &mut |_| {}).expect("a comparison");
    let [policies @ .., oracle, free, both] = report.runs.as_slice() else { panic!("no bounds") };
    let latency = |run: &SimRun| run.figures.latency_mean_s;
    let best = policies.iter().map(latency).fold(f64::INFINITY, f64::min);
    assert!(latency(oracle) < 0.97 * best, "{report}");
    assert!(latency(free) < 0.97 * best, "{report}");
    assert!(latency(both) < 0.99 * latency(oracle).min(latency(free)), "{report}");
    // An oracle drafts nothing that is rejected; who drafts for nothing is wrong as often as ever.
    assert_eq!((oracle.figures.acceptance, oracle.figures.wasted_rows), (1.0, 0.0));
    assert_eq!((both.figures.acceptance, both.figures.wasted_rows), (1.0, 0.0));
    assert!(free.figures.acceptance < 0.95 && oracle.figures.k_mean > 1.0, "{report}");
    for run in &report.runs {
        let left = run.left.expect("the lowest bound was looked for");
        assert!((left * latency(both) / latency(run) - 1.0).abs() < 1e-9 && left >= 1.0, "{report}");
    }
    // Smaller passes are tried, of no fewer rows than sequences may run.
    assert!(report.runs.iter().all(|run| [256, 512].contains(&run.max_pass_rows)), "{report}");
    let (table, json) = (report.to_string(), serde_json::to_value(&report).unwrap());
    let named = format!("oracle-free {}@{}", both.policy, both.max_pass_rows);
    for text in ["left", "1.00x", "oracle-lengths ", "free-drafts ", named.as_str()] {
        assert!(table.contains(text), "no {text} in\n{table}");
    }
    assert_eq!(json["runs"][6]["contender"], "oracle-free");
    assert_eq!(json["runs"][6]["max_pass_rows"], both.max_pass_rows);
    assert!(report.svg().unwrap().contains("oracle-free"));
}

#[test]
fn titles_say_what_figures_hang_on() {
    let title = |spec: &SimSpec| spec.to_string();
    let begins =
        "Qwen3-0.6B for Qwen3-32B on 1 x h100, draft step 2.4 ms, exact lengths, KV for 32768 tokens";
    assert!(title(&spec()).starts_with(begins), "{}", title(&spec()));
    let pair = Pair { draft_step_s: 0.0, ..Pair::QWEN3.in_fp8() };
    let named = SimSpec { preset: Some("some".to_owned()), pair, ..spec() };
    let begins = "preset some: Qwen3-0.6B for Qwen3-32B in FP8 on 1 x h100, draft step as modelled, ";
    assert!(title(&named).starts_with(begins), "{}", title(&named));
}

#[test]
fn prompts_seen_before_bring_the_first_token_sooner() {
    let spec = SimSpec { lengths: Lengths::exactly(600, 20), ..spec() };
    let brought =
        |cached_prompts| compare(&SimSpec { cached_prompts, ..spec.clone() }, &["off"], &[poisson(4.0)]);
    let [none, most] = [0.0, 0.9].map(brought);
    let [ttft, sooner] = [&none, &most].map(|report| report.runs[0].figures.ttft.median_ms);
    assert!(sooner < 0.8 * ttft, "{none}{most}");
    let cached = most.runs[0].figures.cached_prompt_tokens;
    assert!((0.5..0.9).contains(&cached), "{cached}");
    assert_eq!(none.runs[0].figures.cached_prompt_tokens, 0.0);
    let says = |report: &SimReport| report.to_string().contains(" cached ");
    assert!(says(&most) && !says(&none) && most.title.contains("90 % of prompts seen before"), "{most}");
}

#[test]
fn targets_are_met_by_those_that_are_served_in_time() {
    let brought = |ttft_ms, tpot_ms, faults| {
        let targets = Targets { ttft_ms: Some(ttft_ms), tpot_ms: Some(tpot_ms) };
        let lengths = Lengths::exactly(100, 40);
        compare(&SimSpec { targets, lengths, faults, ..spec() }, &["off"], &[poisson(4.0)])
    };
    let attained = |ttft_ms, tpot_ms| {
        let report = brought(ttft_ms, tpot_ms, Faults::default());
        report.runs[0].figures.attained.expect("there are targets")
    };
    // A pass takes 24 ms at least, and a prompt one pass.
    let [never, always] = [attained(1e4, 20.0), attained(1e4, 100.0)];
    assert_eq!((never.attainment, never.request_goodput), (0.0, 0.0));
    assert_eq!(always.attainment, 1.0);
    assert!((2.0..4.5).contains(&always.request_goodput), "{always:?}");
    let some = attained(40.0, 100.0).attainment;
    assert!((0.05..0.95).contains(&some), "{some}");
    // Who leaves does not count.
    let leaving = brought(1e4, 100.0, Faults { cancelled: 0.5, ..Faults::default() });
    let figures = &leaving.runs[0].figures;
    assert!(figures.others > 3 && figures.attained.is_some_and(|a| a.attainment == 1.0), "{leaving}");
    assert!(leaving.to_string().contains(" met/s "), "{leaving}");
    assert!(leaving.title.ends_with(", seed 1, TTFT target 10000 ms, TPOT target 100 ms"), "{leaving}");
    assert!(serde_json::to_value(&leaving).unwrap()["runs"][0]["figures"]["attained"]["attainment"] == 1.0);
    let none = compare(&spec(), &["off"], &[poisson(1.0)]);
    assert!(none.runs[0].figures.attained.is_none() && !none.to_string().contains(" met "), "{none}");
}

#[test]
fn a_trace_is_replayed_with_what_its_prompts_share() {
    let request = |i: u64| TracedRequest {
        at: Duration::from_millis(500 * i),
        prompt_tokens: 600,
        output_tokens: 20,
        blocks: [i % 2, 100 + i].into(),
    };
    let trace = Arc::new(Trace::new("some.jsonl", 1.0, (0..20).map(request).collect()));
    let load = Load::replay(&trace, trace.duration());
    let spec = SimSpec { duration: trace.duration(), trace: Some(trace), ..spec() };
    let report = compare(&spec, &["off", "batch-table"], &[load]);
    let figures = &report.runs[0].figures;
    assert_eq!((figures.finished, report.runs[0].level), (20, 2.0));
    // 512 of 600 tokens are common, twice computed before.
    assert!((0.6..0.77).contains(&figures.cached_prompt_tokens), "{report}");
    assert!(report.title.contains("20 requests of some.jsonl, KV for"), "{report}");
    // The same again, at constant batches.
    assert!(
        matches!(&report.runs[1].policy, Policy::BatchTable { .. }) && report.runs[1].figures.finished == 20
    );
}

#[test]
fn without_bounds_nothing_is_left_to_say() {
    let report = compare(&spec(), &["off"], &[poisson(1.0)]);
    assert_eq!(report.runs[0].left, None);
    assert!(!report.to_string().contains("left"), "{report}");
}

#[test]
fn a_server_that_others_wait_for_commits_more_with_more_of_them() {
    let report = compare(&spec(), &["off"], &[poisson(0.5), poisson(4.0)]);
    let [idle, busy] = [&report.runs[0].figures, &report.runs[1].figures];
    assert!(busy.tokens_per_s > 4.0 * idle.tokens_per_s && busy.batch_mean > idle.batch_mean);
    assert!(busy.latency_mean_s >= idle.latency_mean_s && busy.latency.p99_ms >= busy.latency.median_ms);
    // What is served is what was asked for: 40 tokens each.
    let asked = 40.0 * (busy.finished as f64) / 10.0;
    assert!((busy.tokens_per_s / asked - 1.0).abs() < 0.2, "{} of {asked}", busy.tokens_per_s);
}

#[test]
fn faults_are_survived_and_counted() {
    let faults = Faults {
        cancelled: 0.3,
        device_lost_every: Some(Duration::from_secs(3)),
        slow_lane_every: Some(Duration::from_secs(3)),
    };
    let report = compare(
        &SimSpec { faults, lengths: Lengths::exactly(20, 400), ..spec() },
        &["faser"],
        &[poisson(4.0)],
    );
    let figures = &report.runs[0].figures;
    assert!(figures.others > 0 && figures.finished > 0, "{figures:?}");
}

#[test]
fn a_trace_has_both_lanes_with_slices_in_order() {
    let report = spec().simulate(Policy::Fixed { k: 4 }, &poisson(4.0), true).unwrap();
    let second = Duration::from_secs(1);
    let record = report.into_record();
    let mut trace = Vec::new();
    write_chrome_trace(&record, second..2 * second, &mut trace).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for lane in [0, 1] {
        let slices: Vec<(f64, f64)> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["pid"] == 1 && event["tid"] == lane)
            .map(|event| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap()))
            .collect();
        assert!(slices.len() > 10);
        assert!(slices.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 1e-3), "slices overlap");
        assert!(slices.iter().all(|(ts, _)| (1e6..2e6).contains(ts)));
    }
    let verify =
        events.iter().find(|event| event["name"].as_str().is_some_and(|name| name.starts_with("verify")));
    assert!(verify.unwrap()["args"]["chunks"][0].as_str().unwrap().contains("accepted"));
    assert!(events.iter().any(|event| event["ph"] == "C" && event["name"] == "mean k"));
}

/// The draft is right so often that drafting under verification pays, and now and then it is wrong.
fn overlapping() -> faser_engine::record::Record {
    // Drafts take longer than told, so that verdicts come before them.
    let deviation = Deviation { draft: 2.5, ..spec().deviation };
    let (acceptance, lengths) = (Acceptance::from(0.97), Lengths::exactly(20, 400));
    let sure = SimSpec { acceptance, lengths, deviation, ..spec() };
    sure.simulate(Policy::Faser, &Load::backlog(1), true).expect("a sound spec").into_record()
}

/// Drafts take so long that rounds seldom wait for one: who is behind by a prompt would never be prepared for.
#[test]
fn who_is_far_behind_catches_up_under_verify_passes() {
    let pair = Pair { draft_step_s: 5e-3, ..Pair::QWEN3 };
    let spec = SimSpec { pair, lengths: Lengths::exactly(100, 60), ..spec() };
    let record = spec.simulate(Policy::Faser, &Load::backlog(16), true).expect("a sound spec").into_record();
    let under = record.passes.iter().filter(|pass| pass.lane == LaneKind::Draft && pass.partition > 0);
    let chunks: Vec<_> = under.flat_map(|pass| &pass.chunks).collect();
    // A prompt of 100 tokens, in one piece or several; steps are of a row or two.
    let far = |chunk: &&&ChunkRecord| chunk.rows > 16;
    let caught_up: usize = chunks.iter().filter(far).map(|chunk| chunk.rows).sum();
    assert!(caught_up > 1000, "{caught_up} rows of {} chunks", chunks.len());
    // They have verdicts prepared for then.
    let seqs: HashSet<_> = chunks.iter().filter(far).map(|chunk| chunk.seq).collect();
    let after = chunks.iter().filter(|chunk| chunk.rows <= 2 && seqs.contains(&chunk.seq)).count();
    assert!(after > 10 * seqs.len(), "{after} chunks of {} sequences", seqs.len());
    // No plan has more rows than a pass.
    let few_rows = SimSpec { max_pass_rows: 64, ..spec };
    let record =
        few_rows.simulate(Policy::Faser, &Load::backlog(16), true).expect("a sound spec").into_record();
    let of_drafts = record.passes.iter().filter(|pass| pass.lane == LaneKind::Draft);
    let most = of_drafts.map(|pass| pass.chunks.iter().map(|chunk| chunk.rows).sum::<usize>()).max();
    assert!(most.is_some_and(|rows| (33..=64).contains(&rows)), "{most:?}");
}

#[test]
fn a_rejection_that_cancels_is_an_instant_that_names_the_pass_and_has_an_arrow() {
    let record = overlapping();
    let cancelled = record.marks.iter().filter(|(_, mark)| match mark {
        Mark::EpochMoved { moved, .. } => moved.cancelled(),
        _ => false,
    });
    let mut trace = Vec::new();
    write_chrome_trace(&record, record.from..record.until, &mut trace).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for event in events {
        assert!(
            ["ph", "ts", "pid", "tid"]
                .iter()
                .all(|key| event[key].is_u64() || event[key].is_f64() || *key == "ph")
        );
        assert!(event["ph"].is_string() && event["ts"].as_f64().is_some_and(|ts| ts >= 0.0));
    }
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    let instants = named("chunk cancelled");
    assert_eq!(instants.len(), cancelled.count());
    assert!(instants.len() > 3, "too few to say anything");
    for instant in &instants {
        // On the draft lane, at the end of the verify pass it names.
        assert_eq!((instant["ph"].as_str(), instant["tid"].as_u64()), (Some("i"), Some(0)));
        let step = &instant["args"]["verify_step"];
        let pass = events.iter().find(|event| {
            event["ph"] == "X" && event["pid"] == 1 && event["tid"] == 1 && event["args"]["step"] == *step
        });
        let pass = pass.expect("the pass that it names");
        let end = pass["ts"].as_f64().unwrap() + pass["dur"].as_f64().unwrap();
        assert!((instant["ts"].as_f64().unwrap() - end).abs() < 1e-3);
        let cancelled = events.iter().filter(|event| {
            event["args"]["cancelled_by_verify_steps"].as_array().is_some_and(|steps| steps.contains(step))
        });
        assert!(cancelled.count() >= 1, "{instant}");
    }
    // Arrows: a beginning for each end.
    let arrows = named("cancels");
    let count = |ph: &str| arrows.iter().filter(|event| event["ph"] == ph).count();
    assert!(count("s") > 0);
    assert_eq!((count("s"), arrows.len()), (count("f"), 2 * count("f")));
}

#[test]
fn a_picture_of_a_record_shows_what_was_cancelled() {
    let record = overlapping();
    let window = telling_window(&record, Duration::from_millis(150));
    let cancels = record.marks.iter().any(|(at, mark)| match mark {
        Mark::EpochMoved { moved, .. } => moved.cancelled() && window.contains(at),
        _ => false,
    });
    assert!(cancels, "the window was to show a cancelled chunk");
    // The mark of what was cancelled; the legend has some of it always.
    let shown = picture(&record, window, "a title");
    let before = picture(&record, Duration::ZERO..Duration::from_millis(1), "a title");
    let more = |colour: &str, than: usize| {
        let [shown, before] = [&shown, &before].map(|picture| picture.matches(colour).count());
        assert!(shown > before + than, "{colour}: {shown} after {before}");
    };
    more("stripes-be003c", 1);
    // Accepted proposals, rejected ones, and both lanes at work.
    ["#009e73", "#e1692d", "#e69f00"].into_iter().for_each(|colour| more(colour, 0));
    assert!(shown.starts_with("<svg") && shown.contains("a title"));
}
