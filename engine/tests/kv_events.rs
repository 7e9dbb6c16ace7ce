//! Whoever is told what is cached predicts what requests find, in the simulator, under random histories.

mod common;

use std::collections::HashMap;
use std::time::Duration;

use common::{VOCABULARY, config, request};
use faser_engine::sim::Happening;
use faser_engine::{DraftSource, Engine, EngineConfig, Handling, KvEvent, Policy, Request, SeqId, TokenId};
use proptest::prelude::*;

/// A router's index: the blocks that are cached, by their hashes and by what they follow.
#[derive(Default)]
struct Index {
    blocks: HashMap<u64, (Option<u64>, Vec<TokenId>)>,
    stored: usize,
    removed: usize,
    cleared: usize,
}

impl Index {
    fn hear(&mut self, engine: &Engine) {
        let mut events = Vec::new();
        engine.take_kv_events(&mut events);
        for event in events {
            match event {
                KvEvent::Stored { hash, parent, tokens } => {
                    self.stored += 1;
                    assert!(parent.is_none_or(|parent| self.blocks.contains_key(&parent)));
                    assert!(self.blocks.insert(hash, (parent, tokens.into())).is_none());
                }
                KvEvent::Removed { hash } => {
                    self.removed += 1;
                    assert!(self.blocks.remove(&hash).is_some());
                }
                KvEvent::Cleared => {
                    self.cleared += 1;
                    self.blocks.clear();
                }
            }
        }
    }

    /// Whole blocks of a prompt that are cached; its last token is always computed.
    fn blocks(&self, prompt: &[TokenId], block_size: usize) -> usize {
        let (mut parent, mut found) = (None, 0);
        for chunk in prompt[..prompt.len() - 1].chunks_exact(block_size) {
            let next = self.blocks.iter().find(|(_, (before, tokens))| *before == parent && tokens == chunk);
            let Some((hash, _)) = next else { break };
            (parent, found) = (Some(*hash), found + 1);
        }
        found
    }
}

/// Prompts that part in several places.
fn prompt(number: u32) -> Vec<TokenId> {
    (0..30 + number % 5).map(|i| (number >> (i / 8) & 1) * 7 + i % VOCABULARY).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_router_knows_what_requests_find(
        arrivals in prop::collection::vec((0..40u64, 0..16u32, 1..40usize, 0..4u8), 4..24),
        losses in prop::collection::vec(1..60u64, 0..3),
        blocks in 33..60usize,
    ) {
        let ms = Duration::from_millis;
        let config = EngineConfig {
            target_blocks: blocks,
            draft: DraftSource::model(blocks),
            ..config(Policy::Fixed { k: 2 })
        };
        // Somebody has come before a device is lost.
        let mut happenings = vec![(ms(0), Happening::Arrival(request(99, vec![1], 1)))];
        let mut prompts = Vec::new();
        for (seq, (at, number, n, kind)) in (0..).zip(arrivals) {
            let handling = Handling { salt: u128::from(kind == 1), ..Handling::default() };
            happenings.push((ms(at), Happening::Arrival(Request { handling, ..request(seq, prompt(number), n) })));
            if kind == 2 {
                happenings.push((ms(at + 3), Happening::Cancel(SeqId(seq))));
            }
            prompts.push(prompt(number));
        }
        happenings.extend(losses.iter().map(|at| (ms(*at), Happening::DeviceLost { rebuild: ms(2) })));
        let (mut index, mut told) = (Index::default(), false);
        let simulation = common::simulation(&config, 0.7);
        simulation.run_seen(happenings, |_, engine, _| {
            if !std::mem::replace(&mut told, true) {
                engine.tell_kv_events();
            }
            index.hear(engine);
            for prompt in &prompts {
                let found = engine.cached_tokens(prompt, 0) / config.block_size;
                assert_eq!(index.blocks(prompt, config.block_size), found, "{prompt:?}");
            }
        });
        prop_assert_eq!(index.cleared, 1 + losses.len());
    }
}

/// The histories above are not empty ones: one that fills the pool and loses its device has all kinds of events.
#[test]
fn blocks_come_and_go() {
    let config = EngineConfig { target_blocks: 33, ..config(Policy::Off) };
    let arrival = |seq: u64| {
        let request = request(seq, vec![seq as u32; 40], 20);
        (Duration::from_millis(40 * seq), Happening::Arrival(request))
    };
    let mut happenings: Vec<_> = (0..6).map(arrival).collect();
    let lost = Happening::DeviceLost { rebuild: Duration::from_millis(1) };
    happenings.push((Duration::from_millis(300), lost));
    let (mut index, mut told) = (Index::default(), false);
    common::simulation(&config, 0.7).run_seen(happenings, |_, engine, _| {
        if !std::mem::replace(&mut told, true) {
            engine.tell_kv_events();
        }
        index.hear(engine);
    });
    assert!(index.stored > 60 && index.removed > 30, "{} {}", index.stored, index.removed);
    assert_eq!((index.cleared, index.blocks.len()), (2, 0));
}
