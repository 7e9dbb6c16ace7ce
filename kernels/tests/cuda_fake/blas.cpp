// The GEMM library of the fake driver: products on streams of the host, checked for what was chosen for them.
// ---- cublasLt: row-major x w^T, as column-major T and N
namespace fake {
enum { NOT_SUPPORTED = 15 };
struct Layout { int type; uint64_t rows, columns; int64_t leading; };
struct Description { int compute = 0, transposed_a = 0, epilogue = 1, sms = 0, bias_type = 0; uint64_t bias = 0; };
struct Heuristic { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };
inline float at(const Layout &layout, const void *matrix, size_t row, size_t column) {
    const size_t place = column * layout.leading + row;
    return layout.type == 0 ? ((const float *)matrix)[place] : emu::of_bf16(((const uint16_t *)matrix)[place]);
}
} // namespace fake
extern "C" {
size_t cublasLtGetVersion() { return fake::number("FASER_FAKE_LIBRARIES", 13) * 10000; }
int cublasLtCreate(void **handle) { *handle = (void *)1; return 0; }
int cublasLtDestroy(void *) { return 0; }
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) { *layout = new fake::Layout{type, rows, columns, leading}; return 0; }
int cublasLtMatrixLayoutDestroy(void *layout) { delete (fake::Layout *)layout; return 0; }
int cublasLtMatmulDescCreate(void **description, int compute, int scale) {
    auto *d = new fake::Description;
    d->compute = compute;
    *description = d;
    return compute == 68 && scale == 0 ? 0 : (int)fake::NOT_SUPPORTED;
}
int cublasLtMatmulDescDestroy(void *description) { delete (fake::Description *)description; return 0; }
int cublasLtMatmulDescSetAttribute(void *description, int attribute, const void *value, size_t bytes) {
    auto *d = (fake::Description *)description;
    const size_t wanted = attribute == 8 ? 8 : 4;
    if (bytes != wanted) return 7;
    if (attribute == 3) memcpy(&d->transposed_a, value, 4);
    else if (attribute == 7) memcpy(&d->epilogue, value, 4);
    else if (attribute == 8) memcpy(&d->bias, value, 8);
    else if (attribute == 15) memcpy(&d->sms, value, 4);
    else if (attribute == 26) memcpy(&d->bias_type, value, 4);
    else return 7;
    return 0;
}
int cublasLtMatmulPreferenceCreate(void **preference) { *preference = malloc(8); return 0; }
int cublasLtMatmulPreferenceDestroy(void *preference) { free(preference); return 0; }
int cublasLtMatmulPreferenceSetAttribute(void *, int attribute, const void *, size_t bytes) { return attribute == 1 && bytes == 8 ? 0 : 7; }
int cublasLtMatmulAlgoGetHeuristic(void *, void *description, void *, void *, void *, void *, void *, int, fake::Heuristic *found, int *count) {
    memset(found, 0, sizeof *found);
    found->algorithm[0] = ((fake::Description *)description)->sms;
    *count = 1;
    return 0;
}
int cublasLtMatmul(void *, void *description, const float *alpha, const void *a, void *a_layout, const void *b, void *b_layout, const float *beta,
                   const void *c, void *c_layout, void *out, void *d_layout, const uint64_t *algorithm, void *, size_t workspace, void *stream) {
    LOCKED;
    const auto d = *(fake::Description *)description;
    const auto la = *(fake::Layout *)a_layout, lb = *(fake::Layout *)b_layout, lc = *(fake::Layout *)c_layout, ld = *(fake::Layout *)d_layout;
    const unsigned sms = ((fake::Stream *)stream)->sms;
    // What was chosen for one partition must not run on another.
    const bool fits = d.transposed_a == 1 && la.rows == lb.rows && la.columns == ld.rows && lb.columns == ld.columns && lc.type == 0 && ld.type == 0 &&
                      *alpha == 1.0f && workspace && d.sms == (int)sms && algorithm[0] == sms && (d.epilogue == 1 || (d.epilogue == 4 && d.bias));
    if (!fits) return fake::NOT_SUPPORTED;
    if (!fake::inside((uint64_t)out, ld.columns * ld.leading * 4) || !fake::inside((uint64_t)a, la.columns * la.leading * (la.type ? 2 : 4)) ||
        !fake::inside((uint64_t)b, lb.columns * lb.leading * (lb.type ? 2 : 4))) return 7;
    fake::products_by_sms[sms]++;
    fake::product_rows += ld.columns;
    const bool add = *beta != 0.0f;
    const int device = fake::bound - 1;
    const int code = fake::ask(stream, [=] {
        if (fake::record()) {
            fake::note(device, "product %zu %zu %zu %d %d", (size_t)ld.columns, (size_t)la.rows, (size_t)ld.rows, la.type ? 2 : 4, (int)add);
            return 0;
        }
        for (size_t column = 0; column < ld.columns; column++) {
            for (size_t row = 0; row < ld.rows; row++) {
                float sums[4] = {};
                for (size_t k = 0; k < la.rows; k++) sums[k % 4] += fake::at(la, a, k, row) * fake::at(lb, b, k, column);
                float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
                if (d.epilogue == 4) sum += ((const float *)d.bias)[row];
                float &to = ((float *)out)[column * ld.leading + row];
                to = add ? ((const float *)c)[column * lc.leading + row] + sum : sum;
            }
        }
        return 0;
    });
    return code ? 14 : 0;
}
} // extern "C"
