//! How what a model consists of is split over the ranks of a group.

use serde::Serialize;
use std::ops::Range;

/// The part of `total` things that `rank` of `ranks` has: parts are as large as the first, but for the last ones, which may be smaller or
/// empty.
#[must_use]
pub fn part(total: usize, rank: usize, ranks: usize) -> Range<usize> {
    let each = total.div_ceil(ranks.max(1));
    (rank * each).min(total)..((rank + 1) * each).min(total)
}

/// What of a model can be split over ranks. Layers cannot: every rank has a part of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Divisible {
    /// Layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// KV heads of a layer; divides `heads`.
    pub kv_heads: usize,
    /// Columns of a layer's MLP.
    pub columns: usize,
    /// Tokens of the vocabulary: rows of the embedding and of the LM head.
    pub tokens: usize,
}

/// What one rank has of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The rank.
    pub rank: usize,
    /// Ranks of the group.
    pub ranks: usize,
    /// Layers that it has a part of.
    pub layers: Range<usize>,
    /// Query heads.
    pub heads: Range<usize>,
    /// KV heads. Where ranks are more than these, several ranks hold the same one.
    pub kv_heads: Range<usize>,
    /// Columns of the MLP.
    pub columns: Range<usize>,
    /// Tokens of the vocabulary.
    pub tokens: Range<usize>,
}

impl Divisible {
    /// Whether it can be split over `ranks`.
    ///
    /// # Errors
    /// Says what does not divide.
    pub fn check(&self, ranks: usize) -> Result<(), String> {
        let Divisible { heads, kv_heads, columns, tokens, .. } = *self;
        if ranks == 0 {
            Err("no ranks are too few".to_owned())
        } else if !heads.is_multiple_of(ranks) {
            Err(format!("its {heads} heads cannot be split evenly over {ranks} ranks"))
        } else if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads.max(1)) {
            Err(format!(
                "its {kv_heads} KV heads can neither be split evenly over {ranks} ranks nor be held by equally many of them"
            ))
        } else if !columns.is_multiple_of(ranks) {
            Err(format!("its MLP's {columns} columns cannot be split evenly over {ranks} ranks"))
        } else if part(tokens, ranks - 1, ranks).is_empty() {
            Err(format!("a vocabulary of {tokens} leaves some of {ranks} ranks without a token"))
        } else {
            Ok(())
        }
    }

    /// The numbers of ranks up to `most` that it can be split over.
    pub fn ranks(&self, most: usize) -> impl Iterator<Item = usize> {
        (1..=most).filter(|ranks| self.check(*ranks).is_ok())
    }

    /// What `rank` of `ranks` has, where [`Divisible::check`] has nothing against them.
    #[must_use]
    pub fn share(&self, rank: usize, ranks: usize) -> Share {
        let kv_heads = if ranks <= self.kv_heads {
            part(self.kv_heads, rank, ranks)
        } else {
            let own = rank * self.kv_heads / ranks.max(1);
            own..own + 1
        };
        Share {
            rank,
            ranks,
            layers: 0..self.layers,
            heads: part(self.heads, rank, ranks),
            kv_heads,
            columns: part(self.columns, rank, ranks),
            tokens: part(self.tokens, rank, ranks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GQA: Divisible = Divisible { layers: 3, heads: 8, kv_heads: 2, columns: 96, tokens: 301 };

    #[test]
    fn parts_cover_all_in_order() {
        for total in 0..40 {
            for ranks in 1..9 {
                let all: Vec<usize> = (0..ranks).flat_map(|rank| part(total, rank, ranks)).collect();
                assert_eq!(all, (0..total).collect::<Vec<_>>());
            }
        }
        assert_eq!((part(10, 0, 4), part(10, 3, 4)), (0..3, 9..10));
    }

    #[test]
    fn what_does_not_divide_is_named() {
        assert_eq!(GQA.ranks(16).collect::<Vec<_>>(), [1, 2, 4, 8]);
        let refusal = |whole: Divisible, ranks| whole.check(ranks).unwrap_err();
        assert!(refusal(GQA, 3).contains("8 heads"));
        assert!(refusal(GQA, 0).contains("no ranks"));
        assert!(refusal(Divisible { heads: 6, kv_heads: 3, ..GQA }, 2).contains("3 KV heads"));
        assert!(refusal(Divisible { columns: 98, ..GQA }, 4).contains("98 columns"));
        assert!(refusal(Divisible { tokens: 5, ..GQA }, 4).contains("vocabulary of 5"));
    }

    #[test]
    fn more_ranks_than_kv_heads_share_them_by_their_query_heads() {
        let kv = |ranks| (0..ranks).map(|rank| GQA.share(rank, ranks).kv_heads).collect::<Vec<_>>();
        assert_eq!(kv(1), vec![0..2; 1]);
        assert_eq!(kv(2), [0..1, 1..2]);
        assert_eq!(kv(4), [0..1, 0..1, 1..2, 1..2]);
    }
}
