/* A stand-in for libnvidia-ml.so.1: H100s whose state is a text file of lines "key value".
 *
 * The file is named by NVML_STANDIN_STATE and read again whenever it has changed. Keys are looked up as "gpuN.key",
 * then as "key". Without the file there is no driver. What it answers, by key:
 *
 *   count, init_rc           GPUs; what nvmlInit returns
 *   handle                   what asking for the GPU's handle returns: 15, it is lost already
 *   rc                       what every call about the GPU returns
 *   lost, reset              every call about the GPU says GPU_IS_LOST, RESET_REQUIRED
 *   hang                     every call about the GPU waits until this is 0 again
 *   ecc.dbe.vol, ecc.sbe.vol, ecc.dbe.agg, ecc.sbe.agg    uncorrected and corrected errors
 *   remap.corrected, remap.uncorrected, remap.pending, remap.failure
 *   action                   recovery action (field 230)
 *   link.K                   1 if NVLink K is active (18 links); link.rc.K: what asking for it returns
 *   field.K                  the value of field K, such as 52: NVLink replays
 *   fields.rc                what asking for fields returns; field.rc: what each of them does
 *   temp, throttle           degrees; bits of the clocks event reasons
 *   pid                      one process that computes on the GPU
 *   xid.seq, xid.code, xid.gpu   an XID arrives when seq grows; xid.type: another event does
 *   no.events, no.ecc        1: not supported
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int result;
typedef void *device;
enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10, LOST = 15, RESET = 16 };
enum { LINKS = 18, KEYS = 256 };

static struct { char key[64]; long long value; } table[KEYS];
static int keys;
static struct timespec read_at;
static long long read_inode = -1;

static int load(void) {
    const char *path = getenv("NVML_STANDIN_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return 0;
    if ((long long)now.st_ino == read_inode && now.st_mtim.tv_sec == read_at.tv_sec && now.st_mtim.tv_nsec == read_at.tv_nsec)
        return 1;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    keys = 0;
    while (keys < KEYS && fscanf(file, "%63s %lld", table[keys].key, &table[keys].value) == 2) keys++;
    fclose(file);
    read_inode = now.st_ino;
    read_at = now.st_mtim;
    return 1;
}
static long long get(const char *key, long long usual) {
    if (!load()) return usual;
    for (int i = 0; i < keys; i++)
        if (!strcmp(table[i].key, key)) return table[i].value;
    return usual;
}
static int number(device gpu) { return (int)((intptr_t)gpu - 1); }
static long long of(device gpu, const char *key, long long usual) {
    char own[64];
    snprintf(own, sizeof own, "gpu%d.%s", number(gpu), key);
    return get(own, get(key, usual));
}
static result check(device gpu) {
    while (of(gpu, "hang", 0)) usleep(5000);
    if (of(gpu, "lost", 0)) return LOST;
    return of(gpu, "reset", 0) ? RESET : (result)of(gpu, "rc", 0);
}
#define NEED(gpu) do { result rc = check(gpu); if (rc) return rc; } while (0)

/* The state's name and ".open" is there while somebody has the library open. */
static void mark(int is_open) {
    char path[4096];
    snprintf(path, sizeof path, "%s.open", getenv("NVML_STANDIN_STATE") ? getenv("NVML_STANDIN_STATE") : "/nowhere/x");
    FILE *file = is_open ? fopen(path, "w") : NULL;
    if (file) fclose(file);
    if (!is_open) unlink(path);
}
result nvmlInitWithFlags(unsigned flags) {
    result rc = load() ? (result)get("init_rc", 0) : NO_DRIVER;
    if (!rc) mark(1);
    return rc;
}
result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
result nvmlShutdown(void) { mark(0); return SUCCESS; }
const char *nvmlErrorString(result rc) { return rc == LOST ? "GPU is lost" : "an error of the stand-in"; }
result nvmlSystemGetDriverVersion(char *to, unsigned size) { snprintf(to, size, "580.82.07"); return SUCCESS; }
result nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)get("count", 0); return SUCCESS; }
result nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu) {
    if (index >= (unsigned)get("count", 0)) return INVALID;
    *gpu = (device)(intptr_t)(index + 1);
    return (result)of(*gpu, "handle", 0);
}
result nvmlDeviceGetIndex(device gpu, unsigned *index) { *index = number(gpu); return SUCCESS; }
result nvmlDeviceGetName(device gpu, char *to, unsigned size) { snprintf(to, size, "NVIDIA H100 80GB HBM3"); return SUCCESS; }
result nvmlDeviceGetUUID(device gpu, char *to, unsigned size) {
    snprintf(to, size, "GPU-0000000%d-aaaa-bbbb-cccc-000000000000", number(gpu));
    return SUCCESS;
}
typedef struct { char legacy[16]; unsigned domain, bus, slot, ids, subsystem; char id[32]; } pci;
result nvmlDeviceGetPciInfo_v3(device gpu, pci *to) {
    memset(to, 0, sizeof *to);
    snprintf(to->id, sizeof to->id, "0000EE9A:%02X:00.0", 0x17 + number(gpu)); /* a domain that no real machine has */
    snprintf(to->legacy, sizeof to->legacy, "EE9A:%02X:00.0", 0x17 + number(gpu));
    return SUCCESS;
}
result nvmlDeviceGetTotalEccErrors(device gpu, int kind, int since, unsigned long long *count) {
    NEED(gpu);
    if (of(gpu, "no.ecc", 0)) return UNSUPPORTED;
    const char *key = kind ? (since ? "ecc.dbe.agg" : "ecc.dbe.vol") : (since ? "ecc.sbe.agg" : "ecc.sbe.vol");
    *count = of(gpu, key, 0);
    return SUCCESS;
}
result nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    NEED(gpu);
    *corrected = (unsigned)of(gpu, "remap.corrected", 0);
    *uncorrected = (unsigned)of(gpu, "remap.uncorrected", 0);
    *pending = (unsigned)of(gpu, "remap.pending", 0);
    *failed = (unsigned)of(gpu, "remap.failure", 0);
    return SUCCESS;
}
result nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *active) {
    NEED(gpu);
    if (link >= LINKS) return INVALID;
    char key[32];
    snprintf(key, sizeof key, "link.%u", link);
    *active = (unsigned)of(gpu, key, 1);
    snprintf(key, sizeof key, "link.rc.%u", link);
    return (result)of(gpu, key, SUCCESS);
}
typedef struct { unsigned field, scope; int64_t at, latency; int type, rc; union { double d; unsigned long long u; } value; } field;
result nvmlDeviceGetFieldValues(device gpu, int count, field *values) {
    NEED(gpu);
    for (int i = 0; i < count; i++) {
        values[i].type = 3;
        values[i].rc = (result)of(gpu, "field.rc", SUCCESS);
        char key[24];
        snprintf(key, sizeof key, "field.%u", values[i].field);
        values[i].value.u = values[i].field == 230 ? of(gpu, "action", 0) : of(gpu, key, 0);
    }
    return (result)of(gpu, "fields.rc", SUCCESS);
}
typedef struct { unsigned version; int sensor, degrees; } temperature;
result nvmlDeviceGetTemperatureV(device gpu, temperature *to) { NEED(gpu); to->degrees = (int)of(gpu, "temp", 45); return SUCCESS; }
result nvmlDeviceGetTemperatureThreshold(device gpu, int which, unsigned *degrees) { NEED(gpu); *degrees = 90; return SUCCESS; }
result nvmlDeviceGetPowerUsage(device gpu, unsigned *milliwatts) { NEED(gpu); *milliwatts = 350000; return SUCCESS; }
result nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *bits) { NEED(gpu); *bits = of(gpu, "throttle", 0); return SUCCESS; }
result nvmlDeviceGetUtilizationRates(device gpu, unsigned *rates) { NEED(gpu); rates[0] = 97; rates[1] = 50; return SUCCESS; }
result nvmlDeviceGetMemoryInfo(device gpu, unsigned long long *bytes) {
    NEED(gpu);
    bytes[0] = 80ULL << 30;
    bytes[1] = 30ULL << 30;
    bytes[2] = 50ULL << 30;
    return SUCCESS;
}
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process;
result nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, process *to) {
    NEED(gpu);
    long long pid = of(gpu, "pid", 0);
    if (!pid) { *count = 0; return SUCCESS; }
    if (!to) { *count = 1; return SMALL; }
    *count = 1;
    memset(to, 0, sizeof *to);
    to->pid = (unsigned)pid;
    return SUCCESS;
}

static long long seen;
result nvmlDeviceGetSupportedEventTypes(device gpu, unsigned long long *types) {
    *types = of(gpu, "no.events", 0) ? 0 : 0xFFFF;
    return SUCCESS;
}
result nvmlEventSetCreate(device *set) { *set = (device)0x77; seen = get("xid.seq", 0); return SUCCESS; }
result nvmlEventSetFree(device set) { return SUCCESS; }
result nvmlDeviceRegisterEvents(device gpu, unsigned long long types, device set) { return SUCCESS; }
typedef struct { device gpu; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event;
result nvmlEventSetWait_v2(device set, event *to, unsigned timeout_ms) {
    for (unsigned waited = 0;; waited += 50) {
        if (get("xid.seq", 0) > seen) {
            seen++;
            memset(to, 0, sizeof *to);
            to->gpu = (device)(intptr_t)(get("xid.gpu", 0) + 1);
            to->type = (unsigned long long)get("xid.type", 8);
            to->data = get("xid.code", 79);
            return SUCCESS;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(50000);
    }
}
