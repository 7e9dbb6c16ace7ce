//! Who publishes KV events may be as slow as he likes: nobody waits for him, and what he missed he is told again.

use std::collections::HashSet;

use faser_engine::KvEvent;
use tokio::sync::mpsc::Receiver;

use super::*;
use crate::kv_events::{KvBatch, kv_queue_of};
use crate::ledger::Ledger;

/// Blocks that somebody takes to be cached who hears these batches.
fn heard(blocks: &mut HashSet<u64>, batches: &[KvBatch]) {
    for event in batches.iter().flat_map(|batch| &batch.events) {
        match event {
            KvEvent::Stored { hash, parent, .. } => {
                assert!(parent.is_none_or(|parent| blocks.contains(&parent)));
                blocks.insert(*hash);
            }
            KvEvent::Removed { hash } => drop(blocks.remove(hash)),
            KvEvent::Cleared => blocks.clear(),
        }
    }
}

fn waiting(batches: &mut Receiver<KvBatch>) -> Vec<KvBatch> {
    std::iter::from_fn(|| batches.try_recv().ok()).collect()
}

#[test]
fn what_a_slow_publisher_missed_is_counted_and_told_again() {
    let ledger = Ledger::default();
    // More than one request brings, less than all of them.
    let capacity = 32;
    metrics::with_local_recorder(&ledger, || {
        in_system(async {
            let (sender, mut batches) = kv_queue_of(capacity);
            let mut spec = spec();
            spec.kv_events = Some(sender);
            let meter = Meter::default();
            let factory = spec.device.factory(&spec.engine);
            let service = Service::start_with(spec, factory, meter).await.expect("a service");
            let ask = async |seed| {
                let stream = service.submit(submission(seed, 60)).await.expect("it is taken");
                assert_eq!(read(stream).await.1, Some(FinishReason::Length));
            };
            for seed in 0..12 {
                ask(seed).await;
            }
            let (first, mut blocks) = (waiting(&mut batches), HashSet::new());
            let numbers: Vec<u64> = first.iter().map(|batch| batch.sequence).collect();
            assert_eq!((numbers, &first[0].events[0]), ((0..32).collect(), &KvEvent::Cleared));
            heard(&mut blocks, &first);
            ask(20).await;
            let later = waiting(&mut batches);
            assert!(
                later[0].sequence > 32
                    && later.len() < capacity
                    && later[0].events.contains(&KvEvent::Cleared),
                "{later:?}"
            );
            heard(&mut blocks, &later);
            let numbers: Vec<u64> = later.iter().map(|batch| batch.sequence).collect();
            assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
            let cached = service.view().target_pool.cached;
            // Those that are filled in part are cached too, one for each text at most.
            assert!(blocks.len() <= cached && blocks.len() + 13 >= cached, "{} of {cached}", blocks.len());
            assert!(blocks.len() > 13);
            service.stop().await;
            let dropped = ledger.counted("faser_kv_event_batches_dropped_total");
            assert_eq!(dropped, later[0].sequence - first.len() as u64);
            let sent = (first.len() + later.len()) as u64;
            assert_eq!(ledger.counted("faser_kv_event_batches_total"), sent);
        });
    });
}
