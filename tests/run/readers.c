/* Many readers of large files, each in its own way and at random: seeks, reads, reads by place, duplicates, forks, streams, threads.
 * Every byte is compared with what the file's number says; who reads a wrong one says so and ends with 1.
 *
 *   readers FOLDER FILES READERS SEED
 *
 * Files are FOLDER/0.rec ...; FOLDER/N.rec has 3,000,000 + N bytes: tests/run/conftest.py makes them. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = (1 + 65536 / 8) * 8, STEPS = 60, PIECE = 9000 };

static uint64_t state;
static uint64_t drawn(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static unsigned char byte_of(uint64_t number, uint64_t at) {
    at %= BLOCK;
    return (unsigned char)((number * 1000003 + at / 8) >> (8 * (at % 8)));
}

static void check(uint64_t number, uint64_t at, const unsigned char *got, ssize_t len, const char *how) {
    for (ssize_t place = 0; place < len; place++)
        if (got[place] != byte_of(number, at + place)) {
            fprintf(stderr, "wrong byte of %lu at %lu by %s\n", number, at + place, how);
            exit(1);
        }
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

struct threaded { int file; uint64_t number, seed; };

static void *in_thread(void *given) {
    struct threaded *own = given;
    unsigned char bytes[PIECE];
    uint64_t seed = own->seed;
    for (int step = 0; step < 50; step++) {
        seed = seed * 6364136223846793005u + 1;
        uint64_t at = (seed >> 33) % 3000000;
        ssize_t got = pread(own->file, bytes, 1 + (seed >> 40) % PIECE, at);
        if (got < 0) fail("pread in a thread");
        check(own->number, at, bytes, got, "a thread");
    }
    return NULL;
}

static void threads(int file, uint64_t number) {
    pthread_t all[3];
    struct threaded given[3];
    for (int index = 0; index < 3; index++) {
        given[index] = (struct threaded){file, number, drawn(1 << 30)};
        if (pthread_create(&all[index], NULL, in_thread, &given[index])) fail("pthread_create");
    }
    for (int index = 0; index < 3; index++) pthread_join(all[index], NULL);
}

/* A child and its parent share the place in the file: what the child reads, the parent has behind it. */
static uint64_t forked(int file, uint64_t number, uint64_t at) {
    unsigned char bytes[PIECE];
    uint64_t len = 1 + drawn(PIECE);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        ssize_t got = read(file, bytes, len);
        if (got < 0) fail("read in a child");
        check(number, at, bytes, got, "a child");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status) exit(1);
    uint64_t now = lseek(file, 0, SEEK_CUR), size = 3000000 + number;
    uint64_t wanted = at > size ? at : at + len > size ? size : at + len;
    if (now != wanted) {
        fprintf(stderr, "after a child read %lu from %lu the place is %lu\n", len, at, now);
        exit(1);
    }
    return now;
}

static void reads(const char *folder, uint64_t files) {
    char path[4096];
    unsigned char bytes[PIECE];
    /* Half of them do nothing that would keep their descriptor from moving. */
    uint64_t number = drawn(files), at = 0, ways = drawn(2) ? 40 : 16;
    snprintf(path, sizeof path, "%s/%lu.rec", folder, number);
    int file = open(path, O_RDONLY | (drawn(2) ? O_CLOEXEC : 0));
    if (file < 0) fail(path);
    for (int step = 0; step < STEPS; step++) {
        uint64_t len = 1 + drawn(PIECE);
        ssize_t got;
        switch (ways == 40 || drawn(2) ? drawn(ways) : 39) {
        case 0: case 1: case 2: case 3: case 4: case 5: case 6: case 7:
            at = drawn(3000100);
            if (lseek(file, at, SEEK_SET) != (off_t)at) fail("lseek");
            break;
        case 8: case 9: case 10: case 11: case 12: case 13: case 14: case 15: {
            uint64_t from = drawn(3000100);
            got = pread(file, bytes, len, from);
            if (got < 0) fail("pread");
            check(number, from, bytes, got, "pread");
            break;
        }
        case 16: {
            int second = dup(file);
            if (second < 0) fail("dup");
            got = read(second, bytes, len);
            if (got < 0) fail("read of a duplicate");
            check(number, at, bytes, got, "a duplicate");
            at += got;
            close(second);
            break;
        }
        case 17: at = forked(file, number, at); break;
        case 18: threads(file, number); break;
        case 19: {
            struct stat named, opened;
            if (stat(path, &named) || fstat(file, &opened)) fail("stat");
            if (named.st_ino != opened.st_ino || named.st_dev != opened.st_dev || named.st_size != opened.st_size) {
                fprintf(stderr, "%s is not what was opened\n", path);
                exit(1);
            }
            break;
        }
        case 20: {
            FILE *stream = fopen(path, "rb");
            uint64_t from = drawn(3000000);
            if (!stream || fseek(stream, from, SEEK_SET)) fail("fopen");
            got = fread(bytes, 1, len, stream);
            check(number, from, bytes, got, "a stream");
            fclose(stream);
            break;
        }
        case 21: {
            int other = fcntl(file, F_DUPFD_CLOEXEC, 50);
            if (other < 0) fail("fcntl");
            close(file);
            file = other;
            break;
        }
        case 22: {
            close(file);
            file = open(path, O_RDONLY | O_CLOEXEC);
            if (file < 0) fail(path);
            at = 0;
            break;
        }
        default:
            got = read(file, bytes, len);
            if (got < 0) fail("read");
            check(number, at, bytes, got, "read");
            at += got;
        }
        if (drawn(4) == 0) usleep(drawn(3000));
    }
    close(file);
}

int main(int count, char **words) {
    if (count != 5) return 2;
    int readers = atoi(words[3]), failed = 0, alive = 0;
    for (int reader = 0; reader < readers; reader++) {
        if (alive == 16) {
            int status;
            wait(&status);
            alive--;
            failed |= status != 0;
        }
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            state = strtoul(words[4], NULL, 10) * 1000003 + reader;
            drawn(2);
            reads(words[1], strtoul(words[2], NULL, 10));
            exit(0);
        }
        alive++;
    }
    for (; alive; alive--) {
        int status;
        wait(&status);
        failed |= status != 0;
    }
    puts(failed ? "wrong" : "right");
    return failed;
}
