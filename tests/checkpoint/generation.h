// One whole generation of the toy program over any Files: claim, fork, restore, some saves,
// retention. What the crash, power cut and fault tests run.
#pragma once

#include <barrier>
#include <functional>
#include <string>

#include "support.h"

namespace perdure {

struct Ran {
  Status status;
  RestoreReport report;
  bool state_right = true;  // every rank came back with exactly the state of the step it restored
};

// A part of the program that writes a file, and one in a directory below, in a format of its own.
// It goes through `files`, so that its writing counts as steps of the disk; it syncs nothing.
class ToyFiles {
 public:
  ToyFiles(Files& files, int rank) : files_(files), rank_(rank) {}

  void Set(std::int64_t step) { step_ = step; }
  bool Read(std::int64_t step) const { return read_ == Text(step) + Text(step); }

  void AddTo(CheckpointEngine& engine) {
    engine.AddWriter(
        "toy_files", [this](const std::string& directory) { return Write(directory); },
        [this](const std::string& directory) { return Read(directory); }, WorldChange::kError);
  }

 private:
  std::string Text(std::int64_t step) const {
    return "rank " + std::to_string(rank_) + " step " + std::to_string(step) + "\n";
  }
  Status WriteFile(const std::string& path) {
    const std::string text = Text(step_);
    PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files_.Create(path));
    PERDURE_RETURN_IF_ERROR(
        file->Write(0, std::as_bytes(std::span<const char>(text.data(), text.size()))));
    return file->Close();
  }
  Status Write(const std::string& directory) {
    PERDURE_RETURN_IF_ERROR(WriteFile(directory + "/state"));
    PERDURE_RETURN_IF_ERROR(files_.MakeDirectory(directory + "/below"));
    return WriteFile(directory + "/below/state");
  }
  Status Read(const std::string& directory) {
    read_.clear();
    for (const char* name : {"/state", "/below/state"}) {
      PERDURE_ASSIGN_OR_RETURN(const std::string text,
                               ReadWholeFile(files_, directory + name, 1 << 20));
      read_ += text;
    }
    return Ok();
  }

  Files& files_;
  const int rank_;
  std::int64_t step_ = -1;
  std::string read_;
};

struct GenerationOptions {
  bool with_files = false;  // each rank also has ToyFiles
  std::function<void(Generation)> on_claimed;
  std::function<void(const CheckpointCommit&)> on_committed;  // rank 0
};

// `steps` saves, each waited for.
inline Ran RunGeneration(Files& files, const std::string& root, int world, std::int64_t steps,
                         const GenerationOptions& how = {}) {
  Ran ran;
  const Result<Generation> claimed =
      CheckpointEngine::ClaimNext(files, root, "toy", Generation(1), RealClock());
  ran.status = claimed.status();
  if (!claimed.ok()) return ran;
  if (how.on_claimed) how.on_claimed(*claimed);
  CheckpointOptions options = ToyOptions(root);
  options.interval_steps = 1;
  options.async_save = false;
  Board board;
  Mutex mutex;
  std::barrier saved(world);
  RunRanks(world, [&](int r) {
    CheckpointEvents rank_events;
    if (r == 0) rank_events.on_committed = how.on_committed;
    ToyFiles own(files, r);
    const auto add_more = [&](CheckpointEngine& engine) {
      if (how.with_files) own.AddTo(engine);
    };
    ToyRank rank(board, r, world, *claimed, files, options, rank_events, add_more);
    Status status = rank.opened;
    const std::int64_t restored = rank.report.next_step - 1;
    const bool right =
        status.ok() && (rank.report.fresh ||
                        (rank.state->Is(restored) && (!how.with_files || own.Read(restored))));
    for (std::int64_t i = 0; i < steps && status.ok(); ++i) {
      const std::int64_t step = rank.report.next_step + i;
      rank.engine->BeginStep(step);
      rank.state->Set(step);
      own.Set(step);
      status = rank.engine->EndStep(step);
      // Step 0 is not due by the interval. Otherwise this joins.
      if (status.ok()) status = rank.engine->Save(step);
    }
    // Everything is durable or has failed: those who only wait for requests need not wait longer.
    saved.arrive_and_wait();
    board.TakeDown();
    if (status.ok()) status = rank.engine->Close(In(30));
    MutexLock lock(mutex);
    if (ran.status.ok()) ran.status = status;
    if (r == 0) ran.report = rank.report;
    ran.state_right = ran.state_right && right;
  });
  return ran;
}

}  // namespace perdure
