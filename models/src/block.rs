//! Passes of a head that proposes a block (DFlash, DSpark), on the CPU. Rows of the text have keys and values alone, made of the target's features, the
//! same features in every layer; rows of a block see them and one another.
//!
//! ```text
//! slot         s .. P          P+1    P+2 .. P+B
//! begins with  features of     token  mask tokens
//!              s-1 .. P-1      at P
//! in the pass  behind          first
//! kept         yes             no
//! ```
//! As with every head the slot of a token has what its target said before it, so that its KV is as far as its text. A block turns by its slots, one
//! further than the positions of its training: rotary embeddings know distances alone.

use faser_kernels::Rows;

use crate::{BlockSpec, HeadKind, ModelConfig};

/// What a pass of such a head has beside its activations.
pub(crate) struct BlockScratch {
    spec: BlockSpec,
    /// Rows of blocks in the pass; those of the text are behind them.
    pub(crate) queries: usize,
    /// How far each of them sees, in place of its position.
    sees: Vec<u32>,
}

impl BlockScratch {
    /// For passes of a model of up to `max_rows` rows, if it is such a head.
    pub(crate) fn of(config: &ModelConfig, max_rows: usize) -> Option<BlockScratch> {
        match config.head.as_ref()?.kind {
            HeadKind::Block(spec) => {
                Some(BlockScratch { spec, queries: 0, sees: Vec::with_capacity(max_rows) })
            }
            HeadKind::Steps | HeadKind::Masks => None,
        }
    }

    /// The rows of blocks among those of the pass, as far as each sees.
    pub(crate) fn seeing<'a>(&'a mut self, rows: Rows<'a>) -> Rows<'a> {
        let own = first(rows, self.queries);
        if self.spec.causal {
            return own;
        }
        self.sees.clear();
        for (row, (position, table)) in own.positions.iter().zip(own.table_of).enumerate() {
            let last = (row - row % self.spec.rows + self.spec.rows - 1).min(self.queries - 1);
            let of_row = |table: u32| rows.tables[table as usize];
            let same = std::ptr::eq(of_row(own.table_of[last]), of_row(*table));
            self.sees.push(if same { own.positions[last].max(*position) } else { *position });
        }
        Rows { positions: &self.sees, ..own }
    }
}

/// The first `n` rows.
pub(crate) fn first(rows: Rows<'_>, n: usize) -> Rows<'_> {
    Rows { positions: &rows.positions[..n], table_of: &rows.table_of[..n], tables: rows.tables }
}
