//! Where proposals come from, and what each kind of source needs of the lanes: what everybody else asks is what a source needs, not which it is.

use std::fmt;

use crate::request::K_LIMIT;

/// What proposes beside prompt-lookup in a sequence's own text, which is there with every source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// Nothing: prompt-lookup is all there is.
    Lookup,
    /// Nothing any more: the device of the draft that there was is lost for good.
    Retired,
    /// A model of its own, one token after the other.
    Model {
        /// Blocks of its KV pool.
        blocks: usize,
    },
    /// A model that proposes all of a round in one pass, from mask tokens (PARD).
    OnePass {
        /// Blocks of its KV pool.
        blocks: usize,
    },
    /// A head that goes on from the target's hidden states, one token after the other (EAGLE-3).
    Head {
        /// Blocks of its KV pool.
        blocks: usize,
    },
    /// A head that goes on from the target's hidden states and proposes all of a round in one pass, from mask tokens (P-EAGLE).
    OnePassHead {
        /// Blocks of its KV pool.
        blocks: usize,
    },
    /// A head that goes on from the target's hidden states and proposes a block in one pass (DFlash, DSpark).
    BlockHead {
        /// Blocks of its KV pool.
        blocks: usize,
        /// What it proposes together.
        block: ProposedBlock,
    },
}

/// A block of rows that propose together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProposedBlock {
    /// Rows, which stand behind all known tokens and are computed whole, however few proposals are wanted.
    pub rows: usize,
    /// Most proposals.
    pub proposals: usize,
}

/// Passes of the draft lane that a round of proposals takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoundPasses {
    /// The lane has nothing to do.
    #[default]
    None,
    /// One, however many proposals there are.
    One,
    /// One for each proposal.
    EachProposal,
}

/// What a source needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceNeeds {
    /// Passes of a round.
    pub passes: RoundPasses,
    /// Blocks of a KV pool of its own, which catches up with the text: 0 if it has none.
    pub blocks: usize,
    /// The KV of what it proposes is that of the text if it is accepted.
    pub keeps_proposals: bool,
    /// Each of its rows begins with the target's hidden states of the token before: it goes on behind the last token that the target has
    /// computed, and nowhere else.
    pub hidden_states: bool,
    /// All proposals of a round are rows of a block.
    pub block: Option<ProposedBlock>,
}

impl RoundPasses {
    /// All proposals of a round come from one pass.
    pub fn is_one(self) -> bool {
        self == RoundPasses::One
    }
}

impl SourceNeeds {
    /// Whether it can go on from proposals while the target verifies them, and from other tokens in their places: outcomes can be prepared.
    pub fn goes_on(&self) -> bool {
        self.passes != RoundPasses::None && !self.hidden_states
    }

    /// Rows of a step past what each of some sequences has sent to verification: where its KV is not kept, that comes along.
    pub fn rows_past(&self, sent: impl Iterator<Item = usize>) -> usize {
        sent.map(|proposals| 1 + if self.keeps_proposals { 0 } else { proposals }).sum()
    }

    /// Most proposals of a round.
    pub fn most_proposals(&self) -> usize {
        self.block.map_or(K_LIMIT, |block| block.proposals)
    }

    /// Rows, and places for their KV, that so many proposals have behind the known tokens.
    pub fn rows_behind(&self, proposals: usize) -> usize {
        match self.block {
            Some(block) if proposals > 0 => block.rows,
            // The last proposal has none.
            _ => proposals.saturating_sub(1),
        }
    }

    /// How many of them come with the last of so many proposals.
    pub fn more_rows_behind(&self, proposals: usize) -> usize {
        self.rows_behind(proposals) - self.rows_behind(proposals - 1)
    }
}

impl DraftSource {
    /// A model with a pool of so many blocks; none without any.
    pub fn model(blocks: usize) -> DraftSource {
        if blocks == 0 { DraftSource::Lookup } else { DraftSource::Model { blocks } }
    }

    /// A draft that proposes in one pass, with a pool of so many blocks.
    pub fn one_pass(blocks: usize) -> DraftSource {
        DraftSource::OnePass { blocks }
    }

    /// A head on hidden states, with a pool of so many blocks.
    pub fn head(blocks: usize) -> DraftSource {
        DraftSource::Head { blocks }
    }

    /// One that proposes in one pass, with a pool of so many blocks.
    pub fn one_pass_head(blocks: usize) -> DraftSource {
        DraftSource::OnePassHead { blocks }
    }

    /// One that proposes such a block, with a pool of so many blocks.
    pub fn block_head(blocks: usize, block: ProposedBlock) -> DraftSource {
        DraftSource::BlockHead { blocks, block }
    }

    /// What it needs.
    pub fn needs(self) -> SourceNeeds {
        let own = |passes, blocks| SourceNeeds { passes, blocks, ..SourceNeeds::default() };
        match self {
            DraftSource::Lookup | DraftSource::Retired => own(RoundPasses::None, 0),
            DraftSource::Model { blocks } => {
                SourceNeeds { keeps_proposals: true, ..own(RoundPasses::EachProposal, blocks) }
            }
            DraftSource::OnePass { blocks } => own(RoundPasses::One, blocks),
            DraftSource::Head { blocks } => {
                SourceNeeds { hidden_states: true, ..own(RoundPasses::EachProposal, blocks) }
            }
            DraftSource::OnePassHead { blocks } => {
                SourceNeeds { hidden_states: true, ..own(RoundPasses::One, blocks) }
            }
            DraftSource::BlockHead { blocks, block } => {
                SourceNeeds { hidden_states: true, block: Some(block), ..own(RoundPasses::One, blocks) }
            }
        }
    }

    /// Whether the draft lane has anything to do.
    pub fn drafts(self) -> bool {
        self.needs().passes != RoundPasses::None
    }
}

impl fmt::Display for DraftSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DraftSource::Lookup => "no draft",
            DraftSource::Retired => "a draft that is retired",
            DraftSource::Model { .. } => "a draft model",
            DraftSource::OnePass { .. } => "a draft that proposes in one pass",
            DraftSource::Head { .. } => "a head on the target's hidden states",
            DraftSource::OnePassHead { .. } => {
                "a head on the target's hidden states that proposes in one pass"
            }
            DraftSource::BlockHead { .. } => "a head on the target's hidden states that proposes a block",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_go_on_from_proposals_and_one_keeps_their_kv() {
        let all = [
            DraftSource::Lookup,
            DraftSource::Retired,
            DraftSource::Model { blocks: 4 },
            DraftSource::one_pass(4),
            DraftSource::head(4),
            DraftSource::one_pass_head(4),
            DraftSource::block_head(4, ProposedBlock { rows: 5, proposals: 4 }),
        ];
        for source in all {
            assert_eq!(source.drafts(), source.needs().blocks > 0);
            let (model, one_pass) =
                (matches!(source, DraftSource::Model { .. }), matches!(source, DraftSource::OnePass { .. }));
            assert_eq!(source.needs().keeps_proposals, model, "{source}");
            assert_eq!(source.needs().goes_on(), model || one_pass, "{source}");
        }
        assert_eq!(
            (DraftSource::model(0), DraftSource::model(3)),
            (DraftSource::Lookup, DraftSource::Model { blocks: 3 })
        );
    }
}
