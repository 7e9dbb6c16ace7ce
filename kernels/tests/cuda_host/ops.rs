//! The cases of all kernels, on fibers in three orders.

use crate::host::host;
use faser_kernels::cuda::check::ops::CASES;
use faser_kernels::cuda::check::ops::bench::Bench;

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
