// Runs a fuzz target without libFuzzer: every file of a corpus, then mutations of them, as many as
// PERDURE_FUZZ_RUNS says (default 20000), from PERDURE_TEST_SEED. Says the seed; when the target
// aborts, the input that did it lies in ./crash-input.
//
//   NAME CORPUS_DIRECTORY
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/posix.h"
#include "fuzz/targets.h"

namespace {

std::string current;  // what the target is looking at

void KeepInput(int signal) {
  std::FILE* const file = std::fopen("crash-input", "wb");
  if (file != nullptr) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Try(const std::string& input) {
  current = input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()), current.size());
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, std::uint64_t seed)
      : corpus_(corpus), random_(seed) {}

  std::string Next() {
    std::string text = corpus_[Below(corpus_.size())];
    for (std::size_t i = 0, n = 1 + Below(4); i < n; ++i) Mutate(text);
    return text;
  }

 private:
  std::size_t Below(std::size_t n) { return n == 0 ? 0 : random_() % n; }

  void Mutate(std::string& text) {
    static const std::vector<std::string> kWords = {"0",
                                                    "-1",
                                                    "1",
                                                    "9223372036854775807",
                                                    "9223372036854775808",
                                                    "18446744073709551615",
                                                    "1e400",
                                                    "0.5",
                                                    "null",
                                                    "true",
                                                    "[]",
                                                    "{}",
                                                    "[[[[[[[[[[[[[[[[[[",
                                                    "\"",
                                                    "\\u0000",
                                                    "\\ud800",
                                                    "\xff",
                                                    "../",
                                                    "\"__metadata__\":{}",
                                                    ",",
                                                    ":",
                                                    "\n",
                                                    " "};
    const std::size_t at = Below(text.size() + 1);
    switch (Below(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
        break;
      case 1:
        text.erase(at, 1 + Below(16));
        break;
      case 2:
        text.insert(at, kWords[Below(kWords.size())]);
        break;
      case 3:
        text.insert(at, text.substr(Below(text.size() + 1), Below(64)));
        break;
      case 4:
        ReplaceNumber(text, kWords[Below(kWords.size())]);
        break;
      case 5: {
        const std::string& other = corpus_[Below(corpus_.size())];
        text = text.substr(0, at) + other.substr(Below(other.size() + 1));
        break;
      }
      default:
        text.resize(at);
        break;
    }
  }

  void ReplaceNumber(std::string& text, const std::string& word) {
    constexpr const char* kDigits = "0123456789";
    const std::size_t begin = text.find_first_of(kDigits, Below(text.size() + 1));
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text.find_first_not_of(kDigits, begin), text.size());
    text.replace(begin, end - begin, word);
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

std::int64_t NumberOr(const char* name, std::int64_t otherwise) {
  const auto given = perdure::GetEnvInt(name);
  return given.ok() && given->has_value() ? **given : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  std::signal(SIGABRT, KeepInput);
  std::signal(SIGSEGV, KeepInput);
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const std::filesystem::path& path : paths) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s holds no inputs\n", argv[1]);
    return 2;
  }
  for (const std::string& input : corpus) Try(input);
  const auto seed = static_cast<std::uint64_t>(
      NumberOr("PERDURE_TEST_SEED", static_cast<std::int64_t>(perdure::RandomU64() >> 1)));
  const std::int64_t runs = NumberOr("PERDURE_FUZZ_RUNS", 20'000);
  std::printf("PERDURE_TEST_SEED=%llu, %zu inputs, %lld mutations\n",
              static_cast<unsigned long long>(seed), corpus.size(), static_cast<long long>(runs));
  std::fflush(stdout);
  Mutator mutator(corpus, seed);
  for (std::int64_t i = 0; i < runs; ++i) Try(mutator.Next());
  return 0;
}
