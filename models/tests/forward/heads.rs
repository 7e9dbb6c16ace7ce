//! Heads on hidden states on the CPU, against the logits of a reference in Python (`tests/golden/heads`): over prefill, proposals, rejections of
//! every length, KV and features that were kept, copied and computed anew; whatever leaves the target's passes meanwhile.

use std::sync::Arc;

use faser_kernels::{BlockId, Dtype, Isa, KvCache, Lane, Partition, Rows};
use faser_models::synthetic;
use faser_models::{
    BlockSpec, ConfidenceInput, Features, HeadKind, MarkovKind, MarkovSpec, Model, ModelConfig, Pass,
    Scratch, Shard, WeightSource, fitted,
};
use serde_json::{Value, json};

use crate::session::golden;

const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = 24;
const MAX_ROWS: usize = 48;

/// Heads that propose token by token.
pub(crate) const STEPWISE: [&str; 5] =
    ["eagle3-original", "eagle3-own-embedding", "eagle3-speculators", "eagle3-1", "eagle3-wider-target"];

/// All that are.
const CASES: [&str; 12] = [
    "eagle3-original",
    "eagle3-own-embedding",
    "eagle3-speculators",
    "eagle3-1",
    "eagle3-wider-target",
    "p-eagle",
    "dflash",
    "dflash-causal",
    "dflash-speculators",
    "dspark-vanilla",
    "dspark-gated",
    "dspark-rnn",
];

/// A target with its head, on one lane.
struct Pair {
    target: Model,
    head: Model,
    lane: Lane,
    target_kv: KvCache,
    head_kv: KvCache,
    pages: Arc<Features>,
    verify: Scratch,
    draft: Scratch,
    /// How sure the head was of the proposals of its latest block.
    sure: Vec<f32>,
}

fn load(case: &str, dtype: Dtype) -> (Model, Model) {
    let dir = golden("heads");
    let target = WeightSource::folder(&dir.join("target")).unwrap();
    let target = Model::load(&target, Shard::WHOLE, dtype, &mut |_| {}).unwrap();
    let dir = dir.join(case);
    let config = fitted(target.config(), ModelConfig::load(&dir).unwrap(), None).unwrap();
    let source = WeightSource::Folder(dir.clone(), Box::new(config.clone()));
    assert!(config.check_headers(&dir).unwrap(), "{case}");
    let head = Model::load_draft(&source, Shard::WHOLE, &target, dtype, &mut |_| {}).unwrap();
    assert_eq!(head.weight_bytes(), config.weight_bytes(Shard::WHOLE, dtype).unwrap(), "{case}");
    (target, head)
}

impl Pair {
    fn new(case: &str, dtype: Dtype) -> Pair {
        Pair::of(load(case, dtype))
    }

    fn of((target, head): (Model, Model)) -> Pair {
        let pages = Features::new(BLOCKS, BLOCK_SIZE, head.config().hidden);
        let mut verify = target.scratch(MAX_ROWS, MAX_ROWS);
        head.attach(&mut verify, pages.clone());
        let kv = |model: &Model| KvCache::new(model.kv_shape(BLOCKS, BLOCK_SIZE), model.kv_dtype()).unwrap();
        Pair {
            lane: Lane::new(&Partition { cores: vec![0, 1] }, Isa::detect()).unwrap(),
            target_kv: kv(&target),
            head_kv: kv(&head),
            pages,
            verify,
            draft: head.scratch(MAX_ROWS, MAX_ROWS),
            target,
            head,
            sure: Vec::new(),
        }
    }

    /// The target's pass over tokens at these positions.
    fn verify(&mut self, tokens: &[u32], start: usize, table: &[BlockId]) {
        let positions: Vec<u32> = (start as u32..).take(tokens.len()).collect();
        let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[table] };
        let pass = Pass { tokens, rows, logits: &[] };
        self.target.forward(&self.lane, &mut self.target_kv, &mut self.verify, &pass);
    }

    /// The head's pass over tokens from position `start` on, each of which begins with what `begins` writes: the logits behind the last `wanted`.
    fn draft(
        &mut self,
        tokens: &[u32],
        (start, wanted): (usize, usize),
        table: &[BlockId],
        begins: impl Fn(usize, &mut [f32]),
    ) -> Vec<Vec<f32>> {
        let Pair { head, lane, head_kv, draft, .. } = self;
        let positions: Vec<u32> = (start as u32..).take(tokens.len()).collect();
        (0..tokens.len()).for_each(|row| begins(start + row, draft.begins_with(row)));
        head.begin(lane, draft, tokens);
        let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[table] };
        head.layers(lane, 0..head.config().layers.len(), head_kv, draft, rows);
        let wanted: Vec<u32> = (tokens.len() as u32 - wanted as u32..tokens.len() as u32).collect();
        head.finish(lane, draft, tokens.len(), &wanted);
        (0..wanted.len()).map(|row| draft.logits().row(row).to_vec()).collect()
    }

    /// The logits of the proposals of a block behind an anchor, and how sure the head is of each, where it says that.
    fn block(
        &mut self,
        block: &BlockSpec,
        anchor: u32,
        (computed, known): (usize, usize),
        proposals: &[u32],
        table: &[BlockId],
        features: impl Fn(usize, &mut [f32]),
    ) -> Vec<Vec<f32>> {
        let Pair { head, lane, head_kv, draft, sure, .. } = self;
        let mask = head.config().mask_token.unwrap();
        let n = block.rows + known - computed;
        let positions: Vec<u32> =
            (known..known + block.rows).chain(computed..known).map(|p| p as u32).collect();
        let tokens: Vec<u32> = std::iter::once(anchor).chain(std::iter::repeat_n(mask, n - 1)).collect();
        draft.begin_blocks(block.rows);
        (block.rows..n).for_each(|row| features(positions[row] as usize, draft.begins_with(row)));
        head.begin(lane, draft, &tokens);
        let rows = Rows { positions: &positions, table_of: &vec![0; n], tables: &[table] };
        head.layers(lane, 0..head.config().layers.len(), head_kv, draft, rows);
        let wanted: Vec<u32> = (block.first() as u32..).take(proposals.len()).collect();
        head.finish(lane, draft, n, &wanted);
        sure.clear();
        let mut before = anchor;
        let mut logits = Vec::new();
        for (row, proposal) in (0..).zip(proposals) {
            let mut own = [0.0];
            if head.follow(lane, draft, &[row], &[before], row == 0, &mut own) {
                sure.extend(own);
            }
            logits.push(draft.logits().row(row as usize).to_vec());
            before = *proposal;
        }
        logits
    }

    /// The logits of `k` proposals behind the first `known` of `text`, of which the head has computed `computed`.
    fn round(
        &mut self,
        text: &[u32],
        (computed, known): (usize, usize),
        proposals: &[u32],
        (target_table, head_table): (&[BlockId], &[BlockId]),
    ) -> Vec<Vec<f32>> {
        let pages = self.pages.clone();
        // Nobody looks at what the first token begins with.
        let features = |position: usize, to: &mut [f32]| match position.checked_sub(1) {
            Some(before) => pages.read(target_table, before, to),
            None => to.fill(7.0),
        };
        if let HeadKind::Block(block) = self.head.config().head.as_ref().unwrap().kind {
            let anchor = text[known - 1];
            return self.block(&block, anchor, (computed, known), proposals, head_table, features);
        }
        if let (Some(mask), Some(unknown)) = (self.head.config().mask_token, self.head.mask_features()) {
            let unknown = unknown.to_vec();
            let tokens = [&text[computed..known], &vec![mask; proposals.len() - 1]].concat();
            return self.draft(&tokens, (computed, proposals.len()), head_table, |position, to| {
                if position < known { features(position, to) } else { to.copy_from_slice(&unknown) }
            });
        }
        let mut logits = self.draft(&text[computed..known], (computed, 1), head_table, features);
        for (step, proposal) in proposals[..proposals.len() - 1].iter().enumerate() {
            let passed = self.draft.passed_on(self.head.config(), 0).to_vec();
            let begins = |_: usize, to: &mut [f32]| to.copy_from_slice(&passed);
            logits.extend(self.draft(&[*proposal], (known + step, 1), head_table, begins));
        }
        logits
    }
}

pub(crate) struct Golden {
    pub(crate) text: Vec<u32>,
    pub(crate) prompt: usize,
    pub(crate) rounds: Vec<Round>,
    features: (usize, Vec<f32>),
}

pub(crate) struct Round {
    pub(crate) known: usize,
    pub(crate) proposals: Vec<u32>,
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) sure: Vec<f32>,
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

pub(crate) fn read(case: &str) -> Golden {
    let path = golden("heads").join(case).join("golden.json");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let round = |round: &Value| Round {
        known: round["committed"].as_u64().unwrap() as usize,
        proposals: tokens(&round["proposals"]),
        logits: round["logits"].as_array().unwrap().iter().map(numbers).collect(),
        sure: round.get("confidence").map_or_else(Vec::new, numbers),
    };
    let features = &json["features"];
    Golden {
        text: tokens(&json["tokens"]),
        prompt: json["prompt"].as_u64().unwrap() as usize,
        rounds: json["rounds"].as_array().unwrap().iter().map(round).collect(),
        features: (features["row"].as_u64().unwrap() as usize, numbers(&features["fused"])),
    }
}

/// The largest difference, by the largest number there is.
pub(crate) fn error(found: &[f32], expected: &[f32]) -> f32 {
    let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0_f32, |most, (found, expected)| most.max((found - expected).abs())) / largest
}

/// Logits of all of the target's tokens hold those of the head's, and nothing else that could be drawn.
pub(crate) fn assert_logits(found: &[f32], expected: &[f32], proposal: u32, what: &str) {
    let own: Vec<f32> = found.iter().copied().filter(|logit| logit.is_finite()).collect();
    assert_eq!(own.len(), expected.len(), "{what}");
    let off = error(&own, expected);
    assert!(off < 1e-4, "{what}: off by {off}");
    let best = (0..found.len()).max_by(|a, b| found[*a].total_cmp(&found[*b])).unwrap();
    assert_eq!(best as u32, proposal, "{what}");
}

#[test]
fn heads_propose_what_the_reference_does() {
    for case in CASES {
        let Golden { text, prompt, rounds, features: (row, fused) } = read(case);
        let mut pair = Pair::new(case, Dtype::F32);
        let (target_table, head_table) = ([9, 7, 1], [2, 4, 8]);
        // Two passes over the prompt.
        pair.verify(&text[..5], 0, &target_table);
        pair.verify(&text[5..prompt], 5, &target_table);
        let mut found = vec![0.0; fused.len()];
        pair.pages.read(&target_table, row, &mut found);
        assert!(error(&found, &fused) < 1e-4, "{case}: features");
        let (mut computed, mut verified) = (0, prompt);
        for Round { known, proposals, logits, sure } in &rounds {
            // The tokens before the last one are verified; proposals behind them, all of them wrong, in the same pass.
            pair.verify(&[&text[verified..known - 1], &[1, 2, 3]].concat(), verified, &target_table);
            verified = known - 1;
            let tables = (&target_table[..], &head_table[..]);
            let found = pair.round(&text, (computed, *known), proposals, tables);
            for (step, (found, expected)) in found.iter().zip(logits).enumerate() {
                assert_logits(
                    found,
                    expected,
                    proposals[step],
                    &format!("{case}, {known} known, step {step}"),
                );
            }
            assert_eq!(pair.sure.len(), sure.len(), "{case}");
            let pairs = pair.sure.iter().zip(sure);
            pairs.for_each(|(found, sure)| assert!((found - sure).abs() < 1e-4, "{case}: {found}, {sure}"));
            // KV of proposals is never kept.
            computed = *known;
        }
    }
}

/// Heads with a vocabulary of their own, in passes of more and fewer rows, each against one that had no pass before.
#[test]
fn a_pass_leaves_nothing_in_the_logits_of_the_next() {
    let block = BlockSpec {
        rows: 6,
        from_anchor: true,
        causal: false,
        markov: Some(MarkovSpec { kind: MarkovKind::Gated, rank: 8 }),
        confidence: None,
    };
    let kinds = [
        (HeadKind::Steps, None),
        (HeadKind::Block(BlockSpec { markov: None, ..block }), Some(9)),
        (HeadKind::Block(block), Some(9)),
    ];
    for (kind, mask) in kinds {
        let make = || {
            let spec = synthetic::SyntheticSpec::preset("tiny").unwrap();
            let (target, _) = synthetic::pair(&spec, Dtype::F32, &mut |_| {}).unwrap();
            let shape = (target.config().vocab / 2, kind, mask);
            let head = synthetic::head_of_kind(&target, &[0, 1], shape, 5, Dtype::F32).unwrap();
            Pair::of((target, head))
        };
        let run = |pair: &mut Pair, k: usize| {
            let text: Vec<u32> = (0..k as u32).map(|i| 3 + 7 * i).collect();
            let begins = |position: usize, to: &mut [f32]| to.fill(0.1 * (1 + position) as f32);
            match &kind {
                HeadKind::Block(block) => pair.block(block, 4, (0, 3), &text, &[1], begins),
                _ => pair.draft(&text, (0, k), &[1], begins),
            }
        };
        let mut pair = make();
        for k in [2, 5, 1, 4, 5] {
            let (found, fresh) = (run(&mut pair, k), run(&mut make(), k));
            assert_eq!(found.len(), k);
            let own = found[k - 1].iter().filter(|logit| logit.is_finite()).count();
            assert_eq!(own, pair.target.config().vocab / 2, "{kind:?}");
            assert!(found == fresh, "{kind:?}, {k}");
        }
    }
}

#[test]
fn a_prefix_that_was_found_or_lost_changes_no_bit() {
    for case in CASES {
        let Golden { text, rounds, .. } = read(case);
        let mut pair = Pair::new(case, Dtype::F32);
        let Round { known, proposals, .. } = rounds.last().unwrap();
        let (target_table, head_table) = ([9, 7, 1], [2, 4, 8]);
        pair.verify(&text[..known - 1], 0, &target_table);
        let expected = pair.round(&text, (0, *known), proposals, (&target_table, &head_table));
        // Both have the first 21 tokens of it: a block, and a part of the second that is copied.
        let (other_target, other_head) = ([9, 14, 3], [2, 19, 6]);
        pair.target_kv.copy_block(7, 14);
        pair.pages.copy_block(7, 14);
        pair.head_kv.copy_block(4, 19);
        pair.verify(&text[21..known - 1], 21, &other_target);
        let tables = (&other_target[..], &other_head[..]);
        assert_eq!(pair.round(&text, (21, *known), proposals, tables), expected, "{case}: found by both");
        // What the draft's cache has lost, and the target's has not.
        assert_eq!(
            pair.round(&text, (16, *known), proposals, tables),
            expected,
            "{case}: found by the target"
        );
        assert_eq!(pair.round(&text, (0, *known), proposals, tables), expected, "{case}: from the beginning");
    }
}

#[test]
fn what_leaves_a_pass_changes_no_features() {
    for case in CASES {
        let text = read(case).text;
        let mut pair = Pair::new(case, Dtype::F32);
        let table = [0];
        pair.verify(&text[..9], 0, &table);
        let width = pair.pages.width();
        let features = |pair: &Pair, table: &[BlockId], position| {
            let mut found = vec![f32::NAN; width];
            pair.pages.read(table, position, &mut found);
            found
        };
        let expected: Vec<Vec<f32>> = (0..9).map(|position| features(&pair, &table, position)).collect();
        for leaves_at in 1..pair.target.config().layers.len() {
            // Two sequences, each of the same text; the last rows of the first leave.
            let tables: [&[BlockId]; 2] = [&[4], &[7]];
            let Pair { target, lane, target_kv, verify, .. } = &mut pair;
            target.begin(lane, verify, &[&text[..9], &text[..9]].concat());
            let positions: Vec<u32> = (0..9).chain(0..9).collect();
            let table_of: Vec<u32> = (0..18).map(|row| row / 9).collect();
            let rows = Rows { positions: &positions, table_of: &table_of, tables: &tables };
            target.layers(lane, 0..leaves_at, target_kv, verify, rows);
            let keep: Vec<u32> = (0..5).chain(9..18).collect();
            target.keep(verify, 18, &keep);
            let of_kept = |all: &[u32]| keep.iter().map(|row| all[*row as usize]).collect::<Vec<u32>>();
            let (positions, table_of) = (of_kept(&positions), of_kept(&table_of));
            let rows = Rows { positions: &positions, table_of: &table_of, tables: &tables };
            target.layers(lane, leaves_at..target.config().layers.len(), target_kv, verify, rows);
            for (position, expected) in expected.iter().enumerate() {
                let what = format!("{case}: position {position}, leaving at {leaves_at}");
                assert!(position >= 5 || features(&pair, tables[0], position) == *expected, "{what}");
                assert_eq!(features(&pair, tables[1], position), *expected, "{what}");
            }
        }
    }
}

#[test]
fn a_head_for_another_target_is_refused_by_name() {
    let dir = golden("heads");
    let target = ModelConfig::load(&dir.join("target")).unwrap();
    let head = |case: &str| ModelConfig::load(&dir.join(case)).unwrap();
    let refused = |target: &ModelConfig, case| fitted(target, head(case), None).unwrap_err().to_string();
    let narrower = ModelConfig { hidden: 16, ..target.clone() };
    assert!(
        refused(&narrower, "eagle3-original")
            .contains("reads hidden states of 32 numbers, and the target's have 16")
    );
    let shallow = ModelConfig { layers: target.layers[..3].to_vec(), ..target.clone() };
    assert!(refused(&shallow, "eagle3-original").contains("layer ids are not said"));
    assert!(refused(&shallow, "eagle3-speculators").contains("enters layer 4"));
    let by_its_key = refused(&shallow, "dflash");
    assert!(by_its_key.contains("enters layer 4 (`target_layer_ids`)"), "{by_its_key}");
    let other = ModelConfig { vocab: 97, stored_vocab: 97, ..target.clone() };
    assert!(refused(&other, "eagle3-original").contains("vocab_size"));
    // Alone it is no model.
    let config = fitted(&target, head("eagle3-original"), None).unwrap();
    let source = WeightSource::Folder(dir.join("eagle3-original"), Box::new(config));
    let alone = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap_err().to_string();
    assert!(alone.contains("loaded with it"), "{alone}");
}

/// What is said of a head's config.json with these keys changed; null takes one away.
fn read_with(case: &str, changes: &Value) -> Result<ModelConfig, String> {
    let copy = format!("faser-heads-{}-{:?}", std::process::id(), std::thread::current().id());
    let dir = std::env::temp_dir().join(copy);
    std::fs::create_dir_all(&dir).unwrap();
    let from = golden("heads").join(case);
    std::fs::copy(from.join("model.safetensors"), dir.join("model.safetensors")).unwrap();
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let found = ModelConfig::load(&dir).map_err(|error| error.to_string());
    std::fs::remove_dir_all(&dir).unwrap();
    found
}

#[test]
fn a_block_is_as_its_config_says() {
    let block = |case, changes: Value| match read_with(case, &changes).unwrap().head.unwrap().kind {
        HeadKind::Block(block) => block,
        other => panic!("{other:?}"),
    };
    let dflash = block("dflash", json!({}));
    assert_eq!((dflash.rows, dflash.proposals(), dflash.causal), (5, 4, false));
    assert_eq!((dflash.markov, dflash.confidence), (None, None));
    let nested = json!({"mask_token_id": 0, "target_layer_ids": [1, 3, 5], "causal": true});
    assert!(block("dflash", json!({"dflash_config": nested})).causal);
    let both = json!({"dflash_config": nested, "is_causal": false});
    assert!(!block("dflash", both).causal, "is_causal counts first");
    let all = json!({
        "mask_token_id": 0, "target_layer_ids": [1, 3, 5], "is_causal": true, "sample_from_anchor": true,
    });
    let all = block("dflash", json!({"dflash_config": all}));
    assert_eq!((all.causal, all.proposals()), (true, 5), "what SpecForge writes there counts");
    assert_eq!(block("dflash-speculators", json!({})).proposals(), 3);
    let dspark = block("dspark-rnn", json!({}));
    assert_eq!((dspark.rows, dspark.proposals()), (4, 4));
    assert_eq!(dspark.markov, Some(MarkovSpec { kind: MarkovKind::Recurrent, rank: 8 }));
    assert_eq!(dspark.confidence, Some(ConfidenceInput::HiddenAndBefore));
    assert_eq!(block("dspark-gated", json!({})).confidence, Some(ConfidenceInput::Hidden));
    assert_eq!(block("dspark-vanilla", json!({"sample_from_anchor": false})).proposals(), 3);
    let streams = |case| read_with(case, &json!({})).unwrap().head.unwrap().streams;
    assert_eq!(streams("dflash"), [2, 4, 6]);
    assert_eq!(streams("dspark-vanilla"), [0, 3, 5], "-1 is the embedding");
    assert_eq!(streams("dflash-speculators"), [2, 4, 5]);
}

#[test]
fn what_a_block_lacks_is_named() {
    let nested = |mask: u32| json!({"mask_token_id": mask, "target_layer_ids": [1, 3, 5]});
    for (case, changes, says) in [
        ("dflash", json!({"block_size": null}), "block_size"),
        ("dflash", json!({"block_size": 1}), "proposes nothing"),
        ("dflash", json!({"block_size": 65}), "block_size"),
        ("dflash", json!({"dflash_config": {"mask_token_id": 0}}), "target_layer_ids"),
        ("dflash", json!({"dflash_config": {"target_layer_ids": [1, 3, 5]}}), "mask_token_id"),
        ("dflash", json!({"dflash_config": nested(96)}), "vocab_size is 96"),
        ("dflash", json!({"use_swa": true}), "see all of the text"),
        ("dspark-gated", json!({"markov_head_type": "other"}), "vanilla, gated or rnn"),
        ("dspark-gated", json!({"markov_rank": 0}), "`markov_rank` is 0"),
        ("p-eagle", json!({"mask_token_id": null}), "mask_token_id"),
        ("p-eagle", json!({"speculators_model_type": "mtp"}), "eagle3, peagle, dflash and dspark are served"),
        ("dflash", json!({"architectures": ["MTPDraft"], "dflash_config": {}}), "MTP"),
    ] {
        let refused = read_with(case, &changes).unwrap_err();
        assert!(refused.contains(says), "{case} {changes}: {refused}");
    }
}

#[test]
fn the_embedding_alone_is_fused_too() {
    let target = Model::load(
        &WeightSource::folder(&golden("heads").join("target")).unwrap(),
        Shard::WHOLE,
        Dtype::F32,
        &mut |_| {},
    )
    .unwrap();
    let head = synthetic::head(&target, &[0], 40, 1, Dtype::F32).unwrap();
    let pages = Features::new(1, BLOCK_SIZE, head.config().hidden);
    let mut scratch = target.scratch(MAX_ROWS, MAX_ROWS);
    head.attach(&mut scratch, pages.clone());
    let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
    let mut kv = KvCache::new(target.kv_shape(1, BLOCK_SIZE), target.kv_dtype()).unwrap();
    let rows = Rows { positions: &[0, 1], table_of: &[0, 0], tables: &[&[0]] };
    target.forward(&lane, &mut kv, &mut scratch, &Pass { tokens: &[5, 6], rows, logits: &[] });
    let mut features = [vec![0.0; pages.width()], vec![0.0; pages.width()]];
    (0..2).for_each(|position| pages.read(&[0], position, &mut features[position]));
    assert!(features.iter().all(|own| own.iter().any(|x| *x != 0.0)) && features[0] != features[1]);
}
