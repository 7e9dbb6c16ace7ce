//! Collectives: what the ranks of a group compute together. A rank is one device with its shard of a model; a group is the ranks
//! of one model's lane. Every lane has a group of its own, so that draft and verify never wait for each other. Ranks on the CPU are
//! threads (`in_process.rs`), or on several nodes (`sockets.rs`); ranks on GPUs are threads, and NCCL moves their numbers
//! (`cuda/device/nccl_group.rs`).
//!
//! All ranks make the same calls in the same order; a call is told from the next by its number alone, there is no barrier around it. Nothing
//! waits for ever: a rank that keeps the others waiting past the group's deadline, or that leaves, aborts the group, and
//! every call of every rank fails from then on. A group that was aborted is of no use any more: a new one has to be made.

mod in_process;
mod sockets;

pub use faser_topology::part;
pub use in_process::{InProcess, in_process};
pub use sockets::{Connection, Mesh, SocketGroup, within_process};

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// One rank's way to its group. `Floats` is memory of the rank's device: on the CPU calls are done when they return; on a GPU
/// they may be queued on the lane that the way was made for, and a later call reports what became of them.
pub trait Collective<Floats: ?Sized = [f32]>: Send + Sync {
    /// This rank, below `ranks`.
    fn rank(&self) -> usize;

    /// Ranks of the group, at least one.
    fn ranks(&self) -> usize;

    /// Each element of `values` becomes the sum of the ranks' elements there: the same bits on every rank. On the CPU they are added up
    /// from rank 0 to the last, which gives the same bits in every run; NCCL chooses an order of its own. `values` are as long on every rank.
    ///
    /// # Errors
    /// The group is aborted, or is now: a rank did not come in time, or came with another call.
    fn all_reduce_sum(&self, values: &mut Floats) -> Result<(), CollectiveError>;

    /// `all` becomes the `own` of rank 0, of rank 1, and so on, bit by bit (so that integers can travel as floats' bits). `own` is as
    /// long on every rank, `all` as long as all of them.
    ///
    /// # Errors
    /// As [`Collective::all_reduce_sum`].
    fn all_gather(&self, own: &Floats, all: &mut Floats) -> Result<(), CollectiveError>;

    /// Ends the group: calls that wait and all later ones fail, on every rank. The first reason stays.
    fn abort(&self, why: &str);
}

/// A group on hosts, which can hand numbers from one rank to others: where a model's layers are split into stages.
pub trait HostCollective: Collective {
    /// The `values` of rank `root` become those of the ranks in `to`, bit by bit. All ranks of the group make the call; those that are neither
    /// have nothing to do with `values`, which are as long on all others.
    ///
    /// # Errors
    /// As [`Collective::all_reduce_sum`].
    fn broadcast(&self, root: usize, to: Range<usize>, values: &mut [f32]) -> Result<(), CollectiveError>;
}

/// A rank's ways to the others.
#[derive(Clone)]
pub struct GroupWays {
    /// To all of its group.
    pub group: Arc<dyn HostCollective>,
    /// To those of it that have the same layers, in their order: the same, where layers are not split.
    pub stage: Arc<dyn HostCollective>,
}

/// The ways of ranks that are threads of this process, in so many stages of equally many ranks.
///
/// # Panics
/// As [`in_process`].
#[must_use]
pub fn ways_in_process(ranks: usize, stages: usize, deadline: Duration) -> Vec<GroupWays> {
    let group = |ranks| in_process(ranks, deadline).into_iter().map(|way| Arc::new(way) as Arc<_>);
    if stages == 1 {
        return group(ranks)
            .map(|way: Arc<dyn HostCollective>| GroupWays { stage: way.clone(), group: way })
            .collect();
    }
    let of_stages = (0..stages).flat_map(|_| group(ranks / stages));
    group(ranks).zip(of_stages).map(|(group, stage)| GroupWays { group, stage }).collect()
}

/// Why a collective failed: the lane it ran on has to be built anew, with all of its group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A rank did not come.
    #[error("rank {missing} of {ranks} has not come within {} ms", within.as_millis())]
    Deadline {
        /// The first rank that is missing.
        missing: usize,
        /// Ranks of the group.
        ranks: usize,
        /// The group's deadline.
        within: Duration,
    },
    /// All ranks of this process have come, and the call does not end: one on another node is missing.
    #[error("ranks on other nodes, of {ranks}, have not come within {} ms", within.as_millis())]
    Elsewhere {
        /// Ranks of the group.
        ranks: usize,
        /// The group's deadline.
        within: Duration,
    },
    /// All ranks have come, and yet the call does not end.
    #[error("calls of {ranks} ranks have not ended within {} ms, though all have come", within.as_millis())]
    Stuck {
        /// Ranks of the group.
        ranks: usize,
        /// The group's deadline.
        within: Duration,
    },
    /// What moves the numbers failed.
    #[error("NCCL failed in {call}: {code}")]
    Library {
        /// Which call.
        call: &'static str,
        /// What it returned.
        code: String,
    },
    /// The group was aborted.
    #[error("the group was aborted: {why}")]
    Aborted {
        /// The first reason.
        why: String,
    },
    /// The ranks do not do the same: a mistake of the caller's code.
    #[error("rank {rank} {found}, this rank {expected}")]
    Differs {
        /// The other rank.
        rank: usize,
        /// What it does.
        found: String,
        /// What this rank does.
        expected: String,
    },
}

/// The group of a device that has no other: every sum is its own.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn all_reduce_sum(&self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&self, own: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        all.copy_from_slice(own);
        Ok(())
    }

    /// Nobody waits.
    fn abort(&self, _: &str) {}
}

impl HostCollective for Alone {
    fn broadcast(&self, _: usize, _: Range<usize>, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_nothing_changes() {
        let (mut values, mut all) = ([1.0, 2.0], [0.0; 2]);
        Alone.all_reduce_sum(&mut values).unwrap();
        Alone.all_gather(&values, &mut all).unwrap();
        assert_eq!((values, all, Alone.rank(), Alone.ranks()), ([1.0, 2.0], [1.0, 2.0], 0, 1));
    }
}
