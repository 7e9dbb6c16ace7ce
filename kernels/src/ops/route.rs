//! A mixture of experts (Shazeer et al. 2017) around its products, [`matmul_experts`](super::matmul_experts).
//!
//! route: the experts of each row: those of its largest logits, of equals the first ones, and what each one's output is weighed by.
//! sum_experts: the weighed outputs of each row's experts, added up in the order of the experts: so a row's sum does not depend on which
//! other rows went to which experts.
//! add_gated: `out += sigmoid(gate) * x`, row by row: an expert that all rows go to.

use super::matmul::Groups;
use super::write::Write;
use crate::memory::{SharedMut, View, ViewMut};
use crate::simd::{Kernel, Simd, dispatch};
use crate::{Lane, Op};

/// Which rows of a pass go to which experts. Everything is allocated once.
#[derive(Debug)]
pub struct Routing {
    experts: usize,
    /// Experts of a row.
    active: usize,
    /// Of each row its experts, ascending, and by what each is weighed: `active` of them.
    chosen: Vec<u32>,
    weights: Vec<f32>,
    /// Where among the rows of the groups each of these stands.
    places: Vec<u32>,
    /// As [`Groups`] has them.
    hit: Vec<u32>,
    starts: Vec<u32>,
    rows: Vec<u32>,
    /// Of each expert, where its next row stands.
    next: Vec<u32>,
}

impl Routing {
    /// Room for passes of up to `max_rows` rows, each of which goes to `active` of `experts`.
    ///
    /// # Panics
    /// If there are not so many, or none.
    #[must_use]
    pub fn new(max_rows: usize, experts: usize, active: usize) -> Routing {
        assert!((1..=experts).contains(&active), "routing: {active} of {experts} experts");
        let pairs = max_rows * active;
        Routing {
            experts,
            active,
            chosen: vec![0; pairs],
            weights: vec![0.0; pairs],
            places: vec![0; pairs],
            hit: Vec::with_capacity(experts),
            starts: Vec::with_capacity(experts + 1),
            rows: vec![0; pairs],
            next: vec![0; experts],
        }
    }

    /// Bytes that [`Routing::new`] will allocate, for planning.
    #[must_use]
    pub fn bytes(max_rows: usize, experts: usize, active: usize) -> u64 {
        ((4 * max_rows * active + 3 * experts + 1) * size_of::<u32>()) as u64
    }

    /// The groups, expert by expert, in batches of no more than `most` rows, or of one expert that has more.
    pub fn batches(&self, most: usize) -> impl Iterator<Item = Groups<'_>> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let start = *self.starts.get(first).filter(|_| first < self.hit.len())?;
            let fits = |end: &usize| (self.starts[*end] - start) as usize <= most;
            let end = (first + 2..=self.hit.len()).take_while(fits).last().unwrap_or(first + 1);
            let groups = Groups {
                experts: &self.hit[first..end],
                starts: &self.starts[first..=end],
                rows: &self.rows[start as usize..self.starts[end] as usize],
            };
            first = end;
            Some(groups)
        })
    }

    /// Counts the rows of each expert, and gives each a place: experts in their order, and in each the rows in theirs.
    fn group(&mut self, rows: usize) {
        let Routing { active, chosen, places, hit, starts, next, .. } = self;
        let chosen = &chosen[..rows * *active];
        next.fill(0);
        chosen.iter().for_each(|expert| next[*expert as usize] += 1);
        hit.clear();
        starts.clear();
        let mut start = 0;
        for (expert, next) in next.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            hit.push(expert as u32);
            starts.push(start);
            start += std::mem::replace(next, start);
        }
        starts.push(start);
        for (pair, expert) in chosen.iter().enumerate() {
            let place = &mut next[*expert as usize];
            places[pair] = *place;
            self.rows[*place as usize] = (pair / *active) as u32;
            *place += 1;
        }
    }
}

/// Chooses the experts of each row by its `logits`, of which there may be more columns than experts. A row's weights are the softmax over all
/// experts; `renormed`: over those that were chosen.
///
/// # Panics
/// If there are fewer columns than experts, or more rows than there is room for.
pub fn route(lane: &Lane, logits: View<'_>, renormed: bool, to: &mut Routing) {
    let (rows, experts, active) = (logits.rows(), to.experts, to.active);
    assert!(logits.cols() >= experts, "route: {} logits for {experts} experts", logits.cols());
    assert!(rows * active <= to.chosen.len(), "route: {rows} rows, more than there is room for");
    let (chosen, weights) = (SharedMut::new(&mut to.chosen), SharedMut::new(&mut to.weights));
    lane.for_each(Op::Route, rows, experts * 4, |row, _| {
        // SAFETY: each row is one item, done once.
        let (chosen, weights) =
            unsafe { (chosen.part(row * active, active), weights.part(row * active, active)) };
        choose(&logits.row(row)[..experts], renormed, chosen, weights);
    });
    to.group(rows);
}

/// One row.
fn choose(logits: &[f32], renormed: bool, chosen: &mut [u32], weights: &mut [f32]) {
    // What is no number is the last to be chosen.
    let key =
        |expert: u32| Some(logits[expert as usize]).filter(|x| !x.is_nan()).unwrap_or(f32::NEG_INFINITY);
    let mut count = 0;
    for expert in 0..logits.len() as u32 {
        let place = chosen[..count].partition_point(|other| key(*other) >= key(expert));
        if place < chosen.len() {
            count = (count + 1).min(chosen.len());
            chosen[place..count].rotate_right(1);
            chosen[place] = expert;
        }
    }
    let most = chosen.first().map_or(0.0, |best| logits[*best as usize]);
    chosen.sort_unstable();
    for (weight, expert) in weights.iter_mut().zip(&*chosen) {
        *weight = (logits[*expert as usize] - most).exp();
    }
    let sum: f32 = match renormed {
        true => weights.iter().sum(),
        false => logits.iter().map(|logit| (logit - most).exp()).sum(),
    };
    weights.iter_mut().for_each(|weight| *weight /= sum);
}

/// To each row of `out` adds the rows of `x`, those of the groups, that are its own, each weighed. Batches follow one another as
/// [`Routing::batches`] has them; only the first may replace.
///
/// # Panics
/// If shapes do not fit.
pub fn sum_experts(
    lane: &Lane,
    x: View<'_>,
    groups: Groups<'_>,
    routing: &Routing,
    out: ViewMut<'_>,
    write: Write,
) {
    assert_eq!((x.rows(), x.cols()), (groups.len(), out.cols()), "sum_experts: shape of x");
    let (active, first) = (routing.active, groups.starts.first().copied().unwrap_or_default());
    let (rows, cols, isa) = (out.rows(), out.cols(), lane.supported());
    let out = out.share();
    lane.for_each(Op::SumExperts, rows, cols * active / 8, |row, _| {
        // SAFETY: each row is one item, done once.
        let out = unsafe { out.row(row) };
        if write == Write::Replace {
            out.fill(0.0);
        }
        let pairs = row * active..(row + 1) * active;
        for (place, weight) in routing.places[pairs.clone()].iter().zip(&routing.weights[pairs]) {
            if let Some(place) = place.checked_sub(first).filter(|place| (*place as usize) < x.rows()) {
                dispatch(isa, AddScaled { x: x.row(place as usize), scale: *weight, out: &mut *out });
            }
        }
    });
}

/// Adds `sigmoid(gates[r][0]) * x[r]` to each row of `out`.
///
/// # Panics
/// If shapes do not fit.
pub fn add_gated(lane: &Lane, gates: View<'_>, x: View<'_>, out: ViewMut<'_>) {
    assert_eq!((x.rows(), x.cols()), (out.rows(), out.cols()), "add_gated: shape of x");
    assert_eq!((gates.rows(), gates.cols()), (out.rows(), 1), "add_gated: a gate for each row");
    let (rows, cols, isa) = (out.rows(), out.cols(), lane.supported());
    let out = out.share();
    lane.for_each(Op::AddGated, rows, cols / 8, |row, _| {
        let scale = 1.0 / (1.0 + (-gates.row(row)[0]).exp());
        // SAFETY: each row is one item, done once.
        dispatch(isa, AddScaled { x: x.row(row), scale, out: unsafe { out.row(row) } });
    });
}

/// `out += scale * x`.
struct AddScaled<'a> {
    x: &'a [f32],
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        for (x, out) in self.x.chunks(S::LANES).zip(self.out.chunks_mut(S::LANES)) {
            let sum = s.mul_add(scale, s.load_some(x), s.load_some(out));
            s.store_some(out, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_those_of_the_largest_logits_and_weighed_by_their_softmax() {
        let logits = [0.0, 2.0_f32.ln(), f32::NAN, 5.0_f32.ln(), 2.0_f32.ln()];
        let (mut chosen, mut weights) = ([9; 2], [0.0; 2]);
        choose(&logits[3..], true, &mut chosen, &mut weights);
        assert_eq!(chosen, [0, 1]);
        choose(&logits, true, &mut chosen, &mut weights);
        // Of two equals the first one.
        assert_eq!(chosen, [1, 3]);
        assert!(
            (weights[0] - 2.0 / 7.0).abs() < 1e-6 && (weights[1] - 5.0 / 7.0).abs() < 1e-6,
            "{weights:?}"
        );
        choose(&[logits[0], logits[1], logits[3], logits[4]], false, &mut chosen, &mut weights);
        assert_eq!(chosen, [1, 2]);
        assert!((weights[0] - 0.2).abs() < 1e-6 && (weights[1] - 0.5).abs() < 1e-6, "{weights:?}");
        let mut all = [0; 5];
        choose(&logits, true, &mut all, &mut [0.0; 5]);
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn batches_are_whole_experts_in_order_with_every_row_of_each() {
        let mut routing = Routing::new(4, 6, 2);
        routing.chosen.copy_from_slice(&[1, 4, 0, 4, 4, 5, 1, 4]);
        routing.group(4);
        let batches = |most| -> Vec<(Vec<u32>, Vec<u32>)> {
            routing.batches(most).map(|groups| (groups.experts.to_vec(), groups.rows.to_vec())).collect()
        };
        assert_eq!(batches(100), [(vec![0, 1, 4, 5], vec![1, 0, 3, 0, 1, 2, 3, 2])]);
        let three = [(vec![0, 1], vec![1, 0, 3]), (vec![4], vec![0, 1, 2, 3]), (vec![5], vec![2])];
        assert_eq!(batches(3), three);
        assert_eq!(routing.places, [1, 3, 0, 4, 5, 7, 2, 6]);
        routing.group(1);
        assert_eq!(routing.batches(1).map(|groups| groups.len()).collect::<Vec<_>>(), [1, 1]);
    }
}
