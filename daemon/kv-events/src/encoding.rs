//! A batch as vLLM's `KVEventBatch` in MessagePack: `[ts, events, data_parallel_rank]`.
//!
//! By default an event is a map with its name under `type`, as vLLM has written it since its pull request 42892 (June 2026); as an array it
//! is its name and the same fields in the same order. What follows the fields of `BlockStored` in vLLM is optional there, and left out.

use std::time::UNIX_EPOCH;

use faser_actors::KvBatch;
use faser_config::KvEncoding;
use faser_engine::KvEvent;
use rmp_serde::Serializer;
use rmp_serde::encode::Error;
use serde::Serialize;

/// vLLM's name of the memory that a model computes from, also where that is a host's: no other tier is there.
const MEDIUM: &str = "GPU";

/// `EventBatch` is an array in both encodings.
#[derive(Serialize)]
struct Batch(f64, Vec<Event>, usize);

#[derive(Serialize)]
#[serde(untagged)]
enum Event {
    BlockStored {
        r#type: &'static str,
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: usize,
        lora_id: Option<u64>,
        medium: &'static str,
        lora_name: Option<&'static str>,
    },
    BlockRemoved {
        r#type: &'static str,
        block_hashes: Vec<u64>,
        medium: &'static str,
    },
    AllBlocksCleared {
        r#type: &'static str,
    },
}

/// The third part of the message that a batch becomes; of the replica of this number.
///
/// # Errors
/// Never, as far as is known: it is written to memory.
pub(crate) fn encoded(batch: &KvBatch, encoding: KvEncoding, replica: usize) -> Result<Vec<u8>, Error> {
    let at = batch.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let batch = Batch(at, joined(&batch.events), replica);
    let mut bytes = Vec::new();
    match encoding {
        KvEncoding::Map => batch.serialize(&mut Serializer::new(&mut bytes).with_struct_map())?,
        KvEncoding::Array => batch.serialize(&mut Serializer::new(&mut bytes))?,
    }
    Ok(bytes)
}

/// The events, of blocks that follow each other one for all, as vLLM has it.
fn joined(events: &[KvEvent]) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        match (event, all.last_mut()) {
            (
                KvEvent::Stored { hash, parent: Some(parent), tokens },
                Some(Event::BlockStored { block_hashes, token_ids, .. }),
            ) if block_hashes.last() == Some(parent) => {
                block_hashes.push(*hash);
                token_ids.extend_from_slice(tokens);
            }
            (KvEvent::Stored { hash, parent, tokens }, _) => all.push(Event::BlockStored {
                r#type: "BlockStored",
                block_hashes: vec![*hash],
                parent_block_hash: *parent,
                token_ids: tokens.to_vec(),
                block_size: tokens.len(),
                lora_id: None,
                medium: MEDIUM,
                lora_name: None,
            }),
            (KvEvent::Removed { hash }, Some(Event::BlockRemoved { block_hashes, .. })) => {
                block_hashes.push(*hash);
            }
            (KvEvent::Removed { hash }, _) => {
                all.push(Event::BlockRemoved {
                    r#type: "BlockRemoved",
                    block_hashes: vec![*hash],
                    medium: MEDIUM,
                });
            }
            (KvEvent::Cleared, _) => all.push(Event::AllBlocksCleared { r#type: "AllBlocksCleared" }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn batch() -> KvBatch {
        let stored = |hash, parent, tokens: [u32; 2]| KvEvent::Stored { hash, parent, tokens: tokens.into() };
        KvBatch {
            sequence: 5,
            at: UNIX_EPOCH + Duration::from_millis(1500),
            events: vec![
                KvEvent::Cleared,
                stored(u64::MAX, None, [1, 2]),
                stored(7, Some(u64::MAX), [3, 70_000]),
                stored(8, Some(u64::MAX), [3, 4]),
                KvEvent::Removed { hash: 8 },
                KvEvent::Removed { hash: 7 },
            ],
        }
    }

    fn decoded(encoding: KvEncoding) -> Value {
        let bytes = encoded(&batch(), encoding, 3).expect("it can be encoded");
        rmp_serde::from_slice(&bytes).expect("it is MessagePack")
    }

    #[test]
    fn events_are_maps_as_vllm_writes_them() {
        let stored = |hashes: Value, parent: Value, tokens: Value| {
            json!({"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
                   "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null})
        };
        let events = json!([
            {"type": "AllBlocksCleared"},
            stored(json!([u64::MAX, 7]), json!(null), json!([1, 2, 3, 70_000])),
            stored(json!([8]), json!(u64::MAX), json!([3, 4])),
            {"type": "BlockRemoved", "block_hashes": [8, 7], "medium": "GPU"},
        ]);
        assert_eq!(decoded(KvEncoding::Map), json!([1.5, events, 3]));
    }

    #[test]
    fn or_arrays_as_it_wrote_them_before() {
        let events = json!([
            ["AllBlocksCleared"],
            ["BlockStored", [u64::MAX, 7], null, [1, 2, 3, 70_000], 2, null, "GPU", null],
            ["BlockStored", [8], u64::MAX, [3, 4], 2, null, "GPU", null],
            ["BlockRemoved", [8, 7], "GPU"],
        ]);
        assert_eq!(decoded(KvEncoding::Array), json!([1.5, events, 3]));
    }
}
