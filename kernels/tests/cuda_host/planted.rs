//! The test of the tests: fibers find a barrier and a wait that are missing, and a barrier that not all threads reach.

use crate::host::{ORDERS, host, ptr, words};
use faser_kernels::cuda::{Launch, Ptr};

#[repr(C)]
pub(crate) struct ProbeArgs {
    pub(crate) input: Ptr,
    pub(crate) out: Ptr,
    pub(crate) count: u32,
    pub(crate) position: u32,
    pub(crate) seed: u64,
}

pub(crate) fn probe(kernel: &'static str, block: u32, args: ProbeArgs) -> Launch<ProbeArgs> {
    Launch { kernel, grid: [1, 1, 1], block, shared_bytes: 512, args }
}

/// How many orders give the right answer, without (0) and with (1) what the kernel needs.
fn right(kernel: &'static str, block: u32, expected: &[u32], count: u32) -> Option<usize> {
    let host = host(kernel)?;
    let input: Vec<u32> = (0..expected.len() as u32).collect();
    let good = ORDERS.iter().filter(|order| {
        let mut out = words(&vec![9999; expected.len()]);
        let args = ProbeArgs { input: ptr(&input), out: out.ptr(), count, position: 0, seed: 0 };
        host.run(&probe(kernel, block, args), **order);
        out.read() == expected
    });
    Some(good.count())
}

#[test]
fn a_missing_barrier_is_found() {
    let expected: Vec<u32> = (0..64).rev().collect();
    let Some(without) = right("barrier_missing", 64, &expected, 0) else { return };
    assert!(without < ORDERS.len(), "all orders agree without the barrier");
    assert_eq!(right("barrier_missing", 64, &expected, 1), Some(ORDERS.len()));
}

#[test]
fn a_missing_wait_is_found() {
    let expected: Vec<u32> = (0..128).collect();
    let Some(without) = right("wait_missing", 32, &expected, 0) else { return };
    assert_eq!(without, 0);
    assert_eq!(right("wait_missing", 32, &expected, 1), Some(ORDERS.len()));
}

#[test]
fn arguments_of_another_size_are_refused() {
    let Some(host) = host("arguments") else { return };
    let launch =
        Launch { kernel: "barrier_missing", grid: [1, 1, 1], block: 64, shared_bytes: 0, args: 7u32 };
    assert!(host.try_run(&launch, 0).unwrap_err().contains("another size"));
}
