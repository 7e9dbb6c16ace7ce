//! Where a lane's time goes, op by op: plain counters of its owner, for who asks.

use std::fmt;
use std::time::Duration;

macro_rules! slots {
    ($($name:ident ($($slot:ident)?) [$($file:literal),*] [$($module:ident::$case:ident),*];)+) => {
        /// The ops that run on a lane, by the names they have in [`crate::ops`]; `rms_norm_heads` counts as `rms_norm`. `compact_rows` has
        /// no lane and is not counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is the op of its name")]
        pub enum Op {
            $($($slot,)?)+
        }

        impl Op {
            /// All there are, and their names.
            const NAMED: &[(Op, &str)] = &[$($((Op::$slot, stringify!($name)),)?)+];
        }
    };
}
crate::each_op!(slots);

impl Op {
    /// All there are.
    pub fn all() -> impl Iterator<Item = Op> {
        Op::NAMED.iter().map(|(op, _)| *op)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Op::NAMED[*self as usize].1)
    }
}

/// Time of one op, on the clock of the lane's owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTime {
    /// How often it ran.
    pub calls: u64,
    /// From its beginning to the end of its last worker, in nanoseconds; of collectives, the wait for other ranks too.
    pub total_ns: u64,
    /// The part of `total_ns` in which the owner did none of the op's work, in nanoseconds: it called the helpers, or had
    /// done its own share and waited for theirs. 0 where it worked alone.
    pub barrier_ns: u64,
}

/// Times of all ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTimes {
    each: [OpTime; Op::NAMED.len()],
}

impl OpTimes {
    /// Those of one op.
    #[must_use]
    pub fn of(&self, op: Op) -> OpTime {
        self.each[op as usize]
    }

    /// Of all ops together.
    #[must_use]
    pub fn sum(&self) -> OpTime {
        self.each.iter().fold(OpTime::default(), |sum, one| OpTime {
            calls: sum.calls + one.calls,
            total_ns: sum.total_ns + one.total_ns,
            barrier_ns: sum.barrier_ns + one.barrier_ns,
        })
    }

    /// One more call of `op`.
    pub(super) fn count(&mut self, op: Op, total: Duration, barrier: Duration) {
        let time = &mut self.each[op as usize];
        time.calls += 1;
        time.total_ns += total.as_nanos() as u64;
        time.barrier_ns += barrier.as_nanos() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_its_own_counters() {
        let mut times = OpTimes::default();
        for (i, op) in Op::all().enumerate() {
            let before = times.sum();
            times.count(op, Duration::from_nanos(100 + i as u64), Duration::from_nanos(i as u64));
            let (one, sum) = (times.of(op), times.sum());
            assert_eq!((one.calls, one.total_ns, one.barrier_ns), (1, 100 + i as u64, i as u64), "{op}");
            assert_eq!(sum.calls, before.calls + 1);
            assert_eq!(sum.total_ns, before.total_ns + one.total_ns);
            assert_eq!(sum.barrier_ns, before.barrier_ns + one.barrier_ns);
        }
    }
}
