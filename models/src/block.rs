//! Passes of a head that proposes a block (DFlash, DSpark). Rows of the text have keys and values alone, made of the target's features, the
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

use crate::{BlockSpec, ModelConfig};

/// What a pass of such a head has beside its activations, on the CPU.
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
        let sees = Vec::with_capacity(max_rows);
        Some(BlockScratch { spec: config.block()?, queries: 0, sees })
    }

    /// The rows of blocks among those of the pass, as far as each sees.
    pub(crate) fn seeing<'a>(&'a mut self, rows: Rows<'a>) -> Rows<'a> {
        let own = first(rows, self.queries);
        if self.spec.causal {
            return own;
        }
        last_seen(&self.spec, own, &mut self.sees);
        Rows { positions: &self.sees, ..own }
    }
}

/// The last position that each row of blocks sees, whole ones that stand one behind the other: the end of its block, if that is not causal.
pub(crate) fn last_seen(spec: &BlockSpec, rows: Rows<'_>, sees: &mut Vec<u32>) {
    let Rows { positions, table_of, tables } = rows;
    sees.clear();
    for (row, (position, table)) in positions.iter().zip(table_of).enumerate() {
        let last = (row - row % spec.rows + spec.rows - 1).min(positions.len() - 1);
        let of_row = |table: u32| tables[table as usize];
        let same = std::ptr::eq(of_row(table_of[last]), of_row(*table));
        sees.push(if same { positions[last].max(*position) } else { *position });
    }
}

/// The first `n` rows.
pub(crate) fn first(rows: Rows<'_>, n: usize) -> Rows<'_> {
    Rows { positions: &rows.positions[..n], table_of: &rows.table_of[..n], tables: rows.tables }
}
