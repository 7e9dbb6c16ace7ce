//! A draft on a device of its own that fails: it is built again, or retired, and streams go on with their texts.

use super::*;

use faser_engine::SpeculationMode;
use faser_kernels::cuda::CudaError;

use crate::lane::Run;
use crate::runner::DraftWork;

/// Devices whose draft is apart, and whose draft lane is made by this, told how many were made before.
fn apart(
    spec: &ServiceSpec,
    lane: impl Fn(usize, &Build<DraftWork>) -> Result<Build<DraftWork>, ServiceError> + Send + Sync + 'static,
) -> DeviceBuild {
    let build = device_build(spec);
    let (whole, made) = (build.draft.clone().expect("a draft"), AtomicUsize::new(0));
    let draft: Build<DraftWork> =
        Arc::new(move |cancels| lane(made.fetch_add(1, Ordering::Relaxed), &whole)?(cancels));
    DeviceBuild { draft: Some(draft), draft_apart: true, ..build }
}

/// A lane that panics at its plan of this number.
fn panics_at(plan: usize, whole: &Build<DraftWork>) -> Build<DraftWork> {
    let whole = whole.clone();
    Arc::new(move |cancels| {
        let (mut run, mut plans) = (whole(cancels)?, 0);
        Ok(Box::new(move |work: DraftWork| {
            plans += 1;
            assert!(plans <= plan, "injected fault");
            run(work)
        }) as Run<DraftWork>)
    })
}

fn lost() -> ServiceError {
    let why = Box::new(CudaError::Split { problem: "it does not answer".to_owned() });
    CudaError::Lost { ordinal: 1, why }.into()
}

async fn assert_texts(service: &Service, gate: Option<&Gate>, expected: &[Vec<TokenId>]) {
    let streams = submit(service, 0..expected.len() as u64, 24).await;
    gate.iter().for_each(|gate| gate.open());
    for (stream, expected) in streams.into_iter().zip(expected) {
        assert_eq!(read(stream).await, (expected.clone(), Some(FinishReason::Length)));
    }
    assert_whole(service).await;
}

/// What is left of a service whose draft is retired: all but its drafts.
async fn assert_retired(service: &Service, expected: &[Vec<TokenId>]) {
    until("the device serves", || service.ready()).await;
    assert!(service.words().contains("retired until the daemon is restarted"), "{}", service.words());
    let before = service.view();
    assert_eq!(before.draft_pool.total, 0);
    assert_texts(service, None, expected).await;
    let after = service.view();
    assert_eq!(after.totals.draft_passes, before.totals.draft_passes);
    assert!(after.totals.target_passes > before.totals.target_passes);
    let handling = Handling { mode: SpeculationMode::Draft, ..Handling::default() };
    let refused = service.submit(Submission { handling, ..submission(1, 4) }).await.err();
    assert!(matches!(refused, Some(SubmitError::Refused(Refusal::Mode { .. }))), "{refused:?}");
}

#[test]
fn a_draft_whose_device_is_lost_in_the_middle_of_streams_is_retired_and_no_text_changes() {
    type Lane = fn(usize, &Build<DraftWork>) -> Result<Build<DraftWork>, ServiceError>;
    let lanes: [(Lane, &str, usize); 4] = [
        // It panics again and again.
        (|_, whole| Ok(panics_at(2, whole)), "injected fault", 3),
        // It is lost to this process: at once.
        (|nth, whole| if nth == 0 { Ok(panics_at(2, whole)) } else { Err(lost()) }, "does not answer", 2),
        // Or as it is to be opened a second time.
        (|nth, whole| if nth < 2 { Ok(panics_at(2, whole)) } else { Err(lost()) }, "does not answer", 3),
        // It is well, but cannot be had again.
        (
            |nth, whole| match nth {
                0 => Ok(panics_at(2, whole)),
                _ => Err(ServiceError::Contradiction(format!("build {nth} fails"))),
            },
            "build 2 fails",
            3,
        ),
    ];
    for (lane, reason, builds) in lanes {
        let ledger = crate::ledger::Ledger::default();
        let _recorder = metrics::set_default_local_recorder(&ledger);
        in_system(async {
            let expected = undisturbed(3).await;
            let mut spec = spec();
            spec.watchdog.max_failures = 2;
            let gate = Gate::default();
            let made = Arc::new(AtomicUsize::new(0));
            let counted = made.clone();
            let build = apart(&spec, move |nth, whole| {
                counted.fetch_add(1, Ordering::Relaxed);
                lane(nth, whole)
            });
            let build = gated(build, &gate);
            let service = start_build(spec, build).await.expect("a service");
            assert_eq!((service.draft_retired(), ledger.gauged("faser_draft_retired")), (None, 0.0));
            assert_texts(&service, Some(&gate), &expected).await;
            let why = service.draft_retired().expect("it is retired");
            assert!(why.contains(reason), "{why}");
            assert_eq!(ledger.gauged("faser_draft_retired"), 1.0);
            assert_retired(&service, &expected).await;
            assert_eq!(made.load(Ordering::Relaxed), builds, "{why}");
            service.stop().await;
        });
    }
}

#[test]
fn a_draft_whose_device_fails_for_once_is_built_again() {
    in_system(async {
        let expected = undisturbed(3).await;
        let spec = spec();
        let gate = Gate::default();
        let plans = [2, 3, usize::MAX];
        let build = apart(&spec, move |nth, whole| Ok(panics_at(plans[nth], whole)));
        let service = start_build(spec, gated(build, &gate)).await.expect("a service");
        assert_texts(&service, Some(&gate), &expected).await;
        until("the device serves", || service.ready()).await;
        assert_eq!((service.draft_retired(), service.words()), (None, "serving".to_owned()));
        let before = service.view().totals.draft_passes;
        assert_texts(&service, None, &expected).await;
        assert!(service.view().totals.draft_passes > before);
        service.stop().await;
    });
}

#[test]
fn a_target_that_fails_beside_a_retired_draft_is_built_again_without_it_or_given_up() {
    in_system(async {
        let expected = undisturbed(3).await;
        let mut spec = spec();
        spec.watchdog.max_failures = 1;
        let build = apart(&spec, |nth, whole| if nth == 0 { Ok(panics_at(2, whole)) } else { Err(lost()) });
        // The verify lane of the third device fails: of the first that has no draft.
        let (whole, devices) = (build.verify.clone(), AtomicUsize::new(0));
        let verify: Build<_> = Arc::new(move |cancels| match devices.fetch_add(1, Ordering::Relaxed) {
            0 | 2 => whole(cancels),
            1 => before_each(&whole, || panic!("injected fault"))(cancels),
            _ => Err(ServiceError::Contradiction("no more of them".to_owned())),
        });
        let gate = Gate::default();
        let gated = gated(DeviceBuild { verify, ..build }, &gate);
        let service = start_build(spec, gated).await.expect("a service");
        assert_texts(&service, Some(&gate), &expected).await;
        assert_retired(&service, &expected).await;
        service.stop().await;
    });
}

#[test]
fn a_target_that_is_lost_is_given_up_whatever_its_draft_does() {
    in_system(async {
        let spec = spec();
        let build = apart(&spec, |_, whole| Ok(panics_at(2, whole)));
        let (whole, devices) = (build.verify.clone(), AtomicUsize::new(0));
        let verify: Build<_> = Arc::new(move |cancels| match devices.fetch_add(1, Ordering::Relaxed) {
            0 => whole(cancels),
            _ => Err(lost()),
        });
        let service = start_build(spec, DeviceBuild { verify, ..build }).await.expect("a service");
        let stream = service.submit(submission(1, 24)).await.expect("it is taken");
        assert_eq!(read(stream).await.1, Some(FinishReason::DeviceFailed));
        until("it is given up", || matches!(service.status(), DeviceStatus::GivenUp { .. })).await;
        assert_eq!(service.draft_retired(), None);
        service.stop().await;
    });
}
