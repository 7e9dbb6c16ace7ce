//! On which NUMA nodes memory lies: where Linux puts a page is decided when it is touched first, by the policy of the thread that does.

use libc::{MPOL_DEFAULT, MPOL_INTERLEAVE, MPOL_PREFERRED, c_int, c_ulong};

/// Most nodes that a mask has bits for.
const NODES: usize = 1024;
type Mask = [c_ulong; NODES / c_ulong::BITS as usize];

/// What the calling thread touches first while it does `work` lies on these nodes: on the one there is while that has room, or page by page
/// in turns on several, so that all their memories are read at once whichever worker reads what.
///
/// With no nodes, or if the thread has a policy already (of `numactl`, say), or if the system refuses, nothing changes but that `work` is done.
pub fn on_nodes<T>(nodes: &[usize], work: impl FnOnce() -> T) -> T {
    let _until_done = Policy::set(nodes);
    work()
}

/// A policy other than the system's, until this is dropped.
struct Policy(());

impl Policy {
    fn set(nodes: &[usize]) -> Option<Policy> {
        let mode = match nodes {
            [] => return None,
            [_] => MPOL_PREFERRED,
            _ => MPOL_INTERLEAVE,
        };
        let mut mask: Mask = [0; _];
        for node in nodes {
            let word = mask.get_mut(node / c_ulong::BITS as usize)?;
            *word |= 1 << (node % c_ulong::BITS as usize);
        }
        let (before, _) = current()?;
        // Made only then: it ends a policy when dropped.
        (before == MPOL_DEFAULT && set(mode, &mask)).then(|| Policy(()))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        set(MPOL_DEFAULT, &[0; _]);
    }
}

/// Sets this thread's policy; whether the system did.
fn set(mode: c_int, mask: &Mask) -> bool {
    // The kernel wants one more than the bits it may read.
    // SAFETY: the mask has that many bits, and is read only.
    unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), NODES + 1) == 0 }
}

/// This thread's policy, if the system tells.
fn current() -> Option<(c_int, Mask)> {
    let (mut mode, mut mask): (c_int, Mask) = (0, [0; _]);
    let (no_address, no_flags) = (std::ptr::null::<u8>(), 0 as c_ulong);
    // SAFETY: mode and mask are written, the mask no further than it has bits.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            NODES + 1,
            no_address,
            no_flags,
        )
    };
    (answer == 0).then_some((mode, mask))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    /// Node 0 is on every machine.
    fn on_node_0() -> Mask {
        let mut mask = [0; _];
        mask[0] = 1;
        mask
    }

    #[test]
    fn the_policy_lasts_as_long_as_the_work() {
        let before = current();
        assert_eq!(on_nodes(&[], current), before);
        // Bits beyond the mask are no node.
        assert_eq!(on_nodes(&[0, NODES], current), before);
        let within = on_nodes(&[0], current);
        if before.is_none_or(|(mode, _)| mode != MPOL_DEFAULT) || within == before {
            let reason = "the system lets it set none, or it has one";
            faser_skipped::skip("memory policy of a thread", reason);
            return;
        }
        assert_eq!(within, Some((MPOL_PREFERRED, on_node_0())));
        assert_eq!(current(), before);
        // In turns on one node, given twice: what a test can have without a second.
        assert_eq!(on_nodes(&[0, 0], current), Some((MPOL_INTERLEAVE, on_node_0())));
        assert!(catch_unwind(|| on_nodes(&[0], || panic!("a test"))).is_err());
        assert_eq!(current(), before);
    }

    #[test]
    fn a_policy_that_is_there_stays() {
        assert_eq!(on_nodes(&[0], || on_nodes(&[0, 0], current)), on_nodes(&[0], current));
    }
}
