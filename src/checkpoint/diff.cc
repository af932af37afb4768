#include "checkpoint/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/inspect.h"
#include "checkpoint/layout.h"
#include "checkpoint/reader.h"

namespace perdure {
namespace {

// Whether the chunks of both can be compared one by one: the same pieces, and elements that end
// where chunks end.
bool SameCuts(const std::vector<Contents::Place>& a, const std::vector<Contents::Place>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].piece.offset != b[i].piece.offset || a[i].piece.shape != b[i].piece.shape) {
      return false;
    }
  }
  return true;
}

bool SameHashes(const std::vector<Contents::Place>& a, const std::vector<Contents::Place>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].piece.chunk_hashes != b[i].piece.chunk_hashes) return false;
  }
  return true;
}

class Differ {
 public:
  Differ(Files& files, Contents& a, Contents& b) : files_(files), a_(a), b_(b) {}

  std::int64_t bytes_read() const { return bytes_read_; }

  // Elements of the tensor that differ.
  Result<std::int64_t> Compare(const Piece& whole) {
    const auto& in_a = a_.PiecesOf(whole.name);
    const auto& in_b = b_.PiecesOf(whole.name);
    const int bits = BitsOf(whole.dtype);
    if (!SameCuts(in_a, in_b)) return CompareWhole(whole);
    if (SameHashes(in_a, in_b)) return 0;
    if (kHashChunkBytes * 8 % bits != 0) return CompareWhole(whole);
    return CompareChunks(bits, in_a, in_b);
  }

 private:
  Result<std::int64_t> CompareChunks(int bits, const std::vector<Contents::Place>& in_a,
                                     const std::vector<Contents::Place>& in_b) {
    std::int64_t different = 0;
    std::vector<std::byte> from_a;
    std::vector<std::byte> from_b;
    for (std::size_t i = 0; i < in_a.size(); ++i) {
      const ShardPiece& piece = in_a[i].piece;
      for (std::size_t chunk = 0; chunk < piece.chunk_hashes.size(); ++chunk) {
        if (piece.chunk_hashes[chunk] == in_b[i].piece.chunk_hashes[chunk]) continue;
        from_a.resize(static_cast<std::size_t>(ChunkBytes(piece, chunk)));
        from_b.resize(from_a.size());
        PERDURE_RETURN_IF_ERROR(a_.ReadChunk(in_a[i], chunk, from_a));
        PERDURE_RETURN_IF_ERROR(b_.ReadChunk(in_b[i], chunk, from_b));
        bytes_read_ += 2 * static_cast<std::int64_t>(from_a.size());
        different += CountDifferent(bits, from_a, from_b);
      }
    }
    return different;
  }

  Result<std::int64_t> CompareWhole(const Piece& whole) {
    PERDURE_ASSIGN_OR_RETURN(const std::vector<std::byte> from_a, ReadWhole(a_, whole));
    PERDURE_ASSIGN_OR_RETURN(const std::vector<std::byte> from_b, ReadWhole(b_, whole));
    return CountDifferent(BitsOf(whole.dtype), from_a, from_b);
  }

  Result<std::vector<std::byte>> ReadWhole(Contents& from, const Piece& whole) {
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, ByteCount(whole.dtype, whole.shape));
    std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
    PERDURE_ASSIGN_OR_RETURN(
        const std::int64_t read,
        ReadPieces(files_, from.directory(), from.manifest(), Rank(0), {whole},
                   [&](std::size_t) -> std::span<std::byte> { return memory; }));
    bytes_read_ += read;
    return memory;
  }

  Files& files_;
  Contents& a_;
  Contents& b_;
  std::int64_t bytes_read_ = 0;
};

// The difference that the manifests alone show; empty: none.
std::string InManifests(const Manifest& a, const Manifest& b, const std::string& name, bool blob) {
  if (blob) {
    const auto in_a = a.blobs.find(name);
    const auto in_b = b.blobs.find(name);
    if (in_b == b.blobs.end()) return "only in A";
    if (in_a == a.blobs.end()) return "only in B";
    if (in_a->second == in_b->second) return "";
    return fmt::format("{} bytes in A, {} in B", in_a->second, in_b->second);
  }
  const TensorFacts* const in_a = a.FactsOf(name);
  const TensorFacts* const in_b = b.FactsOf(name);
  if (in_b == nullptr) return "only in A";
  if (in_a == nullptr) return "only in B";
  const TensorFacts& x = *in_a;
  const TensorFacts& y = *in_b;
  std::string what;
  if (x.dtype != y.dtype) {
    what = fmt::format("dtype {} in A, {} in B", NameOf(x.dtype), NameOf(y.dtype));
  }
  if (x.shape != y.shape) {
    what += fmt::format("{}shape {} in A, {} in B", what.empty() ? "" : "; ", ToString(x.shape),
                        ToString(y.shape));
  }
  return what;
}

// Files of a program's own format are compared by their hashes; what is in them is its business.
void CompareFiles(const Manifest& a, const Manifest& b, DiffReport& report) {
  const auto by_path = [](const Manifest& manifest) {
    std::map<std::string, const ForeignFile*> files;
    for (const auto& [part, of_part] : manifest.foreign) {
      for (const ForeignFile& file : of_part) {
        files[fmt::format("{}/{}/{}", kForeignDirectory, part, file.name)] = &file;
      }
    }
    return files;
  };
  const auto in_a = by_path(a);
  const auto in_b = by_path(b);
  const auto differ = [&](const std::string& path, std::string what) {
    report.differences.push_back({path, "file", std::move(what), 0, 0});
  };
  for (const auto& [path, file] : in_a) {
    const auto found = in_b.find(path);
    if (found == in_b.end()) {
      differ(path, "only in A");
    } else if (file->bytes != found->second->bytes) {
      differ(path, fmt::format("{} bytes in A, {} in B", file->bytes, found->second->bytes));
    } else if (file->digest != found->second->digest) {
      differ(path, "bytes");
    } else {
      ++report.same;
    }
  }
  for (const auto& [path, file] : in_b) {
    if (in_a.count(path) == 0) differ(path, "only in B");
  }
}

}  // namespace

std::int64_t CountDifferent(int bits, std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return 0;
  std::int64_t different = 0;
  if (bits % 8 == 0) {
    const auto width = static_cast<std::size_t>(bits / 8);
    for (std::size_t at = 0; at < a.size(); at += width) {
      different += std::memcmp(a.data() + at, b.data() + at, width) != 0 ? 1 : 0;
    }
    return different;
  }
  const std::size_t count = a.size() * 8 / static_cast<std::size_t>(bits);
  for (std::size_t element = 0; element < count; ++element) {
    bool same = true;
    for (std::size_t bit = element * static_cast<std::size_t>(bits), end = bit + bits;
         same && bit < end; ++bit) {
      const auto mask = static_cast<std::byte>(1U << (bit % 8));
      same = (a[bit / 8] & mask) == (b[bit / 8] & mask);
    }
    different += same ? 0 : 1;
  }
  return different;
}

Result<DiffReport> DiffCheckpoints(Files& files, const CheckpointPlace& a, const CheckpointPlace& b,
                                   const WorkProgress& progress) {
  const auto load = [&](const CheckpointPlace& place) -> Result<Contents> {
    PERDURE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, place.root, place.name));
    return Contents::Load(files, JoinPath(place.root, FormatName(place.name)), std::move(manifest));
  };
  PERDURE_ASSIGN_OR_RETURN(Contents in_a, load(a));
  PERDURE_ASSIGN_OR_RETURN(Contents in_b, load(b));
  const Manifest& x = in_a.manifest();
  const Manifest& y = in_b.manifest();
  std::set<std::pair<std::string, bool>> names;
  for (const Manifest* const manifest : {&x, &y}) {
    for (const auto& [name, facts] : manifest->TensorsByName()) names.emplace(name, false);
    for (const auto& [name, bytes] : manifest->blobs) names.emplace(name, true);
  }
  DiffReport report;
  Differ differ(files, in_a, in_b);
  std::int64_t done = 0;
  const std::int64_t total = x.TotalBytes();
  for (const auto& [name, blob] : names) {
    ContentDifference difference{name, blob ? "blob" : "tensor", InManifests(x, y, name, blob), 0,
                                 0};
    if (!difference.what.empty()) {
      report.differences.push_back(std::move(difference));
      continue;
    }
    const Shape shape = blob ? Shape{x.blobs.at(name)} : x.FactsOf(name)->shape;
    const DType dtype = blob ? DType::kU8 : x.FactsOf(name)->dtype;
    const Piece whole{name, blob, dtype, shape, Shape(shape.size(), 0), shape};
    PERDURE_ASSIGN_OR_RETURN(difference.different, differ.Compare(whole));
    PERDURE_ASSIGN_OR_RETURN(difference.elements, ElementCount(shape));
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, ByteCount(dtype, shape));
    done += bytes;
    if (progress) progress(std::min(done, total), total);
    if (difference.different == 0) {
      ++report.same;
      continue;
    }
    difference.what = "values";
    report.differences.push_back(std::move(difference));
  }
  CompareFiles(x, y, report);
  report.bytes_read = differ.bytes_read();
  return report;
}

}  // namespace perdure
