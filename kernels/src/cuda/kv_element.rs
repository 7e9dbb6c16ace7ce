//! In what keys and values are held on a GPU, and how they lie there.

use super::{BLOCK_SIZE, Element};
use crate::Dtype;

/// What keys and values are held in. A layer's lie block after block, in each block key head after key head, in each head 16 positions of
/// `head_dim` numbers; in FP8 so many codes, then 16 scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvElement {
    /// As activations.
    Element(Element),
    /// Floating-point numbers of 8 bits (E4M3) with a scale for each token and head, f32, by which the largest of its numbers is 448.
    Fp8,
}

impl KvElement {
    /// That of a dtype of [`Dtype`]; none if GPUs hold no KV so.
    #[must_use]
    pub fn of(dtype: Dtype) -> Option<KvElement> {
        match dtype {
            Dtype::F32 => Some(KvElement::Element(Element::F32)),
            Dtype::Bf16 => Some(KvElement::Element(Element::Bf16)),
            Dtype::Fp8 => Some(KvElement::Fp8),
            Dtype::Int8 | Dtype::Int4 => None,
        }
    }

    /// The dtype that it is.
    #[must_use]
    pub fn dtype(self) -> Dtype {
        match self {
            KvElement::Element(element) => element.dtype(),
            KvElement::Fp8 => Dtype::Fp8,
        }
    }

    /// Bytes of a block's keys, or values, in one layer.
    #[must_use]
    pub fn block_bytes(self, kv_heads: usize, head_dim: usize) -> usize {
        let head = match self {
            KvElement::Element(element) => head_dim * element.bytes(),
            KvElement::Fp8 => head_dim + size_of::<f32>(),
        };
        BLOCK_SIZE * kv_heads * head
    }
}
