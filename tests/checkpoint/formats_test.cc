// Names, forks and lineages, manifests, the safetensors container: what they accept, and that they
// refuse everything else.
#include <gtest/gtest.h>

#include <random>

#include "base/posix.h"
#include "checkpoint/hash.h"
#include "checkpoint/json.h"
#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"

namespace perdure {
namespace {

CheckpointId Id(std::int64_t generation, std::int64_t step) {
  return {Generation(generation), Step(step)};
}

// ---------------------------------------------------------------- names

TEST(Names, GoBothWays) {
  const CheckpointName names[] = {
      {NameKind::kCommitted, Id(3, 200), ""},
      {NameKind::kCommitted, Id(12, 1234567890), ""},
      {NameKind::kAttempt, Id(3, 220), "5f1c9a2e"},
      {NameKind::kTrash, Id(1, 180), ""},
      {NameKind::kTrashedAttempt, Id(3, 220), "5f1c9a2e"},
  };
  for (const CheckpointName& name : names) EXPECT_EQ(ParseName(FormatName(name)), name);
  EXPECT_EQ(FormatName(names[0]), "step-00000200.g3");
  EXPECT_EQ(FormatName(names[2]), ".tmp-step-00000220.g3-5f1c9a2e");
  EXPECT_EQ(FormatName(names[3]), ".trash-step-00000180.g1");
}

TEST(Names, WhatIsNotExactlyOursIsNobodys) {
  for (const char* name :
       {"step-00000200", "step-00000200.g", "step-00000200.g0", "step-200.g3", "step-00000200.g3 ",
        "step-00000200.g03", "step--0000200.g3", "step-+0000200.g3", "xstep-00000200.g3",
        "step-00000200.g3-5f1c9a2e", ".tmp-step-00000200.g3", ".tmp-step-00000200.g3-5F1C9A2E",
        ".tmp-step-00000200.g3-5f1c", "step-000000200.g3", "latest", "", "lineage",
        "step-99999999999999999999.g3"}) {
    EXPECT_FALSE(ParseName(name).has_value()) << name;
  }
  EXPECT_TRUE(IsShardName("rank-00000-of-00004.safetensors"));
  EXPECT_EQ(ParseShardName("rank-00003-of-00004-part-00002.safetensors"),
            (ShardFileName{Rank(3), 4, 2}));
  EXPECT_EQ(ShardName(Rank(3), 4, 2), "rank-00003-of-00004-part-00002.safetensors");
  for (const char* name :
       {"rank-00004-of-00004.safetensors", "rank-0-of-4.safetensors",
        "../rank-00000-of-00004.safetensors", "model.safetensors",
        "rank-00000-of-00004-part-00001.safetensors", "rank-00000-of-00004-part-00000.safetensors",
        "rank-00000-of-00004-part-2.safetensors"}) {
    EXPECT_FALSE(IsShardName(name)) << name;
  }
  EXPECT_EQ(ParseClaimName("g12.claim"), Generation(12));
  EXPECT_EQ(ParseForkName("g12.json"), Generation(12));
  for (const char* name : {"g0.claim", "g01.claim", "g.claim", "g1.claim2", ".tmp-g1.claim-0000"}) {
    EXPECT_FALSE(ParseClaimName(name).has_value()) << name;
  }
}

// ---------------------------------------------------------------- seals and JSON

TEST(Seal, EveryByteCounts) {
  const std::string sealed = SealJson("{\n\"a\": 1,\n");
  ASSERT_TRUE(CheckSeal(sealed, "x").ok());
  ASSERT_TRUE(ParseJson(sealed, "x").ok());
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string broken = sealed;
      broken[i] = static_cast<char>(broken[i] ^ (1 << bit));
      EXPECT_EQ(CheckSeal(broken, "x").status().code(), Code::kDataLoss) << i;
    }
    EXPECT_FALSE(CheckSeal(sealed.substr(0, i), "x").ok());
  }
  EXPECT_FALSE(CheckSeal(sealed + "\n", "x").ok());
}

TEST(Json, RefusesDuplicatesDepthAndRubbish) {
  EXPECT_TRUE(ParseJson("{\"a\":{\"a\":1},\"b\":[{\"a\":1},{\"a\":2}]}", "x").ok());
  EXPECT_NE(ParseJson("{\"a\":1,\"b\":2,\"a\":3}", "x").status().message().find("\"a\""),
            std::string::npos);
  EXPECT_FALSE(ParseJson("{\"b\":{\"a\":1,\"a\":1}}", "x").ok());
  EXPECT_FALSE(ParseJson(std::string(40, '[') + std::string(40, ']'), "x").ok());
  EXPECT_FALSE(ParseJson("{\"a\":1} {", "x").ok());
  EXPECT_FALSE(ParseJson("{\"a\":\"\xff\"}", "x").ok());
  EXPECT_FALSE(ParseJson("", "x").ok());
  EXPECT_TRUE(IsUtf8("Gewicht é"));
  EXPECT_FALSE(IsUtf8("\xc3"));
}

// ---------------------------------------------------------------- lineage

Fork MakeFork(std::int64_t generation, std::optional<CheckpointId> parent) {
  Fork fork;
  fork.generation = Generation(generation);
  fork.parent = parent;
  fork.reason = "test";
  return fork;
}

TEST(Fork, GoesBothWaysAndEveryByteCounts) {
  Fork fork = MakeFork(3, Id(2, 60));
  fork.reason = "rank 3 on \"b\" was killed\n(signal 9)";
  fork.passed_over = {{"step-00000080.g2", "flipped"}, {"step-00000070.g2", "truncated"}};
  fork.skipped_samples = {{100, 200}, {300, 301}};
  const std::string text = FormatFork(fork);
  const Result<Fork> parsed = ParseFork(text, "g3.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, fork);
  EXPECT_EQ(*ParseFork(FormatFork(MakeFork(1, std::nullopt)), "g1.json"),
            MakeFork(1, std::nullopt));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string broken = text;
    broken[i] = static_cast<char>(broken[i] ^ 1);
    const Status status = ParseFork(broken, "lineage/g3.json").status();
    ASSERT_EQ(status.code(), Code::kDataLoss) << i;
    EXPECT_NE(status.message().find("lineage/g3.json"), std::string::npos);
  }
}

TEST(Fork, SkippedSamplesAreRangesOfPositions) {
  Fork fork = MakeFork(3, std::nullopt);
  fork.skipped_samples = {{100, 200}};
  const std::string good = FormatFork(fork);
  for (const char* range : {"[200, 100]", "[-1, 200]", "[100, 9223372036854775808]", "[100]",
                            "[100, 200, 300]", "[100, 2e2]", "{\"begin\": 100}"}) {
    std::string text = good.substr(0, good.find("\"digest\""));
    text.replace(text.find("[100, 200]"), 10, range);
    EXPECT_EQ(ParseFork(SealJson(text), "g3.json").status().code(), Code::kDataLoss) << range;
  }
  EXPECT_TRUE(ParseFork(good, "g3.json").ok());
}

TEST(Lineage, FollowsParentsUpToTheirSteps) {
  const std::vector<Fork> forks = {MakeFork(1, std::nullopt), MakeFork(2, Id(1, 40)),
                                   MakeFork(4, Id(2, 60))};
  EXPECT_EQ(HeadOf(forks), Generation(4));
  EXPECT_EQ(HeadOf({}), std::nullopt);
  const Result<Lineage> lineage = LineageOf(Generation(4), forks);
  ASSERT_TRUE(lineage.ok());
  EXPECT_TRUE(Contains(*lineage, Id(4, 1000)));
  EXPECT_TRUE(Contains(*lineage, Id(2, 60)));
  EXPECT_FALSE(Contains(*lineage, Id(2, 80)));
  EXPECT_TRUE(Contains(*lineage, Id(1, 40)));
  EXPECT_FALSE(Contains(*lineage, Id(1, 60)));
  EXPECT_FALSE(Contains(*lineage, Id(3, 20)));
}

TEST(Lineage, ABrokenChainIsAnError) {
  EXPECT_NE(LineageOf(Generation(4), {MakeFork(4, Id(2, 60))}).status().message().find("g2.json"),
            std::string::npos);
  EXPECT_FALSE(LineageOf(Generation(4), {MakeFork(4, Id(4, 60))}).ok());
  EXPECT_FALSE(LineageOf(Generation(4), {MakeFork(4, Id(5, 60)), MakeFork(5, Id(4, 1))}).ok());
}

TEST(Lineage, SkippedSamplesAreThoseAlongIt) {
  std::vector<Fork> forks = {MakeFork(1, std::nullopt), MakeFork(2, Id(1, 40)),
                             MakeFork(3, Id(1, 40))};
  forks[0].skipped_samples = {{50, 60}};
  forks[1].skipped_samples = {{1000, 2000}};
  forks[2].skipped_samples = {{10, 20}, {20, 30}, {55, 70}, {90, 90}};
  const Lineage lineage = *LineageOf(Generation(3), forks);
  EXPECT_EQ(SkippedSamples(lineage, forks), (std::vector<SampleRange>{{10, 30}, {50, 70}}));
}

// ---------------------------------------------------------------- manifest

Manifest Example() {
  Manifest manifest;
  manifest.root_id = "00112233445566778899aabbccddeeff";
  manifest.job = "gpt \"tiny\"";
  manifest.id = Id(3, 200);
  manifest.attempt = "5f1c9a2e";
  manifest.created = "2026-01-31T12:00:00.000Z";
  manifest.world = 2;
  manifest.mesh = {{"dp", 2}};
  manifest.files = {{"rank-00000-of-00002.safetensors", 5000, 4096, std::string(32, 'a')},
                    {"rank-00001-of-00002.safetensors", 4096, 4096, std::string(32, 'b')}};
  manifest.tensors = {{"model.w", {DType::kBF16, {3, 4}}}, {"model.scale", {DType::kF32, {}}}};
  manifest.blobs = {{"sampler.state", 17}, {"rng.cpu@rank0", 5056}};
  manifest.producer = "perdure 0.1.0";
  return manifest;
}

TEST(ManifestTest, GoesBothWaysAndEveryByteCounts) {
  const std::string text = FormatManifest(Example());
  const Result<Manifest> parsed = ParseManifest(text, "manifest.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, Example());
  EXPECT_EQ(parsed->TotalBytes(), 9096);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string broken = text;
    broken[i] = static_cast<char>(broken[i] ^ (1 << (i % 8)));
    const Status status = ParseManifest(broken, "d/manifest.json").status();
    ASSERT_EQ(status.code(), Code::kDataLoss) << i;
    ASSERT_NE(status.message().find("d/manifest.json"), std::string::npos);
    ASSERT_FALSE(ParseManifest(text.substr(0, i), "x").ok());
  }
}

// A seal that matches is not enough: the content must make sense, too.
TEST(ManifestTest, RefusesWhatIsSealedButWrong) {
  const std::string good = FormatManifest(Example());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good.substr(0, good.find("\"digest\""));
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return ParseManifest(SealJson(text), "m").status();
  };
  EXPECT_TRUE(with("\"dp\": 2", "\"dp\": 3").ok());
  // The work of a newer program is no damage.
  const Status newer = with("\"format_version\": 1", "\"format_version\": 3");
  EXPECT_EQ(newer.code(), Code::kUnimplemented);
  EXPECT_NE(newer.message().find("m: has format version 3, written by a newer Perdure"),
            std::string::npos)
      << newer.message();
  EXPECT_EQ(with("\"format_version\": 1", "\"format_version\": 0").code(), Code::kDataLoss);
  EXPECT_FALSE(with("\"format_version\": 1", "\"format_version\": 2").ok());
  EXPECT_FALSE(with("\"step\": 200", "\"step\": -200").ok());
  EXPECT_FALSE(with("\"step\": 200", "\"step\": 200, \"step\": 200").ok());
  EXPECT_FALSE(with("\"world\": 2", "\"world\": 0").ok());
  EXPECT_FALSE(with("rank-00001-of-00002", "rank-00000-of-00002").ok());
  EXPECT_FALSE(with("rank-00001-of-00002.safetensors", "../../etc/passwd").ok());
  EXPECT_FALSE(with("\"BF16\"", "\"BF17\"").ok());
  EXPECT_FALSE(with("[3,4]", "[3037000500,3037000500,3]").ok());
  EXPECT_FALSE(
      with("\"bytes\": 4096, \"header_bytes\": 4096", "\"bytes\": 4095, \"header_bytes\": 4096")
          .ok());
  EXPECT_FALSE(with("\"job\"", "\"jab\"").ok());
}

// ---------------------------------------------------------------- safetensors

constexpr std::int64_t kFile = 1 << 20;

Status ParseWith(const std::string& json, std::int64_t data_bytes) {
  return ParseSafetensorsHeader(json, 8 + static_cast<std::int64_t>(json.size()) + data_bytes, "f")
      .status();
}

TEST(Safetensors, GoesBothWays) {
  const std::vector<SafetensorsEntry> entries = {{"b", DType::kF64, {2}, 0, 16},
                                                 {"a \"quoted\"", DType::kF32, {}, 16, 20},
                                                 {"e", DType::kF32, {3, 0}, 20, 20},
                                                 {"c", DType::kF4, {2, 3}, 20, 23}};
  const Result<std::string> header = FormatSafetensorsHeader(entries, {{"k", "v\\\"\n"}});
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->size() % 4096, 0u);
  const auto bytes = std::as_bytes(std::span<const char>(header->data(), 8));
  const std::int64_t file = static_cast<std::int64_t>(header->size()) + 23;
  EXPECT_EQ(*ParseSafetensorsLength(bytes, file, "f"),
            static_cast<std::int64_t>(header->size()) - 8);
  const auto parsed = ParseSafetensorsHeader(std::string_view(*header).substr(8), file, "f");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->entries, entries);
  EXPECT_EQ(parsed->metadata[0].second, "v\\\"\n");
  EXPECT_EQ(parsed->data_start, static_cast<std::int64_t>(header->size()));
}

TEST(Safetensors, RefusesWhatTheFormatRefuses) {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}}";
  };
  EXPECT_TRUE(ParseWith(one("F32", "[2]", "[0,8]"), 8).ok());
  EXPECT_TRUE(ParseWith("{}", 0).ok()) << "a file without tensors";
  EXPECT_TRUE(ParseWith("{\"__metadata__\":{\"a\":\"b\"}}  ", 0).ok());
  EXPECT_FALSE(ParseWith(one("F32", "[2]", "[0,8]"), 9).ok()) << "a byte too many";
  EXPECT_FALSE(ParseWith(one("F32", "[2]", "[0,8]"), 7).ok()) << "a byte too few";
  EXPECT_FALSE(ParseWith(one("F32", "[2]", "[4,12]"), 12).ok()) << "a hole";
  EXPECT_FALSE(ParseWith(one("F32", "[2]", "[8,0]"), 8).ok()) << "ends before it begins";
  EXPECT_FALSE(ParseWith(one("F32", "[3]", "[0,8]"), 8).ok()) << "size and shape differ";
  EXPECT_FALSE(ParseWith(one("F33", "[2]", "[0,8]"), 8).ok()) << "unknown dtype";
  EXPECT_FALSE(ParseWith(one("F4", "[3]", "[0,1]"), 1).ok()) << "not whole bytes";
  EXPECT_FALSE(ParseWith(one("F32", "[8589934592,8589934592]", "[0,0]"), 0).ok()) << "overflow";
  EXPECT_FALSE(ParseWith(one("F32", "[-2]", "[0,8]"), 8).ok());
  EXPECT_FALSE(ParseWith(one("F32", "[2.0]", "[0,8]"), 8).ok());
  EXPECT_FALSE(ParseWith(one("F32", "[2]", "[0,8,9]"), 8).ok());
  EXPECT_FALSE(ParseWith(" " + one("F32", "[2]", "[0,8]"), 8).ok()) << "does not begin with {";
  EXPECT_FALSE(ParseWith(one("F32", "[2]", "[0,8]") + "\n", 8).ok()) << "padded with a line feed";
  EXPECT_FALSE(ParseWith("{\"__metadata__\":{\"a\":1}}", 0).ok()) << "metadata not a string";
  EXPECT_FALSE(
      ParseWith("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1).ok())
      << "unknown key";
  const std::string entry = "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":";
  EXPECT_FALSE(ParseWith("{\"a\":" + entry + "[0,4]},\"a\":" + entry + "[4,8]}}", 8).ok())
      << "a key twice";
  EXPECT_FALSE(ParseWith("{\"a\":" + entry + "[0,4]},\"b\":" + entry + "[2,6]}}", 6).ok())
      << "an overlap";
  std::byte length[8] = {};
  length[3] = std::byte{0xff};
  EXPECT_FALSE(ParseSafetensorsLength(length, INT64_MAX, "f").ok()) << "beyond the limit";
  length[3] = std::byte{0x01};
  EXPECT_FALSE(ParseSafetensorsLength(length, kFile, "f").ok()) << "beyond the file";
  length[7] = std::byte{0x80};
  EXPECT_FALSE(ParseSafetensorsLength(length, INT64_MAX, "f").ok());
}

// Random damage may pass as something else that is valid; it must never do more than that.
TEST(Safetensors, SurvivesRandomMutations) {
  const std::vector<SafetensorsEntry> entries = {{"weights", DType::kF32, {2, 3}, 0, 24},
                                                 {"bias", DType::kBF16, {3}, 24, 30}};
  const std::string header = *FormatSafetensorsHeader(entries, {{"perdure", "{\"a\":[1,2]}"}});
  const std::string json = header.substr(8, header.find_last_of('}') - 7);
  const std::uint64_t seed = RandomU64();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = json;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % mutated.size();
      switch (random() % 3) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated.erase(at, 1 + random() % 4);
          break;
        default:
          mutated.insert(at, mutated.substr(random() % mutated.size(), 1 + random() % 8));
      }
      if (mutated.empty()) mutated = "{";
    }
    const std::int64_t file = 8 + static_cast<std::int64_t>(mutated.size()) + 30;
    const auto parsed = ParseSafetensorsHeader(mutated, file, "f");
    if (!parsed.ok()) continue;
    ++accepted;
    std::int64_t at = 0;
    for (const SafetensorsEntry& entry : parsed->entries) {
      ASSERT_EQ(entry.begin, at) << mutated;
      ASSERT_EQ(entry.end - entry.begin, *ByteCount(entry.dtype, entry.shape)) << mutated;
      at = entry.end;
    }
    ASSERT_EQ(at, 30) << mutated;
  }
  EXPECT_LT(accepted, 20000);
}

}  // namespace
}  // namespace perdure
