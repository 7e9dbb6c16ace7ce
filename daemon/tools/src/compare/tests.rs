//! What `faser compare` takes and what it refuses.

use faser_config::raw::Document;

use super::*;

fn args(line: &str) -> Result<CompareArgs, clap::Error> {
    crate::arguments(&format!("faser compare {line}"))
}

#[test]
fn loads_are_streams_unless_only_bursts_are_asked_for() {
    let loads = |line: &str| args(line).unwrap().loads();
    assert_eq!(loads(""), [1, 4, 16].map(Load::Streams));
    assert_eq!(loads("--streams 2 --bursts 3,4"), [Load::Streams(2), Load::Bursts(3.0), Load::Bursts(4.0)]);
    assert_eq!(loads("--bursts 3"), [Load::Bursts(3.0)]);
}

#[test]
fn policies_may_be_ablations_and_may_be_named_twice() {
    let policies = args("--policy off --policy +trim --policy off").unwrap().policies;
    assert_eq!(policies.iter().map(ToString::to_string).collect::<Vec<_>>(), ["off", "+trim", "off"]);
}

#[test]
fn costs_are_read_or_measured_whoever_takes_part() {
    let config = args("--policy off --profile").unwrap().load_config().unwrap();
    assert_eq!((config.tuning.policy, config.profile), (Policy::Faser, true));
}

#[test]
fn what_makes_no_sense_is_refused_by_its_flag() {
    for line in ["--policy best-fixed", "--policy fixed:99", "--streams x", "--prompts a --prompt-tokens 1"] {
        assert!(args(line).is_err(), "{line}");
    }
    let config = Config::from_document(&Document::empty()).unwrap();
    for (line, advice) in [
        ("--streams 4,0", "--streams must be at least 1"),
        ("--streams 65", "raise `scheduler.max_running`"),
        ("--bursts 0", "--bursts must be above 0"),
        ("--bursts NaN", "--bursts must be above 0"),
        ("--burst-seconds 0", "--burst-seconds must be at least 1"),
        ("--repeats 0", "--repeats must be at least 1"),
        ("--requests 0", "--requests must be at least 1"),
        ("--prompt-tokens 0", "--prompt-tokens must be at least 1"),
        ("--tpot-target 0", "TPOT target"),
    ] {
        let refused = args(line).unwrap().check(&config).unwrap_err().to_string();
        assert!(refused.contains(advice), "{line}: {refused}");
    }
    args("").unwrap().check(&config).unwrap();
    for line in ["--max-tokens 0", "--max-tokens 9..3"] {
        let refused = args(line).unwrap_err().to_string();
        assert!(refused.contains("--max-tokens") && refused.contains("such as 32..96"), "{line}: {refused}");
    }
}

#[test]
fn without_a_draft_model_lengths_cannot_be_given() {
    let mut document = Document::empty();
    document.lay_over("model.draft", "test", "none".into());
    let config = Config::from_document(&document).unwrap();
    args("--policy off").unwrap().check(&config).unwrap();
    args("--policy off --policy +lookup").unwrap().check(&config).unwrap();
    let refused = args("--policy off --policy fixed:4").unwrap().check(&config).unwrap_err().to_string();
    assert!(refused.starts_with("--policy fixed:4 needs a draft model"), "{refused}");
}

#[test]
fn requests_have_the_targets_that_answers_are_held_to() {
    let targets = args("--ttft-target 250 --tpot-target 20").unwrap().targets.targets().unwrap();
    let requests = Requests {
        prompts: vec![vec![1]],
        max_tokens: MaxTokens::exactly(3),
        slo: targets.slo(),
        spoken: String::new(),
    };
    assert_eq!(requests.submission(0).handling.slo, targets.slo());
    let answer = |tokens: usize| Answer {
        latency: Duration::from_millis(290),
        ttft: Duration::from_millis(250),
        tokens: vec![1; tokens],
    };
    // 40 ms for two tokens after the first, for one, and for none.
    let attained = |tokens| {
        let attained = targets.attained([Some(answer(tokens).answered())], Duration::from_secs(1));
        attained.map(|attained| attained.attainment)
    };
    assert_eq!([3, 2, 1].map(attained), [Some(1.0), Some(0.0), Some(1.0)]);
}

fn entrant(text: &str) -> Entrant {
    text.parse().unwrap()
}

#[test]
fn policies_and_ablations_are_read_and_written_alike() {
    for text in
        ["off", "fixed:4", "batch-table:4=6,16=2", "budget", "faser", "length", "+trim", "+prune", "+lookup"]
    {
        assert_eq!(entrant(text).to_string(), text);
    }
    assert_eq!(entrant("+trim").policy, Policy::Faser);
}

#[test]
fn what_cannot_take_part_is_refused_with_what_can() {
    for (text, advice) in [
        ("fixed:99", "`fixed:K` with K from 1 to 16"),
        ("+cut", "length, +trim, +overlap, +partition, +prune, +lookup, length+prune"),
        ("best-fixed", "faser sim"),
        ("batch-table", "faser sim"),
    ] {
        let refusal = text.parse::<Entrant>().unwrap_err();
        assert!(refusal.contains(advice), "{refusal}");
    }
}

#[test]
fn an_ablation_without_partitions_has_the_middle_split() {
    let all = ["whole", "1", "4", "8"];
    assert_eq!(entrant("+overlap").partitions(&all), ["whole", "4"]);
    assert_eq!(entrant("+partition").partitions(&all), all);
    assert_eq!(entrant("faser").partitions(&all), all);
    assert_eq!(entrant("length").partitions(&["whole"]), ["whole"]);
    assert!(entrant("length").partitions::<u8>(&[]).is_empty());
}

#[test]
fn bursts_begin_at_once_and_are_their_seed() {
    let lasting = Duration::from_secs(30);
    let times = arrivals(20.0, lasting, 7);
    assert_eq!(times[0], Duration::ZERO);
    assert!(times.is_sorted() && times.iter().all(|at| *at < lasting));
    assert_eq!(times, arrivals(20.0, lasting, 7));
    assert_ne!(times, arrivals(20.0, lasting, 8));
    // On average a third of the time is on.
    let many: usize = (0..200).map(|seed| arrivals(20.0, lasting, seed).len()).sum();
    let per_s = many as f64 / 200.0 / 30.0;
    assert!((5.0..10.0).contains(&per_s), "{per_s}");
    assert_eq!(arrivals(1e-9, lasting, 1), [Duration::ZERO]);
}

#[test]
fn every_stream_has_two_requests_and_is_warm() {
    assert_eq!((closed_requests(16, 4), closed_requests(16, 16)), (16, 32));
    assert_eq!((warm_up(Load::Streams(1)), warm_up(Load::Streams(16))), ((4, 1), (16, 16)));
}
