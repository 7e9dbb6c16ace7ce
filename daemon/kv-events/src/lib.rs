//! What of the KV is cached, published as vLLM publishes it, so that routers made for vLLM send a request where its prefix is: llm-d's
//! KV-cache indexer, NVIDIA Dynamo, sglang-router.
//!
//! ```text
//!   engine --KvEvent--> dispatcher --bounded queue--> this thread --ZeroMQ PUB--> routers
//!                                                        `--the last batches--ZeroMQ ROUTER--> a router that missed some
//! ```
//! The format is that of vLLM's `vllm/distributed/kv_events.py` and `examples/online_serving/kv_events_subscriber.py`, in its words:
//! messages of three parts, the topic, a sequence number of 8 bytes (big-endian), and a `KVEventBatch` in MessagePack.

#![forbid(unsafe_code)]

mod encoding;
mod publisher;
mod subscribers;
mod zmtp;

pub use publisher::{Endpoints, KvEventsError, publish};
