//! Bounds: how low the mean latency could be of any policy that verifies one chain of proposals, found by search.
//!
//! On a device that does what no device can do, fixed lengths and `faser` are tried at several sizes of a pass, and the best of them is the
//! bound. That is no proof: a policy that nobody tried may be better on that device.

use std::fmt;

/// What a bound's device can do that no device can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The draft ends every chunk before its first wrong proposal; draft steps cost what they cost.
    OracleLengths,
    /// Draft passes take no time, and the engine's cost tables say so too.
    FreeDrafts,
    /// Both.
    OracleFree,
}

/// Rows of a pass that are tried beside those that were asked for, if those are more.
const SIZES: [usize; 3] = [256, 512, 1024];
/// Lengths that an oracle is tried with beside the usual ones: what is not right costs it nothing.
const LONG_LENGTHS: [usize; 2] = [12, 16];

impl Bound {
    /// All of them, the lowest last.
    pub const ALL: [Bound; 3] = [Bound::OracleLengths, Bound::FreeDrafts, Bound::OracleFree];

    pub(super) fn is_oracle(self) -> bool {
        matches!(self, Bound::OracleLengths | Bound::OracleFree)
    }

    pub(super) fn drafts_for_nothing(self) -> bool {
        matches!(self, Bound::FreeDrafts | Bound::OracleFree)
    }

    /// Fixed lengths that are tried: `usual`, and with an oracle longer ones.
    pub(super) fn lengths(self, usual: &[usize]) -> impl Iterator<Item = usize> {
        let long = LONG_LENGTHS.into_iter().filter(move |_| self.is_oracle());
        usual.iter().copied().chain(long)
    }

    /// Rows of a pass that are tried, up to `most`: each of the sequences that may run needs one.
    pub(super) fn sizes(max_running: usize, most: usize) -> impl Iterator<Item = usize> {
        SIZES.into_iter().filter(move |&rows| rows >= max_running && rows < most).chain([most])
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::OracleLengths => "oracle-lengths",
            Bound::FreeDrafts => "free-drafts",
            Bound::OracleFree => "oracle-free",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oracle_is_tried_with_longer_lengths_and_all_with_smaller_passes() {
        let longest = |bound: Bound| bound.lengths(&[0, 10]).max();
        assert_eq!(Bound::ALL.map(longest), [Some(16), Some(10), Some(16)]);
        let sizes = |running, most| Bound::sizes(running, most).collect::<Vec<_>>();
        assert_eq!(sizes(256, 2048), [256, 512, 1024, 2048]);
        assert_eq!(sizes(300, 1024), [512, 1024]);
        assert_eq!(sizes(32, 100), [100]);
    }
}
