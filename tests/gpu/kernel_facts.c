/* kernel_facts - what nvcc made of the kernels in object files, without NVIDIA's tools.
 *
 * usage: kernel_facts ARCH OBJECT...
 *
 * A line per kernel of sm_ARCH on standard output, words with spaces between:
 *   registers  frame  local  generic  mma  flight  name (mangled)
 *   frame     bytes of stack of a thread
 *   local     loads and stores of local memory: spills, arrays that are indexed
 *   generic   loads and stores whose memory the compiler does not know
 *   mma       matrix instructions
 *   flight    most loads of 16 bytes from global memory that a thread has under way in straight code
 *
 * An object has kernels in section .nv_fatbin: an ELF file per architecture.  There .nv.info says registers and
 * frames; .text.<kernel> holds instructions of 16 bytes (sm_70 and newer): the opcode is in bits 0-11, the width of a
 * load in 73-75, the barrier that a load sets when it is there in 110-112 and those that an instruction waits
 * for in 116-121.  Checked against NVIDIA's nvdisasm of CUDA 13.1.  Exit status 2: a file that is not so; 3: kernels
 * are compressed (nvcc --no-compress). */
#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAT_MAGIC = (int)0xba55ed50, FAT_ELF = 2, NO_BARRIER = 7, BARRIERS = 6 };

static const char *file; /* for messages */

static void bad(int status, const char *what)
{
    fprintf(stderr, "kernel_facts: %s: %s\n", file, what);
    exit(status);
}

struct bytes {
    const uint8_t *at;
    size_t n;
};

static struct bytes part(struct bytes b, size_t off, size_t n)
{
    if (off > b.n || n > b.n - off) bad(2, "ends in the middle of something");
    return (struct bytes){ b.at + off, n };
}

static uint16_t u16(struct bytes b, size_t off)
{
    uint16_t v;
    memcpy(&v, part(b, off, sizeof v).at, sizeof v);
    return v;
}
static uint32_t u32(struct bytes b, size_t off)
{
    uint32_t v;
    memcpy(&v, part(b, off, sizeof v).at, sizeof v);
    return v;
}
static uint64_t u64(struct bytes b, size_t off)
{
    uint64_t v;
    memcpy(&v, part(b, off, sizeof v).at, sizeof v);
    return v;
}

/* ---- ELF ------------------------------------------------------------------------------------- */

struct section {
    const char *name;
    struct bytes data;
};

static Elf64_Shdr elf_header(struct bytes elf, size_t i)
{
    Elf64_Ehdr h;
    Elf64_Shdr s;
    memcpy(&h, part(elf, 0, sizeof h).at, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64)
        bad(2, "not an ELF file of 64 bits");
    memcpy(&s, part(elf, h.e_shoff + i * sizeof s, sizeof s).at, sizeof s);
    return s;
}

static size_t elf_count(struct bytes elf)
{
    Elf64_Shdr first = elf_header(elf, 0);
    size_t n = u16(elf, offsetof(Elf64_Ehdr, e_shnum));
    return n > 0 ? n : first.sh_size;
}

static const char *elf_string(struct bytes table, size_t off)
{
    if (off >= table.n || !memchr(table.at + off, 0, table.n - off))
        bad(2, "a name without an end");
    return (const char *)table.at + off;
}

static struct section elf_section(struct bytes elf, size_t i)
{
    size_t names = u16(elf, offsetof(Elf64_Ehdr, e_shstrndx));
    Elf64_Shdr zero = elf_header(elf, 0), s = elf_header(elf, i);
    Elf64_Shdr n = elf_header(elf, names == SHN_XINDEX ? zero.sh_link : names);
    bool empty = s.sh_type == SHT_NOBITS || s.sh_type == SHT_NULL;
    return (struct section){ elf_string(part(elf, n.sh_offset, n.sh_size), s.sh_name),
                             empty ? (struct bytes){ elf.at, 0 }
                                   : part(elf, s.sh_offset, s.sh_size) };
}

static bool elf_find(struct bytes elf, const char *name, struct section *out)
{
    for (size_t i = 0; i < elf_count(elf); i++) {
        *out = elf_section(elf, i);
        if (strcmp(out->name, name) == 0) return true;
    }
    return false;
}

/* ---- one kernel ------------------------------------------------------------------------------- */

/* A record of .nv.info that gives a symbol a number; -1: it has none. */
static int64_t info_of(struct bytes info, uint8_t attribute, const char *kernel,
                       struct bytes symbols, struct bytes names)
{
    enum { SIZED = 4 }; /* the record's size follows; of others, two bytes do */
    for (size_t at = 0; at + 4 <= info.n;) {
        const uint8_t *r = info.at + at;
        size_t size = r[0] == SIZED ? u16(info, at + 2) : 0;
        if (r[0] == SIZED && r[1] == attribute && size == 8) {
            size_t symbol = u32(info, at + 4) * sizeof(Elf64_Sym);
            const char *name = elf_string(names, u32(symbols, symbol));
            if (strcmp(name, kernel) == 0) return u32(info, at + 8);
        }
        at += 4 + size;
    }
    return -1;
}

struct facts {
    int local, generic, mma, flight;
};

static int sum(const int *n)
{
    int all = 0;
    for (int i = 0; i < BARRIERS; i++) all += n[i];
    return all;
}

static struct facts look(struct bytes code)
{
    struct facts f = { 0 };
    int under_way[BARRIERS] = { 0 };
    for (size_t at = 0; at + 16 <= code.n; at += 16) {
        uint64_t low = u64(code, at), high = u64(code, at + 8);
        unsigned op = (unsigned)(low & 0xfff), waits = (unsigned)(high >> 52 & 0x3f);
        unsigned sets = (unsigned)(high >> 46 & 7), width = (unsigned)(high >> 9 & 7);
        for (int b = 0; b < BARRIERS; b++)
            if (waits >> b & 1) under_way[b] = 0;
        switch (op) {
        case 0x981: /* LDG */
            if (width == 6 && sets != NO_BARRIER && sets < BARRIERS) under_way[sets]++;
            if (sum(under_way) > f.flight) f.flight = sum(under_way);
            break;
        case 0x983: /* LDL, STL */
        case 0x387: f.local++; break;
        case 0x980: /* LD, ST */
        case 0x385:
        case 0x985: f.generic++; break;
        case 0x23c: /* HMMA, IMMA */
        case 0x237:
        case 0x9f0: /* HGMMA, both factors in shared memory or one */
        case 0xdf0: f.mma++; break;
        case 0x947: /* BRA, EXIT */
        case 0x94d: memset(under_way, 0, sizeof under_way); break;
        default: break;
        }
    }
    return f;
}

static void print_kernels(struct bytes elf)
{
    struct section info, symbols, names;
    if (!elf_find(elf, ".nv.info", &info) || !elf_find(elf, ".symtab", &symbols) ||
        !elf_find(elf, ".strtab", &names))
        return; /* no kernels */
    for (size_t i = 0; i < elf_count(elf); i++) {
        struct section s = elf_section(elf, i);
        if (strncmp(s.name, ".text.", 6) != 0) continue;
        const char *kernel = s.name + 6;
        int64_t registers = info_of(info.data, 0x2f, kernel, symbols.data, names.data);
        int64_t frame = info_of(info.data, 0x11, kernel, symbols.data, names.data);
        struct facts f = look(s.data);
        if (registers < 0 || frame < 0) bad(2, "a kernel without its number of registers");
        printf("%d %d %d %d %d %d %s\n", (int)registers, (int)frame, f.local, f.generic, f.mma,
               f.flight, kernel);
    }
}

/* ---- an object -------------------------------------------------------------------------------- */

static void print_fat(struct bytes fat, unsigned arch)
{
    size_t at = 0;
    while (at + 16 <= fat.n) {
        if (u32(fat, at) != (uint32_t)FAT_MAGIC)
            bad(2, "section .nv_fatbin is not as it was in CUDA 13");
        size_t entry = at + u16(fat, at + 6), end = entry + (size_t)u64(fat, at + 8);
        while (entry < end) {
            size_t header = u32(fat, entry + 4), size = (size_t)u64(fat, entry + 8);
            struct bytes data = part(fat, entry + header, size);
            if (u16(fat, entry) == FAT_ELF && u32(fat, entry + 28) == arch) {
                if (size < SELFMAG || memcmp(data.at, ELFMAG, SELFMAG) != 0)
                    bad(3, "its kernels are compressed, want nvcc --no-compress");
                print_kernels(data);
            }
            entry += header + size;
        }
        at = (end + 7) / 8 * 8;
    }
}

static struct bytes read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) bad(2, "cannot be read");
    long n = ftell(f);
    uint8_t *at = n > 0 ? malloc((size_t)n) : NULL;
    rewind(f);
    if (!at || fread(at, 1, (size_t)n, f) != (size_t)n) bad(2, "cannot be read");
    fclose(f);
    return (struct bytes){ at, (size_t)n };
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: kernel_facts ARCH OBJECT...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        struct section fat;
        file = argv[i];
        struct bytes object = read_file(file);
        if (elf_find(object, ".nv_fatbin", &fat)) print_fat(fat.data, (unsigned)atoi(argv[1]));
        free((void *)(uintptr_t)object.at);
    }
    return 0;
}
