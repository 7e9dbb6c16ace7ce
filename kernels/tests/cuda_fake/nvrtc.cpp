// The compiler of the fake driver: a program is its source, and so is its cubin.
extern "C" {
int nvrtcVersion(int *major, int *minor) { *major = fake::number("FASER_FAKE_LIBRARIES", 13), *minor = 0; return 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *, int, const char *const *, const char *const *) { *program = strdup(source); return 0; }
int nvrtcCompileProgram(void *, int, const char *const *) { return 0; }
int nvrtcGetProgramLogSize(void *, size_t *bytes) { *bytes = 1; return 0; }
int nvrtcGetProgramLog(void *, char *log) { *log = 0; return 0; }
int nvrtcGetCUBINSize(void *program, size_t *bytes) { *bytes = strlen((const char *)program) + 1; return 0; }
int nvrtcGetCUBIN(void *program, char *cubin) { strcpy(cubin, (const char *)program); return 0; }
int nvrtcDestroyProgram(void **program) { free(*program); return 0; }
} // extern "C"
