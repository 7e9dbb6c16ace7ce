//! Graphs of small passes: the launches of a range of layers, or of a whole draft step, captured once per partition and shape.
//!
//! The key of a graph is everything that its launches are made of and that may differ from pass to pass: the arrays' places, grids, which
//! kernels. So a graph that is found is right by construction. Passes are padded to their bucket (`CudaPasses::stage`), so
//! that few keys come up; what is in the padding, no kernel looks at, for each reads the number of rows on the device. Passes of
//! a split model run without.

use std::collections::HashMap;

use faser_kernels::cuda::{CudaError, Graph};

use super::CudaPasses;
use super::staged::{RowArrays, Tail};

/// Graphs kept; when there are more, all go: what is needed comes again.
const GRAPHS: usize = 512;

/// What is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Some layers.
    Layers { from: usize, to: usize },
    /// A draft step from embedding to the next pass.
    Step { tail: Tail, rivals: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    partition: usize,
    work: Work,
    rows: RowArrays,
}

/// The graphs of a lane; none yet for work that was done once. The second time is captured: by then all that is loaded or chosen
/// at first use is there.
#[derive(Default)]
pub(super) struct Graphs(HashMap<Key, Option<Graph>>);

impl CudaPasses {
    /// Does work of the pass under way, if it is small by a graph.
    pub(super) fn captured(
        &mut self,
        work: Work,
        launches: impl FnOnce(&mut CudaPasses) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        // Sums over ranks are not captured: whether graphs of several GPUs may wait for each other was tried on none.
        if !self.pass.small || self.is_split() {
            return launches(self);
        }
        let key = Key { partition: self.lane.partition(), work, rows: self.pass.rows };
        match self.graphs.0.get(&key) {
            Some(Some(graph)) => return self.lane.replay(graph),
            Some(None) => {}
            None => {
                if self.graphs.0.len() >= GRAPHS {
                    self.lane.wait(&mut || {})?;
                    self.graphs.0.clear();
                }
                self.graphs.0.insert(key, None);
                return launches(self);
            }
        }
        self.lane.begin_capture()?;
        let asked = launches(self);
        let graph = self.lane.end_capture();
        asked?;
        let graph = graph?;
        self.lane.replay(&graph)?;
        self.graphs.0.insert(key, Some(graph));
        Ok(())
    }
}
