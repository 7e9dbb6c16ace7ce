//! Which of the instruction sets a kernel runs on.

#[cfg(target_arch = "aarch64")]
use super::neon;
use super::{Kernel, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::isa::Supported;

/// Runs a kernel compiled for the instruction set.
pub(crate) fn dispatch<K: Kernel>(isa: Supported, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::Isa;
        match isa.isa() {
            // SAFETY: `Supported` says that the machine has these features.
            Isa::Amx => return unsafe { avx512::run_tiles(kernel) },
            // SAFETY: as above.
            Isa::Avx512Bf16 => return unsafe { avx512::run_bf16(kernel) },
            // SAFETY: as above.
            Isa::Avx512 => return unsafe { avx512::run(kernel) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2::run(kernel) },
            Isa::Neon | Isa::Portable => {}
        }
    }
    #[cfg(target_arch = "aarch64")]
    if isa.isa() == crate::Isa::Neon {
        // SAFETY: `Supported` says that the machine has it.
        return unsafe { neon::run(kernel) };
    }
    let _ = isa;
    portably(kernel)
}

/// Runs a kernel that is for tiles alone.
///
/// # Safety
/// The machine has AMX.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn dispatch_tiles<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { avx512::run_tiles(kernel) }
}

/// [`dispatch`] for kernels of [`super::Simd::dot_bytes`]: where the machine has VNNI, or `sdot` on ARM, which are apart from the
/// sets of [`Isa`](crate::Isa), they are compiled for that too. The results are the same. They have nothing to do with tiles, nor with bf16:
/// they are compiled for fewer sets.
pub(crate) fn dispatch_bytes<K: Kernel>(isa: Supported, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::Isa;
        match isa.isa() {
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => {
                // SAFETY: `Supported` says that the machine has the set, and VNNI was found.
                return unsafe { avx512::run_vnni(kernel) };
            }
            // SAFETY: `Supported` says that the machine has these features.
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => return unsafe { avx512::run(kernel) },
            Isa::Avx2 if is_x86_feature_detected!("avxvnni") => {
                // SAFETY: `Supported` says that the machine has the set, and VNNI was found.
                return unsafe { avx2::run_vnni(kernel) };
            }
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2::run(kernel) },
            Isa::Neon | Isa::Portable => {}
        }
    }
    #[cfg(target_arch = "aarch64")]
    if isa.isa() == crate::Isa::Neon {
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            // SAFETY: `Supported` says that the machine has the set, and `sdot` was found.
            return unsafe { neon::run_dot(kernel) };
        }
        // SAFETY: `Supported` says that the machine has it.
        return unsafe { neon::run(kernel) };
    }
    let _ = isa;
    portably(kernel)
}

/// Runs a kernel compiled for any machine: for what is too little to choose.
pub(crate) fn portably<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(portable::Portable)
}
