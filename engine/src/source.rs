//! Where proposals come from, and what each kind of source needs of the lanes: what everybody else asks is what a source needs, not which it is.

use std::fmt;

/// What proposes beside prompt-lookup in a sequence's own text, which is there with every source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// Nothing: prompt-lookup is all there is.
    Lookup,
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
    /// A head that goes on from the target's hidden states (EAGLE-3, MTP).
    Head {
        /// Blocks of its KV pool.
        blocks: usize,
    },
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
    /// The target's hidden states of all rows that are committed.
    pub hidden_states: bool,
    /// Its state is of use only where the target's is: a prefix that was found in the target's cache alone is none.
    pub with_target_blocks: bool,
    /// It has a vocabulary of its own, with a map to the target's.
    pub vocabulary_map: bool,
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

    /// What it needs.
    pub fn needs(self) -> SourceNeeds {
        let own = |passes, blocks| SourceNeeds { passes, blocks, ..SourceNeeds::default() };
        match self {
            DraftSource::Lookup => own(RoundPasses::None, 0),
            DraftSource::Model { blocks } => own(RoundPasses::EachProposal, blocks),
            DraftSource::OnePass { blocks } => own(RoundPasses::One, blocks),
            DraftSource::Head { blocks } => SourceNeeds {
                hidden_states: true,
                with_target_blocks: true,
                vocabulary_map: true,
                ..own(RoundPasses::EachProposal, blocks)
            },
        }
    }

    /// Whether the draft lane has anything to do.
    pub fn drafts(self) -> bool {
        self.needs().passes != RoundPasses::None
    }

    /// Whether the engine plans for it.
    pub(crate) fn served(self) -> bool {
        let SourceNeeds { hidden_states, with_target_blocks, vocabulary_map, .. } = self.needs();
        !hidden_states && !with_target_blocks && !vocabulary_map
    }
}

impl fmt::Display for DraftSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DraftSource::Lookup => "no draft",
            DraftSource::Model { .. } => "a draft model",
            DraftSource::OnePass { .. } => "a draft that proposes in one pass",
            DraftSource::Head { .. } => "a head on the target's hidden states",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_needs_what_nobody_brings_yet_is_refused() {
        for source in [DraftSource::Lookup, DraftSource::Model { blocks: 4 }, DraftSource::one_pass(4)] {
            assert!(source.served());
            assert_eq!(source.drafts(), source != DraftSource::Lookup);
        }
        let head = DraftSource::Head { blocks: 4 };
        assert!(!head.served());
        let refusal = crate::EngineError::Source(head).to_string();
        assert!(refusal.contains(&head.to_string()) && refusal.contains("not served yet"), "{refusal}");
        assert_eq!(
            (DraftSource::model(0), DraftSource::model(3)),
            (DraftSource::Lookup, DraftSource::Model { blocks: 3 })
        );
    }
}
