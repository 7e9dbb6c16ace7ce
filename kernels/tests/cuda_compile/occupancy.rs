//! How many blocks of a kernel an SM has room for.

/// What an SM has, by NVIDIA's table of technical specifications per compute capability (CUDA C++ Programming Guide).
struct Sm {
    warps: u32,
    blocks: u32,
    shared_bytes: u32,
}

const REGISTERS: u32 = 65_536;
/// Registers go to warps in pieces of so many.
const PIECE: u32 = 256;
/// Shared memory that the system takes of each block.
const RESERVED_BYTES: u32 = 1024;

/// Most shared memory of a block, in bytes.
pub(crate) fn most_shared_bytes(arch: &str) -> u32 {
    sm(arch).shared_bytes - RESERVED_BYTES
}

/// Of so many threads, registers of each, and bytes of shared memory.
pub(crate) fn blocks(arch: &str, threads: u32, registers: u32, shared_bytes: u32) -> u32 {
    let (sm, warps) = (sm(arch), threads.div_ceil(32));
    let of_registers = REGISTERS / (warps * (registers * 32).next_multiple_of(PIECE));
    let of_shared = sm.shared_bytes / (shared_bytes + RESERVED_BYTES);
    of_registers.min(of_shared).min(sm.warps / warps).min(sm.blocks)
}

fn sm(arch: &str) -> Sm {
    let (warps, blocks, kib) = match arch {
        "sm_80" => (64, 32, 164),
        "sm_86" => (48, 16, 100),
        "sm_89" => (48, 24, 100),
        "sm_90" | "sm_100" | "sm_103" => (64, 32, 228),
        "sm_120" | "sm_121" => (48, 24, 100),
        _ => panic!("{arch} is not in the table"),
    };
    Sm { warps, blocks, shared_bytes: kib << 10 }
}
