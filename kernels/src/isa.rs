//! Instruction sets, found at run time.

use crate::KernelError;
use std::{env, ffi::OsStr, fmt, str::FromStr};

/// The instruction set a lane's kernels use. Results are bit for bit reproducible on one; they differ between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AMX beside AVX-512: bf16 matrices are multiplied in tiles, with bf16 activations; those in int8 and int4 too, among many rows, with the
    /// same bits.
    Amx,
    /// AVX-512 with `vdpbf16ps`: products of bf16 weights take bf16 activations.
    Avx512Bf16,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX2 and FMA.
    Avx2,
    /// NEON of 64-bit ARM; for int8 `sdot` where the processor has it, with the same bits.
    Neon,
    /// Any machine.
    Portable,
}

impl Isa {
    /// All there are, widest first.
    pub const ALL: [Isa; 6] = [Isa::Amx, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// The environment variable that names the set [`Isa::detect`] takes, so that tests can be run on each set a machine has.
    pub const FORCED_BY: &str = "FASER_ISA";

    /// The fastest this machine has, always the same on the same machine; or the one that [`Isa::FORCED_BY`] names.
    ///
    /// Intel's cores carry out `vdpbf16ps` at half the rate at which AMD's do, and no faster than two f32 multiply-adds: there the
    /// widened weights win (16 rows of a 110M model by a fifth, measured on a Xeon with AMX).
    /// # Panics
    /// [`Isa::FORCED_BY`] names a set that is not there: see [`Isa::auto`], which says so.
    #[must_use]
    pub fn detect() -> Isa {
        match Isa::auto() {
            Ok(isa) => isa,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Isa::detect`].
    ///
    /// # Errors
    /// [`Isa::FORCED_BY`] names a set that is not there. No other is taken in its place, lest a test show what it has not tested.
    pub fn auto() -> Result<Isa, KernelError> {
        Ok(Isa::forced()?.unwrap_or_else(Isa::fastest))
    }

    /// The set that [`Isa::FORCED_BY`] names, if it is in the environment.
    ///
    /// # Errors
    /// There is no such set, or this machine has not got it.
    pub fn forced() -> Result<Option<Isa>, KernelError> {
        env::var_os(Isa::FORCED_BY).map(|name| Isa::named(&name)).transpose()
    }

    fn named(name: &OsStr) -> Result<Isa, KernelError> {
        let name = name.to_string_lossy().into_owned();
        let found = name.parse().ok().filter(|isa: &Isa| isa.is_available());
        found.ok_or_else(|| KernelError::ForcedIsa { variable: Isa::FORCED_BY, name, available: available() })
    }

    fn fastest() -> Isa {
        let slow = |isa: Isa| isa == Isa::Avx512Bf16 && is_intel();
        let fastest = Isa::ALL.into_iter().find(|&isa| isa.is_available() && !slow(isa));
        fastest.unwrap_or(Isa::Portable)
    }

    /// All this machine has, widest first.
    #[must_use]
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine has it.
    #[must_use]
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = || {
            avx2()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        match self {
            Isa::Amx => {
                Isa::Avx512Bf16.is_available()
                    && is_x86_feature_detected!("avx512vnni")
                    && crate::simd::amx::granted()
            }
            Isa::Avx512Bf16 => avx512() && is_x86_feature_detected!("avx512bf16"),
            Isa::Avx512 => avx512(),
            Isa::Avx2 => avx2(),
            Isa::Neon => false,
            Isa::Portable => true,
        }
    }

    /// Whether this machine has it.
    #[must_use]
    #[cfg(target_arch = "aarch64")]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Isa::Portable => true,
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 | Isa::Avx2 => false,
        }
    }

    /// Whether this machine has it.
    #[must_use]
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn is_available(self) -> bool {
        self == Isa::Portable
    }
}

/// Whether the processor says it is Intel's.
#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    // Leaf 0 is there on every x86-64 processor; the name is in these three registers.
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

/// Whether the processor says it is Intel's.
#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Amx => "amx",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        })
    }
}

impl FromStr for Isa {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Isa, KernelError> {
        let found = Isa::ALL.into_iter().find(|isa| isa.to_string() == name);
        found.ok_or_else(|| KernelError::UnknownIsa { name: name.to_owned(), known: named(&Isa::ALL) })
    }
}

fn available() -> String {
    named(&Isa::available())
}

fn named(sets: &[Isa]) -> String {
    sets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// An instruction set that this machine is known to have: what [`crate::simd::dispatch`] relies on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supported(Isa);

impl Supported {
    pub(crate) fn new(isa: Isa) -> Result<Supported, KernelError> {
        if isa.is_available() {
            return Ok(Supported(isa));
        }
        Err(KernelError::IsaUnavailable { isa: isa.to_string(), available: available() })
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways_and_portable_is_everywhere() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse::<Isa>().unwrap(), isa);
        }
        assert!("sse9".parse::<Isa>().unwrap_err().to_string().contains("avx512, avx2, neon, portable"));
        assert_eq!(Isa::available().last(), Some(&Isa::Portable));
        assert!(Isa::available().contains(&Isa::fastest()));
    }

    #[test]
    fn a_set_that_is_forced_is_there_or_refused() {
        assert_eq!(Isa::detect(), Isa::forced().unwrap().unwrap_or_else(Isa::fastest));
        for isa in Isa::ALL {
            match Isa::named(isa.to_string().as_ref()) {
                Ok(found) => assert!(found == isa && isa.is_available()),
                Err(error) => assert!(!isa.is_available(), "{error}"),
            }
        }
        for name in ["sse9", ""] {
            let error = Isa::named(name.as_ref()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("FASER_ISA in the environment is `{name}`")), "{error}");
            assert!(error.contains("portable"), "{error}");
        }
    }
}
