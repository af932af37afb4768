// States of awkward shapes, whole ways: saved by some ranks, restored by others, equal to the byte.
// Rows that do not divide, ranks with nothing, scalars by the thousand, a hundred thousand tensors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/log.h"
#include "base/posix.h"
#include "storage/posix_files.h"
#include "storage/recording_files.h"
#include "support.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

// One tensor over all ranks: rank r holds the rows [cuts[r], cuts[r + 1]).
struct Rows {
  std::string name;
  DType dtype = DType::kU8;
  Shape global;
  std::vector<std::int64_t> cuts;  // one more than ranks
};

std::vector<std::int64_t> EvenCuts(std::int64_t rows, int world) {
  // As torch.chunk shares out: full shares first, the last ranks may get nothing.
  const std::int64_t share = (rows + world - 1) / world;
  std::vector<std::int64_t> cuts;
  for (int r = 0; r <= world; ++r) cuts.push_back(std::min(rows, r * share));
  return cuts;
}

std::vector<std::int64_t> RandomCuts(std::int64_t rows, int world, std::mt19937_64& random) {
  std::vector<std::int64_t> cuts = {0, rows};
  while (cuts.size() < static_cast<std::size_t>(world) + 1) {
    cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// Byte i of a global tensor.
std::byte ByteAt(const std::string& name, std::int64_t i) {
  return static_cast<std::byte>(
      (static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U + std::hash<std::string>()(name)) >> 56);
}

class RowsState final : public Stateful {
 public:
  RowsState(std::vector<Rows> tensors, int rank) : tensors_(std::move(tensors)) {
    for (const Rows& rows : tensors_) {
      Shape shape = rows.global;
      std::int64_t begin = 0;
      if (!shape.empty()) {
        begin = rows.cuts[static_cast<std::size_t>(rank)];
        shape[0] = rows.cuts[static_cast<std::size_t>(rank) + 1] - begin;
      }
      begin_.push_back(begin);
      bytes_.emplace_back(static_cast<std::size_t>(*ByteCount(rows.dtype, shape)));
      shapes_.push_back(std::move(shape));
    }
  }

  void Fill() {
    ForEachByte([](std::byte& byte, std::byte wanted) { byte = wanted; });
  }
  bool IsFilled() {
    bool same = true;
    ForEachByte([&](std::byte& byte, std::byte wanted) { same = same && byte == wanted; });
    return same;
  }

  Result<State> Describe() override {
    State state;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      TensorEntry entry;
      entry.name = tensors_[i].name;
      entry.view.data = bytes_[i].data();
      entry.view.dtype = tensors_[i].dtype;
      entry.view.shape = shapes_[i];
      entry.holders = Holders::kReplicated;
      if (!shapes_[i].empty()) {
        entry.holders = Holders::kSharded;
        entry.global_shape = tensors_[i].global;
        entry.offset = Shape(shapes_[i].size(), 0);
        entry.offset[0] = begin_[i];
      }
      state.tensors.push_back(std::move(entry));
    }
    return state;
  }

 private:
  template <class Visit>
  void ForEachByte(Visit visit) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::int64_t row_bytes = 0;
      if (!shapes_[i].empty()) {
        Shape row = shapes_[i];
        row[0] = 1;
        row_bytes = *ByteCount(tensors_[i].dtype, row);
      }
      const std::int64_t first = begin_[i] * row_bytes;
      for (std::size_t j = 0; j < bytes_[i].size(); ++j) {
        visit(bytes_[i][j], ByteAt(tensors_[i].name, first + static_cast<std::int64_t>(j)));
      }
    }
  }

  const std::vector<Rows> tensors_;
  std::vector<std::int64_t> begin_;
  std::vector<Shape> shapes_;
  std::vector<std::vector<std::byte>> bytes_;
};

// One generation of `world` ranks; `save`: fills and saves step 0, else it must come back filled.
void RunRows(Files& files, const std::string& root, int world, const std::vector<Rows>& tensors,
             bool save) {
  const auto claimed = CheckpointEngine::ClaimNext(files, root, "toy", Generation(1), RealClock());
  ASSERT_TRUE(claimed.ok()) << claimed.status().ToString();
  Board board;
  std::barrier done(world);
  RunRanks(world, [&](int r) {
    MemoryGroup group(board, Rank(r), world, *claimed);
    RowsState state(tensors, r);
    CheckpointOptions options = ToyOptions(root);
    options.checkpoint_deadline = options.restore_deadline = std::chrono::seconds(120);
    options.async_save = false;
    std::unique_ptr<CheckpointEngine> engine;
    const auto run = [&]() -> Status {
      PERDURE_ASSIGN_OR_RETURN(
          engine, CheckpointEngine::Open(options, group, files, RealClock(), {}, In(30)));
      engine->Add("toy", state);
      PERDURE_ASSIGN_OR_RETURN(const RestoreReport restored, engine->Restore());
      EXPECT_EQ(restored.fresh, save);
      if (!save) return state.IsFilled() ? Ok() : Status(Code::kDataLoss, "other bytes came back");
      state.Fill();
      return engine->Save(0);
    };
    const Status status = run();
    EXPECT_TRUE(status.ok()) << "rank " << r << ": " << status.ToString();
    done.arrive_and_wait();
    board.TakeDown();
    if (engine != nullptr) {
      EXPECT_TRUE(engine->Close(In(30)).ok());
    }
  });
}

class ShapesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { Log().set_level(spdlog::level::off); }
};

TEST_F(ShapesTest, FiveRowsAndThreeRowsOverFourRanks) {
  std::vector<Rows> tensors;
  for (const std::int64_t rows : {5, 3, 1, 0}) {
    tensors.push_back({fmt::format("rows{}", rows), DType::kBF16, {rows, 7}, EvenCuts(rows, 4)});
    tensors.push_back({fmt::format("line{}", rows), DType::kU8, {rows}, EvenCuts(rows, 4)});
  }
  RecordingFiles files;
  RunRows(files, "/root", 4, tensors, true);
  RunRows(files, "/root", 4, tensors, false);
}

TEST_F(ShapesTest, SavedByAnyRanksRestoredByAnyOthers) {
  const auto given = GetEnvInt("PERDURE_TEST_SEED");
  const std::uint64_t seed =
      given.ok() && given->has_value() ? static_cast<std::uint64_t>(**given) : RandomU64() >> 1;
  SCOPED_TRACE(testing::Message() << "PERDURE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto rounds = GetEnvInt("PERDURE_TEST_ROUNDS");
  for (std::int64_t round = 0; round < (rounds.ok() ? rounds->value_or(25) : 25); ++round) {
    SCOPED_TRACE(round);
    std::vector<Rows> tensors;
    const int from = 1 + static_cast<int>(random() % 5);
    const int to = 1 + static_cast<int>(random() % 5);
    for (std::size_t i = 0, n = 1 + random() % 6; i < n; ++i) {
      constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kU8,
                                   DType::kF64, DType::kBool, DType::kI64};
      Shape shape;
      for (std::size_t axes = random() % 4; axes > 0; --axes) {
        shape.push_back(static_cast<std::int64_t>(random() % 9));
      }
      Rows rows{fmt::format("t{}", i), kDTypes[random() % 6], shape, {}};
      if (!shape.empty()) rows.cuts = RandomCuts(shape[0], from, random);
      tensors.push_back(std::move(rows));
    }
    RecordingFiles files;
    RunRows(files, "/root", from, tensors, true);
    for (Rows& rows : tensors) {
      if (!rows.global.empty()) rows.cuts = RandomCuts(rows.global[0], to, random);
    }
    RunRows(files, "/root", to, tensors, false);
    if (HasFailure()) return;
  }
}

TEST_F(ShapesTest, TenThousandScalars) {
  std::vector<Rows> tensors;
  constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kU8};
  for (int i = 0; i < 10'000; ++i) {
    tensors.push_back({fmt::format("expert{}.scale", i), kDTypes[i % 5], {}, {}});
  }
  RecordingFiles files;
  RunRows(files, "/root", 2, tensors, true);
  RunRows(files, "/root", 2, tensors, false);
}

// Files are few whatever the number of tensors: one of each rank and the manifest.
TEST_F(ShapesTest, AHundredThousandTensorsAreOneFileAndAManifest) {
  std::vector<Rows> tensors;
  for (int i = 0; i < 100'000; ++i) {
    tensors.push_back({fmt::format("layer{}.bias", i), DType::kF32, {3}, EvenCuts(3, 1)});
  }
  TempDir dir;
  PosixFiles files;
  RunRows(files, dir / "root", 1, tensors, true);
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "root/step-00000000.g1")) {
    count += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(count, 2u);
  RunRows(files, dir / "root", 1, tensors, false);
}

}  // namespace
}  // namespace perdure
