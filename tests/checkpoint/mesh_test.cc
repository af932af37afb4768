// Saved on one mesh, restored on another: random states, random meshes, every byte equal.
//
// A mesh has three axes (pipeline, data, tensor parallel). Each tensor lies on some pipeline stages
// or on all, is cut along some of its extents over mesh axes, evenly or not, with or without a rim
// that neighbours hold too, and is replicated over the other axes. In memory it lies packed or with
// other strides. Bytes are a function of name and place in the global tensor.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <numeric>
#include <random>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/layout.h"
#include "checkpoint/staging.h"
#include "storage/recording_files.h"
#include "support.h"
#include "support/counting_files.h"

namespace perdure {
namespace {

using Random = std::mt19937_64;

std::int64_t Below(Random& random, std::int64_t end) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
}

struct Mesh {
  std::array<int, 3> extents = {1, 1, 1};  // pp, dp, tp; the last one runs fastest
  int world() const { return extents[0] * extents[1] * extents[2]; }
  std::array<int, 3> PlaceOf(int rank) const {
    return {rank / (extents[1] * extents[2]), rank / extents[2] % extents[1], rank % extents[2]};
  }
};

struct GlobalTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// How a tensor lies on a mesh.
struct Spread {
  int stage = -1;                               // pipeline stage that holds it; -1: all do
  std::vector<int> axis_of;                     // per extent: the mesh axis it is cut over, or -1
  std::vector<std::vector<std::int64_t>> cuts;  // per extent: one more than parts
  std::int64_t rim = 0;                         // elements of the neighbours held, too
  std::vector<std::size_t> order;               // of the extents in memory, slowest first
};

std::vector<std::int64_t> Cuts(std::int64_t rows, int parts, Random& random) {
  std::vector<std::int64_t> cuts = {0};
  if (random() % 2 == 0) {
    const std::int64_t share = (rows + parts - 1) / parts;  // the last ones may get nothing
    for (int i = 1; i <= parts; ++i) cuts.push_back(std::min(rows, i * share));
    return cuts;
  }
  for (int i = 1; i < parts; ++i) cuts.push_back(Below(random, rows + 1));
  cuts.push_back(rows);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

Spread RandomSpread(const GlobalTensor& tensor, const Mesh& mesh, Random& random) {
  Spread spread;
  const std::size_t extents = tensor.shape.size();
  spread.axis_of.assign(extents, -1);
  spread.cuts.resize(extents);
  spread.order.resize(extents);
  std::iota(spread.order.begin(), spread.order.end(), std::size_t{0});
  if (random() % 3 == 0) spread.stage = static_cast<int>(Below(random, mesh.extents[0]));
  if (BitsOf(tensor.dtype) < 8) return spread;  // pieces must begin on whole bytes
  if (random() % 2 == 0) std::shuffle(spread.order.begin(), spread.order.end(), random);
  std::vector<int> free = {1, 2};
  if (spread.stage < 0) free.push_back(0);
  std::shuffle(free.begin(), free.end(), random);
  for (std::size_t i = 0; i < extents && !free.empty(); ++i) {
    if (random() % 2 == 0) continue;
    spread.axis_of[i] = free.back();
    free.pop_back();
    spread.cuts[i] =
        Cuts(tensor.shape[i], mesh.extents[static_cast<std::size_t>(spread.axis_of[i])], random);
  }
  if (random() % 4 == 0) spread.rim = 1 + Below(random, 2);
  return spread;
}

Box BoxOf(const GlobalTensor& tensor, const Spread& spread, const std::array<int, 3>& place) {
  Box box{Shape(tensor.shape.size(), 0), tensor.shape};
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (spread.axis_of[i] < 0) continue;
    const auto part = static_cast<std::size_t>(place[static_cast<std::size_t>(spread.axis_of[i])]);
    std::int64_t begin = spread.cuts[i][part];
    std::int64_t end = spread.cuts[i][part + 1];
    if (begin < end) {
      begin = std::max<std::int64_t>(0, begin - spread.rim);
      end = std::min(tensor.shape[i], end + spread.rim);
    }
    box.offset[i] = begin;
    box.shape[i] = end - begin;
  }
  return box;
}

// The packed bytes of a box.
std::vector<std::byte> BytesOf(const GlobalTensor& tensor, const Box& box) {
  std::vector<std::byte> whole(static_cast<std::size_t>(*ByteCount(tensor.dtype, tensor.shape)));
  std::uint64_t state = std::hash<std::string>()(tensor.name);
  for (std::byte& byte : whole) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(state >> 56);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(*ByteCount(tensor.dtype, box.shape)));
  const Box all{Shape(tensor.shape.size(), 0), tensor.shape};
  const auto runs = RunsOf(tensor.dtype, all, box, box);
  EXPECT_TRUE(runs.ok());
  for (const ByteRun& run : *runs) {
    std::memcpy(bytes.data() + run.target, whole.data() + run.source,
                static_cast<std::size_t>(run.bytes));
  }
  return bytes;
}

class MeshState final : public Stateful {
 public:
  MeshState(const std::vector<GlobalTensor>& tensors, const std::vector<Spread>& spreads,
            const Mesh& mesh, int rank, WorldChange rule)
      : rank_(rank), rule_(rule) {
    const std::array<int, 3> place = mesh.PlaceOf(rank);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (spreads[i].stage >= 0 && spreads[i].stage != place[0]) continue;
      Held held;
      held.tensor = tensors[i];
      held.box = BoxOf(tensors[i], spreads[i], place);
      held.memory.resize(static_cast<std::size_t>(*ByteCount(tensors[i].dtype, held.box.shape)));
      Shape strides(held.box.shape.size(), 1);
      std::int64_t stride = 1;
      for (std::size_t j = spreads[i].order.size(); j-- > 0;) {
        strides[spreads[i].order[j]] = stride;
        stride *= std::max<std::int64_t>(1, held.box.shape[spreads[i].order[j]]);
      }
      if (!std::is_sorted(spreads[i].order.begin(), spreads[i].order.end())) {
        held.strides = strides;
      }
      held_.push_back(std::move(held));
    }
  }

  void Fill() {
    for (Held& held : held_) {
      EXPECT_TRUE(Unpack(BytesOf(held.tensor, held.box), ViewOf(held)).ok());
    }
    own_ = fmt::format("own of {}", rank_);
  }

  // Empty, or what is not as it was filled.
  std::string Wrong() {
    for (Held& held : held_) {
      std::vector<std::byte> packed(held.memory.size());
      EXPECT_TRUE(Pack(ViewOf(held), packed).ok());
      if (packed != BytesOf(held.tensor, held.box)) return held.tensor.name;
    }
    return "";
  }
  const std::string& own() const { return own_; }
  const std::vector<std::string>& recomputed() const { return recomputed_; }

  Result<State> Describe() override {
    State state;
    for (Held& held : held_) {
      TensorEntry entry;
      entry.name = held.tensor.name;
      entry.view = ViewOf(held);
      entry.holders = Holders::kSharded;
      entry.global_shape = held.tensor.shape;
      entry.offset = held.box.offset;
      state.tensors.push_back(std::move(entry));
    }
    state.blobs.push_back({"own", own_, Holders::kPerRank, Changes::kAtAnyTime, rule_});
    return state;
  }
  Status FinishRestore(const std::vector<BlobEntry>& blobs) override {
    for (const BlobEntry& blob : blobs) own_ = blob.bytes;
    return Ok();
  }
  Status WorldChanged(int, int, const std::vector<std::string>& recompute) override {
    recomputed_ = recompute;
    return Ok();
  }

 private:
  struct Held {
    GlobalTensor tensor;
    Box box;
    Shape strides;
    std::vector<std::byte> memory;
  };

  static TensorView ViewOf(Held& held) {
    TensorView view;
    view.data = held.memory.data();
    view.dtype = held.tensor.dtype;
    view.shape = held.box.shape;
    view.strides = held.strides;
    return view;
  }

  const int rank_;
  const WorldChange rule_;
  std::vector<Held> held_;
  std::string own_ = "nothing yet";
  std::vector<std::string> recomputed_;
};

// One generation: `visit` gets each rank's state and engine after Restore.
Status RunMesh(
    Files& files, const std::vector<GlobalTensor>& tensors, const std::vector<Spread>& spreads,
    const Mesh& mesh, WorldChange rule,
    const std::function<Status(int, MeshState&, CheckpointEngine&, const RestoreReport&)>& visit) {
  const auto claimed =
      CheckpointEngine::ClaimNext(files, "/root", "toy", Generation(1), RealClock());
  PERDURE_RETURN_IF_ERROR(claimed.status());
  Board board;
  const int world = mesh.world();
  std::barrier done(world);
  Mutex mutex;
  Status all;
  RunRanks(world, [&](int r) {
    MemoryGroup group(board, Rank(r), world, *claimed);
    MeshState state(tensors, spreads, mesh, r, rule);
    CheckpointOptions options = ToyOptions("/root");
    options.async_save = false;
    std::unique_ptr<CheckpointEngine> engine;
    const auto run = [&]() -> Status {
      PERDURE_ASSIGN_OR_RETURN(
          engine, CheckpointEngine::Open(options, group, files, RealClock(), {}, In(30)));
      engine->Add("s", state);
      PERDURE_ASSIGN_OR_RETURN(const RestoreReport report, engine->Restore());
      return visit(r, state, *engine, report);
    };
    const Status status = run();
    done.arrive_and_wait();
    board.TakeDown();
    if (engine != nullptr) static_cast<void>(engine->Close(In(30)).ok());
    MutexLock lock(mutex);
    if (all.ok()) all = status.WithContext(fmt::format("rank {}", r));
  });
  return all;
}

Status SaveOn(Files& files, const std::vector<GlobalTensor>& tensors,
              const std::vector<Spread>& spreads, const Mesh& mesh,
              WorldChange rule = WorldChange::kError) {
  return RunMesh(
      files, tensors, spreads, mesh, rule,
      [](int, MeshState& state, CheckpointEngine& engine, const RestoreReport&) -> Status {
        state.Fill();
        return engine.Save(0);
      });
}

Status RestoreOn(Files& files, const std::vector<GlobalTensor>& tensors,
                 const std::vector<Spread>& spreads, const Mesh& mesh, WorldChange rule,
                 int saved_world) {
  return RunMesh(
      files, tensors, spreads, mesh, rule,
      [&](int rank, MeshState& state, CheckpointEngine&, const RestoreReport& report) -> Status {
        EXPECT_FALSE(report.fresh);
        EXPECT_EQ(report.saved_world, saved_world);
        const std::string wrong = state.Wrong();
        if (!wrong.empty()) return Status(Code::kDataLoss, wrong + " came back different");
        if (saved_world == mesh.world()) {
          EXPECT_EQ(state.own(), fmt::format("own of {}", rank));
          EXPECT_TRUE(state.recomputed().empty());
        } else if (rule == WorldChange::kRank0) {
          EXPECT_EQ(state.own(), "own of 0");
          EXPECT_TRUE(state.recomputed().empty());
        } else {
          EXPECT_EQ(state.own(), "nothing yet");
          EXPECT_EQ(state.recomputed(), std::vector<std::string>{"own"});
        }
        return Ok();
      });
}

class MeshTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { Log().set_level(spdlog::level::off); }
};

Mesh RandomMesh(Random& random) {
  Mesh mesh;
  for (int& extent : mesh.extents) extent = 1 + static_cast<int>(Below(random, 3));
  while (mesh.world() > 8) mesh.extents[static_cast<std::size_t>(Below(random, 3))] = 1;
  return mesh;
}

std::vector<GlobalTensor> RandomTensors(Random& random) {
  std::vector<GlobalTensor> tensors;
  for (std::int64_t i = 0, count = 1 + Below(random, 8); i < count; ++i) {
    GlobalTensor tensor;
    tensor.name = fmt::format("t{}", i);
    tensor.dtype = static_cast<DType>(Below(random, static_cast<int>(DType::kU64) + 1));
    for (std::int64_t axes = Below(random, 5); axes > 0; --axes) {
      tensor.shape.push_back(Below(random, 10));
    }
    // Bits must fill whole bytes.
    if (BitsOf(tensor.dtype) < 8) tensor.shape.push_back(4 * Below(random, 4));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<Spread> SpreadAll(const std::vector<GlobalTensor>& tensors, const Mesh& mesh,
                              Random& random) {
  std::vector<Spread> spreads;
  for (const GlobalTensor& tensor : tensors) {
    spreads.push_back(RandomSpread(tensor, mesh, random));
  }
  return spreads;
}

// PERDURE_TEST_SEED gives one run again, PERDURE_TEST_ROUNDS makes it longer.
TEST_F(MeshTest, AnyStateFromAnyMeshOntoAnyOther) {
  const auto given = GetEnvInt("PERDURE_TEST_SEED");
  const std::uint64_t seed =
      given.ok() && given->has_value() ? static_cast<std::uint64_t>(**given) : RandomU64() >> 1;
  SCOPED_TRACE(testing::Message() << "PERDURE_TEST_SEED=" << seed);
  Random random(seed);
  const auto rounds = GetEnvInt("PERDURE_TEST_ROUNDS");
  for (std::int64_t round = 0; round < (rounds.ok() ? rounds->value_or(40) : 40); ++round) {
    SCOPED_TRACE(round);
    const Mesh from = RandomMesh(random);
    const Mesh to = RandomMesh(random);
    const WorldChange rule = random() % 2 == 0 ? WorldChange::kRank0 : WorldChange::kRecompute;
    const std::vector<GlobalTensor> tensors = RandomTensors(random);
    RecordingFiles files;
    const Status saved = SaveOn(files, tensors, SpreadAll(tensors, from, random), from, rule);
    ASSERT_TRUE(saved.ok()) << saved.ToString();
    const Status restored =
        RestoreOn(files, tensors, SpreadAll(tensors, to, random), to, rule, from.world());
    ASSERT_TRUE(restored.ok()) << restored.ToString();
    if (HasFailure()) return;
  }
}

// Rows (extent 0) over the mesh axis `rows`, columns (extent 1) over `columns`.
Spread Grid(const GlobalTensor& tensor, const Mesh& mesh, int rows, int columns) {
  Spread spread;
  spread.order = {0, 1};
  spread.axis_of = {rows, columns};
  for (std::size_t i = 0; i < 2; ++i) {
    if (spread.axis_of[i] < 0) {
      spread.cuts.emplace_back();
      continue;
    }
    const int parts = mesh.extents[static_cast<std::size_t>(spread.axis_of[i])];
    std::vector<std::int64_t> cuts;
    for (int p = 0; p <= parts; ++p) cuts.push_back(tensor.shape[i] * p / parts);
    spread.cuts.push_back(std::move(cuts));
  }
  return spread;
}

TEST_F(MeshTest, ARankReadsOnlyWhatItNeedsAndTheHeadersOfThoseFiles) {
  // 8 ranks hold 8 rows of 1 MiB each. Of 4 ranks each needs two of the files, of 16 half of one.
  const GlobalTensor tensor{"w", DType::kF32, {8, 262'144}};
  const Mesh eight{{1, 1, 8}};
  RecordingFiles disk;
  ASSERT_TRUE(SaveOn(disk, {tensor}, {Grid(tensor, eight, 2, -1)}, eight).ok());
  for (const int world : {4, 8}) {
    const Mesh mesh{{1, 1, world}};
    const auto claimed =
        CheckpointEngine::ClaimNext(disk, "/root", "toy", Generation(1), RealClock());
    ASSERT_TRUE(claimed.ok());
    Board board;
    std::barrier done(world);
    RunRanks(world, [&](int r) {
      CountingFiles files(disk);
      MemoryGroup group(board, Rank(r), world, *claimed);
      MeshState state({tensor}, {Grid(tensor, mesh, 2, -1)}, mesh, r, WorldChange::kRank0);
      auto engine =
          CheckpointEngine::Open(ToyOptions("/root"), group, files, RealClock(), {}, In(30));
      ASSERT_TRUE(engine.ok());
      (*engine)->Add("s", state);
      const auto report = (*engine)->Restore();
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_EQ(state.Wrong(), "");
      std::int64_t bytes = 0;
      std::vector<std::string> opened;
      for (const auto& [name, count] : files.read()) {
        if (name.rfind("rank-", 0) != 0) continue;
        bytes += count;
        opened.push_back(name);
      }
      // Rank 0's blob lies in the first file.
      const std::size_t files_needed = static_cast<std::size_t>(8 / world);
      const bool first_besides = world != 8 && r != 0;
      EXPECT_EQ(opened.size(), files_needed + (first_besides ? 1 : 0)) << "rank " << r;
      const std::int64_t header = 4096;
      const std::int64_t own = 8;  // "own of 0"
      EXPECT_EQ(bytes, (std::int64_t{8} << 20) / world +
                           static_cast<std::int64_t>(opened.size()) * header + own);
      EXPECT_EQ(report->bytes, bytes);
      done.arrive_and_wait();
      board.TakeDown();
      static_cast<void>((*engine)->Close(In(30)).ok());
    });
  }
}

TEST_F(MeshTest, TransposedMeshOfATransformerBlock) {
  // Megatron's way: columns of one matrix, rows of the next, layers over stages.
  const std::vector<GlobalTensor> tensors = {{"layer0.up", DType::kBF16, {6, 16}},
                                             {"layer0.down", DType::kBF16, {16, 6}},
                                             {"layer1.up", DType::kBF16, {6, 16}},
                                             {"layer1.down", DType::kBF16, {16, 6}}};
  const auto spread = [&](const Mesh& mesh) {
    std::vector<Spread> spreads;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const bool up = i % 2 == 0;
      Spread one = Grid(tensors[i], mesh, up ? -1 : 2, up ? 2 : -1);
      one.stage = mesh.extents[0] == 1 ? -1 : static_cast<int>(i / 2);
      spreads.push_back(one);
    }
    return spreads;
  };
  const std::vector<Mesh> meshes = {
      {{2, 2, 1}}, {{1, 1, 4}}, {{2, 1, 2}}, {{1, 1, 1}}, {{1, 3, 2}}};
  for (const Mesh& from : meshes) {
    RecordingFiles files;
    ASSERT_TRUE(SaveOn(files, tensors, spread(from), from).ok());
    for (const Mesh& to : meshes) {
      const Status restored =
          RestoreOn(files, tensors, spread(to), to, WorldChange::kRank0, from.world());
      EXPECT_TRUE(restored.ok()) << restored.ToString();
    }
  }
}

TEST_F(MeshTest, WhatEveryRankHasOfItsOwnIsNotGuessed) {
  RecordingFiles files;
  ASSERT_TRUE(SaveOn(files, {}, {}, {{1, 1, 3}}).ok());
  const auto restore = [&](int world) {
    return RunMesh(files, {}, {}, {{1, 1, world}}, WorldChange::kError,
                   [](int, MeshState&, CheckpointEngine&, const RestoreReport&) { return Ok(); });
  };
  for (const int world : {1, 2, 4}) {
    const Status refused = restore(world);
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_NE(refused.message().find(fmt::format(
                  "blob s.own: every rank has its own, 3 ranks saved it and {} go on; start with 3 "
                  "ranks, or let its entry's on_world_change say",
                  world)),
              std::string::npos)
        << refused.ToString();
    EXPECT_EQ(refused.message().find("not in the program"), std::string::npos);
  }
  EXPECT_TRUE(restore(3).ok());
}

TEST_F(MeshTest, WhatPiecesShareMustBeTheSame) {
  // Rows 0 to 3 on rank 0, rows 2 to 5 on rank 1, and rank 1 has another byte in row 2.
  struct Rim final : Stateful {
    explicit Rim(int rank) : rank_(rank), bytes_(8, 'a') {}
    Result<State> Describe() override {
      TensorEntry entry;
      entry.name = "w";
      entry.view.data = bytes_.data();
      entry.view.dtype = DType::kU8;
      entry.view.shape = {4, 2};
      entry.holders = Holders::kSharded;
      entry.global_shape = {6, 2};
      entry.offset = {rank_ * 2, 0};
      State state;
      state.tensors.push_back(entry);
      return state;
    }
    const int rank_;
    std::string bytes_;
  };
  RecordingFiles files;
  const auto claimed =
      CheckpointEngine::ClaimNext(files, "/root", "toy", Generation(1), RealClock());
  ASSERT_TRUE(claimed.ok());
  Board board;
  std::barrier done(2);
  RunRanks(2, [&](int r) {
    MemoryGroup group(board, Rank(r), 2, *claimed);
    Rim state(r);
    CheckpointOptions options = ToyOptions("/root");
    options.async_save = false;
    auto engine = CheckpointEngine::Open(options, group, files, RealClock(), {}, In(30));
    ASSERT_TRUE(engine.ok());
    (*engine)->Add("s", state);
    ASSERT_TRUE((*engine)->Restore().ok());
    EXPECT_TRUE((*engine)->Save(0).ok());
    if (r == 1) state.bytes_[1] = 'b';
    done.arrive_and_wait();
    const Status saved = (*engine)->Save(1);
    EXPECT_EQ(saved.code(), Code::kInvalidArgument);
    EXPECT_NE(saved.message().find("s.w [2, 2] at [2, 0], where pieces overlap"), std::string::npos)
        << saved.ToString();
    // Outside of the rim nobody else says anything.
    if (r == 1) state.bytes_ = "aaaabbbb";
    done.arrive_and_wait();
    const Status again = (*engine)->Save(2);
    EXPECT_TRUE(again.ok()) << again.ToString();
    done.arrive_and_wait();
    board.TakeDown();
    static_cast<void>((*engine)->Close(In(30)).ok());
  });
}

}  // namespace
}  // namespace perdure
