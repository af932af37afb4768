#include "checkpoint/shard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/posix.h"
#include "checkpoint/hash.h"
#include "checkpoint/names.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/staging.h"
#include "storage/posix_files.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

constexpr std::int64_t kBig = 3 * kHashChunkBytes / 2;  // two chunks

std::vector<std::byte> RandomBytes(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void Spew(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// Every dtype, 0-dim, empty, one larger than a chunk, a piece of a larger tensor, a blob.
struct Sample {
  std::vector<ShardPiece> pieces;
  std::vector<std::vector<std::byte>> bytes;

  void Add(const std::string& name, DType dtype, Shape shape, bool blob = false) {
    ShardPiece piece;
    piece.name = name;
    piece.blob = blob;
    piece.dtype = dtype;
    piece.shape = shape;
    piece.global_shape = shape;
    piece.offset = Shape(shape.size(), 0);
    bytes.push_back(RandomBytes(*ByteCount(dtype, shape), pieces.size() + 1));
    pieces.push_back(std::move(piece));
  }

  Sample() {
    for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
      const auto dtype = static_cast<DType>(i);
      Add("all." + std::string(NameOf(dtype)), dtype, {2, 4});
      if (BitsOf(dtype) >= 8) Add("scalar." + std::string(NameOf(dtype)), dtype, {});
    }
    Add("empty", DType::kF32, {0, 5});
    Add("big", DType::kU8, {kBig});
    Add("blob", DType::kU8, {13}, true);
    Add("name with \"quotes\" and é", DType::kF32, {3});
    pieces.back().global_shape = {10};
    pieces.back().offset = {7};
  }

  std::vector<ShardContent> Contents() const {
    std::vector<ShardContent> contents;
    for (std::size_t i = 0; i < pieces.size(); ++i) contents.push_back({pieces[i], bytes[i]});
    return contents;
  }
};

const ShardInfo kInfo{{Generation(3), Step(200)}, "5f1c9a2e", Rank(1), 4};

class ShardTest : public testing::Test {
 protected:
  ShardTest() {
    Result<ManifestFile> file = WriteShard(files_, dir_.path(), kInfo, sample_.Contents());
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    if (file.ok()) file_ = *file;
  }
  std::string path() const { return dir_ / file_.name; }

  // Opens and reads everything; the first error.
  Status ReadAll() {
    const auto shard = ShardReader::Open(files_, dir_.path(), file_);
    PERDURE_RETURN_IF_ERROR(shard.status());
    for (const ShardPiece& piece : (*shard)->index().pieces) {
      for (std::size_t chunk = 0; chunk < piece.chunk_hashes.size(); ++chunk) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(ChunkBytes(piece, chunk)));
        PERDURE_RETURN_IF_ERROR((*shard)->ReadChunk(piece, chunk, bytes));
      }
    }
    return Ok();
  }

  TempDir dir_;
  PosixFiles files_;
  Sample sample_;
  ManifestFile file_;
};

TEST_F(ShardTest, EveryDTypeComesBackBitExact) {
  const auto shard = ShardReader::Open(files_, dir_.path(), file_);
  ASSERT_TRUE(shard.ok()) << shard.status().ToString();
  EXPECT_EQ((*shard)->index().info, kInfo);
  ASSERT_EQ((*shard)->index().pieces.size(), sample_.pieces.size());
  for (std::size_t i = 0; i < sample_.pieces.size(); ++i) {
    const ShardPiece& wanted = sample_.pieces[i];
    SCOPED_TRACE(wanted.name);
    const auto& pieces = (*shard)->index().pieces;
    const auto found = std::find_if(pieces.begin(), pieces.end(), [&](const ShardPiece& piece) {
      return piece.name == wanted.name;
    });
    ASSERT_NE(found, pieces.end());
    EXPECT_EQ(found->dtype, wanted.dtype);
    EXPECT_EQ(found->shape, wanted.shape);
    EXPECT_EQ(found->global_shape, wanted.global_shape);
    EXPECT_EQ(found->offset, wanted.offset);
    EXPECT_EQ(found->blob, wanted.blob);
    std::vector<std::byte> all;
    for (std::size_t chunk = 0; chunk < found->chunk_hashes.size(); ++chunk) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(ChunkBytes(*found, chunk)));
      ASSERT_TRUE((*shard)->ReadChunk(*found, chunk, bytes).ok());
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    EXPECT_EQ(all, sample_.bytes[i]);
  }
}

// A reader that knows nothing of Perdure, written from the rules of the format.
TEST_F(ShardTest, OpensAsSafetensors) {
  const std::string text = Slurp(path());
  std::uint64_t n = 0;
  std::memcpy(&n, text.data(), 8);
  ASSERT_LE(n, 100'000'000u);
  ASSERT_EQ((8 + n) % 4096, 0u);
  ASSERT_EQ(text[8], '{');
  const auto json = nlohmann::json::parse(text.substr(8, n));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items()) EXPECT_TRUE(value.is_string()) << key;
      continue;
    }
    std::uint64_t bits =
        static_cast<std::uint64_t>(BitsOf(*DTypeFromName(entry.at("dtype").get<std::string>())));
    for (const auto& extent : entry.at("shape")) bits *= extent.get<std::uint64_t>();
    const std::uint64_t begin = entry.at("data_offsets").at(0);
    const std::uint64_t end = entry.at("data_offsets").at(1);
    EXPECT_EQ(bits % 8, 0u);
    EXPECT_EQ(end - begin, bits / 8) << name;
    ranges.emplace_back(begin, end);
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    EXPECT_EQ(begin, at);
    at = end;
  }
  EXPECT_EQ(at, text.size() - 8 - n);
}

TEST_F(ShardTest, EveryFlippedByteIsFoundAndNamed) {
  const std::string text = Slurp(path());
  const auto header = static_cast<std::size_t>(file_.header_bytes);
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at < header; ++at) places.push_back(at);
  // Of the data: every byte of the small tensors, some of the big one.
  const auto shard = ShardReader::Open(files_, dir_.path(), file_);
  ASSERT_TRUE(shard.ok());
  for (const ShardPiece& piece : (*shard)->index().pieces) {
    const std::int64_t stride = piece.end - piece.begin > 1000 ? 999'983 : 1;
    for (std::int64_t at = piece.begin; at < piece.end; at += stride) {
      places.push_back(header + static_cast<std::size_t>(at));
    }
  }
  std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, char c) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(c);
    file.flush();
  };
  for (const std::size_t at : places) {
    put(at, static_cast<char>(text[at] ^ (1 << (at % 8))));
    const Status status =
        at < header ? ShardReader::Open(files_, dir_.path(), file_).status() : [&] {
          // Only the piece that is hit, to read little per flip.
          for (const ShardPiece& piece : (*shard)->index().pieces) {
            const auto in_data = static_cast<std::int64_t>(at - header);
            if (in_data < piece.begin || in_data >= piece.end) continue;
            const auto chunk = static_cast<std::size_t>((in_data - piece.begin) / kHashChunkBytes);
            std::vector<std::byte> bytes(static_cast<std::size_t>(ChunkBytes(piece, chunk)));
            Status read = (*shard)->ReadChunk(piece, chunk, bytes);
            EXPECT_NE(read.message().find(piece.name), std::string::npos);
            return read;
          }
          return Ok();
        }();
    put(at, text[at]);
    ASSERT_EQ(status.code(), Code::kDataLoss) << "byte " << at;
    ASSERT_NE(status.message().find(file_.name), std::string::npos);
  }
  EXPECT_TRUE(ReadAll().ok());
}

TEST_F(ShardTest, TruncationAndTrailingBytesAreFound) {
  const std::string text = Slurp(path());
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{7}, std::size_t{4096}, text.size() / 2, text.size() - 1}) {
    Spew(path(), text.substr(0, bytes));
    EXPECT_EQ(ReadAll().code(), Code::kDataLoss) << bytes;
  }
  Spew(path(), text + "x");
  EXPECT_EQ(ReadAll().code(), Code::kDataLoss);
  std::filesystem::remove(path());
  EXPECT_EQ(ReadAll().code(), Code::kDataLoss);
}

TEST_F(ShardTest, TheIndexMustDescribeTheFile) {
  std::vector<ShardPiece> pieces = {sample_.pieces[0]};
  ASSERT_TRUE(LayOut(pieces).ok());
  pieces[0].chunk_hashes = {1};
  const auto parse = [&](const std::vector<ShardPiece>& written) {
    const std::string header = *FormatShardHeader(kInfo, written);
    return ParseShardHeader(header, static_cast<std::int64_t>(header.size()) + written[0].end, "f")
        .status();
  };
  EXPECT_TRUE(parse(pieces).ok());
  auto broken = pieces;
  broken[0].offset = {1, 0};
  EXPECT_FALSE(parse(broken).ok()) << "reaches beyond its global shape";
  broken = pieces;
  broken[0].global_shape = {2};
  EXPECT_FALSE(parse(broken).ok());
  const std::string foreign = *FormatSafetensorsHeader({}, {{"format", "pt"}});
  EXPECT_FALSE(ParseShardHeader(foreign, static_cast<std::int64_t>(foreign.size()), "f").ok());
}

// ---------------------------------------------------------------- several files

TEST(SplitShards, PastTheHeaderLimitTheRankGoesOnInAnotherFile) {
  constexpr std::int64_t kHeaderBytesMax = 3 * kShardDataAlignment;
  TempDir dir;
  PosixFiles files;
  const Sample sample;
  const auto written = WriteShards(files, dir.path(), kInfo, sample.Contents(), kHeaderBytesMax);
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  ASSERT_GT(written->size(), 2u);
  Manifest manifest;
  manifest.id = kInfo.id;
  manifest.attempt = kInfo.attempt;
  manifest.world = kInfo.world;
  // Another rank's file lies in front: lines of the manifest are not counted.
  const ShardInfo other{kInfo.id, kInfo.attempt, Rank(0), kInfo.world};
  manifest.files.push_back(*WriteShard(files, dir.path(), other, {}));
  for (std::size_t i = 0; i < written->size(); ++i) {
    const ManifestFile& file = (*written)[i];
    EXPECT_EQ(file.name, ShardName(Rank(1), 4, static_cast<int>(i) + 1));
    EXPECT_LE(file.header_bytes, kHeaderBytesMax);
    manifest.files.push_back(file);
  }
  Structure wanted;
  std::vector<std::vector<std::byte>> memory;
  for (std::size_t i = 0; i < sample.pieces.size(); ++i) {
    const ShardPiece& piece = sample.pieces[i];
    wanted.push_back(
        {piece.name, piece.blob, piece.dtype, piece.global_shape, piece.offset, piece.shape});
    memory.emplace_back(sample.bytes[i].size());
  }
  const auto target = [&](std::size_t i) -> std::span<std::byte> { return memory[i]; };
  const auto read = ReadPieces(files, dir.path(), manifest, Rank(1), wanted, target);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(memory, sample.bytes);

  // A part that is not the one of its name is found.
  std::filesystem::copy_file(dir / manifest.files[2].name, dir / "x");
  std::filesystem::rename(dir / manifest.files[3].name, dir / manifest.files[2].name);
  std::filesystem::rename(dir / "x", dir / manifest.files[3].name);
  EXPECT_EQ(ReadPieces(files, dir.path(), manifest, Rank(1), wanted, target).status().code(),
            Code::kDataLoss);
}

TEST(SplitShards, NothingIsStillOneFile) {
  TempDir dir;
  PosixFiles files;
  const auto written = WriteShards(files, dir.path(), kInfo, {});
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(written->size(), 1u);
}

TEST(LargeTensor, OffsetsPastFourGiBStayWhole) {
  constexpr std::int64_t kFiveGiB = std::int64_t{5} << 30;
  std::vector<ShardPiece> pieces(2);
  for (int i = 0; i < 2; ++i) {
    pieces[static_cast<std::size_t>(i)].name = i == 0 ? "a" : "b";
    pieces[static_cast<std::size_t>(i)].dtype = DType::kBF16;
    pieces[static_cast<std::size_t>(i)].shape = {kFiveGiB / 2};
    pieces[static_cast<std::size_t>(i)].global_shape = {std::int64_t{1} << 50};
    pieces[static_cast<std::size_t>(i)].offset = {std::int64_t{1} << 49};
  }
  ASSERT_TRUE(LayOut(pieces).ok());
  for (ShardPiece& piece : pieces) piece.chunk_hashes.assign(1280, 7);
  const auto header = FormatShardHeader(kInfo, pieces);
  ASSERT_TRUE(header.ok());
  const auto parsed = ParseShardHeader(
      *header, static_cast<std::int64_t>(header->size()) + 2 * kFiveGiB, "five GiB");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->pieces, pieces);
  EXPECT_EQ(parsed->pieces[1].end, 2 * kFiveGiB);
  EXPECT_EQ(ChunkBytes(parsed->pieces[1], 1279), kHashChunkBytes);
}

// The worked example of the format's page, byte for byte.
TEST(Golden, TheFilesOfTheDocumentation) {
  TempDir dir;
  PosixFiles files;
  const float values[] = {1.0F, 2.0F};
  ShardPiece piece;
  piece.name = "w";
  piece.dtype = DType::kF32;
  piece.shape = piece.global_shape = {2};
  piece.offset = {0};
  const ShardInfo info{{Generation(2), Step(7)}, "0badcafe", Rank(0), 1};
  const auto file =
      WriteShard(files, dir.path(), info, {{piece, std::as_bytes(std::span<const float>(values))}});
  ASSERT_TRUE(file.ok());
  Manifest manifest;
  manifest.root_id = "00112233445566778899aabbccddeeff";
  manifest.job = "golden";
  manifest.id = info.id;
  manifest.attempt = info.attempt;
  manifest.created = "2026-01-31T12:00:00.000Z";
  manifest.world = 1;
  manifest.files = {*file};
  manifest.tensors = {{"w", {DType::kF32, {2}}}};
  manifest.producer = "perdure 0.1.0";
  Fork fork;
  fork.generation = Generation(3);
  fork.parent = CheckpointId{Generation(2), Step(60)};
  fork.reason = "rank 3 on b was killed (signal 9) at step 97";
  fork.passed_over = {{"step-00000080.g2", "a flipped byte"}};
  fork.skipped_samples = {{1024, 2048}};

  const std::string golden = std::string(PERDURE_TEST_DIR) + "/checkpoint/golden/";
  if (GetEnv("PERDURE_WRITE_GOLDEN").has_value()) {
    std::filesystem::create_directories(golden);
    Spew(golden + file->name, Slurp(dir / file->name));
    Spew(golden + "manifest.json", FormatManifest(manifest));
    Spew(golden + "g3.json", FormatFork(fork));
  }
  EXPECT_EQ(Slurp(dir / file->name), Slurp(golden + file->name));
  EXPECT_EQ(FormatManifest(manifest), Slurp(golden + "manifest.json"));
  EXPECT_EQ(FormatFork(fork), Slurp(golden + "g3.json"));
  // And they still read as what they are.
  EXPECT_EQ(*ParseManifest(Slurp(golden + "manifest.json"), "golden"), manifest);
  EXPECT_EQ(*ParseFork(Slurp(golden + "g3.json"), "golden"), fork);
  EXPECT_TRUE(ShardReader::Open(files, golden, *file).ok());
}

// ---------------------------------------------------------------- packing

TEST(Pack, StridedAndTransposedViewsArePackedInOrder) {
  std::vector<std::int32_t> memory(24);
  for (int i = 0; i < 24; ++i) memory[static_cast<std::size_t>(i)] = i;
  TensorView view{memory.data(), DType::kI32, {2, 3}, {12, 4}};
  std::vector<std::int32_t> packed(6);
  const auto out = std::as_writable_bytes(std::span<std::int32_t>(packed));
  ASSERT_TRUE(Pack(view, out).ok());
  EXPECT_EQ(packed, (std::vector<std::int32_t>{0, 4, 8, 12, 16, 20}));
  view.strides = {1, 4};  // transposed
  ASSERT_TRUE(Pack(view, out).ok());
  EXPECT_EQ(packed, (std::vector<std::int32_t>{0, 4, 8, 1, 5, 9}));
  view.strides = {0, 0};  // broadcast
  view.data = memory.data() + 7;
  ASSERT_TRUE(Pack(view, out).ok());
  EXPECT_EQ(packed, (std::vector<std::int32_t>{7, 7, 7, 7, 7, 7}));

  view = {memory.data(), DType::kI32, {3, 2}, {8, 3}};
  packed = {-1, -2, -3, -4, -5, -6};
  ASSERT_TRUE(Unpack(out, view).ok());
  EXPECT_EQ(memory[0], -1);
  EXPECT_EQ(memory[3], -2);
  EXPECT_EQ(memory[8], -3);
  EXPECT_EQ(memory[19], -6);
  EXPECT_EQ(memory[1], 1) << "nothing between is touched";
}

TEST(Pack, RefusesWhatItCannotReach) {
  std::byte memory[8];
  std::byte packed[8];
  TensorView view{memory, DType::kF4, {2, 2}, {4, 1}};
  EXPECT_EQ(Pack(view, packed).code(), Code::kUnimplemented);
  view = {memory, DType::kF32, {2}};
  view.device = DeviceKind::kCuda;
  EXPECT_EQ(Pack(view, packed).code(), Code::kUnimplemented);
  view = {nullptr, DType::kF32, {2}};
  EXPECT_EQ(Pack(view, packed).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace perdure
