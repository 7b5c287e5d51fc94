// Reads all files of a folder by C++ streams, epoch after epoch; prints a sum of their bytes.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

int main(int count, char **words) {
    if (count != 3) return 2;
    uint64_t sum = 0;
    for (int epoch = 0; epoch < std::atoi(words[2]); epoch++) {
        std::set<std::string> paths;
        for (auto &entry : std::filesystem::directory_iterator(words[1])) paths.insert(entry.path());
        for (auto &path : paths) {
            std::ifstream file(path, std::ios::binary);
            if (!file) return 1;
            std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
            for (unsigned char byte : bytes) sum = sum * 1000003 + byte;
        }
    }
    std::printf("%016llx\n", static_cast<unsigned long long>(sum));
}
