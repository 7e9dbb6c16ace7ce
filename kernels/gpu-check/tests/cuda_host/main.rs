//! Every CUDA kernel, compiled as host C++ and run on fibers in three orders, against the CPU's op. No GPU is needed.
//! And the test of the tests: fibers find a barrier and a wait that are missing, and a barrier that not all threads
//! reach.

#[path = "../../../tests/cuda_fake/library.rs"]
mod build;
mod host;

use faser_gpu_check::ops::CASES;
use faser_gpu_check::ops::case_bench::Bench;
use faser_kernels::cuda::{Launch, Ptr};
use host::host;

/// Runs a case; its name is the test's.
fn run(name: &str) {
    let Some(host) = host(name) else { return };
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("a case of that name");
    case(&Bench(host));
}

macro_rules! tests {
    ($($op:ident ($($slot:ident)?) [$($file:literal),*] [$($module:ident::$case:ident),*];)+) => {
        $($(#[test]
        fn $case() {
            run(stringify!($case));
        })*)+
    };
}

faser_kernels::each_op!(tests);

const ORDERS: usize = 3;

#[repr(C)]
#[derive(Clone, Copy)]
struct ProbeArgs {
    input: Ptr,
    out: Ptr,
    count: u32,
}

/// How many orders give the right answer, without (0) and with (1) what the kernel needs.
fn right(kernel: &'static str, block: u32, expected: &[u32], count: u32) -> Option<usize> {
    let bench = Bench(host(kernel)?);
    let input: Vec<u32> = (0..expected.len() as u32).collect();
    let input = bench.lasting(&input);
    let orders: Vec<i32> = bench.orders().collect();
    assert_eq!(orders.len(), ORDERS);
    let good = orders.iter().filter(|order| {
        let out = bench.words(&vec![9999; expected.len()]);
        let args = ProbeArgs { input, out: out.ptr(), count };
        bench.run(&Launch { kernel, grid: [1, 1, 1], block, shared_bytes: 512, args }, **order);
        out.read() == expected
    });
    Some(good.count())
}

#[test]
fn a_missing_barrier_is_found() {
    let expected: Vec<u32> = (0..64).rev().collect();
    let Some(without) = right("barrier_missing", 64, &expected, 0) else { return };
    assert!(without < ORDERS, "all orders agree without the barrier");
    assert_eq!(right("barrier_missing", 64, &expected, 1), Some(ORDERS));
}

#[test]
fn a_missing_wait_is_found() {
    let expected: Vec<u32> = (0..128).collect();
    let Some(without) = right("wait_missing", 32, &expected, 0) else { return };
    assert_eq!(without, 0);
    assert_eq!(right("wait_missing", 32, &expected, 1), Some(ORDERS));
}

#[test]
fn arguments_of_another_size_are_refused() {
    let Some(host) = host("arguments") else { return };
    let launch =
        Launch { kernel: "barrier_missing", grid: [1, 1, 1], block: 64, shared_bytes: 0, args: 7u32 };
    assert!(host.try_run(&launch, 0).unwrap_err().contains("another size"));
}
