/* A bare MPI program that trains from shared storage, to compare with: it keeps nothing, and reads each of its samples from the
 * source in every epoch. Built by bench/cluster_compare.py with mpicc.
 *
 *     bare_mpi LIST BATCH EPOCHS SEED THREADS WINDOW COMPUTE_MS
 *
 * LIST has the path of a sample in each line. All ranks draw the same order of an epoch, and each takes every world-th sample of
 * it. THREADS read ahead, up to WINDOW samples, so that reading goes on while the trainer computes: what such a program can
 * do without knowing more. Pages of a file that was read are dropped, since what the kernel keeps would be a cache. The
 * trainer looks at each byte, computes for COMPUTE_MS by sleeping, as if on an accelerator, and steps together with the other
 * ranks (MPI_Ibarrier, looked at now and then: MPI_Barrier would keep a core busy that others need).
 *
 * Lines of JSON on its output and lines on its input are as those of bench/hosts_rank.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES_MAX = 4096, LOOK_EVERY_US = 200, ADLER_BASE = 65521, ADLER_RUN = 5552 };

/* A sample that is read, or about to be. */
struct slot {
    unsigned char *bytes;
    size_t size;
    size_t room;
    int is_filled;
};

/* What the trainer and the reading threads share. Positions count the rank's own accesses, over all epochs. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    struct slot *slots;
    long window;
    /* The next position to be read; how many the trainer has let go of; how many it may be given so far. */
    long next, consumed, allowed;
    const uint32_t *order;
    long long read_bytes;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER};

static char **paths;
static long samples;
static int rank, world;

static void fail(const char *what, const char *which) {
    fprintf(stderr, "bare_mpi: rank %d: %s %s: %s\n", rank, what, which, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocated(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) fail("allocate", "memory");
    return memory;
}

static double now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void sleep_us(long us) {
    struct timespec span = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&span, NULL);
}

/* --- Reading ------------------------------------------------------------------------------------------------------------- */

static void read_sample(const char *path, struct slot *slot) {
    struct stat stat;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &stat) != 0) fail("open", path);
    slot->size = stat.st_size;
    if (slot->room < slot->size) {
        free(slot->bytes);
        slot->bytes = allocated(slot->size);
        slot->room = slot->size;
    }
    for (size_t done = 0; done < slot->size;) {
        ssize_t got = read(file, slot->bytes + done, slot->size - done);
        if (got <= 0) fail("read", path);
        done += got;
    }
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
}

static void *keep_reading(void *unused) {
    (void)unused;
    pthread_mutex_lock(&shared.lock);
    for (;;) {
        while (shared.next >= shared.allowed || shared.next >= shared.consumed + shared.window)
            pthread_cond_wait(&shared.freed, &shared.lock);
        long position = shared.next++;
        struct slot *slot = &shared.slots[position % shared.window];
        const char *path = paths[shared.order[position % (samples / world)]];
        pthread_mutex_unlock(&shared.lock);
        read_sample(path, slot);
        pthread_mutex_lock(&shared.lock);
        slot->is_filled = 1;
        shared.read_bytes += slot->size;
        pthread_cond_signal(&shared.filled);
    }
    return unused;
}

/* --- Order --------------------------------------------------------------------------------------------------------------- */

static uint64_t drawn(uint64_t *state) {
    uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

/* This rank's samples of an epoch. */
static void deal(uint32_t *own, uint32_t *all, uint64_t seed, long epoch) {
    uint64_t state = seed * 1000003 + epoch;
    for (long at = 0; at < samples; at++) all[at] = at;
    for (long at = samples - 1; at > 0; at--) {
        long other = drawn(&state) % (at + 1);
        uint32_t kept = all[at];
        all[at] = all[other];
        all[other] = kept;
    }
    for (long at = 0; at < samples / world; at++) own[at] = all[at * world + rank];
}

/* --- Training ------------------------------------------------------------------------------------------------------------ */

static uint32_t adler32(const unsigned char *bytes, size_t size) {
    uint32_t low = 1, high = 0;
    while (size > 0) {
        size_t run = size < ADLER_RUN ? size : ADLER_RUN;
        size -= run;
        while (run-- > 0) {
            low += *bytes++;
            high += low;
        }
        low %= ADLER_BASE;
        high %= ADLER_BASE;
    }
    return high << 16 | low;
}

static void step_together(void) {
    MPI_Request request;
    int is_done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (;;) {
        MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
        if (is_done) return;
        sleep_us(LOOK_EVERY_US);
    }
}

/* An epoch; what was seen is printed. */
static void train(long epoch, long batch, long compute_us) {
    long own = samples / world;
    double waited_s = 0;
    printf("{\"event\": \"epoch\", \"seen\": [");
    for (long at = 0; at < own; at++) {
        struct slot *slot = &shared.slots[(epoch * own + at) % shared.window];
        double asked_s = now_s();
        pthread_mutex_lock(&shared.lock);
        while (!slot->is_filled) pthread_cond_wait(&shared.filled, &shared.lock);
        pthread_mutex_unlock(&shared.lock);
        waited_s += now_s() - asked_s;
        uint32_t digest = adler32(slot->bytes, slot->size);
        printf("%s[%u, \"%08x\"]", at == 0 ? "" : ", ", shared.order[at], digest);
        pthread_mutex_lock(&shared.lock);
        slot->is_filled = 0;
        shared.consumed++;
        pthread_cond_signal(&shared.freed);
        pthread_mutex_unlock(&shared.lock);
        if ((at + 1) % batch == 0 || at + 1 == own) {
            sleep_us(compute_us);
            step_together();
        }
    }
    printf("], \"waited_s\": %.6f, \"source_bytes\": %lld, \"peer_bytes\": 0}\n", waited_s, shared.read_bytes);
    fflush(stdout);
}

static void read_list(const char *name) {
    char line[PATH_BYTES_MAX];
    FILE *list = fopen(name, "r");
    if (list == NULL) fail("open", name);
    while (fgets(line, sizeof line, list) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        paths = realloc(paths, (samples + 1) * sizeof *paths);
        if (paths == NULL || (paths[samples] = strdup(line)) == NULL) fail("allocate", "memory");
        samples++;
    }
    fclose(list);
}

int main(int count, char **words) {
    int granted;
    char go_on[16];
    MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (count != 8) {
        fprintf(stderr, "usage: bare_mpi LIST BATCH EPOCHS SEED THREADS WINDOW COMPUTE_MS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    read_list(words[1]);
    long batch = atol(words[2]), epochs = atol(words[3]), threads = atol(words[5]);
    shared.window = atol(words[6]);
    long own = samples / world, compute_us = atof(words[7]) * 1e3;
    uint32_t *order = allocated(own * sizeof *order), *all = allocated(samples * sizeof *all);
    shared.order = order;
    shared.slots = calloc(shared.window, sizeof *shared.slots);
    if (shared.slots == NULL) fail("allocate", "memory");
    for (long at = 0; at < threads; at++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, keep_reading, NULL) != 0) fail("start", "a thread");
    }
    printf("{\"event\": \"ready\"}\n");
    fflush(stdout);
    for (long epoch = 0; epoch < epochs; epoch++) {
        if (fgets(go_on, sizeof go_on, stdin) == NULL) fail("go on", "without who started it");
        /* All of the epoch before is read and let go of: nobody looks at the order now. */
        pthread_mutex_lock(&shared.lock);
        deal(order, all, strtoull(words[4], NULL, 10), epoch);
        shared.allowed = (epoch + 1) * own;
        pthread_cond_broadcast(&shared.freed);
        pthread_mutex_unlock(&shared.lock);
        train(epoch, batch, compute_us);
    }
    printf("{\"event\": \"end\", \"stats\": {}}\n");
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
