//! What operators do through the dispatcher's mailbox: it reaches every replica, and breaks no stream. The heartbeat goes the same way: it
//! comes back from a dispatcher that works or is idle, and not from one that hangs.

use super::*;
use crate::TuneError;
use crate::awake::Awake;
use crate::message::Message;
use crate::replicas::Replicas;

fn tuning() -> faser_engine::Tuning {
    spec().engine.tuning.clone()
}

#[test]
fn all_replicas_decide_otherwise_or_none_does() {
    in_system(async {
        let replicas = Replicas::start(vec![spec(), spec()], &[]).await.expect("replicas");
        let policies = async || {
            let mut policies = Vec::new();
            for number in 0..2 {
                let look = replicas.replica(number).expect("a replica").look(0, None).await.expect("a look");
                policies.push(look.tuning.policy);
            }
            policies
        };
        let stream = replicas.replica(0).expect("it").submit(submission(1, 60)).await.expect("it is taken");
        let fixed = faser_engine::Tuning { policy: Policy::Fixed { k: 5 }, ..tuning() };
        replicas.tune(&fixed).await.expect("they can");
        assert_eq!(policies().await, [Policy::Fixed { k: 5 }, Policy::Fixed { k: 5 }]);
        let more = faser_engine::Tuning { policy: Policy::Off, max_running: 5, ..tuning() };
        assert!(matches!(replicas.tune(&more).await, Err(TuneError::Engine(_))), "there is room for 4");
        let unknown = faser_engine::Tuning { policy: Policy::Budget, ..tuning() };
        assert!(matches!(replicas.tune(&unknown).await, Err(TuneError::Engine(_))), "nobody knows the costs");
        assert_eq!(policies().await, [Policy::Fixed { k: 5 }, Policy::Fixed { k: 5 }]);
        assert_eq!(read(stream).await.1, Some(FinishReason::Length));
        assert_eq!(replicas.idle(PATIENCE).await, 0);
        replicas.clone().stop().await;
        assert!(matches!(replicas.tune(&fixed).await, Err(TuneError::Stopped)));
    });
}

#[test]
fn nobody_waits_for_a_dispatcher_that_hangs() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        let (go_on, until) = std::sync::mpsc::channel();
        let hanging = service.dispatcher().send(Message::Hang(until));
        assert!(service.look(0, None).await.is_none());
        assert!(matches!(service.tune(tuning()).await, Err(TuneError::Stopped)));
        drop(go_on);
        hanging.await.expect("it goes on");
        assert!(service.look(0, None).await.is_some());
        service.stop().await;
    });
}

#[test]
fn who_cancels_and_stays_is_told_what_it_took() {
    in_system(async {
        let gate = Gate::default();
        let service = start_gated(spec(), &gate).await;
        let mut stream = service.submit(submission(1, 24)).await.expect("it is taken");
        // Nothing comes before the gate is open, and the second word changes nothing.
        stream.cancel();
        stream.cancel();
        let update = stream.next().await;
        let Some(Update::Finished { reason: FinishReason::Cancelled, usage }) = update else {
            panic!("{update:?}");
        };
        assert_eq!((usage.prompt_tokens, usage.output_tokens), (6, 0));
        assert_eq!(stream.next().await, None);
        stream.cancel();
        drop(stream);
        gate.open();
        assert_whole(&service).await;
        assert_eq!(service.view().totals.cancelled, 1);
        service.stop().await;
    });
}

#[test]
fn a_dispatcher_at_work_and_an_idle_one_answer() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        assert!(service.heartbeat().await, "it is idle");
        let streams = submit(&service, 1..3, 60).await;
        assert!(service.heartbeat().await, "it works");
        for stream in streams {
            assert_eq!(read(stream).await.1, Some(FinishReason::Length));
        }
        service.stop().await;
    });
}

#[test]
fn a_dispatcher_that_hangs_does_not_answer_until_it_goes_on() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        let (go_on, until) = std::sync::mpsc::channel();
        let hanging = service.dispatcher().send(Message::Hang(until));
        let heartbeat = actix::spawn({
            let service = service.clone();
            async move { service.heartbeat().await }
        });
        // The rest of the service lives on: messages are put into the mailbox, and nobody takes them out.
        assert!(service.ready());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!heartbeat.is_finished(), "nobody can have answered");
        drop(go_on);
        hanging.await.expect("it goes on");
        assert!(heartbeat.await.expect("it ends"));
        service.stop().await;
    });
}

#[test]
fn a_dispatcher_that_has_stopped_says_so() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        service.clone().stop().await;
        assert!(!service.heartbeat().await);
    });
}

#[test]
fn threads_that_wait_awake_bring_the_same_tokens_and_let_others_work() {
    in_system(async {
        let expected = undisturbed(3).await;
        let build = DeviceBuild { awake: Awake::anywhere(), ..device_build(&spec()) };
        let service = start_build(spec(), build).await.expect("a service");
        let streams = submit(&service, 0..3, 24).await;
        assert!(service.heartbeat().await, "it works, and answers");
        for (stream, expected) in streams.into_iter().zip(expected) {
            assert_eq!(read(stream).await, (expected, Some(FinishReason::Length)));
        }
        assert_whole(&service).await;
        assert!(service.heartbeat().await, "it is idle, and answers");
        service.stop().await;
    });
}
