//! Several replicas: the same tokens whoever has a request, and whoever is given up under it.

use super::*;

use crate::{Drill, DrillFault, ReplicaStream, Replicas};
use faser_engine::{Handling, Moments, SpeculationMode};

async fn read(mut stream: ReplicaStream) -> Read {
    read_by(async || stream.next().await).await
}

/// Replicas that are given up at their first failure.
fn fragile(count: usize) -> Vec<ServiceSpec> {
    let one = |_| {
        let mut spec = spec();
        spec.watchdog.max_failures = 0;
        spec
    };
    (0..count).map(one).collect()
}

fn panics(replica: usize, at: usize) -> Drill {
    Drill { replica, fault: DrillFault::Panic { rank: 0, at } }
}

async fn submit(replicas: &Replicas, seeds: std::ops::Range<u64>) -> Vec<ReplicaStream> {
    let mut streams = Vec::new();
    for seed in seeds {
        streams.push(replicas.submit(submission(seed, 24)).await.expect("it is taken"));
    }
    streams
}

async fn assert_all_whole(replicas: &Replicas) {
    for number in 0..replicas.count() {
        assert_whole(replicas.replica(number).expect("it is there")).await;
    }
    assert_eq!(replicas.active(), 0);
}

#[test]
fn two_replicas_of_two_ranks_give_the_tokens_of_one_whole() {
    in_system(async {
        let expected = groups::expected().await;
        let replicas = Replicas::start(vec![groups::split(2, 1), groups::split(2, 1)], &[]).await;
        let replicas = replicas.expect("two replicas");
        let streams = groups::submissions(4).map(|submission| replicas.submit(submission));
        let mut had = [0; 2];
        let mut found = Vec::new();
        let mut reading = Vec::new();
        for stream in streams {
            reading.push(stream.await.expect("it is taken"));
        }
        for stream in reading {
            had[stream.replica()] += 1;
            found.push(read(stream).await);
        }
        assert_eq!(found, expected);
        // One may be done before another is handed in.
        assert!(had[0] > 0 && had[1] > 0, "they are balanced: {had:?}");
        assert_all_whole(&replicas).await;
        assert!((0..2).all(|n| replicas.replica(n).expect("it is there").view().totals.accepted_tokens > 0));
        replicas.stop().await;
    });
}

#[test]
fn what_a_replica_had_when_it_was_given_up_goes_on_elsewhere_with_the_same_tokens() {
    in_system(async {
        let expected = undisturbed(6).await;
        // Before anything was streamed, early, and late.
        for at in [0, 2, 5] {
            let replicas = Replicas::start(fragile(2), &[panics(0, at)]).await.expect("replicas");
            let streams = submit(&replicas, 0..6).await;
            let there = streams.iter().filter(|stream| stream.replica() == 0).count();
            assert!(there > 0);
            let mut moved = 0;
            for (mut stream, expected) in streams.into_iter().zip(&expected) {
                let (from, mut tokens) = (stream.replica(), Vec::new());
                while let Some(Update::Tokens(emitted)) = stream.next().await {
                    tokens.extend(emitted.iter().map(|emitted| emitted.token));
                }
                moved += usize::from(stream.replica() != from);
                assert_eq!(&tokens, expected, "at {at}");
            }
            assert!(moved > 0, "at {at}");
            let statuses = replicas.statuses();
            assert!(matches!(statuses[0], DeviceStatus::GivenUp { .. }), "{statuses:?}");
            assert!(replicas.ready() && statuses[1] == DeviceStatus::Serving, "{statuses:?}");
            let words = replicas.status();
            assert!(words.contains("replica 0: given up") && words.contains("replica 1: serving"), "{words}");
            // New ones go to the other alone.
            for stream in submit(&replicas, 0..2).await {
                assert_eq!(stream.replica(), 1);
                assert_eq!(read(stream).await.1, Some(FinishReason::Length));
            }
            assert_all_whole(&replicas).await;
            replicas.stop().await;
        }
    });
}

#[test]
fn what_a_request_wishes_goes_along_and_what_it_took_adds_up() {
    in_system(async {
        for (mode, proposes) in [(SpeculationMode::Off, false), (SpeculationMode::Draft, true)] {
            let replicas = Replicas::start(fragile(2), &[panics(0, 3)]).await.expect("replicas");
            let handling = Handling { mode, priority: 3, ..Handling::default() };
            let mut moved = 0;
            let mut streams = Vec::new();
            for seed in 0..4 {
                let submission = Submission { handling, ..submission(seed, 24) };
                streams.push(replicas.submit(submission).await.expect("it is taken"));
            }
            for mut stream in streams {
                let from = stream.replica();
                let usage = loop {
                    match stream.next().await.expect("an end") {
                        Update::Tokens(_) => {}
                        Update::Finished { usage, .. } => break usage,
                    }
                };
                assert_eq!((usage.proposed > 0, usage.output_tokens), (proposes, 24));
                let accepted = (0..).zip(usage.passes_by_accepted).map(|(n, passes)| n * passes as usize);
                assert_eq!(accepted.sum::<usize>(), usage.accepted);
                if stream.replica() != from {
                    moved += 1;
                    assert_eq!(usage.moments, Moments::default(), "of two clocks");
                }
            }
            assert!(moved > 0);
            replicas.stop().await;
        }
    });
}

#[test]
fn requests_that_move_are_finished_by_a_drain_and_told_if_there_is_nobody_left() {
    in_system(async {
        let expected = undisturbed(4).await;
        let replicas = Replicas::start(fragile(2), &[panics(0, 3)]).await.expect("replicas");
        let reading: Vec<_> = submit(&replicas, 0..4).await.into_iter().map(read).map(actix::spawn).collect();
        assert_eq!(replicas.drain(PATIENCE).await, 0);
        assert!(!replicas.ready());
        let refused = replicas.submit(submission(1, 4)).await.expect_err("it drains");
        assert_eq!(refused, SubmitError::Draining);
        for (read, expected) in reading.into_iter().zip(&expected) {
            assert_eq!(read.await.expect("it is read"), (expected.clone(), Some(FinishReason::Length)));
        }
        replicas.stop().await;

        let both = [panics(0, 3), panics(1, 3)];
        let replicas = Replicas::start(fragile(2), &both).await.expect("replicas");
        for stream in submit(&replicas, 0..4).await {
            let (tokens, reason) = read(stream).await;
            assert!(tokens.len() < 24);
            assert_eq!(reason, Some(FinishReason::DeviceFailed));
        }
        assert!(!replicas.ready());
        let refused = replicas.submit(submission(1, 4)).await.expect_err("there is no device");
        let words = refused.to_string();
        assert!(
            matches!(refused, SubmitError::NotReady(_)) && words.contains("replica 1: given up"),
            "{words}"
        );
        assert_all_whole(&replicas).await;
        replicas.stop().await;
    });
}

#[test]
fn a_replica_that_is_rebuilt_gets_nothing_meanwhile_and_keeps_what_it_has() {
    in_system(async {
        let expected = undisturbed(4).await;
        let specs = || {
            let mut spec = spec();
            // Long enough for a slow machine to see it.
            spec.watchdog.back_off = Duration::from_secs(2);
            spec
        };
        let replicas = Replicas::start(vec![specs(), specs()], &[panics(0, 2)]).await.expect("replicas");
        let reading: Vec<_> = submit(&replicas, 0..4).await.into_iter().map(read).map(actix::spawn).collect();
        until("replica 0 is rebuilt", || matches!(replicas.statuses()[0], DeviceStatus::Rebuilding { .. }))
            .await;
        assert!(replicas.ready());
        for stream in submit(&replicas, 0..2).await {
            assert_eq!(stream.replica(), 1);
        }
        for (read, expected) in reading.into_iter().zip(&expected) {
            assert_eq!(read.await.expect("it is read"), (expected.clone(), Some(FinishReason::Length)));
        }
        until("replica 0 serves", || replicas.statuses()[0] == DeviceStatus::Serving).await;
        assert_all_whole(&replicas).await;
        replicas.stop().await;
    });
}

#[test]
fn a_request_that_fells_every_device_is_not_sent_on_to_the_next_replica() {
    in_system(async {
        let drills: Vec<Drill> = (0..3).map(|at| panics(0, at)).collect();
        let replicas = Replicas::start(vec![spec(), spec()], &drills).await.expect("replicas");
        let mut stream = replicas.submit(submission(1, 8)).await.expect("it is taken");
        let end = stream.next().await;
        assert!(matches!(end, Some(Update::Finished { reason: FinishReason::DeviceFailed, .. })), "{end:?}");
        assert_eq!(stream.replica(), 0);
        until("replica 0 serves again", || replicas.statuses()[0] == DeviceStatus::Serving).await;
        assert_all_whole(&replicas).await;
        replicas.stop().await;
    });
}

#[test]
fn a_request_is_refused_as_full_only_if_all_are() {
    in_system(async {
        let narrow = || {
            let mut spec = spec();
            (spec.engine.tuning.max_running, spec.engine.tuning.max_waiting) = (1, 1);
            spec
        };
        // Nothing moves until all are there.
        let hold = Duration::from_secs(3);
        let hangs = |replica| Drill { replica, fault: DrillFault::Hang { rank: 0, at: 0, lasting: hold } };
        let replicas = Replicas::start(vec![narrow(), narrow()], &[hangs(0), hangs(1)]).await;
        let replicas = replicas.expect("replicas");
        let streams = submit(&replicas, 0..4).await;
        let had: Vec<usize> = streams.iter().map(ReplicaStream::replica).collect();
        assert_eq!(had.iter().filter(|replica| **replica == 0).count(), 2, "{had:?}");
        let refused = replicas.submit(submission(5, 4)).await.expect_err("all are full");
        assert_eq!(refused, SubmitError::Full { capacity: 2 });
        for stream in streams {
            assert_eq!(read(stream).await.1, Some(FinishReason::Length));
        }
        assert_all_whole(&replicas).await;
        replicas.stop().await;
    });
}

#[test]
fn a_prompt_goes_where_its_beginning_is_cached() {
    in_system(async {
        let replicas = Replicas::start(vec![spec(), spec()], &[]).await.expect("replicas");
        let long = |tail: TokenId| {
            let prompt = (0..60).chain([tail]).collect();
            Submission { prompt, ..submission(1, 4) }
        };
        let first = replicas.submit(long(7)).await.expect("it is taken");
        let had = first.replica();
        read(first).await;
        // By turns alone the other one's.
        for tail in 8..12 {
            let mut stream = replicas.submit(long(tail)).await.expect("it is taken");
            assert_eq!(stream.replica(), had);
            let mut cached = None;
            while let Some(update) = stream.next().await {
                if let Update::Finished { usage, .. } = update {
                    cached = Some(usage.cached_tokens);
                }
            }
            assert_eq!(cached, Some(60));
        }
        assert_all_whole(&replicas).await;
        replicas.stop().await;
    });
}

#[test]
fn replicas_have_their_metrics_apart_and_bad_starts_leave_nothing() {
    let ledger = crate::ledger::Ledger::default();
    let _recorder = metrics::set_default_local_recorder(&ledger);
    in_system(async {
        let replicas = Replicas::start(vec![spec(), spec()], &[]).await.expect("replicas");
        for stream in submit(&replicas, 0..2).await {
            read(stream).await;
        }
        replicas.publish_metrics();
        for name in ["faser_requests_finished_total{replica=0}", "faser_requests_finished_total{replica=1}"] {
            assert_eq!(ledger.counted(name), 1, "{name}");
        }
        assert_eq!(ledger.gauged("faser_replicas_ready"), 2.0);
        assert_eq!(ledger.gauged("faser_ready{replica=1}"), 1.0);
        assert_eq!(replicas.view().totals.finished, 2);
        assert_eq!(ledger.undescribed(), [""; 0]);
        replicas.stop().await;

        let broken = Drill { replica: 1, fault: DrillFault::Build { at: 0 } };
        let error = Replicas::start(vec![spec(), spec()], &[broken]).await.err().expect("it cannot start");
        assert!(error.to_string().contains("build 0 fails"), "{error}");
        for (specs, drills) in [(vec![], vec![]), (vec![spec()], vec![panics(1, 0)])] {
            let error = Replicas::start(specs, &drills).await.err().expect("it is refused");
            assert!(matches!(error, ServiceError::Contradiction(_)), "{error}");
        }
    });
}
