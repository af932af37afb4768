#include "bench/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "base/posix.h"
#include "storage/io_lane.h"

namespace perdure::bench {
namespace {

constexpr std::int64_t kLargeBytes = (std::int64_t{64} << 20) + 1732;
constexpr std::int64_t kSmallBytes = 3076;
constexpr int kSmallCount = 1000;

std::vector<std::byte> RandomBytes(std::int64_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
  return bytes;
}

// Requests that the disk is at; 0 also when it is not known.
std::int64_t InFlight(dev_t device) {
  std::ifstream stats("/proc/diskstats");
  std::string line;
  while (std::getline(stats, line)) {
    std::istringstream fields(line);
    unsigned major_number = 0;
    unsigned minor_number = 0;
    std::string name;
    fields >> major_number >> minor_number >> name;
    if (major_number != major(device) || minor_number != minor(device)) continue;
    // Documentation/admin-guide/iostats.rst: the ninth field.
    std::int64_t value = 0;
    for (int field = 1; field <= 9; ++field) fields >> value;
    return value;
  }
  return 0;
}

// Exit status and output of a command.
std::pair<int, std::string> Output(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) Need(ErrnoStatus(errno, "running " + command));
  std::string text;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    text.append(buffer, got);
  }
  return {::pclose(pipe), text};
}

}  // namespace

const char* const kFioIs = "fio, O_DIRECT by io_uring, same blocks and depth, same file system";

void Need(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "bench: {}\n", status.ToString());
  std::exit(1);
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

DiskState::DiskState(std::int64_t about_bytes) {
  const auto add = [&](const std::string& name, std::int64_t bytes) {
    ShardPiece piece;
    piece.name = name;
    piece.dtype = DType::kU8;
    piece.shape = piece.global_shape = {bytes};
    piece.offset = {0};
    pieces_.push_back(std::move(piece));
    memory_.push_back(RandomBytes(bytes, memory_.size() + 1));
    bytes_ += bytes;
  };
  for (int i = 0; i < kSmallCount; ++i) add(fmt::format("small.{}", i), kSmallBytes);
  for (int i = 0; bytes_ < about_bytes; ++i) add(fmt::format("large.{}", i), kLargeBytes);
}

std::vector<ShardContent> DiskState::Contents() const {
  std::vector<ShardContent> contents;
  for (std::size_t i = 0; i < pieces_.size(); ++i) contents.push_back({pieces_[i], memory_[i]});
  return contents;
}

DiskDirectory::DiskDirectory() {
  const std::string base =
      GetEnv("PERDURE_BENCH_DIR").value_or(std::filesystem::temp_directory_path().string());
  path_ = base + "/perdure-bench-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) Need(ErrnoStatus(errno, "mkdtemp " + path_));
}

DiskDirectory::~DiskDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::int64_t BenchBytes() {
  const Result<std::optional<std::int64_t>> bytes = GetEnvInt("PERDURE_BENCH_BYTES");
  Need(bytes.status());
  return bytes->value_or(std::int64_t{1} << 30);
}

double Fio(const std::string& verb, const std::string& file, std::int64_t bytes) {
  const LaneShape shape;
  const auto block = static_cast<std::int64_t>(shape.block_bytes);
  const std::string command = fmt::format(
      "fio --name=limit --filename={} --rw={} --ioengine=io_uring --direct=1 --bs={} --iodepth={} "
      "--size={} --end_fsync=1 --output-format=json 2>&1",
      file, verb, block, shape.depth, bytes / block * block);
  const auto [ended, text] = Output(command);
  const auto json = nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())),
                                          nullptr, /*allow_exceptions=*/false);
  if (ended != 0 || json.is_discarded()) {
    Need(
        Status(Code::kNotFound,
               fmt::format("fio is the limit to measure against (apt-get install fio): {}", text)));
  }
  return json["jobs"][0][verb]["bw_bytes"].get<double>() / 1e9;
}

void SettleDisk(const std::string& path) {
  constexpr int kQuietLooks = 10;
  constexpr int kLooksMax = 500;
  constexpr auto kBetween = std::chrono::milliseconds(10);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) Need(ErrnoStatus(errno, "open " + path));
  if (::syncfs(fd.get()) != 0) Need(ErrnoStatus(errno, "syncfs " + path));
  int quiet = 0;
  for (int look = 0; look < kLooksMax && quiet < kQuietLooks; ++look) {
    quiet = InFlight(info.st_dev) == 0 ? quiet + 1 : 0;
    std::this_thread::sleep_for(kBetween);
  }
}

void WarmMemory(std::int64_t bytes) {
  constexpr std::int64_t kPage = 4096;
  const auto length = static_cast<std::size_t>(bytes);
  void* const mapped =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) Need(ErrnoStatus(errno, "mmap"));
  auto* const memory = static_cast<volatile char*>(mapped);
  static_cast<void>(::madvise(mapped, length, MADV_HUGEPAGE));
  for (std::int64_t at = 0; at < bytes; at += kPage) memory[at] = 1;
  ::munmap(mapped, length);
}

void ForgetCached(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) Need(ErrnoStatus(errno, "open " + file));
  static_cast<void>(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED));
  const auto bytes = static_cast<std::size_t>(info.st_size);
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) Need(ErrnoStatus(errno, "mmap " + file));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  if (::mincore(memory, bytes, resident.data()) != 0) Need(ErrnoStatus(errno, "mincore " + file));
  ::munmap(memory, bytes);
  const auto cached = std::count_if(resident.begin(), resident.end(),
                                    [](unsigned char pages) { return (pages & 1) != 0; });
  if (static_cast<std::size_t>(cached) * 100 <= resident.size()) return;
  Need(Status(Code::kFailedPrecondition,
              fmt::format("the page cache keeps {} of {} pages of {}: this would not measure the "
                          "disk",
                          cached, resident.size(), file)));
}

}  // namespace perdure::bench
