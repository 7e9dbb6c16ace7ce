//! What a lane remembers of each sequence between plans: its history and how it is sampled.

use std::collections::HashMap;
use std::sync::Arc;

use faser_engine::{Admission, SeqId};
use faser_kernels::History;

use crate::lane_request::LaneRequest;

pub(crate) struct LaneSequence {
    pub(crate) history: History,
    pub(crate) request: Arc<LaneRequest>,
}

/// The sequences of one lane. Bounded by the engine, which retires what it admits.
#[derive(Default)]
pub(crate) struct Sequences(HashMap<SeqId, LaneSequence>);

impl Sequences {
    /// Carries out a plan's `retire`, then its `admit`; `requests` holds one entry per admission.
    pub(crate) fn update(&mut self, retire: &[SeqId], admit: &[Admission], requests: &[Arc<LaneRequest>]) {
        for seq in retire {
            self.0.remove(seq);
        }
        assert_eq!(admit.len(), requests.len(), "one request per admission");
        for (admission, request) in admit.iter().zip(requests) {
            let history = History::new(admission.prompt_len, &admission.tokens, &request.sampling);
            self.0.insert(admission.seq, LaneSequence { history, request: request.clone() });
        }
    }

    /// The sequence of a chunk.
    ///
    /// # Panics
    /// If the engine has not admitted it: a broken plan is a device failure, not something to guess around.
    pub(crate) fn of(&self, seq: SeqId) -> &LaneSequence {
        self.0.get(&seq).unwrap_or_else(|| panic!("{seq} has a chunk but was not admitted to this lane"))
    }

    /// As `of`.
    pub(crate) fn of_mut(&mut self, seq: SeqId) -> &mut LaneSequence {
        self.0.get_mut(&seq).unwrap_or_else(|| panic!("{seq} has a chunk but was not admitted to this lane"))
    }
}
