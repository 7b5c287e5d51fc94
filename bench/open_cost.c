/* What open + close of a file costs: the mean of a pass of 2,000, in nanoseconds.   open_cost PATH [relative] */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { OPENS = 2000 };

int main(int count, char **words) {
    struct timespec begin, end;
    for (int warm = 0; warm < 50; warm++) {
        int file = open(words[1], O_RDONLY | O_CLOEXEC);
        if (file < 0) return 1;
        close(file);
    }
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int turn = 0; turn < OPENS; turn++) close(open(words[1], O_RDONLY | O_CLOEXEC));
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.1f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / OPENS);
    return count < 2;
}
