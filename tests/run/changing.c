/* Files that change while they are read: a writer who is no program of ours, as on another host, and readers who are.
 *
 *   changing make  FOLDER STATE FILES
 *   changing write FOLDER STATE FILES MILLISECONDS SEED
 *   changing read  FOLDER STATE FILES MILLISECONDS SEED READERS
 *
 * A file is a row of words, each with the file's number, the version that wrote it, and its place. STATE is shared memory: which
 * version of a file was begun, which one was closed, and how long that is. Who opens a file after a version was closed must
 * read that one or a later one, every word at its place; who reads a file that nobody changed meanwhile, all of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILES_MAX = 64, WORDS_MAX = 500000, PIECE = 6000 };

/* What is known of a file. `base` is the version that wrote all of it: words of an append are newer. */
struct known { _Atomic uint64_t begun, closed, base, words; };
static struct known *all;

static uint64_t state;
static uint64_t drawn(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void name(char *path, const char *folder, uint64_t number) { snprintf(path, 4096, "%s/%lu.bin", folder, number); }

static uint64_t word(uint64_t number, uint64_t version, uint64_t place) { return number << 56 | version << 24 | place; }

/* --- Writing --- */

static void fill(int file, uint64_t number, uint64_t version, uint64_t from, uint64_t to) {
    static uint64_t words[WORDS_MAX];
    for (uint64_t place = from; place < to; place++) words[place] = word(number, version, place);
    size_t done = from * 8;
    while (done < to * 8) {
        ssize_t wrote = pwrite(file, (char *)words + done, to * 8 - done, done);
        if (wrote <= 0) fail("write");
        done += wrote;
    }
}

/* Even files are small, odd ones large. */
static uint64_t length(uint64_t number) { return number % 2 ? 150000 + drawn(250000) : 1 + drawn(20000); }

static int opened(const char *path, int flags) {
    int file = open(path, flags, 0644);
    if (file < 0) fail(path);
    return file;
}

static void change(const char *folder, uint64_t number) {
    char path[4096], other[4200];
    struct known *known = &all[number];
    uint64_t version = known->closed + 1, words = length(number), way = drawn(6), from = 0;
    name(path, folder, number);
    struct stat before;
    if (stat(path, &before)) fail("stat");
    known->begun = version;
    switch (way) {
    case 0: { /* Replaced. */
        snprintf(other, sizeof other, "%s.new", path);
        int file = opened(other, O_WRONLY | O_CREAT | O_TRUNC);
        fill(file, number, version, 0, words);
        close(file);
        if (rename(other, path)) fail("rename");
        break;
    }
    case 1: { /* Emptied and written anew. */
        int file = opened(path, O_WRONLY | O_TRUNC);
        fill(file, number, version, 0, words);
        close(file);
        break;
    }
    case 2: { /* Written over and cut off, or made longer. */
        int file = opened(path, O_WRONLY);
        fill(file, number, version, 0, words);
        if (ftruncate(file, words * 8)) fail("ftruncate");
        close(file);
        break;
    }
    case 3: { /* Written over, with the same size and time of modification. */
        int file = opened(path, O_WRONLY);
        words = known->words;
        fill(file, number, version, 0, words);
        struct timespec times[2] = {before.st_atim, before.st_mtim};
        if (futimens(file, times)) fail("futimens");
        close(file);
        break;
    }
    case 4: { /* Deleted, and there again. */
        if (unlink(path)) fail("unlink");
        usleep(drawn(20000));
        int file = opened(path, O_WRONLY | O_CREAT | O_EXCL);
        fill(file, number, version, 0, words);
        close(file);
        break;
    }
    default: { /* Appended to. */
        from = known->words;
        words = from + 1 + drawn(1000);
        if (words > WORDS_MAX) {
            known->begun = version - 1;
            return;
        }
        int file = opened(path, O_WRONLY);
        fill(file, number, version, from, words);
        close(file);
    }
    }
    known->words = words;
    if (from == 0) known->base = version;
    known->closed = version;
}

static int writes(const char *folder, uint64_t files, int64_t end_ms) {
    uint64_t changes = 0;
    for (; now_ms() < end_ms; changes++) {
        change(folder, drawn(files));
        /* A file is left alone for some seconds between two changes, so that it is copied. */
        usleep(1000 * (1 + drawn(2 * 4000 / files)));
    }
    printf("%lu changes\n", changes);
    return 0;
}

/* --- Reading --- */

static _Noreturn void wrong(const char *what, uint64_t number, uint64_t found, uint64_t low, uint64_t high) {
    fprintf(stderr, "file %lu: %s: %lu, not from %lu to %lu\n", number, what, found, low, high);
    exit(1);
}

static void reads_one(const char *folder, uint64_t number) {
    char path[4096];
    static uint64_t words[PIECE];
    struct known *known = &all[number];
    name(path, folder, number);
    uint64_t base = known->base, closed = known->closed, begun = known->begun;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        if (errno == ENOENT && (begun != closed || known->begun != begun)) return;
        fail(path);
    }
    uint64_t place = 0, last = 0, newest;
    int by_place = drawn(2), pauses = drawn(3) == 0;
    for (;;) {
        uint64_t want = 1 + drawn(PIECE);
        ssize_t got = by_place ? pread(file, words, want * 8, place * 8) : read(file, words, want * 8);
        if (got < 0) fail("read");
        if (got == 0) break;
        /* A writer may be between two words. */
        uint64_t whole = got / 8;
        newest = known->begun;
        for (uint64_t index = 0; index < whole; index++) {
            uint64_t found = words[index], version = found >> 24 & 0xffffffff;
            if (found >> 56 != number) wrong("a word of another file", number, found >> 56, number, number);
            if ((found & 0xffffff) != place + index) wrong("a word of another place", number, found & 0xffffff, place + index, place + index);
            if (version < base || version > newest) wrong("an old word", number, version, base, newest);
            last = version;
        }
        place += whole;
        if (got % 8) {
            if (known->begun == closed && begun == closed) wrong("half a word at the end", number, got, 0, 0);
            break;
        }
        if (pauses) usleep(drawn(2000));
    }
    uint64_t length_now = known->words;
    /* Nobody changed it between before it was opened and now: all of it must have been read. */
    if (begun == closed && known->begun == closed) {
        if (place != length_now) wrong("its length in words", number, place, length_now, length_now);
        if (place && last != closed) wrong("the version of its end", number, last, closed, closed);
    }
    close(file);
}

static int reads(const char *folder, uint64_t files, int64_t end_ms, int readers) {
    uint64_t seed = state;
    for (int reader = 0; reader < readers; reader++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child) continue;
        state = seed * 1000003 + reader;
        drawn(2);
        while (now_ms() < end_ms) {
            reads_one(folder, drawn(files));
            usleep(drawn(3000));
        }
        exit(0);
    }
    int failed = 0;
    for (int reader = 0; reader < readers; reader++) {
        int status;
        wait(&status);
        failed |= status != 0;
    }
    puts(failed ? "wrong" : "right");
    return failed;
}

int main(int count, char **words) {
    if (count < 5) return 2;
    uint64_t files = strtoul(words[4], NULL, 10);
    if (files > FILES_MAX) return 2;
    int shared = open(words[3], O_RDWR | O_CREAT, 0600);
    if (shared < 0 || ftruncate(shared, FILES_MAX * sizeof *all)) fail(words[3]);
    all = mmap(NULL, FILES_MAX * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    if (all == MAP_FAILED) fail("mmap");
    close(shared);
    if (!strcmp(words[1], "make")) {
        for (uint64_t number = 0; number < files; number++) {
            char path[4096];
            name(path, words[2], number);
            uint64_t length_now = length(number);
            int file = opened(path, O_WRONLY | O_CREAT | O_EXCL);
            fill(file, number, 1, 0, length_now);
            close(file);
            all[number].words = length_now;
            all[number].begun = all[number].closed = all[number].base = 1;
        }
        return 0;
    }
    if (count < 7) return 2;
    int64_t end_ms = now_ms() + atol(words[5]);
    state = strtoul(words[6], NULL, 10);
    if (!strcmp(words[1], "write")) return writes(words[2], files, end_ms);
    return count == 8 ? reads(words[2], files, end_ms, atoi(words[7])) : 2;
}
