//! Proposals of a sequence: how likely they are to be accepted, what comes of drafting, what a verdict teaches of them.

use crate::api::TokenId;
use crate::plan::{Drafted, Rivals};
use crate::sequence::{DraftOut, Sequence};
use crate::survival::{AcceptanceTable, Calibration, PerSource, Source, confidence_bin};

/// A token that may come next and is not verified yet.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) token: TokenId,
    pub(crate) source: Source,
    pub(crate) rivals: Rivals,
    pub(crate) confidence: f32,
    /// What confidence alone says of its acceptance.
    pub(crate) calibrated: f32,
    /// Probability of acceptance, given that all before it is accepted.
    pub(crate) acceptance: f32,
}

impl Proposal {
    /// It cost no draft step, and no lane has looked at it.
    pub(crate) fn copied(&self) -> bool {
        self.source != Source::Draft
    }
}

impl Sequence {
    /// Survival of all proposals there are.
    pub(crate) fn survival(&self) -> f32 {
        self.proposals.iter().map(|proposal| proposal.acceptance).product()
    }

    /// Acceptance by confidence, for this request.
    pub(crate) fn acceptance_table(&self, table: &AcceptanceTable) -> AcceptanceTable {
        table.map(|calibrated| self.levels[Source::Draft].acceptance(calibrated))
    }

    /// Takes in what came of the draft chunk that is out. Verdicts may have come in between: proposals for positions that
    /// are committed by now must equal what is there, or all that follows is worthless.
    pub(crate) fn drafted(&mut self, drafted: &[Drafted], table: &AcceptanceTable) {
        let Some(DraftOut { end }) = self.draft_out.take() else { return };
        let overtaken = self.known() - end;
        let agreed = drafted
            .iter()
            .zip(self.tokens.get(end..).unwrap_or_default())
            .take_while(|(drafted, committed)| drafted.token == **committed)
            .count();
        // The KV of the last proposal is not computed.
        let right = if agreed < overtaken { agreed } else { drafted.len() };
        let computed = end + right.min(drafted.len().saturating_sub(1));
        if agreed == overtaken {
            self.proposals.extend(drafted.iter().skip(overtaken).map(|drafted| {
                let calibrated = table[confidence_bin(drafted.confidence)];
                Proposal {
                    token: drafted.token,
                    source: Source::Draft,
                    rivals: drafted.rivals.clone(),
                    confidence: drafted.confidence,
                    calibrated,
                    acceptance: self.levels[Source::Draft].acceptance(calibrated),
                }
            }));
        }
        self.draft.advance(&self.tokens, computed);
    }

    /// What the verdict says of the sources: of the first `known` proposals, the first `accepted` of which were right.
    pub(crate) fn learn(&mut self, known: usize, accepted: usize, calibrations: &mut PerSource<Calibration>) {
        for source in Source::ALL {
            self.levels[source].fade(calibrations[source].typical());
        }
        for (i, proposal) in self.proposals.iter().take(known).enumerate() {
            calibrations[proposal.source].observe(proposal.confidence, proposal.acceptance, i < accepted);
            self.levels[proposal.source].observe(proposal.calibrated, i < accepted);
        }
    }

    /// How many of the first `verified` proposals were copied, and how many of those are among the first `accepted`.
    pub(crate) fn copied(&self, verified: usize, accepted: usize) -> (usize, usize) {
        let copied = |n| self.proposals.iter().take(n).filter(|proposal| proposal.copied()).count();
        (copied(verified), copied(accepted))
    }
}
