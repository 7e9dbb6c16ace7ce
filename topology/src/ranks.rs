//! The cores of the ranks of a group, where several are on one CPU.

use crate::{LanePair, Partition};

impl Partition {
    /// These cores allocated to `ranks`, evenly and in their order. With fewer cores than ranks each rank has one of them, and some are
    /// used by several: correct, and slow.
    ///
    /// # Panics
    /// For no ranks.
    #[must_use]
    pub fn split(&self, ranks: usize) -> Vec<Partition> {
        assert!(ranks > 0, "cores for no ranks");
        let cores = self.cores.len();
        let of = |rank: usize| {
            if cores < ranks {
                return self.cores.iter().copied().cycle().skip(rank).take(1).collect();
            }
            self.cores[rank * cores / ranks..(rank + 1) * cores / ranks].to_vec()
        };
        (0..ranks).map(|rank| Partition { cores: of(rank) }).collect()
    }
}

/// What each rank has of each partition, where the target is split over `target_ranks` and the draft over `draft_ranks`, both at least one:
/// rank after rank, as many as the larger group has. A rank without a draft lane, or without a verify lane, has no cores for it.
#[must_use]
pub fn rank_partitions(
    partitions: &[LanePair],
    target_ranks: usize,
    draft_ranks: usize,
) -> Vec<Vec<LanePair>> {
    let mut ranks = vec![Vec::with_capacity(partitions.len()); target_ranks.max(draft_ranks)];
    for pair in partitions {
        let (draft, verify) = (pair.draft.split(draft_ranks), pair.verify.split(target_ranks));
        for (rank, own) in ranks.iter_mut().enumerate() {
            let of =
                |split: &[Partition]| split.get(rank).cloned().unwrap_or(Partition { cores: Vec::new() });
            own.push(LanePair { draft: of(&draft), verify: of(&verify) });
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(partition: &Partition) -> &[usize] {
        &partition.cores
    }

    #[test]
    fn cores_are_allocated_evenly_and_used_by_several_only_if_there_are_too_few() {
        let all = Partition { cores: vec![2, 3, 5, 7, 11] };
        assert_eq!(all.split(2).iter().map(cores).collect::<Vec<_>>(), [&[2, 3][..], &[5, 7, 11]]);
        assert_eq!(all.split(5).iter().map(cores).collect::<Vec<_>>(), [[2], [3], [5], [7], [11]]);
        let two = Partition { cores: vec![0, 1] };
        assert_eq!(two.split(4).iter().map(cores).collect::<Vec<_>>(), [[0], [1], [0], [1]]);
        assert_eq!(two.split(1), [two]);
    }

    #[test]
    fn each_group_has_all_cores_of_its_lane() {
        let part = |cores: &[usize]| Partition { cores: cores.to_vec() };
        let pairs = [
            LanePair { draft: part(&[0, 1, 2, 3]), verify: part(&[0, 1, 2, 3]) },
            LanePair { draft: part(&[3]), verify: part(&[0, 1, 2]) },
        ];
        let ranks = rank_partitions(&pairs, 2, 1);
        let pair = |draft: &[usize], verify: &[usize]| LanePair { draft: part(draft), verify: part(verify) };
        assert_eq!(ranks[0], [pair(&[0, 1, 2, 3], &[0, 1]), pair(&[3], &[0])]);
        assert_eq!(ranks[1], [pair(&[], &[2, 3]), pair(&[], &[1, 2])]);
        assert_eq!(rank_partitions(&pairs, 1, 1), [pairs.to_vec()]);
    }
}
