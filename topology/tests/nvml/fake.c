// NVML of a machine that is none: four GPUs, 0 and 1 on one switch fabric, 2 and 3 joined by a bridge, the pairs on two NUMA nodes.
#include <stdio.h>
#include <string.h>

typedef int Status;
typedef struct { char name[8]; } *Device;
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3 };
static struct { char name[8]; } gpus[4];

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} Pci;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;

static unsigned number(Device gpu) { return (unsigned)((char *)gpu - (char *)gpus) / sizeof gpus[0]; }
static const unsigned buses[4] = {0x1b, 0x2c, 0x9a, 0xab};

static Status address(Pci *to, unsigned bus) {
    memset(to, 0, sizeof *to);
    to->bus = bus;
    snprintf(to->legacy, sizeof to->legacy, "0000:%02X:00.0", bus);
    snprintf(to->address, sizeof to->address, "00000000:%02X:00.0", bus);
    return OK;
}

Status nvmlInit_v2(void) { return OK; }
Status nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
Status nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(Status status) { (void)status; return "an error of the fake"; }
Status nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return OK; }
Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *gpu) {
    if (index >= 4) return INVALID;
    *gpu = (Device)&gpus[index];
    return OK;
}
Status nvmlDeviceGetName(Device gpu, char *name, unsigned length) {
    snprintf(name, length, number(gpu) < 2 ? "Fast" : "Bridged");
    return OK;
}
Status nvmlDeviceGetPciInfo_v3(Device gpu, Pci *to) { return address(to, buses[number(gpu)]); }
Status nvmlDeviceGetMemoryInfo_v2(Device gpu, Memory *to) {
    (void)gpu;
    to->total = 80ULL << 30;
    return OK;
}
Status nvmlDeviceGetCudaComputeCapability(Device gpu, int *major, int *minor) {
    *major = number(gpu) < 2 ? 9 : 8;
    *minor = 0;
    return OK;
}
Status nvmlDeviceGetNumGpuCores(Device gpu, unsigned *cores) {
    *cores = number(gpu) < 2 ? 132 * 128 : 108 * 64;
    return OK;
}
// Two links each: of 0 and 1 into two switches, of 2 and 3 to each other. A third one is down.
Status nvmlDeviceGetNvLinkState(Device gpu, unsigned link, int *active) {
    (void)gpu;
    if (link >= 3) return INVALID;
    *active = link < 2;
    return OK;
}
Status nvmlDeviceGetNvLinkVersion(Device gpu, unsigned link, unsigned *version) {
    (void)link;
    *version = number(gpu) < 2 ? 7 : 4;
    return OK;
}
Status nvmlDeviceGetNvLinkRemotePciInfo_v2(Device gpu, unsigned link, Pci *to) {
    unsigned own = number(gpu);
    return address(to, own < 2 ? 0x40 + link : buses[5 - own]);
}
Status nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int *level) {
    *level = number(a) / 2 == number(b) / 2 ? 30 : 50;
    return OK;
}
Status nvmlDeviceGetMaxPcieLinkGeneration(Device gpu, unsigned *generation) {
    *generation = number(gpu) < 2 ? 5 : 4;
    return OK;
}
Status nvmlDeviceGetMaxPcieLinkWidth(Device gpu, unsigned *lanes) { (void)gpu; *lanes = 16; return OK; }
