/* A folder shown at another place, as if it lay on a slow storage: a FUSE file system of its own, for root.
 *
 *     cc -O2 -pthread -o slow_files bench/slow_files.c
 *     slow_files FOLDER POINT MB_PER_S DELAY_MS COUNTS
 *
 * All reads share a line of MB_PER_S; each is answered DELAY_MS after the line has carried it, and others go on meanwhile. What a
 * program has read is forgotten when the file is opened again, as storages on a network do it. Metadata is answered at once.
 * COUNTS is a file of four numbers of eight bytes that are always up to date: lookups and looks, opens, reads, bytes.
 * Read-only. Ends when POINT is unmounted.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 16, READ_BYTES_MAX = 1 << 20, NODES_MAX = 1 << 20, VALID_S = 3600 };
enum { LOOKS, OPENS, READS, BYTES, COUNTS };

struct node {
    char *path; /* below the folder; never freed */
    uint64_t inode;
};

static int device;
static const char *folder;
static double bytes_per_ns;
static int64_t delay_ns;
static volatile uint64_t *counts;
static struct node nodes[NODES_MAX];
static uint64_t node_count = FUSE_ROOT_ID + 1;
static pthread_mutex_t nodes_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t line_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t line_free_ns;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void count(int which, uint64_t by) { __atomic_fetch_add(&counts[which], by, __ATOMIC_RELAXED); }

/* Waits until the line has carried so many bytes, and the delay is over. */
static void carry(uint64_t bytes) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    pthread_mutex_lock(&line_lock);
    if (line_free_ns < now_ns)
        line_free_ns = now_ns;
    line_free_ns += (int64_t)(bytes / bytes_per_ns);
    int64_t until_ns = line_free_ns + delay_ns;
    pthread_mutex_unlock(&line_lock);
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

static void answer(uint64_t unique, int error, const void *bytes, size_t size) {
    struct fuse_out_header head = {.len = sizeof head + size, .error = error, .unique = unique};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)bytes, size}};
    if (writev(device, parts, 2) < 0 && errno != ENOENT && errno != ENODEV)
        die("answer");
}

static void path_of(uint64_t node, char *into) {
    const char *path = nodes[node].path;
    snprintf(into, PATH_MAX, "%s/%s", folder, path ? path : "");
}

static struct fuse_attr attributes(const struct stat *found) {
    return (struct fuse_attr){
        .ino = found->st_ino,
        .size = found->st_size,
        .blocks = found->st_blocks,
        .atime = found->st_atim.tv_sec,
        .mtime = found->st_mtim.tv_sec,
        .ctime = found->st_ctim.tv_sec,
        .atimensec = found->st_atim.tv_nsec,
        .mtimensec = found->st_mtim.tv_nsec,
        .ctimensec = found->st_ctim.tv_nsec,
        .mode = found->st_mode,
        .nlink = found->st_nlink,
        .uid = found->st_uid,
        .gid = found->st_gid,
        .blksize = 4096,
    };
}

/* The number of a path that was found, the same whenever it is found again. */
static uint64_t node_of(const char *path, uint64_t inode) {
    pthread_mutex_lock(&nodes_lock);
    /* Files are few and looked up once each, since the kernel keeps what it was told: from the last on. */
    uint64_t at = node_count;
    static uint64_t by_inode[NODES_MAX];
    uint64_t place = inode % NODES_MAX;
    while (by_inode[place] && strcmp(nodes[by_inode[place]].path, path))
        place = (place + 1) % NODES_MAX;
    if (by_inode[place]) {
        at = by_inode[place];
    } else if (at < NODES_MAX) {
        node_count++;
        nodes[at].path = strdup(path);
        nodes[at].inode = inode;
        by_inode[place] = at;
    }
    pthread_mutex_unlock(&nodes_lock);
    return at;
}

static void look_up(const struct fuse_in_header *head, const char *name) {
    char path[PATH_MAX], below[PATH_MAX];
    const char *parent = nodes[head->nodeid].path;
    snprintf(below, sizeof below, "%s%s%s", parent ? parent : "", parent ? "/" : "", name);
    if (snprintf(path, sizeof path, "%s/%s", folder, below) >= (int)sizeof path)
        return answer(head->unique, -ENAMETOOLONG, NULL, 0);
    struct stat found;
    if (lstat(path, &found) != 0)
        return answer(head->unique, -errno, NULL, 0);
    struct fuse_entry_out out = {
        .nodeid = node_of(below, found.st_ino), .entry_valid = VALID_S, .attr_valid = VALID_S, .attr = attributes(&found)};
    answer(head->unique, 0, &out, sizeof out);
}

static void get_attributes(const struct fuse_in_header *head) {
    char path[PATH_MAX];
    path_of(head->nodeid, path);
    struct stat found;
    if (lstat(path, &found) != 0)
        return answer(head->unique, -errno, NULL, 0);
    struct fuse_attr_out out = {.attr_valid = VALID_S, .attr = attributes(&found)};
    answer(head->unique, 0, &out, sizeof out);
}

static void open_node(const struct fuse_in_header *head) {
    char path[PATH_MAX];
    path_of(head->nodeid, path);
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return answer(head->unique, -errno, NULL, 0);
    struct fuse_open_out out = {.fh = opened};
    answer(head->unique, 0, &out, sizeof out);
}

static void read_file(const struct fuse_in_header *head, const struct fuse_read_in *in, char *bytes) {
    ssize_t got = pread(in->fh, bytes, in->size < READ_BYTES_MAX ? in->size : READ_BYTES_MAX, in->offset);
    if (got < 0)
        return answer(head->unique, -errno, NULL, 0);
    count(READS, 1);
    count(BYTES, got);
    carry(got);
    answer(head->unique, 0, bytes, got);
}

/* Folders are listed whole for each part that is asked for; places are numbers of entries. */
static void read_folder(const struct fuse_in_header *head, const struct fuse_read_in *in, char *bytes) {
    char path[PATH_MAX];
    path_of(head->nodeid, path);
    DIR *listed = opendir(path);
    if (!listed)
        return answer(head->unique, -errno, NULL, 0);
    size_t used = 0;
    uint64_t place = 0;
    for (struct dirent *each; (each = readdir(listed));) {
        if (place++ < in->offset)
            continue;
        size_t length = strlen(each->d_name);
        size_t size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
        if (used + size > in->size)
            break;
        struct fuse_dirent entry = {.ino = each->d_ino, .off = place, .namelen = length, .type = each->d_type};
        memset(bytes + used, 0, size);
        memcpy(bytes + used, &entry, FUSE_NAME_OFFSET);
        memcpy(bytes + used + FUSE_NAME_OFFSET, each->d_name, length);
        used += size;
    }
    closedir(listed);
    answer(head->unique, 0, bytes, used);
}

static void begin(const struct fuse_in_header *head, const struct fuse_init_in *in) {
    struct fuse_init_out out = {
        .major = FUSE_KERNEL_VERSION,
        .minor = FUSE_KERNEL_MINOR_VERSION,
        .max_readahead = in->max_readahead,
        .flags = in->flags & (FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES),
        .max_background = 64,
        .congestion_threshold = 48,
        .max_write = 4096,
        .max_pages = READ_BYTES_MAX / 4096,
        .time_gran = 1,
    };
    answer(head->unique, 0, &out, sizeof out);
}

static void serve(const struct fuse_in_header *head, const void *in, char *bytes) {
    switch (head->opcode) {
    case FUSE_INIT:
        return begin(head, in);
    case FUSE_LOOKUP:
        count(LOOKS, 1);
        return look_up(head, in);
    case FUSE_GETATTR:
        count(LOOKS, 1);
        return get_attributes(head);
    case FUSE_OPEN:
        count(OPENS, 1);
        return open_node(head);
    case FUSE_OPENDIR:
        return open_node(head);
    case FUSE_READ:
        return read_file(head, in, bytes);
    case FUSE_READDIR:
        return read_folder(head, in, bytes);
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
        close(((const struct fuse_release_in *)in)->fh);
        return answer(head->unique, 0, NULL, 0);
    case FUSE_STATFS: {
        struct fuse_statfs_out out = {.st = {.bsize = 4096, .frsize = 4096, .namelen = 255}};
        return answer(head->unique, 0, &out, sizeof out);
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        return answer(head->unique, -ENOSYS, NULL, 0);
    }
}

static void *work(void *unused) {
    static const size_t REQUEST_BYTES = 1 << 16;
    char *request = malloc(REQUEST_BYTES);
    char *bytes = malloc(READ_BYTES_MAX);
    if (!request || !bytes)
        die("memory");
    for (;;) {
        ssize_t got = read(device, request, REQUEST_BYTES);
        if (got < 0 && errno == ENODEV)
            exit(0);
        if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
            continue;
        if (got < 0)
            die("read requests");
        const struct fuse_in_header *head = (const void *)request;
        serve(head, head + 1, bytes);
    }
    return unused;
}

int main(int many, char **words) {
    if (many != 6) {
        fprintf(stderr, "usage: slow_files FOLDER POINT MB_PER_S DELAY_MS COUNTS\n");
        return 2;
    }
    folder = words[1];
    bytes_per_ns = atof(words[3]) / 1e3;
    delay_ns = (int64_t)(atof(words[4]) * 1e6);
    int file = open(words[5], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, COUNTS * sizeof *counts) != 0)
        die(words[5]);
    counts = mmap(NULL, COUNTS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED)
        die(words[5]);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0)
        die("/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("slow_files", words[2], "fuse.slow_files", MS_RDONLY | MS_NOSUID | MS_NODEV, options) != 0)
        die(words[2]);
    for (int at = 1; at < THREADS; at++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0)
            die("threads");
    }
    work(NULL);
}
