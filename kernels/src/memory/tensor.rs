//! Activations: rows of f32, views of some rows and columns of them, and slices that several workers write, each its
//! own part.

use super::Buffer;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of f32 activations, allocated once for as many rows as a pass may have.
pub struct Tensor {
    data: Buffer<f32>,
    capacity: usize,
    cols: usize,
}

impl Tensor {
    /// `capacity` rows of `cols` zeros.
    ///
    /// # Panics
    /// If there is no memory: activations are small beside the weights, which are checked.
    #[must_use]
    pub fn zeros(capacity: usize, cols: usize) -> Tensor {
        match Buffer::zeroed(capacity.saturating_mul(cols), "activations") {
            Ok(data) => Tensor { data, capacity, cols },
            Err(error) => panic!("{error}"),
        }
    }

    /// As many rows of `cols` as `values` has.
    ///
    /// # Panics
    /// If `values` are not whole rows.
    #[must_use]
    pub fn from_rows(cols: usize, values: &[f32]) -> Tensor {
        assert!(
            cols > 0 && values.len().is_multiple_of(cols),
            "{} values are not rows of {cols}",
            values.len()
        );
        let mut tensor = Tensor::zeros(values.len() / cols, cols);
        tensor.data.copy_from_slice(values);
        tensor
    }

    /// Rows there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Elements of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`.
    ///
    /// # Panics
    /// Beyond the capacity.
    #[must_use]
    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }

    /// Row `r`, to write.
    ///
    /// # Panics
    /// Beyond the capacity.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.cols..(r + 1) * self.cols]
    }

    /// The first `rows` rows.
    ///
    /// # Panics
    /// Beyond the capacity.
    #[must_use]
    pub fn view(&self, rows: usize) -> View<'_> {
        View { data: &self.data[..rows * self.cols], rows, cols: self.cols, first: 0, stride: self.cols }
    }

    /// The first `rows` rows, to write.
    ///
    /// # Panics
    /// Beyond the capacity.
    pub fn view_mut(&mut self, rows: usize) -> ViewMut<'_> {
        let data = &mut self.data[..rows * self.cols];
        ViewMut { data, rows, cols: self.cols, first: 0, stride: self.cols }
    }
}

/// Some columns of the first rows of a tensor.
#[derive(Clone, Copy)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    /// Column of `data` where a row begins.
    first: usize,
    /// Elements from one row to the next.
    stride: usize,
}

impl<'a> View<'a> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`.
    ///
    /// # Panics
    /// Beyond the rows of the view.
    #[must_use]
    pub fn row(&self, r: usize) -> &'a [f32] {
        let start = r * self.stride + self.first;
        &self.data[start..start + self.cols]
    }

    /// The same rows, these columns of them: the k of a fused q|k|v, say.
    ///
    /// # Panics
    /// Beyond the columns of the view.
    #[must_use]
    pub fn columns(self, range: Range<usize>) -> View<'a> {
        let (first, cols) = narrow(self.first, self.cols, &range);
        View { first, cols, ..self }
    }
}

/// Some columns of the first rows of a tensor, to write.
pub struct ViewMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    first: usize,
    stride: usize,
}

impl<'a> ViewMut<'a> {
    /// Numbers as one row.
    #[must_use]
    pub fn of_row(data: &'a mut [f32]) -> ViewMut<'a> {
        let cols = data.len();
        ViewMut { data, rows: 1, cols, first: 0, stride: cols }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`, to write.
    ///
    /// # Panics
    /// Beyond the rows of the view.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        let start = r * self.stride + self.first;
        &mut self.data[start..start + self.cols]
    }

    /// The same, for a while.
    pub(crate) fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { data: &mut *self.data, ..*self }
    }

    /// The same, to read.
    pub(crate) fn as_view(&self) -> View<'_> {
        let ViewMut { ref data, rows, cols, first, stride } = *self;
        View { data, rows, cols, first, stride }
    }

    /// Row `to` becomes row `from`; panics beyond the rows of the view.
    pub(crate) fn copy_row(&mut self, from: usize, to: usize) {
        let [from, to] = [from, to].map(|r| r * self.stride + self.first);
        self.data.copy_within(from..from + self.cols, to);
    }

    /// The same rows, these columns of them.
    ///
    /// # Panics
    /// Beyond the columns of the view.
    #[must_use]
    pub fn columns(self, range: Range<usize>) -> ViewMut<'a> {
        let (first, cols) = narrow(self.first, self.cols, &range);
        ViewMut { first, cols, ..self }
    }

    /// All rows as one slice; panics if they are only some columns of a tensor.
    pub(crate) fn as_slice_mut(&mut self) -> &mut [f32] {
        assert_eq!(self.cols, self.stride, "rows that do not lie together");
        self.data
    }

    /// For workers that each write their own rows or columns.
    pub(crate) fn share(self) -> SharedRows<'a> {
        let ViewMut { data, rows, cols, first, stride } = self;
        SharedRows { data: SharedMut::new(data), rows, cols, first, stride }
    }
}

/// A mutable slice whose disjoint parts several workers may write at once.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedMut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<'_, T> {}

// SAFETY: it is a `&mut [T]` whose users promise (see `part`) never to overlap.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Where an element is, or would be.
    pub(crate) fn address(self, at: usize) -> *const T {
        self.start.wrapping_add(at)
    }

    /// `len` elements from `from`; panics out of bounds.
    ///
    /// # Safety
    /// No two parts that overlap may be alive at the same time.
    pub(crate) unsafe fn part(self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from.checked_add(len).is_some_and(|end| end <= self.len), "part out of bounds");
        // SAFETY: in bounds by the check above; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}

/// A [`ViewMut`] that several workers write at once.
#[derive(Clone, Copy)]
pub(crate) struct SharedRows<'a> {
    data: SharedMut<'a, f32>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    first: usize,
    stride: usize,
}

impl<'a> SharedRows<'a> {
    /// `len` elements of row `r` from column `from`.
    ///
    /// # Safety
    /// No two parts that overlap may be alive at the same time.
    pub(crate) unsafe fn part(self, r: usize, from: usize, len: usize) -> &'a mut [f32] {
        assert!(r < self.rows && from + len <= self.cols, "part out of bounds");
        // SAFETY: the caller's promise; parts of different rows or columns do not overlap, as a row is at most `stride`.
        unsafe { self.data.part(r * self.stride + self.first + from, len) }
    }

    /// Where an element is, to prefetch it.
    pub(crate) fn address(self, r: usize, column: usize) -> *const f32 {
        self.data.address(r * self.stride + self.first + column)
    }

    /// Row `r`.
    ///
    /// # Safety
    /// No two borrows of the same row may be alive at the same time.
    pub(crate) unsafe fn row(self, r: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.part(r, 0, self.cols) }
    }
}

fn narrow(first: usize, cols: usize, range: &Range<usize>) -> (usize, usize) {
    assert!(range.start <= range.end && range.end <= cols, "columns {range:?} of {cols}");
    (first + range.start, range.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_narrow_to_columns_of_the_first_rows() {
        let mut tensor = Tensor::from_rows(4, &[0., 1., 2., 3., 10., 11., 12., 13.]);
        let view = tensor.view(2).columns(1..4).columns(1..3);
        assert_eq!((view.rows(), view.cols()), (2, 2));
        assert_eq!(view.row(1), [12., 13.]);
        let mut writing = tensor.view_mut(2).columns(2..3);
        writing.row_mut(1)[0] = 7.0;
        assert_eq!(tensor.row(1), [10., 11., 7., 13.]);
    }

    #[test]
    #[should_panic(expected = "columns 2..5 of 4")]
    fn columns_beyond_the_row_are_refused() {
        let _ = Tensor::zeros(1, 4).view(1).columns(2..5);
    }
}
