//! Numbers as they lie in a checkpoint, read piece by piece in the type that is wanted.

use super::buffer::Element;
use super::codes::{Codes, FourBitForm, FourBits};
use super::quantised_blocks::{Blocks, GROUP, Group};
use half::{bf16, f16};
use std::ops::Range;

/// In what a file stores numbers, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Single precision.
    F32,
    /// Upper half of single precision.
    Bf16,
    /// Half precision.
    F16,
}

impl Stored {
    /// Size of one, in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Stored::F32 => 4,
            Stored::Bf16 | Stored::F16 => 2,
        }
    }
}

/// Writes numbers from this one on, as many as there is room for. Several threads ask at once.
pub type Make<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

/// Row-major numbers of a checkpoint, in the type they are stored in.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Upper half of single precision.
    Bf16(&'a [bf16]),
    /// Half precision.
    F16(&'a [f16]),
    /// Bytes of a file, at any alignment: what is asked for is read there, nothing is copied in between.
    File(Stored, &'a [u8]),
    /// Whole blocks of quantised numbers in a file, widened where they are asked for. Bytes behind the last whole block are none of it.
    Blocks(Blocks, &'a [u8]),
    /// So many quantised numbers of another layout, widened where they are asked for.
    Codes(usize, &'a dyn Codes),
    /// So many numbers that are made when they are asked for.
    Made(usize, &'a Make<'a>),
    /// Some rows and columns of another source.
    Part(&'a Source<'a>, Slice),
    /// All rows of another source, in another order.
    Reordered(&'a Source<'a>, HeadRows),
}

/// Some rows and columns of a row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The first number.
    first: usize,
    rows: usize,
    cols: usize,
    /// Numbers from one row to the next.
    stride: usize,
}

impl Slice {
    /// These rows and columns of a matrix of `width` columns.
    ///
    /// # Panics
    /// If it has not so many columns.
    #[must_use]
    pub fn new(width: usize, rows: Range<usize>, cols: Range<usize>) -> Slice {
        assert!(cols.end <= width, "columns {cols:?} of {width}");
        Slice { first: rows.start * width + cols.start, rows: rows.len(), cols: cols.len(), stride: width }
    }
}

/// Rows of heads whose first rows are the rotary pairs, read in the order of heads whose halves make the pairs: what is not rotated stands
/// at the end of each half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRows {
    /// Numbers of a row.
    pub cols: usize,
    /// Rows of a head; even.
    pub head: usize,
    /// Rows of a head that are rotated, the first; even.
    pub rotated: usize,
    /// Pairs lie beside each other; else they are the halves of what is rotated.
    pub neighbours: bool,
}

impl HeadRows {
    /// Where a row lies.
    fn stored(self, row: usize) -> usize {
        let HeadRows { head, rotated, neighbours, .. } = self;
        let (within, half, pairs) = (row % head, head / 2, rotated / 2);
        let (place, second) = (within % half, within / half);
        let stored = match (place < pairs, neighbours) {
            (true, true) => 2 * place + second,
            (true, false) => place + second * pairs,
            (false, _) => rotated + place - pairs + second * (half - pairs),
        };
        row - within + stored
    }
}

/// The greatest that divides both.
fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Numbers that are made at a time.
const MADE: usize = 64;

/// Numbers that are looked at together, without a branch between them.
const LOOKED_AT: usize = 1024;

/// The first of `numbers` that is not `finite`.
fn first<T>(numbers: &[T], finite: impl Fn(&T) -> bool, value: impl Fn(&T) -> f32) -> Option<(usize, f32)> {
    let chunk =
        numbers.chunks(LOOKED_AT).position(|chunk| !chunk.iter().fold(true, |all, x| all & finite(x)))?;
    let begin = chunk * LOOKED_AT;
    let place = begin + numbers[begin..].iter().position(|x| !finite(x))?;
    Some((place, value(&numbers[place])))
}

impl Source<'_> {
    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Source::F32(x) => x.len(),
            Source::Bf16(x) => x.len(),
            Source::F16(x) => x.len(),
            Source::File(stored, x) => x.len() / stored.bytes(),
            Source::Blocks(blocks, x) => x.len() / blocks.bytes() * blocks.numbers(),
            Source::Codes(len, _) | Source::Made(len, _) => *len,
            Source::Part(_, slice) => slice.rows * slice.cols,
            Source::Reordered(whole, _) => whole.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size where they are, in bytes; numbers that are made, and codes, count as f32.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of_one = match self {
            Source::F32(_) | Source::Codes(..) | Source::Made(..) => 4,
            Source::Bf16(_) | Source::F16(_) => 2,
            Source::File(stored, _) => stored.bytes(),
            Source::Blocks(_, x) => return x.len() as u64,
            Source::Part(whole, _) | Source::Reordered(whole, _) => {
                return whole.bytes() * self.len() as u64 / whole.len().max(1) as u64;
            }
        };
        (self.len() * of_one) as u64
    }

    /// What the numbers of 4 bits are that [`Matrix`](crate::Matrix) holds in int4 as they are; `None` if they are not quantised where they
    /// are.
    ///
    /// # Errors
    /// They are quantised otherwise: how.
    #[must_use]
    pub fn four_bit_form(&self) -> Option<Result<FourBitForm, &'static str>> {
        match self {
            Source::Blocks(blocks, _) => Some(blocks.four_bit_form().ok_or("not of 4 bits")),
            Source::Codes(_, codes) => Some(codes.form()),
            Source::Reordered(whole, _) => whole.four_bit_form(),
            Source::Part(whole, Slice { first, cols, stride, .. }) => {
                let aligned = [first, cols, stride].iter().all(|size| size.is_multiple_of(GROUP));
                let own = |form| if aligned { Ok(form) } else { Err("cut within blocks of 32") };
                whole.four_bit_form().map(|form| form.and_then(own))
            }
            Source::F32(_) | Source::Bf16(_) | Source::F16(_) | Source::File(..) | Source::Made(..) => None,
        }
    }

    /// The 32 numbers from `from` on, if they are some of 4 bits with a scale in common.
    pub(crate) fn four_bits(&self, from: usize) -> Option<FourBits> {
        match self.stretch(from, GROUP)? {
            (Source::Codes(_, codes), from) if from.is_multiple_of(GROUP) => codes.four_bits(from),
            (Source::Codes(..), _) => None,
            (whole, from) => whole.group(from)?.four_bits(),
        }
    }

    /// If all numbers are FP8 (E4M3): of how many inputs, from each multiple of that on, an output has a scale in common.
    #[must_use]
    pub fn fp8_run(&self) -> Option<usize> {
        match self {
            Source::Codes(_, codes) => codes.fp8_run(),
            Source::Reordered(whole, _) => whole.fp8_run(),
            Source::Part(whole, Slice { first, cols, stride, .. }) => {
                let run = whole.fp8_run()?;
                Some(if run >= *stride { *cols } else { greatest_common_divisor(run, first % stride) })
            }
            _ => None,
        }
    }

    /// The codes of so many numbers of an output from `from` on, and the scale that they have in common, if they are FP8.
    pub(crate) fn fp8(&self, from: usize, len: usize) -> Option<(&[u8], f32)> {
        let (Source::Codes(_, codes), from) = self.stretch(from, len)? else { return None };
        codes.fp8(from, len)
    }

    /// The group that the 32 numbers from `from` on are, if they are one of a GGUF file's.
    pub(crate) fn group(&self, from: usize) -> Option<Group<'_>> {
        let (Source::Blocks(blocks, x), from) = self.stretch(from, GROUP)? else { return None };
        if !from.is_multiple_of(GROUP) {
            return None;
        }
        let (place, group) = (from / blocks.numbers(), from % blocks.numbers() / GROUP);
        let block = x.get(place * blocks.bytes()..(place + 1) * blocks.bytes())?;
        Some(Group { blocks: *blocks, block, group })
    }

    /// What the `len` numbers from `from` on are a part of, if they lie together there, and where.
    fn stretch(&self, from: usize, len: usize) -> Option<(&Source<'_>, usize)> {
        let within = |cols: usize| from % cols + len <= cols;
        match self {
            Source::Reordered(whole, order) if within(order.cols) => {
                whole.stretch(order.stored(from / order.cols) * order.cols + from % order.cols, len)
            }
            Source::Part(whole, Slice { first, cols, stride, .. }) if within(*cols) => {
                whole.stretch(first + from / cols * stride + from % cols, len)
            }
            Source::Reordered(..) | Source::Part(..) => None,
            _ => Some((self, from)),
        }
    }

    /// The first that is infinite or no number, with its place; none of those that are made, or of codes, is.
    #[must_use]
    pub fn first_not_finite(&self) -> Option<(usize, f32)> {
        self.not_finite_in(0..self.len())
    }

    fn not_finite_in(&self, range: Range<usize>) -> Option<(usize, f32)> {
        let begin = range.start;
        let (place, value) = match self {
            Source::F32(x) => first(&x[range], |x| x.is_finite(), |x| *x),
            Source::Bf16(x) => first(&x[range], |x| x.is_finite(), |x| x.to_f32()),
            Source::F16(x) => first(&x[range], |x| x.is_finite(), |x| x.to_f32()),
            Source::File(stored, x) => {
                let x = &x[range.start * stored.bytes()..range.end * stored.bytes()];
                match stored {
                    Stored::F32 => {
                        let of = |x: &[u8; 4]| f32::from_le_bytes(*x);
                        first(x.as_chunks().0, |x| of(x).is_finite(), of)
                    }
                    Stored::Bf16 => {
                        let of = |x: &[u8; 2]| bf16::from_le_bytes(*x);
                        first(x.as_chunks().0, |x| of(x).is_finite(), |x| of(x).to_f32())
                    }
                    Stored::F16 => {
                        let of = |x: &[u8; 2]| f16::from_le_bytes(*x);
                        first(x.as_chunks().0, |x| of(x).is_finite(), |x| of(x).to_f32())
                    }
                }
            }
            Source::Blocks(blocks, x) => {
                // Those of a block go bad together.
                let (numbers, bytes) = (blocks.numbers(), blocks.bytes());
                return (range.start / numbers..range.end.div_ceil(numbers)).find_map(|block| {
                    let value = blocks.scale_not_finite(&x[block * bytes..(block + 1) * bytes])?;
                    Some(((block * numbers).max(range.start), value))
                });
            }
            Source::Codes(..) | Source::Made(..) => None,
            Source::Reordered(whole, order) => {
                let cols = order.cols;
                return (range.start / cols..range.end.div_ceil(cols)).find_map(|row| {
                    let (at, stored) = (row * cols, order.stored(row) * cols);
                    let (start, end) = (range.start.max(at) - at, range.end.min(at + cols) - at);
                    let (place, value) = whole.not_finite_in(stored + start..stored + end)?;
                    Some((at + place - stored, value))
                });
            }
            Source::Part(whole, Slice { first, rows, cols, stride }) => {
                return (0..*rows).find_map(|row| {
                    let start = first + row * stride;
                    let (place, value) = whole.not_finite_in(start..start + cols)?;
                    Some((row * cols + place - start, value))
                });
            }
        }?;
        Some((begin + place, value))
    }

    /// Copies numbers from `from` on, as many as `to` takes.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn read_f32(&self, from: usize, to: &mut [f32]) {
        self.read(from, to);
    }

    /// Copies numbers from `from`, as many as `to` takes, in its type.
    pub(crate) fn read<T: FromSource>(&self, from: usize, to: &mut [T]) {
        let range = from..from + to.len();
        match self {
            Source::F32(x) => convert(to, &x[range], |x| T::from_f32(*x)),
            Source::Bf16(x) => convert(to, &x[range], |x| T::from_bf16(*x)),
            Source::F16(x) => convert(to, &x[range], |x| T::from_f32(x.to_f32())),
            Source::File(stored, x) => {
                let x = &x[range.start * stored.bytes()..range.end * stored.bytes()];
                match stored {
                    Stored::F32 => convert(to, x.as_chunks().0, |x| T::from_f32(f32::from_le_bytes(*x))),
                    Stored::Bf16 => convert(to, x.as_chunks().0, |x| T::from_bf16(bf16::from_le_bytes(*x))),
                    Stored::F16 => {
                        convert(to, x.as_chunks().0, |x| T::from_f32(f16::from_le_bytes(*x).to_f32()));
                    }
                }
            }
            Source::Blocks(blocks, x) => {
                let (mut rest, mut at) = (to, range.start);
                while !rest.is_empty() {
                    let (group, skipped) = (at / GROUP, at % GROUP);
                    let mut widened = [0.0; GROUP];
                    blocks.widen(x, group, &mut widened);
                    let (run, tail) = rest.split_at_mut((GROUP - skipped).min(rest.len()));
                    convert(run, &widened[skipped..], |x| T::from_f32(*x));
                    at += run.len();
                    rest = tail;
                }
            }
            Source::Reordered(whole, order) => {
                let (mut rest, mut at) = (to, range.start);
                while !rest.is_empty() {
                    let (row, col) = (at / order.cols, at % order.cols);
                    let (run, tail) = rest.split_at_mut((order.cols - col).min(rest.len()));
                    whole.read(order.stored(row) * order.cols + col, run);
                    at += run.len();
                    rest = tail;
                }
            }
            Source::Codes(len, codes) => {
                assert!(range.end <= *len, "numbers {range:?} of {len}");
                for (to, at) in to.chunks_mut(MADE).zip(range.step_by(MADE)) {
                    let mut widened = [0.0; MADE];
                    codes.widen(at, &mut widened[..to.len()]);
                    convert(to, &widened, |x| T::from_f32(*x));
                }
            }
            Source::Made(len, make) => {
                assert!(range.end <= *len, "numbers {range:?} of {len}");
                for (to, at) in to.chunks_mut(MADE).zip(range.step_by(MADE)) {
                    let mut made = [0.0; MADE];
                    make(at, &mut made[..to.len()]);
                    convert(to, &made, |x| T::from_f32(*x));
                }
            }
            Source::Part(whole, Slice { first, rows, cols, stride }) => {
                assert!(range.end <= rows * cols, "numbers {range:?} of {}", rows * cols);
                let (mut rest, mut at) = (to, range.start);
                while !rest.is_empty() {
                    // To the end of the row.
                    let (row, col) = (at / cols, at % cols);
                    let (run, tail) = rest.split_at_mut((cols - col).min(rest.len()));
                    whole.read(first + row * stride + col, run);
                    at += run.len();
                    rest = tail;
                }
            }
        }
    }
}

impl std::fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({} numbers, {} bytes)", self.len(), self.bytes())
    }
}

fn convert<S, T>(to: &mut [T], from: &[S], number: impl Fn(&S) -> T) {
    to.iter_mut().zip(from).for_each(|(y, x)| *y = number(x));
}

/// A type that numbers are stored in once loaded; rounded to nearest where it is narrower.
pub(crate) trait FromSource: Element {
    /// The zero of padding.
    const ZERO: Self;
    fn from_f32(x: f32) -> Self;
    fn from_bf16(x: bf16) -> Self;
}

impl FromSource for f32 {
    const ZERO: f32 = 0.0;

    fn from_f32(x: f32) -> f32 {
        x
    }

    fn from_bf16(x: bf16) -> f32 {
        x.to_f32()
    }
}

impl FromSource for bf16 {
    const ZERO: bf16 = bf16::ZERO;

    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }

    fn from_bf16(x: bf16) -> bf16 {
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_file_are_read_where_they_lie_at_any_alignment() {
        let values: Vec<f32> = (0..200).map(|i| (i as f32 - 90.0) / 8.0).collect();
        for stored in [Stored::F32, Stored::Bf16, Stored::F16] {
            let mut bytes = vec![0xAB];
            for x in &values {
                match stored {
                    Stored::F32 => bytes.extend(x.to_le_bytes()),
                    Stored::Bf16 => bytes.extend(bf16::from_f32(*x).to_le_bytes()),
                    Stored::F16 => bytes.extend(f16::from_f32(*x).to_le_bytes()),
                }
            }
            let source = Source::File(stored, &bytes[1..]);
            assert_eq!((source.len(), source.bytes()), (200, 200 * stored.bytes() as u64));
            let (mut wide, mut half) = ([0.0; 70], [bf16::ZERO; 70]);
            source.read_f32(33, &mut wide);
            source.read(33, &mut half);
            assert_eq!(wide, values[33..103]);
            assert_eq!(half.map(bf16::to_f32), values[33..103]);
        }
    }

    #[test]
    fn numbers_that_are_made_are_asked_for_by_their_place() {
        let make = |from: usize, to: &mut [f32]| {
            to.iter_mut().zip(from..).for_each(|(x, i)| *x = i as f32);
        };
        let source = Source::Made(300, &make);
        let mut read = [0.0; 150];
        source.read_f32(100, &mut read);
        assert!(read.iter().zip(100..).all(|(x, i)| *x == i as f32), "{read:?}");
    }

    #[test]
    fn parts_are_rows_and_columns_of_the_whole() {
        let values: Vec<f32> = (0..70).map(|i| i as f32).collect();
        let whole = Source::F32(&values);
        let part = Source::Part(&whole, Slice::new(10, 2..5, 3..7));
        assert_eq!((part.len(), part.bytes()), (12, 48));
        let mut read = [0.0; 9];
        part.read_f32(2, &mut read);
        assert_eq!(read, [25.0, 26.0, 33.0, 34.0, 35.0, 36.0, 43.0, 44.0, 45.0]);
        // A part of a part, to the last number.
        let narrow = Source::Part(&part, Slice::new(4, 1..3, 2..4));
        let mut read = [bf16::ZERO; 4];
        narrow.read(0, &mut read);
        assert_eq!(read.map(bf16::to_f32), [35.0, 36.0, 45.0, 46.0]);
    }

    #[test]
    fn quantised_numbers_are_read_from_any_place() {
        // Two blocks: a scale of 0.5 and of 2, and the bytes from 0 on.
        let block =
            |scale: f32| f16::from_f32(scale).to_le_bytes().into_iter().chain(0..32_u8).collect::<Vec<u8>>();
        let bytes = [block(0.5), block(2.0)].concat();
        let source = Source::Blocks(Blocks::Q8_0, &bytes);
        assert_eq!((source.len(), source.bytes(), source.first_not_finite()), (64, 68, None));
        let mut read = [0.0; 4];
        source.read_f32(30, &mut read);
        assert_eq!(read, [15.0, 15.5, 0.0, 2.0]);
        let part = Source::Part(&source, Slice::new(16, 1..3, 4..8));
        let mut read = [0.0; 8];
        part.read_f32(0, &mut read);
        assert_eq!(read, [10.0, 10.5, 11.0, 11.5, 8.0, 10.0, 12.0, 14.0]);
        assert_eq!(part.bytes(), 8);
        let bad = [block(0.5), block(f32::INFINITY)].concat();
        assert_eq!(Source::Blocks(Blocks::Q8_0, &bad).first_not_finite(), Some((32, f32::INFINITY)));
    }

    #[test]
    fn paired_rows_are_read_as_halves() {
        // Two heads of four rows, three numbers each; pairs of a head lie beside each other.
        let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let whole = Source::F32(&values);
        let order = HeadRows { cols: 3, head: 4, rotated: 4, neighbours: true };
        let source = Source::Reordered(&whole, order);
        let mut read = [0.0; 24];
        source.read_f32(0, &mut read);
        let rows: Vec<f32> = read.iter().step_by(3).map(|x| x / 3.0).collect();
        assert_eq!(rows, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        let mut across = [0.0; 4];
        source.read_f32(2, &mut across);
        assert_eq!(across, [2.0, 6.0, 7.0, 8.0]);
        let mut bad = values.clone();
        bad[7] = f32::NAN;
        let whole = Source::F32(&bad);
        let (place, _) = Source::Reordered(&whole, order).first_not_finite().unwrap();
        assert_eq!(place, 4);
    }

    #[test]
    fn rows_that_are_not_rotated_stand_behind_the_pairs_of_each_half() {
        let rows = |neighbours| {
            let order = HeadRows { cols: 1, head: 10, rotated: 4, neighbours };
            (10..20).map(|row| order.stored(row) - 10).collect::<Vec<usize>>()
        };
        assert_eq!(rows(true), [0, 2, 4, 5, 6, 1, 3, 7, 8, 9]);
        assert_eq!(rows(false), [0, 1, 4, 5, 6, 2, 3, 7, 8, 9]);
    }

    #[test]
    #[should_panic(expected = "numbers 11..13 of 12")]
    fn numbers_beyond_a_part_are_refused() {
        let whole = Source::F32(&[0.0; 70]);
        Source::Part(&whole, Slice::new(10, 2..5, 3..7)).read_f32(11, &mut [0.0; 2]);
    }

    #[test]
    #[should_panic(expected = "of 300")]
    fn numbers_beyond_the_last_are_refused() {
        Source::Made(300, &|_, _| {}).read_f32(299, &mut [0.0; 2]);
    }
}
