// dequantise_*: a matrix of 4 bits, int8 or FP8 as rows of bf16, each weight rounded once, for products of many rows. A warp takes a record.
struct DequantiseArgs {
    const u32 *records;
    bf16 *out; // [outputs][inputs]
    u32 inputs, outputs, form;
};

template <typename Records> DEVICE void dequantise_records(const DequantiseArgs &a, const Records &w) {
    const u32 steps = a.inputs / STEP, records = (steps + RECORD_STEPS - 1) / RECORD_STEPS, all = (a.outputs + 7) / 8 * records;
    for (u32 record = blockIdx.x * WARPS + warp(); record < all; record += gridDim.x * WARPS) {
        const typename Records::Lane held = w.load(w.records + (size_t)record * w.words());
        const u32 output = record / records * 8 + lane() / 4, first = record % records * RECORD_STEPS;
        if (output >= a.outputs) continue;
        bf16 *out = a.out + (size_t)output * a.inputs + lane() % 4 * 8;
#pragma unroll
        for (u32 k = 0; k < RECORD_STEPS; k++) {
            if (first + k < steps) store_word(out + (first + k) * STEP, w.weights(held, k));
        }
    }
}
KERNEL(256, 48) dequantise_int4(DequantiseArgs a) {
    FourBits w;
    w.records = a.records, w.form = a.form;
    dequantise_records(a, w);
}
template <typename Records> DEVICE void dequantise_eight_bits(const DequantiseArgs &a) {
    Records w;
    w.records = a.records;
    dequantise_records(a, w);
}
KERNEL(256, 48) dequantise_fp8(DequantiseArgs a) { dequantise_eight_bits<Fp8>(a); }
KERNEL(256, 48) dequantise_int8(DequantiseArgs a) { dequantise_eight_bits<Int8>(a); }
