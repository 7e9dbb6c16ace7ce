//! AMX: whole tiles of products in one instruction, for matmul.
//!
//! Rust's intrinsics for it are not stable, so this is assembly: what tile registers hold does not live outside of a block.
//! `tdpbf16ps` adds to each of 16 by 16 sums the products of 32 inputs, in an order of its own that does not depend on the other rows or
//! outputs of the tile.
//!
//! Activations lie as blocks of [`TILE`] rows: `[step][TILE][32]` bf16. Weights lie as in `memory/matrix.rs`: there a step of a panel is
//! two tiles side by side. For whole numbers both are as `ops/matmul/amx_whole.rs` says.

use half::bf16;
use std::arch::asm;
use std::sync::OnceLock;

/// Rows of a tile, and outputs.
pub(crate) const TILE: usize = 16;
/// Sums of a tile.
pub(crate) const SUMS: usize = TILE * TILE;

/// Whether the machine has AMX with bf16 and int8, and the system lets this process use it; asked once.
pub(crate) fn granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        const ALL: u32 = 1 << 25 | 1 << 24 | 1 << 22; // int8, tiles, bf16
        // Leaf 7 is there wherever AVX2 is, which is asked for first.
        let found =
            is_x86_feature_detected!("avx512f") && std::arch::x86_64::__cpuid_count(7, 0).edx & ALL == ALL;
        found && permitted()
    })
}

/// The tiles' 8 KiB of state are granted to processes that ask.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: asks for a permission; touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// What `ldtilecfg` reads: rows and bytes per row of each of the eight tiles.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Full rows in all tiles, and so many of them.
fn config(rows: [usize; 8]) -> Config {
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    for (tile, count) in rows.into_iter().enumerate() {
        config.row_bytes[tile] = 64;
        config.rows[tile] = count as u8;
    }
    config
}

/// Asks for the lines of a panel's step that will be read soon.
macro_rules! ahead {
    ($panel:literal) => {
        ahead!($panel, 0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960
            1024 1088 1152 1216 1280 1344 1408 1472 1536 1600 1664 1728 1792 1856 1920 1984)
    };
    ($panel:literal, $($line:literal)*) => {
        concat!($("prefetcht0 [{", $panel, "} + 8192 + ", $line, "]\n"),*)
    };
}

/// One block of rows times the panels that lie one behind the other, as many as there are sums: two tiles of sums for each. The tiles of one
/// panel are stored while the next is multiplied.
///
/// # Safety
/// Tiles are [`TileShapes::of_block`] of the block's rows. `x` is `steps` steps of it, one or more; so is each panel.
#[inline(always)]
pub(crate) unsafe fn one_block(
    steps: usize,
    x: *const bf16,
    panels: *const bf16,
    sums: &mut [[f32; 2 * SUMS]],
) {
    debug_assert!(steps > 0);
    if sums.is_empty() {
        return;
    }
    // SAFETY: reads what the caller promises, writes the sums.
    unsafe {
        asm!(
            "3:",
            "mov {next}, {x}",
            "mov {left}, {steps}",
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm2, [{next} + {row}*1]",
            "tileloadd tmm4, [{panel} + {row}*2]",
            "tdpbf16ps tmm0, tmm2, tmm4",
            "tileloadd tmm5, [{panel} + {row}*2 + 64]",
            "tdpbf16ps tmm1, tmm2, tmm5",
            ahead!("panel"),
            "add {next}, 1024",
            "add {panel}, 2048",
            "dec {left}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 1024], tmm1",
            "add {sums}, 2048",
            "dec {panels}",
            "jnz 3b",
            row = in(reg) 64_usize,
            x = in(reg) x,
            next = out(reg) _,
            steps = in(reg) steps,
            left = out(reg) _,
            panel = inout(reg) panels => _,
            panels = inout(reg) sums.len() => _,
            sums = inout(reg) sums.as_mut_ptr() => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Memory that will be read soon: so many lines of it are asked for in each step. Nothing has to be there.
#[derive(Clone, Copy)]
pub(crate) struct Soon {
    pub(crate) from: *const bf16,
    /// One or more.
    pub(crate) lines: usize,
}

/// Adds to the sums of two blocks, a full one and one of `rows` rows, some steps of one panel: two tiles of the first block, then the
/// second's.
///
/// # Safety
/// The machine [granted] it. `x` are `steps` steps of a block each; so is the panel; `rows` is 1 to [`TILE`].
pub(crate) unsafe fn two_blocks(
    rows: usize,
    steps: usize,
    x: [*const bf16; 2],
    panel: *const bf16,
    soon: Soon,
    sums: &mut [f32; 4 * SUMS],
) {
    debug_assert!(soon.lines > 0);
    let config = config([TILE, TILE, rows, rows, TILE, rows, TILE, TILE]);
    // SAFETY: reads what the caller promises and the config, writes the sums.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tileloadd tmm0, [{sums} + {row}*1]",
            "tileloadd tmm1, [{sums} + {row}*1 + 1024]",
            "tileloadd tmm2, [{sums} + {row}*1 + 2048]",
            "tileloadd tmm3, [{sums} + {row}*1 + 3072]",
            "2:",
            "tileloadd tmm4, [{first} + {row}*1]",
            "tileloadd tmm6, [{panel} + {row}*2]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{panel} + {row}*2 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "mov {left}, {lines}",
            "3:",
            "prefetcht1 [{soon}]",
            "add {soon}, 64",
            "dec {left}",
            "jnz 3b",
            "tileloadd tmm5, [{second} + {row}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {first}, 1024",
            "add {second}, 1024",
            "add {panel}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 1024], tmm1",
            "tilestored [{sums} + {row}*1 + 2048], tmm2",
            "tilestored [{sums} + {row}*1 + 3072], tmm3",
            "tilerelease",
            config = in(reg) &raw const config,
            row = in(reg) 64_usize,
            first = inout(reg) x[0] => _,
            second = inout(reg) x[1] => _,
            panel = inout(reg) panel => _,
            soon = inout(reg) soon.from => _,
            lines = in(reg) soon.lines,
            left = out(reg) _,
            steps = inout(reg) steps => _,
            sums = in(reg) sums.as_mut_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// The tiles of this thread have the shapes that one of this file's functions needs, until this is dropped.
pub(crate) struct TileShapes(());

impl TileShapes {
    /// For [`one_block`] of so many rows, 1 to [`TILE`].
    ///
    /// # Safety
    /// The machine [granted] it; no other function of this file but that is called before the drop.
    pub(crate) unsafe fn of_block(rows: usize) -> TileShapes {
        debug_assert!((1..=TILE).contains(&rows));
        // SAFETY: the caller's promise.
        unsafe { TileShapes::load(&config([rows, rows, rows, rows, TILE, TILE, TILE, TILE])) }
    }

    /// For [`products_of_bytes`] of so many rows, 1 to [`TILE`].
    ///
    /// # Safety
    /// As for [`TileShapes::of_block`].
    pub(crate) unsafe fn of_bytes(rows: usize) -> TileShapes {
        debug_assert!((1..=TILE).contains(&rows));
        let (sums, activations, weights) = ((rows, 64), (rows, 32), (8, 64));
        let mut config = config([TILE; 8]);
        for (tile, (rows, bytes)) in
            [sums, sums, activations, activations, weights, weights].into_iter().enumerate()
        {
            (config.rows[tile], config.row_bytes[tile]) = (rows as u8, bytes);
        }
        // SAFETY: the caller's promise.
        unsafe { TileShapes::load(&config) }
    }

    /// # Safety
    /// The machine [granted] it.
    unsafe fn load(config: &Config) -> TileShapes {
        // SAFETY: reads the config.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack)) };
        TileShapes(())
    }
}

impl Drop for TileShapes {
    fn drop(&mut self) {
        // SAFETY: undoes what `load` did.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Whole-numbered dot products of one step: some rows by 16 outputs for each of its two blocks of 32 inputs, [`SUMS`] apart.
///
/// # Safety
/// Tiles are [`TileShapes::of_bytes`] of `rows`. `x` is `[2][rows][32]` signed bytes; `weights` are `[2][8][16]` words, four signed bytes
/// each; `dots` has room for two tiles.
#[inline(always)]
pub(crate) unsafe fn products_of_bytes(rows: usize, x: *const u8, weights: *const u8, dots: *mut u32) {
    // SAFETY: reads what the caller promises, writes the dot products.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm2, [{x} + {half}*1]",
            "tileloadd tmm4, [{weights} + {half}*2]",
            "tdpbssd tmm0, tmm2, tmm4",
            "tileloadd tmm3, [{second} + {half}*1]",
            "tileloadd tmm5, [{weights} + {half}*2 + 512]",
            "tdpbssd tmm1, tmm3, tmm5",
            "tilestored [{dots} + {half}*2], tmm0",
            "tilestored [{dots} + {half}*2 + 1024], tmm1",
            x = in(reg) x,
            second = in(reg) x.wrapping_add(32 * rows),
            weights = in(reg) weights,
            half = in(reg) 32_usize,
            dots = in(reg) dots,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
            options(nostack),
        );
    }
}
