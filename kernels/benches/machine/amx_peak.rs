//! Multiply-adds over AMX tiles: four sums at a time, two tiles of activations by two of weights.

use super::peak::Loop;
use std::arch::{asm, x86_64::__cpuid_count};

/// Rows of a tile.
const ROWS: usize = 16;
/// Bytes of a tile's row.
const ROW_BYTES: usize = 64;

/// Pairs of bf16: a tile of 16 x 32 by one of 32 x 16.
pub(super) const BF16: Loop =
    Loop { name: "tdpbf16ps", ops: 4 * 2 * 16 * 16 * 32, available: || has(22) && granted(), run: bf16 };

/// Fours of bytes, signed by unsigned: a tile of 16 x 64 by one of 64 x 16.
pub(super) const INT8: Loop =
    Loop { name: "tdpbsud", ops: 4 * 2 * 16 * 16 * 64, available: || has(25) && granted(), run: int8 };

/// What `ldtilecfg` reads: all eight tiles of full size.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// A tile in memory.
#[repr(C, align(64))]
struct Tile([[u16; ROW_BYTES / 2]; ROWS]);

impl Shape {
    fn full() -> Shape {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        row_bytes[..8].fill(ROW_BYTES as u16);
        rows[..8].fill(ROWS as u8);
        Shape { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

impl Tile {
    /// Numbers from 0.5 to 1 of both signs, as bf16. As bytes they are any.
    fn noise() -> Tile {
        let noise = |i: usize| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
        Tile(std::array::from_fn(|row| {
            std::array::from_fn(|i| 0x3f00 | noise(row * ROW_BYTES / 2 + i) & 0x807f)
        }))
    }
}

/// Whether the processor has AMX tiles, and the instruction of this bit in leaf 7.
fn has(bit: u32) -> bool {
    let wanted = 1 << 24 | 1 << bit;
    std::arch::x86_64::__cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted
}

/// Asks the system for the tiles, for all threads of the process: some refuse, and before Linux 5.16 none knows them.
fn granted() -> bool {
    const REQUEST: libc::c_long = 0x1023; // ARCH_REQ_XCOMP_PERM
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: this request takes a number, and allows what it names; no memory is involved.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

/// A function of `rounds` times four `$product`s.
macro_rules! products {
    ($name:ident, $product:literal) => {
        /// # Safety
        /// The machine has AMX tiles and the instruction, and the system has granted them.
        unsafe fn $name(rounds: u64) {
            let (shape, tile) = (Shape::full(), Tile::noise());
            // SAFETY: the caller's promise; it reads only the shape and the tile, and leaves the tiles as unused as they were.
            unsafe {
                asm!(
                    "ldtilecfg [{shape}]",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{tile} + {row} * 1]",
                    "tileloadd tmm5, [{tile} + {row} * 1]",
                    "tileloadd tmm6, [{tile} + {row} * 1]",
                    "tileloadd tmm7, [{tile} + {row} * 1]",
                    "test {rounds}, {rounds}",
                    "jz 3f",
                    "2:",
                    concat!($product, " tmm0, tmm4, tmm6"),
                    concat!($product, " tmm1, tmm4, tmm7"),
                    concat!($product, " tmm2, tmm5, tmm6"),
                    concat!($product, " tmm3, tmm5, tmm7"),
                    "dec {rounds}",
                    "jnz 2b",
                    "3:",
                    "tilerelease",
                    shape = in(reg) &raw const shape,
                    tile = in(reg) &raw const tile,
                    row = in(reg) ROW_BYTES,
                    rounds = inout(reg) rounds => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
            }
        }
    };
}

products!(bf16, "tdpbf16ps");
products!(int8, "tdpbsud");
