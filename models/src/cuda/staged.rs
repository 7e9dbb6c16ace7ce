//! A pass, and a draft plan, as they lie on the device: where their arrays are, and how large they are.

use faser_kernels::cuda::{Place, Ptr};

/// The pass under way: where its arrays are, and its size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Staged {
    pub(super) rows: RowArrays,
    pub(super) tail: Tail,
    /// Whether its arrays are padded, so that it comes again.
    pub(super) small: bool,
    pub(super) samples: usize,
    /// Of a block whose rows depend on one another: the tokens that its first samples stand behind, and the number of samples of each step.
    pub(super) anchors: Ptr,
    pub(super) of_steps: Ptr,
    pub(super) chunk_count: usize,
    pub(super) live: Ptr,
    pub(super) of_plan: Ptr,
    /// Whether rows may have left.
    pub(super) compacted: bool,
    /// Null if no log-probabilities are wanted.
    pub(super) wishes: Ptr,
    pub(super) prompt_tokens: Ptr,
    pub(super) tests: Ptr,
    pub(super) alternatives: Ptr,
    pub(super) most: Ptr,
    pub(super) test_count: Ptr,
    pub(super) test_rows: Ptr,
    pub(super) scores: Ptr,
    pub(super) test_len: usize,
}

/// What is told of a place beside the token that is drawn there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Beside {
    /// The likeliest tokens.
    pub alternatives: bool,
    /// What would be drawn without that token, on a lane that drafts.
    pub candidates: bool,
}

/// The draft plan under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    pub(super) pass: Staged,
    pub(super) row_tokens: Ptr,
    pub(super) states: Ptr,
    pub(super) step: Ptr,
    pub(super) chunk_count: usize,
    pub(super) tiles_each: u32,
    pub(super) beside: Beside,
    pub(super) proposals: Option<Place>,
    pub(super) confidences: Option<Place>,
    pub(super) top: Option<Place>,
    pub(super) candidates: Option<Place>,
    pub(super) counts: Option<Place>,
    /// Where those are: proposals, confidences, alternatives, candidates, counts.
    pub(super) outcome: [Ptr; 5],
}

/// All that layers take of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RowArrays {
    pub(super) bucket: usize,
    pub(super) counts: Ptr,
    pub(super) positions: Ptr,
    /// The last position that each row sees: its own, but in a block.
    pub(super) sees: Ptr,
    pub(super) chunk_of: Ptr,
    pub(super) chunks: Ptr,
    pub(super) tables: Ptr,
    pub(super) table_stride: u32,
    pub(super) tiles: Ptr,
    pub(super) tile_count: usize,
    pub(super) tile_queries: u32,
    pub(super) split: u32,
    pub(super) splits: u32,
    /// Where rows of blocks stand before those of a text, the former alone: their bucket, and where their number is.
    pub(super) of_blocks: Option<(usize, Ptr)>,
}

impl RowArrays {
    /// The rows that go through all of a layer: those of a text have nothing but keys and values, where a head proposes a block.
    pub(super) fn through(self) -> RowArrays {
        let (bucket, counts) = self.of_blocks.unwrap_or((self.bucket, self.counts));
        RowArrays { bucket, counts, ..self }
    }
}

/// All that the end of a pass takes of it, beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tail {
    /// The bucket of its samples; 0: none.
    pub(super) samples: usize,
    pub(super) sample_rows: Ptr,
    pub(super) samplers: Ptr,
    pub(super) proposals: Ptr,
    pub(super) proposal_stride: u32,
    pub(super) adjusts: bool,
    pub(super) restricts: bool,
    pub(super) cuts: bool,
}

/// What is known of a chunk of the pass without asking the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownChunk {
    pub(super) rows: usize,
    pub(super) samples: usize,
    pub(super) cancelled: bool,
}

impl Staged {
    /// Where the number of samples is.
    pub(super) fn sample_count(&self) -> Ptr {
        self.rows.counts.behind(2 * size_of::<u32>())
    }
}
