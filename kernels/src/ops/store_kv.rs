//! store_kv: writes the keys and values of each row into the slot of its own position, rounded to the cache's type. In int8 the largest
//! element of a token's key, or value, of a head becomes 127 or -127; so its numbers are the token's own.

use crate::memory::{BlockId, KvCache, KvShape, Pages, Rows, SharedMut, View};
use crate::simd::{Kernel, Simd, dispatch};
use crate::{Lane, Op};
use half::bf16;

/// Stores the rows' `k` and `v` (`kv_heads * head_dim` columns each) in `layer`.
///
/// # Panics
/// If shapes do not fit, a block or layer does not exist, or two rows have one slot.
pub fn store_kv(lane: &Lane, k: View<'_>, v: View<'_>, kv: &mut KvCache, layer: usize, rows: Rows<'_>) {
    let shape = *kv.shape();
    let expected = (rows.positions.len(), shape.kv_heads * shape.head_dim);
    assert_eq!((k.rows(), k.cols()), expected, "store_kv: shape of k");
    assert_eq!((v.rows(), v.cols()), expected, "store_kv: shape of v");
    assert_eq!(rows.table_of.len(), expected.0, "store_kv: length of table_of");
    // Every worker walks all rows but writes only its heads: no two write the same page, whatever the slots are.
    let pages = match kv.pages_mut() {
        Pages::F32 { k, v } => SharedPages::F32(SharedMut::new(k), SharedMut::new(v)),
        Pages::Bf16 { k, v } => SharedPages::Bf16(SharedMut::new(k), SharedMut::new(v)),
        Pages::Int8 { k, v, k_scales, v_scales } => SharedPages::Int8 {
            keys: SharedMut::new(k),
            values: SharedMut::new(v),
            scales: [SharedMut::new(k_scales), SharedMut::new(v_scales)],
        },
    };
    let isa = lane.supported();
    lane.for_each(Op::StoreKv, shape.kv_heads, expected.0 * shape.head_dim, |head, _| {
        let columns = head * shape.head_dim..(head + 1) * shape.head_dim;
        for r in 0..expected.0 {
            let (block, slot) = rows.slot(r, shape.block_size);
            let (k, v) = (&k.row(r)[columns.clone()], &v.row(r)[columns.clone()]);
            let at = Slot { shape: &shape, layer, block, head, slot };
            match pages {
                SharedPages::F32(keys, values) => dispatch(isa, Rounded::<_, 1> { at, keys, values, k, v }),
                SharedPages::Bf16(keys, values) => dispatch(isa, Rounded::<_, 2> { at, keys, values, k, v }),
                SharedPages::Int8 { keys, values, scales } => at.write_int8(keys, values, scales, k, v),
            }
        }
    });
}

#[derive(Clone, Copy)]
enum SharedPages<'a> {
    F32(SharedMut<'a, f32>, SharedMut<'a, f32>),
    Bf16(SharedMut<'a, bf16>, SharedMut<'a, bf16>),
    Int8 {
        keys: SharedMut<'a, u32>,
        values: SharedMut<'a, i8>,
        /// Of keys and of values.
        scales: [SharedMut<'a, f32>; 2],
    },
}

/// Where one head of one row goes.
struct Slot<'a> {
    shape: &'a KvShape,
    layer: usize,
    block: BlockId,
    head: usize,
    slot: usize,
}

impl Slot<'_> {
    fn write_int8(
        &self,
        keys: SharedMut<'_, u32>,
        values: SharedMut<'_, i8>,
        scales: [SharedMut<'_, f32>; 2],
        k: &[f32],
        v: &[f32],
    ) {
        let shape = self.shape;
        let page = shape.page(self.layer, self.block, self.head);
        let (k, v) = (Scaled::of(k), Scaled::of(v));
        for (scales, scale) in scales.into_iter().zip([k.scale, v.scale]) {
            // SAFETY: the page belongs to this head, and each head is one item, done once.
            let to = unsafe { scales.part(page * shape.block_size + self.slot, 1) };
            to[0] = scale;
        }
        let key_page = shape.block_size * shape.key_words();
        // SAFETY: as above.
        let keys = unsafe { keys.part(page * key_page, key_page) };
        for (column, four) in keys.chunks_exact_mut(shape.block_size).zip(k.numbers.chunks(4)) {
            let mut bytes = [128; 4];
            bytes.iter_mut().zip(four).for_each(|(byte, x)| *byte = k.number(*x).cast_unsigned() ^ 128);
            column[self.slot] = u32::from_le_bytes(bytes);
        }
        let value_dim = shape.value_dim();
        // SAFETY: as above.
        let value = unsafe { values.part((page * shape.block_size + self.slot) * value_dim, value_dim) };
        value.iter_mut().zip(v.numbers).for_each(|(y, x)| *y = v.number(*x));
    }
}

/// One head of one row, rounded to `T`. `PAIR`: how many elements of a key lie together (see [`KvCache`]).
struct Rounded<'a, T, const PAIR: usize> {
    at: Slot<'a>,
    keys: SharedMut<'a, T>,
    values: SharedMut<'a, T>,
    k: &'a [f32],
    v: &'a [f32],
}

impl<T: FloatKv, const PAIR: usize> Kernel for Rounded<'_, T, PAIR> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Slot { shape, layer, block, head, slot } = self.at;
        let page = shape.page(layer, block, head);
        let key_page = shape.block_size * shape.head_dim;
        // SAFETY: the page belongs to this head, and each head is one item, done once.
        let keys = unsafe { self.keys.part(page * key_page, key_page) };
        let mut vector = [T::default(); 16];
        let columns = keys.chunks_mut(shape.block_size * S::LANES);
        for (columns, k) in columns.zip(self.k.chunks(S::LANES)) {
            // SAFETY: the array holds 16, a vector at most that.
            unsafe { T::store(s, vector.as_mut_ptr(), s.load_some(k)) };
            let columns = columns.chunks_exact_mut(shape.block_size * PAIR);
            for (column, pair) in columns.zip(vector.chunks_exact(PAIR)) {
                column[slot * PAIR..(slot + 1) * PAIR].copy_from_slice(pair);
            }
        }
        let value_dim = shape.value_dim();
        // SAFETY: as above.
        let value = unsafe { self.values.part((page * shape.block_size + slot) * value_dim, value_dim) };
        for (value, v) in value.chunks_mut(S::LANES).zip(self.v.chunks(S::LANES)) {
            // SAFETY: the array holds 16, a vector at most that.
            unsafe { T::store(s, vector.as_mut_ptr(), s.load_some(v)) };
            value[..v.len()].copy_from_slice(&vector[..v.len()]);
        }
    }
}

/// What a cache holds that is not whole numbers.
trait FloatKv: Copy + Default {
    /// Rounds as [`Simd::store_bf16`].
    ///
    /// # Safety
    /// `at` is valid for writing a vector.
    unsafe fn store<S: Simd>(s: S, at: *mut Self, x: S::F);
}

impl FloatKv for f32 {
    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, at: *mut f32, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { s.store(at, x) }
    }
}

impl FloatKv for bf16 {
    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, at: *mut bf16, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { s.store_bf16(at, x) }
    }
}

/// Numbers that are to be whole ones of a scale: the largest becomes 127 or -127.
pub(super) struct Scaled<'a> {
    numbers: &'a [f32],
    pub(super) scale: f32,
    inverse: f32,
}

/// If all numbers are smaller they are zero: their inverse would be none.
const TINY: f32 = 1e-35;
/// Adding it rounds a small number to an integer, ties to even, which stands in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

impl Scaled<'_> {
    /// If one is not finite the scale is no number either.
    #[inline(always)]
    pub(super) fn of(numbers: &[f32]) -> Scaled<'_> {
        let largest = numbers.iter().fold(0, |most: u32, x| most.max(x.abs().to_bits()));
        let largest = f32::from_bits(largest);
        let scale = if largest.is_finite() { largest * (1.0 / 127.0) } else { f32::NAN };
        Scaled { numbers, scale, inverse: if largest > TINY { 127.0 / largest } else { 0.0 } }
    }

    /// One of them, as a whole number from -127 to 127.
    #[inline(always)]
    pub(super) fn number(&self, x: f32) -> i8 {
        (x * self.inverse + ROUND).to_bits() as i8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_half_a_step_and_what_is_not_finite_is_known_by_its_scale() {
        let numbers: Vec<f32> = (0..64).map(|i| ((i * i) as f32 * 0.7).sin() * 3.0).collect();
        let scaled = Scaled::of(&numbers);
        let largest = numbers.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        assert_eq!(scaled.scale, largest * (1.0 / 127.0));
        for x in &numbers {
            let found = f32::from(scaled.number(*x)) * scaled.scale;
            assert!((found - x).abs() <= scaled.scale * 0.501, "{x} {found}");
        }
        assert_eq!(numbers.iter().map(|x| scaled.number(*x).unsigned_abs()).max(), Some(127));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(Scaled::of(&[0.5, bad, 1.0]).scale.is_nan());
        }
        let zeros = Scaled::of(&[0.0, -0.0, 1e-40]);
        assert!(zeros.scale < 1e-37 && [0.0, 1e-40].iter().all(|x| zeros.number(*x) == 0));
    }
}
