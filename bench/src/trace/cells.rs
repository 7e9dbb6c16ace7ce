//! Cells of a picture: one per row of a verify chunk, one per proposal of a draft chunk, coloured by what became of it.

use faser_engine::record::{ChunkRecord, PassRecord};

use super::fate::{Fate, Fates};
use crate::canvas::{Area, Canvas, Colour};

/// What a cell stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// A committed row: the anchor, or all prefill rows of a chunk.
    Committed,
    /// A proposal that was accepted.
    Accepted,
    /// A proposal that was rejected, or stood behind one.
    Rejected,
    /// The target's own token.
    Next,
    /// A proposal whose row left the pass.
    Pruned,
    /// A proposal that was not verified.
    Unused,
    /// A draft that a rejection cancelled.
    Cancelled,
}

impl Cell {
    /// Those whose colour a legend has to tell; the cancelled ones are told apart by stripes.
    pub(super) const ALL: [Cell; 6] =
        [Cell::Accepted, Cell::Rejected, Cell::Committed, Cell::Next, Cell::Pruned, Cell::Unused];

    /// Words for a legend.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Cell::Committed => "committed rows (anchor, prefill)",
            Cell::Accepted => "proposal, accepted",
            Cell::Rejected => "proposal, rejected",
            Cell::Next => "next token, the target's own",
            Cell::Pruned => "proposal, its row left the pass at a pruning checkpoint",
            Cell::Unused => "proposal, not verified",
            Cell::Cancelled => "drafted past the frontier, cancelled",
        }
    }

    fn colour(self) -> Colour {
        match self {
            Cell::Committed => Colour(0x96_9696),
            Cell::Accepted => Colour(0x00_9e73),
            Cell::Rejected => Colour(0xe1_692d),
            Cell::Next => Colour(0x00_5aa0),
            Cell::Pruned => Colour(0xc8_8cc8),
            Cell::Unused => Colour(0xeb_ebeb),
            Cell::Cancelled => Colour(0xff_ebf0),
        }
    }

    /// Draws it, with a border if there is room for one.
    pub(super) fn draw(self, canvas: &mut Canvas, area: Area) {
        if self == Cell::Cancelled {
            canvas.hatch(area, self.colour(), Colour(0xbe_003c));
        } else {
            canvas.fill(area, self.colour());
        }
        if area.width >= 5.0 && area.height >= 5.0 {
            canvas.frame(area, Colour::WHITE);
        }
    }
}

impl From<Fate> for Cell {
    fn from(fate: Fate) -> Cell {
        match fate {
            Fate::Accepted => Cell::Accepted,
            Fate::Rejected => Cell::Rejected,
            Fate::Pruned => Cell::Pruned,
            Fate::Cancelled(_) => Cell::Cancelled,
            Fate::Unused => Cell::Unused,
        }
    }
}

/// A draft pass: a line of cells per chunk, a cell per proposal.
pub(super) fn draft_cells(pass: &PassRecord, fates: &Fates<'_>) -> Vec<Vec<Cell>> {
    let of = |chunk: &ChunkRecord| {
        let drafted = (0..chunk.proposals).map(|nth| Cell::from(fates.of_drafted(chunk, nth)));
        let mut cells: Vec<Cell> = drafted.collect();
        if cells.is_empty() {
            cells.push(match fates.cancelled(chunk) {
                _ if chunk.k == 0 => Cell::Committed,
                Some(_) => Cell::Cancelled,
                None => Cell::Unused,
            });
        }
        cells
    };
    pass.chunks.iter().map(of).collect()
}

/// A verify pass: a line of cells per chunk; all committed rows as one, then a cell per proposal, then the next token.
pub(super) fn verify_cells(pass: &PassRecord) -> Vec<Vec<Cell>> {
    let of = |chunk: &ChunkRecord| {
        let mut cells = vec![Cell::Committed];
        cells.extend((0..chunk.proposals).map(|nth| Cell::from(Fates::of_verified(chunk, nth))));
        cells.extend(chunk.next.then_some(Cell::Next));
        cells
    };
    pass.chunks.iter().map(of).collect()
}
