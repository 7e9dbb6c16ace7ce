//! Devices that fail on demand: streams go on, or end with a word.

use super::*;

use std::time::Instant;

use faser_engine::{Event, Verdict, VerifyChunk, VerifyOutcome, VerifyPlan};

use crate::lane::LaneDone;
use crate::message::Message;

/// Panics at the plans of these numbers, counted over all devices.
fn panic_at(plans: &'static [usize]) -> impl Fn() + Clone + Send + Sync + 'static {
    let count = Arc::new(AtomicUsize::new(0));
    move || {
        let plan = count.fetch_add(1, Ordering::Relaxed);
        assert!(!plans.contains(&plan), "injected fault at plan {plan}");
    }
}

#[test]
fn streams_go_on_with_the_same_tokens_after_a_lane_panics() {
    in_system(async {
        let expected = undisturbed(3).await;
        for lane in ["draft", "verify"] {
            let spec = spec();
            let build = device_build(&spec);
            let build = match lane {
                "draft" => DeviceBuild {
                    draft: build.draft.as_ref().map(|draft| before_each(draft, panic_at(&[2, 5]))),
                    ..build
                },
                _ => DeviceBuild { verify: before_each(&build.verify, panic_at(&[2, 5])), ..build },
            };
            let gate = Gate::default();
            let service = start_build(spec, gated(build, &gate)).await.expect("a service");
            let streams = submit(&service, 0..3, 24).await;
            gate.open();
            for (stream, expected) in streams.into_iter().zip(&expected) {
                assert_eq!(read(stream).await, (expected.clone(), Some(FinishReason::Length)), "{lane}");
            }
            assert_whole(&service).await;
            until("the device serves", || service.ready()).await;
            service.stop().await;
        }
    });
}

#[test]
fn a_request_that_fells_every_device_is_given_up_and_the_service_is_not() {
    in_system(async {
        let spec = spec();
        let build = device_build(&spec);
        let build = DeviceBuild { verify: before_each(&build.verify, panic_at(&[0, 1, 2])), ..build };
        let service = start_build(spec, build).await.expect("a service");
        let stream = service.submit(submission(1, 8)).await.expect("it is taken");
        assert_eq!(read(stream).await, (vec![], Some(FinishReason::DeviceFailed)));
        until("the device serves again", || service.ready()).await;
        let stream = service.submit(submission(2, 8)).await.expect("it is taken");
        assert_eq!(read(stream).await.1, Some(FinishReason::Length));
        assert_whole(&service).await;
        assert_eq!(service.view().totals.failed, 1);
        service.stop().await;
    });
}

#[test]
fn a_device_that_cannot_be_rebuilt_is_given_up_and_every_request_is_told() {
    in_system(async {
        let mut spec = spec();
        spec.watchdog.max_failures = 3;
        let build = device_build(&spec);
        let builds = Arc::new(AtomicUsize::new(0));
        let whole = before_each(&build.verify, panic_at(&[1]));
        let once: Build<_> = Arc::new(move |cancels| match builds.fetch_add(1, Ordering::Relaxed) {
            0 => whole(cancels),
            nth => Err(ServiceError::Lane { lane: "verify", reason: format!("build {nth} fails") }),
        });
        let gate = Gate::default();
        let build = gated(DeviceBuild { verify: once, ..build }, &gate);
        let service = start_build(spec, build).await.expect("a service");
        let streams = submit(&service, 0..6, 24).await;
        gate.open();
        for stream in streams {
            assert_eq!(read(stream).await.1, Some(FinishReason::DeviceFailed));
        }
        until("it is given up", || matches!(service.status(), DeviceStatus::GivenUp { .. })).await;
        assert!(!service.ready());
        assert!(service.status().to_string().contains("build 3 fails"), "{}", service.status());
        let refused = service.submit(submission(1, 4)).await.expect_err("there is no device");
        assert!(matches!(refused, SubmitError::NotReady(_)), "{refused}");
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn a_stalled_lane_is_reported_and_may_come_back() {
    in_system(async {
        let gate = Gate::default();
        let mut spec = spec();
        spec.watchdog.lane_deadline = Duration::from_millis(30);
        let service = start_gated(spec, &gate).await;
        assert!(service.ready());
        let stream = service.submit(submission(1, 8)).await.expect("it is taken");
        until("it is stalled", || matches!(service.status(), DeviceStatus::Stalled { lane: "verify", .. }))
            .await;
        assert!(!service.ready());
        gate.open();
        assert_eq!(read(stream).await.1, Some(FinishReason::Length));
        until("it is ready again", || service.ready()).await;
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn a_device_that_cannot_be_built_at_all_is_the_starts_error() {
    in_system(async {
        let spec = spec();
        let build = device_build(&spec);
        let broken: Build<_> = Arc::new(|_| panic!("no such device"));
        let error = start_build(spec, DeviceBuild { draft: Some(broken), ..build }).await.err();
        let text = error.expect("it cannot start").to_string();
        assert!(text.contains("draft lane") && text.contains("no such device"), "{text}");
    });
}

#[test]
fn late_results_of_another_device_change_nothing() {
    in_system(async {
        let expected = undisturbed(2).await;
        let gate = Gate::default();
        let service = start_gated(spec(), &gate).await;
        let stream = service.submit(submission(1, 24)).await.expect("it is taken");
        until("the first verify plan is out", || service.view().running == 1).await;
        // What a lost device would bring: the number of the plan that is out, and tokens nobody chose.
        let chunk = VerifyChunk { seq: stream.seq(), sample: true, ..VerifyChunk::default() };
        let verdict = Verdict { next: Some(expected[1][0] ^ 1), ..Verdict::default() };
        let outcome = VerifyOutcome { verdicts: vec![verdict], ..VerifyOutcome::default() };
        let plan = VerifyPlan { step: 1, chunks: vec![chunk], outcome, ..VerifyPlan::default() };
        let late = LaneDone { generation: 99, done: Event::VerifyDone(plan), ended: Instant::now() };
        service.dispatcher().send(late).await.expect("the dispatcher is there");
        gate.open();
        assert_eq!(read(stream).await, (expected[1].clone(), Some(FinishReason::Length)));
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn a_dispatcher_that_is_gone_is_noticed() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        service.dispatcher().send(Message::Stop).await.expect("the dispatcher is there");
        until("it is noticed", || !service.ready()).await;
        assert!(service.status().to_string().contains("dispatcher"), "{}", service.status());
        assert!(matches!(service.submit(submission(1, 4)).await, Err(SubmitError::NotReady(_))));
        service.stop().await;
    });
}
