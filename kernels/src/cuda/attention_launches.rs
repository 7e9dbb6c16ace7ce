//! Launches of attention, and how its work is cut into tiles of queries and splits of positions.

use super::KvElement;
use super::launch::{BLOCK_SIZE, Element, Launch, NOTHING, Ptr};

/// Most splits of a row's positions.
pub const ATTENTION_SPLITS: u32 = 16;
/// Splits of a row whose own position says how long they are.
const OWN_SPLITS: u32 = 8;
/// Shortest split, in positions.
const SHORTEST: u32 = 256;
/// Blocks of attention that an SM has room for at once.
const AT_ONCE: u32 = 2;
/// Queries of the largest tiles.
const MOST_QUERIES: u32 = 64;
/// Positions of a stage of the tensor-core kernel.
const POSITIONS: u32 = 64;

/// A tile of queries of one chunk, in device memory. A query is a head of a row: `row * group + head`, counted in the chunk and the
/// heads of one key head.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The chunk; [`NOTHING`] for padding.
    pub chunk: u32,
    /// Its first query.
    pub first_query: u32,
}

impl Tile {
    /// No tile: what a bucket is filled up with.
    pub const PADDING: Tile = Tile { chunk: NOTHING, first_query: 0 };

    /// Appends the tiles of chunks whose rows see so far, of each row the last position. All of a tile have splits of one length. Rows
    /// that leave later only leave tiles empty.
    pub fn cover<'r>(
        chunks: impl IntoIterator<Item = &'r [u32]>,
        plan: AttentionPlan,
        group: u32,
        queries: u32,
        out: &mut Vec<Tile>,
    ) {
        for (chunk, rows) in (0..).zip(chunks) {
            let mut first = 0;
            for alike in rows.chunk_by(|a, b| plan.split_of(a + 1) == plan.split_of(b + 1)) {
                let all = alike.len() as u32 * group;
                let tile = |tile| Tile { chunk, first_query: first + tile * queries };
                out.extend((0..all.div_ceil(queries)).map(tile));
                first += all;
            }
        }
    }
}

/// How positions are split: it depends on the longest context of a pass and on how many blocks there would be, in powers of two; or on each row's own
/// position, so that a row's sums never depend on who else is in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionPlan {
    /// Positions of a split, a multiple of 64; 0: each row's own.
    pub split: u32,
    /// Splits there are.
    pub splits: u32,
}

impl AttentionPlan {
    /// For passes whose rows see at most `longest` positions, and whose tiles go through so many [positions](AttentionPlan::positions), on so many SMs: as few
    /// splits as keep all SMs busy, for each is written and read again. On an H200 a tile in 16 splits took up to 2.4 times as long as whole.
    #[must_use]
    pub fn new(longest: u32, positions: u64, sms: u32) -> AttentionPlan {
        let of_a_block = positions / u64::from(AT_ONCE * sms.max(1));
        let mut split = SHORTEST;
        // Up to the next power of two, or half of that where it is near.
        while longest.div_ceil(split) > ATTENTION_SPLITS
            || split < longest && 3 * u64::from(split) < 2 * of_a_block
        {
            split *= 2;
        }
        AttentionPlan { split, splits: longest.div_ceil(split).max(1) }
    }

    /// Positions that the tiles of a chunk go through, if its rows have so many queries for a key head and see so far.
    #[must_use]
    pub fn positions(queries: u32, sees: u32, kv_heads: usize) -> u64 {
        u64::from(queries.div_ceil(MOST_QUERIES)) * u64::from(sees) * kv_heads as u64
    }

    /// Each row as its own position says, in sequences of at most `max_context`.
    #[must_use]
    pub fn of_rows(max_context: u32) -> AttentionPlan {
        AttentionPlan { split: 0, splits: max_context.div_ceil(SHORTEST).clamp(1, OWN_SPLITS) }
    }

    /// Positions of a split of a row that sees so many: what kernels make of it.
    #[must_use]
    pub fn split_of(&self, sees: u32) -> u32 {
        let mut split = if self.split == 0 { SHORTEST } else { self.split };
        while self.split == 0 && split * self.splits < sees {
            split *= 2;
        }
        split
    }

    /// f32 of [`AttentionArgs::sums`].
    #[must_use]
    pub fn sums_len(&self, rows: usize, heads: usize, head_dim: usize) -> usize {
        rows * heads * self.splits as usize * head_dim
    }

    /// Pairs of f32 of [`AttentionArgs::stats`].
    #[must_use]
    pub fn stats_len(&self, rows: usize, heads: usize) -> usize {
        rows * heads * self.splits as usize
    }
}

/// Attention of all rows of a pass in one layer; the last block of a tile merges what its splits found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs {
    /// f32 `[rows][q_stride]`, rotated, heads side by side.
    pub q: Ptr,
    /// The layer's keys, as a [`KvElement`] says.
    pub keys: Ptr,
    /// The layer's values, likewise.
    pub values: Ptr,
    /// u32 `[chunk][table_stride]`: block ids.
    pub tables: Ptr,
    /// u32 per row.
    pub positions: Ptr,
    /// [`super::Chunk`]s.
    pub chunks: Ptr,
    /// [`Tile`]s.
    pub tiles: Ptr,
    /// The element's `[rows][heads * head_dim]`.
    pub out: Ptr,
    /// f32 `[rows][heads][splits][head_dim]`: workspace.
    pub sums: Ptr,
    /// f32 x 2 `[rows][heads][splits]`: workspace.
    pub stats: Ptr,
    /// f32 `[heads]`: a score more in every softmax, which has no value; or null.
    pub sinks: Ptr,
    /// u32 `[tiles][kv_heads]`: 0, and 0 again afterwards.
    pub tickets: Ptr,
    /// f32 between rows of `q`.
    pub q_stride: u32,
    /// Blocks of a table.
    pub table_stride: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Positions that a row sees, its own included; 0: all.
    pub window: u32,
    /// No row behind it sees a position before this one; at most 1 beside a window.
    pub first: u32,
    /// Positions of a split; 0: each row's own.
    pub split: u32,
    /// Splits there are, of a row at most.
    pub splits: u32,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores, so scaled, are at most this large: `cap tanh(score / cap)`; 0: no cap.
    pub soft_cap: f32,
}

impl AttentionArgs {
    /// Whether tensor cores have a kernel for it; the plain one, which takes any head of up to 256, is slow.
    #[must_use]
    pub fn on_tensor_cores(element: Element, head_dim: u32) -> bool {
        element == Element::Bf16 && matches!(head_dim, 32 | 64 | 128)
    }

    /// Queries of the smallest tiles.
    pub const FEWEST_QUERIES: usize = 16;

    /// Queries of a tile where the largest chunk has `most` queries for a key head, rows times heads that share it, and tiles of the fewest would be so many
    /// `blocks`: where a GPU of so many SMs has all of them at once, larger tiles would leave SMs idle, and a warp with four times the work. The SMs are those of the GPU,
    /// whatever part of them a lane has: no number is to depend on that.
    #[must_use]
    pub fn tile_queries(element: Element, head_dim: u32, most: u32, (blocks, sms): (u32, u32)) -> u32 {
        match most {
            _ if blocks <= AT_ONCE * sms => Self::FEWEST_QUERIES as u32,
            17..=32 if Self::on_tensor_cores(element, head_dim) => 32,
            33.. if Self::on_tensor_cores(element, head_dim) => 64,
            _ => 16,
        }
    }

    /// Dynamic shared memory of a block with so many stages of such keys and values, in bytes.
    #[must_use]
    pub fn shared_bytes(element: Element, kv: KvElement, head_dim: u32, stages: u32) -> u32 {
        if !Self::on_tensor_cores(element, head_dim) {
            return 0;
        }
        let tile = 2 * POSITIONS * (head_dim + 8) * 2;
        let stages = match kv {
            KvElement::Element(_) => stages * tile,
            // What is worked on is a tile of bf16.
            KvElement::Fp8 => tile + stages * 2 * POSITIONS * (head_dim + 4),
        };
        stages.max(64 * (head_dim + 4) * 4 + 64 * 8)
    }

    /// How many stages of keys and values are under way where a block may have `most_shared` bytes: three, or two where three of 128
    /// elements of bf16 do not fit (the 99 KiB of compute capability 8.6, 8.9 and 12). None if not even they do.
    #[must_use]
    pub fn stages(element: Element, kv: KvElement, head_dim: u32, most_shared: u32) -> Option<u32> {
        let fits = |stages: &u32| Self::shared_bytes(element, kv, head_dim, *stages) <= most_shared;
        let counts: &[u32] = if head_dim == 128 && kv != KvElement::Fp8 { &[3, 2] } else { &[3] };
        counts.iter().copied().find(fits)
    }

    /// A block for a split of a tile and key head. `queries` is that of [`AttentionArgs::tile_queries`], `stages` that of
    /// [`AttentionArgs::stages`], on which no number depends.
    ///
    /// # Panics
    /// If a size is none of what the kernels take.
    #[must_use]
    pub fn launch(
        self,
        (element, kv): (Element, KvElement),
        queries: u32,
        stages: u32,
        tiles: u32,
    ) -> Launch<AttentionArgs> {
        let (dim, fp8) = (self.head_dim, kv == KvElement::Fp8);
        assert!(fp8 || kv == KvElement::Element(element), "attention: {kv:?} beside {element:?}");
        assert!(self.split.is_multiple_of(POSITIONS), "attention: splits of {}", self.split);
        assert!(dim <= 256, "attention: a head of {dim}");
        assert!(self.window == 0 || self.first <= 1, "attention: a window, and from {} on", self.first);
        assert!(self.heads.is_multiple_of(self.kv_heads), "attention: {} over {}", self.heads, self.kv_heads);
        let tensor = Self::on_tensor_cores(element, dim);
        let kernel = match (dim, queries) {
            (32, 16) if tensor && fp8 => "attention_mma_32_16_fp8",
            (32, 32) if tensor && fp8 => "attention_mma_32_32_fp8",
            (32, 64) if tensor && fp8 => "attention_mma_32_64_fp8",
            (64, 16) if tensor && fp8 => "attention_mma_64_16_fp8",
            (64, 32) if tensor && fp8 => "attention_mma_64_32_fp8",
            (64, 64) if tensor && fp8 => "attention_mma_64_64_fp8",
            (128, 16) if tensor && fp8 => "attention_mma_128_16_fp8",
            (128, 32) if tensor && fp8 => "attention_mma_128_32_fp8",
            (128, 64) if tensor && fp8 => "attention_mma_128_64_fp8",
            (128, 16) if tensor && stages == 2 => "attention_mma_128_16_two",
            (128, 32) if tensor && stages == 2 => "attention_mma_128_32_two",
            (128, 64) if tensor && stages == 2 => "attention_mma_128_64_two",
            (32, 16) if tensor => "attention_mma_32_16",
            (32, 32) if tensor => "attention_mma_32_32",
            (32, 64) if tensor => "attention_mma_32_64",
            (64, 16) if tensor => "attention_mma_64_16",
            (64, 32) if tensor => "attention_mma_64_32",
            (64, 64) if tensor => "attention_mma_64_64",
            (128, 16) if tensor => "attention_mma_128_16",
            (128, 32) if tensor => "attention_mma_128_32",
            (128, 64) if tensor => "attention_mma_128_64",
            (_, 16) if !tensor && fp8 => element.choose("attention_f32_fp8", "attention_bf16_fp8"),
            (_, 16) if !tensor => element.choose("attention_f32", "attention_bf16"),
            _ => panic!("attention: tiles of {queries} queries of {dim}"),
        };
        let mut launch = Launch::new(kernel, [self.splits, self.kv_heads, tiles], 128, self);
        launch.shared_bytes = Self::shared_bytes(element, kv, dim, stages);
        launch
    }
}

// Tiles of the plain kernel walk blocks of positions, those of the other whole blocks.
const _: () = assert!((POSITIONS as usize).is_multiple_of(BLOCK_SIZE));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_grow_with_the_context_and_never_exceed_their_number() {
        for longest in [1, 64, 256, 257, 4096, 4097, 32_768, 131_072] {
            let AttentionPlan { split, splits } = AttentionPlan::new(longest, u64::from(longest), 132);
            assert!((1..=ATTENTION_SPLITS).contains(&splits) && split * splits >= longest, "{longest}");
            assert!((splits - 1) * split < longest && split.is_power_of_two());
        }
        let of = |sequences: u64, longest: u32, others: u64| {
            let seen = u64::from(longest) + (sequences - 1) * others;
            AttentionPlan::new(longest, 8 * seen, 132).splits
        };
        // As measured: of eight key heads, 256 blocks and not 4,096.
        assert_eq!([1, 8, 16, 32, 64].map(|sequences| of(sequences, 4096, 4096)), [16, 4, 2, 1, 1]);
        assert_eq!([of(1, 4000, 0), of(64, 200, 200)], [16, 1]);
        // A long one among short ones is not left to few blocks, and a few of many that are alike leave no SM without.
        assert_eq!([of(32, 32_768, 256), of(20, 4096, 4096)], [16, 2]);
        assert_eq!(AttentionPlan::positions(65, 100, 8), 1600);
    }

    #[test]
    fn splits_of_a_rows_own_are_as_long_as_they_must_be() {
        for (max_context, splits) in [(1, 1), (256, 1), (257, 2), (2048, 8), (131_072, 8)] {
            let plan = AttentionPlan::of_rows(max_context);
            assert_eq!(plan, AttentionPlan { split: 0, splits }, "{max_context}");
            for sees in [1, 255, 256, 257, 2048, 2049, 70_000].map(|sees: u32| sees.min(max_context)) {
                let split = plan.split_of(sees);
                assert!(split.is_multiple_of(SHORTEST) && split * splits >= sees, "{sees} in {split}");
                assert!(split == SHORTEST || split / 2 * splits < sees, "{sees} in {split}");
            }
        }
    }

    #[test]
    fn tiles_are_small_where_blocks_are_few() {
        let queries = |most, blocks| AttentionArgs::tile_queries(Element::Bf16, 128, most, (blocks, 132));
        assert_eq!([(1, 1), (56, 32), (2048, 264)].map(|(most, blocks)| queries(most, blocks)), [16; 3]);
        assert_eq!([7, 32, 33].map(|most| queries(most, 265)), [16, 32, 64]);
    }

    #[test]
    fn tiles_cover_every_query_once() {
        let cover = |plan, chunks: [Vec<u32>; 4]| {
            let mut tiles = Vec::new();
            Tile::cover(chunks.iter().map(Vec::as_slice), plan, 4, 16, &mut tiles);
            tiles.iter().map(|tile| (tile.chunk, tile.first_query)).collect::<Vec<(u32, u32)>>()
        };
        let plan = AttentionPlan::new(600, 600, 132);
        let chunks = [vec![0], vec![], (0..9).collect(), (4..9).collect()];
        assert_eq!(cover(plan, chunks), [(0, 0), (2, 0), (2, 16), (2, 32), (3, 0), (3, 16)]);
        // Rows from position 512 on have other splits: a tile ends before them.
        let plan = AttentionPlan { split: 0, splits: 2 };
        let chunks = [vec![511], vec![512], (510..517).collect(), (1020..1023).collect()];
        assert_eq!(cover(plan, chunks), [(0, 0), (1, 0), (2, 0), (2, 8), (2, 24), (3, 0)]);
    }
}
