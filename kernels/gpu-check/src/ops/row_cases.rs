//! The ops that go row by row.

use super::case_bench::{Bench, in_fp8};
use super::reference::{Random, close, lane};
use faser_kernels::cuda::{
    ActivateArgs, BLOCK_SIZE, CompactRowsArgs, Element, EmbedArgs, GatherRowsArgs, KvElement, NOTHING, Ptr,
    QkvArgs, RmsNormArgs, SoftCapArgs, SpreadLogitsArgs,
};
use faser_kernels::ops::{
    self, Activation, Write, activate, compact_rows, gather_rows, rms_norm, rms_norm_heads, rope, soft_cap,
};
use faser_kernels::{Dtype, Isa, RopeScaling, RopeSpec, RopeTable, Source, Table, Tensor, Vector};

const ELEMENTS: [Element; 2] = [Element::F32, Element::Bf16];
/// Rows, columns.
const SHAPES: [(usize, usize); 6] = [(1, 1), (2, 15), (3, 64), (5, 259), (9, 128), (33, 300)];
/// Values that a kernel must not leave.
const UNSET: f32 = -1234.5;

/// What an element makes of an f32, as a relative error.
fn tolerance(element: Element) -> f64 {
    match element {
        Element::F32 => 1e-6,
        Element::Bf16 => 1.0 / 256.0 + 1e-6,
    }
}

/// Calls `test` for each element and order, with a lane of the CPU.
fn each(bench: &Bench<'_>, mut test: impl FnMut(Element, i32)) {
    for element in ELEMENTS {
        for order in bench.orders() {
            test(element, order);
        }
    }
}

/// All numbers of the first rows.
fn numbers_of(tensor: &Tensor, rows: usize) -> impl Iterator<Item = f64> {
    (0..rows).flat_map(|r| tensor.row(r)).map(|x| f64::from(*x))
}

pub(super) fn embed_is_the_cpus(bench: &Bench<'_>) {
    each(bench, |element, order| {
        for (rows, cols) in SHAPES {
            let mut random = Random::new(cols as u64);
            let values = random.numbers(50 * cols);
            let dtype = if element == Element::F32 { Dtype::F32 } else { Dtype::Bf16 };
            let table = Table::new(cols, Source::F32(&values), dtype).expect("memory");
            let tokens: Vec<u32> = (0..rows).map(|_| random.below(50) as u32).collect();
            let mut expected = Tensor::zeros(rows, cols);
            ops::embed(&lane(Isa::Portable, 1), &table, &tokens, 2.5, expected.view_mut(rows));
            let (stored, out) =
                (bench.elements(element, &values), bench.floats(&vec![UNSET; (rows + 1) * cols]));
            let args = EmbedArgs {
                table: stored.ptr(),
                tokens: bench.lasting(&tokens),
                out: out.ptr(),
                rows: bench.count(rows),
                cols: cols as u32,
                vocabulary: 50,
                first: 0,
                held: 50,
                scale: 2.5,
            };
            bench.run(&args.launch(element, rows as u32 + 1, 2), order);
            for r in 0..rows {
                assert_eq!(out.read()[r * cols..(r + 1) * cols], *expected.row(r), "{element:?}");
            }
            // A rank that has some of the tokens.
            let own = 20..31;
            let part = bench.elements(element, &values[own.start * cols..own.end * cols]);
            let (first, held) = (own.start as u32, own.len() as u32);
            bench.run(
                &EmbedArgs { table: part.ptr(), first, held, ..args }.launch(element, rows as u32, 2),
                order,
            );
            for (r, token) in tokens.iter().enumerate() {
                let row =
                    if own.contains(&(*token as usize)) { expected.row(r).to_vec() } else { vec![0.0; cols] };
                assert_eq!(out.read()[r * cols..(r + 1) * cols], row, "{element:?}, in parts");
            }
            assert!(
                out.read()[rows * cols..].iter().all(|x| *x == UNSET),
                "padding of the bucket was written"
            );
        }
    });
}

pub(super) fn an_unknown_token_is_nan(bench: &Bench<'_>) {
    let (table, out) = (bench.floats(&[1.0; 6]), bench.floats(&[0.0; 4]));
    let args = EmbedArgs {
        table: table.ptr(),
        tokens: bench.lasting(&[3u32, 2]),
        out: out.ptr(),
        rows: bench.count(2),
        cols: 2,
        vocabulary: 3,
        first: 0,
        held: 3,
        scale: 1.0,
    };
    bench.run(&args.launch(Element::F32, 2, 8), 0);
    assert!(out.read()[..2].iter().all(|x| x.is_nan()));
    assert_eq!(out.read()[2..], [1.0; 2]);
}

pub(super) fn rms_norm_is_the_cpus_and_adds_where_asked(bench: &Bench<'_>) {
    each(bench, |element, order| {
        for (rows, cols) in SHAPES {
            for write in [Write::Replace, Write::Add] {
                let mut random = Random::new(cols as u64 + 5);
                let (x, before) = (random.numbers(rows * cols), random.numbers(rows * cols));
                let weight = random.numbers(cols);
                let mut expected = Tensor::from_rows(cols, &before);
                let (numbers, weights) = (Tensor::from_rows(cols, &x), Vector::new(Source::F32(&weight)));
                let cpu = lane(Isa::Portable, 1);
                rms_norm(&cpu, numbers.view(rows), &weights, 1e-5, expected.view_mut(rows), write);
                let add = write == Write::Add;
                let element = if add { Element::F32 } else { element };
                let out = bench.elements(element, &before);
                let args = RmsNormArgs {
                    x: bench.lasting(&x),
                    weight: bench.lasting(&weight),
                    out: out.ptr(),
                    rows: bench.count(rows),
                    cols: cols as u32,
                    x_stride: cols as u32,
                    out_stride: cols as u32,
                    eps: 1e-5,
                };
                let launch =
                    if add { args.add(rows as u32, 1) } else { args.launch(element, rows as u32, 1) };
                bench.run(&launch, order);
                for (found, expected) in out.read().into_iter().zip(numbers_of(&expected, rows)) {
                    let size = expected.abs().max(if add { 1.0 } else { 0.0 });
                    close(found, expected, size, tolerance(element), "rms_norm");
                }
            }
        }
    });
}

pub(super) fn rows_are_normed_and_copied_into_wider_ones(bench: &Bench<'_>) {
    each(bench, |element, order| {
        for (rows, cols) in SHAPES {
            for normed in [true, false] {
                let mut random = Random::new(cols as u64 + 7);
                // From the last columns of wider rows to those of others.
                let (wide, wider) = (cols + 3, 2 * cols + 1);
                let (x, weight) = (random.numbers(rows * wide), random.numbers(cols));
                let (numbers, weights) = (Tensor::from_rows(wide, &x), Vector::new(Source::F32(&weight)));
                let mut expected = Tensor::from_rows(wider, &vec![UNSET; rows * wider]);
                let (from, to) = (3..wide, cols + 1..wider);
                if normed {
                    let (x, out) = (numbers.view(rows).columns(from), expected.view_mut(rows).columns(to));
                    rms_norm(&lane(Isa::Portable, 1), x, &weights, 1e-5, out, Write::Replace);
                } else {
                    for row in 0..rows {
                        expected.row_mut(row)[to.clone()].copy_from_slice(&numbers.row(row)[from.clone()]);
                    }
                }
                let out = bench.elements(element, &vec![UNSET; rows * wider]);
                let bytes = if element == Element::F32 { 4 } else { 2 };
                let args = RmsNormArgs {
                    x: Ptr(bench.lasting(&x).0 + 3 * 4),
                    weight: if normed { bench.lasting(&weight) } else { Ptr::NULL },
                    out: Ptr(out.ptr().0 + (cols as u64 + 1) * bytes),
                    rows: bench.count(rows),
                    cols: cols as u32,
                    x_stride: wide as u32,
                    out_stride: wider as u32,
                    eps: 1e-5,
                };
                bench.run(&args.launch(element, rows as u32, 1), order);
                for (found, expected) in out.read().into_iter().zip(numbers_of(&expected, rows)) {
                    close(found, expected, expected.abs(), tolerance(element), "rms_norm");
                }
            }
        }
    });
}

pub(super) fn logits_of_some_tokens_are_those_of_all(bench: &Bench<'_>) {
    for order in bench.orders() {
        for (rows, held) in SHAPES {
            let mut random = Random::new(held as u64 + 9);
            let (vocabulary, own) = (held + 300, random.numbers(rows * held));
            let mut places = vec![NOTHING; vocabulary];
            let tokens = random.shuffled(vocabulary);
            (0..held as u32).zip(&tokens).for_each(|(place, token)| places[*token as usize] = place);
            let out = bench.floats(&vec![UNSET; (rows + 1) * vocabulary]);
            let args = SpreadLogitsArgs {
                own: bench.lasting(&own),
                places: bench.lasting(&places),
                out: out.ptr(),
                rows: bench.count(rows),
                held: held as u32,
                vocabulary: vocabulary as u32,
            };
            bench.run(&args.launch(rows as u32 + 1, 2), order);
            let found = out.read();
            for row in 0..rows {
                for (token, place) in places.iter().enumerate() {
                    let expected = own.get(row * held + *place as usize).filter(|_| *place != NOTHING);
                    assert_eq!(found[row * vocabulary + token], *expected.unwrap_or(&f32::NEG_INFINITY));
                }
            }
            assert!(found[rows * vocabulary..].iter().all(|x| *x == UNSET), "padding was written");
        }
    }
}

pub(super) fn activations_are_the_cpus(bench: &Bench<'_>) {
    each(bench, |element, order| {
        for ((rows, cols), activation) in
            SHAPES.into_iter().flat_map(|shape| Activation::ALL.map(|one| (shape, one)))
        {
            for gated in [true, false] {
                let mut random = Random::new(cols as u64 + 1);
                let width = if gated { 2 * cols } else { cols };
                let mut values: Vec<f32> = random.numbers(rows * width).iter().map(|x| x * 30.0).collect();
                values[0] = -1e30;
                let mut expected = Tensor::zeros(rows, cols);
                let x = Tensor::from_rows(width, &values);
                activate(&lane(Isa::Portable, 1), x.view(rows), activation, expected.view_mut(rows));
                let out = bench.elements(element, &vec![UNSET; rows * cols]);
                let args = ActivateArgs {
                    x: bench.lasting(&values),
                    out: out.ptr(),
                    rows: bench.count(rows),
                    cols: cols as u32,
                    activation: activation as u32,
                    gated: u32::from(gated),
                };
                bench.run(&args.launch(element, rows as u32, 1), order);
                for (found, expected) in out.read().into_iter().zip(numbers_of(&expected, rows)) {
                    // Of a tail the last bits of an exponential's argument count.
                    let size = expected.abs() * 16.0;
                    close(found, expected, size, tolerance(element), &format!("{activation:?}"));
                }
            }
        }
    });
}

pub(super) fn soft_cap_is_the_cpus(bench: &Bench<'_>) {
    for (case, (rows, cols)) in SHAPES.into_iter().enumerate() {
        let mut random = Random::new(cols as u64 + 2);
        let mut values: Vec<f32> = random.numbers(rows * cols).iter().map(|x| x * 40.0).collect();
        values[0] = -1e30;
        // Who has no logits must not get some.
        values[rows * cols - 1] = f32::NAN;
        let mut expected = Tensor::from_rows(cols, &values);
        soft_cap(&lane(Isa::Portable, 1), expected.view_mut(rows), 30.0);
        let found = bench.floats(&values);
        let args = SoftCapArgs { x: found.ptr(), rows: bench.count(rows), cols: cols as u32, cap: 30.0 };
        bench.run(&args.launch(rows as u32, 1), bench.order(case));
        for ((found, expected), value) in
            found.read().into_iter().zip(numbers_of(&expected, rows)).zip(&values)
        {
            if value.is_nan() {
                assert!(expected.is_nan() && found.is_nan());
                continue;
            }
            assert!(expected.abs() <= 30.0);
            close(found, expected, expected.abs(), 1e-6, "soft_cap");
        }
    }
}

pub(super) fn gather_and_compact_are_the_cpus(bench: &Bench<'_>) {
    let mut random = Random::new(3);
    for case in 0..40 {
        let (rows, cols) = (1 + random.below(40), 1 + random.below(200));
        let x = random.tensor(rows, cols);
        let values: Vec<f32> = (0..rows).flat_map(|r| x.row(r).to_vec()).collect();
        let indices: Vec<u32> = (0..rows + 3).map(|_| random.below(rows) as u32).collect();
        let mut expected = Tensor::zeros(rows + 3, cols);
        gather_rows(&lane(Isa::Portable, 1), x.view(rows), &indices, expected.view_mut(rows + 3));
        // Every second word is another's, and the last row is none.
        let mut spread: Vec<u32> = indices.iter().flat_map(|index| [*index, 9999]).collect();
        spread.extend([NOTHING, 0]);
        let out = bench.floats(&vec![UNSET; (rows + 4) * cols]);
        let args = GatherRowsArgs {
            x: bench.lasting(&values),
            indices: bench.lasting(&spread),
            out: out.ptr(),
            rows: bench.count(rows + 4),
            cols: cols as u32,
            stride: 2,
        };
        bench.run(&args.launch(rows as u32 + 4, 2), bench.order(case));
        for r in 0..rows + 3 {
            assert_eq!(out.read()[r * cols..(r + 1) * cols], *expected.row(r));
        }
        assert!(out.read()[(rows + 3) * cols..].iter().all(|x| *x == 0.0));

        let one_in = 1 + random.below(4);
        let keep: Vec<u32> = (0..rows as u32).filter(|_| random.below(one_in) == 0).collect();
        let moves = keep.iter().zip(0u32..).take_while(|(from, to)| *from == to).count();
        let mut expected = Tensor::from_rows(cols, &values);
        compact_rows(expected.view_mut(rows), &keep);
        let moved = bench.floats(&values);
        let args = CompactRowsArgs {
            x: moved.ptr(),
            keep: bench.lasting(&keep),
            counts: bench.lasting(&[keep.len() as u32, moves as u32]),
            cols: cols as u32,
        };
        bench.run(&args.launch(), bench.order(case));
        for r in 0..keep.len() {
            assert_eq!(moved.read()[r * cols..(r + 1) * cols], *expected.row(r), "{keep:?}");
        }
    }
}

/// One shape of the qkv op.
#[derive(Clone, Copy, Debug)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    bias: bool,
    norm: bool,
    turned: bool,
}

pub(super) fn qkv_is_bias_norm_rotation_and_store(bench: &Bench<'_>) {
    bench.orders().for_each(|order| heads_of_fp8_that_are_nothing(bench, order));
    let shapes = [
        Heads { heads: 4, kv_heads: 2, head_dim: 64, bias: true, norm: true, turned: true },
        Heads { heads: 3, kv_heads: 3, head_dim: 36, bias: false, norm: true, turned: false },
        Heads { heads: 6, kv_heads: 1, head_dim: 128, bias: true, norm: false, turned: true },
        Heads { heads: 2, kv_heads: 1, head_dim: 256, bias: false, norm: false, turned: true },
    ];
    each(bench, |element, order| {
        for kv in [KvElement::Element(element), KvElement::Fp8] {
            for (case, shape) in shapes.into_iter().enumerate() {
                one_qkv(bench, (element, kv), order, shape, 7 * case as u64 + 1);
            }
        }
    });
}

fn one_qkv(bench: &Bench<'_>, (element, held): (Element, KvElement), order: i32, shape: Heads, seed: u64) {
    let Heads { heads, kv_heads, head_dim, .. } = shape;
    let (rows, cpu) = (7, lane(Isa::Portable, 1));
    let (q, kv, cols) = (heads * head_dim, kv_heads * head_dim, (heads + 2 * kv_heads) * head_dim);
    let mut random = Random::new(seed);
    let (values, bias) = (random.numbers(rows * cols), random.numbers(cols));
    let norms = [random.numbers(head_dim), random.numbers(head_dim)];
    let spec = RopeSpec {
        head_dim,
        rotated: head_dim,
        theta: 10_000.0,
        scaling: RopeScaling::None,
        max_positions: 64,
    };
    let table = RopeTable::new(&spec).expect("memory");
    // Two sequences, blocks in any order; the positions are all different within each.
    let (positions, chunk_of) = ([14u32, 15, 16, 17, 33, 0, 1], [0u32, 0, 0, 0, 0, 1, 1]);
    let (tables, blocks, stride) = ([5u32, 2, 0, 3, NOTHING, NOTHING], 6, 3);

    // The CPU's ops, one after the other.
    let mut expected = Tensor::from_rows(cols, &values);
    if shape.bias {
        for r in 0..rows {
            expected.row_mut(r).iter_mut().zip(&bias).for_each(|(x, b)| *x += b);
        }
    }
    if shape.norm {
        for (columns, norm) in [(0..q, &norms[0]), (q..q + kv, &norms[1])] {
            let weight = Vector::new(Source::F32(norm));
            rms_norm_heads(&cpu, expected.view_mut(rows).columns(columns), &weight, 1e-6);
        }
    }
    if shape.turned {
        rope(&cpu, expected.view_mut(rows).columns(0..q + kv), &positions, &table);
    }

    let cos_sin: Vec<f32> = (0..64).flat_map(|position| angles(&cpu, &table, position)).collect();
    let cache = vec![UNSET; blocks * kv_heads * BLOCK_SIZE * head_dim];
    let [stored_k, stored_v] = [(); 2].map(|()| bench.kept(held, head_dim, &cache));
    let (found, tables) = (bench.floats(&values), bench.words(&tables));
    let args = QkvArgs {
        qkv: found.ptr(),
        bias: if shape.bias { bench.lasting(&bias) } else { Ptr::NULL },
        q_norm: if shape.norm { bench.lasting(&norms[0]) } else { Ptr::NULL },
        k_norm: if shape.norm { bench.lasting(&norms[1]) } else { Ptr::NULL },
        cos_sin: if shape.turned { bench.lasting(&cos_sin) } else { Ptr::NULL },
        positions: bench.lasting(&positions),
        chunk_of: bench.lasting(&chunk_of),
        tables: tables.ptr(),
        keys: stored_k.ptr(),
        values: stored_v.ptr(),
        rows: bench.count(rows),
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        table_stride: stride,
        eps: 1e-6,
        fp8: QkvArgs::fp8(held),
    };
    bench.run(&args.launch(element, rows as u32, 2), order);
    let what = format!("{shape:?} {element:?} {held:?}");
    let (found, found_k, found_v) = (found.read(), stored_k.read(), stored_v.read());
    let mut written = 0;
    for r in 0..rows {
        let row = expected.row(r);
        for i in 0..q {
            close(found[r * cols + i], f64::from(row[i]), 2.0, 1e-6, &what);
        }
        let (position, chunk) = (positions[r] as usize, chunk_of[r] as usize);
        let block = tables.read()[chunk * stride as usize + position / 16] as usize;
        for head in 0..kv_heads {
            let at = ((block * kv_heads + head) * 16 + position % 16) * head_dim;
            let of_head = |first: usize| &row[first + head * head_dim..][..head_dim];
            for (found, expected) in [(&found_k, of_head(q)), (&found_v, of_head(q + kv))] {
                let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
                for (found, x) in found[at..].iter().zip(expected) {
                    let (least, tolerance) = match held {
                        KvElement::Element(_) => (0.5, tolerance(element)),
                        // Three bits of fraction, down to the 2^15th part of the largest.
                        KvElement::Fp8 => (largest / 448.0 / 64.0, 0.0626),
                    };
                    close(*found, f64::from(*x), f64::from(x.abs().max(least)), tolerance, &what);
                    // These values are what they were.
                    if held == KvElement::Fp8 && !shape.bias && expected.as_ptr() == of_head(q + kv).as_ptr()
                    {
                        assert_eq!(found.to_bits(), in_fp8(*x, largest).to_bits(), "{what}");
                    }
                }
            }
            written += head_dim;
        }
    }
    let unset = bench.kept(held, head_dim, &cache).read()[0];
    for cache in [&found_k, &found_v] {
        assert_eq!(
            cache.iter().filter(|x| **x != unset).count(),
            written,
            "{what}: another slot was written"
        );
    }
}

/// Values in FP8 of one row: what no code is for must not pass for a number.
fn heads_of_fp8_that_are_nothing(bench: &Bench<'_>, order: i32) {
    const DIM: usize = 32;
    let head = |first: f32| {
        let mut head = vec![0.0; DIM];
        head[5] = first;
        head
    };
    let cases = [
        (head(0.0), Some(0.0)),
        (head(1e-37), Some(0.0)),
        (head(-3.0), Some(-3.0)),
        (head(f32::MAX), Some(f32::MAX)),
        (head(f32::NAN), None),
        (head(f32::NEG_INFINITY), None),
    ];
    let kv_heads = cases.len();
    // One head of queries, and keys that are nothing special.
    let mut row = vec![0.5; (1 + kv_heads) * DIM];
    cases.iter().for_each(|(head, _)| row.extend(head));
    let cache = vec![UNSET; kv_heads * BLOCK_SIZE * DIM];
    let [keys, values] = [(); 2].map(|()| bench.kept(KvElement::Fp8, DIM, &cache));
    let args = QkvArgs {
        qkv: bench.floats(&row).ptr(),
        bias: Ptr::NULL,
        q_norm: Ptr::NULL,
        k_norm: Ptr::NULL,
        cos_sin: Ptr::NULL,
        positions: bench.lasting(&[3u32]),
        chunk_of: bench.lasting(&[0u32]),
        tables: bench.lasting(&[0u32]),
        keys: keys.ptr(),
        values: values.ptr(),
        rows: bench.count(1),
        heads: 1,
        kv_heads: kv_heads as u32,
        head_dim: DIM as u32,
        table_stride: 1,
        eps: 1e-6,
        fp8: 1,
    };
    bench.run(&args.launch(Element::Bf16, 1, 1), order);
    let found = values.read();
    for (at, (head, expected)) in cases.iter().enumerate() {
        let found = &found[(at * BLOCK_SIZE + 3) * DIM..][..DIM];
        match expected {
            Some(expected) => {
                close(
                    found[5],
                    f64::from(*expected),
                    f64::from(expected.abs()),
                    1e-6,
                    "the largest of a head",
                );
                assert!(found.iter().enumerate().all(|(i, x)| i == 5 || *x == 0.0), "{head:?}: {found:?}");
            }
            None => assert!(found.iter().all(|x| x.is_nan()), "{head:?}: {found:?}"),
        }
    }
    assert!(keys.read()[3 * DIM..4 * DIM].iter().all(|x| *x == 0.5));
}

/// Cosines and sines of a position: what the rotation makes of (1, 0) in each pair.
fn angles(cpu: &faser_kernels::Lane, table: &RopeTable, position: u32) -> Vec<f32> {
    let half = table.head_dim() / 2;
    let ones: Vec<f32> = (0..2 * half).map(|i| if i < half { 1.0 } else { 0.0 }).collect();
    let mut x = Tensor::from_rows(2 * half, &ones);
    rope(cpu, x.view_mut(1), &[position], table);
    x.row(0).to_vec()
}
