// dequantise: a matrix of 4 bits as rows of bf16, for products of many rows. A warp takes a record; the numbers are those that products of few rows have in registers.
struct DequantiseArgs {
    const u32 *records;
    bf16 *out; // [outputs][inputs]
    u32 inputs, outputs, form;
};

KERNEL(256, 48) dequantise(DequantiseArgs a) {
    const u32 steps = a.inputs / STEP, records = (steps + RECORD_STEPS - 1) / RECORD_STEPS, all = (a.outputs + 7) / 8 * records;
    for (u32 record = blockIdx.x * WARPS + warp(); record < all; record += gridDim.x * WARPS) {
        const FourBitLane held = load_record(a.records + record * record_words(a.form), a.form);
        const u32 output = record / records * 8 + lane() / 4, first = record % records * RECORD_STEPS;
        if (output >= a.outputs) continue;
        bf16 *out = a.out + (size_t)output * a.inputs + lane() % 4 * 8;
#pragma unroll
        for (u32 k = 0; k < RECORD_STEPS; k++) {
            if (first + k < steps) *(uint4 *)(out + (first + k) * STEP) = widen_step(held, a.form, k);
        }
    }
}
