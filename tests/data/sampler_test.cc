#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "data/stream.h"
#include "perdure/data.h"

namespace perdure {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SamplerOptions Options(std::int64_t batch, std::uint64_t seed = 1) {
  SamplerOptions options;
  options.global_batch = batch;
  options.seed = seed;
  options.dataset_id = "numbers";
  return options;
}

DataPlacement Place(int rank = 0, int size = 1) {
  DataPlacement placement;
  placement.data_parallel_rank = rank;
  placement.data_parallel_size = size;
  return placement;
}

std::string Saved(ResumableSampler& sampler) {
  const Result<State> state = sampler.Describe();
  EXPECT_TRUE(state.ok()) << state.status().ToString();
  return state->blobs.at(0).bytes;
}

Status Load(ResumableSampler& sampler, const std::string& bytes) {
  BlobEntry blob;
  blob.name = "stream";
  blob.bytes = bytes;
  return sampler.FinishRestore({blob});
}

TEST(ResumableSampler, InOrderWithoutShuffle) {
  SamplerOptions options = Options(2);
  options.shuffle = false;
  const ResumableSampler sampler(5, options, Place());
  EXPECT_THAT(sampler.At(0), ElementsAre(0, 1));
  EXPECT_THAT(sampler.At(1), ElementsAre(2, 3));
  EXPECT_THAT(sampler.At(2), ElementsAre(4, 0));  // goes on with the next epoch
  EXPECT_THAT(sampler.At(3), ElementsAre(1, 2));
}

TEST(ResumableSampler, EpochsHaveDifferentOrders) {
  const ResumableSampler sampler(100, Options(100), Place());
  EXPECT_NE(sampler.At(0), sampler.At(1));
  EXPECT_THAT(sampler.At(0), testing::UnorderedElementsAreArray(sampler.At(1)));
}

TEST(ResumableSampler, TheSameOrderAtAnyWorldSize) {
  const ResumableSampler alone(1000, Options(24), Place());
  for (const int world : {1, 2, 3, 4, 6, 8, 12, 24}) {
    for (std::int64_t step = 0; step < 100; ++step) {
      std::vector<std::int64_t> joined;
      for (int rank = 0; rank < world; ++rank) {
        const ResumableSampler part(1000, Options(24), Place(rank, world));
        const std::vector<std::int64_t> samples = part.At(step);
        EXPECT_EQ(samples.size(), 24u / static_cast<unsigned>(world));
        joined.insert(joined.end(), samples.begin(), samples.end());
        EXPECT_EQ(part.GlobalAt(step), alone.At(step));
      }
      ASSERT_EQ(joined, alone.At(step)) << "world " << world << " step " << step;
    }
  }
}

TEST(ResumableSampler, SkippedRangesAreKnownAfterRestore) {
  SamplerOptions options = Options(2);
  options.shuffle = false;
  const DataPlacement placement = Place();
  const ResumableSampler sampler(100, options, placement);
  EXPECT_THAT(sampler.At(2), ElementsAre(4, 5));
  // Step 2 is the next. Overlapping, out of order, empty, and one that reaches back into what was
  // consumed: only what lies ahead counts.
  placement.lineage->Set({2, {{9, 12}, {7, 10}, {50, 50}, {1, 5}}});
  EXPECT_THAT(sampler.At(2), ElementsAre(5, 6));
  EXPECT_THAT(sampler.At(3), ElementsAre(12, 13));
  EXPECT_THAT(sampler.At(4), ElementsAre(14, 15));
}

TEST(ResumableSampler, ARangeMaySpanEpochs) {
  SamplerOptions options = Options(2);
  options.shuffle = false;
  const DataPlacement placement = Place();
  const ResumableSampler sampler(5, options, placement);
  placement.lineage->Set({0, {{3, 12}}});
  EXPECT_THAT(sampler.At(0), ElementsAre(0, 1));
  EXPECT_THAT(sampler.At(1), ElementsAre(2, 2));  // positions 2 and 12
}

TEST(ResumableSampler, AnUndisturbedRunAndAResumedOneSaveTheSameBytes) {
  ResumableSampler first(50, Options(4), Place());
  const std::string bytes = Saved(first);
  const DataPlacement placement = Place(1, 2);
  ResumableSampler second(50, Options(4), placement);
  ASSERT_TRUE(Load(second, bytes).ok());
  placement.lineage->Set({17, {}});
  EXPECT_EQ(Saved(second), bytes);
}

TEST(ResumableSampler, RefusesOtherDataAndSaysAllThatDiffers) {
  ResumableSampler first(50, Options(4, 7), Place());
  const std::string bytes = Saved(first);

  SamplerOptions options = Options(8, 9);
  options.dataset_id = "letters";
  options.shuffle = false;
  ResumableSampler other(51, options, Place());
  const Status refused = Load(other, bytes);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("dataset_id was \"numbers\", is \"letters\", number of samples was 50, is "
                        "51, seed was 7, is 9, shuffle was true, is false, global_batch was 4, is "
                        "8; set SamplerOptions::allow_change"));

  options.allow_change = true;
  ResumableSampler allowed(51, options, Place());
  EXPECT_TRUE(Load(allowed, bytes).ok());
}

TEST(ResumableSampler, AnotherBatchGoesOnWhereTheOldOneStopped) {
  SamplerOptions options = Options(4);
  options.shuffle = false;
  ResumableSampler first(1000, options, Place());
  const std::string bytes = Saved(first);

  options.global_batch = 6;
  options.allow_change = true;
  const DataPlacement placement = Place();
  ResumableSampler second(1000, options, placement);
  ASSERT_TRUE(Load(second, bytes).ok());
  placement.lineage->Set({10, {}});
  EXPECT_THAT(second.At(10), ElementsAre(40, 41, 42, 43, 44, 45));
  EXPECT_THAT(second.At(9), ElementsAre());

  // And again, from what the second saved.
  options.global_batch = 2;
  const DataPlacement again = Place();
  ResumableSampler third(1000, options, again);
  ASSERT_TRUE(Load(third, Saved(second)).ok());
  again.lineage->Set({12, {}});
  EXPECT_THAT(third.At(12), ElementsAre(52, 53));
}

TEST(ResumableSampler, BadArgumentsAreTold) {
  const auto message = [](std::int64_t size, std::int64_t batch, DataPlacement placement) {
    ResumableSampler sampler(size, Options(batch), std::move(placement));
    EXPECT_TRUE(sampler.At(0).empty());
    EXPECT_EQ(sampler.Describe().status().message(), sampler.status().message());
    return sampler.status().message();
  };
  EXPECT_THAT(message(0, 1, Place()), HasSubstr("has 0 samples"));
  EXPECT_THAT(message(5, 0, Place()), HasSubstr("global_batch is 0"));
  EXPECT_THAT(message(5, 6, Place(0, 4)), HasSubstr("cannot be shared evenly by 4"));
  EXPECT_THAT(message(5, 4, Place(4, 4)), HasSubstr("rank 4 of 4"));
  DataPlacement no_lineage = Place();
  no_lineage.lineage = nullptr;
  EXPECT_THAT(message(5, 4, no_lineage), HasSubstr("no lineage"));

  SamplerOptions options = Options(1);
  options.dataset_id = "\xff";
  ResumableSampler sampler(5, options, Place());
  EXPECT_THAT(sampler.Describe().status().message(), HasSubstr("UTF-8"));
}

TEST(ResumableSampler, DamagedBytesAreRefused) {
  ResumableSampler sampler(50, Options(4), Place());
  const std::string good = Saved(sampler);
  EXPECT_EQ(Load(sampler, "").code(), Code::kDataLoss);
  EXPECT_EQ(Load(sampler, good.substr(0, good.size() / 2)).code(), Code::kDataLoss);
  EXPECT_EQ(Load(sampler, "{\"format\":2}").code(), Code::kInvalidArgument);
  std::string negative = good;
  negative.replace(negative.find("\"base_step\":0"), 13, "\"base_step\":-1");
  EXPECT_EQ(Load(sampler, negative).code(), Code::kDataLoss);
  EXPECT_EQ(sampler.FinishRestore({}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(Load(sampler, good).ok());
}

TEST(ResumableSampler, LargeStepsAndSizesDoNotOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const ResumableSampler sampler(kMost, Options(3), Place());
  for (const std::int64_t sample : sampler.At(kMost)) {
    EXPECT_GE(sample, 0);
    EXPECT_LT(sample, kMost);
  }
  EXPECT_TRUE(sampler.At(-1).empty());
  const ResumableSampler small(3, Options(3), Place());
  EXPECT_THAT(small.At(kMost), testing::UnorderedElementsAre(0, 1, 2));
}

// DATA-1: along the lineage each sample is consumed exactly once per epoch, whatever was
// interrupted and however the world size (and, when allowed, the batch) changed; skipped positions
// never.
TEST(ResumableSampler, EachSampleOncePerEpochOverRandomInterruptions) {
  const std::uint64_t test_seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "test seed " << test_seed);
  std::mt19937_64 random(test_seed);
  for (int run = 0; run < 60; ++run) {
    const auto size = static_cast<std::int64_t>(1 + random() % 200);
    const std::uint64_t seed = random();
    const bool batch_changes = random() % 2 == 0;
    std::int64_t batch = 12;
    // Checkpoint of step s -> saved bytes; consumed[s] -> what step s consumed, in the lineage.
    std::map<std::int64_t, std::string> checkpoints;
    std::map<std::int64_t, std::vector<std::int64_t>> consumed;
    // First step of a generation of the lineage -> what its fork skips.
    std::map<std::int64_t, std::vector<SampleRange>> forks;
    for (int generation = 0; generation < 8; ++generation) {
      std::int64_t next_step = 0;
      std::string bytes;
      if (!checkpoints.empty()) {
        auto parent = checkpoints.begin();
        std::advance(parent, random() % checkpoints.size());
        next_step = parent->first + 1;
        bytes = parent->second;
        checkpoints.erase(std::next(parent), checkpoints.end());
      }
      consumed.erase(consumed.lower_bound(next_step), consumed.end());
      forks.erase(forks.lower_bound(next_step), forks.end());
      if (batch_changes && random() % 2 == 0) {
        batch = 12 * static_cast<std::int64_t>(1 + random() % 3);
      }
      SamplerOptions options = Options(batch, seed);
      options.allow_change = batch_changes;
      std::int64_t total = 0;
      for (const auto& [step, samples] : consumed) {
        total += static_cast<std::int64_t>(samples.size());
      }
      std::vector<SampleRange> ranges;
      if (random() % 3 == 0) {
        // Ahead of all that this lineage can have consumed or skipped.
        for (const auto& [step, earlier] : forks) {
          for (const SampleRange& range : earlier) total += range.end - range.begin;
        }
        const auto begin = total + static_cast<std::int64_t>(random() % 50);
        ranges.push_back({begin, begin + static_cast<std::int64_t>(random() % 30)});
      }
      forks[next_step] = ranges;

      constexpr int kWorlds[] = {1, 2, 3, 4, 6, 12};
      const int world = kWorlds[random() % std::size(kWorlds)];
      std::vector<std::unique_ptr<ResumableSampler>> samplers;
      for (int rank = 0; rank < world; ++rank) {
        const DataPlacement placement = Place(rank, world);
        auto sampler = std::make_unique<ResumableSampler>(size, options, placement);
        if (!bytes.empty()) {
          const Status loaded = Load(*sampler, bytes);
          ASSERT_TRUE(loaded.ok()) << loaded.ToString();
        }
        placement.lineage->Set({next_step, ranges});
        samplers.push_back(std::move(sampler));
      }
      const std::int64_t steps = static_cast<std::int64_t>(1 + random() % 30);
      for (std::int64_t step = next_step; step < next_step + steps; ++step) {
        std::vector<std::int64_t> all;
        for (const auto& sampler : samplers) {
          const std::vector<std::int64_t> part = sampler->At(step);
          all.insert(all.end(), part.begin(), part.end());
        }
        ASSERT_EQ(static_cast<std::int64_t>(all.size()), batch);
        consumed[step] = std::move(all);
        if (step % 5 == 4) checkpoints[step] = Saved(*samplers[random() % samplers.size()]);
      }
    }
    // Along the surviving lineage: walk the stream with the ranges left out.
    const ResumableSampler reference(size, Options(1, seed), Place());
    const auto is_skipped = [&](std::int64_t position) {
      for (const auto& [step, ranges] : forks) {
        for (const SampleRange& range : ranges) {
          if (position >= range.begin && position < range.end) return true;
        }
      }
      return false;
    };
    std::int64_t position = 0;
    std::map<std::int64_t, std::multiset<std::int64_t>> epochs;
    for (const auto& [step, samples] : consumed) {
      for (const std::int64_t sample : samples) {
        while (is_skipped(position)) ++position;
        ASSERT_EQ(sample, reference.At(position).at(0)) << "step " << step << " run " << run;
        epochs[position / size].insert(sample);
        ++position;
      }
    }
    for (const auto& [epoch, samples] : epochs) {
      for (const std::int64_t sample : samples) ASSERT_EQ(samples.count(sample), 1u);
    }
  }
}

TEST(ResumableSampler, ManyThreadsAskWhileTheLineageIsSet) {
  const DataPlacement placement = Place();
  ResumableSampler sampler(1000, Options(8), placement);
  const std::vector<std::int64_t> before = sampler.At(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) EXPECT_EQ(sampler.At(3), before);
    });
  }
  placement.lineage->Set({2, {{500, 600}}});
  for (std::thread& thread : threads) thread.join();
}

TEST(Stream, ResumingWithoutAChangeIsTheSameStream) {
  Stream stream;
  stream.batch = 7;
  stream.skipped = {{10, 20}, {30, 31}};
  const Stream resumed = Resume(stream, 5, 7, {{10, 15}, {12, 20}, {0, 0}});
  EXPECT_EQ(resumed.base_step, 0);
  EXPECT_EQ(resumed.skipped, stream.skipped);
}

TEST(Stream, RebasingKeepsEveryLaterPosition) {
  const std::uint64_t test_seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "test seed " << test_seed);
  std::mt19937_64 random(test_seed);
  for (int run = 0; run < 200; ++run) {
    Stream stream;
    stream.batch = static_cast<std::int64_t>(1 + random() % 5);
    std::int64_t end = 0;
    for (int i = 0; i < 4; ++i) {
      const auto begin = end + static_cast<std::int64_t>(1 + random() % 10);
      end = begin + static_cast<std::int64_t>(1 + random() % 10);
      stream.skipped.push_back({begin, end});
    }
    const auto step = static_cast<std::int64_t>(random() % 20);
    // A range far ahead forces a new base.
    const Stream resumed = Resume(stream, step, stream.batch, {{100'000, 100'001}});
    EXPECT_EQ(resumed.base_step, step);
    for (std::int64_t later = step; later < step + 50; ++later) {
      ASSERT_TRUE(stream.FirstOf(later) == resumed.FirstOf(later)) << "step " << later;
    }
  }
}

}  // namespace
}  // namespace perdure
