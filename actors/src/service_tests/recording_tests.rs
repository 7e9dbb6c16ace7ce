//! Recordings of the real lanes, on demand.

use super::*;

use faser_engine::LaneKind;
use faser_engine::record::{Mark, Record};

use crate::{LONGEST_RECORDING, RecordingError};

const A_WHILE: Duration = Duration::from_millis(300);

/// A recording, with one request after the other meanwhile; how many of those began and ended in it.
async fn recorded(service: &Service) -> (Record, usize) {
    let recording = service.record(A_WHILE);
    tokio::pin!(recording);
    let mut whole = 0;
    loop {
        let request = async {
            let stream = service.submit(submission(1, 24)).await.expect("it is taken");
            read(stream).await
        };
        tokio::select! {
            biased;
            record = &mut recording => return (record.expect("a record"), whole),
            (tokens, _) = request => {
                assert_eq!(tokens.len(), 24);
                whole += 1;
            }
        }
    }
}

#[test]
fn a_recording_has_what_both_lanes_did_in_its_time() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        let (record, whole) = recorded(&service).await;
        assert!(!record.cut_short && record.until - record.from >= A_WHILE);
        for lane in [LaneKind::Draft, LaneKind::Verify] {
            let passes: Vec<_> = record.passes.iter().filter(|pass| pass.lane == lane).collect();
            assert!(passes.len() >= whole);
            assert!(passes.windows(2).all(|pair| pair[0].ended <= pair[1].began), "{passes:?}");
            for pass in passes {
                assert!(record.from <= pass.left && pass.left <= pass.began, "{pass:?}");
                assert!(pass.began < pass.ended && pass.ended <= record.until, "{pass:?}");
                assert_eq!((pass.chunks.len(), pass.partition), (1, 0));
            }
        }
        let ended = record.marks.iter().filter(|(_, mark)| matches!(mark, Mark::Ended { .. })).count();
        let committed: usize = record.passes.iter().map(|pass| pass.committed).sum();
        assert!(ended >= whole && committed >= whole * 24 && whole > 0);
        assert!(record.passes.iter().any(|pass| pass.accepted > 0));
        assert_whole(&service).await;
        service.stop().await;
    });
}

#[test]
fn one_recording_at_a_time_and_none_that_nobody_waits_for() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        {
            let long = service.record(LONGEST_RECORDING);
            tokio::pin!(long);
            tokio::select! {
                biased;
                record = &mut long => panic!("{record:?} came at once"),
                refused = service.record(A_WHILE) => {
                    let error = refused.expect_err("another is under way");
                    assert_eq!(error, RecordingError::Busy(LONGEST_RECORDING));
                    assert!(error.to_string().contains("60 s"), "{error}");
                }
            }
        }
        // The long one was dropped: it is in nobody's way.
        let (record, _) = recorded(&service).await;
        assert!(record.until - record.from < LONGEST_RECORDING);
        for length in [Duration::ZERO, LONGEST_RECORDING + Duration::from_nanos(1)] {
            assert_eq!(service.record(length).await, Err(RecordingError::Length));
        }
        let (recording, ()) = tokio::join!(service.record(LONGEST_RECORDING), async {
            tokio::task::yield_now().await;
            service.clone().stop().await;
        });
        assert_eq!(recording, Err(RecordingError::Stopped));
        assert_eq!(service.record(A_WHILE).await, Err(RecordingError::Stopped));
    });
}
