//! Launches of what the ranks of a group do together, over memory that each may write of the others'.

use super::launch::{Launch, Ptr};

/// Threads of a block.
const THREADS: u32 = 256;
/// Numbers that a block has at least, where there are enough: four of each thread.
const LEAST_PART: usize = 4 * THREADS as usize;

/// What the ranks have is added up, or gathered: every rank launches it for the same call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SumRanksArgs {
    /// The room of each rank, of [`SumRanksArgs::room_bytes`], zeroed when the group begins.
    pub rooms: [Ptr; SumRanksArgs::MOST_RANKS],
    /// f32 `[len]`, or other words of four bytes where they are gathered.
    pub own: Ptr,
    /// `[len]`, which may be `own`; gathered: `[ranks][len]`.
    pub out: Ptr,
    /// u32 of the host's: not 0 where the group is over, and nobody is waited for.
    pub stop: Ptr,
    /// Numbers of a rank.
    pub len: u32,
    /// Numbers that a slot of a room has place for.
    pub slot: u32,
    /// Ranks of the group.
    pub ranks: u32,
    /// This one.
    pub rank: u32,
    /// 1 to gather, 0 to add up.
    pub gathers: u32,
    /// [`SumRanksArgs::BOTH_HALVES`]; tests have one after the other.
    pub halves: u32,
}

impl SumRanksArgs {
    /// Ranks that a room has place for.
    pub const MOST_RANKS: usize = 8;
    /// Blocks of a launch: few enough to be on a GPU together, whatever else runs there.
    pub const MOST_BLOCKS: usize = 32;
    /// To bring one's own, and to take what others bring.
    pub const BOTH_HALVES: u32 = 3;

    /// Numbers that a slot needs for calls of up to `most` by so many blocks.
    #[must_use]
    pub fn slot_len(most: usize, blocks: usize) -> usize {
        most.div_ceil(blocks).max(LEAST_PART).next_multiple_of(4)
    }

    /// Bytes of a room with such slots.
    #[must_use]
    pub fn room_bytes(ranks: usize, slot: usize) -> usize {
        let words = (SumRanksArgs::MOST_RANKS + 2) * SumRanksArgs::MOST_BLOCKS;
        size_of::<u32>() * (words + SumRanksArgs::MOST_BLOCKS * 2 * ranks * slot)
    }

    /// Up to so many blocks: as many on every rank.
    #[must_use]
    pub fn launch(self, most_blocks: usize) -> Launch<SumRanksArgs> {
        let blocks = (self.len as usize).div_ceil(LEAST_PART).min(most_blocks);
        Launch::new("sum_ranks", [blocks as u32, 1, 1], THREADS, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_room_in_its_slot() {
        for blocks in [1, 3, 8, SumRanksArgs::MOST_BLOCKS] {
            for most in [1, 1000, 4096, 50_001, 1 << 20] {
                let slot = SumRanksArgs::slot_len(most, blocks);
                for len in [1, 2, most / 3, most - 1, most] {
                    let args = SumRanksArgs { len: len as u32, ..SumRanksArgs::nothing() };
                    let launched = args.launch(blocks).grid[0] as usize;
                    let part = len.div_ceil(launched.max(1)).next_multiple_of(4);
                    assert!(
                        launched <= blocks && part <= slot,
                        "{len} of {most} in {launched} of {blocks} blocks"
                    );
                }
            }
        }
    }

    impl SumRanksArgs {
        fn nothing() -> SumRanksArgs {
            let [own, out, stop] = [Ptr::NULL; 3];
            let rooms = [Ptr::NULL; SumRanksArgs::MOST_RANKS];
            SumRanksArgs { rooms, own, out, stop, len: 0, slot: 0, ranks: 1, rank: 0, gathers: 0, halves: 0 }
        }
    }
}
