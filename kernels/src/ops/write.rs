//! Whether an op adds to what its output has.

/// What becomes of the old content of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwritten.
    Replace,
    /// Added to.
    Add,
}
