//! What operators see: one snapshot of the daemon and of one pair, the first or another, made for a screen that is drawn anew once a second. No text, no prompts, no keys.
//! Shares are from 0 to 1; rates and histograms are over the window behind the snapshot, `window_s`; totals since the start.

use std::borrow::Cow;
use std::fmt;

use faser_config::tunables::{Kind, TUNABLES, Tunable};
use faser_engine::Tuning;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::timeline::Timeline;

/// Speculative lengths are below this.
pub(super) const LENGTHS: usize = faser_engine::K_LIMIT + 1;

/// Declares what is sent so that it can be read too: what the daemon does not send, being older, is empty. The document of the API
/// would call every field optional if `#[serde(default)]` stood at what is sent.
macro_rules! sent_and_read {
    ($($(#[$about:meta])* pub struct $row:ident { $($(#[$of:meta])* pub $field:ident: $kind:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, serde::Serialize, utoipa::ToSchema)]
        pub struct $row { $($(#[$of])* pub $field: $kind,)* }

        impl<'de> serde::Deserialize<'de> for $row {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$row, D::Error> {
                #[derive(Default, serde::Deserialize)]
                #[serde(default)]
                struct Read { $($field: $kind,)* }
                let Read { $($field,)* } = serde::Deserialize::deserialize(from)?;
                Ok($row { $($field,)* })
            }
        }
    )*};
}
pub(super) use sent_and_read;

sent_and_read! {
    /// The daemon at one moment.
    pub struct Snapshot {
        /// Unix time, in ms.
        pub time_ms: u64,
        /// The daemon's version.
        pub version: Cow<'static, str>,
        /// Its process.
        pub pid: u32,
        /// Time since it began to load.
        pub uptime_s: f64,
        /// `loading`, `serving`, `paused` (drained by an operator, or measuring), `not-ready` (no replica serves, of one pair at least) or `draining` (on its way down).
        pub state: Cow<'static, str>,
        /// The same in words: how far loading is, why nothing is taken.
        pub detail: String,
        /// All pairs; empty if there is only one.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub pairs: Vec<PairRow>,
        /// The pair that all else here is of; none while loading.
        pub model: Option<ModelView>,
        /// How lengths are chosen; none while loading.
        pub policy: Option<PolicyView>,
        /// The time that rates and histograms are over.
        pub window_s: f64,
        /// All replicas together.
        pub total: Figures,
        /// Each replica.
        pub replicas: Vec<ReplicaView>,
        /// The oldest requests, ten at most, the oldest first.
        pub slowest: Vec<RequestRow>,
    }

    /// A pair of several.
    pub struct PairRow {
        /// What clients call it.
        pub name: String,
        /// A replica of it serves.
        pub ready: bool,
        /// What its devices do.
        pub state: String,
        /// Its requests, waiting or running.
        pub requests: usize,
    }

    /// The pair and its device.
    pub struct ModelView {
        /// What clients call it.
        pub name: String,
        /// Tokens of a sequence, prompt and output together.
        pub max_context: usize,
        /// `cpu`, or `cuda:0`.
        pub device_kind: String,
        /// What the device calls itself.
        pub device: String,
        /// What partitions are made of: `cores` or `SMs`.
        pub unit: Cow<'static, str>,
        /// The device's partitions, the whole first, which the lanes have in turns.
        pub partitions: Vec<PartitionView>,
        /// Tokens per KV block.
        pub block_size: usize,
        /// Rows of a pass.
        pub max_pass_rows: usize,
    }

    /// What the lanes have of a partition.
    #[derive(Copy)]
    pub struct PartitionView {
        /// The draft lane.
        pub draft: usize,
        /// The verify lane.
        pub verify: usize,
    }

    /// One replica.
    pub struct ReplicaView {
        /// Its number.
        pub replica: usize,
        /// What its device does: `serving`, or what is wrong.
        pub state: String,
        /// Why its draft is retired: its own device is lost until the daemon is restarted. None if it is not.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub draft_retired: Option<String>,
        /// Its dispatcher answers; otherwise what is here is from its last event.
        pub answers: bool,
        /// The policy that its engine decides by; none if it does not answer.
        pub policy: Option<String>,
        /// Its figures.
        pub figures: Figures,
        /// What its lanes did since the snapshot before; none unless asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeline: Option<Timeline>,
    }

    /// Figures of one replica, or of all.
    pub struct Figures {
        /// Sequences that hold KV.
        pub running: usize,
        /// Requests that wait for admission.
        pub waiting: usize,
        /// The partition of the last verify pass, 0 for the whole device; of several replicas the first's.
        pub partition: usize,
        /// What the load asks of verify passes and of speculation; of several replicas the first's. None where the policy does not go by it.
        pub steering: Option<SteeringRow>,
        /// The target's KV.
        pub target_kv: PoolRow,
        /// The draft's KV.
        pub draft_kv: PoolRow,
        /// Share of the window in which the draft lane worked; of several replicas the mean.
        pub draft_busy: f64,
        /// The same of the verify lane.
        pub verify_busy: f64,
        /// Tokens emitted, per second.
        pub output_tokens_per_s: f64,
        /// Prompt tokens admitted, per second.
        pub prompt_tokens_per_s: f64,
        /// Requests that ended, per second.
        pub requests_per_s: f64,
        /// Verify passes, per second.
        pub passes_per_s: f64,
        /// Rows of a verify pass, in the mean; none without a pass.
        pub rows_per_pass: Option<f64>,
        /// Share of proposals that were accepted; none without a proposal.
        pub acceptance: Option<f64>,
        /// Share of proposals that came from prompt-lookup or a predicted output, and cost no draft step; none without a proposal.
        pub prompt_lookup: Option<f64>,
        /// Tokens emitted per sequence and verify pass; none without a pass.
        pub tokens_per_chunk: Option<f64>,
        /// Verified chunks by their number of proposals, 0 to 16.
        pub k_histogram: Vec<u64>,
        /// Share of proposals accepted by their place in the chunk; none where there was no proposal.
        pub acceptance_by_position: Vec<Option<f64>>,
        /// Share of verify passes beside which the draft lane was to work.
        pub overlapped: Option<f64>,
        /// Share of the verdicts for which branches had been drafted that found their proposals at hand.
        pub outcome_hits: Option<f64>,
        /// Share of verify passes with a pruning checkpoint.
        pub pruning: Option<f64>,
        /// Chunks not sent yet, or being drafted, that a rejection in front of them cancelled, per second.
        pub chunks_cancelled_per_s: f64,
        /// Proposals whose rows left a pass before its end, per second.
        pub rows_pruned_per_s: f64,
        /// Since the start.
        pub totals: TotalsRow,
    }

    /// What the load asks of rounds, as it was decided last.
    #[derive(Copy)]
    pub struct SteeringRow {
        /// Rows of a verify pass beside which somebody decodes, at most.
        pub pass_rows: usize,
        /// How far a row is charged the row of a prompt that waits for it, 0 to 1.
        pub displaced_share: f64,
        /// Seconds that speculation may still lose before it is suspended.
        pub credit_s: f64,
        /// Nothing is proposed, since speculation lost what it may lose.
        pub suspended: bool,
        /// The target's KV is short: proposals get no further blocks.
        pub kv_short: bool,
    }

    /// Blocks of a KV pool.
    #[derive(Copy)]
    pub struct PoolRow {
        /// All.
        pub total: usize,
        /// Those that no sequence holds.
        pub free: usize,
        /// Those that hold a cached prefix, used or not.
        pub cached: usize,
    }

    /// Totals since the start.
    #[derive(Copy)]
    pub struct TotalsRow {
        /// Requests taken.
        pub submitted: u64,
        /// Requests refused.
        pub refused: u64,
        /// Requests that ended by a stop token or by length.
        pub finished: u64,
        /// Requests that were cancelled.
        pub cancelled: u64,
        /// Requests that the device failed under.
        pub failed: u64,
        /// Sequences preempted: they wait again.
        pub preemptions: u64,
        /// Prompt tokens.
        pub prompt_tokens: u64,
        /// Those of them that were cached.
        pub cached_prompt_tokens: u64,
        /// Tokens emitted.
        pub output_tokens: u64,
        /// Draft plans.
        pub draft_passes: u64,
        /// Verify passes.
        pub target_passes: u64,
        /// Proposals verified.
        pub proposed: u64,
        /// Proposals accepted.
        pub accepted: u64,
        /// Proposals verified that came from prompt-lookup or a predicted output.
        pub prompt_lookup: u64,
        /// Those of them that were accepted.
        pub prompt_lookup_accepted: u64,
    }

    /// One request.
    pub struct RequestRow {
        /// What `cancel` calls it: replica and number, of several pairs behind that of the pair.
        pub id: String,
        /// `waiting`, `prefill` or `decode`.
        pub state: Cow<'static, str>,
        /// Speculative length in this round.
        pub k: usize,
        /// Proposals drafted and not verified.
        pub proposals: usize,
        /// Share of its proposals that were accepted; none before the first.
        pub acceptance: Option<f64>,
        /// Probability that its next proposal is accepted, as its own history says.
        pub expected_acceptance: f64,
        /// Tokens of its prompt.
        pub prompt_tokens: usize,
        /// Those of them that were cached.
        pub cached_tokens: usize,
        /// Tokens emitted.
        pub output_tokens: usize,
        /// Tokens it asked for.
        pub max_new_tokens: usize,
        /// Tokens emitted per verify pass; none before the first.
        pub tokens_per_pass: Option<f64>,
        /// Time since it came.
        pub age_s: f64,
        /// From then to its first token; none before.
        pub ttft_s: Option<f64>,
    }
}

impl fmt::Display for SteeringRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SteeringRow { pass_rows, displaced_share, credit_s, suspended, kv_short } = *self;
        if suspended {
            return f.write_str("speculation suspended: it lost more than it may");
        }
        let (displaced, credit_ms) = (100.0 * displaced_share, 1e3 * credit_s.max(0.0));
        write!(f, "passes of {pass_rows} rows, {displaced:.0} % displaced, credit {credit_ms:.0} ms")?;
        f.write_str(if kv_short { ", KV short" } else { "" })
    }
}

/// How speculative lengths are chosen: the keys that tune engines, by their names without the section.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PolicyView(Map<String, Value>);

impl PolicyView {
    /// Those of a tuning.
    pub fn of(tuning: &Tuning) -> PolicyView {
        PolicyView(TUNABLES.iter().map(|one| (one.name().to_owned(), one.value(tuning))).collect())
    }

    /// The value of a key.
    pub fn value(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }
}

impl PartialSchema for PolicyView {
    fn schema() -> RefOr<Schema> {
        let property = |tunable: &Tunable| {
            let types = match tunable.kind {
                Kind::Text => vec![Type::String],
                Kind::Flag => vec![Type::Boolean],
                Kind::Number => vec![Type::Integer],
                Kind::MaybeNumber => vec![Type::Integer, Type::Null],
            };
            let types = SchemaType::from_iter(types);
            ObjectBuilder::new().schema_type(types).description(Some(tunable.help)).build()
        };
        let properties = TUNABLES.iter().fold(ObjectBuilder::new(), |object, tunable| {
            object.property(tunable.name(), property(tunable)).required(tunable.name())
        });
        properties.description(Some("How speculative lengths are chosen: the keys that tune engines.")).into()
    }
}

impl ToSchema for PolicyView {}
