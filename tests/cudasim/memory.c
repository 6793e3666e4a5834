/* Device memory of the emulator. All of it lies in one reserved range of addresses: every allocation has its own pages
 * with an unreadable page on both sides and ends as near to the upper one as a 256-byte start allows; the bytes between
 * are a red zone that sim_memory_check looks at. Fresh memory is poison (0xff: NaN in every float type, -1 in every
 * integer). Freed pages stay unreadable, and addresses are used again only when the range has been through once.
 * Virtual memory management maps memory files into the same range. Nothing here locks: callers hold the driver's lock.
 * */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON 0xff
#define RED 0xe7
#define GRANULARITY ((size_t)2 << 20)

enum { RANGE_DEVICE, RANGE_PINNED, RANGE_RESERVED, RANGE_MAPPED, RANGE_GLOBAL, RANGE_FREE };

typedef struct physical {
    int file;
    size_t size;
    int device;
    unsigned int maps;
    bool released;
} physical;

/* A live range, sorted by nothing: counts are small and a look-up is a scan from the newest. */
typedef struct range {
    int kind;
    unsigned char *base; /* pages */
    size_t pages;        /* bytes of pages */
    unsigned char *start;
    size_t bytes;
    int device;
    bool access; /* RANGE_MAPPED: cuMemSetAccess was called */
    physical *file;
} range;

static unsigned char *arena;
static size_t arena_size, arena_next;
static bool strict, open_now;
static size_t page;
static range *ranges;
static size_t n_ranges, cap_ranges;
static struct {
    unsigned char *base;
    size_t bytes;
} * recycled;
static size_t n_recycled, first_recycled, cap_recycled;
static size_t used[SIM_DEVICES], capacity = (size_t)8 << 30;
static unsigned int n_physical;

void sim_memory_start(void) {
    const char *text = getenv("CUDASIM_STRICT");
    strict = text && *text && *text != '0';
    text = getenv("CUDASIM_MEMORY");
    if (text && *text) {
        capacity = strtoull(text, NULL, 0);
    }
    page = (size_t)sysconf(_SC_PAGESIZE);
    for (arena_size = (size_t)256 << 30; arena_size >= (size_t)1 << 30; arena_size /= 2) {
        void *p = mmap(NULL, arena_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) {
            arena = p;
            break;
        }
    }
    if (!arena) {
        sim_complain("no address space for device memory");
        abort();
    }
}

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* `bytes` of untouched pages, with a guard page behind (and the one of the neighbour before). NULL: the range is full.
 * */
static unsigned char *take(size_t bytes, size_t align) {
    uintptr_t at = round_up((uintptr_t)arena + arena_next + page, align);
    if (at + bytes + page <= (uintptr_t)arena + arena_size) {
        arena_next = at + bytes - (uintptr_t)arena;
        return (unsigned char *)at;
    }
    for (size_t i = first_recycled; i < n_recycled; i++) { /* the oldest first */
        uintptr_t base = round_up((uintptr_t)recycled[i].base, align);
        if (recycled[i].base && base + bytes <= (uintptr_t)recycled[i].base + recycled[i].bytes) {
            recycled[i].base = NULL;
            while (first_recycled < n_recycled && !recycled[first_recycled].base) {
                first_recycled++;
            }
            return (unsigned char *)base;
        }
    }
    return NULL;
}

static void give(unsigned char *base, size_t bytes) {
    if (mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        abort();
    }
    if (n_recycled == cap_recycled) {
        cap_recycled = cap_recycled ? cap_recycled * 2 : 64;
        recycled = sim_grow(recycled, cap_recycled, sizeof *recycled);
    }
    recycled[n_recycled].base = base;
    recycled[n_recycled++].bytes = bytes;
}

static range *add_range(range r) {
    if (n_ranges == cap_ranges) {
        cap_ranges = cap_ranges ? cap_ranges * 2 : 64;
        ranges = sim_grow(ranges, cap_ranges, sizeof *ranges);
    }
    ranges[n_ranges] = r;
    return &ranges[n_ranges++];
}

static range *find_range(const void *p, unsigned int kinds) {
    for (size_t i = n_ranges; i-- > 0;) {
        if ((kinds >> ranges[i].kind & 1) && (const unsigned char *)p >= ranges[i].start &&
            (const unsigned char *)p < ranges[i].start + (ranges[i].bytes ? ranges[i].bytes : 1)) {
            return &ranges[i];
        }
    }
    return NULL;
}

static void drop_range(range *r) { *r = ranges[--n_ranges]; }

#define DEVICE_KINDS (1u << RANGE_DEVICE | 1u << RANGE_MAPPED | 1u << RANGE_GLOBAL)

bool sim_memory_is_device(CUdeviceptr p, size_t bytes) {
    while (bytes > 0) { /* neighbouring mapped pieces of one reservation count as one range */
        range *r = find_range((void *)(uintptr_t)p, DEVICE_KINDS);
        if (!r || (r->kind == RANGE_MAPPED && !r->access)) {
            return false;
        }
        size_t left = (size_t)(r->start + r->bytes - (unsigned char *)(uintptr_t)p);
        if (bytes <= left) {
            return true;
        }
        if (r->kind != RANGE_MAPPED) {
            return false;
        }
        bytes -= left;
        p += left;
    }
    return find_range((void *)(uintptr_t)p, DEVICE_KINDS) != NULL;
}

bool sim_memory_is_pinned(const void *p, size_t bytes) {
    range *r = find_range(p, 1u << RANGE_PINNED);
    return r && bytes <= (size_t)(r->start + r->bytes - (const unsigned char *)p);
}

static void protect(bool readable) {
    for (size_t i = 0; i < n_ranges; i++) {
        if (ranges[i].kind == RANGE_DEVICE || (ranges[i].kind == RANGE_MAPPED && ranges[i].access)) {
            mprotect(ranges[i].base, ranges[i].pages, readable ? PROT_READ | PROT_WRITE : PROT_NONE);
        }
    }
}

void sim_memory_open(void) {
    if (strict && !open_now) {
        protect(true);
    }
    open_now = true;
}

void sim_memory_close(void) {
    if (strict && open_now) {
        protect(false);
    }
    open_now = false;
}

CUresult sim_memory_check(void) {
    bool was_open = open_now;
    CUresult result = CUDA_SUCCESS;
    sim_memory_open();
    for (size_t i = 0; i < n_ranges && result == CUDA_SUCCESS; i++) {
        const range *r = &ranges[i];
        if (r->kind != RANGE_DEVICE) {
            continue;
        }
        for (const unsigned char *p = r->base; p < r->base + r->pages; p++) {
            if (p == r->start) {
                p += r->bytes;
                if (p >= r->base + r->pages) {
                    break;
                }
            }
            if (*p != RED) {
                sim_complain("a write %td bytes %s an allocation of %zu bytes at %p",
                             p < r->start ? r->start - p : p - (r->start + r->bytes),
                             p < r->start ? "before" : "behind", r->bytes, (void *)r->start);
                memset(r->base, RED, (size_t)(r->start - r->base));
                memset(r->start + r->bytes, RED, (size_t)(r->base + r->pages - (r->start + r->bytes)));
                result = CUDA_ERROR_ILLEGAL_ADDRESS;
                break;
            }
        }
    }
    if (!was_open) {
        sim_memory_close();
    }
    return result;
}

void sim_memory_global_add(void *p, size_t bytes) {
    if (!find_range(p, 1u << RANGE_GLOBAL)) {
        add_range((range){.kind = RANGE_GLOBAL, .base = p, .start = p, .bytes = bytes});
    }
}

void sim_memory_global_remove(void *p) {
    range *r = find_range(p, 1u << RANGE_GLOBAL);
    if (r) {
        drop_range(r);
    }
}

void sim_memory_describe(const void *p, char *text, size_t size) {
    const unsigned char *at = p;
    const range *near = NULL;
    for (size_t i = 0; i < n_ranges; i++) {
        if (ranges[i].kind == RANGE_DEVICE && at >= ranges[i].base - page &&
            at < ranges[i].base + ranges[i].pages + page) {
            near = &ranges[i];
        }
    }
    if (near) {
        snprintf(text, size, "%td bytes from the start of an allocation of %zu bytes", at - near->start, near->bytes);
    } else if (at >= arena && at < arena + arena_size) {
        snprintf(text, size, "device memory that is not or no longer allocated");
    } else {
        snprintf(text, size, "no device memory");
    }
}

/* ---- Allocation ---- */

static int current_device(void) { return sim_current()->device; }

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes) {
    SIM_BEGIN();
    if (!ptr || bytes == 0) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = sim_capture_unsafe();
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    int device = current_device();
    if (bytes > capacity || used[device] + bytes > capacity) {
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    size_t rounded = round_up(bytes, 256), pages = round_up(rounded, page);
    unsigned char *base = take(pages, page);
    if (!base || mprotect(base, pages, PROT_READ | PROT_WRITE) != 0) {
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    range r = {.kind = RANGE_DEVICE, .base = base, .pages = pages, .start = base + (pages - rounded), .bytes = bytes};
    r.device = device;
    memset(base, RED, (size_t)(r.start - base));
    memset(r.start, POISON, bytes);
    memset(r.start + bytes, RED, rounded - bytes);
    if (strict && !open_now) {
        mprotect(base, pages, PROT_NONE);
    }
    add_range(r);
    used[device] += bytes;
    *ptr = (CUdeviceptr)(uintptr_t)r.start;
    return sim_end(CUDA_SUCCESS);
}

/* cuMemFree waits for the device first, as the real one does. */
CUresult cuMemFree_v2(CUdeviceptr ptr) {
    SIM_BEGIN_FREE();
    if (ptr == 0) {
        return sim_end(CUDA_SUCCESS);
    }
    CUresult result = sim_capture_unsafe();
    range *r = find_range((void *)(uintptr_t)ptr, 1u << RANGE_DEVICE);
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    if (!r || (CUdeviceptr)(uintptr_t)r->start != ptr) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    result = sim_run_all();
    CUresult check = sim_memory_check();
    r = find_range((void *)(uintptr_t)ptr, 1u << RANGE_DEVICE);
    used[r->device] -= r->bytes;
    give(r->base, r->pages);
    drop_range(r);
    return sim_end(result != CUDA_SUCCESS ? result : check);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    SIM_BEGIN();
    if (free_bytes) {
        *free_bytes = capacity - used[current_device()];
    }
    if (total_bytes) {
        *total_bytes = capacity;
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    SIM_BEGIN();
    if (!bytes) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (device < 0 || device >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    }
    *bytes = capacity;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags) {
    SIM_BEGIN();
    if (!ptr || bytes == 0 || flags > 7) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = sim_capture_unsafe();
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    size_t pages = round_up(bytes, page);
    unsigned char *base = take(pages, page);
    if (!base || mprotect(base, pages, PROT_READ | PROT_WRITE) != 0) {
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    memset(base, POISON, bytes);
    add_range((range){
        .kind = RANGE_PINNED, .base = base, .pages = pages, .start = base, .bytes = bytes, .device = current_device()});
    *ptr = base;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *ptr) {
    SIM_BEGIN_FREE();
    range *r = ptr ? find_range(ptr, 1u << RANGE_PINNED) : NULL;
    if (!r || r->start != ptr) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = sim_capture_unsafe();
    if (result == CUDA_SUCCESS) {
        result = sim_run_all();
        r = find_range(ptr, 1u << RANGE_PINNED);
        give(r->base, r->pages);
        drop_range(r);
    }
    return sim_end(result);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ptr, void *host, unsigned int flags) {
    SIM_BEGIN();
    if (!ptr || flags != 0 || !sim_memory_is_pinned(host, 1)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *ptr = (CUdeviceptr)(uintptr_t)host;
    return sim_end(CUDA_SUCCESS);
}

/* One attribute of an address that the emulator knows. */
static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    range *r = find_range((void *)(uintptr_t)ptr, DEVICE_KINDS | 1u << RANGE_PINNED);
    if (!data || !r) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
        CUcontext ctx = &sim_contexts[r->device];
        memcpy(data, &ctx, sizeof ctx);
        break;
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
        unsigned int type = r->kind == RANGE_PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        memcpy(data, &type, sizeof type);
        break;
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: memcpy(data, &ptr, sizeof ptr); break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: {
        void *host = r->kind == RANGE_PINNED ? (void *)(uintptr_t)ptr : NULL;
        if (!host) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        memcpy(data, &host, sizeof host);
        break;
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: memcpy(data, &r->device, sizeof r->device); break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: {
        CUdeviceptr start = (CUdeviceptr)(uintptr_t)r->start;
        memcpy(data, &start, sizeof start);
        break;
    }
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: memcpy(data, &r->bytes, sizeof r->bytes); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: {
        bool mapped = true;
        memcpy(data, &mapped, sizeof mapped);
        break;
    }
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    SIM_BEGIN();
    return sim_end(pointer_attribute(data, attribute, ptr));
}

/* Unlike the singular form it accepts addresses that it does not know: their attributes are 0. */
CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr) {
    SIM_BEGIN();
    if (!attributes || !data || n == 0) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (unsigned int k = 0; k < n; k++) {
        if (attributes[k] != CU_POINTER_ATTRIBUTE_MEMORY_TYPE && attributes[k] != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            return sim_end(CUDA_ERROR_NOT_SUPPORTED);
        }
        int none = attributes[k] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? -2 : 0;
        if (pointer_attribute(data[k], attributes[k], ptr) != CUDA_SUCCESS) {
            memcpy(data[k], &none, sizeof none);
        }
    }
    return sim_end(CUDA_SUCCESS);
}

/* ---- Virtual memory management ---- */

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    SIM_BEGIN();
    if (!granularity || !prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
        prop->location.id >= sim_n_devices || (unsigned int)option > 1) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *granularity = GRANULARITY;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
    SIM_BEGIN();
    (void)addr; /* a wish, which the real driver may refuse as well */
    if (!ptr || size == 0 || size % GRANULARITY || flags || (alignment & (alignment - (alignment != 0)))) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    unsigned char *base = take(size, alignment > GRANULARITY ? alignment : GRANULARITY);
    if (!base) {
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    add_range((range){.kind = RANGE_RESERVED, .base = base, .pages = size, .start = base, .bytes = size});
    *ptr = (CUdeviceptr)(uintptr_t)base;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    SIM_BEGIN_FREE();
    range *r = find_range((void *)(uintptr_t)ptr, 1u << RANGE_RESERVED);
    if (!r || (CUdeviceptr)(uintptr_t)r->base != ptr || r->bytes != size) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < n_ranges; i++) {
        if (ranges[i].kind == RANGE_MAPPED && ranges[i].base >= r->base && ranges[i].base < r->base + r->bytes) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
    }
    give(r->base, r->pages);
    drop_range(r);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    SIM_BEGIN();
    if (!handle || !prop || flags || size == 0 || size % GRANULARITY || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
        prop->location.id >= sim_n_devices) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    int device = prop->location.id;
    if (used[device] + size > capacity) {
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    int file = memfd_create("cudasim", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) {
        if (file >= 0) {
            close(file);
        }
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p != MAP_FAILED) {
        memset(p, POISON, size);
        munmap(p, size);
    }
    physical *ph = sim_alloc(1, sizeof *ph);
    *ph = (physical){.file = file, .size = size, .device = device};
    n_physical++;
    used[device] += size;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)ph;
    return sim_end(CUDA_SUCCESS);
}

static void physical_settle(physical *ph) {
    if (ph->released && ph->maps == 0) {
        used[ph->device] -= ph->size;
        close(ph->file);
        n_physical--;
        free(ph);
    }
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    SIM_BEGIN_FREE();
    physical *ph = (physical *)(uintptr_t)handle;
    if (!ph || ph->released) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    ph->released = true;
    physical_settle(ph);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    SIM_BEGIN();
    physical *ph = (physical *)(uintptr_t)handle;
    unsigned char *at = (unsigned char *)(uintptr_t)ptr;
    range *r = find_range(at, 1u << RANGE_RESERVED);
    if (!ph || ph->released || !r || flags || offset != 0 || size == 0 || size % GRANULARITY || size > ph->size ||
        (size_t)(r->base + r->bytes - at) < size || (size_t)(at - r->base) % GRANULARITY) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < n_ranges; i++) {
        if (ranges[i].kind == RANGE_MAPPED && ranges[i].base < at + size && at < ranges[i].base + ranges[i].pages) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
    }
    if (mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, ph->file, 0) == MAP_FAILED) {
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    ph->maps++;
    add_range((range){
        .kind = RANGE_MAPPED, .base = at, .pages = size, .start = at, .bytes = size, .device = ph->device, .file = ph});
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    SIM_BEGIN_FREE();
    unsigned char *at = (unsigned char *)(uintptr_t)ptr;
    CUresult result = sim_run_all(); /* the real one waits as well */
    size_t done = 0;
    while (done < size) { /* a range of whole mappings */
        range *r = find_range(at + done, 1u << RANGE_MAPPED);
        if (!r || r->base != at + done || r->pages > size - done) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
        physical *ph = r->file;
        done += r->pages;
        if (mmap(r->base, r->pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
            MAP_FAILED) {
            abort();
        }
        drop_range(r);
        ph->maps--;
        physical_settle(ph);
    }
    return sim_end(result);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    SIM_BEGIN();
    unsigned char *at = (unsigned char *)(uintptr_t)ptr;
    if (!desc || count == 0 || size == 0) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    bool access = desc[0].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    for (int change = 0; change < 2; change++) { /* first look, then do */
        for (size_t done = 0; done < size;) {
            range *r = find_range(at + done, 1u << RANGE_MAPPED);
            if (!r || r->base != at + done || r->pages > size - done) {
                return sim_end(CUDA_ERROR_INVALID_VALUE);
            }
            if (change) {
                r->access = access;
                mprotect(r->base, r->pages, access && (!strict || open_now) ? PROT_READ | PROT_WRITE : PROT_NONE);
            }
            done += r->pages;
        }
    }
    return sim_end(CUDA_SUCCESS);
}

void sim_memory_count(cudasim_counters *c);
void sim_memory_count(cudasim_counters *c) {
    for (size_t i = 0; i < n_ranges; i++) {
        c->live_allocations += ranges[i].kind == RANGE_DEVICE;
        c->live_pinned += ranges[i].kind == RANGE_PINNED;
        c->live_reservations += ranges[i].kind == RANGE_RESERVED;
    }
    c->live_physical = n_physical;
    for (int i = 0; i < SIM_DEVICES; i++) {
        c->device_bytes += used[i];
    }
}

/* ---- Tensor maps: prelude.h reads what is written here. Words: 0 the address, 1 type, rank, kind, swizzle (8 bits each), channels, pixels (16
 * each), 2 to 4 five sizes (32 each) and in the high half of 4 the first stride, 5 and 6 the others (in pieces of 16 bytes), 7 and 8 the corners
 * (16 each), 9 steps (8 each), 10 and 11 the box (16 each). ---- */

static bool map_begin(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, const void *address,
                      const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *step,
                      CUtensorMapSwizzle swizzle) {
    cuuint32_t half[10] = {0};
    memset(map, 0, sizeof *map);
    if (rank < 3 || rank > 5 || (uintptr_t)map % 64 || (uintptr_t)address % 16) {
        return false;
    }
    map->opaque[0] = (uintptr_t)address;
    map->opaque[1] = (cuuint64_t)type | (cuuint64_t)rank << 8 | (cuuint64_t)swizzle << 24;
    for (cuuint32_t k = 0; k < rank; k++) {
        if (size[k] == 0 || size[k] > UINT32_MAX || step[k] == 0 || step[k] > 8) {
            return false;
        }
        half[k] = (cuuint32_t)size[k];
        map->opaque[9] |= (cuuint64_t)step[k] << 8 * k;
        if (k + 1 < rank) {
            if (stride[k] == 0 || stride[k] % 16 || stride[k] >> 35) {
                return false;
            }
            half[5 + k] = (cuuint32_t)(stride[k] / 16);
        }
    }
    for (int k = 0; k < 10; k++) {
        map->opaque[2 + k / 2] |= (cuuint64_t)half[k] << 32 * (k % 2);
    }
    return true;
}

static unsigned int map_bytes(CUtensorMapDataType type) {
    return type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2 : 4;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                                const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    SIM_BEGIN();
    if (!map || !map_begin(map, type, rank, address, size, stride, step, swizzle) || interleave || fill ||
        promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_128B ||
        (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * map_bytes(type) > 128) || box[0] * map_bytes(type) % 16) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (cuuint32_t k = 0; k < rank; k++) {
        if (box[k] == 0 || box[k] > 256) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
        map->opaque[10 + k / 4] |= (cuuint64_t)box[k] << 16 * (k % 4);
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *size, const cuuint64_t *stride, const int *lower, const int *upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *step,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    static const int limit[] = {1 << 15, 1 << 7, 1 << 4};
    SIM_BEGIN();
    if (!map || !map_begin(map, type, rank, address, size, stride, step, swizzle) || interleave || fill ||
        promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_128B || channels == 0 || channels > 256 || pixels == 0 ||
        pixels > 1024 || (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && channels * map_bytes(type) > 128) ||
        channels * map_bytes(type) % 16) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    map->opaque[1] |= UINT64_C(1) << 16 | (cuuint64_t)channels << 32 | (cuuint64_t)pixels << 48;
    for (cuuint32_t k = 0; k + 2 < rank; k++) {
        const int most = limit[rank - 3];
        if (lower[k] < -most || lower[k] >= most || upper[k] < -most || upper[k] >= most ||
            (int64_t)size[k + 1] + upper[k] - lower[k] <= 0) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
        map->opaque[7] |= (cuuint64_t)(uint16_t)lower[k] << 16 * k;
        map->opaque[8] |= (cuuint64_t)(uint16_t)upper[k] << 16 * k;
    }
    return sim_end(CUDA_SUCCESS);
}
